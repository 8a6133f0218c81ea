"""Finds the folders of local jobs, and describes the jobs by what their supervisors wrote."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.api import DescribeAppResponse
from torchx.settings import ENV_LOCAL_RETENTION_DAYS, ENV_LOCAL_RETENTION_GB, make_private, torchx_home
from torchx.specs.api import AppState, Role, is_terminal
from torchx.specs.copies import copy_data
from torchx.supervisor.layout import ORDERED, REQUEST_FILE, STATE_FILE, folder_name, private, replica_folder, task_log
from torchx.supervisor.proctree import is_stopped
from torchx.supervisor.reader import JobReader, send_command, wait_for_end
from torchx.supervisor.statefile import TASKS, TERMINAL, ForeignJobError, JobState, StateFileError
from torchx.util.notices import logger
from torchx.util.records import replace
from torchx.util.redaction import MASK

if TYPE_CHECKING:
    from torchx.supervisor.layout import RetentionRequest

_TIDY_EVERY_S = 3600.0
_LEAST_FREE_BYTES = 1 << 18
_DELETE_S = 60.0
_LOOK_S = 1.0
_DEFAULT_DAYS = 30.0
_DEFAULT_GB = 20.0

_killed: set[str] = set()
"""Folders of jobs that :meth:`LocalAppDef.kill` ended; several objects may stand for one job."""


class ForeignError(BackendError):
    """The job's folder may have been forged by another user."""


class LocalJob:
    """One job, read from its folder. Its roles as submitted are read from ``job.json`` unless they are given."""

    def __init__(self, folder: str, roles: list[Role] | None = None) -> None:
        self.folder = folder
        self._reader = JobReader(folder)
        self._roles = roles
        self._seen: JobState | None = None
        self._answer: DescribeAppResponse | None = None

    def read(self) -> JobState | None:
        """Its current state; None if it does not exist. Raises BackendError if it cannot be read or trusted."""
        try:
            return self._reader.read()
        except ForeignJobError as e:
            raise ForeignError(
                f"the local job in `{self.folder}` is not trusted: {e}",
                hint="only you may own and write a job's folder; remove this one unless you know that it is yours",
            ) from e
        except StateFileError as e:
            raise BackendError(
                f"the state of the local job in `{self.folder}` cannot be read: {e}",
                hint="a newer torchx may have written it, or the file is damaged; its logs are still there",
            ) from e

    def describe(self) -> DescribeAppResponse | None:
        """Return the response of ``describe``, cached until the state changes."""
        job = self.read()
        if job is None:
            return None
        if job is not self._seen or self._answer is None:
            self._answer = self._describe(job)
            self._seen = job
        return LocalAnswer(self, self._answer)

    def still_there(self) -> Callable[[], bool]:
        """Return a function that checks with one system call whether the job still exists."""
        return partial(os.access, os.path.join(self.folder, STATE_FILE), os.F_OK)

    def may_have_secrets(self) -> bool:
        """Whether there is a reference, or a masked value, in the request, which is not parsed, to save time."""
        with suppress(OSError), open(os.path.join(self.folder, REQUEST_FILE), "rb") as f:
            text = f.read()
            return b'"secret"' in text or MASK.encode() in text
        return True

    def is_sweep(self) -> bool:
        """Whether the job is a sweep."""
        job = self._seen or self.read()
        return job is not None and TASKS in job.facts

    def logs(self) -> str:
        """Return the folder that contains the replicas' folders."""
        job = self._seen or self.read()
        return job.facts.get("logs", self.folder) if job else self.folder

    def replica_folder(self, role: str, k: int) -> str:
        """Return the folder of one replica. Raises NotFoundError if the job has no such role or replica."""
        job = self._seen or self.read()
        counts = dict(job.roles) if job else {}
        if not 0 <= k < counts.get(role, 0):
            known = ", ".join(f"`{name}` (0 to {count - 1})" for name, count in counts.items())
            raise NotFoundError(
                f"job `{os.path.basename(self.folder)}` has no replica `{k}` of role `{role}`",
                hint=f"its roles: {known}",
            )
        return replica_folder(self.logs(), role, k)

    def task_log(self, k: int) -> str:
        """Return the log file of task ``k`` of a sweep."""
        from torchx.schedulers.kit.tasks import check_numbers

        job = self._seen or self.read()
        if job is None:
            raise NotFoundError(f"there is no local job `{os.path.basename(self.folder)}`")
        check_numbers(os.path.basename(self.folder), [k], len(job.replicas))
        return task_log(job.facts["logs"], job.roles[0][0], k)

    def _describe(self, job: JobState) -> DescribeAppResponse:
        if TASKS in job.facts:
            from torchx.schedulers.local import sweeps

            return sweeps.describe(job, job.facts["app_id"])
        from torchx.schedulers.kit.verdict import describe
        from torchx.schedulers.local.answers import facts_of, look

        facts = facts_of(job, self.folder)
        if ORDERED in job.facts:
            facts = replace(facts, definition=self.roles())
        begins: dict[str, int] = {}
        if facts.attempts:
            from torchx.schedulers.kit.attempts import begins_of

            begins = begins_of(facts.attempts)
        return describe(facts, partial(look, job.facts.get("logs", self.folder), begins=begins))

    def roles(self) -> list[Role]:
        """Return the roles as submitted, with secrets masked; if not recorded,
        only their names and numbers of replicas.
        """
        if self._roles is None:
            self._roles = self._read_roles()
        return self._roles

    def _read_roles(self) -> list[Role]:
        import json

        from torchx.specs.serialize import appdef_from_dict

        try:
            with open(os.path.join(self.folder, REQUEST_FILE), encoding="utf-8") as f:
                return appdef_from_dict(json.load(f)["app"]).roles
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            job = self._seen or self.read()
            return [Role(name, image="", num_replicas=count) for name, count in job.roles] if job else []


