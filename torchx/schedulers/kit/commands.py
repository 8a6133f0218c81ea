"""Runs the commands of a backend's system through an injected runner.

A backend renders an argv and parses the output. Its :class:`CommandRunner` determines where the command runs: on this
machine, on a login node over SSH, or nowhere, in a test.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Protocol

from torchx.errors import CommandError, TransientError
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


MAX_ERRORS = 5


class CommandRunner(Protocol):
    """Runs one command until it exits. See :class:`LocalCommandRunner`."""

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed: ...


class ConnectedRunner(CommandRunner):
    """A runner over an unreliable connection, which can detect that a command ran although its response was lost."""

    def run_once(self, argv: Sequence[str], *, token: str, stdin: str = "", timeout: float | None = None) -> Completed:
        """Run a command at most once, however often this method is called with the same token."""
        raise NotImplementedError


@dataclass(frozen=True)
class Completed:
    """The result of a command."""

    argv: list[str]
    returncode: int = 0
    stdout: str = ""
    stderr: str = ""

    def check(self) -> Completed:
        """Return itself if the command succeeded.

        Raises:
            CommandError: the command failed; the message contains what its stderr tells.
        """
        if self.returncode == 0:
            return self
        said = telling(self.stderr.strip() or self.stdout)
        raise CommandError(
            f"`{program_of(self.argv)}` failed with exit code {self.returncode}: {said}",
            argv=self.argv,
            returncode=self.returncode,
            stderr=self.stderr,
        )


def program_of(argv: Sequence[str]) -> str:
    """Return the program that a command runs, without ``env`` and its words.

    >>> program_of(["env", "-u", "A", "B=c", "squeue", "--me"])
    'squeue'
    """
    words = iter(argv)
    for word in words:
        if word == "-u":
            next(words, "")
        elif word != "env" and "=" not in word:
            return word
    return argv[0] if argv else ""


def last_line(text: str, otherwise: str = "it said nothing") -> str:
    """Return the last line of a command's output that is not blank.

    >>> last_line("a\\n b \\n\\n"), last_line("")
    ('b', 'it said nothing')
    """
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else otherwise


def telling(text: str, otherwise: str = "it said nothing") -> str:
    """Return the lines of a command's output that tell why it failed: its errors, else the first line and the last one.

    >>> telling("x: error: Script has DOS breaks\\nx: error: instead of expected ones.\\n")
    'x: error: Script has DOS breaks; x: error: instead of expected ones.'
    >>> telling("x: unrecognized option '-y'\\n  -z  what z is\\nTry x --help")
    "x: unrecognized option '-y'; Try x --help"
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(?:error|fatal):", line, re.IGNORECASE)]
    return "; ".join(dict.fromkeys(errors[:MAX_ERRORS] or [*lines[:1], *lines[-1:]])) or otherwise


class LocalCommandRunner:
    """Runs commands on this machine, without a shell, and in the C locale so that answers can be parsed.

    >>> LocalCommandRunner().run(["cat"], stdin="hello").stdout
    'hello'

    Args:
        environ: returns the environment of the commands.
    """

    def __init__(self, environ: Callable[[], Mapping[str, str]] = lambda: os.environ) -> None:
        self.environ = environ

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Run ``argv`` until it exits. A non-zero exit code is returned, not raised.

        Args:
            timeout: seconds.

        Raises:
            CommandError: the program does not exist or cannot be started.
            TransientError: the command timed out and was killed.
        """
        import subprocess

        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**self.environ(), "LC_ALL": "C"},
            )
            with process:
                try:
                    stdout, stderr = process.communicate(stdin, timeout=timeout)
                except BaseException as e:
                    if isinstance(e, subprocess.TimeoutExpired):
                        _end_children(process.pid)
                    process.kill()
                    raise
        except FileNotFoundError as e:
            raise CommandError(
                f"`{argv[0]}` is not installed, or not on PATH",
                argv=list(argv),
                returncode=127,
                hint="run this where the scheduler's own commands work",
            ) from e
        except subprocess.TimeoutExpired as e:
            said = telling((e.stderr or b"").decode("utf-8", "replace") if isinstance(e.stderr, bytes) else "", "")
            late = f"`{program_of(argv)}` did not answer within {timeout:.3g} s"
            raise TransientError(f"{late}: {said}" if said else late) from e
        except (OSError, ValueError) as e:
            raise CommandError(f"`{argv[0]}` cannot be started: {e}", argv=list(argv), returncode=126) from e
        return Completed(list(argv), process.returncode, stdout, stderr)


def _end_children(pid: int) -> None:
    """Kill what a script has started: a submission that it left behind would be repeated here."""
    import signal

    from torchx.supervisor import proctree

    proctree.send_all(proctree.descendants(proctree.snapshot(), {pid}), signal.SIGKILL)
