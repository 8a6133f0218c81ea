"""The Runner's verbs that check a machine, a scheduler, or a job before it is submitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchx.errors import NotSupportedError
from torchx.runner.watching.handling import Handles
from torchx.specs.api import AppDef, CfgVal, Resource, Workspace

if TYPE_CHECKING:
    from torchx.runner.doctor.online import Progress
    from torchx.schedulers.kit.findings import Finding
    from torchx.schedulers.kit.nodes import Pool


class Checks(Handles):
    """Checks what could keep a job from running."""

    def doctor(
        self,
        scheduler: str = "",
        cfg: Mapping[str, CfgVal] | None = None,
        *,
        deep: bool = False,
        image: str = "",
        probe_timeout_s: float = 120.0,
        within_s: float | None = None,
        progress: Progress | None = None,
    ) -> list[Finding]:
        """Check whether jobs can run on a scheduler, or whether this machine is set up correctly.

        Args:
            scheduler: name of the scheduler; empty: check this machine.
            deep: also run a small job with ``image``, for at most ``probe_timeout_s`` seconds.
            within_s: time limit of all checks together, in seconds (default: 15).
            progress: is called while they run, with new findings and the names of checks without an answer yet.

        Returns:
            Findings, including good ones. A finding with the verdict ``bad`` is certain; ``unreachable`` says that
            the scheduler itself did not answer.
        """
        from torchx.runner.doctor import here, online
        from torchx.schedulers.kit.findings import WITHIN_S

        if not scheduler:
            return online.ask(here.checks(self._backends, self.name()), within_s or WITHIN_S, progress)
        found = online.of_system(self, scheduler, cfg, within_s=within_s or WITHIN_S, progress=progress)
        return found + online.probe(self, scheduler, cfg, image, probe_timeout_s) if deep else found

    def nodes(
        self,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        need: Resource | None = None,
        count: int = 1,
    ) -> Sequence[Pool]:
        """Return what the nodes of a scheduler have and what is free, by pool and shape of node.

        Args:
            need: size of a replica; the result then says where ``count`` of them fit, and when they would start.

        Raises:
            NotSupportedError: the scheduler has no nodes of which it could tell.
        """
        from torchx.schedulers.kit.abilities import ListsNodes

        backend = self._scheduler(scheduler)
        if not isinstance(backend, ListsNodes):
            raise NotSupportedError(
                f"`{scheduler}` cannot tell what its nodes have",
                hint="slurm, lsf, kubernetes, aws_batch, local_docker and local_cwd can",
            )
        values = {key: setting.value for key, setting in self._settings(scheduler, cfg).items()}
        return backend.nodes(values, need, count)

    def check(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        *,
        within_s: float | None = None,
        progress: Progress | None = None,
    ) -> list[Finding]:
        """Check a job without submitting it or building an image.

        The first arguments are those of :meth:`dryrun`, the others and the result those of :meth:`doctor`.
        """
        from torchx.runner.doctor import online
        from torchx.schedulers.kit.findings import WITHIN_S
        from torchx.specs.images import NamesOnly

        with NamesOnly():
            return online.of_job(self, app, scheduler, cfg, workspace, within_s=within_s or WITHIN_S, progress=progress)
