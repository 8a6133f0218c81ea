"""What keeps jobs from running, found before they are submitted: the Runner's verbs about it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.runner.api import Runner
    from torchx.schedulers.findings import Finding
    from torchx.specs.api import AppDef, CfgVal, Workspace


class DoctorVerbs:
    """See :class:`torchx.runner.verbs.RunnerVerbs`."""

    def doctor(
        self,
        scheduler: str = "",
        cfg: Mapping[str, CfgVal] | None = None,
        *,
        deep: bool = False,
        image: str = "",
        probe_timeout_s: float = 120.0,
    ) -> list[Finding]:
        """What keeps jobs from running here, or on a scheduler: good, bad, or what cannot be told from here.

        Args:
            scheduler: its name; none: this machine.
            deep: run a small job there, too, with ``image``, for ``probe_timeout_s`` seconds at most.
        """
        from torchx.runner.doctor import here, online

        runner: Runner = self  # type: ignore[assignment]  # whose base it is
        if not scheduler:
            return online.ask(here.checks(runner._backends, runner.name()))
        found = online.of_system(runner, scheduler, cfg)
        return found + online.probe(runner, scheduler, cfg, image, probe_timeout_s) if deep else found

    def check(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
    ) -> list[Finding]:
        """What is wrong with a job, found without submitting it; arguments as of ``dryrun``. No image is built.

        Returns:
            Findings, what is good among them; those with the verdict ``bad`` are certain.
        """
        from torchx.runner.doctor import online
        from torchx.specs.images import NamesOnly

        runner: Runner = self  # type: ignore[assignment]  # whose base it is
        with NamesOnly():
            return online.of_job(runner, app, scheduler, cfg, workspace)
