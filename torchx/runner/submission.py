"""What happens to an AppDef on its way to a scheduler, and what is written down of it."""

from __future__ import annotations

import os
import sys

from torchx.errors import SpecError, TransientError
from torchx.settings import ENV_IMAGE_DIGEST, ENV_JOB_ID, ENV_PARENT_RUN_ID, ENV_WORKSPACE_HASH
from torchx.specs.api import MISSING, MalformedAppHandleException, Workspace, macros, make_app_handle, parse_app_handle
from torchx.specs.copies import copy_data

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from torchx.runner.api import Runner
    from torchx.runner.config import Setting
    from torchx.runner.events import log_event
    from torchx.runs import NewRun
    from torchx.schedulers.api import Scheduler
    from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, Role
    from torchx.util.git import GitState


def check(app: AppDef) -> None:
    """Refuses an AppDef that no scheduler could run.

    Raises:
        SpecError: what is wrong with which role.
    """
    if not hasattr(app, "roles"):
        raise SpecError(f"`{app!r}` is no AppDef", hint="to run a component by its name, call `run_component`")
    if not app.name:
        raise SpecError("the app has no name", hint="give it one: `AppDef(name=...)`")
    if not app.roles:
        raise SpecError(f"app `{app.name}` has no roles", hint="give it at least one: `AppDef(..., roles=[Role(...)])`")
    names = set()
    for role in app.roles:
        _check_role(role)
        if role.name in names:
            raise SpecError(f"app `{app.name}` has two roles `{role.name}`", hint="names of roles must differ")
        names.add(role.name)


def prepare(app: AppDef, workspace: Workspace | str | None) -> AppDef:
    """A copy of the app, its roles on the given workspace unless they have their own."""
    new: AppDef = copy_data(app)
    for role in new.roles:
        for name in (ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH):
            role.env.pop(name, None)  # another run's, if the app is from the record of one
    if workspace:
        given = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
        for role in new.roles:
            if not role.workspace:
                role.workspace = copy_data(given)
    return new


def usable(workspace: Workspace | str | None, backend: Scheduler[Any], scheduler: str) -> Workspace | str | None:
    """The workspace, if this scheduler builds workspaces; else None, with a warning where that makes a difference."""
    if not workspace or hasattr(backend, "build_workspaces"):
        return workspace
    given = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
    if [os.path.abspath(source.removeprefix("file://")) for source in given.projects] != [os.getcwd()]:
        import logging

        logging.getLogger("torchx").warning(
            "`%s` builds no workspaces: `%s` is not used, the job sees the files as they are", scheduler, workspace
        )
    return None


def set_environment(app: AppDef, job_handle: str, trackers: Mapping[str, str], parent_run_id: str | None) -> None:
    """Tells the replicas which job they are part of.

    Args:
        job_handle: with the macro in place of the app id.
        trackers: variables that say where results are tracked; those that a role has already stay.
    """
    for role in app.roles:
        role.env[ENV_JOB_ID] = job_handle
        if parent_run_id:
            role.env[ENV_PARENT_RUN_ID] = parent_run_id
        for name, value in trackers.items():
            role.env.setdefault(name, value)


def job_handle(scheduler: str, session: str) -> str:
    """The handle of a job whose id is not known yet."""
    return make_app_handle(scheduler, session, macros.app_id)


def new_run(info: AppDryRunInfo[Any], scheduler: str, session: str, source: GitState | None = None) -> NewRun:
    """What is known of a run before it is submitted, secrets masked.

    Args:
        source: the state of the source code.
    """
    from torchx.runs import NewRun
    from torchx.specs.images import image_digests, workspace_hashes
    from torchx.specs.serialize import appdef_to_dict, masked
    from torchx.util.secrets import mask_args

    app = info._app
    roles = app.roles if app is not None else []
    record = appdef_to_dict(masked(app), fallback=repr) if app is not None else {}
    vars(info)["_record"] = record  # for backends that write it down, too
    return NewRun(
        scheduler=scheduler,
        session=session,
        name=app.name if app is not None else "",
        handle=_expected_handle(info, scheduler, session),
        app=record,
        cfg=masked_settings(getattr(info, "_settings", None), info._cfg),
        argv=mask_args(sys.argv),
        cwd=_cwd(),
        image=roles[0].image if roles else "",
        workspace=" ".join(dict.fromkeys(str(role.workspace) for role in roles if role.workspace)),
        git_commit="" if source is None else source.commit,
        git_dirty=None if source is None else source.dirty,
        parent_run_id=getattr(info, "_parent_run_id", None) or "",
        image_digests=image_digests(roles),
        workspace_hashes=workspace_hashes(roles),
    )


