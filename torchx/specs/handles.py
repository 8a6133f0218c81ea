"""App handles: ``{scheduler}://{session}/{app_id}``, which identify a job in every command."""

from __future__ import annotations

from collections import namedtuple

from torchx.errors import HandleError, NotFoundError
from torchx.util.records import dataclass
from torchx.util.strings import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NamedTuple

    class ParsedAppHandle(NamedTuple):
        scheduler_backend: str
        session_name: str
        app_id: str
else:

    class ParsedAppHandle(namedtuple("ParsedAppHandle", "scheduler_backend session_name app_id")):
        """The three parts of an app handle; a named tuple whose ``str()`` is the handle."""

        __slots__ = ()

        def __str__(self) -> str:
            return make_app_handle(*self)


@dataclass(frozen=True)
class JobId:
    """The app id of a job, and the number of the task if it names a task of a sweep: ``sweep-7/17``."""

    job: str
    task: int | None = None

    @classmethod
    def of(cls, app_id: str) -> JobId:
        """Split an app id, or a short reference.

        >>> JobId.of("sweep-7/17"), JobId.of("queue:train")
        (JobId(job='sweep-7', task=17), JobId(job='queue:train', task=None))
        """
        job, _, task = app_id.rpartition("/")
        is_task = job and task.isascii() and task.isdigit() and len(task) < 20
        return cls(job, int(task)) if is_task else cls(app_id)


FOREIGN = "foreign"
"""The session of jobs that torchx did not launch; see :mod:`torchx.schedulers.kit.foreign`."""

AppHandle = str
"""``{scheduler}://{session}/{app_id}``, for example ``kubernetes://torchx/my_job_123``."""


class MalformedAppHandleException(HandleError):
    """The text is not an app handle."""

    def __init__(self, app_handle: str) -> None:
        why, hint = _diagnose(str(app_handle))
        super().__init__(f"`{app_handle}` is not an app handle: {why}", hint=hint)
        self.app_handle = app_handle


class UnknownAppException(NotFoundError):
    """The scheduler has no such job."""

    def __init__(self, app_handle: AppHandle) -> None:
        super().__init__(
            f"app `{app_handle}` does not exist: it was never submitted, or the scheduler no longer remembers it",
            hint="`torchx list` shows the runs on record",
        )
        self.app_handle = app_handle


class UnknownSchedulerException(NotFoundError):
    """No scheduler of that name is installed.

    Args:
        scheduler_backend: the requested name.
        known: the available names, for the hint.
    """

    def __init__(self, scheduler_backend: str, known: Iterable[str] = ()) -> None:
        names = sorted(known)
        hint = did_you_mean(scheduler_backend, names) or (f"one of: {', '.join(names)}" if names else "")
        super().__init__(f"scheduler `{scheduler_backend}` is not known", hint=hint)
        self.scheduler_backend = scheduler_backend


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> str:
    """Build an app handle from its three parts.

    >>> make_app_handle("kubernetes", "torchx", "my_job_123")
    'kubernetes://torchx/my_job_123'
    """
    return f"{scheduler_backend}://{session_name}/{app_id}"


def parse_app_handle(app_handle: str) -> ParsedAppHandle:
    """Split an app handle into its three parts. The session may be empty; the app id may contain slashes.

    Raises:
        MalformedAppHandleException: the text is not a handle.

    >>> scheduler, session, app_id = parse_app_handle("kubernetes://torchx/my_job_123")
    >>> scheduler, session, app_id
    ('kubernetes', 'torchx', 'my_job_123')
    """
    scheduler, separator, rest = app_handle.partition("://")
    session, slash, app_id = rest.partition("/")
    if not (separator and slash and scheduler and app_id) or "/" in scheduler or not _printable(app_handle):
        raise MalformedAppHandleException(app_handle)
    return ParsedAppHandle(scheduler, session, app_id)


def _printable(text: str) -> bool:
    # No handle contains white space or control characters: they come from a pasted line with more than the handle.
    return text.isprintable() and " " not in text


def _diagnose(text: str) -> tuple[str, str]:
    shape = "write `scheduler://session/app_id`, for example `local_cwd://torchx/my_job_123`"
    scheduler, separator, rest = text.partition("://")
    if not text:
        return "it is empty", shape
    if not _printable(text):
        return "it contains white space or control characters", shape
    if not separator:
        return "it has no `://`", shape
    if not scheduler or "/" in scheduler:
        return "the scheduler before `://` is missing", shape
    _, slash, _ = rest.partition("/")
    if not slash:
        app_id = rest or "APP_ID"
        others = f"; `{scheduler}://{FOREIGN}/{app_id}` is one that torchx did not launch"
        return "there is no `/` between session and app id", f"write `{scheduler}://SESSION/{app_id}`{others}"
    return "the app id is empty", shape
