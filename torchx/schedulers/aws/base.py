"""The base of the backends on AWS: clients, logins, the verbs, logs.

A backend says how a job is submitted, found and ended, and makes facts of answers; everything around that is here.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torchx.errors import NotFoundError, TorchXError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.schedulers.aws import logs
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.doctor import checks
from torchx.schedulers.aws.ecr import EcrLogins
from torchx.schedulers.aws.logs import Streams
from torchx.schedulers.failures.reader import Evidence
from torchx.schedulers.findings import Check
from torchx.schedulers.findings.images import image_checks
from torchx.schedulers.kit import verdict
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs.api import AppDryRunInfo, AppState, CfgVal, is_terminal
from torchx.specs.images import report_image_digest
from torchx.workspace.docker_workspace import DockerWorkspaceMixin
from torchx.workspace.images import registry_auth

_Object = dict[str, Any]
_Jobs = list[ListAppResponse]
_Ids = list[str]  # within the class, `list` is a method
_Ours = list[tuple[str, _Object]]
_Replicas = list[tuple[str, int]]
_Lines = Iterable[tuple[str, _Object]]


class AwsScheduler(DockerWorkspaceMixin, Scheduler[Mapping[str, CfgVal]]):
    """Base of the backends that are services of AWS. What AWS answers about a job is called ``job`` throughout.

    Args:
        clients: of the account and region; by default as boto3 is configured, made when they are first needed.
    """

    service: str = ""
    """As boto3 calls it."""

    shown: str = ""
    """As people call it."""

    def __init__(
        self, backend: str, session_name: str, docker_client: Any | None = None, *, clients: Clients | None = None
    ) -> None:
        super().__init__(backend, session_name, docker_client=docker_client)
        self._clients = clients or Clients()
        self._logins = EcrLogins(self._clients)
        registry_auth.PROVIDERS["ecr"] = self._logins.credentials
        self._sleep: Callable[[float], None] = time.sleep

    # -- what a backend says ---------------------------------------------------------------------

    def _find(self, app_ids: _Ids) -> dict[str, _Object]:
        """By their ids, those jobs that there are and that are ours."""
        raise NotImplementedError

    def _listed(self, cfg: Mapping[str, CfgVal]) -> _Lines:
        """Ids and what is known of our jobs."""
        raise NotImplementedError

    def _of_user(self, lines: _Ours, user: str) -> _Ours:  # noqa: ARG002  # what overrides need
        """Those of ``lines`` that this user has submitted; the default: :meth:`_listed` has seen to it."""
        return lines

    def _facts(self, app_id: str, job: _Object, *, closely: bool) -> JobFacts:
        """What AWS says of a job.

        Args:
            job: an answer, or a line of a list.
            closely: make more calls to say why it waits or failed; not for many jobs at a time.
        """
        raise NotImplementedError

    def _streams(self, job: _Object, replicas: Sequence[tuple[str, int]]) -> Streams:
        """Where the lines of these replicas are; those that the job does not have are left out."""
        raise NotImplementedError

    def _end(self, app_id: str, job: _Object) -> None:
        """Ends a job that has not ended."""
        raise NotImplementedError

    def _forget(self, app_id: str, job: _Object) -> None:
        """Removes what there is of a job that was ended."""
        raise NotImplementedError

    # -- parts of a submission -------------------------------------------------------------------

    @property
    def _client(self) -> Any:
        return self._clients.client(self.service)

    @property
    def _region(self) -> str:
        return str(self._client.meta.region_name or "")

    @staticmethod
    def _who() -> str:
        return getpass.getuser()

    def _push(self, images: dict[str, tuple[str, str]], info: AppDryRunInfo[Any], *, create: bool = False) -> None:
        """Pushes the images with workspaces, logged in to ECR, and records their digests.

        Args:
            create: make repositories that are not there.
        """
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

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self._look(app_id)
        return None if job is None else self._answer(app_id, job, closely=True)

    def _answer(self, app_id: str, job: _Object, *, closely: bool) -> DescribeAppResponse:
        """The verdict; arguments as of :meth:`_facts`."""
        look = (lambda replicas: self._left_behind(job, replicas)) if closely else None
        return verdict.describe(self._facts(app_id, job, closely=closely), look)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """A hundred jobs a call; causes as far as the service names them without being asked again."""
        wanted = list(app_ids)
        found = self._find(wanted)
        return {a: self._answer(a, found[a], closely=False) if a in found else None for a in wanted}

    def _state(self, app_id: str, job: _Object) -> AppState:
        return verdict.state_of(self._facts(app_id, job, closely=False))

    def _left_behind(self, job: _Object, replicas: Sequence[ReplicaFacts]) -> Sequence[Evidence]:
        """The ends of the replicas' logs; stdout and stderr are one."""
        try:
            streams = self._streams(job, [(r.role, r.replica) for r in replicas])
            client = self._clients.client("logs")
        except TorchXError:
            return [Evidence(said=r.reason) for r in replicas]  # they would only explain something else
        found = []
        for r in replicas:
            group, names = streams.get((r.role, r.replica), ("", []))
            found.append(Evidence(stderr=logs.tail(client, group, names[-1]) if names else "", said=r.reason))
        return found

    def exists(self, app_id: str) -> bool:
        return self._look(app_id) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """Jobs that torchx has submitted, newest first; of ``user`` and ``state`` if these are in ``cfg``."""
        given = dict(cfg or {})
        wanted = given.get("state") or ()
        states = {str(s).upper() for s in (wanted if isinstance(wanted, (list, tuple, set)) else [wanted])}
        lines = [(a, job) for a, job in self._listed(given) if not states or self._state(a, job).name in states]
        if given.get("user"):
            lines = self._of_user(lines, str(given["user"]))
        return [ListAppResponse(a, self._state(a, job), name=a.rpartition(":")[2]) for a, job in lines]

    def log_replicas(self, app_id: str) -> _Replicas | None:
        job = self._look(app_id)
        if job is None:
            return None
        return [(r.role, r.replica) for r in self._facts(app_id, job, closely=False).replicas()]

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        """What replicas wrote, all their attempts, out of CloudWatch."""
        logs.refuse_streams(query)
        job = self._look(app_id)
        if job is None:
            raise NotFoundError(f"{self.shown} has no job `{app_id}`", hint="`torchx list` shows the jobs")

        def read(job: _Object) -> tuple[bool, Streams]:
            return is_terminal(self._state(app_id, job)), self._streams(job, replicas)

        look = logs.SharedLook(job, lambda: self._look(app_id), read)
        client = self._clients.client("logs")
        return [logs.ReplicaLog(client, replica, look, query, sleep=self._sleep) for replica in replicas]

    def _look(self, app_id: str) -> _Object | None:
        return self._find([app_id]).get(app_id)

    # -- the end ---------------------------------------------------------------------------------

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
        """Close the connections. Jobs go on."""
        self._clients.close()
