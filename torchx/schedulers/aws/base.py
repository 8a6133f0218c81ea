"""Base class of the AWS backends: clients, ECR logins, verbs and logs.

A backend implements how jobs are submitted, found and cancelled, and converts answers of AWS into facts.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchx.errors import NotFoundError, TorchXError
from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler, shortcut
from torchx.schedulers.aws import logs
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.doctor import checks
from torchx.schedulers.aws.ecr import EcrLogins
from torchx.schedulers.aws.logs import Streams
from torchx.schedulers.kit import verdict
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.findings import Check
from torchx.schedulers.kit.findings.images import image_checks
from torchx.schedulers.kit.logs import LogQuery, refuse_streams
from torchx.schedulers.kit.views import by_view
from torchx.specs.api import AppDryRunInfo, AppState, CfgVal, is_terminal
from torchx.specs.images import report_image_digest
from torchx.workspace.docker_workspace import DockerWorkspaceMixin
from torchx.workspace.images import registry_auth

_Object = dict[str, Any]
_Ids = list[str]  # within the class, `list` is a method
_Listed = list[ListAppResponse]
_Replicas = list[tuple[str, int]]
_Jobs = Iterable[tuple[str, _Object]]


class AwsScheduler(DockerWorkspaceMixin, Scheduler[Mapping[str, CfgVal]]):
    """Base of the backends that are AWS services. A ``job`` is the description of a job in an answer of AWS."""

    service: str = ""
    """Name of the service in boto3."""

    display_name: str = ""
    """Name of the service in messages."""

    capabilities = Capabilities(
        setup="sh",
        logs=True,
        log_streams=("combined",),
        log_since=True,
        log_follow=True,
        log_timestamps=True,
        cancel=True,
        list=True,
        retry_actions=("retry",),
        workspaces=True,
        gpus=True,
        resources=True,
        durable=True,
        describe_many=True,
    )

    def __init__(
        self, backend: str, session_name: str, docker_client: Any | None = None, *, clients: Clients | None = None
    ) -> None:
        super().__init__(backend, session_name, docker_client=docker_client)
        self._clients = clients or Clients()
        self._logins = EcrLogins(self._clients)
        registry_auth.PROVIDERS["ecr"] = self._logins.credentials
        self._sleep: Callable[[float], None] = time.sleep

    # -- implemented by a backend ----------------------------------------------------------------

    def _find(self, app_ids: _Ids) -> dict[str, _Object]:
        """Return the torchx jobs with these ids, as far as they exist, by id."""
        raise NotImplementedError

    def _listed(self, cfg: Mapping[str, CfgVal]) -> _Jobs:
        """All torchx jobs, with their ids."""
        raise NotImplementedError

    def _of_user(self, jobs: _Jobs, user: str) -> _Jobs:  # noqa: ARG002  # what overrides need
        """Return the jobs that ``user`` has submitted. By default :meth:`_listed` filters by user."""
        return jobs

    def _facts(self, app_id: str, job: _Object, *, detailed: bool) -> JobFacts:
        """Return the facts of a job. ``detailed``: make further calls to find out why it waits or has failed."""
        raise NotImplementedError

    def _streams(self, job: _Object, replicas: Sequence[tuple[str, int]]) -> Streams:
        """Log streams of these replicas; those that the job does not have are left out."""
        raise NotImplementedError

    def _end(self, app_id: str, job: _Object) -> None:
        """Cancel a job that has not ended."""
        raise NotImplementedError

    def _forget(self, app_id: str, job: _Object) -> None:
        """Remove a job that was cancelled or has ended."""
        raise NotImplementedError

    # -- common to all backends ------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        return self._clients.client(self.service)

    @property
    def _region(self) -> str:
        return str(self._client.meta.region_name or "")

    @staticmethod
    def _who() -> str:
        try:
            return getpass.getuser()
        except (KeyError, OSError):  # a container that runs with an arbitrary uid
            return str(os.getuid())

    def _push(self, images: dict[str, tuple[str, str]], info: AppDryRunInfo[Any], *, create: bool = False) -> None:
        """Log in to ECR, pushes images, and record their digests; ``create``: creates missing repositories, too."""
        if not images:
            return
        by_engine = any(image.startswith("sha256:") for image in images)
        self._logins.prepare(images.values(), self._docker_client if by_engine else None, create=create)
        self.push_images(images)
        for role in info._app.roles if info._app is not None else []:
            report_image_digest(info, role.name, self.pushed_digest(role.image))

    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[Any] | None = None) -> Iterable[Check]:
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        roles = job._app.roles if job is not None and job._app is not None else []
        return [*checks(self._clients, cfg, roles), *(image_checks(job, set) if job is not None else ())]

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self._look(app_id)
        return None if job is None else self._answer(app_id, job, detailed=True)

    def _answer(self, app_id: str, job: _Object, *, detailed: bool) -> DescribeAppResponse:
        look = (lambda replicas: self._evidence(job, replicas)) if detailed else None
        return verdict.describe(self._facts(app_id, job, detailed=detailed), look)

    @shortcut
    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """Describe up to a hundred jobs per call. Causes are reported only if the description contains them."""
        wanted = list(app_ids)
        found = self._find(wanted)
        return {a: self._answer(a, found[a], detailed=False) if a in found else None for a in wanted}

    def _state(self, app_id: str, job: _Object) -> AppState:
        return verdict.state_of(self._facts(app_id, job, detailed=False))

    def _evidence(self, job: _Object, replicas: Sequence[ReplicaFacts]) -> Sequence[Evidence]:
        """Return the last lines of the replicas' logs, in which stdout and stderr are mixed."""
        try:
            streams = self._streams(job, [(r.role, r.replica) for r in replicas])
            client = self._clients.client("logs")
        except TorchXError:
            return [Evidence(said=r.reason) for r in replicas]  # report the job without them
        found = []
        for r in replicas:
            group, names = streams.get((r.role, r.replica), ("", []))
            found.append(Evidence(stderr=logs.tail(client, group, names[-1]) if names else "", said=r.reason))
        return found

    @shortcut
    def exists(self, app_id: str) -> bool:
        return self._look(app_id) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Listed:
        """Jobs that torchx has submitted, newest first, filtered by ``user`` and ``state`` in ``cfg``."""
        given = dict(cfg or {})
        wanted = given.get("state") or ()
        states = {str(s).upper() for s in (wanted if isinstance(wanted, (list, tuple, set)) else [wanted])}
        jobs: _Jobs = [(a, job) for a, job in self._listed(given) if not states or self._state(a, job).name in states]
        if given.get("user"):
            jobs = self._of_user(jobs, str(given["user"]))
        return [ListAppResponse(a, self._state(a, job), name=a.rpartition(":")[2]) for a, job in jobs]

    @shortcut
    def log_replicas(self, app_id: str) -> _Replicas | None:
        job = self._look(app_id)
        return None if job is None else self._replicas(app_id, job)

    def _replicas(self, app_id: str, job: _Object) -> _Replicas:
        return [(r.role, r.replica) for r in self._facts(app_id, job, detailed=False).replicas()]

    @by_view
    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        """Return the replicas' output in CloudWatch, of all attempts."""
        refuse_streams(query, "CloudWatch")
        job = self._look(app_id)
        if job is None:
            raise NotFoundError(f"{self.display_name} has no job `{app_id}`", hint="`torchx list` shows the jobs")

        def read(job: _Object) -> tuple[bool, Streams]:
            return is_terminal(self._state(app_id, job)), self._streams(job, replicas)

        look = logs.SharedLook(job, lambda: self._look(app_id), read)
        client = self._clients.client("logs")
        return [logs.ReplicaLog(client, replica, look, query, sleep=self._sleep) for replica in replicas]

    def view_of(self, app_id: str) -> AwsScheduler:  # noqa: ARG002  # a hook
        """Return the view of this job; itself, if nothing about the job is special."""
        return self

    def _look(self, app_id: str) -> _Object | None:
        return self._find([app_id]).get(app_id)

    def _cancel_existing(self, app_id: str) -> None:
        job = self._look(app_id)
        if job is not None and not is_terminal(self._state(app_id, job)):
            self._end(app_id, job)

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        job = self._look(app_id)
        if job is not None:
            self._forget(app_id, job)

    def close(self) -> None:
        """Close the connections. Jobs continue to run."""
        self._clients.close()