class LocalAnswer(DescribeAppResponse):
    """A copy of a response, which the caller may modify. Its roles are read from the job's folder on first access."""

    def __init__(self, job: LocalJob, answer: DescribeAppResponse) -> None:
        super().__init__(**copy_data({**vars(answer), "roles": []}))
        self._roles: list[Role] = []
        self._job: LocalJob | None = job

    @property
    def roles(self) -> list[Role]:
        """The roles as submitted."""
        if self._job is not None:
            self.roles = copy_data(self._job.roles())
        return self._roles

    @roles.setter
    def roles(self, roles: list[Role]) -> None:
        self._roles, self._job = roles, None


class LocalAppDef(LocalJob):
    """A job that this process has submitted or looked up. NeMo-Run makes it, and reads all of its attributes."""

    def __init__(self, id: str, log_dir: str, folder: str = "", roles: list[Any] | None = None) -> None:
        super().__init__(folder or log_dir, roles)
        self.id = id
        self._log_dir = log_dir
        self._state = AppState.UNKNOWN
        self._role_replicas: dict[str, list[Any]] | None = None

    @property
    def log_dir(self) -> str:
        """The folder that contains the roles' folders."""
        return self._log_dir or self.logs()

    @property
    def state(self) -> AppState:
        """The job's current state; of a job without files the one that :meth:`set_state` set."""
        described = self.describe()
        return described.state if described else self._state

    def describe(self) -> DescribeAppResponse | None:
        """Return the response of ``describe``; a job that :meth:`kill` ended has failed."""
        described = super().describe()
        if described is not None and described.state is AppState.CANCELLED and self.folder in _killed:
            described.state = AppState.FAILED
        return described

    def set_state(self, state: AppState) -> None:
        """Set the state of a job without files."""
        self._state = state

    @property
    def role_replicas(self) -> dict[str, list[Any]]:
        """The numbers of the replicas of each role, unless something else was assigned."""
        if self._role_replicas is not None:
            return self._role_replicas
        job = self.read()
        return {role: [*range(count)] for role, count in job.roles} if job else {}

    @role_replicas.setter
    def role_replicas(self, replicas: dict[str, list[Any]]) -> None:
        self._role_replicas = replicas

    def kill(self) -> None:
        """Cancel the job, if it has not ended. It counts as failed: NeMo-Run ends the others of a failed group."""
        if not is_terminal(self.state):
            _killed.add(self.folder)
            self.cancel()

    def cancel(self) -> None:
        """Cancel the job, if it has not ended. Raises BackendError if it runs on another host."""
        state = self.read()
        if state is None or state.ended or send_command(self.folder, "cancel"):
            return
        state = self.read()
        if state is not None and not state.ended:
            raise BackendError(
                f"job `{self.id}` runs on host `{state.facts.get('host')}`, which this host cannot reach",
                hint="cancel it there",
            )


class Apps(dict[str, LocalAppDef]):
    """Jobs by id. Each iteration is over a copy: other threads, also those of subclasses, add and remove jobs."""

    def __iter__(self) -> Iterator[str]:
        return iter([*super().keys()])

    def keys(self) -> Any:
        return [*super().keys()]

    def values(self) -> Any:
        return [*super().values()]

    def items(self) -> Any:
        return [*super().items()]


