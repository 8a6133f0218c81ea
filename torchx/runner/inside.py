"""Processes inside replicas: started by whoever knows how, and run to their end."""

from __future__ import annotations

from collections import namedtuple

from torchx.errors import NotSupportedError
from torchx.schedulers.inside import STDERR, STDOUT
from torchx.schedulers.kit.abilities import Enters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NamedTuple

    from torchx.schedulers.api import Scheduler
    from torchx.schedulers.inside import InsideProcess, Tty

    class Ran(NamedTuple):
        """A process inside a replica that has ended: its exit code (128 and the number for a signal), its output."""

        exit_code: int
        stdout: bytes
        stderr: bytes
else:
    Ran = namedtuple("Ran", "exit_code stdout stderr")

_PYTHON = (
    'p=$(command -v python3 || command -v python) || { echo "no python there" >&2; exit 127; }; exec "$p" -u -c "$1"'
)


def python_words(program: str) -> list[str]:
    """The command that runs a program, whose text goes along, with the Python of a replica."""
    return ["sh", "-c", _PYTHON, "sh", program]


def enter(
    backend: Scheduler[Any], app_id: str, replica: tuple[str, int], argv: Sequence[str], tty: Tty | None
) -> InsideProcess:
    """Starts ``argv`` inside a replica.

    Raises:
        NotSupportedError: this scheduler cannot do that.
    """
    if not isinstance(backend, Enters):
        raise NotSupportedError(
            f"scheduler `{backend.backend}` cannot run a command inside a replica",
            hint="`torchx status` says on which host it runs",
        )
    return backend.enter(app_id, *replica, list(argv), tty)


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
