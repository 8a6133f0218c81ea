"""Fault injection between a backend and the commands of its system."""

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
        """The command runs but its response is lost: raises TransientError, like a broken connection."""

        def act(run: Callable[[], Completed]) -> Completed:
            run()
            raise TransientError(f"the answer of `{argv[0]}` was lost (a fault on purpose)")

        self._faults.append(_Fault(argv, times, act))

    def unreachable(self, *argv: str, times: int = 1) -> None:
        """The command does not run: raises TransientError, like a refused connection."""

        def act(_: Callable[[], Completed]) -> Completed:
            raise TransientError(f"`{argv[0]}` cannot be reached (a fault on purpose)")

        self._faults.append(_Fault(argv, times, act))

    def fail(self, *argv: str, stderr: str, returncode: int = 1, times: int = 1) -> None:
        """The command does not run and returns a failure."""
        self._faults.append(_Fault(argv, times, lambda _: Completed(list(argv), returncode, "", stderr)))

    def missing(self, *argv: str, times: int = 1) -> None:
        """The program is not installed: raises CommandError with exit code 127, like the real runners."""

        def act(_: Callable[[], Completed]) -> Completed:
            raise CommandError(f"`{argv[0]}` is not installed, or not on PATH", argv=list(argv), returncode=127)

        self._faults.append(_Fault(argv, times, act))

    def garble(self, *argv: str, stdout: str | None = None, times: int = 1) -> None:
        """The command runs but its output is replaced by ``stdout``, or truncated to its first half."""

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
