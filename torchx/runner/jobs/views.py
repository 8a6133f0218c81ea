"""Views of a backend that present tasks of a sweep, or paced sweeps, as jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.schedulers.kit.abilities import RunsTasks
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs.api import AppDef, AppDryRunInfo

_Jobs = list[ListAppResponse]
_Replicas = list[tuple[str, int]]


class View(Scheduler[Mapping[str, Any]]):
    """A scheduler that presents something else as jobs; submitting and listing are passed on to ``backend``."""

    def __init__(self, backend: Scheduler[Any]) -> None:
        super().__init__(backend.backend, backend.session_name)
        self.capabilities = backend.capabilities
        self._scheduler = backend

    def job_of(self, app_id: str, replica: tuple[str, int]) -> tuple[Scheduler[Any], str, tuple[str, int]]:
        """Map a replica of this view to the scheduler, app id and replica where it really runs, if it does."""
        raise NotImplementedError

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Any]:
        return self._scheduler._submit_dryrun(app, cfg)

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        return self._scheduler.schedule(dryrun_info)

    def list(self, cfg: Mapping[str, Any] | None = None) -> _Jobs:
        return self._scheduler.list(cfg)


class TaskAsJob(View):
    """Presents one task of a sweep as a job."""

    def __init__(self, backend: RunsTasks, sweep: str, number: int) -> None:
        assert isinstance(backend, Scheduler)  # RunsTasks is a mixin of schedulers
        super().__init__(backend)
        self.wait_hint = backend.wait_hint
        self._of: RunsTasks = backend
        self._sweep, self._number = sweep, number

    def describe(self, app_id: str) -> DescribeAppResponse | None:  # noqa: ARG002  # the contract's signature
        found = self._of.describe_tasks(self._sweep, [self._number])
        return found[0] if found else None

    def log_replicas(self, app_id: str) -> _Replicas | None:  # noqa: ARG002  # as above
        replicas = self._scheduler.log_replicas(self._sweep)
        if replicas is None:
            return None
        own = [replica for replica in replicas if replica[0] == str(self._number)]  # one of several replicas
        return own or [replica for replica in replicas if replica[1] == self._number]

    def job_of(self, app_id: str, replica: tuple[str, int]) -> tuple[Scheduler[Any], str, tuple[str, int]]:  # noqa: ARG002  # as above
        return self._scheduler, self._sweep, self._in_sweep([replica])[0]

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:  # noqa: ARG002  # as above
        return self._scheduler.open_logs(self._sweep, self._in_sweep(replicas), query)

    def _in_sweep(self, replicas: Sequence[tuple[str, int]]) -> Sequence[tuple[str, int]]:
        """Return the names of replicas in the sweep; those in the status of the task may be given, too."""
        own = self.log_replicas(self._sweep) or []
        if all(replica in own for replica in replicas):
            return replicas
        found = self.describe(self._sweep)
        roles = found.roles_statuses if found is not None else []
        names = dict(zip(((role.role, one.id) for role in roles for one in role.replicas), own, strict=False))
        return [replica if replica in own else names.get(replica, replica) for replica in replicas]

    def _cancel_existing(self, app_id: str) -> None:  # noqa: ARG002  # as above
        self._of.cancel_task(self._sweep, self._number)

    def _delete_existing(self, app_id: str) -> None:
        raise NotSupportedError(
            f"`{app_id}` is a task of a sweep, and cannot be deleted alone", hint=f"`torchx delete {self._sweep}`"
        )
