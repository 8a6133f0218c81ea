"""What a pod's status says, field by field: tables with a row for each combination that decides."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchx.schedulers.kubernetes import names
from torchx.schedulers.kubernetes.pods.facts import (
    Pod,
    by_age,
    by_replica,
    main_container,
    read_pod,
    read_pods,
    replica_of,
    shorten,
    unix_time,
)
from torchx.specs import AppState

P, R, S, F = AppState.PENDING, AppState.RUNNING, AppState.SUCCEEDED, AppState.FAILED


def at(second: float) -> str:
    return f"2026-01-01T00:00:{second:02}Z"


def pod(
    status: Any = None, *, host: str = "n1", spec: Any = None, labels: Any = None, **metadata: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "labels": labels or {}, **metadata},
        "spec": {"nodeName": host, **(spec or {})},
        "status": status or {},
    }


def container(
    state: str = "running", name: str = "main", last: Any = None, restarts: Any = 0, **fields: Any
) -> dict[str, Any]:
    found = {"name": name, "state": {state: fields}, "restartCount": restarts}
    return {**found, "lastState": {"terminated": last}} if last is not None else found


def ran(phase: str, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": list(containers), **more}


def disrupted(reason: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": status, "reason": reason}]}


# -- what all pods have --------------------------------------------------------------------------------------


def test_a_pod_that_runs() -> None:
    """Its names, its node, its times, its image, and the restarts of all its containers."""
    labels = {names.LABEL_ROLE_INDEX: "2", names.LABEL_ROLE_NAME: "trainer", names.LABEL_REPLICA_ID: "7"}
    image = "docker-pullable://r.io/img@sha256:abc"
    status = ran(
        "Running", container(name="side", restarts=1), {**container(restarts=2), "imageID": image}, startTime=at(5)
    )
    found = read_pod(pod(status, labels=labels, creationTimestamp=at(1)))
    assert (found.name, found.role_index, found.role, found.container) == ("p", 2, "trainer", "main")
    assert (found.restarts, found.failures, found.image) == (3, 3, "r.io/img@sha256:abc")
    facts = found.facts
    assert (facts.replica, facts.state, facts.native, facts.host, facts.started) == (
        7,
        R,
        "Running",
        "n1",
        unix_time(at(5)),
    )
    assert (facts.reason, facts.stuck, found.starting, facts.exit_code, facts.ended) == ("", False, False, None, 0.0)
    assert found.age == (at(1), True, 0.0, "p")


@pytest.mark.parametrize(
    "item", [{}, {"metadata": 7, "spec": [], "status": "x"}, pod({"containerStatuses": {}, "conditions": 7})]
)
def test_a_pod_without_fields(item: dict[str, Any]) -> None:
    """It is read nevertheless."""
    found = read_pod(item)
    assert (found.facts.state, found.facts.reason) == (AppState.UNKNOWN, "its phase is `None`")
    assert (found.role_index, found.facts.replica, found.container, found.restarts, found.image) == (
        0,
        0,
        "main",
        0,
        "",
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"phase": "Unknown", "message": "m", "reason": "r"}, "m"),
        ({"phase": "Unknown", "reason": "r"}, "r"),
        ({"phase": "Unknown"}, "its phase is `Unknown`"),
    ],
)
def test_a_phase_that_says_nothing(status: dict[str, Any], said: str) -> None:
    """The message, else the reason, else the phase itself."""
    assert read_pod(pod(status)).facts.reason == said


@pytest.mark.parametrize(
    ("labels", "annotations", "replica"),
    [
        ({names.LABEL_REPLICA_ID: "3", names.INDEX_LABEL: "4"}, {names.INDEX_ANNOTATION: "5"}, 3),
        ({names.INDEX_LABEL: "4"}, {names.INDEX_ANNOTATION: "5"}, 5),
        ({names.INDEX_LABEL: "4"}, {}, 4),
        ({}, {}, 0),
        ({names.LABEL_REPLICA_ID: "x"}, {}, 0),
    ],
)
def test_the_number_of_a_replica(labels: dict[str, str], annotations: dict[str, str], replica: int) -> None:
    """By our label, else as its Job numbered it, else as Training Operator did."""
    assert replica_of({"labels": labels, "annotations": annotations}) == replica


@pytest.mark.parametrize(
    ("given", "main"),
    [(["side", "main"], "main"), (["side", "pytorch"], "pytorch"), (["side", "node"], "node"), (["node", "pytorch", "main"], "main"), (["a", "b"], "a")],
)  # fmt: skip
def test_the_container_of_the_role(given: list[str], main: str) -> None:
    """By its name; in a pod of somebody else the first one."""
    assert main_container([{"name": name} for name in given])["name"] == main
    assert main_container([]) == {}


def test_times() -> None:
    """Anything else is no time."""
    assert unix_time("1970-01-01T01:01:00+01:00") == 60
    assert [unix_time(text) for text in ("", "x", None, 7, "0001-01-01T00:00:00Z")][:4] == [0.0] * 4


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("no. preemption: none.", "no"),
        ("no, preemption: none.", "no"),
        ("no preemption: none.", "no"),
        ("no. no new claims, preemption: none.", "no"),
        (" 0/1. no. ", "0/1. no"),
    ],
)
def test_a_message_of_the_scheduler(message: str, said: str) -> None:
    """Without what it tried."""
    assert shorten(message) == said


# -- a pod that waits, or runs -------------------------------------------------------------------------------


def scheduled(status: str = "False", **fields: str) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": "False"}, {"type": "PodScheduled", "status": status, **fields}]}


@pytest.mark.parametrize(
    ("status", "host", "reason", "stuck", "starting"),
    [
        ({"phase": "Pending"}, "", "", False, False),
        ({"phase": "Pending"}, "n1", "it waits for its node `n1` to start it", False, False),
        ({"phase": "Running"}, "n1", "", False, False),
        ({"phase": "Pending", **scheduled()}, "", "no node fits: it waits for a node", False, False),
        ({"phase": "Pending", **scheduled(message="0/1, preemption: x")}, "", "no node fits: 0/1", False, False),
        ({"phase": "Pending", **scheduled(reason="SchedulingGated")}, "", "it is held back by a scheduling gate", False, False),
        ({"phase": "Pending", **scheduled("True", message="m")}, "", "", False, False),
        (ran("Pending", container()), "n1", "", False, False),
        (ran("Pending", container("waiting", reason="ContainerCreating")), "n1", "its container is being created (ContainerCreating)", False, True),
        (ran("Pending", container("waiting", reason="PodInitializing")), "n1", "its init containers run (PodInitializing)", False, False),
        (ran("Pending", container("waiting", reason="ErrImagePull", message="m")), "n1", "its image cannot be pulled (ErrImagePull): m", True, False),
        (ran("Pending", container("waiting", reason="Odd")), "n1", "reason (Odd)", False, False),
        (ran("Pending", container("waiting")), "n1", "", False, False),
        (
            ran("Pending", container("waiting", reason="PodInitializing"), initContainerStatuses=[container("waiting", name="i", reason="ErrImagePull")]),
            "n1", "init container `i`: its image cannot be pulled (ErrImagePull)", True, False,
        ),
        (
            ran("Running", container(), container("waiting", name="side", reason="CrashLoopBackOff")),
            "n1", "its container fails again and again: Kubernetes is backing off before the next start (CrashLoopBackOff)", True, False,
        ),
    ],
)  # fmt: skip
def test_why_a_pod_waits(status: dict[str, Any], host: str, reason: str, stuck: bool, starting: bool) -> None:
    """The scheduler first, then init containers, then the others; whether the user has to do something."""
    found = read_pod(pod(status, host=host))
    assert (found.facts.reason, found.facts.stuck, found.starting) == (reason, stuck, starting)


LAST = {"exitCode": 3, "reason": "Error", "message": "ValueError: x"}


@pytest.mark.parametrize(
    ("reason", "last", "before"),
    [("CrashLoopBackOff", LAST, "exit code 3: ValueError: x"), ("CrashLoopBackOff", {}, ""), ("ContainerCreating", LAST, ""), ("ContainerCreating", {}, "")],
)  # fmt: skip
def test_how_a_container_ended_before(reason: str, last: dict[str, Any], before: str) -> None:
    """If it is restarted again and again."""
    found = read_pod(pod(ran("Running", container("waiting", reason=reason, last=last))))
    assert found.facts.before == before


READY = [{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]
DOES_NOT_ANSWER = "its node `n1` does not answer"


@pytest.mark.parametrize(
    ("conditions", "deleted", "more", "spec", "reason"),
    [
        (READY, False, {}, {}, DOES_NOT_ANSWER),
        (READY, False, {}, {"readinessGates": [{"conditionType": "x"}]}, ""),
        (READY, False, {}, {"readinessGates": []}, DOES_NOT_ANSWER),
        ([READY[0]], False, {}, {}, ""),
        ([READY[1]], False, {}, {}, ""),
        ([READY[0], {"type": "ContainersReady", "status": "False"}], False, {}, {}, ""),
        ([{"type": "Ready", "status": "True"}, READY[1]], False, {}, {}, ""),
        ([], True, {}, {}, ""),
        ([], True, {"reason": "NodeLost"}, {}, "its node was lost (NodeLost)"),
        ([], False, {"reason": "NodeLost"}, {}, ""),
        ([], True, {"reason": "Other"}, {}, ""),
        (disrupted("DeletionByTaintManager")["conditions"], True, {}, {}, "was evicted from its node, which became unfit (DeletionByTaintManager)"),
        (disrupted("DeletionByTaintManager")["conditions"], False, {}, {}, ""),
        (disrupted("DeletionByTaintManager", "False")["conditions"], True, {}, {}, ""),
        ([*READY, *disrupted("DeletionByTaintManager")["conditions"]], True, {"reason": "NodeLost"}, {}, "was evicted from its node, which became unfit (DeletionByTaintManager)"),
        (READY, True, {}, {}, DOES_NOT_ANSWER),
    ],
)  # fmt: skip
def test_a_pod_that_only_seems_to_run(
    conditions: list[Any], deleted: bool, more: dict[str, Any], spec: dict[str, Any], reason: str
) -> None:
    """Its node is silent, or it is being taken away."""
    metadata = {"deletionTimestamp": at(1)} if deleted else {}
    found = read_pod(pod(ran("Running", container(), conditions=conditions, **more), spec=spec, **metadata))
    assert (found.facts.state, found.facts.reason) == (R, reason)
    waits = read_pod(pod(ran("Pending", container(), conditions=conditions, **more), spec=spec, **metadata))
    assert waits.facts.reason == ""


# -- a pod that has ended ------------------------------------------------------------------------------------


def failed(*, more: Any = None, **fields: Any) -> dict[str, Any]:
    return ran("Failed", container("terminated", **{"exitCode": 1, "reason": "Error", **fields}), **(more or {}))


def test_a_pod_that_has_succeeded() -> None:
    """With exit code 0, at the end of its main container."""
    found = read_pod(
        pod(
            ran(
                "Succeeded",
                container("terminated", "side", finishedAt=at(9)),
                container("terminated", finishedAt=at(7)),
            )
        )
    )
    assert (found.facts.state, found.facts.exit_code, found.facts.ended) == (S, 0, unix_time(at(7)))
    assert (found.failures, found.age[1]) == (0, False)


@pytest.mark.parametrize(
    ("fields", "code", "signal"),
    [
        ({"exitCode": 1}, 1, ""),
        ({"exitCode": 0}, 0, ""),
        ({"exitCode": 127}, 127, ""),
        ({"exitCode": 128}, 128, ""),
        ({"exitCode": 129}, None, "SIGHUP"),
        ({"exitCode": 137}, None, "SIGKILL"),
        ({"exitCode": 1, "signal": 15}, None, "SIGTERM"),
        ({"exitCode": 137, "signal": 15}, None, "SIGTERM"),
        ({"exitCode": 137, "signal": 0}, None, "SIGKILL"),
        ({"exitCode": "1"}, None, ""),
        ({"exitCode": True}, None, ""),
        ({"exitCode": None}, None, ""),
    ],
)
def test_exit_code_and_signal(fields: dict[str, Any], code: int | None, signal: str) -> None:
    """More than 128 is a signal."""
    facts = read_pod(pod(failed(**fields, finishedAt=at(7)))).facts
    assert (facts.exit_code, facts.signal, facts.ended) == (code, signal, unix_time(at(7)))


EVICTED = {"reason": "Evicted", "message": "The node was low on resource: memory."}


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (failed(), "", ""),
        (failed(reason="Completed"), "", ""),
        (failed(reason="OOMKilled", message="m"), "oom", "used more memory than its limit, and was killed (OOMKilled)"),
        (failed(reason="StartError", message="m"), "image", "its program could not be started (StartError): m"),
        (failed(reason="ContainerCannotRun", message="m"), "image", "its program could not be started (ContainerCannotRun): m"),
        (failed(more=EVICTED), "oom", "was evicted from its node (Evicted): The node was low on resource: memory."),
        (failed(reason="OOMKilled", more=EVICTED), "oom", "was evicted from its node (Evicted): The node was low on resource: memory."),
        (failed(more=disrupted("PreemptionByScheduler")), "preempted", "was preempted by a pod of higher priority (PreemptionByScheduler)"),
        (failed(more=disrupted("PreemptionByScheduler", "False")), "", ""),
        (failed(more={**disrupted("PreemptionByScheduler"), **EVICTED}), "preempted", "was preempted by a pod of higher priority (PreemptionByScheduler): The node was low on resource: memory."),
        (failed(more={**disrupted("TerminationByKubelet"), **EVICTED}), "oom", "was evicted from its node (Evicted): The node was low on resource: memory."),
        (failed(more=disrupted("TerminationByKubelet")), "node", "was ended by its node, which shut down or lacked a resource (TerminationByKubelet)"),
        (failed(more={"reason": "Error"}, reason="OOMKilled"), "oom", "used more memory than its limit, and was killed (OOMKilled)"),
    ],
)  # fmt: skip
def test_why_a_pod_has_failed(status: dict[str, Any], kind: str, reason: str) -> None:
    """The cluster's reason, if it was not the program; the message of a container counts if it never started."""
    found = read_pod(pod(status))
    assert (found.facts.kind, found.facts.reason) == (kind, reason)


