"""Optional abilities of a backend, beyond the contract of :class:`torchx.schedulers.api.Scheduler`.

Each ability is a protocol. A backend has it if it has its methods; callers check with ``isinstance``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from torchx.util.abilities import Ability

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torchx.schedulers.api import DescribeAppResponse
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.foreign import ForeignJobs
    from torchx.schedulers.kit.inside import Duplex, InsideProcess, Tty
    from torchx.schedulers.kit.inside.kept import Kept
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.nodes import Pool
    from torchx.schedulers.kit.pace import Rank
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.specs.api import AppDryRunInfo, CfgVal, Resource, Role, runopts
    from torchx.specs.tasks import TaskList


class HasWorkspaceOpts(Ability):
    """Has run options for workspaces. :class:`torchx.workspace.WorkspaceMixin` provides this and the next two."""

    @abstractmethod
    def workspace_opts(self) -> runopts:
        """Return the options, in addition to those of the backend."""


class BuildsWorkspaces(Ability):
    """Ships the code of roles to where they run."""

    @abstractmethod
    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, CfgVal]) -> None:
        """Build the workspace of each role that has one and updates the roles in place."""


class DiscardsWorkspaces(Ability):
    """Can remove the workspaces of a job that was not submitted after all."""

    @abstractmethod
    def discard_workspaces(self, roles: list[Role]) -> None:
        """Remove what was built for these roles and is used by no other job."""


class Exports(Ability):
    """Can write a job to files that run without torchx."""

    @abstractmethod
    def export(self, dryrun_info: AppDryRunInfo[Any]) -> Export:
        """Return what ``schedule`` would submit, as files. The code is next to them in the folder ``code``."""


class KnowsForeign(Ability):
    """Can access jobs of its system that torchx did not launch."""

    @abstractmethod
    def foreign(self) -> ForeignJobs:
        """Return a view of this backend that contains these jobs. Close it separately."""


class ReportsUsage(Ability):
    """Reports the resource usage of replicas, running or ended."""

    @abstractmethod
    def metrics(self, app_id: str) -> list[ReplicaMetrics] | None:
        """Return the known usage of each replica; None if the job does not exist."""


class ReportsSteps(Ability):
    """Keeps the steps that ranks report in files of the job, see :mod:`torchx.distributed.pace`."""

    @abstractmethod
    def steps(self, app_id: str) -> list[Rank]:
        """Return the reports of the ranks; empty if there are none."""


class Diagnoses(Ability):
    """Can check what would prevent jobs from running, without starting one."""

    @abstractmethod
    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[Any] | None = None) -> Iterable[Check]:
        """Return checks of the system, or of one job on it. A check runs when its ``ask`` is called.

        Args:
            job: the result of ``submit_dryrun``.
        """


class ListsNodes(Ability):
    """Can tell what its nodes have, and what is free."""

    @abstractmethod
    def nodes(self, cfg: Mapping[str, CfgVal], need: Resource | None, count: int) -> Sequence[Pool]:
        """Return the pools of nodes, with what they have for a job of ``count`` replicas of the size ``need``."""


class NamesRights(Ability):
    """Can list the permissions that a user needs."""

    @abstractmethod
    def rights(self, cfg: Mapping[str, CfgVal]) -> str:
        """Return the minimal permissions for jobs with these run options, in a form that an administrator applies."""


class RunsTasks(Ability):
    """Runs a sweep as one job, which starts its tasks as capacity allows. ``describe`` returns their ``tasks``.

    If a backend lacks this ability or rejects a sweep, torchx submits its tasks as separate jobs.
    """

    @abstractmethod
    def check_tasks(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> None:
        """Rejects a sweep that cannot be submitted as one job.

        Raises:
            NotSupportedError: with the reason.
        """

    @abstractmethod
    def submit_tasks(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> str:
        """Submit the job once per task, with the task's values in place of ``{name}``, and return the app id."""

    @abstractmethod
    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:
        """Describe some tasks, each like a job of its own with its cause; None if the sweep does not exist.

        Raises:
            NotFoundError: the sweep has no such task.
        """

    @abstractmethod
    def cancel_task(self, app_id: str, number: int) -> None:
        """Cancel one task. Does nothing if it has ended."""


