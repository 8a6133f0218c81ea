"""What checks find: good, bad, or nothing that can be told from here. Only what is certain is bad."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torchx.errors import CommandError, MissingDependencyError, TorchXError, TransientError
from torchx.util.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    _T = TypeVar("_T")

GOOD, BAD, UNKNOWN = "good", "bad", "unknown"
NOT_INSTALLED = 127
_LITTLE_DISK, _NO_DISK = 1 << 30, 1 << 26


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        verdict: :data:`GOOD`; :data:`BAD`, which is certain; or :data:`UNKNOWN`: it cannot be told from here.
        what: what was looked at.
        said: how it is, in one line.
        fix: what to do about it, commands in backticks; empty when there is nothing to do.
    """

    verdict: str
    what: str
    said: str
    fix: str = ""


def bad(said: str, fix: str = "") -> Finding:
    """Something certain, about what its check is about."""
    return Finding(BAD, "", said, fix)


def doubt(said: str, fix: str = "") -> Finding:
    """Something that cannot be told from here, about what its check is about."""
    return Finding(UNKNOWN, "", said, fix)


@dataclass(frozen=True)
class Check:
    """A question that was not asked yet.

    >>> Check("disk", lambda: "7 GiB are free").findings()
    [Finding(verdict='good', what='disk', said='7 GiB are free', fix='')]

    Attributes:
        what: what it is about.
        ask: returns what is good, in a line, or findings.
        certain: the errors that are bad. Others cannot be told, and neither can those that may pass.
        fix: what to do about an error that has no hint.
    """

    what: str
    ask: Callable[[], str | Finding | Iterable[Finding]]
    certain: tuple[type[Exception], ...] = ()
    fix: str = ""

    def findings(self) -> list[Finding]:
        """Asks."""
        try:
            found = self.ask()
            if isinstance(found, str):
                return [Finding(GOOD, self.what, found)]
            return [replace(f, what=f.what or self.what) for f in ([found] if isinstance(found, Finding) else found)]
        except TorchXError as e:
            return [self.failed(e)]
        except Exception as e:  # a check that fails must not keep anybody from running a job
            return [Finding(UNKNOWN, self.what, f"the check itself failed: {type(e).__name__}: {e}")]

    def failed(self, error: TorchXError) -> Finding:
        """What an error says. That a program or a package is missing is always certain."""
        missing = isinstance(error, CommandError) and error.returncode == NOT_INSTALLED
        certain = isinstance(error, (MissingDependencyError, *self.certain)) and not isinstance(error, TransientError)
        return Finding(BAD if missing or certain else UNKNOWN, self.what, str(error), error.hint or self.fix)


def once(ask: Callable[[], _T]) -> Callable[[], _T]:
    """The answer of ``ask``, which is called once although several checks at the same time want it."""
    import functools
    from threading import Lock

    lock, answer = Lock(), functools.cache(ask)

    def wait_for_it() -> _T:
        with lock:
            return answer()

    return wait_for_it


def no_such(wanted: str, there: Iterable[str], option: str, otherwise: str = "") -> Finding:
    """There is nothing of that name; the fix gives to a run option what was probably meant."""
    from torchx.util.strings import nearest

    names = sorted(there)
    meant = nearest(wanted, names) or otherwise or min(names, default="NAME")
    return bad(f"there is no `{wanted}`; there are: {', '.join(names) or 'none'}", f"`-cfg {option}={meant}`")


def disk_space(place: str, fix: str) -> Finding:
    """How much room there is where a folder is: bad below 64 MiB, or without free files."""
    import os

    found = os.statvfs(place)
    free, no_files = found.f_bavail * found.f_frsize, bool(found.f_files and not found.f_favail)
    said = f"`{place}` has room for no more files" if no_files else f"{free >> 20:,} MiB are free in `{place}`"
    verdict = BAD if no_files or free < _NO_DISK else UNKNOWN if free < _LITTLE_DISK else GOOD
    return Finding(verdict, "disk", said, fix if verdict != GOOD else "")
