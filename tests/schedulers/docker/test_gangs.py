"""The next step for a job's containers, and the marks in their names."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.answers import facts_of
from torchx.schedulers.docker.containers import Job, Mark, jobs_of, join_name, split_name
from torchx.schedulers.docker.gangs import Rules, is_over, next_step, rules_for, waves
from torchx.schedulers.kit.verdict import describe
from torchx.specs.api import AppDef, AppState, RetryPolicy, Role

R, OK, BAD, KILLED, NEW = "running", "exited 0", "exited 1", "exited 143", "created"


def job(
    *replicas: tuple[str, str],
    retries: dict | None = None,
    sizes: Sequence | None = None,
    policy: str = "",
    watchdog: str = "",
    order: str = "",
) -> Job:
    """A job of these containers: name (``r-0.role1``), and state as in ``exited 1``."""
    found: dict[str, int] = {}
    for name, _ in replicas:
        role = name.partition("-")[0]
        found[role] = max(found.get(role, 0), 1 + int(split_name(name)[0].partition("-")[2]))
    summaries = []
    for name, state in replicas:
        base = split_name(name)[0]
        raw, _, code = state.partition(" ")
        labels = {
            "torchx.pytorch.org/app-id": "a-1",
            "torchx.pytorch.org/role-name": base.partition("-")[0],
            "torchx.pytorch.org/replica-id": base.partition("-")[2],
            "torchx.pytorch.org/roles": json.dumps(sizes or [[role, n, None] for role, n in found.items()]),
            gangs.LABEL_RULES: Rules(retries or {}, 10, "here", policy, watchdog=watchdog, order=order).to_json(),
        }
        status = f"Exited ({code}) 1 second ago" if code else "Up"
        summaries.append(
            {"Id": base, "Names": [f"/{name}"], "Labels": labels, "State": raw, "Status": status, "Created": 1}
        )
    return jobs_of(summaries)["a-1"]


def step(of: Job) -> tuple[list[str], list[str], int]:
    """Containers to stop, containers to restart, and the counts after that."""
    found = next_step(of)
    marked = [found.mark(c, due=False) for c in found.again]
    return [c.id for c in found.stop], [c.id for c in found.again], max((m.app + m.role for m in marked), default=0)


ROLE1 = {"r": (1, "ROLE")}
APP1 = {"r": (1, "APPLICATION")}


@pytest.mark.parametrize(
    ("of", "stop", "again"),
    [
        pytest.param(job(("r-0", R), ("r-1", R)), [], [], id="all is well"),
        pytest.param(job(("r-0", OK), ("r-1", R)), [], [], id="one is done"),
        pytest.param(job(("r-0", R), ("r-1", BAD), ("o-0", R)), ["r-0", "o-0"], [], id="one has failed"),
        pytest.param(job(("r-0", NEW), ("r-1", BAD)), [], [], id="it is being submitted"),
        pytest.param(job(("r-0", BAD), ("r-1", BAD)), [], [], id="all have failed"),
        pytest.param(job(("r-0", "restarting 1"), ("r-1", R)), [], [], id="the engine starts it again"),
        pytest.param(job(("r-0", R), ("r-1.cancelled", KILLED)), ["r-0"], [], id="it is being cancelled"),
        pytest.param(
            job(("r-0.cancelled", R), ("r-1", BAD), retries=ROLE1), ["r-0"], [], id="cancelled before it is tried again"
        ),
        pytest.param(job(("r-0.role1.due.cancelled", KILLED), ("r-1.role1", R)), ["r-1"], [], id="cancelled while due"),
        pytest.param(job(("r-0", R), sizes=[["r", 2, None]]), ["r-0"], [], id="one was removed"),
        pytest.param(job(("r-0", R), sizes=[["r", 2, 1]]), [], [], id="one was removed of an elastic role"),
        pytest.param(job(("r-0", R), ("r-1", BAD), sizes=[["r", 2, 1]]), [], [], id="elastic"),
        pytest.param(
            job(("r-0", R), ("r-1", BAD), ("r-2", BAD), sizes=[["r", 3, 2]]),
            ["r-0"],
            [],
            id="too few of an elastic role",
        ),
        pytest.param(
            job(("r-0", R), ("r-1", BAD), ("o-0", R), retries=ROLE1), [], ["r-0", "r-1"], id="the role, once more"
        ),
        pytest.param(
            job(("r-0", R), ("r-1", BAD), ("o-0", OK), retries=APP1), [], ["r-0", "r-1", "o-0"], id="the application"
        ),
        pytest.param(
            job(("r-0.role1", R), ("r-1.role1", BAD), ("o-0", R), retries=ROLE1), ["r-0", "o-0"], [], id="the last time"
        ),
        pytest.param(
            job(("r-0.app1", R), ("r-1.app1", BAD), retries={"r": (2, "APPLICATION")}),
            [],
            ["r-0", "r-1"],
            id="the second of two times",
        ),
        pytest.param(job(("r-0", R), ("r-1", BAD), retries={"r": (5, "REPLICA")}), ["r-0"], [], id="the engine's part"),
        pytest.param(
            job(("r-0", R), ("r-1.role1.due", BAD), retries=ROLE1), [], ["r-0", "r-1"], id="decided, and not done"
        ),
        pytest.param(job(("r-0.role1.due", R), ("r-1.role1", R), retries=ROLE1), [], ["r-0"], id="done by half"),
        pytest.param(
            job(("r-0", R), retries=ROLE1, sizes=[["r", 2, None]]), ["r-0"], [], id="what was removed cannot be started"
        ),
        pytest.param(
            job(("r-0", BAD), ("o-0", BAD), retries={"r": (1, "ROLE"), "o": (1, "APPLICATION")}),
            [],
            ["r-0", "o-0"],
            id="two roles, both policies",
        ),
        pytest.param(
            job(("r-0", BAD), ("o-0", BAD), ("o-1", R), retries={"r": (1, "ROLE")}), ["o-1"], [], id="one role for good"
        ),
    ],
)
def test_what_is_to_be_done(of: Job, stop: list[str], again: list[str]) -> None:
    """A table of situations; the same list always gives the same step."""
    assert step(of)[:2] == (stop, again) == step(of)[:2]
    assert is_over(of) == (not stop and not again and R not in {c.raw for c in of.containers} and not _waits(of))


def _waits(of: Job) -> bool:
    return any(c.raw in {NEW, "restarting"} for c in of.containers)


def test_it_comes_to_an_end() -> None:
    """A role whose attempts all fail is restarted as often as allowed; the counts are in the names."""
    of = job(("r-0", R), ("r-1", BAD), ("o-0", R), retries={"r": (3, "APPLICATION")})
    for attempt in (1, 2, 3):
        found = next_step(of)
        assert {c.id for c in found.again} == {"r-0", "r-1", "o-0"}
        names = {c.id: join_name(c.id, found.mark(c, due=False)) for c in of.containers}
        of = job((names["r-0"], R), (names["r-1"], BAD), (names["o-0"], R), retries={"r": (3, "APPLICATION")})
        assert waves(of) == attempt
        assert describe(facts_of(of)).num_restarts == attempt
    assert [c.id for c in next_step(of).stop] == ["r-0", "o-0"]


def test_a_failure_that_is_tried_again_is_none() -> None:
    """A job with an attempt left is not FAILED, whether or not a watcher has begun it."""
    of = job(("r-0", BAD), ("r-1", R), retries=ROLE1)
    found = describe(facts_of(of))
    assert found.state is AppState.RUNNING
    assert [r.state for r in found.roles_statuses[0].replicas] == [AppState.PENDING, AppState.RUNNING]
    assert gangs.is_alive(of, of.containers[0])
    assert describe(facts_of(job(("r-0", BAD), ("r-1", BAD), retries=ROLE1))).state is AppState.PENDING


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ([(1, 2, RetryPolicy.APPLICATION)], {"r0": (2, "REPLICA")}),
        ([(2, 2, RetryPolicy.APPLICATION)], {"r0": (2, "APPLICATION")}),
        (
            [(1, 1, RetryPolicy.APPLICATION), (1, 0, RetryPolicy.REPLICA)],
            {"r0": (1, "APPLICATION"), "r1": (0, "REPLICA")},
        ),
        ([(1, 1, RetryPolicy.ROLE), (3, 1, RetryPolicy.ROLE)], {"r0": (1, "REPLICA"), "r1": (1, "ROLE")}),
    ],
)
def test_who_starts_again(roles: list[tuple[int, int, RetryPolicy]], expected: dict) -> None:
    """The engine restarts single containers, so a job of one needs no watcher; without a place for one, it restarts all."""
    app = AppDef(
        "a",
        [Role(f"r{i}", "img", num_replicas=n, max_retries=m, retry_policy=p) for i, (n, m, p) in enumerate(roles)],
    )
    rules = rules_for(app, 5, "here")
    assert rules.retries == expected
    assert bool(rules.place) is (sum(n for n, _, _ in roles) > 1)
    assert {policy for _, policy in rules_for(app, 5, "").retries.values()} == {"REPLICA"}


@pytest.mark.parametrize(
    "label", ["", "{", "[]", '{"retries": [1]}', '{"retries": {"r": 1}, "grace_s": 1, "place": ""}']
)
def test_containers_with_other_labels(label: str) -> None:
    """Labels of another version, or none: no rules, and no watcher."""
    of = job(("r-0", R), ("r-1", R))
    for container in of.containers:
        container.labels = {**container.labels, gangs.LABEL_RULES: label}
    assert gangs.rules_of(of) == Rules()


@given(st.from_regex(r"[a-z][a-z0-9.-]{0,20}-[0-9]", fullmatch=True), st.builds(Mark))
def test_marks_can_be_read_again(base: str, mark: Mark) -> None:
    """Whatever the container's own name, which ends with a replica's number."""
    mark.app, mark.role = abs(mark.app), abs(mark.role)
    if split_name(base)[1] == Mark():
        assert split_name(join_name(base, mark)) == (base, mark)


@given(st.text())
def test_any_name(name: str) -> None:
    """Any name can be split and joined without a change."""
    base, mark = split_name(name)
    if mark == Mark():
        assert base == name


# -- a policy on retries by cause --------------------------------------------------------------------------

POLICY = "error:1"


@pytest.mark.parametrize(
    ("of", "end", "ask"),
    [
        pytest.param(job(("r-0", R), ("r-1", R), policy=POLICY), [], False, id="all is well"),
        pytest.param(job(("r-0", R), ("r-1", BAD), policy=POLICY), ["r-0"], False, id="one has failed"),
        pytest.param(job(("r-0.ended", R), ("r-1", BAD), policy=POLICY), ["r-0"], False, id="the other one ends"),
        pytest.param(job(("r-0.ended", KILLED), ("r-1", BAD), policy=POLICY), [], True, id="all have ended"),
        pytest.param(job(("r-0", BAD), policy=POLICY), [], True, id="a lone one has failed"),
        pytest.param(job(("r-0.final", BAD), policy=POLICY), [], False, id="there is no other attempt"),
        pytest.param(job(("r-0.cancelled", BAD), policy=POLICY), [], False, id="cancelled before it was decided"),
        pytest.param(job(("r-0", OK), ("r-1", OK), policy=POLICY), [], False, id="all have succeeded"),
        pytest.param(job(("r-0", OK), ("r-1", BAD), sizes=[["r", 2, 1]], policy=POLICY), [], False, id="elastic"),
        pytest.param(job(("r-0", BAD), sizes=[["r", 2, None]], policy=POLICY), [], False, id="one was removed"),
    ],
)
def test_a_policy_is_asked_when_all_have_ended(of: Job, end: list[str], ask: bool) -> None:
    """Until it is evaluated, the job has not ended: it is not FAILED, and a cancellation affects all of it."""
    found = next_step(of)
    assert ([c.id for c in found.end], found.ask) == (end, ask)
    if end or ask:
        assert not is_over(of) and gangs.rules_of(of).place
        assert describe(facts_of(of)).state is AppState.RUNNING
        assert all(gangs.is_alive(of, c) for c in of.containers)


@pytest.mark.parametrize("done", [1, 2, 3])
def test_another_attempt_that_is_begun_is_seen_through(done: int) -> None:
    """Whichever containers have their new names: the decision is final from the first one on."""
    names = ["r-0.ended", "r-1", "r-2.ended"]
    of = job(*((name, BAD if "." not in name else KILLED) for name in names), policy=POLICY)
    step = gangs.another_attempt(of)
    renamed = [join_name(c.id, step.mark(c, due=True)) for c in of.containers[:done]]
    of = job(*((name, KILLED) for name in [*renamed, *names[done:]]), policy=POLICY)
    assert [c.id for c in next_step(of).again] == ["r-0", "r-1", "r-2"]
    assert next_step(of).app == 1 and not next_step(of).ask


def test_what_was_ended_for_another_one_is_not_blamed() -> None:
    """Its exit code has no meaning."""
    of = job(("r-0.ended.final", "exited 137"), ("r-1.final", BAD), policy=POLICY)
    found = describe(facts_of(of))
    assert found.state is AppState.FAILED and found.msg.startswith("r/1: exit code 1")


@pytest.mark.parametrize("how", [{"policy": POLICY}, {"retries": {"r": (2, "APPLICATION")}}], ids=["policy", "retries"])
def test_one_that_fails_before_the_others_are_started_again_decides_nothing(how: dict) -> None:
    """Replica 0 is restarted first: the job has not failed while the others are still due."""
    of = job(("r-0.app1", BAD), ("r-1.app1.due", KILLED), ("r-2.app1.due", KILLED), **how)
    assert [c.id for c in next_step(of).again] == ["r-1", "r-2"]
    assert describe(facts_of(of)).state is AppState.RUNNING
