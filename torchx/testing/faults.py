"""Trouble between a backend and the commands of its system, made on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchx.errors import CommandError, TransientError
from torchx.schedulers.kit.commands import CommandRunner, Completed


@dataclass
class _Fault:
    prefix: tuple[str, ...]
    times: int
    act: Callable[[Callable[[], Completed]], Completed]


class FaultyCommandRunner:
    """Runs commands by another runner, real or fake, and injects the faults that it was given.

    A fault is for commands that begin with the given words, for the next ``times`` of them; the first that was asked
    for comes first. After that, and for all other commands, nothing is in the way.

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
        """How many faults commands have met."""

    def lose_answer(self, *argv: str, times: int = 1) -> None:
        """The command runs, and its answer does not come: TransientError, as of a connection that breaks."""

        def act(run: Callable[[], Completed]) -> Completed:
            run()
            raise TransientError(f"the answer of `{argv[0]}` was lost (a fault on purpose)")

        self._faults.append(_Fault(argv, times, act))

    def unreachable(self, *argv: str, times: int = 1) -> None:
        """The command does not run: TransientError, as of a connection that cannot be made."""

        def act(_: Callable[[], Completed]) -> Completed:
            raise TransientError(f"`{argv[0]}` cannot be reached (a fault on purpose)")

        self._faults.append(_Fault(argv, times, act))

    def fail(self, *argv: str, stderr: str, returncode: int = 1, times: int = 1) -> None:
        """The command does not run, and answers with a failure."""
        self._faults.append(_Fault(argv, times, lambda _: Completed(list(argv), returncode, "", stderr)))

    def missing(self, *argv: str, times: int = 1) -> None:
        """The program is not there: CommandError with exit code 127, as the real runners say it."""

        def act(_: Callable[[], Completed]) -> Completed:
            raise CommandError(f"`{argv[0]}` is not installed, or not on PATH", argv=list(argv), returncode=127)

        self._faults.append(_Fault(argv, times, act))

    def garble(self, *argv: str, stdout: str | None = None, times: int = 1) -> None:
        """The command runs, and its output arrives damaged: ``stdout``, or the first half of what it was."""

        def act(run: Callable[[], Completed]) -> Completed:
            done = run()
            damaged = done.stdout[: len(done.stdout) // 2] if stdout is None else stdout
            return Completed(done.argv, done.returncode, damaged, done.stderr)

        self._faults.append(_Fault(argv, times, act))

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Like :meth:`torchx.schedulers.kit.commands.LocalCommandRunner.run`, through the faults."""

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
