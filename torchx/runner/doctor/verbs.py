"""The Runner's verbs that check a machine, a scheduler, or a job before it is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.runner.watching.handling import Handles
from torchx.specs.api import AppDef, CfgVal, Workspace

if TYPE_CHECKING:
    from torchx.schedulers.kit.findings import Finding


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
    ) -> list[Finding]:
        """Check whether jobs can run on a scheduler, or whether this machine is set up correctly.

        Args:
            scheduler: name of the scheduler; empty: check this machine.
            deep: also run a small job with ``image``, for at most ``probe_timeout_s`` seconds.
        """
        from torchx.runner.doctor import here, online

        if not scheduler:
            return online.ask(here.checks(self._backends, self.name()))
        found = online.of_system(self, scheduler, cfg)
        return found + online.probe(self, scheduler, cfg, image, probe_timeout_s) if deep else found

    def check(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
    ) -> list[Finding]:
        """Check a job without submitting it or building an image. Arguments are those of :meth:`dryrun`.

        Returns:
            Findings, including good ones. A finding with the verdict ``bad`` is certain.
        """
        from torchx.runner.doctor import online
        from torchx.specs.images import NamesOnly

        with NamesOnly():
            return online.of_job(self, app, scheduler, cfg, workspace)
