"""The plugin. Hydra imports it whenever a program of Hydra starts, so it imports nothing of torchx at its head."""

# Without `from __future__ import annotations`: Hydra runs this before it is in `sys.modules`, where data classes look.

import argparse
import logging
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction

    from torchx.runner.sweeps.batch import Batch, TaskResult
    from torchx.specs import AppDef

log = logging.getLogger(__name__)

_BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
_KEEPS = "hydra_plugins.torchx_launcher._returns.KeepJobReturn"
_KEPT = ".torchx"  # folder of what the tasks returned, in the folder of the sweep
_OURS = ("hydra.mode=", "hydra.run.dir=", "hydra.sweep.dir=", "hydra.job.num=", "hydra.job.id=")
_SHOWN = 20  # jobs whose overrides are logged


@dataclass
class TorchXLauncherConf:
    """What stands under ``hydra.launcher``.

    Attributes:
        scheduler: of torchx; by default the one that ``torchx run`` takes.
        cfg: run options of the scheduler.
        component: of torchx, with its options; it must take ``--script`` and ``-m`` as ``utils.python`` does.
        workspace: code that goes along with the job, as of ``torchx run --workspace``.
        max_parallel: how many jobs run at the same time; 0: as many as the scheduler finds right.
        wait: whether to wait for the jobs. By default only for a sweeper that needs to know what they return.
    """

    _target_: str = "hydra_plugins.torchx_launcher.launcher.TorchXLauncher"
    scheduler: Optional[str] = None  # OmegaConf reads the annotation
    cfg: dict[str, Any] = field(default_factory=dict)
    component: str = "utils.python"
    workspace: Optional[str] = None  # as above
    max_parallel: int = 0
    wait: Optional[bool] = None  # as above


ConfigStore.instance().store(group="hydra/launcher", name="torchx", node=TorchXLauncherConf, provider="torchx")


@dataclass
class Submitted(JobReturn):  # type: ignore[misc]  # Hydra has no types
    """A job that was submitted, and of which nothing more is known: its status is UNKNOWN.

    Attributes:
        handle: of the job, which every verb of torchx takes.
        needed: whether the sweeper goes on with what the job returns.
    """

    handle: str = ""
    needed: bool = False

    @property
    def return_value(self) -> Any:
        """None: Hydra's own sweeper looks at it for errors alone.

        Raises:
            CompactHydraException: the sweeper needs the value.
        """
        if self.needed:
            raise CompactHydraException(
                f"job `{self.handle}` was submitted and has not ended, and this sweeper needs what it returns\n"
                "hint: hydra.launcher.wait=true"
            )
        return None