@pytest.mark.parametrize(("more", "failures"), [({}, 3), (disrupted("X"), 2), (disrupted("X", "False"), 3)])
def test_a_disruption_is_no_failure(more: dict[str, Any], failures: int) -> None:
    """Restarts of its containers are."""
    found = read_pod(pod(ran("Failed", container("terminated", restarts=2, exitCode=1), **more)))
    assert (found.failures, found.restarts) == (failures, 2)


@pytest.mark.parametrize(
    ("main", "init", "container_", "code"),
    [
        ({"exitCode": 1}, [{"exitCode": 5}], "main", 1),
        ({"exitCode": 0}, [{"exitCode": 5}], "i0", 5),
        ({}, [{"exitCode": 0}, {"exitCode": 5}], "i1", 5),
        ({}, [{"exitCode": 0}], "main", None),
        (None, [{"exitCode": 5}], "i0", 5),
        (None, [], "main", None),
    ],
)
def test_the_container_that_failed(main: Any, init: list[Any], container_: str, code: int | None) -> None:
    """An init container, if the main one has not."""
    started = [container("terminated", f"i{i}", **fields) for i, fields in enumerate(init)]
    mains = [] if main is None else [container("terminated", **main)]
    found = read_pod(pod(ran("Failed", *mains, initContainerStatuses=started)))
    assert (found.container, found.facts.exit_code) == (container_, code)


