"""The Runner's verbs that read the logs of jobs, and that end jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchx.runner.events import log_event
from torchx.runner.ground.registry import read_run, run_registry
from torchx.runner.launch.record import forget_notices
from torchx.runner.watching import answers
from torchx.runner.watching.verbs import Watches
from torchx.specs.api import UnknownAppException

if TYPE_CHECKING:
    from datetime import datetime

    from torchx.schedulers.api import Scheduler, Stream
    from torchx.schedulers.kit.logs import LogQuery

    _Replicas = list[tuple[str, int]]

_forgotten: set[str] = set()
"""Jobs that their schedulers do not know any more; their logs are in the archive."""


def _may_be_gone(handle: str, backend: Scheduler[Any]) -> bool:
    """Whether the archive may have logs that the scheduler has lost: call it after :meth:`Handles.log_replicas`."""
    if handle in _forgotten or not backend.capabilities.log_keep:
        return handle in _forgotten
    run = run_registry().get(handle)
    return run is not None and run.is_terminal()


class Handles(Watches):
    """Reads the logs of jobs, cancels and deletes jobs."""

    def log_lines(  # noqa: PLR0917  # public signature
        self,
        app_handle: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Iterate over the log lines of replica ``k`` of a role, each with its line end.

        Args:
            regex: only lines that match this regular expression.
            since: only lines written at or after this time; a time without a time zone is local time.
            until: only lines written before this time.
            should_tail: follow the log until the job ends.
            streams: stdout, stderr or both combined; None: the scheduler's default.

        Raises:
            UnknownAppException: the scheduler does not know the job.
            NotFoundError: the job has no such role or replica.
            NotSupportedError: the scheduler does not provide logs.
        """
        with log_event("log_lines") as event:
            handle, backend, app_id = self._locate(app_handle, event)
            answers.check_replica(self.log_replicas(handle), handle, role_name, k)
            if _may_be_gone(handle, backend):
                from torchx.schedulers.kit.logs import LogQuery

                query = LogQuery.of(regex=regex, since=since, until=until, should_tail=should_tail, streams=streams)
                return self.open_logs(handle, [(role_name, k)], query)[0]
            return backend.log_iter(app_id, role_name, k, regex, since, until, should_tail, streams=streams)

    def log_replicas(self, app_handle: str) -> _Replicas:
        """Return all replicas of a job as ``(role, number)``.

        Raises:
            UnknownAppException: the scheduler does not know the job.
        """
        handle, backend, app_id = self._locate(app_handle)
        if not (found := backend.log_replicas(app_id)):
            from torchx.runner.watching import archive

            if kept := archive.replicas(handle):
                _forgotten.add(handle)
                return kept
        if found is None:
            raise UnknownAppException(handle)
        return found

    def archive_logs(self, app_handle: str) -> int:
        """Copy the logs of a job to the archive, and return how many; see :mod:`torchx.runner.watching.archive`."""
        from torchx.runner.watching import archive

        handle, backend, app_id = self._locate(app_handle)
        return archive.keep(backend, app_id, handle)

    def open_logs(self, app_handle: str, replicas: _Replicas, query: LogQuery) -> Sequence[Iterable[str]]:
        """Return an iterable of log lines for each of several replicas; the scheduler is queried once."""
        from torchx.schedulers.api import open_logs

        with log_event("log_lines") as event:
            handle, backend, app_id = self._locate(app_handle, event)
            if backend.may_have_secrets(app_id):
                read_run(answers.whole(handle))  # masks its secrets
            if not _may_be_gone(handle, backend) or (query.previous and handle not in _forgotten):
                return open_logs(backend, app_id, replicas, query)
            from torchx.runner.watching import archive

            kept = archive.replicas(handle)
            others = [replica for replica in replicas if replica not in kept]
            live = iter(open_logs(backend, app_id, others, query) if others else ())
            return [archive.lines(handle, one, query) if one in kept else next(live) for one in replicas]

    def cancel(self, app_handle: str, *, force: bool = False) -> None:
        """Cancel a job. Does nothing if the job has ended.

        Args:
            force: also cancel a job that torchx did not launch.

        Raises:
            UnknownAppException: neither the scheduler nor the run registry knows the job.
            NotSupportedError: torchx did not launch the job, and ``force`` is not set.
        """
        with log_event("cancel") as event:
            _, backend, app_id = self._locate_known(app_handle, event, force=force)
            backend.cancel(app_id)

    def stop(self, app_handle: str) -> None:
        """Do as :meth:`cancel`, which replaces this."""
        import warnings

        warnings.warn("`Runner.stop` is deprecated, use `Runner.cancel`", DeprecationWarning, stacklevel=2)
        self.cancel(app_handle)

    def delete(self, app_handle: str, *, force: bool = False) -> None:
        """Delete a job from its scheduler and from the run registry. A job that still runs is cancelled first.

        Arguments and errors are those of :meth:`cancel`.
        """
        with log_event("delete") as event:
            handle, backend, app_id = self._locate_known(app_handle, event, force=force)
            backend.delete(app_id)
            run_registry().forget(handle)
            forget_notices(handle)

    def _role(self, handle: str, name: str | None) -> str:
        """Return the role of that name, or the first role of the job."""
        return self.log_replicas(handle)[0][0] if name is None else name
