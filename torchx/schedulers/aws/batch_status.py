"""What became of a Batch job, out of the answers of DescribeJobs.

https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
"""

from __future__ import annotations

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.aws import batch_parts as parts
from torchx.schedulers.aws.batch_nodes import unwrap
from torchx.schedulers.aws.batch_reasons import why_ended, why_waits
from torchx.schedulers.aws.marks import DEFAULT_ROLE_NAME, ENV_ROLE_NAME, OURS, console_url
from torchx.settings import ENV_IMAGE
from torchx.specs.api import NONE, AppState, ReplicaStatus, RetryPolicy, Role, RoleStatus, is_terminal
from torchx.specs.failures import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from dataclasses import dataclass
    from typing import Any

    _Object = dict[str, Any]
else:
    from torchx.util.records import dataclass

# https://docs.aws.amazon.com/batch/latest/userguide/job_states.html
JOB_STATE = {
    "SUBMITTED": AppState.SUBMITTED,
    "PENDING": AppState.PENDING,
    "RUNNABLE": AppState.PENDING,
    "STARTING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}
CANCELLED_BY_US = "cancelled by torchx"
"""Begins the reason that we give when we end a job."""
LOG_GROUP = "/aws/batch/job"


@dataclass(frozen=True)
class Group:
    """The nodes of one role.

    Attributes:
        container: as it was asked for; of a single-node job, as it is.
        first, last: indexes of its nodes.
    """

    container: _Object
    first: int
    last: int
    instance_type: str = ""

    @property
    def env(self) -> dict[str, str]:
        return {str(e.get("name")): str(e.get("value", "")) for e in self.container.get("environment") or ()}

    @property
    def name(self) -> str:
        return self.env.get(ENV_ROLE_NAME) or DEFAULT_ROLE_NAME

    @property
    def log_group(self) -> str:
        options = (self.container.get("logConfiguration") or {}).get("options") or {}
        return str(options.get("awslogs-group") or LOG_GROUP)


def state_of(job: Mapping[str, Any]) -> AppState:
    """The state of a job, a node, or a line of ListJobs."""
    state = JOB_STATE.get(str(job.get("status")), AppState.UNKNOWN)
    ended_by_hand = job.get("isTerminated") or job.get("isCancelled")
    if state is AppState.FAILED and (ended_by_hand or str(job.get("statusReason")).startswith(CANCELLED_BY_US)):
        return AppState.CANCELLED
    return state


def groups(job: _Object) -> list[Group]:
    """The roles of a job, in their order.

    >>> [(g.name, g.first, g.last) for g in groups({"container": {"environment": []}})]
    [('node', 0, 0)]
    """
    nodes = job.get("nodeProperties")
    if not nodes:
        return [Group(job.get("container") or {}, 0, 0)]
    found = []
    for node_range in nodes.get("nodeRangeProperties") or ():
        first, colon, last = str(node_range.get("targetNodes", "")).partition(":")
        end = last if colon else first
        container = node_range.get("container") or {}
        kind = str(container.get("instanceType") or next(iter(node_range.get("instanceTypes") or ()), ""))
        found.append(Group(container, int(first or 0), int(end or int(nodes["numNodes"]) - 1), kind))
    return sorted(found, key=lambda group: group.first)


def role_of(group: Group, retries: int) -> Role:
    """The role as it was submitted, as far as the job shows it."""
    container = group.container
    words, own = unwrap([str(word) for word in container.get("command") or ()])
    env = {name: value for name, value in group.env.items() if name not in OURS and not name.startswith("AWS_BATCH")}
    requirements = container.get("resourceRequirements") or [
        {"type": kind, "value": str(container[key])}
        for kind, key in (("VCPU", "vcpus"), ("MEMORY", "memory"))
        if container.get(key)
    ]
    resource = parts.resource_from_resource_requirements(requirements)
    if group.instance_type:
        from torchx.specs.named_resources_aws import K8S_ITYPE

        resource.capabilities[K8S_ITYPE] = group.instance_type
    return Role(
        name=group.name,
        image=group.env.get(ENV_IMAGE) or str(container.get("image") or ""),
        entrypoint=words[0] if words else "",
        args=words[1:],
        env={**env, **own},
        num_replicas=group.last - group.first + 1,
        max_retries=retries,
        retry_policy=RetryPolicy.APPLICATION,
        resource=resource,
    )


def describe(
    app_id: str, job: _Object, nodes: Mapping[int, _Object], *, region: str, waits: str = "", log_tail: str = ""
) -> DescribeAppResponse:
    """State, replicas and definition of a job.

    Args:
        nodes: what DescribeJobs says of each node of a multi-node job; those left out are as the job is.
        waits: why it does not start, when somebody has looked.
        log_tail: the end of the log of :func:`first_failed`.
    """
    state = state_of(job)
    found = groups(job)
    failed = first_failed(job, nodes) if state is AppState.FAILED else None
    failure = _failure(failed[1], log_tail) if failed else None
    told = {failed[0]: failure.to_structured_msg()} if failed and failure else {}
    statuses = [_role_status(group, job, nodes, told) for group in found]
    attempts = [a for a in job.get("attempts") or () if a.get("stoppedAt")]
    retries = _own_retries(job)
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=max(len(attempts) - (1 if is_terminal(state) else 0), 0),
        msg=_message(job, state, failed, waits, found) or NONE,
        structured_error_msg=failure.to_structured_msg() if failure else NONE,
        ui_url=console_url(str(job.get("jobArn") or ""), region, f"batch/home#jobs/detail/{job.get('jobId')}"),
        roles_statuses=statuses,
        roles=[role_of(group, retries) for group in found],
        started_at=_seconds(job.get("startedAt")) or _seconds(job.get("createdAt")),
        ended_at=_seconds(job.get("stoppedAt")) if is_terminal(state) else None,
    )


