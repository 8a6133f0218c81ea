"""Inspects a Batch queue and its compute environments: which jobs it accepts, and why a job does not start.

https://docs.aws.amazon.com/batch/latest/userguide/job_queue_parameters.html
"""

from __future__ import annotations

from typing import Any

from torchx.errors import BackendError, NotFoundError, TorchXError
from torchx.schedulers.aws.client import call, pages
from torchx.schedulers.aws.errors import DENIED, AwsError
from torchx.specs.named_resources_aws import NAMED_RESOURCES
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.strings import did_you_mean

_Object = dict[str, Any]
_NAMES = ("computeEnvironmentArn", "computeEnvironmentName")
_PER_CALL = 100  # the limit of DescribeComputeEnvironments


@dataclass(frozen=True)
class Queue:
    """A queue, with the descriptions of its compute environments."""

    name: str
    state: str
    status: str
    reason: str
    environments: list[_Object]

    @property
    def kinds(self) -> set[str]:
        """Types of its environments: EC2, SPOT, FARGATE, FARGATE_SPOT; none for those that Batch does not manage."""
        return {str((e.get("computeResources") or {}).get("type") or "") for e in self.environments} - {""}

    @property
    def is_fargate(self) -> bool:
        """Whether it is a Fargate queue: Batch does not allow a mix with other types."""
        return any(kind.startswith("FARGATE") for kind in self.kinds)


def look_at(client: Any, name: str) -> Queue | None:
    """Return the queue, which has to exist; None if the user may not describe it,
    though a submission may still work.
    """
    try:
        return inspect(client, name)[0]
    except AwsError as e:
        if e.code in DENIED:
            logger("torchx").info("%s (%s)", e, e.hint)
            return None
        raise


def inspect(client: Any, name: str = "") -> list[Queue]:
    """Return the queue of this name, which has to exist, or all queues of the account in the region."""
    doing = f"queue `{name}` cannot be inspected" if name else "queues cannot be inspected"
    found = list(pages(client, "describe_job_queues", doing, "jobQueues", **({"jobQueues": [name]} if name else {})))
    if name and not found:
        raise _no_queue(client, name)
    orders = [
        [entry["computeEnvironment"] for entry in sorted(order, key=lambda entry: entry.get("order", 0))]
        for order in (queue.get("computeEnvironmentOrder") or () for queue in found)
    ]
    wanted = list(dict.fromkeys(arn for order in orders for arn in order))
    there: dict[str, _Object] = {}
    for i in range(0, len(wanted), _PER_CALL):
        asked = wanted[i : i + _PER_CALL]
        answer = call(client, "describe_compute_environments", doing, computeEnvironments=asked)
        for environment in answer["computeEnvironments"]:
            there.update(dict.fromkeys(map(environment.get, _NAMES), environment))
    return [
        Queue(
            queue["jobQueueName"],
            str(queue.get("state") or ""),
            str(queue.get("status") or ""),
            str(queue.get("statusReason") or ""),
            [there[arn] for arn in order if arn in there],
        )
        for queue, order in zip(found, orders, strict=True)
    ]


def all_queues(client: Any) -> list[str]:
    """Names of all queues."""
    found = pages(client, "describe_job_queues", "queues cannot be listed", "jobQueues")
    return [queue["jobQueueName"] for queue in found]


def refuse_closed(queue: Queue) -> None:
    """Raise BackendError if the queue accepts no jobs."""
    if queue.state == "DISABLED":
        raise BackendError(
            f"queue `{queue.name}` is disabled",
            hint=f"`aws batch update-job-queue --job-queue {queue.name} --state ENABLED`",
        )
    if queue.status in ("INVALID", "DELETING", "DELETED"):
        more = f": {queue.reason}" if queue.reason else ""
        raise BackendError(f"queue `{queue.name}` is {queue.status.lower()}{more}")


def why_stuck(queue: Queue, vcpus: int, instance_types: list[str]) -> str:
    """Why the queue cannot start a job with these vCPUs per node and instance types; empty if no reason is known."""
    if closed := takes_none(queue):
        return closed
    reasons = [why_not_here(environment, vcpus, instance_types) for environment in queue.environments]
    return "; ".join(reasons) if reasons and all(reasons) else ""


def takes_none(queue: Queue) -> str:
    """Why a queue starts no jobs at all; empty if it does."""
    if queue.state == "DISABLED":
        return f"queue `{queue.name}` is disabled"
    if queue.status not in ("VALID", ""):
        return f"queue `{queue.name}` is {queue.status.lower()}{': ' + queue.reason if queue.reason else ''}"
    return ""


def why_not_here(environment: _Object, vcpus: int, wanted: list[str]) -> str:
    """Why a compute environment cannot start a node with these vCPUs, of one of these types; empty if it can."""
    name, status = environment.get("computeEnvironmentName"), str(environment.get("status") or "")
    reason = str(environment.get("statusReason") or "")
    if environment.get("state") == "DISABLED":
        return f"compute environment `{name}` is disabled"
    if status in ("INVALID", "DELETING", "DELETED"):
        return f"compute environment `{name}` is {status.lower()}{': ' + reason if reason else ''}"
    resources = environment.get("computeResources") or {}
    most = resources.get("maxvCpus")
    if most is not None and vcpus > most:
        return f"it asks for {vcpus} vCPUs, and `maxvCpus` of compute environment `{name}` is {most}"
    types = [str(t) for t in resources.get("instanceTypes") or ()]
    missing = [w for w in wanted if types and not _offers(types, w)]
    if missing:
        return f"compute environment `{name}` has no {missing[0]} ({', '.join(types)})"
    largest = _largest(types)
    if largest and vcpus > largest[0]:
        return (
            f"it asks for {vcpus} vCPUs, and the largest instance of compute environment `{name}`, "
            f"{largest[1]}, has {largest[0]}"
        )
    return ""


def _offers(types: list[str], wanted: str) -> bool:
    family = wanted.partition(".")[0]
    return any(t in ("optimal", wanted, family) or t.startswith("default") for t in types)


def _largest(types: list[str]) -> tuple[int, str] | None:
    """vCPUs and name of the largest type; None unless torchx knows the size of each."""
    known = [NAMED_RESOURCES.get(f"aws_{t}") for t in types]
    if not types or not all(known):
        return None
    return max((make().cpu, t) for make, t in zip(known, types, strict=True) if make is not None)


def _no_queue(client: Any, name: str) -> NotFoundError:
    try:
        there = all_queues(client)
    except TorchXError:
        there = []
    hint = did_you_mean(name, there) or (f"there are: {', '.join(sorted(there)[:10])}" if there else "")
    region = getattr(getattr(client, "meta", None), "region_name", "")
    where = f" in {region}" if region else ""
    return NotFoundError(
        f"Batch has no queue `{name}`{where}",
        hint=f"{hint} (`-cfg queue=NAME`)" if hint else "the region has no queues: is it the right one?",
    )
