"""Does something in a fork that may be killed, hang or end itself, and says how it ended."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from typing import NamedTuple

DOCUMENTED = frozenset((0, 1, 2, 3, 4, 5, 6, 74, 130, 141))
"""The exit codes of ``torchx --help`` but that of a bug."""

HANG_S = 60.0
_MAX_SHOWN = 600


class Ended(NamedTuple):
    """How it ended: its exit code, -n for signal n; None when it did not, and was killed."""

    code: int | None
    out: str
    err: str

    def problem(self) -> str:
        """What no user should see; empty when there is nothing."""
        if self.code is None:
            return f"hangs: {self._tail()}"
        if "Traceback (most recent call last)" in self.err:
            return f"traceback: {self._tail()}"
        return "" if self.code in DOCUMENTED else f"exit code {self.code}: {self._tail()}"

    def _tail(self) -> str:
        return (self.err or self.out).strip()[-_MAX_SHOWN:]


class Call:
    """``work`` in a fork with a session and an environment of its own.

    Args:
        work: returns an exit code, or None for 0.
        hasty: no pause between two attempts of ours takes more than a hundredth of a second.
        output: where stdout and stderr go; to files when None.
    """

    def __init__(
        self,
        work: Callable[[], int | None],
        env: Mapping[str, str] | None = None,
        *,
        hasty: bool = True,
        output: int | None = None,
    ) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  # closed by `ended`
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if not self.pid:
            self._work(work, env or {}, hasty=hasty, output=output)

    def _work(self, work: Callable[[], int | None], env: Mapping[str, str], *, hasty: bool, output: int | None) -> None:
        code = 99
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDONLY)
            files = (self._out.fileno(), self._err.fileno()) if output is None else (output, output)
            for fd, of in enumerate((null, *files)):
                os.dup2(of, fd)
            # As a new process has them.
            vars(sys)["__stdout__"] = sys.stdout = _stream(1, "strict")
            vars(sys)["__stderr__"] = sys.stderr = _stream(2, "backslashreplace")
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ.update(env)
            if hasty:
                real = time.sleep
                time.sleep = lambda seconds: real(min(float(seconds), 0.01))
            code = work() or 0
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else 1 if e.code else 0
        except BaseException:
            traceback.print_exc()
        finally:
            try:
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def ended(self, within_s: float = HANG_S) -> Ended:
        """How it ended; what is left of its session is killed."""
        fd = os.pidfd_open(self.pid)
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        hangs = not poll.poll(within_s * 1000)
        os.close(fd)
        if hangs:
            os.killpg(self.pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        texts = []
        for file in (self._out, self._err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
            file.close()
        return Ended(None if hangs else code, *texts)


def _stream(fd: int, errors: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.FileIO(fd, "w", closefd=False), "utf-8", errors, write_through=True)


def torchx(argv: list[str], env: Mapping[str, str], *, cwd: str | None = None, hasty: bool = True) -> Call:
    """The command line in a fork."""

    def work() -> int:
        from torchx.cli.main import main

        if cwd is not None:
            os.chdir(cwd)
        main(argv)
        return 0

    return Call(work, env, hasty=hasty)
