"""What the backends on AWS share as schedulers: clients, logins, the verbs, logs.

A backend says how a job is submitted, found, described and ended; everything around it is here.
"""

from __future__ import annotations

import time

from torchx.errors import NotFoundError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.aws.clients import Clients
from torchx.schedulers.aws.ecr import EcrLogins
from torchx.specs.api import AppState, is_terminal
from torchx.workspace.docker_workspace import DockerWorkspaceMixin
from torchx.workspace.images import registry_auth

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from torchx.specs.api import AppDryRunInfo, CfgVal

    _Object = dict[str, Any]
    _Jobs = list[ListAppResponse]
    _Lines = Iterable[tuple[str, _Object]]
    _Base = Scheduler[Mapping[str, CfgVal]]
else:
    _Base = Scheduler


class AwsScheduler(DockerWorkspaceMixin, _Base):
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

    def _state(self, job: _Object) -> AppState:
        raise NotImplementedError

    def _answer(self, app_id: str, job: _Object, *, closely: bool) -> DescribeAppResponse:
        """The description of a job.

        Args:
            closely: ask more calls, and say why it waits or failed; not for many jobs at a time.
        """
        raise NotImplementedError

    def _log_of(self, app_id: str, job: _Object, role: str, k: int) -> tuple[str, Callable[[], _Ids]] | None:
        """The log group of a replica, and what finds its streams, oldest first; None: the job has no such replica."""
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
        return str(getattr(getattr(self._client, "meta", None), "region_name", "") or "")

    @staticmethod
    def _who() -> str:
        import getpass

        return getpass.getuser()

    def _push(self, images: dict[str, tuple[str, str]], info: AppDryRunInfo[Any], *, create: bool = False) -> None:
        """Pushes the images with workspaces, logged in to ECR, and tells the record what they are called for good.

        Args:
            create: make repositories that are not there.
        """
        if not images:
            return
        from torchx.specs.images import report_image_digest

        by_engine = any(image.startswith("sha256:") for image in images)
        self._logins.prepare(images.values(), self._docker_client if by_engine else None, create=create)
        self.push_images(images)
        for role in info._app.roles if info._app is not None else []:
            report_image_digest(info, role.name, self.pushed_digest(role.image))

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self._look(app_id)
        return None if job is None else self._answer(app_id, job, closely=True)

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        """A hundred jobs a call; causes as far as the service names them without being asked again."""
        wanted = list(app_ids)
        found = self._find(wanted)
        return {a: self._answer(a, found[a], closely=False) if a in found else None for a in wanted}

    def exists(self, app_id: str) -> bool:
        return self._look(app_id) is not None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        """Jobs that torchx has submitted, newest first; of ``user`` and ``state`` if these are in ``cfg``."""
        given = dict(cfg or {})
        wanted = given.get("state") or ()
        states = {str(s).upper() for s in (wanted if isinstance(wanted, (list, tuple, set)) else [wanted])}
        lines = [(a, job) for a, job in self._listed(given) if not states or self._state(job).name in states]
        if given.get("user"):
            lines = self._of_user(lines, str(given["user"]))
        return [ListAppResponse(a, self._state(job), name=a.rpartition(":")[2]) for a, job in lines]

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
        """What the replica wrote, all its attempts, out of CloudWatch."""
        from torchx.schedulers.aws import logs
        from torchx.schedulers.kit.logs import LogQuery

        query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
        logs.refuse_streams(query)
        job = self._look(app_id)
        if job is None:
            raise NotFoundError(f"{self.shown} has no job `{app_id}`", hint="`torchx list` shows the jobs")
        found = self._log_of(app_id, job, role_name, k)
        if found is None:
            raise NotFoundError(f"job `{app_id}` has no replica `{role_name}/{k}`")

        def over() -> bool:
            now = self._look(app_id)
            return now is None or is_terminal(self._state(now))

        client = self._clients.client("logs")
        return query.matching(logs.follow(client, *found, query, over=over, sleep=self._sleep))

    def _tail(self, group: str, streams: _Ids) -> str:
        """The end of the newest of these logs."""
        from torchx.schedulers.aws import logs

        return logs.tail(self._clients.client("logs"), group, streams[-1]) if streams else ""

    def _look(self, app_id: str) -> _Object | None:
        return self._find([app_id]).get(app_id)

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        job = self._look(app_id)
        if job is not None and not is_terminal(self._state(job)):
            self._end(app_id, job)

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        job = self._look(app_id)
        if job is not None:
            self._forget(app_id, job)

    def close(self) -> None:
        """Lets go of the connections. Jobs go on."""
        self._clients.close()


if TYPE_CHECKING:
    _Ids = list[str]  # within the class above, `list` is a method
    _Ours = list[tuple[str, _Object]]
