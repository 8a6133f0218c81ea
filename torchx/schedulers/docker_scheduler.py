"""``local_docker``: runs replicas as containers of a Docker engine, independently of the submitting shell.

Options: ``copy_env``, ``env``, ``privileged``, ``cancel_grace_s``; ``image_repo``, ``quiet`` and others of the image
builder.

Each replica is a container ``<app id>-<role>-<k>`` in the job's own network, where other replicas resolve that name and
``<role>-<k>``. The engine stores the whole job (state, definition, logs), so any shell that reaches the engine finds
it. Containers of ended jobs keep their logs until ``torchx delete``. ``DOCKER_HOST`` names the engine; Podman's service
(``podman system service``) works, too.

A job of several containers has a watcher, a small background process: when a replica has failed for good it stops the
others, or restarts them all as the retry policy requires. The engine itself restarts a single container. With
``--notify``, the watcher sends the notice.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError, NotSupportedError, Unsent
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, shortcut
from torchx.schedulers.docker import attempts, doctor, export, metrics
from torchx.schedulers.docker.answers import describe, listed
from torchx.schedulers.docker.archive import ArchiveStream
from torchx.schedulers.docker.client import changes, make_network, wait_for_end
from torchx.schedulers.docker.containers import LABEL_APP_ID, LABEL_REPLICA_ID, LABEL_ROLE_NAME, LABEL_VERSION, Job
from torchx.schedulers.docker.foreign import ForeignContainers
from torchx.schedulers.docker.inside import ContainerProcess
from torchx.schedulers.docker.jobs import EngineJobs
from torchx.schedulers.docker.logs import JobView, ReplicaLog
from torchx.schedulers.docker.options import Opts
from torchx.schedulers.docker.plain_http import EngineHttp
from torchx.schedulers.docker.reasons import CONTAINER_STATE
from torchx.schedulers.docker.request import NAME_RULE, DockerContainer, DockerJob, render_job
from torchx.schedulers.docker.simulate import simulation
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.caps import COMMON
from torchx.schedulers.kit.change_stream import ChangeStream
from torchx.schedulers.kit.export import bases_of
from torchx.schedulers.kit.inside import not_running
from torchx.settings import ENV_IMAGE
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, runopts
from torchx.specs.images import report_image_digest
from torchx.util.records import replace
from torchx.util.reexports import reexports
from torchx.version import __version__
from torchx.workspace.docker_workspace import DockerWorkspaceMixin
from torchx.workspace.images.engine_errors import engine_errors

reexports(__name__)

if TYPE_CHECKING:
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.foreign import ForeignJobs
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.inside.kept import Kept
    from torchx.schedulers.kit.logs import LogQuery
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.pace import Rank
    from torchx.schedulers.kit.simulations import Simulation

    _Jobs = list[ListAppResponse]
    _Metrics = list[ReplicaMetrics]
    _Ranks = list[Rank]
    _Replicas = list[tuple[str, int]]

__all__ = [
    "CONTAINER_STATE",
    "ENV_TORCHX_IMAGE",
    "LABEL_APP_ID",
    "LABEL_REPLICA_ID",
    "LABEL_ROLE_NAME",
    "LABEL_VERSION",
    "NAME_RULE",
    "NETWORK",
    "DockerContainer",
    "DockerJob",
    "DockerOpts",
    "DockerScheduler",
    "Opts",
    "create_scheduler",
    "ensure_network",
    "has_docker",
]

NETWORK = "torchx"
"""Name of the network that :func:`ensure_network` creates. Each job has a network of its own."""

ENV_TORCHX_IMAGE = ENV_IMAGE
DockerOpts = Opts

_NO_LOG = "the log of `%s` cannot be read"


class DockerScheduler(DockerWorkspaceMixin, Scheduler[Mapping[str, CfgVal]]):
    """Runs jobs on a Docker engine.

    Args:
        docker_client: a ``docker.DockerClient``; by default it is created from the environment on first use.
    """

    hears_all = True
    rules = "torchx.schedulers.docker.rules:RULES"
    capabilities = replace(
        COMMON,
        log_streams=("stdout", "stderr", "combined"),
        exec=True,
        log_previous=True,
        metrics="kept",
        retry_actions=("retry", "mem"),
        timeout="yes",
        watchdog=True,
        mounts=("bind", "volume", "device"),
        workspaces=True,
        image_program=True,
        resources=True,
        describe_many=True,
    )

    def __init__(self, session_name: str, docker_client: Any | None = None) -> None:
        super().__init__("docker", session_name, docker_client=docker_client)
        self._used: Any | None = None
        self._ear = ChangeStream()
        self._on_engine = EngineJobs(lambda: self._client, docker_client)

    def _run_opts(self) -> runopts:
        return Opts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Accept roles without resources: they may use all of the engine's machine."""

    def export(self, dryrun_info: AppDryRunInfo[DockerJob]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        return export.export(dryrun_info.request, bases_of(dryrun_info))

    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[DockerJob] | None = None) -> Iterable[Check]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        return doctor.checks(lambda: self._client, job)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[DockerJob]:
        opts = Opts.from_cfg(cfg)
        opts.check()
        pushed = self.dryrun_push_images(copy.deepcopy(app), cfg) if cfg.get("image_repo") else {}
        app_id = make_unique(NAME_RULE.make(app.name, room=16))
        place = self._on_engine.place()
        wishes = attempts.wishes(app, self.capabilities, place)
        request = render_job(app, app_id, opts, session=self.session_name, environ=os.environ, place=place, **wishes)
        request.images_to_push = pushed  # additionally: the containers run the local image
        return AppDryRunInfo(request, str)

    def expected_id(self, dryrun_info: AppDryRunInfo[DockerJob]) -> str:
        return dryrun_info.request.app_id

    def schedule(self, dryrun_info: AppDryRunInfo[DockerJob]) -> str:
        """Pull missing images, creates the network and the containers, and start them, rank 0 first.

        Starts all containers, or removes what it has created. Idempotent: a submitted job is not submitted again.

        Raises:
            BackendError: the engine refused; the message contains its reason.
        """
        job = dryrun_info.request
        doing = f"job `{job.app_id}` could not be submitted"
        with Unsent():
            known = self._on_engine.find(job.app_id, doing)
        if known is not None and any(c.state is not AppState.SUBMITTED for c in known.containers):
            return job.app_id
        with Unsent(), engine_errors(doing):
            if job.images_to_push:
                self.push_images(job.images_to_push)
            for role, digest in self._on_engine.find_images(job).items():
                report_image_digest(dryrun_info, role, digest)
        with engine_errors(doing):
            self._on_engine.submit(job, dryrun_info.submission)
        return job.app_id

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


