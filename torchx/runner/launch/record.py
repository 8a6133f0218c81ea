"""Submits jobs and records them: the intent before, the answer after, and the state of the source code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx.config import Setting, load_files
from torchx.errors import HandleError, TransientError
from torchx.runner.events import log_event
from torchx.runner.ground.registry import run_registry
from torchx.settings import torchx_home
from torchx.specs.api import AppDryRunInfo, CfgVal, MalformedAppHandleException, make_app_handle, parse_app_handle
from torchx.specs.wishes import Wishes
from torchx.util.secrets import AMBIGUOUS, CERTAIN, mask_args, mask_told, mask_value

if TYPE_CHECKING:
    from torchx.runs import NewRun
    from torchx.schedulers.api import Scheduler
    from torchx.specs.tasks import TaskList
    from torchx.util.git import GitState, Probe

GIT_TIMEOUT_S = 0.1
"""How long to wait for git after the submission, which runs concurrently."""


class Recorder:
    """The submissions of one Runner, whose name is the session of its jobs."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._sources: list[tuple[int, Probe]] = []

    def submit(
        self, info: AppDryRunInfo[Any], scheduler: str, backend: Scheduler[Any], tasks: TaskList | None = None
    ) -> str:
        """Submit a request and return the app handle.

        Args:
            tasks: submit the request as a sweep with these tasks; the backend must support that.

        Raises:
            Exception: whatever the scheduler raises. The run is then marked as abandoned, unless the job may exist
                nevertheless; that is found out when runs are listed.
        """
        from torchx.runner.ground.secrets import look_up, secret_files
        from torchx.runner.launch.static import refuse_names
        from torchx.util import git
        from torchx.workspace.private import git_patterns

        _check_session(scheduler, self._session)
        if info._app is not None:
            refuse_names(info._app, backend)
        _permit(info, backend, tasks)
        look_up(info, backend)
        plan, made = None, info.submission
        if info._app is not None and Wishes.of(info._app).notify:
            from torchx.runner.notices.plans import Plan
            from torchx.schedulers.kit.abilities import SendsNotices

            plan = Plan.of(info._app)
            made.notices = plan.for_job() if plan and tasks is None and isinstance(backend, SendsNotices) else None
        self.settle_submissions()
        registry = run_registry()
        private = [*git_patterns(), *secret_files(info._app, load_files())]
        source = git.probe(patches=torchx_home("patches"), private=private) if made.source is None else None
        run = new_run(info, scheduler, self._session, made.source if source is None else source.known)
        run.cwd, run.tasks = os.getcwd(), tasks
        expected = backend.expected_id(info)
        run.handle = make_app_handle(scheduler, self._session, expected) if expected else ""
        run.submission = backend.submission_token(info)
        if plan is not None and run.handle:
            made.at_end = plan.arm(run.handle)
        run_id = registry.begin(run)
        if source is not None and not source.done:
            self._sources.append((run_id, source))
        try:
            sweeps: Any = backend  # that of a sweep has RunsTasks, see `sweeps.submitter`
            app_id = backend.schedule(info) if tasks is None else sweeps.submit_tasks(info, tasks)
        except (TransientError, KeyboardInterrupt):  # a notebook continues after an interrupt
            registry.unanswered(run_id)  # the job may exist: the intent is kept until its scheduler has been queried
            raise
        except Exception as e:
            registry.abandoned(run_id, mask_told(str(e) or type(e).__name__, sys.argv))
            if plan is not None:
                plan.disarm()
            raise
        handle = make_app_handle(scheduler, self._session, app_id)
        registry.submitted(run_id, handle, image_digests=made.image_digests, workspace_hashes=made.workspace_hashes)
        if plan is not None:
            plan.submitted(handle)
        return handle

    def settle_submissions(self) -> None:
        """Record the state of the source code of earlier submissions."""
        sources, self._sources = self._sources, []
        for run_id, source in sources:
            state = source.result(GIT_TIMEOUT_S)
            run_registry().amend(run_id, git_commit=state.commit, git_dirty=state.dirty)


