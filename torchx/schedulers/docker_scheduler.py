"""``local_docker``: replicas as containers of a Docker engine, which keeps them when the submitting shell is gone.

Options: ``copy_env``, ``env``, ``privileged``, ``cancel_grace_s``; ``image_repo``, ``quiet`` and others of the image
builder.

Each replica is a container ``<app id>-<role>-<k>`` on a network of the job's own, where the others find it by that name
and by ``<role>-<k>``. All that is asked for later (state, definition, logs) is in the engine, under labels: any shell
that reaches the engine finds the job. Containers of ended jobs stay for their logs until ``torchx delete``.
``DOCKER_HOST`` names the engine; Podman's service (``podman system service``) is one, too.

A job of several containers has a warden, a small process that stays: when a replica has failed for good it ends the
others, or starts them all again as the retry policy says. One container by itself is started again by the engine.
"""

from __future__ import annotations

import os

from torchx.errors import ConfigError, NotFoundError
from torchx.schedulers.api import (
    Capabilities,
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
)
from torchx.schedulers.docker import calls, containers, engine, gangs, wardens
from torchx.schedulers.docker.causes import explain
from torchx.schedulers.docker.containers import (
    CONTAINER_STATE,
    LABEL_APP_ID,
    LABEL_REPLICA_ID,
    LABEL_ROLE_NAME,
    LABEL_VERSION,
)
from torchx.schedulers.docker.options import Opts
from torchx.schedulers.docker.request import DockerContainer, DockerJob, label_of, render_job
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import NameRule
from torchx.settings import ENV_IMAGE
from torchx.specs.api import AppDryRunInfo, AppState, is_terminal, runopts
from torchx.version import __version__
from torchx.workspace.docker_workspace import DockerWorkspaceMixin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from torchx.schedulers.docker.containers import Job
    from torchx.specs.api import AppDef, CfgVal

    _Jobs = list[ListAppResponse]
    _Base = Scheduler[Mapping[str, CfgVal]]
else:
    _Base = Scheduler

