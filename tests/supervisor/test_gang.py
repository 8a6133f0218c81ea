"""The gang's rules: who is started again, who is lost, when the job has failed."""

from __future__ import annotations

import pytest

from torchx.supervisor import gang as g
from torchx.supervisor.gang import Gang, RoleRules

F, R, S, C, P = "FAILED", "RUNNING", "SUCCEEDED", "CANCELLED", "PENDING"


@pytest.mark.parametrize(
    ("policy", "decision"),
    [("REPLICA", g.RESTART_REPLICA), ("ROLE", g.RESTART_ROLE), ("APPLICATION", g.RESTART_APPLICATION)],
)
def test_each_policy_restarts_until_its_retries_are_used_up(policy: str, decision: str) -> None:
    """With max_retries=2 the third failure is final."""
    gang = Gang([RoleRules(2, policy)])
    assert [gang.failed(0, 1, [R, F]) for _ in range(3)] == [decision, decision, g.GIVE_UP]
    assert gang.restarts == 2


def test_replica_retries_are_counted_for_each_replica() -> None:
    """One replica's failures do not use up another's retries."""
    gang = Gang([RoleRules(1, "REPLICA")])
    assert gang.failed(0, 0, [F, R]) == g.RESTART_REPLICA
    assert gang.failed(0, 1, [R, F]) == g.RESTART_REPLICA
    assert gang.failed(0, 1, [R, F]) == g.GIVE_UP


def test_role_retries_are_counted_for_each_role() -> None:
    """One role's restarts do not use up another's."""
    gang = Gang([RoleRules(1, "ROLE"), RoleRules(1, "ROLE")])
    assert gang.failed(0, 0, [F]) == g.RESTART_ROLE
    assert gang.failed(1, 0, [F]) == g.RESTART_ROLE
    assert gang.failed(0, 0, [F]) == g.GIVE_UP


def test_an_elastic_role_goes_on_down_to_its_minimum() -> None:
    """Three of four, two of four: it goes on. One of four: it does not."""
    gang = Gang([RoleRules(min_replicas=2)])
    assert gang.failed(0, 0, [F, R, R, R]) == g.GO_ON
    assert gang.failed(0, 1, [F, F, R, S]) == g.GO_ON
    assert gang.failed(0, 2, [F, F, F, S]) == g.GIVE_UP


def test_an_elastic_role_below_its_minimum_still_uses_its_retries() -> None:
    """Going on comes before restarting everything, and restarting before giving up."""
    gang = Gang([RoleRules(1, "APPLICATION", min_replicas=1)])
    assert gang.failed(0, 0, [F, R]) == g.GO_ON
    assert gang.failed(0, 1, [F, F]) == g.RESTART_APPLICATION
    assert gang.failed(0, 1, [F, F]) == g.GIVE_UP


@pytest.mark.parametrize(
    ("rules", "states", "outcome"),
    [
        ([RoleRules()], [[S, S]], S),
        ([RoleRules()], [[S, F]], F),
        ([RoleRules(min_replicas=1)], [[S, F]], S),
        ([RoleRules(min_replicas=2)], [[S, F]], F),
        ([RoleRules(), RoleRules()], [[S], [F]], F),
        ([RoleRules()], [[S, C]], C),
        ([RoleRules()], [[C, F]], F),
    ],
    ids=["all", "one-failed", "elastic", "elastic-too-few", "other-role", "cancelled", "failed-before-cancelled"],
)
def test_outcome(rules: list[RoleRules], states: list[list[str]], outcome: str) -> None:
    """The job's state follows from its replicas' last states."""
    assert Gang(rules).outcome(states) == outcome


@pytest.mark.parametrize("policy", ["REPLICA", "ROLE", "APPLICATION"])
def test_without_retries_the_first_failure_is_final(policy: str) -> None:
    """max_retries=0, the default."""
    gang = Gang([RoleRules(policy=policy), RoleRules(5, policy)])
    assert gang.failed(0, 0, [F, R]) == g.GIVE_UP
    assert gang.restarts == 0


def test_restarts_are_counted_over_all() -> None:
    """Of replicas, roles and the application together; a role's own limit counts those of the application."""
    gang = Gang(
        [RoleRules(1, "REPLICA"), RoleRules(1, "ROLE"), RoleRules(2, "APPLICATION"), RoleRules(1, "APPLICATION")]
    )
    assert gang.failed(0, 0, [F]) == g.RESTART_REPLICA
    assert gang.failed(1, 0, [F]) == g.RESTART_ROLE
    assert gang.failed(2, 0, [F]) == g.RESTART_APPLICATION
    assert gang.restarts == 3
    assert gang.failed(3, 0, [F]) == g.GIVE_UP
    assert gang.failed(2, 0, [F]) == g.RESTART_APPLICATION
    assert gang.failed(2, 0, [F]) == g.GIVE_UP
    assert gang.restarts == 4


def test_a_replica_policy_with_a_minimum() -> None:
    """First the replica's own retry; then the role goes on without it; below the minimum the job has failed."""
    gang = Gang([RoleRules(1, "REPLICA", min_replicas=1)])
    assert gang.failed(0, 0, [F, R]) == g.RESTART_REPLICA
    assert gang.failed(0, 0, [F, R]) == g.GO_ON
    assert gang.failed(0, 1, [F, F]) == g.RESTART_REPLICA
    assert gang.failed(0, 1, [F, F]) == g.GIVE_UP


@pytest.mark.parametrize(
    ("state", "decision"), [(P, g.GO_ON), (R, g.GO_ON), (S, g.GO_ON), (C, g.GIVE_UP), (F, g.GIVE_UP)]
)
def test_who_counts_for_the_minimum(state: str, decision: str) -> None:
    """Who waits, runs or has succeeded."""
    assert Gang([RoleRules(min_replicas=1)]).failed(0, 0, [F, state]) == decision
