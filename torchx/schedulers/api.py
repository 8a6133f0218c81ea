"""The contract of a backend: the base class :class:`Scheduler` and the values that it returns."""
# ruff: noqa: ARG002  # default methods have the parameters that overrides need

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torchx.errors import NotSupportedError, SpecError
from torchx.schedulers.kit.abilities import BuildsWorkspaces, HasWorkspaceOpts
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.logs import LogQuery, Stream, compile_regex
from torchx.specs.api import NONE, AppDef, AppDryRunInfo, AppState, CfgVal, Role, RoleStatus, Workspace, runopts
from torchx.specs.options.structured_opts import StructuredOpts
from torchx.util.records import dataclass, field
from torchx.util.reexports import reexports

reexports(__name__)

if TYPE_CHECKING:
    from datetime import datetime

    from torchx.specs.tasks import TaskTable
    from torchx.specs.wishes.retries import Attempt

T = TypeVar("T")

__all__ = [
    "DAYS_IN_2_WEEKS",
    "NONE",
    "Capabilities",
    "DescribeAppResponse",
    "ListAppResponse",
    "Scheduler",
    "Stream",
    "StructuredOpts",
    "filter_regex",
    "split_lines",
    "split_lines_iterator",
]

DAYS_IN_2_WEEKS = 14
_VARARGS = 0x04  # inspect.CO_VARARGS


@dataclass
class DescribeAppResponse:
    """The backend's description of one job.

    Attributes:
        num_restarts: how many times the job, or a part of it, was restarted; -1 if the backend does not report it.
        msg: the reason for the job's state, as a sentence.
        structured_error_msg: JSON with the error of the replica that failed first.
        ui_url: page of the job in the backend's web interface.
        started_at: Unix time of its start; None if unknown.
        ended_at: Unix time of its end; None if it has not ended or the time is unknown.
        attempts: the attempts that have ended, if the job has a retry policy.
        hang: what the job's watchdog found when the job was last silent.
        tasks: for a sweep, the state of each task.
    """

    app_id: str = "<NOT_SET>"
    state: AppState = AppState.UNSUBMITTED
    num_restarts: int = -1
    msg: str = NONE
    structured_error_msg: str = NONE
    ui_url: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    roles_statuses: list[RoleStatus] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    started_at: float | None = None
    ended_at: float | None = None
    attempts: list[Attempt] = field(default_factory=list)
    hang: str = ""
    tasks: TaskTable | None = None


@dataclass
class ListAppResponse:
    """One entry of a backend's list of jobs."""

    app_id: str
    state: AppState
    app_handle: str = "<NOT_SET>"
    name: str = ""


if TYPE_CHECKING:
    _Jobs = list[ListAppResponse]  # within the class below, `list` is a method
    _Replicas = list[tuple[str, int]]


_STRINGS = frozenset({str})


class ResolvedCfg(dict[str, object]):
    """Run options that are already resolved: :meth:`Scheduler.submit_dryrun` does not resolve them again."""


