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

from torchx.errors import Unsent
from torchx.schedulers.docker import attempts, doctor, export
from torchx.schedulers.docker.client import make_network
from torchx.schedulers.docker.containers import LABEL_APP_ID, LABEL_REPLICA_ID, LABEL_ROLE_NAME, LABEL_VERSION
from torchx.schedulers.docker.managing import ManagesJobs
from torchx.schedulers.docker.options import Opts
from torchx.schedulers.docker.reasons import CONTAINER_STATE
from torchx.schedulers.docker.request import NAME_RULE, DockerContainer, DockerJob, render_job
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.caps import COMMON
from torchx.schedulers.kit.export import bases_of
from torchx.settings import ENV_IMAGE
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal
from torchx.specs.images import report_image_digest
from torchx.util.records import replace
from torchx.util.reexports import reexports
from torchx.version import __version__
from torchx.workspace.images.engine_errors import engine_errors

reexports(__name__)

if TYPE_CHECKING:
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.nodes import Pool
    from torchx.specs.api import Resource


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


class DockerScheduler(ManagesJobs):
    """Runs jobs on a Docker engine.

    Args:
        docker_client: a ``docker.DockerClient``; by default it is created from the environment on first use.
    """

    options = Opts
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
        idle=True,
        order=("tcp", "http", "log", "file"),
        mounts=("bind", "volume", "device"),
        workspaces=True,
        image_program=True,
        resources=True,
        describe_many=True,
    )

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal] | None = None) -> None:
        """Accept roles without resources: they may use all of the engine's machine."""

    def export(self, dryrun_info: AppDryRunInfo[DockerJob]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        return export.export(dryrun_info.request, bases_of(dryrun_info))

    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[DockerJob] | None = None) -> Iterable[Check]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        return doctor.checks(lambda: self._client, job)

    def nodes(self, cfg: Mapping[str, CfgVal], need: Resource | None, count: int) -> Sequence[Pool]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.ListsNodes`."""
        from torchx.schedulers.docker.nodes import nodes
        from torchx.schedulers.kit.nodes import pools_of

        return pools_of(nodes(self._client), need)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[DockerJob]:
        opts = Opts.from_cfg(cfg)
        opts.check()
        pushed = self.dryrun_push_images(copy.deepcopy(app), cfg) if cfg.get("image_repo") else {}
        app_id = make_unique(NAME_RULE.make(app.name, room=16))
        place = self._on_engine.place()
        wishes = attempts.wishes(app, self.capabilities, place)
        if wishes.get("order"):
            from torchx.schedulers.docker.order import check_reach

            check_reach(app, self._on_engine.environment())
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
        if known is not None and any(c.state is not AppState.SUBMITTED and not c.mark.due for c in known.containers):
            return job.app_id
        with Unsent(), engine_errors(doing):
            if job.images_to_push:
                self.push_images(job.images_to_push)
            for role, digest in self._on_engine.find_images(job).items():
                report_image_digest(dryrun_info, role, digest)
        with engine_errors(doing):
            self._on_engine.submit(job, dryrun_info.submission)
        return job.app_id


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
