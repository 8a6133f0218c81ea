"""Sleeps until something is written in a folder: the kernel says so, and nobody has to look again and again."""

from __future__ import annotations

import contextlib
import os
import sys
import time

_CLOEXEC, _NONBLOCK = os.O_CLOEXEC, os.O_NONBLOCK
_WRITTEN = 0x2 | 0x80 | 0x100 | 0x200  # IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE of <sys/inotify.h>


class FolderWatch:
    """Hears of files that are written in one folder, on this machine; see ``inotify(7)``.

    Args:
        path: the folder.
        tick_s: how long a sleep takes where the kernel has no such service, seconds.
        most_s: how long a sleep takes when nothing is heard: another machine may have written into a shared folder.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> watch = FolderWatch(folder)
    >>> open(f"{folder}/x", "w").close()
    >>> watch.wait(10)
    >>> watch.close()
    """

    _fd = -1  # Ctrl-C may come before there is one

    def __init__(self, path: str, *, tick_s: float = 0.2, most_s: float = 2.0) -> None:
        self._tick_s = tick_s
        self._most_s = most_s
        self._fd = _open(path)

    def wait(self, most_s: float) -> None:
        """Sleeps until something was written since the last call, or for so many seconds; it may be less."""
        if self._fd < 0:
            time.sleep(min(most_s, self._tick_s))
            return
        import select

        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(min(most_s, self._most_s) * 1000):
            with contextlib.suppress(BlockingIOError):  # another thread has read it
                os.read(self._fd, 1 << 16)

    def close(self) -> None:
        """Hears no more; waits become short sleeps."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


def _open(path: str) -> int:
    """A file descriptor that becomes readable; -1 where there is none to be had."""
    if sys.platform != "linux":
        return -1
    import ctypes

    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = int(libc.inotify_init1(_CLOEXEC | _NONBLOCK))
    except (OSError, AttributeError):
        return -1
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _WRITTEN) < 0:
        os.close(fd)
        return -1
    return fd