def schedule_or_discard(runner: Runner, info: AppDryRunInfo[Any]) -> str:
    """Submits what nobody else holds; when the scheduler refuses, what was made for the job alone is removed."""
    try:
        return runner.schedule(info)
    except TransientError:
        raise  # there may be a job all the same
    except Exception:
        discard(runner, info)
        raise


def discard(runner: Runner, info: AppDryRunInfo[Any]) -> None:
    """Removes what a dry run made for its job alone, such as a job folder, for the job will not be submitted."""
    backend = runner._scheduler(info._scheduler) if info._scheduler is not None else None
    discard_workspaces = getattr(backend, "discard_workspaces", None)
    if discard_workspaces is not None and info._app is not None:
        discard_workspaces(info._app.roles)


def reason(error: Exception) -> str:
    """What is written down of a submission that failed."""
    from torchx.util.secrets import mask_told

    return mask_told(str(error) or type(error).__name__, sys.argv)


def masked_settings(settings: Mapping[str, Setting] | None, cfg: Mapping[str, CfgVal]) -> dict[str, dict[str, Any]]:
    """Run option to ``{"value": ..., "source": ...}``, fit to be shown.

    Args:
        settings: values with their provenance; None when the dryrun was not the Runner's own.
        cfg: the values alone.

    >>> masked_settings(None, {"api_key": "abc"})
    {'api_key': {'value': '********', 'source': 'code'}}
    """
    if settings is None:
        return {key: {"value": _masked(key, value), "source": "code"} for key, value in cfg.items()}
    return {key: {"value": _masked(key, s.value), "source": s.source} for key, s in settings.items()}


def tell(event: log_event, *, info: AppDryRunInfo[Any] | None = None, handle: str = "") -> None:
    """Adds to an event what it is about, if anybody listens."""
    if not event.on:
        return
    record = event._torchx_event
    if handle:
        record.scheduler, _, record.app_id = parse_app_handle(handle)
    if info is not None and info._app is not None:
        import json

        run = new_run(info, record.scheduler, "")
        record.app_image, record.workspace = run.image, run.workspace or None
        record.app_metadata = run.app["metadata"]
        record.runcfg = json.dumps({key: setting["value"] for key, setting in run.cfg.items()}, default=str)


def _check_role(role: Role) -> None:
    if not role.name:
        raise SpecError("a role has no name", hint="give it one: `Role(name=...)`")
    if not role.entrypoint or role.entrypoint == MISSING:
        raise SpecError(
            f"role `{role.name}` has no entrypoint", hint="say what to run: `Role(..., entrypoint='python')`"
        )
    if role.num_replicas < 1:
        raise SpecError(f"role `{role.name}` has `num_replicas={role.num_replicas}`", hint="it needs 1 or more")
    if role.min_replicas is not None and not 1 <= role.min_replicas <= role.num_replicas:
        raise SpecError(
            f"role `{role.name}` has `min_replicas={role.min_replicas}` and `num_replicas={role.num_replicas}`",
            hint="the former is between 1 and the latter",
        )
    for arg in role.args:
        if not isinstance(arg, str):
            raise _not_text(role, "an argument", arg)
    for name, value in role.env.items():
        if not isinstance(value, str):
            raise _not_text(role, f"the value of environment variable `{name}`", value)


def _not_text(role: Role, what: str, value: object) -> SpecError:
    return SpecError(
        f"role `{role.name}`: {what}, `{value!r}`, is of type {type(value).__name__}", hint="write it as a string"
    )


def _expected_handle(info: AppDryRunInfo[Any], scheduler: str, session: str) -> str:
    """The handle that the job will have, where the id is part of the request; else empty."""
    app_id = getattr(info.request, "app_id", None)
    if not isinstance(app_id, str) or not app_id:
        return ""
    handle = make_app_handle(scheduler, session, app_id)
    try:
        parse_app_handle(handle)
    except MalformedAppHandleException:
        return ""
    return handle


def _masked(key: str, value: Any) -> Any:
    from torchx.util.secrets import MASK, is_secret_name, mask_text

    if value and is_secret_name(key):
        return MASK
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, dict):
        return {k: _masked(str(k), v) for k, v in value.items()}
    return [_masked("", item) for item in value] if isinstance(value, list) else value


def _cwd() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # removed under our feet
        return ""
