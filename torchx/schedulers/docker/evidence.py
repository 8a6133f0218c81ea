"""Collects why and when containers ended: events, details, logs and files in them."""

from __future__ import annotations

import io
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

from torchx.schedulers.docker.client import events, side_by_side
from torchx.schedulers.docker.containers import LABEL_APP_ID, Container, Job
from torchx.schedulers.docker.gangs import REPLICA, rules_of
from torchx.schedulers.docker.logs import seconds, tail
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures import Evidence
from torchx.specs.api import AppState
from torchx.specs.failures import parse_failure
from torchx.specs.wishes.retries import Attempt, read_attempts
from torchx.util.records import dataclass, field
from torchx.util.strings import size_text
from torchx.workspace.images import archive
from torchx.workspace.images.engine_errors import NO_PROGRAM, meaning_of

ERROR_FILE = "/tmp/torchx_error.json"  # noqa: S108  # in the container, which no other user shares
"""Where torchelastic writes the error of a replica; read from the container after its end."""

ATTEMPTS_FILE = ".torchx-attempts"
"""In the root of a container's file system, where no volume can hide it."""
HANG_FILE = ".torchx-hang"
STACKS_FILE = ".torchx-stacks"
"""Beside it: the last finding of the watchdog."""
LATE_FILE = ".torchx-late"
"""Beside it: why a role was not ready in time."""

_MAX_BYTES = 1 << 20
_READ_S = 10.0
_FORGOTTEN = 4


@dataclass
class History:
    """What the engine reports about the ends of a job's containers.

    Attributes:
        ended: container id -> Unix time of its last end.
        signalled: container id -> Unix time of the last signal that was sent to it since its start.
        out_of_memory: ids of containers that reached their memory limit before their last end.
        restarts: number of restarts by the engine itself.
        details: container id -> what ``docker inspect`` shows, for the containers that were inspected.
    """

    ended: dict[str, float] = field(default_factory=dict)
    signalled: dict[str, float] = field(default_factory=dict)
    out_of_memory: set[str] = field(default_factory=set)
    restarts: int = 0
    details: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def started_at(self) -> float | None:
        """The earliest start of the inspected containers, Unix time; None if not known."""
        return min(filter(None, map(_started, self.details.values())), default=None)

    @property
    def ended_at(self) -> float | None:
        """The latest end of a container, Unix time; None if not known."""
        return max(self.ended.values(), default=None)


def attempts_of(client: Any, job: Job) -> list[Attempt]:
    """Return the recorded attempts; none for a job without a retry policy."""
    if not rules_of(job).policy:
        return []
    return read_attempts((file_in(client, job.first().id, f"/{ATTEMPTS_FILE}") or "").splitlines())


def hang_of(client: Any, job: Job) -> str:
    """Return the last finding of the job's watchdog; empty if there is none."""
    rules = rules_of(job)
    return file_in(client, job.first().id, f"/{HANG_FILE}") or "" if rules.watchdog or rules.idle else ""


def late_of(client: Any, job: Job) -> str:
    """Return why a role was not ready in time; empty if each was, or that is not why the job ended."""
    late = any(c.mark.late and not c.mark.silent for c in job.containers) and rules_of(job).order
    return file_in(client, job.first().id, f"/{LATE_FILE}") or "" if late else ""


def tar_of(texts: dict[str, str]) -> bytes:
    """Return a tar archive of these files, by name."""
    return b"".join(archive.small_file(name, 0o644, text.encode()) for name, text in texts.items()) + archive.END


def put_files(engine: EngineHttp, container_id: str, texts: dict[str, str]) -> None:
    """Write files into the root of a container, where no volume can hide them; ignores a refusal of the engine."""
    up = engine.upload(f"/containers/{container_id}/archive", {"path": "/"})
    with closing(up), suppress(RefusedError):  # the container was removed, or the disk is full
        up.write(tar_of(texts))
        up.write(b"")
        up.answer()


def text_in(engine: EngineHttp, container_id: str, name: str) -> str:
    """Read a file that :func:`put_files` has written; empty if there is none. Raises OSError if the engine stops."""
    import tarfile

    try:
        return _first_file([engine.read(f"/containers/{container_id}/archive", {"path": f"/{name}"})]) or ""
    except RefusedError:
        return ""
    except tarfile.TarError as e:
        raise ConnectionError("the engine cut off its answer") from e


def history_of(client: Any, job: Job) -> History:
    """Collect the ends of a job's containers: one call for all, plus one for a few whose events are gone."""
    past = _events(client, job)
    failed = [c for c in job.containers if c.state is AppState.FAILED]
    inspect(client, past, [c for c in failed if c.id not in past.ended][:_FORGOTTEN])
    by_engine = any(policy == REPLICA and most > 0 for most, policy in rules_of(job).retries.values())
    if by_engine or not past.ended:
        chosen = min(failed, key=lambda c: past.ended.get(c.id, time.time()), default=None)
        chosen = chosen or max(job.containers, key=lambda c: past.ended.get(c.id, 0.0))
        inspect(client, past, [chosen])
        past.restarts = max(past.restarts, int(past.details[chosen.id].get("RestartCount") or 0))
    return past


