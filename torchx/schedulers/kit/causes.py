"""The former door to ``kit/failures.py``; it goes when its callers have moved."""

from __future__ import annotations

from torchx.schedulers.kit.failures import Evidence, is_aftermath, read_failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.specs.failures import Failure

__all__ = ["failure_in", "failure_of", "is_aftermath"]

_TAIL_BYTES = 1 << 16


def failure_of(
    error_file: str, stderr_file: str, *, exit_code: int | None, ended: float = 0, signal_name: str = ""
) -> Failure:
    """What is known of a failed replica, out of its files; they need not exist."""
    error, tail = _read(error_file), _tail(stderr_file)
    return failure_in(error, tail, exit_code=exit_code, ended=ended, signal_name=signal_name)


def failure_in(
    error: str | None, tail: str, *, exit_code: int | None, ended: float = 0, signal_name: str = ""
) -> Failure:
    """As :func:`failure_of`, of texts that were read elsewhere."""
    return read_failure(Evidence(error_file=error, stderr=tail), exit_code=exit_code, signal=signal_name, ended=ended)


def _tail(path: str) -> str:
    import os

    try:
        with open(path, "rb") as f:
            size = os.fstat(f.fileno()).st_size
            f.seek(max(0, size - _TAIL_BYTES))
            data = f.read(_TAIL_BYTES)
    except OSError:
        return ""
    return (data if size <= _TAIL_BYTES else data[data.find(b"\n") + 1 :]).decode("utf-8", "replace")


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read(1 << 20)
    except OSError:
        return None