class PacksTasks(Ability):
    """Can run several tasks of a sweep, one after another, in one element of a job array."""

    @abstractmethod
    def check_pack(self, dryrun_info: AppDryRunInfo[Any]) -> None:
        """Raise NotSupportedError, with the reason, for a job whose tasks cannot share an element."""


class PushesChanges(Ability):
    """Is notified when jobs change.

    Attributes:
        hears_all: it is notified of every change, so that callers rarely need to query all jobs.
    """

    hears_all: bool

    @abstractmethod
    def changed(self, app_ids: Sequence[str], most_s: float) -> set[str] | None:
        """Wait up to ``most_s`` seconds and return those of these jobs that may have changed. None: query all."""


class SendsNotices(Ability):
    """Its jobs send the notices in ``specs.Submission.notices`` themselves when they end."""

    @abstractmethod
    def take_notices(self, app_id: str) -> dict[str, str] | None:
        """Return the result per channel for a job that has ended: empty, or why sending failed.

        An alarm of the job's watchdog has the key ``EVENT/CHANNEL``, see
        :func:`torchx.specs.wishes.notices.hang_event`. None: the job may still send notices.
        """


class Simulates(Ability):
    """Can inject faults into a job."""

    @abstractmethod
    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:
        """Prepare a fault for a running job. Nothing happens before ``make`` of the result is called.

        Args:
            fault: one of :data:`torchx.schedulers.kit.simulations.FAULTS`.
            replica: the target, as ``(role, number)``, unless the fault affects the whole job.

        Raises:
            NotSupportedError: this backend cannot inject the fault, with the reason.
            BackendError: not possible now, for example because the replica is not running.
        """


class TakesDefaults(Ability):
    """Needs run options for jobs that are not in the registry, for example where to look for them."""

    @abstractmethod
    def configure(self, defaults: Callable[[], Mapping[str, CfgVal]]) -> None:
        """Set the function that reads the options from config files and the environment."""


class RunsInside(Ability):
    """Can start a process inside a running replica."""

    @abstractmethod
    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        """Start ``argv`` in the folder, environment and container of replica ``k`` of a role.

        Args:
            tty: size of the terminal to allocate; None: use three pipes.

        Raises:
            NotFoundError: the replica does not exist or is not running, see
                :func:`torchx.schedulers.kit.inside.not_running`.
            NotSupportedError: processes cannot be started in this job; the hint names an alternative.
        """


class Archives(Ability):
    """Can copy files to and from a replica faster than through a process inside it."""

    @abstractmethod
    def archive(self, app_id: str, role: str, k: int, path: str, *, into: bool) -> InsideProcess:
        """Return a tar stream of ``path`` and everything below it, or, with ``into``, one that is unpacked there.

        If it fails or the data does not arrive, the caller copies through a process instead.
        """


class KeepsFiles(Ability):
    """Keeps the files of replicas that have ended, until the job is deleted."""

    @abstractmethod
    def kept(self, app_id: str, role: str, k: int, cwd: str) -> Sequence[Kept]:
        """Return the folders in which files of a replica may be, the first one for relative paths first.

        Args:
            cwd: folder of this machine from which the job was launched; empty if it is not on record.
        """


class SharesFiles(Ability):
    """May run replicas that see the file system of this machine."""

    @abstractmethod
    def shares_files(self, app_id: str) -> bool:
        """Whether the replicas of this job see the file system of this machine."""


class Forwards(Ability):
    """Can connect to ports of a replica without any program in the image."""

    @abstractmethod
    def port_opener(self, app_id: str, role: str, k: int) -> Callable[[int], Duplex] | None:
        """Return a function that connects to a port of a running replica; None if this is not permitted.

        The connection reports on STDERR why it failed.

        Raises:
            NotFoundError: as in :meth:`RunsInside.enter`.
        """
