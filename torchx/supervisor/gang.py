"""What the end of one replica means for the others: retry policies, elastic roles, the job's final state.

Pure decisions over plain values: no process, file or clock is touched here.
"""

from __future__ import annotations

from torchx.supervisor.statefile import CANCELLED, FAILED, PENDING, RUNNING, SUCCEEDED

GO_ON = "GO_ON"
RESTART_REPLICA = "RESTART_REPLICA"
RESTART_ROLE = "RESTART_ROLE"
RESTART_APPLICATION = "RESTART_APPLICATION"
GIVE_UP = "GIVE_UP"


class RoleRules:
    """How failures in one role are dealt with.

    Args:
        max_retries: how often ``policy`` is applied: to each replica, to the role, or to the application.
        policy: ``REPLICA``, ``ROLE`` or ``APPLICATION``.
        min_replicas: an elastic role goes on while so many of its replicas run or have succeeded; None: all of them.
    """

    def __init__(self, max_retries: int = 0, policy: str = "APPLICATION", min_replicas: int | None = None) -> None:
        self.max_retries = max_retries
        self.policy = policy
        self.min_replicas = min_replicas


class Gang:
    """The rules of one job, with the count of what was restarted so far.

    The order in which a failure is dealt with:

    1. policy ``REPLICA`` and retries of this replica are left: that replica alone is started again;
    2. the role is elastic, and at least ``min_replicas`` of its replicas run or have succeeded: the job goes on;
    3. policy ``ROLE`` and retries of the role are left: all replicas of the role are started again;
    4. policy ``APPLICATION`` and the application was started again fewer times than this role allows: all replicas
       of all roles are;
    5. otherwise the job has failed, and the replicas that still run are stopped.
    """

    def __init__(self, rules: list[RoleRules]) -> None:
        self.rules = rules
        self.role_restarts = [0] * len(rules)
        self.application_restarts = 0
        self.replica_restarts: dict[tuple[int, int], int] = {}

    @property
    def restarts(self) -> int:
        """How often anything was started again."""
        return self.application_restarts + sum(self.role_restarts) + sum(self.replica_restarts.values())

    def failed(self, role: int, replica: int, states: list[str]) -> str:
        """Decide, and count, what happens now that a replica failed.

        Args:
            role: index of its role.
            replica: its index in the role.
            states: of all replicas of that role, this one's being FAILED.
        """
        rule = self.rules[role]
        if rule.policy == "REPLICA":
            done = self.replica_restarts.get((role, replica), 0)
            if done < rule.max_retries:
                self.replica_restarts[role, replica] = done + 1
                return RESTART_REPLICA
        if rule.min_replicas is not None and _well(states) >= rule.min_replicas:
            return GO_ON
        if rule.policy == "ROLE" and self.role_restarts[role] < rule.max_retries:
            self.role_restarts[role] += 1
            return RESTART_ROLE
        if rule.policy == "APPLICATION" and self.application_restarts < rule.max_retries:
            self.application_restarts += 1
            return RESTART_APPLICATION
        return GIVE_UP

    def outcome(self, states: list[list[str]]) -> str:
        """The job's state once all replicas have ended: SUCCEEDED when enough of each role have.

        >>> Gang([RoleRules(min_replicas=1)]).outcome([["FAILED", "SUCCEEDED"]])
        'SUCCEEDED'
        """
        enough = all(
            of_role.count(SUCCEEDED) >= (len(of_role) if rule.min_replicas is None else rule.min_replicas)
            for rule, of_role in zip(self.rules, states, strict=True)
        )
        if enough:
            return SUCCEEDED
        failed = any(FAILED in of_role for of_role in states)
        return FAILED if failed or not any(CANCELLED in of_role for of_role in states) else CANCELLED


def _well(states: list[str]) -> int:
    return sum(state in (PENDING, RUNNING, SUCCEEDED) for state in states)
