"""Why a replica failed, out of the files that it left: torchelastic's error file, else the end of its stderr."""

from __future__ import annotations

import os

from torchx.specs.failures import Failure, parse_failure

_TAIL_BYTES = 1 << 16
_MAX_LINES = 40
# What torch 2.x, gloo and NCCL say in a rank whose peer is gone.
_LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "DistNetworkError",
    "RendezvousConnectionError",
    "RendezvousClosedError",
    "ChildFailedError",
    "SignalException",
    "remote process exited",
    "ncclRemoteError",
    "Watchdog caught collective operation timeout",
)
_TRACEBACK = "Traceback (most recent call last):"


def failure_of(
    error_file: str, stderr_file: str, *, exit_code: int | None, ended: float = 0, signal_name: str = ""
) -> Failure:
    """What is known of a failed replica.

    Args:
        error_file: ``TORCHELASTIC_ERROR_FILE`` of the replica; it need not exist.
        stderr_file: what it wrote to stderr; it need not exist.
        exit_code: None when a signal ended it, or it is not known.
        ended: when, in seconds since the epoch.
        signal_name: name of the signal that ended it; empty when none did.
    """
    return failure_in(_read(error_file), _tail(stderr_file), exit_code=exit_code, ended=ended, signal_name=signal_name)


def failure_in(
    error: str | None, tail: str, *, exit_code: int | None, ended: float = 0, signal_name: str = ""
) -> Failure:
    """As :func:`failure_of`, of texts that were read elsewhere.

    Args:
        error: what is in the error file; None when there is none.
        tail: the end of stderr.
    """
    reported = parse_failure(error)
    if reported is not None and (reported.traceback or not _says_more(tail)):
        return Failure(
            reported.message, exit_code, signal_name, reported.traceback or tail, reported.timestamp or ended
        )
    traceback, message = _last_words(tail)
    return Failure(message, exit_code, signal_name, traceback, ended)


def is_aftermath(failure: Failure) -> bool:
    """Whether a replica seems to have failed only because another had: it lost its peer, or was told to end.

    >>> is_aftermath(Failure("RuntimeError: Connection closed by peer [n1]:4")), is_aftermath(Failure("KeyError: 1"))
    (True, False)
    """
    return failure.signal == "SIGTERM" or any(words in failure.message for words in _LOST_PEER)


def _says_more(tail: str) -> bool:
    return _TRACEBACK in tail


def _last_words(tail: str) -> tuple[str, str]:
    """The Python traceback in the end of stderr, or its last lines; and the line that says what happened."""
    lines = tail.splitlines()
    start = _cause(lines)
    if start is not None:
        # torchrun puts `[trainer0]:` or `[0]:[rank2]:` before the lines of a worker; those of others come in between
        prefix = lines[start].partition(_TRACEBACK)[0]
        shown: list[str] = []
        for line in lines[start:]:
            if line.startswith(prefix):
                shown.append(line[len(prefix) :])
                # the line that ends a traceback is the first that is not indented
                if len(shown) > 1 and shown[-1].strip() and not shown[-1].startswith((" ", "\t")):
                    return "\n".join(shown), shown[-1].strip()
    words = [line for line in lines if line.strip()][-_MAX_LINES:]
    return "\n".join(words), words[-1].strip() if words else ""


def _cause(lines: list[str]) -> int | None:
    """Where the traceback begins that explains the failure.

    It is the last one; but where torchrun reports about its workers, it is that of the worker that torchrun calls the
    root cause, or else the first of a worker: torchrun's own traceback only tells of others, and workers that lost
    their peer fail after it.
    """
    starts = [i for i, line in enumerate(lines) if _TRACEBACK in line]
    report = next((i for i, line in enumerate(lines) if "ChildFailedError" in line), None)
    if report is None:
        return starts[-1] if starts else None
    workers = [i for i in starts if i < report][:-1]  # the last one before the report is torchrun's own
    for mark in _root_cause_marks(lines[report:]):
        for i in reversed(workers):
            if mark in lines[i]:
                return i
    return workers[0] if workers else None


def _root_cause_marks(report: list[str]) -> list[str]:
    """How the lines of the worker are marked that torchrun calls the root cause: by its rank, or its local rank."""
    at = next((i for i, line in enumerate(report) if "Root Cause" in line), None)
    if at is not None:
        for line in report[at:]:
            words = line.replace("(", " ").replace(")", " ").split()
            if words[:2] == ["rank", ":"] and len(words) >= 5:
                return [f"[rank{words[2]}]:", f"{words[4]}]:"]
    return []


def _tail(path: str) -> str:
    try:
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            f.seek(max(0, size - _TAIL_BYTES))
            data = f.read(_TAIL_BYTES)
    except OSError:
        return ""
    if size > _TAIL_BYTES:
        data = data[data.find(b"\n") + 1 :]
    return data.decode("utf-8", "replace")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(1 << 20)
    except OSError:
        return None
