"""The Runner's verbs that submit jobs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx import config
from torchx.errors import SpecError, TransientError
from torchx.runner.events import log_event
from torchx.runner.jobs.base import RunnerBase
from torchx.runner.launch import pipeline
from torchx.runner.launch.record import Recorder, describe_event

if TYPE_CHECKING:
    from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, Workspace

    _Arguments = list[str] | dict[str, Any]


class Launches(RunnerBase):
    """Submits components and AppDefs, or shows what would be submitted."""

    _component_defaults: dict[str, dict[str, str]] | None

    @functools.cached_property
    def _recorder(self) -> Recorder:
        made = Recorder(self._name)
        self._at_close.append(made.settle_submissions)
        return made

    def run_component(  # noqa: PLR0917  # public signature
        self,
        component: str,
        component_args: _Arguments,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Submit a component by name and return the app handle.

        Arguments and errors are those of :meth:`dryrun_component` and :meth:`schedule`.
        """
        with log_event("run_component", scheduler) as event:
            given = _given(cfg=cfg, workspace=workspace, parent_run_id=parent_run_id)
            info = self.dryrun_component(component, component_args, scheduler, **given)
            return self._schedule_or_discard(info, event)

    def dryrun_component(  # noqa: PLR0917  # public signature
        self,
        component: str,
        component_args: _Arguments,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Return the request that :meth:`run_component` would submit. Other arguments are those of :meth:`dryrun`.

        Args:
            component: name of a component: ``dist.ddp``, ``path/file.py:function``, or that of a plugin's component.
            component_args: the component's command line as a list, or its arguments by name.

        Raises:
            SpecError: the component does not exist, or an argument is wrong.
        """
        from torchx.runner.ground import components

        app = components.make_app(component, component_args, self._component_defaults)
        return self.dryrun(app, scheduler, **_given(cfg=cfg, workspace=workspace, parent_run_id=parent_run_id))

    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> str:
        """Submit an AppDef and return the app handle. Arguments and errors: :meth:`dryrun`, :meth:`schedule`."""
        with log_event("run", scheduler) as event:
            info = self.dryrun(app, scheduler, **_given(cfg=cfg, workspace=workspace, parent_run_id=parent_run_id))
            return self._schedule_or_discard(info, event)

    def dryrun(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Workspace | str | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Return the request that :meth:`run` would submit; ``print`` it to see it. ``app`` is not changed.

        Args:
            scheduler: name of the scheduler.
            cfg: run options; they override those of the environment and the config files.
            workspace: code to build into the image of every role that has no workspace of its own.
            parent_run_id: id of the parent run, for trackers.

        Returns:
            The request. ``_app``, ``_cfg`` and ``_scheduler`` hold what it was made from; ``_settings`` holds the value
            and the source of each run option.

        Raises:
            SpecError: the app is invalid, or this scheduler cannot run it.
            ConfigError: a run option is invalid or missing.
            UnknownSchedulerException: there is no scheduler of that name.
        """
        with log_event("dryrun", scheduler) as event:
            backend = self._scheduler(scheduler)
            new = pipeline.prepare(app, workspace, scheduler, backend)
            files = config.load_files()
            settings = self._settings(scheduler, cfg, files)
            info = pipeline.dry_run(
                new, scheduler, backend, session=self._name, settings=settings, files=files, parent_run_id=parent_run_id
            )
            describe_event(event, info)
            return info

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Submit a request that :meth:`dryrun` returned, records the run, and return the app handle.

        Raises:
            BackendError: the scheduler rejected the request.
            HandleError: the session name cannot be part of an app handle.
        """
        scheduler = dryrun_info._scheduler
        if scheduler is None:
            raise SpecError("this AppDryRunInfo does not name a scheduler", hint="submit what `Runner.dryrun` returned")
        with log_event("schedule", scheduler) as event:
            handle = self._recorder.submit(dryrun_info, scheduler, self._scheduler(scheduler))
            describe_event(event, dryrun_info)
            event.name_job(handle)
            return handle

    def discard(self, dryrun_info: AppDryRunInfo[Any]) -> None:
        """Remove what :meth:`dryrun` created for this job only, such as its job folder.

        The request cannot be submitted afterwards.
        """
        app, scheduler = dryrun_info._app, dryrun_info._scheduler
        if app is not None and scheduler is not None:
            pipeline.discard(app, self._scheduler(scheduler))

    def _schedule_or_discard(self, info: AppDryRunInfo[Any], event: log_event) -> str:
        """Submit a request that only this call uses; if the scheduler rejects it, discards the request."""
        try:
            handle = self.schedule(info)
            describe_event(event, info)
            event.name_job(handle)
            return handle
        except TransientError:
            raise  # the job may exist nevertheless
        except Exception:
            self.discard(info)
            raise


def _given(**arguments: Any) -> dict[str, Any]:
    """Drop arguments that are None: a subclass may override a verb with fewer parameters."""
    return {name: value for name, value in arguments.items() if value is not None}
