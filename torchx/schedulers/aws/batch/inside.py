"""A process inside the container of a Batch job, by ECS Exec: which task that is, and whether it lets anybody in.

https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-exec.html
"""

from __future__ import annotations

import re

from torchx.errors import NotSupportedError
from torchx.schedulers.aws.batch import answers
from torchx.schedulers.aws.batch import client as calls
from torchx.schedulers.inside import described, not_running
from torchx.specs.api import AppState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NamedTuple

    from torchx.schedulers.aws.client import Clients
    from torchx.schedulers.inside import InsideProcess, Tty

    _Object = dict[str, Any]

    class Task(NamedTuple):
        """A task of ECS: its cluster, and its id there."""

        cluster: str
        name: str
else:
    from collections import namedtuple

    Task = namedtuple("Task", "cluster name")


def enter(
    clients: Clients,
    job: _Object | None,
    replica: tuple[str, str, int],
    argv: Sequence[str],  # noqa: ARG001
    tty: Tty | None,  # noqa: ARG001
) -> InsideProcess:
    """Starts ``argv`` in the container of a replica.

    Args:
        job: what DescribeJobs says of it; None: there is none.
        replica: app id, role and number.
    """
    task = task_of(clients, job, replica)
    raise NotSupportedError(
        "torchx does not speak ECS Exec yet",
        hint=f"`aws ecs execute-command --cluster {task.cluster} --task {task.name} --interactive --command sh`",
    )


def task_of(clients: Clients, job: _Object | None, replica: tuple[str, str, int]) -> Task:
    """The task of a replica, which runs and was submitted with ECS Exec.

    Raises:
        NotFoundError: there is no such replica, or it does not run.
        NotSupportedError: it lets nobody in.
    """
    app_id, role, k = replica
    if job is None:
        raise described(None, app_id, role, k)
    index = k if (job.get("arrayProperties") or {}).get("index") is None else 0  # of an array, k is the task's number
    group = next((g for g in answers.groups(job) if g.name == role and g.first + index <= g.last), None)
    node = job
    if group is not None and job.get("nodeProperties"):
        name = f"{job['jobId']}#{group.first + index}"
        node = calls.details(clients.client("batch"), [name]).get(name) or {}
    state = answers.state_of(job)
    state = answers.state_of(node) if state is AppState.RUNNING else state
    if group is None or state is not AppState.RUNNING:
        raise not_running(app_id, role, k, str(state if group else AppState.UNKNOWN))
    if not group.container.get("enableExecuteCommand"):
        raise NotSupportedError(
            f"replica {role}/{k} of `{app_id}` lets nobody in: its job was submitted without ECS Exec",
            hint="submit it with `-cfg execute_command=true,job_role_arn=ARN`, of a role that may `ssmmessages:*`",
        )
    arn = str((node.get("container") or {}).get("taskArn") or "")
    # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-account-settings.html#ecs-resource-ids
    found = re.search(r":task/([^/]+)/([^/]+)$", arn)
    if found is None:
        raise not_running(app_id, role, k, str(AppState.PENDING))
    return Task(found[1], found[2])
