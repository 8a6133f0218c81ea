"""Describes jobs on a Docker engine, reads their logs, enters, cancels and deletes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, shortcut
from torchx.schedulers.docker import metrics
from torchx.schedulers.docker.answers import describe, listed
from torchx.schedulers.docker.archive import ArchiveStream
from torchx.schedulers.docker.client import changes, wait_for_end
from torchx.schedulers.docker.containers import Job
from torchx.schedulers.docker.foreign import ForeignContainers
from torchx.schedulers.docker.inside import ContainerProcess
from torchx.schedulers.docker.jobs import EngineJobs
from torchx.schedulers.docker.logs import JobView, ReplicaLog
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.schedulers.docker.reasons import CONTAINER_STATE
from torchx.schedulers.docker.simulate import simulation
from torchx.schedulers.kit.change_stream import ChangeStream
from torchx.schedulers.kit.inside import not_running
from torchx.specs.api import AppState, CfgVal
from torchx.workspace.docker_workspace import DockerWorkspaceMixin
from torchx.workspace.images.engine_errors import engine_errors

if TYPE_CHECKING:
    from torchx.schedulers.kit.foreign import ForeignJobs
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.inside.kept import Kept
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.pace import Rank
    from torchx.schedulers.kit.simulations import Simulation

    _Jobs = list[ListAppResponse]  # within the class below, `list` is a method
    _Metrics = list[ReplicaMetrics]
    _Ranks = list[Rank]
    _Replicas = list[tuple[str, int]]


_NO_LOG = "the log of `%s` cannot be read"


class ManagesJobs(DockerWorkspaceMixin, Scheduler[Mapping[str, CfgVal]]):
    """The part of the backend that knows jobs that were submitted.

    Args:
        docker_client: a ``docker.DockerClient``; by default it is created from the environment on first use.
    """

    hears_all = True

    def __init__(self, session_name: str, docker_client: Any | None = None) -> None:
        super().__init__("docker", session_name, docker_client=docker_client)
        self._used: Any | None = None
        self._ear = ChangeStream()
        self._on_engine = EngineJobs(lambda: self._client, docker_client)

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self._find(app_id, "the state of `%s` is not known")
        return None if job is None else describe(job, self._client)

    @shortcut
    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe jobs with one request. Causes of failures are derived from exit codes alone."""
        wanted = set(app_ids)
        found = self._on_engine.find_all(wanted, "the states of jobs are not known")
        return {app_id: describe(found[app_id]) if app_id in found else None for app_id in wanted}

    @shortcut
    def exists(self, app_id: str) -> bool:
        return self._find(app_id, "the state of `%s` is not known") is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:  # noqa: ARG002  # the contract's signature
        """Return the torchx jobs on the engine, whoever submitted them."""
        return [listed(job) for job in self._on_engine.find_all(None, "jobs cannot be listed").values()]

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        """Sleeps until the engine reports that the job may have ended."""
        doing = "the end of `%s` cannot be waited for"
        with engine_errors(doing % app_id):
            wait_for_end(self._client, app_id, timeout_s, lambda: self._find(app_id, doing))

    def changed(self, app_ids: Sequence[str], most_s: float) -> set[str] | None:  # noqa: ARG002  # all of the engine's
        """See :class:`torchx.schedulers.kit.abilities.PushesChanges`: by the engine's events."""
        return self._ear.take({"events": lambda: changes(self._client)}, most_s)

    @shortcut
    def log_replicas(self, app_id: str) -> _Replicas | None:
        job = self._find(app_id, _NO_LOG)
        return None if job is None else [(role, k) for role, count, _ in job.sizes() for k in range(count)]

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        """Return the replicas' output, of all attempts."""
        job = self._need(app_id, _NO_LOG)
        view = JobView(job, lambda: self._find(app_id, _NO_LOG))
        return [ReplicaLog(self._client, view, role, k, query) for role, k in replicas]

    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        with engine_errors(f"replica {role}/{k} of `{app_id}` cannot be entered"):
            return ContainerProcess(*self._inside(app_id, role, k), argv, tty)

    def steps(self, app_id: str) -> _Ranks:
        """See :class:`torchx.schedulers.kit.abilities.ReportsSteps`."""
        doing = "the steps of `%s` cannot be read"
        with engine_errors(doing % app_id):
            job = self._find(app_id, doing)
            return [] if job is None else metrics.steps(self._client, job)

    def metrics(self, app_id: str) -> _Metrics | None:
        """See :class:`torchx.schedulers.kit.abilities.ReportsUsage`."""
        doing = "the resource usage of `%s` cannot be read"
        with engine_errors(doing % app_id):
            job = self._find(app_id, doing)
            return None if job is None else metrics.read(self._client, job)

    def _inside(self, app_id: str, role: str, k: int, *, ended: bool = False) -> tuple[EngineHttp, str]:
        """Return a connection to the engine, and the id of a replica's container, which runs or may have ``ended``."""
        container = self._need(app_id, "`%s` cannot be entered").need(role, k)
        if container.state is not AppState.RUNNING and not ended:
            raise not_running(app_id, role, k, str(container.state))
        environ = self._on_engine.environment()
        if environ is None:
            raise NotSupportedError(
                "only this process's own client can reach its engine, and it cannot carry a stream",
                hint="set DOCKER_HOST instead of passing a client",
            )
        return EngineHttp(environ), container.id

    def archive(self, app_id: str, role: str, k: int, path: str, *, into: bool) -> InsideProcess:
        """See :class:`torchx.schedulers.kit.abilities.Archives`."""
        with engine_errors(f"files of replica {role}/{k} of `{app_id}` cannot be copied"):
            return ArchiveStream(*self._inside(app_id, role, k), path, into=into)

    def kept(self, app_id: str, role: str, k: int, cwd: str) -> Sequence[Kept]:  # noqa: ARG002  # the ability's signature
        """See :class:`torchx.schedulers.kit.abilities.KeepsFiles`."""
        from functools import partial

        from torchx.schedulers.kit.inside.kept import Kept

        with engine_errors(f"files of replica {role}/{k} of `{app_id}` cannot be copied"):
            engine, container = self._inside(app_id, role, k, ended=True)
            folder = str(engine.get(f"/containers/{container}/json")["Config"].get("WorkingDir") or "/")
            archive = partial(ArchiveStream, engine, container, into=False)
            return [Kept(f"`{folder}` of its container", folder, archive=archive)]

    def _get_app_state(self, container: Any) -> AppState:
        """State of a ``docker.models.containers.Container``. Not used here; kept for subclasses outside of torchx."""
        if container.status == "exited":
            return AppState.FAILED if container.attrs["State"]["ExitCode"] else AppState.SUCCEEDED
        return CONTAINER_STATE.get(container.status, AppState.UNKNOWN)

    def _find(self, app_id: str, doing: str) -> Job | None:
        return self._on_engine.find(app_id, doing % app_id)

    def _need(self, app_id: str, doing: str) -> Job:
        job = self._find(app_id, doing)
        if job is None:
            raise NotFoundError(f"the engine has no job `{app_id}`", hint="`torchx list` shows the jobs")
        return job

    def foreign(self) -> ForeignJobs:
        """See :class:`torchx.schedulers.kit.abilities.KnowsForeign`."""
        return ForeignContainers.of(self)

    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:
        """See :class:`torchx.schedulers.kit.abilities.Simulates`."""
        job = self._need(app_id, "the state of `%s` is not known")
        return simulation(self._client, job, fault, replica)

    def _cancel_existing(self, app_id: str) -> None:
        with engine_errors(f"`{app_id}` could not be cancelled"):
            self._on_engine.cancel(app_id)

    def _delete_existing(self, app_id: str) -> None:
        with engine_errors(f"`{app_id}` could not be deleted"):
            self._on_engine.remove(app_id)

    def close(self) -> None:
        """Close the connection to the engine. Jobs continue to run."""
        if self._used is not None and self._on_engine.given is None:
            self._used.close()

    @property
    def _client(self) -> Any:
        self._used = self._docker_client
        return self._used
