"""Why a process failed, read from what it left behind: texts in, failures out; nothing here knows a backend."""

from __future__ import annotations

from torchx.util.records import dataclass

SHELL = 128  # and the number of a signal is how shells and engines report it


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a failed replica left behind, as text.

    Attributes:
        error_file: torchelastic's error file; None where there is none.
        stderr: its end, up to 64 KiB.
        stdout: its end, where it is a stream of its own.
        said: what the system said of the end of the process: slurmstepd's words, ``OOMKilled``, ...
        reason: why it ended, in the backend's own terms, where only the look shows it; a sentence without full stop.
        kind: class of the cause where that reason decides it.
    """

    error_file: str | None = None
    stderr: str = ""
    stdout: str = ""
    said: str = ""
    reason: str = ""
    kind: str = ""


def signal_name(number: int) -> str:
    """Name of a signal: by its number, by that number negative, or by 128 and its number, as shells report it.

    Empty where no signal has that number.

    >>> signal_name(9), signal_name(-11), signal_name(143), signal_name(250)
    ('SIGKILL', 'SIGSEGV', 'SIGTERM', '')
    """
    import signal

    number = abs(number)
    try:
        return signal.Signals(number - SHELL if number > SHELL else number).name
    except ValueError:
        return f"signal {number}" if 0 < number <= signal.NSIG - 1 else ""
