"""The Runner's verbs for recorded runs: launch them again, compare them, hand them to somebody without torchx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.config import SourcedCfg
from torchx.errors import NotFoundError, SpecError
from torchx.runner.events import log_event
from torchx.runner.sweeps.verbs import Sweeps

if TYPE_CHECKING:
    from torchx.runner.capsule.differences import Comparison
    from torchx.runner.capsule.rerun import Plan, Rerun
    from torchx.runs import Run
    from torchx.schedulers.kit.export import Export
    from torchx.specs.api import AppDryRunInfo


class Reruns(Sweeps):
    """Launches recorded runs again, compares and exports them."""

    def rerun(self, reference: str, wish: Rerun | None = None) -> str:
        """Launch a recorded run again and return the app handle of the new job.

        Args:
            wish: what to change compared to the recorded run.

        Raises:
            NotFoundError: something that the run needs no longer exists, such as its code.
            ConfigError: a value is masked on record and cannot be found elsewhere.
            SpecError: a change does not fit the AppDef.
            NotSupportedError: an export of a sweep was requested.
        """
        return self.rerun_planned(self.rerun_plan(reference, wish))

    def rerun_plan(self, reference: str, wish: Rerun | None = None) -> Plan:
        """Return what :meth:`rerun` would launch, with notes for the user."""
        from torchx.runner.capsule import rerun

        return rerun.plan(self, self._on_record(reference), rerun.Rerun() if wish is None else wish)

    def rerun_dryrun(self, plan: Plan) -> AppDryRunInfo[Any]:
        """Return the request for a plan. Call it within ``with plan.surroundings():``."""
        cfg, parent = SourcedCfg(plan.cfg), plan.run.parent_run_id or None
        return plan.finish(self.dryrun(plan.app, plan.scheduler, cfg, plan.workspace or None, parent))

    def rerun_planned(self, plan: Plan) -> str:
        """Launch a plan that :meth:`rerun_plan` returned; return the app handle."""
        with log_event("run", plan.scheduler) as event, plan.surroundings():
            return plan.submit(self, self.rerun_dryrun(plan), event)

    def export(self, dryrun_info: AppDryRunInfo[Any], folder: str, workspace: str = "") -> Export:
        """Write a request that :meth:`dryrun` returned as files that run the job without torchx.

        Args:
            folder: a new or empty folder.
            workspace: code for roles that have no workspace of their own.

        Raises:
            NotSupportedError: the scheduler cannot export jobs.
            ConfigError: the folder is not empty, or cannot be written.
        """
        from torchx.runner.capsule.export import write

        if dryrun_info._scheduler is None:
            raise SpecError("this AppDryRunInfo does not name a scheduler", hint="export what `Runner.dryrun` returned")
        return write(dryrun_info, self._scheduler(dryrun_info._scheduler), folder, workspace)

    def compare(self, a: str, b: str) -> Comparison:
        """Return the differences between two recorded runs: code, image, arguments, options, outcome, ..."""
        from torchx.runner.capsule.differences import compare

        found = []
        for run in map(self._on_record, (a, b)):
            if not run.is_terminal() and (status := self.status(run.handle)) is not None:
                run.state, run.msg, run.ended_at = status.state, status.msg, status.ended_at
            found.append(run)
        return compare(*found)

    def _on_record(self, reference: str) -> Run:
        if (run := self.recorded(reference)) is None:
            raise NotFoundError(f"`{reference}` is not on record", hint="`torchx list` shows runs, sweeps as a whole")
        return run