class LocalJobs:
    """All local jobs of this user. New ones are in ``session``, which is also searched first."""

    def __init__(self, session: str) -> None:
        self.session = session
        self._made = ""

    def find(self, app_id: str) -> str | None:
        """Return the folder of a job in any session; None if it does not exist."""
        name = folder_name(app_id)
        for base in self.bases():
            for session in (folder_name(self.session), *_names(base)):
                folder = os.path.join(base, session, name)
                if os.path.exists(os.path.join(folder, STATE_FILE)):
                    return folder
        return None

    def all(self) -> list[str]:
        """Return the folders of all jobs of all sessions."""
        return [
            os.path.join(base, session, job)
            for base in self.bases()
            for session in _names(base)
            for job in _names(os.path.join(base, session))
        ]

    def create(self, app_id: str) -> str:
        """Create the folder of a new job. Raises BackendError if it exists already or cannot be created."""
        problem: OSError | None = None
        for base in self.bases():
            session = os.path.join(base, folder_name(self.session))
            folder = os.path.join(session, folder_name(app_id))
            try:
                if self._made != session or not os.path.isdir(session):
                    make_private(session)
                _refuse_full_disk(session)
                os.mkdir(folder, 0o700)
            except FileExistsError as e:
                if os.path.isdir(folder):
                    raise BackendError(
                        f"job `{app_id}` was already submitted", hint="each submission needs a new dryrun: `runner.run`"
                    ) from e
                problem = problem or e
            except OSError as e:
                problem = problem or e
            else:
                self._made = session
                if problem is not None:
                    _warn(f"local jobs cannot be kept in `{problem.filename}`: {problem.strerror}; using `{folder}`")
                return folder
        raise BackendError(
            f"the folder of a local job cannot be created: {problem}", hint="set TORCHX_HOME to a writable folder"
        )

    def retention_due(self, folder: str) -> RetentionRequest | None:
        """Return the limits that the supervisor applies to old jobs at its end;
        None if that was done in the last hour.
        """
        base = os.path.dirname(os.path.dirname(folder))
        stamp = os.path.join(base, ".tidied")
        with suppress(OSError):
            if time.time() - os.stat(stamp).st_mtime < _TIDY_EVERY_S:
                return None
        try:
            with open(stamp, "w", opener=private):
                os.utime(stamp)
        except OSError:
            return None
        days = _number(ENV_LOCAL_RETENTION_DAYS, _DEFAULT_DAYS)
        gigabytes = _number(ENV_LOCAL_RETENTION_GB, _DEFAULT_GB)
        return {"base": base, "max_age_s": days * 86400, "max_bytes": int(gigabytes * (1 << 30))}

    @staticmethod
    def bases() -> tuple[str, ...]:
        """Return the folders of jobs: below torchx's home, and in the temporary folder if the home is not writable."""
        home = torchx_home("local")
        ours = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"torchx-{os.getuid()}")  # noqa: S108  # mode 0700
        return (home, os.path.join(ours, "local")) if _is_ours(ours) else (home,)


def delete(job: LocalJob) -> None:
    """Cancel the job, wait for its end, and remove its files. Raises BackendError if it does not end here."""
    from torchx.supervisor.retention import remove_job

    state = job.read()
    if state is not None and state.state not in TERMINAL:
        send_command(job.folder, "cancel")
        deadline = time.monotonic() + _DELETE_S
        while wait_for_end(job.folder, _LOOK_S) and not is_stopped(state.supervisor) and time.monotonic() < deadline:
            pass
        state = job.read()
    if state is not None and state.state not in TERMINAL:
        host, app_id = state.facts.get("host"), state.facts.get("app_id")
        if host == os.uname().nodename:
            stopped = is_stopped(state.supervisor)
            raise BackendError(
                f"job `{app_id}` is {state.state} and does not end{': its supervisor is stopped' if stopped else ''}",
                hint=f"let the supervisor go on: `kill -CONT {state.supervisor}`" if stopped else "try again later",
            )
        raise BackendError(
            f"job `{app_id}` is {state.state} on host `{host}` and does not end", hint="cancel it there first"
        )
    if state is not None:
        remove_job(job.folder, state)


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        _warn(f"`{name}={text}` is not a number; {default:g} is used")
        return default
    return number if 0 < number < float("inf") else 0.0  # 0: no limit


def _is_ours(folder: str) -> bool:
    """Whether a folder in a shared place belongs to us alone or does not exist: others must not forge jobs in it."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return True
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _refuse_full_disk(folder: str) -> None:
    """Record the failure, which a job on a full disk could not do."""
    disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError:
        return []


def _warn(message: str) -> None:
    logger("torchx.schedulers.local").warning(message)
