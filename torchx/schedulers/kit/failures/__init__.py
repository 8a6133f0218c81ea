"""Finds out why a process failed from the text that it left behind, independent of backends."""

from __future__ import annotations

from torchx.util.records import dataclass

SHELL = 128  # shells and container engines report a signal as 128 plus its number


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a failed replica left behind, as text.

    Attributes:
        error_file: content of torchelastic's error file; None if there is none.
        stderr: its last 64 KiB.
        stdout: its last 64 KiB, if it is separate from stderr.
        said: messages of the system about the end of the process, such as those of slurmstepd, or ``OOMKilled``.
        reason: why it ended, in the backend's terms, if the facts do not show it; a sentence without full stop.
        kind: class of the cause if that reason determines it.
    """

    error_file: str | None = None
    stderr: str = ""
    stdout: str = ""
    said: str = ""
    reason: str = ""
    kind: str = ""


def signal_name(number: int) -> str:
    """Return the name of a signal, given as its number, the negative number, or 128 plus the number; empty if there is
    none.

    >>> signal_name(9), signal_name(-11), signal_name(143), signal_name(250)
    ('SIGKILL', 'SIGSEGV', 'SIGTERM', '')
    """
    import signal

    number = abs(number)
    try:
        return signal.Signals(number - SHELL if number > SHELL else number).name
    except ValueError:
        return f"signal {number}" if 0 < number <= signal.NSIG - 1 else ""
