"""Sleeps until a file in a folder changes, with inotify instead of polling."""

from __future__ import annotations

import contextlib
import os
import sys
import time

_WRITTEN = 0x2 | 0x80 | 0x100 | 0x200  # IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE of <sys/inotify.h>
_MAX_SLEEP_S = 2.0  # inotify does not report changes that another machine makes in a shared folder


class FolderWatch:
    """Watches a folder for changes by this machine; see ``inotify(7)``. Without it, polls every ``tick_s`` seconds.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> watch = FolderWatch(folder)
    >>> open(f"{folder}/x", "w").close()
    >>> watch.wait(10)
    >>> watch.close()
    """

    _fd = -1  # for `__del__`, if Ctrl-C interrupts `__init__`

    def __init__(self, path: str, *, tick_s: float = 0.2) -> None:
        self._tick_s = tick_s
        self._fd = _open(path)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a file changes or has changed since the last call, at most ``timeout_s``; may return early."""
        if self._fd < 0:
            time.sleep(min(timeout_s, self._tick_s))
            return
        import select

        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(min(timeout_s, _MAX_SLEEP_S) * 1000):
            with contextlib.suppress(BlockingIOError):  # another thread was faster
                os.read(self._fd, 1 << 16)

    def close(self) -> None:
        """Stop watching; later waits become short sleeps."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def _open(path: str) -> int:
    """Return a file descriptor that becomes readable on changes; -1 if inotify is not available."""
    if sys.platform != "linux":
        return -1
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    except (OSError, AttributeError):
        return -1
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _WRITTEN) < 0:
        os.close(fd)
        return -1
    return fd
