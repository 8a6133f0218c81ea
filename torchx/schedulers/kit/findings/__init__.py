"""Checks and their findings: good, bad (only if certain), something to do, or unknown."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from torchx.errors import CommandError, MissingDependencyError, TorchXError, TransientError
from torchx.util.records import dataclass, replace
from torchx.util.strings import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchx.specs.api import AppDef

    _T = TypeVar("_T")

GOOD, BAD, UNKNOWN, TODO = "good", "bad", "unknown", "todo"
WITHIN_S = 15.0
"""Default time limit for all checks together, in seconds."""
LIMIT_S: ContextVar[float] = ContextVar("LIMIT_S", default=WITHIN_S)
"""Time limit of the checks that a backend is about to return, in seconds: its clients should give up before."""
NOT_INSTALLED = 127
_LITTLE_DISK, _NO_DISK = 1 << 30, 1 << 26


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        verdict: :data:`GOOD`, :data:`BAD` (certainly), :data:`TODO` (optional, and not set up), or :data:`UNKNOWN`.
        what: the subject of the check.
        said: the result in one line.
        fix: what to do about it, with commands in backticks; empty if nothing needs to be done.
        unreachable: the system itself did not answer, so that little can be said about it.
    """

    verdict: str
    what: str
    said: str
    fix: str = ""
    unreachable: bool = False


def bad(said: str, fix: str = "", *, what: str = "") -> Finding:
    """Return a :data:`BAD` finding, by default about the subject of its check."""
    return Finding(BAD, what, said, fix)


def doubt(said: str, fix: str = "") -> Finding:
    """Return an :data:`UNKNOWN` finding about the subject of its check."""
    return Finding(UNKNOWN, "", said, fix)


def silent(said: str, fix: str = "") -> Finding:
    """Return the finding that the system itself did not answer."""
    return Finding(UNKNOWN, "", said, fix, unreachable=True)


@dataclass(frozen=True)
class Check:
    """A check that has not run yet.

    >>> Check("disk", lambda: "7 GiB are free").findings()
    [Finding(verdict='good', what='disk', said='7 GiB are free', fix='', unreachable=False)]

    Attributes:
        what: its subject.
        ask: runs the check; returns one line if all is good, or findings.
        certain: errors that are bad. Other errors, and transient ones, are unknown.
        fix: what to do about an error without hint.
        vital: whether the system itself is unreachable if this check has no answer.
    """

    what: str
    ask: Callable[[], str | Finding | Iterable[Finding]]
    certain: tuple[type[Exception], ...] = ()
    fix: str = ""
    vital: bool = False

    def findings(self) -> list[Finding]:
        """Run the check."""
        try:
            found = self.ask()
            if isinstance(found, str):
                return [Finding(GOOD, self.what, found)]
            return [replace(f, what=f.what or self.what) for f in ([found] if isinstance(found, Finding) else found)]
        except TorchXError as e:
            return [self.failed(e)]
        except ImportError as e:
            return [bad(f"the Python package `{e.name}` is not installed", f"`pip install {e.name}`", what=self.what)]
        except Exception as e:  # a bug in a check must not prevent jobs
            return [Finding(UNKNOWN, self.what, f"the check itself failed: {type(e).__name__}: {e}")]

    def failed(self, error: TorchXError) -> Finding:
        """Return the finding for an error. A missing program or package is always certain."""
        missing = isinstance(error, CommandError) and error.returncode == NOT_INSTALLED
        certain = isinstance(error, (MissingDependencyError, *self.certain)) and not isinstance(error, TransientError)
        verdict = BAD if missing or certain else UNKNOWN
        unreachable = self.vital and verdict == UNKNOWN
        return Finding(verdict, self.what, str(error), error.hint or self.fix, unreachable=unreachable)

    def late(self, within_s: float) -> Finding:
        """Return the finding for no answer within a time limit in seconds."""
        return Finding(UNKNOWN, self.what, f"no answer within {within_s:g} s", unreachable=self.vital)


def once(ask: Callable[[], _T]) -> Callable[[], _T]:
    """Cache the result of ``ask``, which is called only once even by concurrent checks."""
    import functools
    from threading import Lock

    lock, cached = Lock(), functools.cache(ask)

    def locked() -> _T:
        with lock:
            return cached()

    return locked


def no_such(wanted: str, there: Iterable[str], option: str, otherwise: str = "") -> Finding:
    """Return the finding that a name does not exist. The fix sets a run option to the most similar existing one."""
    from torchx.util.strings import nearest

    names = sorted(there)
    meant = nearest(wanted, names) or otherwise or min(names, default="NAME")
    return bad(f"there is no `{wanted}`; there are: {', '.join(names) or 'none'}", f"`-cfg {option}={meant}`")


def disk_space(place: str, fix: str) -> Finding:
    """Check the free space on the disk of a folder: bad below 64 MiB or without free inodes."""
    import os

    found = os.statvfs(place)
    free, no_files = found.f_bavail * found.f_frsize, bool(found.f_files and not found.f_favail)
    said = f"`{place}` has room for no more files" if no_files else f"{size_text(free)} free in `{place}`"
    verdict = BAD if no_files or free < _NO_DISK else UNKNOWN if free < _LITTLE_DISK else GOOD
    return Finding(verdict, "disk", said, fix if verdict != GOOD else "")


def probe_app(image: str, word: str = "probe") -> AppDef:
    """Return the small job of ``torchx doctor --deep``, which prints ``word``."""
    from torchx.specs.api import AppDef, Resource, Role

    role = Role("probe", image, entrypoint="sh", args=["-c", f"echo {word}"], resource=Resource(1, 0, 256))
    return AppDef("torchx-doctor", [role])
