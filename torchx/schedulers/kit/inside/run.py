"""Runs a process inside a replica until it exits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torchx.schedulers.kit.inside import STDERR, STDOUT

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside import InsideProcess

_PYTHON = (
    'p=$(command -v python3 || command -v python) || { echo "no python there" >&2; exit 127; }; exec "$p" -I -u -c "$1"'
)


class Ran(NamedTuple):
    """The result of a process inside a replica: its exit code (128 plus the number for a signal) and its output."""

    exit_code: int
    stdout: bytes
    stderr: bytes


def python_words(program: str) -> list[str]:
    """Return the command that runs the source of a program with the Python of a replica."""
    return ["sh", "-c", _PYTHON, "sh", program]


def run(process: InsideProcess, stdin: bytes = b"") -> Ran:
    """Feed ``stdin`` to a process and wait until it exits. Ends the process if the wait is interrupted."""
    import threading

    def feed() -> None:
        try:
            if stdin:
                process.write(stdin)
            process.close_stdin()
        except OSError:
            return  # the process does not read all of it

    with process:
        feeding = threading.Thread(target=feed, daemon=True)
        feeding.start()
        found: dict[int, list[bytes]] = {STDOUT: [], STDERR: []}
        while (piece := process.read()) is not None:
            found[piece[0]].append(piece[1])
        return Ran(process.wait(), b"".join(found[STDOUT]), b"".join(found[STDERR]))