def first_failed(job: _Object, nodes: Mapping[int, _Object]) -> tuple[int, _Object] | None:
    """Index and description of the node that failed first, those that ended by themselves before others."""
    if not job.get("nodeProperties") or not nodes:
        return 0, job
    bad = [(i, node) for i, node in nodes.items() if state_of(node) is AppState.FAILED]
    if not bad:
        return None
    return min(bad, key=lambda pair: (exit_code(pair[1]) in (None, 0), pair[1].get("stoppedAt") or 0, pair[0]))


def exit_code(job: _Object) -> int | None:
    """Of a job or a node, its last attempt; None when it has none."""
    code = (job.get("container") or {}).get("exitCode")
    if code is None:
        codes = [(a.get("container") or {}).get("exitCode") for a in job.get("attempts") or ()]
        code = next((c for c in reversed(codes) if c is not None), None)
    return code


def log_streams(job: _Object) -> list[str]:
    """Names of the log streams of a job or a node, one for each attempt, oldest first."""
    names = [(a.get("container") or {}).get("logStreamName") for a in job.get("attempts") or ()]
    names.append((job.get("container") or {}).get("logStreamName"))
    return list(dict.fromkeys(str(name) for name in names if name))


def _own_retries(job: _Object) -> int:
    """Batch's attempts may be for lost hosts alone; then the user asked for none."""
    strategy = job.get("retryStrategy") or {}
    rules = strategy.get("evaluateOnExit") or ()
    last = str(rules[-1].get("action", "")).upper() if rules else "RETRY"
    return max(int(strategy.get("attempts") or 1) - 1, 0) if last == "RETRY" else 0


def _role_status(group: Group, job: _Object, nodes: Mapping[int, _Object], told: Mapping[int, str]) -> RoleStatus:
    state = state_of(job)
    replicas = []
    for index in range(group.first, group.last + 1):
        node = nodes.get(index)
        own = state_of(node) if node else state
        if own is AppState.FAILED and state is AppState.CANCELLED:
            own = AppState.CANCELLED
        host, address = _host(node or job)
        k = index - group.first
        replicas.append(ReplicaStatus(k, own, group.name, host, told.get(index, NONE), address))
    return RoleStatus(group.name, replicas)


def _host(job: _Object) -> tuple[str, str | None]:
    interfaces = (job.get("container") or {}).get("networkInterfaces") or ()
    address = next((i.get("privateIpv4Address") for i in interfaces if i.get("privateIpv4Address")), None)
    return address or "", address


def _failure(node: _Object, log_tail: str) -> Failure:
    from torchx.schedulers.kit.causes import failure_in

    code = exit_code(node)
    why = why_ended((node.get("container") or {}).get("reason"), node.get("statusReason"))
    ended = _seconds(node.get("stoppedAt")) or 0.0
    found = failure_in(None, log_tail, exit_code=code, ended=ended)
    return Failure(why or found.message, code, "", found.traceback, ended)


def _message(job: _Object, state: AppState, failed: tuple[int, _Object] | None, waits: str, found: list[Group]) -> str:
    said = str(job.get("statusReason") or "")
    if state is AppState.FAILED:
        if failed is None:
            return why_ended(said)
        index, node = failed
        code = exit_code(node)
        why = why_ended((node.get("container") or {}).get("reason"), node.get("statusReason"), said)
        told = ": ".join(text for text in (f"exit code {code}" if code is not None else "", why) if text)
        return f"{_name(found, index)} failed{': ' + told if told else ''}"
    if state is AppState.CANCELLED:
        return said
    if state is AppState.UNKNOWN:
        return f"its status is `{job.get('status')}`"
    if state in (AppState.SUBMITTED, AppState.PENDING):
        again = _again(job)
        return "; ".join(text for text in (again, why_waits(said) or waits or _waiting(job)) if text)
    return _again(job) if state is AppState.RUNNING else ""


def _again(job: _Object) -> str:
    """That it was started before, and why that ended."""
    attempts = [a for a in job.get("attempts") or () if a.get("stoppedAt")]
    if not attempts:
        return ""
    most = int((job.get("retryStrategy") or {}).get("attempts") or 1)
    last = attempts[-1]
    container = last.get("container") or {}
    code = container.get("exitCode")
    why = why_ended(container.get("reason"), last.get("statusReason"))
    why = why or (f"exit code {code}" if code is not None else "")
    return f"attempt {len(attempts) + 1} of {most}{', the last one ended: ' + why if why else ''}"


def _waiting(job: _Object) -> str:
    return {
        "PENDING": "it waits for jobs that it depends on",
        "RUNNABLE": "it waits for an instance",
        "STARTING": "its image is being pulled",
    }.get(str(job.get("status")), "")


def _name(found: list[Group], index: int) -> str:
    group = next((g for g in found if g.first <= index <= g.last), found[0])
    return f"{group.name}/{index - group.first}"


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if milliseconds else None
