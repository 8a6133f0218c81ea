"""Facts from the status of pods, as several versions of Kubernetes report it."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.schedulers.kit.facts import JobFacts, RoleFacts
from torchx.schedulers.kit.failures.classes import CLASSES
from torchx.schedulers.kit.verdict import judge
from torchx.schedulers.kubernetes.pods.facts import by_age, read_pod, read_pods
from torchx.schedulers.kubernetes.reasons import ENDED, POD_PHASES, WAITING
from torchx.specs import AppState


def pod(status, *, name="x-0", role=0, replica=0, created="2026-01-01T00:00:00Z", **metadata):
    labels = {"torchx.pytorch.org/role-index": str(role), "torchx.pytorch.org/replica-id": str(replica)}
    return {
        "metadata": {"name": name, "labels": labels, "creationTimestamp": created, **metadata},
        "spec": {"nodeName": "n1"},
        "status": status,
    }


def failure(status):
    """The verdict on a failed job with this pod."""
    read = read_pod(pod(status))
    facts = JobFacts(app_id="a", roles=[RoleFacts(name="", replicas=[read.facts])])
    return judge(facts, lambda _: [read.evidence()]).cause


def ended(**terminated):
    return {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": terminated}}]}


def waiting(reason, message=""):
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "main", "state": state}]}


@pytest.mark.parametrize(("phase", "state"), POD_PHASES.items())
def test_every_phase_has_a_state(phase, state):
    """The table is complete."""
    assert read_pod(pod({"phase": phase})).facts.state is state


@pytest.mark.parametrize("phase", ["Surprise", "", None, 7])
def test_an_unknown_phase_is_unknown_and_said(phase):
    """It causes neither an exception nor an empty message."""
    facts = read_pod(pod({"phase": phase})).facts
    assert facts.state is AppState.UNKNOWN and str(phase) in facts.reason


@pytest.mark.parametrize("reason", WAITING)
def test_every_reason_to_wait_has_a_sentence(reason):
    """It includes the cluster's reason and message."""
    facts = read_pod(pod(waiting(reason, "Back-off pulling image\nmore"))).facts
    assert facts.reason == f"{WAITING[reason]} ({reason}): Back-off pulling image"
    assert facts.stuck is (reason not in ("ContainerCreating", "PodInitializing"))


def test_the_schedulers_own_words():
    """The message is shortened."""
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu. preemption: 0/4 nodes are available: none."
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]
    facts = read_pod(pod({"phase": "Pending", "conditions": conditions})).facts
    assert facts.reason == "no node fits: 0/4 nodes are available: 4 Insufficient nvidia.com/gpu"


def test_an_init_container_that_cannot_start_is_told():
    """It is the reason, although the main container has PodInitializing."""
    status = waiting("PodInitializing")
    status["initContainerStatuses"] = [{"name": "i", "state": {"waiting": {"reason": "ErrImagePull"}}}]
    assert "image cannot be pulled" in read_pod(pod(status)).facts.reason


# -- failures --------------------------------------------------------------------------------------


def test_a_failing_script_shows_its_last_words():
    """`terminationMessagePolicy` puts the end of the log into the status."""
    said = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no such file\n'
    status = ended(exitCode=1, reason="Error", message=said, finishedAt="2026-01-01T00:01:00Z")
    found = failure(status)
    assert (found.summary(), found.kind) == ("exit code 1: ValueError: no such file", "error")
    assert found.traceback.startswith("Traceback")
    assert read_pod(pod(status)).facts.ended - found.timestamp == 0


def test_the_error_file_of_torchelastic_is_read():
    """It is the termination message of the pod."""
    text = json.dumps(
        {"message": {"message": "RuntimeError: boom", "extraInfo": {"py_callstack": "T", "timestamp": "9"}}}
    )
    found = failure(ended(exitCode=1, reason="Error", message=text))
    assert (found.message, found.traceback, found.timestamp) == ("RuntimeError: boom", "T", 9)


def test_an_error_file_that_was_cut_still_says_what_happened():
    """Kubernetes keeps 4096 bytes of it."""
    text = json.dumps({"message": {"message": 'E: "quoted"\n', "extraInfo": {"py_callstack": "x" * 9000}}})[:4096]
    assert failure(ended(exitCode=1, reason="Error", message=text)).message == 'E: "quoted"\n'


def test_a_log_of_json_lines_is_no_error_file():
    """If the program has left none, the message is the end of its log, whose lines may begin like one."""
    log = '{"message": "epoch 1"}\n{"message": "epoch 2"}\nTraceback (most recent call last):\nValueError: bad batch'
    assert failure(ended(exitCode=1, reason="Error", message=log)).message == "ValueError: bad batch"
    log = '{"message": "reading C:\\data"}'
    assert failure(ended(exitCode=1, reason="Error", message=log)).message == log


def test_out_of_memory_is_named():
    """Exit code 137 alone only means SIGKILL."""
    found = failure(ended(exitCode=137, reason="OOMKilled"))
    said = "killed by SIGKILL: used more memory than its limit, and was killed (OOMKilled)"
    assert (found.summary(), found.kind) == (said, "oom")


