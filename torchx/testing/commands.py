"""Command runners with scripted output and with faults, and output recorded from real systems."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torchx.errors import CommandError, TransientError
from torchx.schedulers.kit.commands import CommandRunner, Completed, LocalCommandRunner


@dataclass(frozen=True)
class Call:
    """One command that was run."""

    argv: list[str]
    stdin: str = ""
    timeout: float | None = None


class FakeCommandRunner:
    """Answers commands from a script and records them.

    The longest scripted prefix of a command's argv determines the answer. Several answers for one prefix are given in
    order, and the last one is repeated. A command without a scripted answer fails the test.

    >>> fake = FakeCommandRunner()
    >>> fake.on("sbatch", stdout="Submitted batch job 7\\n")
    >>> fake.run(["sbatch", "--parsable"], stdin="#!/bin/sh").stdout
    'Submitted batch job 7\\n'
    >>> fake.calls[0].stdin
    '#!/bin/sh'
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._scripts: dict[tuple[str, ...], list[Callable[[Call], Completed]]] = {}

    def on(
        self,
        *argv: str,
        stdout: str | Callable[[Call], str] = "",
        stderr: str = "",
        returncode: int = 0,
        raises: Exception | None = None,
    ) -> None:
        """Scripts one answer.

        Args:
            argv: first words of the command.
            stdout: the output, or a function of the call.
            raises: an exception to raise instead, for a lost connection or a missing program.
        """

        def answer(call: Call) -> Completed:
            if raises is not None:
                raise raises
            return Completed(call.argv, returncode, stdout(call) if callable(stdout) else stdout, stderr)

        self._scripts.setdefault(argv, []).append(answer)

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Like :meth:`torchx.schedulers.kit.commands.LocalCommandRunner.run`, but returns scripted answers."""
        call = Call(list(argv), stdin, timeout)
        self.calls.append(call)
        prefixes = [prefix for prefix in self._scripts if tuple(argv[: len(prefix)]) == prefix]
        if not prefixes:
            known = ", ".join(f"`{' '.join(prefix)}`" for prefix in self._scripts) or "nothing"
            raise AssertionError(f"no answer is scripted for `{' '.join(argv)}`; there are answers to {known}")
        answers = self._scripts[max(prefixes, key=len)]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return answer(call)

    def argvs(self, program: str) -> list[list[str]]:
        """All commands of one program that were run, in order."""
        return [c.argv for c in self.calls if c.argv[0] == program]


@dataclass
class _Fault:
    prefix: tuple[str, ...]
    times: int
    act: Callable[[Callable[[], Completed]], Completed]


class FaultyCommandRunner:
    """Runs commands with another runner, real or fake, and injects faults.

    A fault affects the next ``times`` commands that begin with the given words. Faults for the same command apply in
    the order in which they were added. All other commands run normally.

    Args:
        runner: runs the commands.

    >>> from torchx.testing import FakeCommandRunner
    >>> cluster = FakeCommandRunner()
    >>> cluster.on("qsub", stdout="7")
    >>> faulty = FaultyCommandRunner(cluster)
    >>> faulty.lose_answer("qsub")
    >>> faulty.run(["qsub", "job.sh"])
    Traceback (most recent call last):
        ...
    torchx.errors.TransientError: the answer of `qsub` was lost (a fault on purpose)
    >>> len(cluster.calls), faulty.run(["qsub", "job.sh"]).stdout
    (1, '7')
    """

    def __init__(self, runner: CommandRunner) -> None:
        self._runner = runner
        self._faults: list[_Fault] = []
        self.met = 0
        """How many commands were affected by a fault."""

    def lose_answer(self, *argv: str, times: int = 1) -> None:
        """Run the command but lose its response: TransientError, as of a broken connection."""

        def act(run: Callable[[], Completed]) -> Completed:
            run()
            raise TransientError(f"the answer of `{argv[0]}` was lost (a fault on purpose)")

        self._faults.append(_Fault(argv, times, act))

    def unreachable(self, *argv: str, times: int = 1) -> None:
        """Raise TransientError without running the command, like a refused connection."""

        def act(_: Callable[[], Completed]) -> Completed:
            raise TransientError(f"`{argv[0]}` cannot be reached (a fault on purpose)")

        self._faults.append(_Fault(argv, times, act))

    def fail(self, *argv: str, stderr: str, returncode: int = 1, times: int = 1) -> None:
        """Return a failure without running the command."""
        self._faults.append(_Fault(argv, times, lambda _: Completed(list(argv), returncode, "", stderr)))

    def missing(self, *argv: str, times: int = 1) -> None:
        """Raise CommandError with exit code 127, like the real runners where the program is missing."""

        def act(_: Callable[[], Completed]) -> Completed:
            raise CommandError(f"`{argv[0]}` is not installed, or not on PATH", argv=list(argv), returncode=127)

        self._faults.append(_Fault(argv, times, act))

    def garble(self, *argv: str, stdout: str | None = None, times: int = 1) -> None:
        """Run the command but replace its output by ``stdout``, or truncate it to its first half."""

        def act(run: Callable[[], Completed]) -> Completed:
            done = run()
            damaged = done.stdout[: len(done.stdout) // 2] if stdout is None else stdout
            return Completed(done.argv, done.returncode, damaged, done.stderr)

        self._faults.append(_Fault(argv, times, act))

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Like :meth:`torchx.schedulers.kit.commands.LocalCommandRunner.run`, with the faults."""

        def run() -> Completed:
            return self._runner.run(argv, stdin=stdin, timeout=timeout)

        for fault in self._faults:
            if tuple(argv[: len(fault.prefix)]) == fault.prefix:
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                self.met += 1
                return fault.act(run)
        return run()


class Recordings:
    """Output of real systems, stored as ``<folder>/<tool>/<version>/<name>``.

    Args:
        folder: usually ``tests/recorded``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     recordings = Recordings(folder)
    ...     _ = recordings.record("echo", "9.1", "hello.txt", ["echo", "hello ann"], hide={"ann": "user1"})
    ...     recordings.versions("echo"), recordings.read("echo", "9.1", "hello.txt")
    (['9.1'], 'hello user1\\n')
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def versions(self, tool: str) -> list[str]:
        """Return the recorded versions of a tool, for ``pytest.mark.parametrize``."""
        return sorted(v for v in os.listdir(os.path.join(self.folder, tool)) if not v.startswith("."))

    def record(
        self,
        tool: str,
        version: str,
        name: str,
        argv: Sequence[str],
        *,
        runner: CommandRunner | None = None,
        hide: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command of the real system, stores its output and return it.

        Args:
            runner: runs the command; None: on this machine.
            hide: names of people and machines -> their replacements. Only whole words are replaced.

        Raises:
            CommandError: the command failed. Script failures by hand, with their exit code.
        """
        text = (runner or LocalCommandRunner()).run(argv).check().stdout
        for secret, shown in (hide or {}).items():
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", shown.replace("\\", r"\\"), text)
        path = os.path.join(self.folder, tool, version, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(text)
        return text

    def read(self, tool: str, version: str, name: str) -> str:
        """Return one stored output."""
        with open(os.path.join(self.folder, tool, version, name), encoding="utf-8", newline="") as f:
            return f.read()
