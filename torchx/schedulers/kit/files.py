"""The few things that a command-driven backend does with the files of its jobs, here or on another machine."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from torchx.errors import BackendError
from torchx.settings import make_private, torchx_home


class Files(Protocol):
    """Files of the machine where the scheduler's commands run. See :class:`LocalFiles`, method by method."""

    wait_s: float

    def home(self) -> str: ...
    def torchx_home(self, *parts: str) -> str: ...
    def cwd(self) -> str: ...
    def make_folder(self, path: str) -> None: ...
    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None: ...
    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None: ...
    def sizes(self, paths: Iterable[str]) -> dict[str, int | None]: ...
    def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]: ...
    def names(self, folder: str) -> list[str]: ...
    def remove(self, folder: str) -> None: ...


MOST_GROWN = 1 << 20
"""The most bytes of one file that one call of ``grown`` returns; the rest comes with the next."""

_SOONEST_S = 0.02
_LATEST_S = 0.25


class LocalFiles:
    """Files of this machine, or of a file system that it shares. Paths are absolute.

    Every method raises BackendError where the system refuses, with the path and the reason.
    """

    wait_s: float = 0.0
    """How long a reader that looks for news often waits in one call of :meth:`grown`, seconds: where a call is dear."""

    def home(self) -> str:
        """The user's home folder."""
        return os.path.expanduser("~")

    def torchx_home(self, *parts: str) -> str:
        """A path below torchx's own folder; nothing is created."""
        return torchx_home(*parts)

    def cwd(self) -> str:
        """The folder that commands are run in: where a job runs unless it names another."""
        return os.getcwd()

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it; new ones are the user's alone. Quiet when it is there."""
        with _asked_to("be made", path):
            make_private(path)

    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a file, whole or not at all; the folder must be there."""
        temporary = f"{path}.{os.getpid()}.new"
        with _asked_to("be written", path):
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as f:
                f.write(data)
            os.replace(temporary, path)

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None:
        """What is in a file from ``offset`` on, at most ``size`` bytes; None when there is no such file.

        A negative offset counts from the end of the file.
        """
        with (
            _asked_to("be read", path),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
            # what a job put there instead of a file must not be waited for
            open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as f,
        ):
            found = os.fstat(f.fileno())
            if stat.S_ISREG(found.st_mode):
                f.seek(offset if offset >= 0 else max(0, found.st_size + offset))
                return f.read(size)
        return None

    def sizes(self, paths: Iterable[str]) -> dict[str, int | None]:
        """Size of each file, bytes; None when there is no such file."""
        found: dict[str, int | None] = {}
        for path in paths:
            try:
                found[path] = os.stat(path).st_size
            except OSError:
                found[path] = None
        return found

    def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
        """What came into files after the offsets, at most :data:`MOST_GROWN` bytes of each; only files that have grown.

        Args:
            offsets: path to the number of bytes that are known; negative: only so many bytes at the end are wanted.
            wait_s: seconds to wait for the first news; 0: do not.
        """
        deadline = time.monotonic() + wait_s
        pause = _SOONEST_S
        while True:
            news = {path: data for path, at in offsets.items() if (data := self.read(path, at, MOST_GROWN))}
            left = deadline - time.monotonic()
            if news or left <= 0:
                return news
            time.sleep(min(pause, left))
            pause = min(pause * 1.5, _LATEST_S)

    def names(self, folder: str) -> list[str]:
        """What is in a folder; nothing when there is none."""
        with _asked_to("be read", folder), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return os.listdir(folder)
        return []

    def remove(self, folder: str) -> None:
        """Remove a folder with all in it, or one file. Quiet when it is not there; links are not followed."""
        import shutil

        with _asked_to("be removed", folder), contextlib.suppress(FileNotFoundError):
            if os.path.isdir(folder) and not os.path.islink(folder):
                shutil.rmtree(folder)
            else:
                os.unlink(folder)


@contextlib.contextmanager
def _asked_to(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise BackendError(f"`{path}` cannot {what}: {e.strerror or e}") from e
