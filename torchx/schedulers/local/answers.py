"""The state file of a local job as facts, and what its failed replicas left behind."""

from __future__ import annotations

import os
import stat

from torchx.schedulers.api import NONE, ListAppResponse
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.specs.api import AppState
from torchx.supervisor.layout import ERROR_FILE, STDERR_LOG, STDOUT_LOG, replica_folder
from torchx.supervisor.statefile import CANCELLED, LOST, SUCCEEDED, TERMINAL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchx.schedulers.kit.failures import Evidence
    from torchx.specs.retries import Attempt
    from torchx.supervisor.statefile import JobState, ReplicaLine

RETRY_FACT = "retry"
"""The key in a state file's header of a job with a retry policy."""

SIZES = "sizes"
"""The key of ``Attempt.more`` for the sizes of each replica's stdout and stderr when the attempt ended."""

_TAIL_BYTES = 1 << 16


def facts_of(job: JobState, folder: str) -> JobFacts:
    """What the state file says of a job.

    Args:
        folder: of the job; the logs are there unless the file says where.
    """
    here = os.uname().nodename
    host = job.facts.get("host", "")
    over = job.state in TERMINAL
    roles, index = [], 0
    for name, count in job.roles:
        lines = job.replicas[index : index + count]
        members = [_replica(name, k, line, "localhost" if host == here else host) for k, line in enumerate(lines)]
        # the supervisor alone knows whether the job can do without those that failed, or starts them again
        goes_on = not over and job.first < 0
        # a job that succeeded although some failed could do without them: its role is elastic
        failed = sum(member.state is AppState.FAILED for member in members)
        enough = len(members) - failed if failed and job.state == SUCCEEDED else None
        state = AppState[job.state] if goes_on else None
        roles.append(RoleFacts(name=name, replicas=members, state=state, min_replicas=enough))
        index += count
    attempts = attempts_of(folder) if RETRY_FACT in job.facts else []
    away = [f"as last heard from host `{host}`, where it runs"] if not over and host != here else []
    return JobFacts(
        app_id=job.facts.get("app_id", os.path.basename(folder)),
        roles=roles,
        state=AppState[job.state],
        native=job.state,
        reason=job.msg,
        kind="lost" if any(line.state == LOST for line in job.replicas) else "",
        restarts=job.restarts,
        attempts=attempts,
        started=job.created or None,
        ended=job.ended or None,
        notes=away,
        tell_hosts=False,
        ui_url=f"file://{_url_path(job.facts.get('logs', folder))}",
    )


def attempts_of(folder: str) -> list[Attempt]:
    """The attempts that have ended; none where there is no such file."""
    from torchx.schedulers.kit.attempts import ATTEMPTS_FILE, read_attempts

    try:
        with open(os.path.join(folder, ATTEMPTS_FILE), encoding="utf-8", errors="replace") as f:
            return read_attempts(f)
    except OSError:
        return []


def sizes_of(attempts: Sequence[Attempt]) -> dict[str, list[int]]:
    """How long the files of each replica's output were when the attempt now running, or the last one, began."""
    ended = [attempt for attempt in attempts if attempt.again]
    return ended[-1].more.get(SIZES, {}) if ended else {}


def listed(job: JobState, folder: str) -> ListAppResponse:
    """The job's line in a list; arguments as of :func:`facts_of`."""
    from torchx.schedulers.kit.verdict import state_of

    facts = job.facts
    return ListAppResponse(
        app_id=facts.get("app_id", ""),
        state=state_of(facts_of(job, folder)),
        app_handle=facts.get("handle", NONE),
        name=facts.get("name", ""),
    )


def _replica(role: str, k: int, line: ReplicaLine, host: str) -> ReplicaFacts:
    code, name = line.exit, ""
    if code is not None and code < 0:
        from torchx.schedulers.kit.failures import signal_name

        name, code = signal_name(-code), None
    return ReplicaFacts(
        role=role,
        replica=k,
        state=AppState[line.state],
        native=line.state,
        exit_code=code,
        signal=name,
        host=host,
        started=line.started,
        ended=line.ended,
        stopped=line.state == CANCELLED,
        kind="lost" if line.state == LOST else "",
    )


def look(
    logs: str, replicas: Sequence[ReplicaFacts], sizes: Mapping[str, Sequence[int]] | None = None
) -> list[Evidence]:
    """What replicas left behind: torchelastic's error file, and the ends of their output.

    Args:
        logs: folder of the replicas' folders.
        sizes: where the output of the last attempt begins, in stdout and in stderr, by ``role/number``.
    """
    from torchx.schedulers.kit.failures import Evidence

    found = []
    for replica in replicas:
        folder = replica_folder(logs, replica.role, replica.replica)
        error = _tail(os.path.join(folder, ERROR_FILE), 1 << 20)
        out, err = (sizes or {}).get(f"{replica.role}/{replica.replica}", (0, 0))
        stderr = _tail(os.path.join(folder, STDERR_LOG), start=err)
        stdout = _tail(os.path.join(folder, STDOUT_LOG), start=out)
        found.append(Evidence(error_file=error, stderr=stderr or "", stdout=stdout or ""))
    return found


def _tail(path: str, most: int = _TAIL_BYTES, start: int = 0) -> str | None:
    """The end of what stands in a file from ``start`` on, in whole lines; None when it cannot be read."""
    try:
        # what a job put there instead of a file must not be waited for
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as f:
            size = os.fstat(f.fileno()).st_size
            if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
                return None
            size -= min(start, size)
            f.seek(-min(size, most), os.SEEK_END)
            data = f.read(most)
    except OSError:
        return None
    if size > most:
        data = data[data.find(b"\n") + 1 :]
    return data.decode("utf-8", "replace")


def _url_path(path: str) -> str:
    if path.isascii() and not any(c in path for c in " %?#"):
        return path
    from urllib.parse import quote

    return quote(os.fsencode(path))