def create_scheduler(session_name: str, **kwargs: Any) -> DockerScheduler:
    """Create the scheduler ``local_docker``; ``docker_client`` is an optional client to use."""
    return DockerScheduler(session_name, docker_client=kwargs.get("docker_client"))


def has_docker() -> bool:
    """Whether a Docker engine answers; False if the `docker` package is not installed."""
    try:
        import docker
    except ImportError:
        return False
    try:
        with closing(docker.from_env()) as engine:
            return bool(engine.ping())
    except (docker.errors.DockerException, OSError, ValueError):  # of the connection, or of an invalid address
        return False


def ensure_network(client: Any | None = None) -> None:
    """Create the bridge network :data:`NETWORK` if the engine does not have it, for containers of other programs.

    Args:
        client: a ``docker.DockerClient``; created from the environment if None.
    """
    if client is None:
        with closing(DockerScheduler("")) as scheduler:
            ensure_network(scheduler._client)
        return
    with engine_errors(f"network `{NETWORK}` could not be made"):
        if all(network["Name"] != NETWORK for network in client.api.networks(names=[NETWORK])):  # a substring match
            make_network(client, NETWORK, {LABEL_VERSION: __version__}, busy=set)


def _to_str(a: str | bytes) -> str:
    return a.decode("utf-8") if isinstance(a, bytes) else a
