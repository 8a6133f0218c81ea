"""Converts the answers of DescribeJobs and ListJobs into facts.

https://docs.aws.amazon.com/batch/latest/APIReference/API_JobDetail.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx.schedulers.aws.batch import order, pieces
from torchx.schedulers.aws.batch.attempts import attempts_of
from torchx.schedulers.aws.batch.container import resource_from_resource_requirements
from torchx.schedulers.aws.batch.node_command import unwrap
from torchx.schedulers.aws.batch.pieces import Chain
from torchx.schedulers.aws.batch.reasons import CANCELLED_BY_US, JOB_STATE, WAITS_IN, why_ended, why_waits
from torchx.schedulers.aws.tags import DEFAULT_ROLE_NAME, OURS, console_url
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import SHELL, signal_name
from torchx.settings import ENV_IMAGE, ENV_ROLE_NAME
from torchx.specs.api import AppState, RetryPolicy, Role, is_terminal
from torchx.specs.failures import Failure
from torchx.specs.named_resources_aws import K8S_ITYPE
from torchx.specs.wishes.retries import Attempt
from torchx.util.records import dataclass

_Object = dict[str, Any]

LOG_GROUP = "/aws/batch/job"
_BEGUN = ("STARTING", "RUNNING", "SUCCEEDED", "FAILED")


@dataclass(frozen=True)
class Group:
    """The nodes of one role.

    Attributes:
        container: its container properties; of a single-node job, the container itself.
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
    def chain(self) -> Chain | None:
        """The chain that its program is a piece of."""
        return self._words[2]

    @property
    def _words(self) -> tuple[list[str], dict[str, str], Chain | None, order.Orders]:
        words, orders = order.unwrap([str(word) for word in self.container.get("command") or ()])
        words, own = unwrap(words)
        words, chain = pieces.unwrap(words)
        return words, own, chain, orders

    @property
    def name(self) -> str:
        return self.env.get(ENV_ROLE_NAME) or DEFAULT_ROLE_NAME

    @property
    def log_group(self) -> str:
        options = (self.container.get("logConfiguration") or {}).get("options") or {}
        return str(options.get("awslogs-group") or LOG_GROUP)


def facts_of(app_id: str, job: _Object, nodes: Mapping[int, _Object], *, region: str = "", waits: str = "") -> JobFacts:
    """Return the facts of a job. From a summary of ListJobs, only the state is known.

    ``nodes`` are the descriptions of the nodes of a multi-node job, by index; empty if they were not requested.
    ``region`` is used if the job's ARN does not contain it; ``waits``: why it does not start, if known.
    """
    state, found = state_of(job), groups(job)
    main = _main_node(job)
    each = nodes if job.get("nodeProperties") else {0: job}
    # The job ends with its main node. When another node ends, Batch does nothing:
    # https://docs.aws.amazon.com/batch/latest/userguide/job-lifecycle.html
    goes_on = state is AppState.RUNNING and not (main in each and is_terminal(state_of(each[main])))
    reason, kind = _why(job, state, waits)
    if state is AppState.FAILED and main in each and kind != "timeout":
        reason, kind = "", ""  # the main node reports it; only a time limit applies to the whole job
    attempts = [a for a in job.get("attempts") or () if a.get("stoppedAt")]
    return JobFacts(
        app_id=app_id,
        roles=[
            RoleFacts(
                name=group.name,
                replicas=[_replica(group, i, each.get(i), state) for i in range(group.first, group.last + 1)],
                state=state if goes_on else None,
            )
            for group in found
        ],
        state=state,
        native=str(job.get("status")),
        reason=reason,
        kind=kind,
        cancelled=_ended_by_hand(job),
        restarts=max(len(attempts) - is_terminal(state), 0),
        attempts=_attempts(job, found, state) if attempts else (),
        started=_seconds(job.get("startedAt")) or _seconds(job.get("createdAt")),
        ended=_seconds(job.get("stoppedAt")),
        notes=[*_restart_note(job, attempts, state), *(_lost_nodes(each, main) if goes_on else ())],
        definition=[role_of(group, _own_retries(job)) for group in found],
        ui_url=console_url(str(job.get("jobArn") or ""), region, f"batch/home#jobs/detail/{job.get('jobId')}"),
    )


def state_of(job: Mapping[str, Any]) -> AppState:
    """Return the state of a job, node or summary.

    Batch reports an array as PENDING until its tasks end, even if some run.
    """
    state = JOB_STATE.get(str(job.get("status")), AppState.UNKNOWN)
    if array_size(job) and state in (AppState.SUBMITTED, AppState.PENDING):
        counts = job["arrayProperties"].get("statusSummary") or {}
        return AppState.RUNNING if any(counts.get(status) for status in _BEGUN) else state
    return AppState.CANCELLED if state is AppState.FAILED and _ended_by_hand(job) else state


def array_size(job: Mapping[str, Any]) -> int:
    """Return the number of tasks of an array job; 0 for any other job."""
    return int((job.get("arrayProperties") or {}).get("size") or 0)


def _ended_by_hand(job: Mapping[str, Any]) -> bool:
    asked = job.get("isTerminated") or job.get("isCancelled")
    return bool(asked) or str(job.get("statusReason")).startswith(CANCELLED_BY_US)


def _main_node(job: _Object) -> int:
    return int((job.get("nodeProperties") or {}).get("mainNode") or 0)