def _events(client: Any, job: Job) -> History:
    past = History()
    ends = 0
    since = min(c.created for c in job.containers)
    kinds, of = ["start", "kill", "oom", "die", "died"], {"label": [f"{LABEL_APP_ID}={job.app_id}"]}
    try:
        for event in events(client, kinds, of, since=since, until=time.time(), read_s=_READ_S):
            container = str(event.get("id") or (event.get("Actor") or {}).get("ID") or "")
            kind = str(event.get("status") or event.get("Action") or "")
            at = float(event.get("timeNano") or 0) / 1e9 or float(event.get("time") or 0)
            if kind == "oom":
                past.out_of_memory.add(container)
            elif kind == "start":
                past.out_of_memory.discard(container)
                past.signalled.pop(container, None)
            elif kind == "kill":
                past.signalled[container] = at
            else:
                ends += 1
                past.ended[container] = at
    except Exception:  # an engine, or a proxy in front of it, without events
        return History()
    marks = [c.mark for c in job.containers if c.id in past.ended]
    past.restarts = ends - len(past.ended) - sum(mark.app + mark.role + mark.along for mark in marks)
    past.restarts = max(past.restarts, 0)
    return past


def inspect(client: Any, past: History, containers: Sequence[Container]) -> None:
    """Add the details of containers to the history."""
    new = [c for c in containers if c.id not in past.details]
    for container, details in zip(new, side_by_side(lambda c: _details(client, c.id), new), strict=True):
        past.details[container.id] = details
        at = seconds(str(_state(details).get("FinishedAt") or ""))
        if at > 0:
            past.ended.setdefault(container.id, at)


class Look:
    """A :class:`torchx.schedulers.kit.facts.Look` that ignores output from before the end of the last attempt."""

    def __init__(self, client: Any, job: Job, past: History, attempts: Sequence[Attempt] = ()) -> None:
        self._client = client
        self._containers = {(c.role, c.k): c for c in job.containers}
        self._past = past
        self._before = next((attempt.ended for attempt in reversed(attempts) if attempt.again), 0.0)

    def __call__(self, replicas: Sequence[ReplicaFacts], /) -> list[Evidence]:
        found = [self._containers.get((r.role, r.replica)) for r in replicas]
        inspect(self._client, self._past, [c for c in found if c is not None])
        return side_by_side(self._evidence, found)

    def _evidence(self, container: Container | None) -> Evidence:
        if container is None or container.raw == "created":
            return Evidence()
        details = self._past.details[container.id]
        if error := " ".join(str(_state(details).get("Error") or "").split()):
            meaning, _ = meaning_of(error)
            reason = f"cannot start: {meaning}: {error}" if meaning else f"cannot start: {error}"
            return Evidence(said=error, reason=reason, kind="image" if meaning == NO_PROGRAM else "")
        reason = ""
        if container.id in self._past.out_of_memory or _state(details).get("OOMKilled"):
            limit = (details.get("HostConfig") or {}).get("Memory") or 0
            size = f" of {size_text(limit)}" if limit else ""
            reason = f"out of memory: the container reached its limit{size} (`OOMKilled`)"
        return Evidence(
            error_file=_error_file(self._client, container.id, details),
            stderr=self._tail(container, "stderr", details),
            stdout=self._tail(container, "stdout", details),
            reason=reason,
            kind="oom" if reason else "",
        )

    def _tail(self, container: Container, stream: str, details: dict[str, Any]) -> str:
        # An engine may stamp the last lines after the end that it reports, and the first ones before the start.
        since = (self._before + _started(details)) / 2 if self._before else 0.0
        try:
            return tail(self._client, container.id, stream, since=since)
        except Exception:  # the logging driver cannot be read: report the other evidence
            return ""


def _details(client: Any, container_id: str) -> dict[str, Any]:
    try:
        return dict(client.api.inspect_container(container_id))
    except Exception:  # removed meanwhile
        return {}


def _state(details: dict[str, Any]) -> dict[str, Any]:
    state = details.get("State")
    return state if isinstance(state, dict) else {}


def _started(details: dict[str, Any]) -> float:
    """When its last process was started, Unix time; 0 if not known."""
    return seconds(str(_state(details).get("StartedAt") or ""))


def _error_file(client: Any, container_id: str, details: dict[str, Any]) -> str | None:
    """Return the ``TORCHELASTIC_ERROR_FILE`` that the replica has written since its last start;
    None if there is none.
    """
    config = details.get("Config")
    env = (config.get("Env") if isinstance(config, dict) else None) or []
    path = next((v.partition("=")[2] for v in env if v.startswith("TORCHELASTIC_ERROR_FILE=")), ERROR_FILE)
    text = file_in(client, container_id, path)
    reported = parse_failure(text)
    is_stale = reported is not None and 0 < reported.timestamp < int(_started(details))
    return None if is_stale else text


def file_in(client: Any, container_id: str, path: str) -> str | None:
    """Return the text of a file in a container, running or not; None if there is none, or it is larger than 1 MiB."""
    try:
        parts, _ = client.api.get_archive(container_id, path)
        return _first_file(parts)
    except Exception:  # it does not exist or cannot be read: report the other evidence
        return None


def _first_file(parts: Iterable[bytes]) -> str | None:
    """Return the text of the first member of a tar archive; None if that is not a file, or is too large."""
    import tarfile

    packed, size = io.BytesIO(), 0
    for part in parts:
        size += packed.write(part)
        if size > _MAX_BYTES:
            return None
    packed.seek(0)
    with tarfile.open(fileobj=packed) as tar:
        member = tar.next()
        file = tar.extractfile(member) if member is not None and member.isreg() else None
        return None if file is None else file.read().decode("utf-8", "replace")