def test_an_eviction_is_named():
    """The kubelet's message names the resource."""
    status = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    found = failure(status)
    said = "was evicted from its node (Evicted): The node was low on resource: memory."
    assert (found.summary(), found.kind) == (said, "oom")


@pytest.mark.parametrize("reason", [r for r in ENDED if r.endswith(("Scheduler", "Manager", "API", "GC", "Kubelet"))])
def test_a_disruption_is_not_the_programs_fault(reason):
    """The condition DisruptionTarget (1.26) takes precedence over the exit code."""
    status = ended(exitCode=143, reason="Error")
    status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": reason}]
    found = failure(status)
    kind, said = ENDED[reason]
    assert said in found.summary()
    assert found.kind == kind in CLASSES


def test_the_kubelet_says_more_than_that_it_was_the_kubelet():
    """Since 1.26 an eviction has two reasons, of which the more specific one is shown."""
    status = ended(exitCode=137, reason="Error")
    status.update(reason="Evicted", message="The node was low on resource: memory. Threshold quantity: 100Mi.")
    status["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}]
    found = failure(status)
    assert "was evicted from its node (Evicted): The node was low on resource: memory." in found.summary()
    assert found.kind == "oom"


def test_a_failed_init_container_is_the_cause():
    """The main container never ran."""
    status = {
        "phase": "Failed",
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    status["initContainerStatuses"] = [{"name": "i", "state": {"terminated": {"exitCode": 3, "message": "no config"}}}]
    assert failure(status).summary() == "exit code 3: init container `i` failed: no config"


@pytest.mark.parametrize("name", ["main", "pytorch", "node"])
def test_a_sidecar_of_any_kind_of_job(name):
    """Training Operator and Trainer require other names than ours, and the kubelet sorts the statuses by name."""
    states = {"agent": {"terminated": {"exitCode": 0}}, name: {"terminated": {"exitCode": 3}}}
    statuses = [{"name": name, "state": states[name]} for name in sorted(states)]
    pod = read_pod({"metadata": {}, "status": {"phase": "Failed", "containerStatuses": statuses}})
    assert (pod.container, pod.facts.exit_code) == (name, 3)


def test_a_sidecar_does_not_speak_for_the_role():
    """The container called `main` determines the exit code."""
    status = ended(exitCode=1, message="main's")
    status["containerStatuses"].insert(0, {"name": "istio-proxy", "state": {"terminated": {"exitCode": 0}}})
    assert failure(status).summary() == "exit code 1: main's"


# -- several pods ----------------------------------------------------------------------------------


def test_the_newest_pod_of_a_replica_counts():
    """Replaced pods count as restarts."""
    old = pod({"phase": "Failed"}, name="a", created="2026-01-01T00:00:00Z")
    new = pod({"phase": "Running"}, name="b", created="2026-01-01T00:00:05Z")
    for order in ([old, new], [new, old]):
        (view,) = read_pods(order)
        assert (view.name, view.facts.state, view.restarts) == ("b", AppState.RUNNING, 1)


@pytest.mark.parametrize(("old", "new"), [("a", "b"), ("b", "a")])
def test_a_pod_that_was_replaced_in_the_second_of_its_making(old, new):
    """Of pods created in the same second, an active one is newest, then the one that ended last."""
    first = pod(ended(exitCode=1, finishedAt="2026-01-01T00:00:00Z"), name=f"{old}1")
    second = pod(ended(exitCode=2, finishedAt="2026-01-01T00:00:01Z"), name=f"{new}2")
    third = pod({"phase": "Pending"}, name=f"{old}0")
    lost = pod({"phase": "Failed", "reason": "NodeLost"}, name=f"{old}9")
    for pods in itertools.permutations([first, second, third, lost]):
        (view,) = read_pods(pods)
        told = (view.name, view.facts.state, view.restarts, view.facts.before)
        assert told == (f"{old}0", AppState.PENDING, 3, "exit code 2")
        assert sorted(pods, key=by_age) == [lost, first, second, third]
    (view,) = read_pods([second, first])
    assert view.name == f"{new}2"


def test_replicas_are_told_by_our_label_or_the_jobs_annotation():
    """Pods of an Indexed Job have its index instead of our label."""
    indexed = pod({"phase": "Running"}, role=1)
    del indexed["metadata"]["labels"]["torchx.pytorch.org/replica-id"]
    indexed["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": "11"}
    assert [(v.role_index, v.facts.replica) for v in read_pods([indexed, pod({"phase": "Running"}, replica=3)])] == [
        (0, 3),
        (1, 11),
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = ["phase", "conditions", "containerStatuses", "initContainerStatuses", "reason", "message", "startTime"]


@settings(deadline=None)  # a busy machine is no defect
@given(st.dictionaries(st.sampled_from(KEYS), json_values), st.sampled_from([*POD_PHASES, "X"]))
def test_reading_is_total(status, phase):
    """Malformed fields cause no exception."""
    assert isinstance(read_pod(pod({**status, "phase": phase})).facts.state, AppState)
    assert isinstance(read_pod({"metadata": status, "status": status, "spec": status}).facts.state, AppState)
