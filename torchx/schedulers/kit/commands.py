"""How a backend runs the commands of its system: through a runner that is handed to it.

A backend renders an argv and parses the answer. Where the command really runs (here, on a login node over
SSH, or nowhere, in a test) is the business of its :class:`CommandRunner`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from torchx.errors import CommandError, TransientError
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence


class CommandRunner(Protocol):
    """Runs one command to its end. See :class:`LocalCommandRunner`."""

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed: ...


class ConnectedRunner(CommandRunner):
    """A runner over a connection that may break: it finds out whether a command was run whose answer was lost."""

    def run_once(self, argv: Sequence[str], *, token: str, stdin: str = "", timeout: float | None = None) -> Completed:
        """Runs a command that must not run twice, however often this is called with the same token."""
        raise NotImplementedError


@dataclass(frozen=True)
class Completed:
    """A command that has ended.

    >>> Completed(["true"]).check().stdout
    ''
    """

    argv: list[str]
    returncode: int = 0
    stdout: str = ""
    stderr: str = ""

    def check(self) -> Completed:
        """Itself, when the command succeeded.

        Raises:
            CommandError: it did not; the last line of its stderr says why.
        """
        if self.returncode == 0:
            return self
        said = last_line(self.stderr.strip() or self.stdout)
        raise CommandError(
            f"`{self.argv[0]}` failed with exit code {self.returncode}: {said}",
            argv=self.argv,
            returncode=self.returncode,
            stderr=self.stderr,
        )


def last_line(text: str, otherwise: str = "it said nothing") -> str:
    """What a command said last.

    >>> last_line("a\\n b \\n\\n"), last_line("")
    ('b', 'it said nothing')
    """
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else otherwise


class LocalCommandRunner:
    """Runs commands on this machine, without a shell, and in the C locale so that answers can be parsed.

    >>> LocalCommandRunner().run(["cat"], stdin="hello").stdout
    'hello'
    """

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Runs ``argv`` to its end; a failure of the command itself is in the answer.

        Args:
            timeout: seconds.

        Raises:
            CommandError: the program is not there or cannot be started.
            TransientError: it did not end in time, and was killed.
        """
        import subprocess

        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        except FileNotFoundError as e:
            raise CommandError(
                f"`{argv[0]}` is not installed, or not on PATH",
                argv=list(argv),
                returncode=127,
                hint="run this where the scheduler's own commands work",
            ) from e
        except subprocess.TimeoutExpired as e:
            raise TransientError(f"`{argv[0]}` did not answer within {timeout:g} s") from e
        except (OSError, ValueError) as e:
            raise CommandError(f"`{argv[0]}` cannot be started: {e}", argv=list(argv), returncode=126) from e
        return Completed(list(argv), done.returncode, done.stdout, done.stderr)