@pytest.mark.parametrize(
    ("deleted", "grace", "end", "fields", "more", "stopped"),
    [
        (None, 30, 50, {}, {}, False),
        (40, 30, 50, {}, {}, True),
        (40, 30, 9, {}, {}, False),
        (40, 30, 10, {}, {}, False),
        (40, 30, 11, {}, {}, True),
        (40, 30, 10, {"exitCode": 143}, {}, True),
        (40, 30, 9, {"exitCode": 143}, {}, False),
        (40, None, 40, {}, {}, False),
        (40, None, 41, {}, {}, True),
        (40, 30, 50, {}, disrupted("PreemptionByScheduler"), False),
    ],
)
def test_a_pod_that_was_deleted(deleted: Any, grace: Any, end: int, fields: Any, more: Any, stopped: bool) -> None:
    """Whether it was ended by that, not by itself before, nor by the cluster."""
    metadata = {} if deleted is None else {"deletionTimestamp": at(deleted), "deletionGracePeriodSeconds": grace}
    found = read_pod(pod(failed(finishedAt=at(end), more=more, **fields), **metadata))
    assert found.facts.stopped is stopped


# -- what it has left ----------------------------------------------------------------------------------------

TRACE = "Traceback (most recent call last):\n  File 'x'\nValueError: bad"
FILE = json.dumps({"message": {"message": "it broke", "extraInfo": {"py_callstack": "x"}}})