def groups(job: _Object) -> list[Group]:
    """Return the roles of a job, in order.

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
    """Return the role as it was submitted, as far as the description contains it."""
    container = group.container
    words, own, _, orders = group._words
    env = {name: value for name, value in group.env.items() if name not in OURS and not name.startswith("AWS_BATCH")}
    requirements = container.get("resourceRequirements") or [
        {"type": kind, "value": str(container[key])}
        for kind, key in (("VCPU", "vcpus"), ("MEMORY", "memory"))
        if container.get(key)
    ]
    resource = resource_from_resource_requirements(requirements)
    if group.instance_type:
        resource.capabilities[K8S_ITYPE] = group.instance_type
    role = Role(
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
    return order.with_order(role, orders)


def exit_code(job: _Object) -> int | None:
    """Exit code of the last attempt of a job or node; None if it has none."""
    codes = [container.get("exitCode") for container in _containers(job)]
    return next((code for code in reversed(codes) if code is not None), None)


def log_streams(job: _Object) -> list[str]:
    """Names of the log streams of a job or node, one per attempt, oldest first."""
    names = [container.get("logStreamName") for container in _containers(job)]
    return list(dict.fromkeys(str(name) for name in names if name))


def _containers(job: _Object) -> list[_Object]:
    """Return the containers of its attempts, oldest first, and its own."""
    return [one.get("container") or {} for one in (*(job.get("attempts") or ()), job)]


def _replica(group: Group, index: int, node: _Object | None, state: AppState) -> ReplicaFacts:
    """Return the facts of one node; from the job's ``state`` if its description was not requested."""
    name, k = group.name, index - group.first
    if node is None:
        ended_badly = state in (AppState.FAILED, AppState.CANCELLED)
        return ReplicaFacts(role=name, replica=k, state=AppState.UNKNOWN if ended_badly else state)
    own = state_of(node)
    if is_terminal(state) and not is_terminal(own):
        own = AppState.UNKNOWN  # Batch has stopped it, and its description is not up to date yet
    failed = own is AppState.FAILED
    reason, kind = why_ended(_container_reason(node), node.get("statusReason")) if failed else ("", "")
    code = exit_code(node) if is_terminal(own) else None
    if failed and code == pieces.EXIT_CODE and group.chain is not None:
        reason, kind, code = "its piece is over", "timeout", None
    signal = signal_name(code) if failed and code is not None and code > SHELL else ""
    interfaces = (node.get("container") or {}).get("networkInterfaces") or ()
    address = next((i.get("privateIpv4Address") for i in interfaces if i.get("privateIpv4Address")), None)
    return ReplicaFacts(
        role=name,
        replica=k,
        state=own,
        native=str(node.get("status")),
        exit_code=None if signal else code,
        signal=signal,
        host=address or "",
        address=address,
        started=_seconds(node.get("startedAt")) or 0,
        ended=_seconds(node.get("stoppedAt")) or 0,
        reason=reason,
        kind=kind,
    )


def _why(job: _Object, state: AppState, waits: str) -> tuple[str, str]:
    """Why a job is in its state, and the class of the cause if it failed."""
    reason = str(job.get("statusReason") or "")
    if state is AppState.FAILED:
        return why_ended(reason)
    if state is AppState.CANCELLED:
        return reason, ""
    if state is AppState.UNKNOWN:
        return f"its status is `{job.get('status')}`", ""
    if state in (AppState.SUBMITTED, AppState.PENDING):
        return why_waits(reason) or waits or WAITS_IN.get(str(job.get("status")), ""), ""
    return "", ""


def _attempts(job: _Object, found: list[Group], state: AppState) -> list[Attempt]:
    main = _main_node(job)
    group = next((group for group in found if group.first <= main <= group.last), None)
    if group is None or state is AppState.CANCELLED:
        return []
    return attempts_of(
        job, group.chain, lambda item: _replica(group, main, item, AppState.FAILED), over=is_terminal(state)
    )


def _restart_note(job: _Object, attempts: list[_Object], state: AppState) -> list[str]:
    """Return the number of the current attempt, and why the previous one ended."""
    if not attempts or is_terminal(state):
        return []
    most = int((job.get("retryStrategy") or {}).get("attempts") or 1)
    last = attempts[-1]
    why, _ = why_ended(_container_reason(last), last.get("statusReason"))
    why = why or Failure(exit_code=(last.get("container") or {}).get("exitCode")).summary()
    return [f"attempt {len(attempts) + 1} of {most}{', the last one ended: ' + why if why else ''}"]


def _lost_nodes(each: Mapping[int, _Object], main: int) -> list[str]:
    lost = sum(state_of(node) is AppState.FAILED for node in each.values())
    return [f"{lost} of {len(each)} nodes failed; Batch runs the job until its main node {main} ends"] if lost else []


def _container_reason(job: _Object) -> str | None:
    return (job.get("container") or {}).get("reason")


def _own_retries(job: _Object) -> int:
    """``max_retries`` of a job: 0 if its further attempts are only for lost hosts."""
    strategy = job.get("retryStrategy") or {}
    rules = strategy.get("evaluateOnExit") or ()
    last = str(rules[-1].get("action", "")).upper() if rules else "RETRY"
    return max(int(strategy.get("attempts") or 1) - 1, 0) if last == "RETRY" else 0


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1000 if milliseconds else None
