"""Why a container failed: the engine's own reason, torchelastic's error file in it, the end of its stderr."""

from __future__ import annotations

import time

from torchx.schedulers.docker.containers import Explanation, failures, signal_name
from torchx.schedulers.docker.engine import ends, meaning_of
from torchx.schedulers.docker.logs import seconds, stderr_tail
from torchx.schedulers.kit.causes import failure_in
from torchx.specs.api import AppState, is_terminal
from torchx.specs.failures import Failure, parse_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.schedulers.docker.containers import Container, Job

ERROR_FILE = "/tmp/torchx_error.json"  # noqa: S108  # in the container, which nobody shares
"""Where torchelastic writes the error of a replica; read out of the container after its end."""

_MOST_BYTES = 1 << 20
_READ_S = 10.0
_CANDIDATES = 4
_NEVER = float("inf")


def explain(client: Any, job: Job, state: AppState) -> Explanation:
    """When a job of this state has ended, and what its first failure was.

    It takes a few calls, whatever the number of replicas: the events (and the details of some failures whose events the
    engine has forgotten), then of one container its details, its error file and the end of its log. What the engine
    cannot tell is left out.
    """
    times, count = _end_times(client, job)
    repeats = count - len(times) - sum(c.mark.app + c.mark.role for c in job.containers if c.id in times)
    failed = None
    if state is AppState.FAILED:
        forgotten = [c for c in failures(job.containers) if c.id not in times]
        for candidate in forgotten[:_CANDIDATES]:
            times[candidate.id] = seconds(str(_state(_inspect(client, candidate.id)).get("FinishedAt") or "")) or _NEVER
        failed = next(iter(failures(job.containers, times)), None)
    chosen = failed or max(job.containers, key=lambda c: times.get(c.id, 0.0))
    details = _inspect(client, chosen.id)
    over = all(is_terminal(c.state) for c in job.containers)
    known = [at for at in times.values() if at < _NEVER]
    ended = max(known, default=0.0) or seconds(str(_state(details).get("FinishedAt", "")))
    return Explanation(
        failed=failed,
        failure=None if failed is None else _failure(client, failed, details),
        restarts=max(int(details.get("RestartCount") or 0), repeats),
        ended_at=ended if over and ended > 0 else None,
    )


def start_failure(details: dict[str, Any]) -> str:
    """Why the engine could not start a container, in its own words; empty when it could."""
    return " ".join(str(_state(details).get("Error") or "").split())


def _failure(client: Any, failed: Container, details: dict[str, Any]) -> Failure:
    state = _state(details)
    code = state.get("ExitCode", failed.exit_code)
    code = code if isinstance(code, int) else failed.exit_code
    ended = max(seconds(str(state.get("FinishedAt") or "")), 0.0)
    signal = signal_name(code) if code is not None else ""
    if state.get("OOMKilled"):
        limit = (details.get("HostConfig") or {}).get("Memory") or 0
        asked = f" of {limit / (1 << 20):g} MB" if limit else ""
        text = f"out of memory: the container reached its limit{asked} (`OOMKilled`)"
        return Failure(text, code, signal, _stderr(client, failed.id), ended)
    if said := start_failure(details):
        meaning, _ = meaning_of(said)
        return Failure(f"cannot start: {meaning}: {said}" if meaning else f"cannot start: {said}", code, "", "", ended)
    error = _error_file(client, failed.id, details)
    reported = parse_failure(error)
    if reported is not None and 0 < reported.timestamp < int(seconds(str(state.get("StartedAt") or ""))):
        error = None  # of an attempt before this one
    return failure_in(error, _stderr(client, failed.id), exit_code=code, signal_name=signal, ended=ended)


def _end_times(client: Any, job: Job) -> tuple[dict[str, float], int]:
    """Container id -> Unix time of its last end, and how many ends there were; what the engine still remembers."""
    from torchx.schedulers.docker.containers import LABEL_APP_ID

    times: dict[str, float] = {}
    count = 0
    since = min(c.created for c in job.containers)
    try:
        for event in ends(client, [f"{LABEL_APP_ID}={job.app_id}"], since=since, until=time.time(), read_s=_READ_S):
            count += 1
            at = float(event.get("timeNano") or 0) / 1e9 or float(event.get("time") or 0)
            times[str(event.get("id") or (event.get("Actor") or {}).get("ID") or "")] = at
    except Exception:  # an engine, or a proxy before it, without events
        return {}, 0
    return times, count


def _inspect(client: Any, container_id: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = client.api.inspect_container(container_id)
    except Exception:  # removed in this moment
        return {}
    return found


def _state(details: dict[str, Any]) -> dict[str, Any]:
    state = details.get("State")
    return state if isinstance(state, dict) else {}


def _stderr(client: Any, container_id: str) -> str:
    try:
        return stderr_tail(client, container_id)
    except Exception:  # a logging driver that cannot be read: the rest of the cause is still told
        return ""


def _error_file(client: Any, container_id: str, details: dict[str, Any]) -> str | None:
    """What the replica wrote to its ``TORCHELASTIC_ERROR_FILE``; None when there is none."""
    import io
    import tarfile

    env = (details.get("Config") or {}).get("Env") or []
    path = next((v.partition("=")[2] for v in env if v.startswith("TORCHELASTIC_ERROR_FILE=")), ERROR_FILE)
    try:
        parts, _ = client.api.get_archive(container_id, path)
        packed, size = io.BytesIO(), 0
        for part in parts:
            size += packed.write(part)
            if size > _MOST_BYTES:
                return None
        packed.seek(0)
        with tarfile.open(fileobj=packed) as tar:
            member = tar.next()
            file = tar.extractfile(member) if member is not None and member.isreg() else None
            return None if file is None else file.read().decode("utf-8", "replace")
    except Exception:  # there is none, or it is not what it should be: stderr is still there
        return None