@pytest.mark.parametrize(
    ("left", "enough", "why"),
    [
        ("", False, "exit code 1"),
        ("ValueError: bad", True, "exit code 1: ValueError: bad"),
        (FILE, True, "exit code 1: it broke"),
        (FILE[:45], True, "exit code 1: it broke"),
        ('{"message": "it broke", "x": 1', True, "exit code 1: it broke"),
        ('{"a": 1}\n{"b": 2}', True, None),
        (TRACE, True, "exit code 1: ValueError: bad"),
        ("x" * 1999 + "\nValueError: bad", False, "exit code 1: ValueError: bad"),
        ("x\n" * 1000 + TRACE, True, "exit code 1: ValueError: bad"),
        ("ü" * 900 + "\nValueError: bad", True, "exit code 1: ValueError: bad"),
        ("ü" * 1000 + "\nValueError: bad", False, "exit code 1: ValueError: bad"),
    ],
)
def test_whether_the_status_is_enough(left: str, enough: bool, why: str | None) -> None:
    """A message that may be cut at its beginning is not, unless it has the whole traceback."""
    found = read_pod(pod(failed(message=f" {left}\n")))
    assert (found.left, found.says_enough()) == (left.strip(), enough)
    if why is not None:
        assert found.failure().summary() == why
    assert read_pod(pod(failed(message=left, more=EVICTED))).says_enough()
    assert "evicted" in read_pod(pod(failed(message=left, more=EVICTED))).failure().summary()


