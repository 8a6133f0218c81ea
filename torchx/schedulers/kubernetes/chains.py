"""Chains of pieces (``torchx run --total``): each piece is an attempt that :mod:`.our_retries` creates.

Pieces never overlap: one is created after the last container of the piece before has ended. Before SIGTERM, a hook asks
the ranks for a checkpoint. Progress is seen in the output, as lines that :mod:`torchx.schedulers.kit.pace` reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torchx.errors import TorchXError
from torchx.schedulers.kit.facts import JobFacts
from torchx.schedulers.kit.pace import parse_lines
from torchx.schedulers.kit.verdict import role_state
from torchx.schedulers.kubernetes import lifecycle
from torchx.schedulers.kubernetes.client import KubeApi, path_to
from torchx.schedulers.kubernetes.names import JOB, MAIN_CONTAINER, Object
from torchx.schedulers.kubernetes.owners import JobObjects
from torchx.settings import ENV_CHECKPOINT, ENV_PROGRESS
from torchx.specs.api import AppState
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import Attempt
from torchx.util.records import replace

_GRACE_S = 30
"""The cluster's default for ``terminationGracePeriodSeconds``."""
_SLACK_S = 10.0
_TAIL: dict[str, object] = {"container": MAIN_CONTAINER, "tailLines": 1000, "limitBytes": 4 << 20}
_MAX_LOGS = 8
_MARKS = {ENV_CHECKPOINT: "/dev/shm/torchx-checkpoint", ENV_PROGRESS: "/dev/shm/torchx-progress"}  # noqa: S108  # ours
STEP = "step"
"""Key of :attr:`Attempt.more`: the last step that a piece printed."""


def ask_for_checkpoint(template: Object) -> None:
    """Add the hook to the template of a pod: for half of the grace period, SIGTERM waits for a mark of progress."""
    spec = template["spec"]
    main = next(one for one in spec["containers"] if one["name"] == MAIN_CONTAINER)
    there = {one["name"] for one in main["env"]}
    main["env"] += [{"name": name, "value": path} for name, path in _MARKS.items() if name not in there]
    half = int(spec.get("terminationGracePeriodSeconds", _GRACE_S)) // 2
    waits = f'[ "${ENV_PROGRESS}" -nt "${ENV_CHECKPOINT}" ] && break; sleep 1'
    script = f': >"${ENV_CHECKPOINT}"; for i in {" ".join(map(str, range(half)))}; do {waits}; done'
    main.setdefault("lifecycle", {}).setdefault("preStop", {"exec": {"command": ["sh", "-c", script]}})


def between(api: KubeApi, last: JobObjects, facts: JobFacts, now: float) -> JobFacts | None:
    """Return the facts of a chain of which a piece has failed, but not all containers have ended yet; else None.

    ``last`` are the objects of that piece. Stops those of its Jobs that have not failed.
    """
    rules = Wishes.read(facts.metadata).retry
    if (
        rules is None
        or not rules.total
        or not any(role_state(role, at_its_end=True) is AppState.FAILED for role in facts.roles)
    ):
        return None
    lifecycle.stop_the_others(api, JobObjects(JOB, last.owners, failed=True))
    left = [str(pod["metadata"]["name"]) for pod in last.pods if not _is_over(pod, facts.ended or now, now)]
    if not left:
        return None
    names = ", ".join(f"`{name}`" for name in left[:3])
    why = f"the next piece waits for the end of {len(left)} pods of the last one: {names}"
    return replace(facts, state=AppState.PENDING, reason=why, ended=None)


def _is_over(pod: Object, failed: float, now: float) -> bool:
    """Whether no container of a pod runs any more, of a Job that has ``failed`` at this time.

    Before 1.27, a pod that reaches its deadline is Failed at once, and its status keeps its containers as running.
    """
    status = pod.get("status") or {}
    if status.get("phase") not in ("Failed", "Succeeded"):
        return False
    if not any("running" in (one.get("state") or {}) for one in status.get("containerStatuses") or ()):
        return True
    grace = int(pod["spec"].get("terminationGracePeriodSeconds") or _GRACE_S)
    return now > failed + grace + _SLACK_S


def mark_progress(
    api: KubeApi, pods: Sequence[Object], earlier: Iterable[Attempt], attempt: Attempt, kind: str
) -> None:
    """Set whether a piece that ended by a cause of this class made progress: its last step is beyond all before.

    A program that prints no steps may have made progress in a piece that it used up.
    """
    step = max((one for pod in pods[:_MAX_LOGS] if (one := _last_step(api, pod)) is not None), default=None)
    if step is None:
        attempt.progress = kind == "timeout"
        return
    attempt.more = {STEP: step}
    attempt.progress = step > max((one.more.get(STEP, 0) for one in earlier), default=0)


def _last_step(api: KubeApi, pod: Object) -> int | None:
    try:
        text = api.text(f"{path_to('Pod', pod)}/log", _TAIL)
    except TorchXError:  # its node is gone, or we may not read logs
        return None
    ranks = parse_lines("", 0, ((0.0, line) for line in text.splitlines()))
    return max((one.points[-1][1] for one in ranks), default=None)