class Shortcut:
    """Decorator of a backend's method that answers like ``describe``, but faster: for a subclass that has a
    ``describe`` of its own, it is the method of :class:`Scheduler`.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type[Scheduler[Any]], name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, backend: Scheduler[Any] | None, kind: type[Scheduler[Any]]) -> Any:
        own = backend is None or kind.describe is self.owner.describe
        method = self.method if own else getattr(Scheduler, self.name)
        return method.__get__(backend, kind)


if TYPE_CHECKING:
    _Method = TypeVar("_Method", bound=Callable[..., Any])

    def shortcut(method: _Method) -> _Method:
        """See :class:`Shortcut`."""

else:
    shortcut = Shortcut


class Scheduler(Generic[T], ABC):
    """Base class of all backends. ``T`` is the type of the run options, usually ``Mapping[str, CfgVal]``.

    A backend implements :meth:`_submit_dryrun`, :meth:`schedule`, :meth:`describe`, :meth:`list` and
    :meth:`_cancel_existing`; the rest has working defaults.

    Args:
        backend: name of the backend.
        session_name: groups the jobs of one user or program.
    """

    capabilities: Capabilities = Capabilities()
    """What this backend can do."""

    options: type[StructuredOpts] | None = None
    """The class that declares its run options."""

    rules: str = ""
    """The table of what its server refuses, as ``module:name``, see :mod:`torchx.schedulers.kit.rules`."""

    wait_hint: float = 1.0
    """Recommended interval between two polls of :meth:`describe`, in seconds."""

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name

    # -- options ---------------------------------------------------------------------------------

    def run_opts(self) -> runopts:
        """Return the run options of this backend, including those of its workspace mixin if it has one."""
        opts = self._run_opts()
        if isinstance(self, HasWorkspaceOpts):
            opts.update(self.workspace_opts())
        if self.capabilities.setup:
            from torchx.schedulers.kit import setup

            opts.add(setup.OPTION, type_=str, help=setup.HELP)
        return opts

    def _run_opts(self) -> runopts:
        """Return the run options of this backend, without those of its workspace mixin."""
        return runopts() if self.options is None else self.options.as_runopts()

    # -- submission ------------------------------------------------------------------------------

    def submit(self, app: AppDef, cfg: T, workspace: str | Workspace | None = None) -> str:
        """Build the workspace, render the request, submit it and return the id of the job. ``app`` is not changed."""
        import copy

        app = copy.deepcopy(app)
        resolved: T = self.run_opts().resolve(cfg)  # type: ignore[arg-type,assignment]  # T is a mapping of options
        if workspace is not None and isinstance(self, BuildsWorkspaces):
            given = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
            for role in app.roles:
                role.workspace = role.workspace or copy.deepcopy(given)
        self._pre_build_validate(app, self.backend, resolved)
        if isinstance(self, BuildsWorkspaces):
            self.build_workspaces(app.roles, resolved)  # type: ignore[arg-type]  # T is a mapping of options
        validate(self, app, self.backend, resolved)
        return self.schedule(self.submit_dryrun(app, resolved))

    def submit_dryrun(self, app: AppDef, cfg: T) -> AppDryRunInfo[Any]:
        """Return the request that :meth:`schedule` would submit, without submitting it.

        The ``pre_proc`` hook of each role runs in order and may change the request.
        """
        given: Any = cfg
        resolved: T = dict(given) if isinstance(given, ResolvedCfg) else self.run_opts().resolve(given)  # type: ignore[assignment]  # T is a mapping of options
        for role in app.roles:
            if not _STRINGS.issuperset(map(type, role.env.values())):
                from torchx.schedulers.kit.secrets import check

                check(role.env, self.capabilities.secrets, self.backend)
        if not isinstance(given, ResolvedCfg):  # the Runner applies them before it builds images
            self.apply_rules(app.roles, resolved)
        info = self._submit_dryrun(app, resolved)
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        info._app = app
        info._cfg = resolved  # type: ignore[assignment]  # T is a mapping of options
        info._scheduler = self.backend
        return info

    def apply_rules(self, roles: Iterable[Role], cfg: T | Mapping[str, Any]) -> None:
        """Raise SpecError for the first value that the server would refuse."""
        if self.rules:
            from torchx.schedulers.kit.rules import broken

            for error in broken(self.rules, roles, cfg):
                raise error

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: T) -> AppDryRunInfo[Any]:
        """Translate the job into this backend's native request. Must neither submit it nor change ``app``."""

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Submit the request and return the id of the job."""

    submission_s: float = 10.0
    """If the submitting process has died and the job is not visible after this many seconds, it was not submitted."""

    def time_limit_s(self, cfg: Mapping[str, CfgVal]) -> float | None:
        """Return after how many seconds these run options end a job; None if they do not."""
        limit = cfg.get(self.capabilities.timeout)
        return float(limit) if isinstance(limit, int) else None

    def expected_id(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Return the id that the job of this request will have; empty, the default,
        if it is known only after submission.
        """
        return ""

    def submission_token(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Return a token for :meth:`find_submission` finds the job of this request. Empty, the default: use its id.

        The token is recorded before :meth:`schedule` is called.
        """
        return ""

    def find_submission(self, token: str, cfg: Mapping[str, CfgVal], *, age_s: float) -> str | None:
        """Find the job of a submission whose response was lost.

        Args:
            token: the token of the request, else the id expected for the job, else empty.
            cfg: the recorded run options.
            age_s: seconds since the submission began.

        Returns:
            The id of the job; an empty string if the submission failed; None if this is not known yet.
        """
        if token and self.exists(token):
            return token
        return "" if age_s > self.submission_s else None

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: T) -> None:
        """Reject an invalid job before its workspace is built."""

    def _validate(self, app: AppDef, scheduler: str, cfg: T) -> None:
        """Reject an invalid job after its workspace was built. Overrides may omit ``cfg``, as in older versions.

        Raises:
            SpecError: a role has the null resource, but this backend must know what to reserve.
        """
        for role in app.roles:
            r = role.resource
            if (r.cpu, r.gpu, r.memMB) == (-1, -1, -1):
                raise SpecError(
                    f"role `{role.name}` has no resource, and `{scheduler}` has to know what to reserve",
                    hint="give it one: `resource=specs.resource(cpu=1, memMB=1024)`, "
                    "or `-h <named resource>` of the component",
                )

    # -- state -----------------------------------------------------------------------------------

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the state and definition of a job; None if the job does not exist."""

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """:meth:`describe` for many jobs. Backends that can query them all at once override this."""
        return {app_id: self.describe(app_id) for app_id in app_ids}

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        """Block until the job may have ended, at most ``timeout_s`` seconds.

        The default sleeps for the whole time. A backend that is notified of the job's end returns at once.
        """
        import time

        time.sleep(timeout_s)

    def still_there(self, app_id: str) -> Callable[[], bool] | None:
        """Return a function that checks, much faster than :meth:`describe`, whether a job that has ended still exists.

        While it does, callers may reuse its last description. None, the default, if there is no faster check or the
        job does not exist.
        """
        return None

    def may_have_secrets(self, app_id: str) -> bool:
        """Whether the job may have been given secrets; False if it has none for certain. The default is True."""
        return True

    def exists(self, app_id: str) -> bool:
        """Whether the backend has this job, in any state."""
        return self.describe(app_id) is not None

    @abstractmethod
    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """List the jobs that this backend has."""

    def log_replicas(self, app_id: str) -> _Replicas | None:
        """List the replicas of a job, as ``(role, number)``, to read their logs; None if the job does not exist.

        The default calls :meth:`describe`. Backends with a cheaper way to list replicas override this.
        """
        found = self.describe(app_id)
        if found is None:
            return None
        submitted = [(role.name, k) for role in found.roles for k in range(role.num_replicas)]
        return submitted or [(role.role, replica.id) for role in found.roles_statuses for replica in role.replicas]

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        """Open the logs of several replicas: for each, in order, an iterable of lines with their line ends.

        A backend overrides this method or :meth:`log_iter`. It looks up the job once for all replicas, reads nothing
        of a replica before its lines are iterated over, and raises that replica's errors then. The caller applies
        ``query.last``.

        Raises:
            NotSupportedError: this backend has no logs.
        """
        if type(self).log_iter is Scheduler.log_iter:
            raise self._no_logs()
        return [self.log_iter(app_id, role, k, **query.words()) for role, k in replicas]

    def log_iter(  # noqa: PLR0917  # the contract's signature
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Return the lines of replica ``k`` of a role, each with its line end: :meth:`open_logs` for one replica.

        Args:
            regex: only lines that match this regular expression.
            since: only lines written at or after this time; a time without zone is local.
            until: only lines written before this time.
            should_tail: follow the log until the job has ended.
            streams: which output; None: the backend's default.

        Raises:
            NotSupportedError: this backend has no logs.
            ConfigError: ``regex`` is not a regular expression.
        """
        if type(self).open_logs is Scheduler.open_logs:
            raise self._no_logs()
        query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
        return self.open_logs(app_id, [(role_name, k)], query)[0]

    def _no_logs(self) -> NotSupportedError:
        return NotSupportedError(
            f"`{self.backend}` cannot show logs",
            hint="`torchx status` shows the address of the job's page",
        )

    # -- cancel and delete -----------------------------------------------------------------------

    def cancel(self, app_id: str) -> None:
        """Cancel the job. Does nothing if the job does not exist or has ended."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    @abstractmethod
    def _cancel_existing(self, app_id: str) -> None:
        """Cancel a job that exists."""

    def delete(self, app_id: str) -> None:
        """Remove the job from the backend. Does nothing if the job does not exist."""
        if self.exists(app_id):
            self._delete_existing(app_id)

    def _delete_existing(self, app_id: str) -> None:
        """Remove a job that exists. The default, for backends that keep no record of ended jobs, only cancels it."""
        self._cancel_existing(app_id)

    def close(self) -> None:
        """Release the local resources of this object. Jobs keep running."""


Scheduler._validate.__defaults__ = (None,)  # not in the signature, so that overrides may omit `cfg`


def validate(scheduler: Scheduler[Any], app: AppDef, name: str, cfg: Any) -> None:
    """Call ``_validate`` of a scheduler, without the run options if its override has no such parameter."""
    code = getattr(scheduler._validate, "__code__", None)
    takes_two = code is not None and code.co_argcount == 3 and not code.co_flags & _VARARGS
    scheduler._validate(*(app, name) if takes_two else (app, name, cfg))


def open_logs(
    scheduler: Scheduler[Any], app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery
) -> Sequence[Iterable[str]]:
    """Open the logs of several replicas with ``open_logs`` or ``log_iter``, whichever the most derived class overrides.

    Raises:
        NotSupportedError: the query needs a capability that the scheduler lacks.
    """
    caps, name = scheduler.capabilities, scheduler.backend
    if query.keep and not caps.log_keep:
        said = "the scheduler of this job keeps no copies of logs on this machine"
        raise NotSupportedError(said, hint="it has the logs until `torchx delete`; `torchx log JOB > FILE` copies them")
    if query.timestamps and not caps.log_timestamps:
        raise NotSupportedError(f"`{name}` does not record when lines were written", hint="omit `--timestamps`")
    if query.previous and not caps.log_previous:
        said = f"`{name}` does not keep the output of earlier attempts separately"
        raise NotSupportedError(said, hint="omit `--previous`")
    last = next(c for c in type(scheduler).__mro__ if "open_logs" in c.__dict__ or "log_iter" in c.__dict__)
    if "open_logs" in last.__dict__:
        return scheduler.open_logs(app_id, replicas, query)
    return Scheduler.open_logs(scheduler, app_id, replicas, query)


def filter_regex(regex: str, data: Iterable[str]) -> Iterable[str]:
    """Return the lines in which ``regex`` is found.

    Raises:
        ConfigError: ``regex`` is not a regular expression.

    >>> list(filter_regex("b$", ["a", "ab"]))
    ['ab']
    """
    return LogQuery(regex=compile_regex(regex)).matching(data)


def split_lines(text: str) -> list[str]:
    r"""Return the lines of ``text``, each with its line end. Only ``\n`` ends a line.

    >>> split_lines("a\nb\rc\n\nd")
    ['a\n', 'b\rc\n', '\n', 'd']
    """
    lines = [line + "\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def split_lines_iterator(chunks: Iterable[str]) -> Iterable[str]:
    r"""Return the lines of each chunk of a text. The end of a chunk also ends a line.

    >>> list(split_lines_iterator(["a\nb", "c\n", "d"]))
    ['a\n', 'b', 'c\n', 'd']
    """
    return (line for chunk in chunks for line in split_lines(chunk))
