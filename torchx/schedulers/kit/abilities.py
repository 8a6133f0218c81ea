"""What a backend may be able to do beyond the contract of :class:`torchx.schedulers.api.Scheduler`.

Each ability is a protocol: a backend has it by having its methods, and is asked with ``isinstance``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from torchx.util.abilities import Ability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchx.schedulers.api import DescribeAppResponse
    from torchx.schedulers.findings import Check
    from torchx.schedulers.foreign import ForeignJobs
    from torchx.schedulers.inside import Duplex, InsideProcess, Tty
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.schedulers.metrics import ReplicaMetrics
    from torchx.specs.api import AppDryRunInfo, CfgVal, Role, runopts
    from torchx.specs.tasks import TaskList

__all__ = [
    "Archives",
    "BuildsWorkspaces",
    "Diagnoses",
    "DiscardsWorkspaces",
    "Enters",
    "Exports",
    "Forwards",
    "HasWorkspaceOpts",
    "HearsChanges",
    "KnowsForeign",
    "Measures",
    "NamesRights",
    "RunsTasks",
    "SendsNotices",
    "SharesFiles",
    "Simulates",
    "TakesDefaults",
]


class HasWorkspaceOpts(Ability):
    """Has run options for workspaces. This and the next two come with :class:`torchx.workspace.WorkspaceMixin`."""

    @abstractmethod
    def workspace_opts(self) -> runopts:
        """The options, beside those of the backend."""


class BuildsWorkspaces(Ability):
    """Brings the code of roles to where they run."""

    @abstractmethod
    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, CfgVal]) -> None:
        """Builds the workspace of each role that has one, and updates the roles in place."""


class DiscardsWorkspaces(Ability):
    """Can take back what it built for a job that is not submitted after all."""

    @abstractmethod
    def discard_workspaces(self, roles: list[Role]) -> None:
        """Removes what was built for these roles and is of use to nobody but their job."""


class Exports(Ability):
    """Can write a job down so that it is run without torchx."""

    @abstractmethod
    def export(self, dryrun_info: AppDryRunInfo[Any]) -> Export:
        """What ``schedule`` would submit, as files. The code is beside them, in the folder ``code``."""


class KnowsForeign(Ability):
    """Knows jobs of its system that torchx did not launch."""

    @abstractmethod
    def foreign(self) -> ForeignJobs:
        """A view of this backend that has these jobs; it is closed by itself."""


class Measures(Ability):
    """Knows what the replicas of a job use; what ``metrics`` returns of one that runs or has ended."""

    @abstractmethod
    def metrics(self, app_id: str) -> list[ReplicaMetrics] | None:
        """What each replica uses, or has used, as far as it is known; None when there is no such job."""


class Diagnoses(Ability):
    """Knows what keeps jobs from running there, and can ask without starting one."""

    @abstractmethod
    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[Any] | None = None) -> Iterable[Check]:
        """Questions about the system, or about one job there; none is asked before its ``ask`` is called.

        Args:
            job: what ``submit_dryrun`` returned.
        """


class NamesRights(Ability):
    """Knows which rights a user needs."""

    @abstractmethod
    def rights(self, cfg: Mapping[str, CfgVal]) -> str:
        """The least rights for jobs with these run options, in the form that an administrator applies."""


class RunsTasks(Ability):
    """Runs a sweep as one job, whose tasks start as there is room; what ``describe`` answers of it has ``tasks``.

    Of a backend without this ability, and where it refuses, torchx submits the tasks as single jobs.
    """

    @abstractmethod
    def check_tasks(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> None:
        """Refuses what cannot be submitted so.

        Raises:
            NotSupportedError: says why.
        """

    @abstractmethod
    def submit_tasks(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> str:
        """Submits the job once for each task, with its values in place of ``{name}``; returns the app id."""

    @abstractmethod
    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:
        """Some tasks, each as a job of its own with its cause; None when there is no such sweep.

        Raises:
            NotFoundError: it has no such task.
        """

    @abstractmethod
    def cancel_task(self, app_id: str, number: int) -> None:
        """Ends one task; quiet when it has ended."""


class HearsChanges(Ability):
    """Is told when jobs change; ``hears_all``: of every change, so that all jobs are asked for only now and then."""

    hears_all: bool

    @abstractmethod
    def changed(self, app_ids: Sequence[str], most_s: float) -> set[str] | None:
        """Those of these jobs that may have changed; sleeps for so long until there are any. None: ask for all."""


class SendsNotices(Ability):
    """Its jobs send notices of their end themselves, with what ``AppDryRunInfo._notices`` holds."""

    @abstractmethod
    def take_notices(self, app_id: str) -> dict[str, str] | None:
        """What a job that has ended has sent, by way: empty, or why not; it sends no more. None: it may yet.

        Of an alarm of its watchdog by ``EVENT/WAY``, the event as :func:`torchx.specs.notices.hang_event` has it.
        """


class Simulates(Ability):
    """Can make faults happen to a job on purpose."""

    @abstractmethod
    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:
        """Says what would be done to a job that runs; nothing is done before ``make`` of the answer is called.

        Args:
            fault: one of :data:`torchx.schedulers.kit.simulations.FAULTS`.
            replica: whom it hits, as ``(role, number)``, where it does not hit the whole job.

        Raises:
            NotSupportedError: this cannot be made to happen there; says why.
            BackendError: not now: the replica does not run, say.
        """


class TakesDefaults(Ability):
    """Needs run options for jobs that are not on record, such as where to look for them."""

    @abstractmethod
    def configure(self, defaults: Callable[[], Mapping[str, CfgVal]]) -> None:
        """Says where the options come from: config files and the environment."""


class Enters(Ability):
    """Can start a process inside a replica that runs."""

    @abstractmethod
    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        """Starts ``argv`` where replica ``k`` of a role runs: in its folder, its environment, its container.

        Args:
            tty: it gets a terminal of this size; None: three pipes.

        Raises:
            NotFoundError: there is no such replica, or it does not run: :func:`torchx.schedulers.inside.not_running`.
            NotSupportedError: this job cannot be entered; the hint says what to do instead.
        """


class Archives(Ability):
    """Has a way of its own for files in and out of a replica, faster than a process inside it."""

    @abstractmethod
    def archive(self, app_id: str, role: str, k: int, path: str, *, into: bool) -> InsideProcess:
        """A stream of tar: of ``path`` and all that is below it, or, with ``into``, unpacked there.

        What fails, or does not arrive, is sent through a process.
        """


class SharesFiles(Ability):
    """Runs its replicas among the files of this machine."""

    @abstractmethod
    def shares_files(self, app_id: str) -> bool:
        """Whether a job does."""


class Forwards(Ability):
    """Has a way of its own to ports of a replica, which needs nothing in the image."""

    @abstractmethod
    def way_to(self, app_id: str, role: str, k: int) -> Callable[[int], Duplex] | None:
        """What connects to a port of a replica that runs, and says on STDERR why it cannot; None: it is refused.

        Raises:
            NotFoundError: as of :meth:`Enters.enter`.
        """