class TorchXLauncher(Launcher):  # type: ignore[misc]  # Hydra has no types
    """Submits the jobs of a ``--multirun`` as one sweep. Arguments as the attributes of :class:`TorchXLauncherConf`.

    Each job is the program again, with the job's overrides and in the job's output folder: nothing is pickled to get
    there, and ``torchx describe`` shows a command line that works by itself.
    """

    def __init__(self, **conf: Any) -> None:
        super().__init__()
        self._conf = TorchXLauncherConf(**conf)
        self._config: Any = None

    def setup(self, *, hydra_context: "HydraContext", task_function: "TaskFunction", config: DictConfig) -> None:
        """Take what Hydra knows of the program."""
        del hydra_context, task_function  # the task itself makes its own
        self._config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Submit one sweep with a task for each of these."""
        from torchx.errors import TorchXError

        config = self._config
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        needed = config.hydra.sweeper._target_ != _BASIC
        wait = needed if self._conf.wait is None else self._conf.wait
        folder = os.path.abspath(str(config.hydra.sweep.dir))
        os.makedirs(os.path.join(folder, _KEPT) if wait else folder, exist_ok=True)
        try:
            batch = self._submit(job_overrides, initial_job_idx, folder, wait=wait)
            for k, overrides in enumerate(job_overrides[:_SHOWN]):
                log.info(f"\t#{initial_job_idx + k} : {' '.join(filter_overrides(overrides))}")
            if len(job_overrides) > _SHOWN:
                log.info(f"\t... and {len(job_overrides) - _SHOWN:,} more")
            log.info(f"Submitted {len(batch):,} jobs: torchx status {batch.handle}")
            if wait:
                return _returned(batch, job_overrides, os.path.join(folder, _KEPT), initial_job_idx)
        except TorchXError as e:
            raise CompactHydraException(f"{e}\nhint: {e.hint}" if e.hint else str(e)) from e
        return [
            Submitted(overrides=list(overrides), handle=f"{batch.handle}/{k}", needed=needed)
            for k, overrides in enumerate(job_overrides)
        ]

    def _submit(self, job_overrides: Sequence[Sequence[str]], first: int, folder: str, *, wait: bool) -> "Batch":
        from torchx.runner import get_runner
        from torchx.runner.ground.components import make_app
        from torchx.schedulers import get_default_scheduler_name

        component, *options = shlex.split(self._conf.component)
        options += [*_program(), "--", *_config_flags(self._config)]
        given: Any = OmegaConf.to_container(self._config.hydra.overrides.hydra, resolve=False)  # the jobs resolve them
        common = [word for word in given if not word.startswith(_OURS)]
        common += ["hydra.mode=RUN", "hydra.run.dir=${hydra.sweep.dir}/${hydra.sweep.subdir}"]
        common.append(f"hydra.sweep.dir={quote(folder)}")
        if wait:
            common.append(f"+hydra.callbacks.torchx={{_target_:{_KEEPS},folder:{quote(os.path.join(folder, _KEPT))}}}")
        env = {name: os.environ[name] for name in self._config.hydra.job.env_copy if name in os.environ}

        def app(k: int, overrides: Sequence[str]) -> "AppDef":
            words = [*overrides, *common, f"hydra.job.num={k}", f"hydra.job.id='{k}'"]
            made = make_app(component, [*options, *map(_no_macros, words)], None)
            for role in made.roles:
                role.env.update(env)
            return made

        apps = [app(first + k, overrides) for k, overrides in enumerate(job_overrides)]
        cfg: Any = OmegaConf.to_container(self._conf.cfg, resolve=True)  # a DictConfig
        scheduler = self._conf.scheduler or get_default_scheduler_name()
        return get_runner().run_many(apps, scheduler, cfg, self._conf.workspace, max_parallel=self._conf.max_parallel)


def quote(text: str) -> str:
    r"""Return a text as a value in an override of Hydra.

    >>> print(quote("it's ${5}\\"))
    'it\'s \${5}\\'
    """
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped.replace('${', chr(92) + '${')}'"


def _no_macros(text: str) -> str:
    """Double the dollars where torchx looks for macros; an interpolation may be named like one."""
    return re.sub(r"(\$+)\{", r"\1\1{", text)


def _program() -> list[str]:
    """How this program was started, as options of the component."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None:
        return ["-m", main.__spec__.name.removesuffix(".__main__")]
    path = getattr(main, "__file__", None)
    if path is None:
        raise CompactHydraException("a program without a file cannot be launched by torchx\nhint: put it into a script")
    inside = os.path.relpath(path)
    return ["--script", os.path.abspath(path) if inside.startswith(os.pardir) else inside]


def _config_flags(config: Any) -> list[str]:
    """Return the options of this program's command line that say where its configuration is."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-path", "-cp")
    parser.add_argument("--config-dir", "-cd")
    given = parser.parse_known_args(sys.argv[1:])[0]
    flags = [] if config.hydra.job.config_name is None else [f"--config-name={config.hydra.job.config_name}"]
    flags += [] if given.config_path is None else [f"--config-path={given.config_path}"]
    return flags if given.config_dir is None else [*flags, f"--config-dir={given.config_dir}"]


def _returned(batch: "Batch", job_overrides: Sequence[Sequence[str]], folder: str, first: int) -> list[JobReturn]:
    """Return what the jobs returned, once all have ended. Ctrl-C ends them."""
    from hydra_plugins.torchx_launcher._returns import read

    try:
        results = batch.results()
    except KeyboardInterrupt:
        batch.cancel()
        raise
    causes = _causes(batch, results)
    found = []
    for result, overrides in zip(results, job_overrides, strict=True):
        kept = read(folder, first + result.number)
        if kept is None:  # the program did not come so far, or cannot write there
            why = causes.get(result.number) or f"`{folder}` does not have what it returned"
            kept = JobReturn(overrides=list(overrides), status=JobStatus.FAILED)
            kept.return_value = CompactHydraException(f"job `{result.handle}` is {result.state.name}: {why}")
        found.append(kept)
    return found


def _causes(batch: "Batch", results: "Sequence[TaskResult]") -> dict[int, str]:
    """Why jobs failed."""
    if all(result.exit_code == 0 for result in results):
        return {}
    return {k: group.cause for group in batch.failures() for k in group.tasks}