def _permit(info: AppDryRunInfo[Any], backend: Scheduler[Any], tasks: TaskList | None) -> None:
    """Ask for consent if the job is large, or if the lines of set-up are those of a project's config file."""
    from torchx.runner.launch import hours

    hours.check(info, backend, 1 if tasks is None else len(tasks.points))
    setup = (info.submission.settings or {}).get("setup")
    if setup is not None and setup.value:
        from torchx.config.trust import permit

        permit(f"setup:{setup.value}")


def forget_notices(*handles: str) -> None:
    """Remove the notices of jobs that do not exist."""
    if handles and os.path.isdir(torchx_home("notices")):
        from torchx.runner.notices.plans import forget

        for handle in handles:
            forget(handle)


def new_run(info: AppDryRunInfo[Any], scheduler: str, session: str, source: GitState | None = None) -> NewRun:
    """Return the record of a run before it is submitted, with secrets masked;
    ``source`` is the state of the source code.
    """
    from torchx.runs import NewRun
    from torchx.specs.images import image_digests, workspace_hashes
    from torchx.specs.serialize import appdef_to_dict, masked

    app, made = info._app, info.submission
    roles = app.roles if app is not None else []
    record = made.record = appdef_to_dict(masked(app, CERTAIN), fallback=repr) if app is not None else {}
    return NewRun(
        scheduler=scheduler,
        session=session,
        name=app.name if app is not None else "",
        app=record,
        cfg=masked_settings(made.settings, info._cfg, CERTAIN),
        argv=mask_args(sys.argv, CERTAIN),
        image=roles[0].image if roles else "",
        workspace=" ".join(dict.fromkeys(str(role.workspace) for role in roles if role.workspace)),
        git_commit="" if source is None else source.commit,
        git_dirty=None if source is None else source.dirty,
        parent_run_id=made.parent_run_id or "",
        tags=_tags(made.tags, source),
        image_digests=image_digests(roles),
        workspace_hashes=workspace_hashes(roles),
    )


def _tags(made: dict[str, str], source: GitState | None) -> dict[str, str]:
    from torchx.runs.records import LAUNCHED_BY

    agent = os.environ.get("TORCHX_LAUNCHED_BY", "")  # set by `torchx mcp`
    patch = source.patch if source is not None else ""
    return {**made, **({"patch": patch} if patch else {}), **({LAUNCHED_BY: agent} if agent else {})}


def masked_settings(
    settings: Mapping[str, Setting] | None, cfg: Mapping[str, CfgVal], least: int = AMBIGUOUS
) -> dict[str, dict[str, Any]]:
    """Run options as ``{"value": ..., "source": ...}`` by name, with secrets masked.

    Without ``settings``, because the dry run was not made by a Runner, the values are those of ``cfg``.

    >>> masked_settings(None, {"api_key": "abc"})
    {'api_key': {'value': '********', 'source': 'code'}}
    """
    values = cfg if settings is None else {key: setting.value for key, setting in settings.items()}
    shown = mask_value("", dict(values), least)
    return {key: {"value": shown[key], "source": settings[key].source if settings else "code"} for key in shown}


def describe_event(event: log_event, info: AppDryRunInfo[Any]) -> None:
    """Add the request to an event, if events are on."""
    if not event.on or info._app is None:
        return
    import json

    record = event._torchx_event
    run = new_run(info, record.scheduler, "")
    record.app_image, record.workspace = run.image, run.workspace or None
    record.app_metadata = run.app["metadata"]
    record.runcfg = json.dumps({key: setting["value"] for key, setting in run.cfg.items()}, default=str)


def _check_session(scheduler: str, session: str) -> None:
    """Raise HandleError for a session name with which the handles of jobs could not be parsed."""
    try:
        is_whole = parse_app_handle(make_app_handle(scheduler, session, "x")).session_name == session
    except MalformedAppHandleException:
        is_whole = False
    if not is_whole:
        raise HandleError(
            f"`{session}` is not a valid session name: handles cannot contain white space, nor a session name `/`",
            hint="give the Runner another name, for example `get_runner('my-team')`",
        )
