"""Jobs at a site that torchx did not launch, with their output in files of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.batch.base import BatchScheduler
from torchx.schedulers.batch.folders import TAIL_BYTES, JobFolder, LogPaths
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.foreign import ForeignJobs
from torchx.specs.api import AppState, is_terminal
from torchx.util.records import replace

if TYPE_CHECKING:
    from torchx.schedulers.batch.sites import Site
    from torchx.schedulers.kit.files import Files


class Outputs(JobFolder):
    """Output files anywhere, in place of a job's folder; ``hint`` is for jobs whose output file is unknown."""

    def __init__(self, files: Files, app_id: str, hint: str) -> None:
        super().__init__(files, "/")
        self.app_id = app_id
        self._hint = hint

    @abstractmethod
    def places(self) -> Mapping[str, tuple[str, str]]:
        """Return the files of stdout and stderr by replica, such as ``job/0``."""

    def is_ours(self) -> bool:
        """Never."""
        return False

    def roles(self) -> list[Any]:
        """Not on record."""
        return []

    def log_paths(self, role: str, k: int) -> LogPaths:
        stdout, stderr = self.places().get(f"{role}/{k}", ("", ""))
        if not stdout:
            raise NotFoundError(f"the output file of `{self.app_id}` is not known", hint=self._hint)
        return LogPaths(stdout, stderr if stderr != stdout else "")

    def evidence(self, replicas: Sequence[tuple[str, int]], *, said: str = "") -> list[Evidence]:  # noqa: ARG002  # as declared
        places = self.places()
        pairs = [places.get(f"{role}/{k}", ("", "")) for role, k in replicas]
        wanted = {path for pair in pairs for path in pair if path}
        found = self.files.grown(dict.fromkeys(sorted(wanted), -TAIL_BYTES)) if wanted else {}
        texts = {path: data.decode("utf-8", "replace") for path, data in found.items()}
        ends = [(texts.get(out, "") if out != err else "", texts.get(err, "")) for out, err in pairs]
        return [Evidence(stdout=out, stderr=err) for out, err in ends]


class ForeignAtSites(ForeignJobs, BatchScheduler):
    """Shared by the views of all command-driven backends."""

    @abstractmethod
    def _outputs(self, app_id: str) -> Outputs:
        """Return the output files of a job."""

    def _ask(self, app_ids: list[str]) -> dict[str, DescribeAppResponse | None]:
        return {i: found for site, ids in self._by_site(app_ids) for i, found in self._query(site, ids, {}).items()}

    def log_replicas(self, app_id: str) -> list[tuple[str, int]] | None:
        return Scheduler.log_replicas(self, app_id)

    def _log_folder(self, site: Site, app_id: str) -> Outputs:  # noqa: ARG002  # the scheduler's
        return self._outputs(app_id)

    def _delete_existing(self, app_id: str) -> None:
        """Cancel only: the scheduler forgets the job itself, and its output is the user's."""
        self._cancel_existing(app_id)


def task_facts(facts: JobFacts, tasks: Sequence[ReplicaFacts], *, waits: str = "") -> JobFacts:
    """Facts about an array, whose tasks go on when one has failed. ``waits``: why further ones wait."""
    goes_on = bool(waits) or not all(is_terminal(task.state) for task in tasks)
    begun = any(task.state is not AppState.PENDING for task in tasks)
    return replace(
        facts,
        state=(AppState.RUNNING if begun else AppState.PENDING) if goes_on else None,
        reason="" if begun else facts.reason,
        kind="",
        unattended=True,
        ended=None if goes_on else max((task.ended for task in tasks), default=0.0) or None,
        roles=[RoleFacts(name=tasks[0].role, replicas=tasks)],
        notes=[f"other tasks wait: {waits}"] if waits and begun else (),
    )
