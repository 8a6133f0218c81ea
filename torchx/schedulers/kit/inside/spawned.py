"""A process inside a replica that is a child of this process: the program itself, or a client of the backend."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from torchx.schedulers.kit.inside import CHUNK, STDERR, STDOUT, InsideProcess
from torchx.supervisor.proctree import RLIMIT_LOCKS

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

    from torchx.schedulers.kit.inside import Tty

_GRACE_S = 2.0
_LAST_WORDS_S = 0.3
_ENDED, _OTHER, _WAKE = 0, -1, -2  # events: the child has ended, the process beside it has ended, close() was called


class SpawnedProcess(InsideProcess):
    """A child of this process: the program itself, or a client of the backend that relays everything.

    It gets the resource limits of the process with pid ``beside``, and ends with it; 0: none.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        tty: Tty | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        beside: int = 0,
    ) -> None:
        import subprocess

        script = 'exec "$@"'
        if beside:
            script = f"kill -STOP $$; {script}"
        self._master = -1
        stream, slave = subprocess.PIPE, -1
        if tty is not None:
            self._master, slave = os.openpty()
            os.set_blocking(self._master, False)
            self.resize(tty.columns, tty.rows)
            stream = slave
            script = f": <{os.ttyname(slave)}; {script}"  # makes it the controlling terminal of the new session
        try:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", script, "sh", *argv],
                stdin=stream,
                stdout=stream,
                stderr=stream,
                env=env,
                cwd=cwd,
                start_new_session=True,
                bufsize=0,
            )
            if beside:
                _copy_limits(beside, self._child)
        except BaseException:
            if self._master >= 0:
                os.close(self._master)
            raise
        finally:
            if slave >= 0:
                os.close(slave)
        self._watch(beside)

    def _watch(self, beside: int) -> None:
        """Register the streams, and the events that end the output although other processes keep it open."""
        import selectors
        import threading

        self._select = selectors.DefaultSelector()
        self._closed = False
        self._reading = threading.RLock()
        self._wake, self._waker = os.pipe()
        self._select.register(self._wake, selectors.EVENT_READ, _WAKE)
        self._ended = -1
        self._patience_s: float | None = None
        self._other = -1
        if beside and sys.platform == "linux":
            with suppress(ProcessLookupError):
                self._other = os.pidfd_open(beside)
                self._select.register(self._other, selectors.EVENT_READ, _OTHER)
        if self._master < 0:
            assert self._child.stdout is not None
            assert self._child.stderr is not None
            self._select.register(self._child.stdout.fileno(), selectors.EVENT_READ, STDOUT)
            self._select.register(self._child.stderr.fileno(), selectors.EVENT_READ, STDERR)
            return
        self._select.register(self._master, selectors.EVENT_READ, STDOUT)
        if sys.platform == "linux":
            self._ended = os.pidfd_open(self._child.pid)
            self._select.register(self._ended, selectors.EVENT_READ, _ENDED)

    def write(self, data: bytes) -> None:
        left, stdin = memoryview(data), self._child.stdin
        if stdin is None and self._master < 0:
            raise BrokenPipeError("its terminal is closed")
        while left:
            try:
                left = left[self._write_to_terminal(left) if stdin is None else stdin.write(left) :]
            except ValueError:
                raise BrokenPipeError("its stdin is closed") from None

    def _write_to_terminal(self, data: memoryview) -> int:
        """Write some of ``data``. A blocking write would go on waiting when the child has ended."""
        import select

        ready = select.poll()
        ready.register(self._master, select.POLLOUT)
        while self._child.poll() is None:
            events = ready.poll(_LAST_WORDS_S * 1000)
            if events and events[0][1] & ~select.POLLOUT:  # no process has the terminal open any more
                break
            with suppress(BlockingIOError):
                return os.write(self._master, data)
        raise BrokenPipeError("its terminal is closed")

    def close_stdin(self) -> None:
        if self._master < 0 and self._child.stdin is not None:
            self._child.stdin.close()

    def read(self) -> tuple[int, bytes] | None:
        if not self._reading.acquire(timeout=-1 if self._patience_s is None else self._patience_s):
            return None  # another thread is reading
        try:
            return self._read()
        finally:
            self._reading.release()

    def _read(self) -> tuple[int, bytes] | None:
        while not self._closed and self._select.get_map().keys() - {self._other, self._wake}:
            ready = {key.data: key.fd for key, _ in self._select.select(self._patience_s)}
            if not ready or self._closed:  # it has ended but others keep its terminal open, or another thread closes it
                break
            stream = next(s for s in (STDOUT, STDERR, _OTHER, _ENDED) if s in ready)
            if stream == _OTHER:
                self._select.unregister(self._other)
                self.send_signal(signal.SIGKILL)
                continue
            if stream == _ENDED:  # its last output may come a moment later
                self._select.unregister(ready[stream])
                self._patience_s = _LAST_WORDS_S
                continue
            try:
                data = os.read(ready[stream], CHUNK)
            except BlockingIOError:
                continue
            except OSError:  # no process has the terminal open any more
                data = b""
            if data:
                return stream, data
            self._select.unregister(ready[stream])
            if self._ended >= 0 and self._patience_s is None:
                self._select.unregister(self._ended)
        return None

    def resize(self, columns: int, rows: int) -> None:
        import fcntl
        import struct
        import termios

        if self._master >= 0:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def settimeout(self, seconds: float | None) -> None:
        """Treats the output as ended if there is none for this time; None: waits for it."""
        self._patience_s = seconds

    def send_signal(self, number: int) -> None:
        if self._child.poll() is None:
            os.killpg(self._child.pid, number)

    def wait(self) -> int:
        code = self._child.wait()
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        import subprocess

        if not self._closed:
            self._closed = True
            os.close(self._waker)  # another thread may be reading
            with self._reading:
                self._let_go()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL):
            if self._child.poll() is not None:
                return
            self.send_signal(number)
            try:
                self._child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                continue

    def _let_go(self) -> None:
        self._select.close()
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()
        for fd in (self._master, self._ended, self._other, self._wake):
            if fd >= 0:
                os.close(fd)
        self._master = self._ended = self._other = -1


def _copy_limits(of: int, child: subprocess.Popen[bytes]) -> None:
    """Copy the limits of another process to a child that has stopped itself, and continues the child."""
    import resource

    os.waitpid(child.pid, os.WUNTRACED)
    numbers = {value for name, value in vars(resource).items() if name.startswith("RLIMIT_")}
    for number in [*sorted(numbers), RLIMIT_LOCKS]:
        try:
            resource.prlimit(child.pid, number, resource.prlimit(of, number))
        except (OSError, ValueError):  # the process has ended, or its limits are above ours
            continue
    os.kill(child.pid, signal.SIGCONT)
