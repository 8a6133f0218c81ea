"""What checks find: good, bad, or nothing that can be told from here. Only what is certain is bad."""

from __future__ import annotations

from torchx.errors import CommandError, MissingDependencyError, TorchXError
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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


@dataclass(frozen=True)
class Check:
    """A question that was not asked yet.

    >>> Check("disk", lambda: Finding(GOOD, "disk", "7 GiB are free")).findings()[0].said
    '7 GiB are free'
    """

    what: str
    ask: Callable[[], Finding | Iterable[Finding]]

    def findings(self) -> list[Finding]:
        """Asks. An error is something that cannot be told, unless it says that a program or a package is missing."""
        try:
            found = self.ask()
            return [found] if isinstance(found, Finding) else list(found)
        except TorchXError as e:
            return [self.failed(e)]
        except Exception as e:  # a check that fails must not keep anybody from running a job
            return [Finding(UNKNOWN, self.what, f"the check itself failed: {type(e).__name__}: {e}")]

    def failed(self, error: TorchXError) -> Finding:
        """What an error says."""
        missing = isinstance(error, CommandError) and error.returncode == NOT_INSTALLED
        certain = missing or isinstance(error, MissingDependencyError)
        return Finding(BAD if certain else UNKNOWN, self.what, str(error), error.hint)


def disk_space(place: str, fix: str) -> Finding:
    """How much room there is where a folder is: bad below 64 MiB, or without free files."""
    import os

    found = os.statvfs(place)
    free, no_files = found.f_bavail * found.f_frsize, bool(found.f_files and not found.f_favail)
    said = f"`{place}` has room for no more files" if no_files else f"{free >> 20:,} MiB are free in `{place}`"
    verdict = BAD if no_files or free < _NO_DISK else UNKNOWN if free < _LITTLE_DISK else GOOD
    return Finding(verdict, "disk", said, fix if verdict != GOOD else "")