__all__ = [
    "CONTAINER_STATE",
    "ENV_TORCHX_IMAGE",
    "LABEL_APP_ID",
    "LABEL_REPLICA_ID",
    "LABEL_ROLE_NAME",
    "LABEL_VERSION",
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
"""Name of the network that :func:`ensure_network` makes. Jobs of ours are on networks of their own."""

ENV_TORCHX_IMAGE = ENV_IMAGE

# https://docs.docker.com/reference/api/engine/version/v1.41/#tag/Container/operation/ContainerCreate; 63 is DNS's.
NAME_RULE = NameRule(63)
_CANCELS = 10  # a warden may just start replicas again; and an engine lists an end a moment after it has told it

CAPABILITIES = Capabilities(
    logs=True,
    log_streams=("stdout", "stderr", "combined"),
    log_since=True,
    log_follow=True,
    cancel=True,
    delete=True,
    list=True,
    retries=("REPLICA", "ROLE", "APPLICATION"),
    elastic=True,
    multi_role=True,
    mounts=("bind", "volume", "device"),
    workspaces=True,
    gpus=True,
    resources=True,
    durable=True,
    describe_many=True,
)


DockerOpts = Opts


# -- the scheduler --------------------------------------------------------------------------------------


class DockerScheduler(DockerWorkspaceMixin, _Base):
    """Runs jobs on a Docker engine.

    Args:
        session_name: groups the jobs.
        docker_client: a ``docker.DockerClient``; by default it is made from the environment when it is first needed.
    """

    capabilities = CAPABILITIES

    def __init__(self, session_name: str, docker_client: Any | None = None) -> None:
        super().__init__("docker", session_name, docker_client=docker_client)
        self._given = docker_client
        self._used: Any | None = None

    def _run_opts(self) -> runopts:
        return Opts.as_runopts()

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """A role that does not say what it needs may have all that the engine's machine has."""

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[DockerJob]:
        import copy

        images_to_push: dict[str, tuple[str, str]] = {}
        if cfg.get("image_repo"):
            images_to_push = self.dryrun_push_images(copy.deepcopy(app), cfg)  # we run the image that is here
        app_id = make_unique(NAME_RULE.make(app.name, room=16))
        opts = Opts.from_cfg(cfg)
        if opts.cancel_grace_s < 0:
            raise ConfigError(
                f"`cancel_grace_s` is `{opts.cancel_grace_s}`", hint="it is a number of seconds: 0 or more"
            )
        place = wardens.place() if wardens.engine_environment(self._given, os.environ) is not None else ""
        request = render_job(app, app_id, opts, session=self.session_name, environ=os.environ, place=place)
        request.images_to_push = images_to_push
        return AppDryRunInfo(request, str)

    def schedule(self, dryrun_info: AppDryRunInfo[DockerJob]) -> str:
        """Pull images that are missing, make the network and the containers, and start them, rank 0 first.

        Either all containers are started, or none is left. What was submitted before is not submitted again.

        Raises:
            BackendError: the engine refused; the message says what and, in its words, why.
        """
        job = dryrun_info.request
        client = self._client
        with engine.engine_errors(f"job `{job.app_id}` could not be submitted"):
            known = self._job(job.app_id)
            if known is not None and any(c.state is not AppState.SUBMITTED for c in known.containers):
                return job.app_id
            if job.images_to_push:
                self.push_images(job.images_to_push)
            self._report(dryrun_info, self._find_images(job))
        warden = self._start_warden(job.app_id) if len(job.containers) > 1 else None
        try:
            self._start(client, job)
        except BaseException:
            self._undo(job.app_id)
            if warden is not None:
                warden.drop()
            raise
        if warden is not None:
            warden.go()
        return job.app_id

    def _undo(self, app_id: str) -> None:
        try:
            self._remove(app_id)
        except Exception as e:  # what went wrong before is more important
            import logging

            logging.getLogger("torchx").warning("parts of `%s` are left, `torchx delete` removes them: %s", app_id, e)

    def _find_images(self, job: DockerJob) -> dict[str, str]:
        """Image -> its digest; those that the engine does not have are pulled."""
        return {image: calls.pull(self._client, image) for image in dict.fromkeys(c.image for c in job.containers)}

    @staticmethod
    def _report(info: AppDryRunInfo[DockerJob], digests: Mapping[str, str]) -> None:
        from torchx.specs.images import report_image_digest

        for container in info.request.containers:
            if label_of(container, LABEL_REPLICA_ID) == "0":
                report_image_digest(info, label_of(container, LABEL_ROLE_NAME), digests[container.image])

    def _start(self, client: Any, job: DockerJob) -> None:
        with engine.engine_errors(f"the network of job `{job.app_id}` could not be made"):
            labels = {LABEL_APP_ID: job.app_id, LABEL_VERSION: __version__}
            engine.make_network(client, job.app_id, labels, busy=self._busy_networks)
        made = engine.side_by_side(lambda container: calls.create(client, container), job.containers)
        first, *others = zip(made, job.containers, strict=True)  # the others look for its name at once
        calls.start(first)
        engine.side_by_side(calls.start, others)

    def _busy_networks(self) -> set[str]:
        """Networks of jobs that have not ended: a container that is being restarted is on none."""
        jobs = self._jobs(LABEL_APP_ID)
        return {a for a, job in jobs.items() if any(not is_terminal(c.state) for c in job.containers)}

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        with engine.engine_errors(f"the state of `{app_id}` is not known"):
            job = self._job(app_id)
            if job is None:
                return None
            found = containers.describe(job)
            if is_terminal(found.state):
                found = containers.describe(job, explain(self._client, job, found.state))
            return found

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """One question for all; causes of failures are told as far as exit codes tell them."""
        wanted = set(app_ids)
        with engine.engine_errors("the states of jobs are not known"):
            jobs = self._jobs(LABEL_APP_ID)
        self._see_to(*(job for app_id, job in jobs.items() if app_id in wanted))
        return {app_id: containers.describe(jobs[app_id]) if app_id in jobs else None for app_id in wanted}

    def exists(self, app_id: str) -> bool:
        with engine.engine_errors(f"the state of `{app_id}` is not known"):
            return self._job(app_id) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:  # noqa: ARG002  # the contract's signature
        """The jobs of the engine, whoever submitted them; containers of others are left out."""
        with engine.engine_errors("jobs cannot be listed"):
            jobs = self._jobs(LABEL_APP_ID).values()
        self._see_to(*jobs)
        return [containers.listed(job) for job in jobs]

    def wait_for_end(self, app_id: str, timeout_s: float) -> None:
        """Sleeps until the engine tells that the job may have ended."""
        with engine.engine_errors(f"the end of `{app_id}` cannot be waited for"):
            calls.wait_for_end(self._client, app_id, timeout_s, lambda: self._job(app_id))

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
        """What the replica wrote, all its attempts."""
        from torchx.schedulers.docker.logs import log_lines

        query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
        with engine.engine_errors(f"the log of `{app_id}` cannot be read"):
            found = self._job(app_id)
            if found is None:
                raise NotFoundError(f"the engine has no job `{app_id}`", hint="`torchx list` shows the jobs")
            container = found.need(role_name, k)

        def goes_on() -> bool:
            job = self._job(app_id)
            now = job.find(role_name, k) if job else None
            return job is not None and now is not None and gangs.goes_on(job, now)

        return query.matching(log_lines(self._client, container.id, query, goes_on=goes_on))

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        """End what runs, all at once: SIGTERM, and SIGKILL after the grace period. Containers and logs are kept."""
        with engine.engine_errors(f"`{app_id}` could not be cancelled"):
            ours: set[str] = set()
            for attempt in range(_CANCELS):
                if attempt > 1:
                    engine.pause(attempt)
                job = self._find(app_id)
                if job is None:
                    return
                ours |= {c.id for c in job.containers if gangs.goes_on(job, c)}
                left = [c for c in job.containers if c.id in ours and c.state is not AppState.CANCELLED]
                if not left:
                    return
                environ = wardens.engine_environment(self._given, os.environ)
                calls.stop_all(self._client, environ, left, gangs.rules_of(job).grace_s)

    def _delete_existing(self, app_id: str) -> None:
        """Remove containers and network; a job that runs is ended at once."""
        with engine.engine_errors(f"`{app_id}` could not be deleted"):
            self._remove(app_id)

    def close(self) -> None:
        """Let go of the connection to the engine. Jobs go on."""
        if self._used is not None and self._given is None:
            self._used.close()

    # -- the engine ------------------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        self._used = self._docker_client
        return self._used

    def _jobs(self, label: str) -> dict[str, Job]:
        """An engine that is just being restarted is waited for, once it has answered."""
        api = self._client.api
        return containers.jobs_of(engine.patiently(lambda: api.containers(all=True, filters={"label": [label]})))

    def _find(self, app_id: str) -> Job | None:
        return self._jobs(f"{LABEL_APP_ID}={app_id}").get(app_id)

    def _job(self, app_id: str) -> Job | None:
        job = self._find(app_id)
        if job is not None:
            self._see_to(job)
        return job

    # -- its wardens -----------------------------------------------------------------------------

    def _start_warden(self, app_id: str) -> wardens.Starting | None:
        """A warden for a job; None, after a warning, when there can be none."""
        environ = wardens.engine_environment(self._given, os.environ)
        why = "only this program knows the way to its engine"
        try:
            if environ is not None:
                return wardens.start(app_id, environ)
        except OSError as e:
            why = f"no process can be started: {e.strerror}"
        import logging

        text = "nobody watches `%s`, for %s: when a replica fails, the others run on, and are not started again"
        logging.getLogger("torchx").warning(text, app_id, why)
        return None

    def _see_to(self, *jobs: Job) -> None:
        """Jobs that have lost their warden, here, get another one. A submission has its own."""
        for job in jobs:
            submitting = any(c.state is AppState.SUBMITTED for c in job.containers)
            if not submitting and gangs.needs_warden(job) and gangs.rules_of(job).place == wardens.place():
                warden = None if wardens.lives(job.app_id) else self._start_warden(job.app_id)
                if warden is not None:
                    warden.go()

    def _remove(self, app_id: str) -> None:
        """Removes all that carries the job's label."""
        client = self._client
        label = f"{LABEL_APP_ID}={app_id}"
        ids = [c["Id"] for c in client.api.containers(all=True, filters={"label": [label]})]
        engine.side_by_side(lambda i: calls.remove(client, i), ids)
        engine.remove_networks(client, [label], keep=set())


def create_scheduler(session_name: str, **kwargs: Any) -> DockerScheduler:
    """The factory of ``local_docker``; ``docker_client`` is the client to use, if it is given."""
    return DockerScheduler(session_name, docker_client=kwargs.get("docker_client"))


def has_docker() -> bool:
    """Whether a Docker engine answers; False as well when the `docker` package is not installed."""
    try:
        import docker
    except ImportError:
        return False
    try:
        client = docker.from_env()
    except docker.errors.DockerException:
        return False
    try:
        return bool(client.ping())
    except (docker.errors.DockerException, OSError):  # errors of the connection are OSErrors
        return False
    finally:
        client.close()


def ensure_network(client: Any | None = None) -> None:
    """Makes the bridge network :data:`NETWORK` if the engine does not have it, for containers besides torchx's jobs.

    Args:
        client: a ``docker.DockerClient``; made from the environment when None.
    """
    if client is None:
        scheduler = DockerScheduler("")
        try:
            ensure_network(scheduler._client)
        finally:
            scheduler.close()
        return
    with engine.engine_errors(f"network `{NETWORK}` could not be made"):
        if all(network["Name"] != NETWORK for network in client.api.networks(names=[NETWORK])):  # parts match, too
            engine.make_network(client, NETWORK, {LABEL_VERSION: __version__}, busy=set)


def _to_str(a: str | bytes) -> str:
    return a.decode("utf-8") if isinstance(a, bytes) else a
