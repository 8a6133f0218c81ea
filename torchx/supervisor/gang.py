"""Decides what the end of one replica means for the others: retry policies, elastic roles, the job's final state.

Pure functions of plain values, without processes, files or clocks.
"""

from __future__ import annotations

from torchx.supervisor.statefile import CANCELLED, FAILED, PENDING, RUNNING, SUCCEEDED

GO_ON = "GO_ON"
RESTART_REPLICA = "RESTART_REPLICA"
RESTART_ROLE = "RESTART_ROLE"
RESTART_APPLICATION = "RESTART_APPLICATION"
GIVE_UP = "GIVE_UP"


class RoleRules:
    """How failures in one role are handled.

    Args:
        max_retries: maximum number of restarts: of each replica, of the role, or of the application, by ``policy``.
        policy: ``REPLICA``, ``ROLE`` or ``APPLICATION``.
        min_replicas: an elastic role continues while this many replicas run or have succeeded; None: it needs all.
    """

    def __init__(self, max_retries: int = 0, policy: str = "APPLICATION", min_replicas: int | None = None) -> None:
        self.max_retries = max_retries
        self.policy = policy
        self.min_replicas = min_replicas


class Gang:
    """The rules of one job, and how many restarts there were so far.

    A failure is handled by the first of these rules that applies:

    1. policy ``REPLICA`` and this replica has retries left: only that replica is restarted;
    2. the role is elastic, and at least ``min_replicas`` of its replicas run or have succeeded: the job continues;
    3. policy ``ROLE`` and the role has retries left: all replicas of the role are restarted;
    4. policy ``APPLICATION`` and the application was restarted fewer times than this role allows: all replicas of all
       roles are restarted;
    5. otherwise the job has failed, and the replicas that still run are stopped.
    """

    def __init__(self, rules: list[RoleRules]) -> None:
        self.rules = rules
        self.role_restarts = [0] * len(rules)
        self.application_restarts = 0
        self.replica_restarts: dict[tuple[int, int], int] = {}

    @property
    def restarts(self) -> int:
        """The total number of restarts."""
        return self.application_restarts + sum(self.role_restarts) + sum(self.replica_restarts.values())

    def failed(self, role: int, replica: int, states: list[str]) -> str:
        """Decide what to do after a replica failed, and count a restart.

        ``states``: of all replicas of its role, including this one, which is FAILED.
        """
        rule = self.rules[role]
        if rule.policy == "REPLICA":
            done = self.replica_restarts.get((role, replica), 0)
            if done < rule.max_retries:
                self.replica_restarts[role, replica] = done + 1
                return RESTART_REPLICA
        alive = sum(state in (PENDING, RUNNING, SUCCEEDED) for state in states)
        if rule.min_replicas is not None and alive >= rule.min_replicas:
            return GO_ON
        if rule.policy == "ROLE" and self.role_restarts[role] < rule.max_retries:
            self.role_restarts[role] += 1
            return RESTART_ROLE
        if rule.policy == "APPLICATION" and self.application_restarts < rule.max_retries:
            self.application_restarts += 1
            return RESTART_APPLICATION
        return GIVE_UP

    def outcome(self, states: list[list[str]]) -> str:
        """Return the job's state when all replicas have ended: SUCCEEDED if enough replicas of each role have
        succeeded.

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
