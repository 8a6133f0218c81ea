"""Turns an AppDef into a request: validates it, builds workspaces, sets the environment, calls the scheduler."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchx.config import Setting, active_profile
from torchx.config.files import ConfigFiles
from torchx.errors import ConfigError, NotSupportedError, SpecError
from torchx.runner.ground.trackers import get_configured_trackers, tracker_environment
from torchx.settings import ENV_IMAGE_DIGEST, ENV_JOB_ID, ENV_PARENT_RUN_ID, ENV_WORKSPACE_HASH
from torchx.specs.api import GPU_TYPE, AppDef, AppDryRunInfo, CfgVal, Submission, Workspace, macros, make_app_handle
from torchx.specs.copies import copy_data
from torchx.specs.ready import has_order
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.checks import CHECK_NODES
from torchx.specs.wishes.scripts import SBATCH
from torchx.specs.wishes.setup import SETUP, UV
from torchx.specs.wishes.stages import STAGE
from torchx.util.notices import logger

if TYPE_CHECKING:
    from torchx.schedulers.api import Scheduler
    from torchx.schedulers.kit.caps import Capabilities

_FOR_THIS_JOB = ("-cfg", "code", "--stdin")  # sources of options other than config files and the environment

_STRINGS = frozenset({str})


def prepare(app: AppDef, workspace: Workspace | str | None, scheduler: str, backend: Scheduler[Any]) -> AppDef:
    """Validate and copy an app. Roles without a workspace get the given one, if ``backend`` builds workspaces."""
    from torchx.runner.launch.checks import check
    from torchx.schedulers.kit.abilities import BuildsWorkspaces

    check(app, image_program=backend.capabilities.image_program, odd_names=scheduler == "slurm")
    new: AppDef = copy_data(app)
    for role, name in [(r, n) for r in new.roles for n in r.env if "=" in n]:
        logger("torchx").warning("role `%s`: `%s` is not a valid name of a variable: left out", role.name, name)
        del role.env[name]
    for role in new.roles:
        if kind := role.resource.capabilities.get(GPU_TYPE):
            _check_gpu_type(kind, role.resource.gpu, scheduler)
        if role.resource.gpu > 0 and backend.capabilities.resources:
            from torchx.runner.launch.static import act, memory

            act(memory(role))
        for name in (ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH):
            role.env.pop(name, None)  # of another run, if the app is from the run registry
    if workspace:
        given = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
        if isinstance(backend, BuildsWorkspaces):
            for role in new.roles:
                if not role.workspace:
                    role.workspace = copy_data(given)
        else:
            _warn_of_unused(given, str(workspace), scheduler)
    return new


def _check_gpu_type(kind: str, gpus: int, scheduler: str) -> None:
    from torchx.specs.gpu_types import knows_types

    if not knows_types(scheduler):
        raise NotSupportedError(
            f"`{scheduler}` cannot ask for a type of GPU, and the job asks for `{kind}`",
            hint=f"`--gpu {gpus}` takes those that there are",
        )


def dry_run(
    app: AppDef,
    scheduler: str,
    backend: Scheduler[Any],
    *,
    session: str,
    settings: Mapping[str, Setting],
    files: ConfigFiles,
    parent_run_id: str | None,
) -> AppDryRunInfo[Any]:
    """Make the request for an app that :func:`prepare` returned, and modifies it.

    The order of the steps is part of the contract with backends. Without ``parent_run_id`` that in
    ``TORCHX_PARENT_RUN_ID``, if any, is used.
    """
    from torchx.schedulers.api import ResolvedCfg, validate

    values = {key: setting.value for key, setting in settings.items()}
    _check_logs(files)
    _add_uv(app, files)
    if app.metadata:
        _check_metadata(app, scheduler, backend, settings)  # before anything is built
    _check_overlays(app, scheduler, backend)
    if has_order(app):
        _check_order(app, scheduler, backend.capabilities)
    backend.apply_rules([role for role in app.roles if not role.has_overrides()], values)  # before anything is built
    backend._pre_build_validate(app, scheduler, values)
    _keep_secret_files_out(app, files)  # before anything is copied
    tags = _build_workspaces(app, backend, values)
    parent_run_id = parent_run_id or os.environ.get(ENV_PARENT_RUN_ID)
    try:
        late = [role for role in app.roles if role.has_overrides()]
        for role in app.roles:
            role.resolve_overrides()
            if not _STRINGS.issuperset(map(type, role.env.values())):
                from torchx.runner.ground.secrets import record_source

                record_source(role, scheduler, backend, files)
        backend.apply_rules(late, values)
        validate(backend, app, scheduler, values)
        trackers = tracker_environment(get_configured_trackers(files))
        # The app id is not known yet: its macro takes its place.
        _set_environment(app, make_app_handle(scheduler, session, macros.app_id), trackers, parent_run_id)
        runs = _with_setup(app, values, scheduler, backend)
        info = backend.submit_dryrun(runs, ResolvedCfg(values))
        info.submission.app = None if runs is app else runs
    except BaseException:  # also on Ctrl-C: the job folder would block the next attempt
        if tags:
            discard(app, backend)
        raise
    info._app, info._cfg, info._scheduler = app, values, scheduler
    made = info.submission
    made.settings, made.parent_run_id, made.tags = settings, parent_run_id, tags
    _set_interval(made, app, files)
    return info


def _check_logs(files: ConfigFiles) -> None:
    """Report a mistake in where logs are kept before the job runs."""
    if files and "logs" in files.names():
        from torchx.runner.launch.log_place import place

        place()


def _set_interval(made: Submission, app: AppDef, files: ConfigFiles) -> None:
    """Set the time between two samples, if the config file does."""
    if files and (section := files.section("metrics", active_profile())):
        from torchx.runner.launch.sampling import sample_s

        made.sample_s = sample_s(section)
        if not made.sample_s and Wishes.of(app).idle:
            raise SpecError("`--idle` needs samples, and `every` of `[metrics]` is 0", hint="omit one of them")


def _keep_secret_files_out(app: AppDef, files: ConfigFiles) -> None:
    if (files and files.section("secrets")) or any(
        not _STRINGS.issuperset(map(type, r.env.values())) for r in app.roles
    ):
        from torchx.runner.ground.secrets import secret_files
        from torchx.workspace.private import keep_out

        keep_out(secret_files(app, files))


def _add_uv(app: AppDef, files: ConfigFiles) -> None:
    """Add the wish of ``[workspace] uv`` to an app that has none of its own."""
    if files and (text := files.section("workspace", active_profile()).get("uv")):
        app.metadata[UV] = app.metadata.get(UV) or str(text.text)


def _with_setup(app: AppDef, values: Mapping[str, CfgVal], scheduler: str, backend: Scheduler[Any]) -> AppDef:
    """Return the job whose replicas run the lines of set-up first; the record keeps ``app`` and the lines."""
    if not (values.get("setup") or {SETUP, UV, STAGE, CHECK_NODES} & app.metadata.keys()):
        return app
    from torchx.schedulers.kit.setup import with_setup

    return with_setup(app, values, scheduler, backend)


def _build_workspaces(app: AppDef, backend: Scheduler[Any], values: dict[str, CfgVal]) -> dict[str, str]:
    """Build the workspaces into the images; return the images before, which reruns need."""
    from torchx.schedulers.kit.abilities import BuildsWorkspaces

    tags = {f"image.{role.name}": role.image for role in app.roles if role.workspace}
    if isinstance(backend, BuildsWorkspaces):
        if tags:
            from torchx.runner.launch.static import refuse_scripts

            refuse_scripts(app, backend, values)
        backend.build_workspaces(app.roles, values)
    return tags


def discard(app: AppDef, backend: Scheduler[Any]) -> None:
    """Remove what was created for this app only, such as its job folder."""
    from torchx.schedulers.kit.abilities import DiscardsWorkspaces

    if isinstance(backend, DiscardsWorkspaces):
        backend.discard_workspaces(app.roles)


def _check_metadata(app: AppDef, scheduler: str, backend: Scheduler[Any], settings: Mapping[str, Setting]) -> None:
    """Raise an error for a batch script, retries, dependencies, or a timeout that the scheduler does not support."""
    from torchx.schedulers.kit.attempts import policy_of

    if SBATCH in app.metadata and backend.backend != "slurm":
        why, _, hint = app.metadata[SBATCH].partition("\n")
        raise NotSupportedError(f"this batch script cannot run on `{scheduler}`: {why}", hint=hint)
    policy_of(app, scheduler, backend.capabilities)
    wishes = Wishes.of(app)
    if wishes.watchdog and not backend.capabilities.watchdog:
        raise NotSupportedError(
            f"`{scheduler}` cannot watch whether a job is silent",
            hint="omit `--watchdog`; `torchx stacks JOB` shows what a job that seems to hang is doing",
        )
    if wishes.idle and not backend.capabilities.idle:
        live = ": it reports what a job uses now, and nothing samples that while nobody looks"
        said = f"`{scheduler}` cannot detect idle jobs{live if backend.capabilities.metrics == 'live' else ''}"
        raise NotSupportedError(said, hint="omit `--idle`; `torchx metrics JOB` shows what a job uses")
    if wishes.idle and wishes.idle.action == "checkpoint" and "checkpoint" not in backend.capabilities.retry_actions:
        said = f"`{scheduler}` cannot ask for a checkpoint of an idle job"
        raise NotSupportedError(said, hint=f"for example `--idle {wishes.texts['idle'].partition(':')[0]}:cancel`")
    if wishes.after:
        from torchx.runner.launch.after import check_after

        check_after(wishes.after, scheduler, backend.capabilities)
    if wishes.timeout_s:
        _check_timeout(wishes, scheduler, backend.capabilities, settings)


def _check_order(app: AppDef, scheduler: str, caps: Capabilities) -> None:
    """Raise SpecError for an order of roles that is invalid, NotSupportedError for one that the scheduler lacks."""
    from torchx.specs.order import order_of

    probes = {order.probe for order in order_of(app).values() if order.probe}
    if not caps.order:
        raise NotSupportedError(
            f"roles of `{app.name}` wait for each other, and `{scheduler}` cannot start them in order",
            hint="omit `after`, `ready`, `ends_job` and addresses of roles",
        )
    for probe in sorted(probes.difference(caps.order)):
        raise NotSupportedError(
            f"`{scheduler}` cannot see whether a role is ready by `{probe}`", hint=f"use {' or '.join(caps.order)}"
        )


def _check_overlays(app: AppDef, scheduler: str, backend: Scheduler[Any]) -> None:
    """Raise SpecError for changes to the request in the metadata, if the scheduler would ignore them."""
    known = backend.capabilities.overlays
    for what, metadata in (("the app", app.metadata), *((f"role `{role.name}`", role.metadata) for role in app.roles)):
        for key, value in metadata.items():
            name, dot, _ = str(key).partition(".")
            if name in (scheduler, backend.backend) and name != known and (not dot or str(value).startswith("{")):
                hint = f"it reads `{known}` there" if known else "run options (`-cfg`) may do what is meant"
                raise SpecError(
                    f"`{scheduler}` does not understand the metadata `{key}` of {what}: `{value}`", hint=hint
                )


def _check_timeout(wishes: Wishes, scheduler: str, caps: Capabilities, settings: Mapping[str, Setting]) -> None:
    """Validate the timeout of a job. It overrides a time limit that a config file or the environment sets."""
    if not caps.timeout:
        raise NotSupportedError(f"`{scheduler}` cannot end a job after a time", hint="omit `--timeout`")
    found = settings.get(caps.timeout)
    if found is None or found.value is None or found.source not in _FOR_THIS_JOB:
        return
    raise ConfigError(
        f"the timeout `{wishes.texts['timeout_s']}` and `{caps.timeout}={found.value}` both set the time limit",
        hint=f"omit one of them; on `{scheduler}` they mean the same",
    )


def _set_environment(app: AppDef, job_handle: str, trackers: Mapping[str, str], parent_run_id: str | None) -> None:
    """Set the environment variables from which replicas learn their job, parent run and trackers.

    ``job_handle`` has the macro in place of the app id. Variables of trackers that a role already has are kept.
    """
    for role in app.roles:
        role.env[ENV_JOB_ID] = job_handle
        if parent_run_id:
            role.env[ENV_PARENT_RUN_ID] = parent_run_id
        for name, value in trackers.items():
            role.env.setdefault(name, value)


def _warn_of_unused(workspace: Workspace, text: str, scheduler: str) -> None:
    """Warns that the scheduler builds no workspaces, if the workspace is not the current directory."""
    if [os.path.abspath(source.removeprefix("file://")) for source in workspace.projects] != [os.getcwd()]:
        logger("torchx").warning(
            "`%s` builds no workspaces: `%s` is not used, the job sees the files as they are", scheduler, text
        )