def test_the_log_that_was_read_counts_instead() -> None:
    """Of the message in the status; an error file is kept."""
    plain, file = read_pod(pod(failed(message="m"))), read_pod(pod(failed(message=FILE)))
    assert [(e.error_file, e.stderr) for e in (plain.evidence(), plain.evidence("log"))] == [(None, "m"), (None, "log")]
    assert [(e.error_file, e.stderr) for e in (file.evidence(), file.evidence("log"))] == [(FILE, ""), (FILE, "log")]


# -- several pods --------------------------------------------------------------------------------------------


def named(name: str, k: int, status: dict[str, Any], created: int = 0, role: int = 0) -> dict[str, Any]:
    labels = {names.LABEL_ROLE_INDEX: str(role), names.LABEL_REPLICA_ID: str(k)}
    item = pod(status, labels=labels, creationTimestamp=at(created))
    return {**item, "metadata": {**item["metadata"], "name": name}}


BROKE = failed(message="ValueError: x")


def seen(*items: dict[str, Any]) -> list[tuple[str, int, int, str]]:
    return [(p.name, p.restarts, p.failures, p.facts.before) for p in read_pods(items)]


def test_the_newest_pod_of_each_replica() -> None:
    """With what those before it have cost; in the order of roles and replicas."""
    crash = ran("Running", container("waiting", last=LAST, restarts=2, reason="CrashLoopBackOff"))
    assert seen(
        named("c", 1, crash, 3),
        named("b", 1, BROKE, 2),
        named("a", 1, failed(), 1),
        named("d", 0, BROKE),
        named("e", 0, BROKE, role=1),
    ) == [
        ("d", 0, 1, ""),
        ("c", 4, 4, "exit code 1: ValueError: x"),
        ("e", 0, 1, ""),
    ]
    assert seen(named("c", 1, crash, 3), named("b", 1, ran("Running", container()), 2)) == [
        ("c", 3, 2, "exit code 3: ValueError: x")
    ]
    assert [[p.name for p in pods] for pods in by_replica([named("b", 0, BROKE, 2), named("a", 0, BROKE, 1)])] == [
        ["a", "b"]
    ]
    assert read_pods([]) == []


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (named("b", 0, BROKE, 1), named("a", 0, BROKE, 2)),
        (named("b", 0, BROKE), named("a", 0, ran("Running", container()))),
        (named("b", 0, ran("Succeeded", container("terminated"))), named("a", 0, {"phase": "Pending"})),
        (named("b", 0, failed(finishedAt=at(1))), named("a", 0, failed(finishedAt=at(2)))),
        (named("a", 0, BROKE), named("b", 0, BROKE)),
        (named("b", 0, ran("Running", container())), named("a", 0, ran("Running", container()), 1)),
    ],
)
def test_which_pod_is_older(older: dict[str, Any], newer: dict[str, Any]) -> None:
    """By its creation; in the same second, one that has ended, and the one that ended first."""
    assert by_age(older) < by_age(newer)
    assert [p.name for p in read_pods([newer, older])] == [newer["metadata"]["name"]]


def test_a_pod_has_defaults() -> None:
    """For those who make one without a cluster."""
    facts = read_pod(pod()).facts
    made = Pod(facts=facts, name="x", role_index=0)
    assert (made.starting, made.failures, made.restarts, made.age) == (False, 0, 0, ("", False, 0, ""))
