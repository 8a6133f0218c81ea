"""Finds the jobs of this machine, and describes, enters, cancels and deletes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, shortcut
from torchx.schedulers.kit.views import by_view
from torchx.schedulers.local.jobs import Apps, ForeignError, LocalAppDef, LocalJob, LocalJobs, delete
from torchx.specs.api import CfgVal
from torchx.supervisor.reader import wait_for_end
from torchx.util.notices import logger

if TYPE_CHECKING:
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.inside.kept import Kept
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.pace import Rank
    from torchx.schedulers.kit.simulations import Simulation

    _Answers = list[DescribeAppResponse]
    _Jobs = list[ListAppResponse]  # within the class below, `list` is a method
    _Metrics = list[ReplicaMetrics]
    _Ranks = list[Rank]
    _Replicas = list[tuple[str, int]]


class ManagesJobs(Scheduler[Mapping[str, CfgVal]]):
    """The part of the backend that knows jobs that were submitted."""

    _cache_size = 100

    @property
    def _apps(self) -> dict[str, LocalAppDef]:  # also assigned by subclasses of programs
        return self.__dict__.setdefault("_known_apps", Apps())  # type: ignore[no-any-return]

    @_apps.setter
    def _apps(self, apps: dict[str, LocalAppDef]) -> None:
        self.__dict__["_known_apps"] = Apps(apps)

    @functools.cached_property
    def _jobs(self) -> LocalJobs:  # not set in __init__, which subclasses of programs may not call
        return LocalJobs(self.session_name)

    def view_of(self, app_id: str) -> ManagesJobs:  # noqa: ARG002  # a hook
        """Return the view of this job; itself, if nothing about the job is special."""
        return self

    @by_view
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self._known(app_id)
        described = job.describe() if job else None
        if described is None:
            self._apps.pop(app_id, None)
        return described

    @shortcut
    def still_there(self, app_id: str) -> Callable[[], bool] | None:
        job = self._apps.get(app_id)
        return None if job is None else job.still_there()

    def may_have_secrets(self, app_id: str) -> bool:
        job = self._known(app_id)
        return job is None or job.may_have_secrets()

    @shortcut
    def exists(self, app_id: str) -> bool:
        return self._find(app_id) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:  # noqa: ARG002  # the contract's signature
        """All local jobs of this user, of every session."""
        from torchx.schedulers.local.answers import listed

        found = []
        for folder in self._jobs.all():
            try:
                job = LocalJob(folder).read()
            except ForeignError as e:
                logger("torchx.schedulers.local").warning(str(e))
                continue
            except BackendError:
                continue  # a damaged job must not hide the others
            if job is not None:
                found.append(listed(job, folder))
        return found

    @by_view
    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        job = self._known(app_id)
        if job is None or wait_for_end(job.folder, timeout_s):
            return
        state = job.read()
        if state is not None and not state.ended:
            super().wait_for_end(app_id, timeout_s)  # on another machine

    @shortcut
    def log_replicas(self, app_id: str) -> _Replicas | None:
        job = self._find(app_id)
        state = job.read() if job else None
        return None if state is None else state.positions()

    @by_view
    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        from torchx.schedulers.local.logs import JobEnd, open_log

        job, end = self._need(app_id), JobEnd()
        return [open_log(self, app_id, job.replica_folder(role, k), query, end) for role, k in replicas]

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        from torchx.schedulers.local.inside import enter

        return enter(self._need(app_id), role, k, argv, tty)

    def kept(self, app_id: str, role: str, k: int, cwd: str) -> Sequence[Kept]:
        from torchx.schedulers.kit.inside.kept import folders

        return folders([cwd, self._need(app_id).replica_folder(role, k)])

    def shares_files(self, app_id: str) -> bool:
        return bool(app_id)

    @by_view
    def metrics(self, app_id: str) -> _Metrics | None:
        from torchx.schedulers.local import usage

        return usage.metrics(self._find(app_id))

    @by_view
    def steps(self, app_id: str) -> _Ranks:
        from torchx.schedulers.local import usage

        return usage.steps(self._find(app_id))

    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:
        """See :class:`torchx.schedulers.kit.abilities.Simulates`."""
        from torchx.schedulers.local.simulate import simulation

        return simulation(self._need(app_id), fault, replica)

    # -- cancel and delete -----------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        if (job := self._find(app_id)) is not None:
            job.cancel()

    def _delete_existing(self, app_id: str) -> None:
        """Cancel the job if it runs, and remove its files. Other files in its folders are kept."""
        job = self._find(app_id)
        if job is not None:
            delete(job)
        self._apps.pop(app_id, None)

    def close(self) -> None:
        """Clear the cache of jobs. Jobs keep running."""
        self._apps.clear()

    def _find(self, app_id: str) -> LocalAppDef | None:
        job = self._known(app_id)
        if job is not None and job.read() is None:
            self._apps.pop(app_id, None)
            return None
        return job

    def _need(self, app_id: str) -> LocalAppDef:
        job = self._find(app_id)
        if job is None:
            raise NotFoundError(f"there is no local job `{app_id}`", hint="`torchx list` shows the jobs")
        return job

    def _known(self, app_id: str) -> LocalAppDef | None:
        """Return the job, without checking that it still exists."""
        job = self._apps.get(app_id)
        if job is None and (folder := self._jobs.find(app_id)) is not None:
            job = LocalAppDef(app_id, "", folder)
            self._remember(app_id, job)
        return job

    def _remember(self, app_id: str, job: LocalAppDef) -> None:
        if app_id not in self._apps:
            for oldest in [*self._apps][: max(len(self._apps) + 1 - self._cache_size, 0)]:
                self._apps.pop(oldest, None)
            self._apps[app_id] = job
