"""A process inside a replica, run to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchx.schedulers.inside import STDERR, STDOUT

if TYPE_CHECKING:
    from torchx.schedulers.inside import InsideProcess

_PYTHON = (
    'p=$(command -v python3 || command -v python) || { echo "no python there" >&2; exit 127; }; exec "$p" -u -c "$1"'
)


class Ran(NamedTuple):
    """A process inside a replica that has ended: its exit code (128 and the number for a signal), its output."""

    exit_code: int
    stdout: bytes
    stderr: bytes


def python_words(program: str) -> list[str]:
    """The command that runs a program, whose text goes along, with the Python of a replica."""
    return ["sh", "-c", _PYTHON, "sh", program]


def run(process: InsideProcess, stdin: bytes = b"") -> Ran:
    """Waits for the end of a process that reads ``stdin``; it is ended if the wait is broken off."""
    import threading

    def feed() -> None:
        try:
            if stdin:
                process.write(stdin)
            process.close_stdin()
        except OSError:
            return  # it does not read all of it

    with process:
        feeding = threading.Thread(target=feed, daemon=True)
        feeding.start()
        found: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        while (piece := process.read()) is not None:
            found[piece[0]].append(piece[1])
        return Ran(process.wait(), b"".join(found[STDOUT]), b"".join(found[STDERR]))
