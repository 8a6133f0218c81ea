"""Prepares a recorded run to be launched again."""

from __future__ import annotations

import os
from _thread import RLock
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from torchx.config import DEFAULT, Setting
from torchx.config.files import load_files
from torchx.errors import NotFoundError, NotSupportedError, SpecError
from torchx.runner.capsule import code as old_code
from torchx.runner.capsule.changes import changed
from torchx.runner.events import log_event
from torchx.runner.ground.masks import Ask, fill, fill_options, without_values
from torchx.runner.ground.secrets import absolute
from torchx.runner.launch.checks import check
from torchx.runner.sweeps.sweeps import submit
from torchx.runs import Run, default_registry
from torchx.schedulers.api import Scheduler
from torchx.settings import ENV_JOB_ID
from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, Role, Workspace
from torchx.specs.secret import Secret
from torchx.specs.tasks import TaskList
from torchx.util.git import GitState, find_repository, read_commit
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from torchx.runner.sweeps.verbs import Sweeps

THEN, NOW = "then", "now"
_CHANGED = RLock()
_FOLDERS = ("job_dir", "jobdir")
"""Options that name a folder that each job must have for itself."""


@dataclass(kw_only=True)
class Rerun:
    """The changes to a run that is launched again.

    Attributes:
        scheduler: another scheduler; empty: the same scheduler.
        cfg: run options that override the recorded ones.
        cfg_literals: further run options, in the syntax of the command line.
        code: ``then``: the code that the run had; ``now``: the current code.
        changes: changes to the AppDef, see :func:`torchx.runner.capsule.changes.changed`.
        command: an app whose commands replace the recorded ones.
        export: the job is exported, not launched: values of secrets are not looked up.
        ask: prompts the user for a value that is masked on record; None: there is no user to ask.
    """

    scheduler: str = ""
    cfg: Mapping[str, CfgVal] = field(default_factory=dict)
    cfg_literals: Sequence[str] = ()
    code: str = NOW
    changes: Sequence[str] = ()
    command: AppDef | None = None
    export: bool = False
    ask: Ask | None = None


@dataclass(kw_only=True)
class Plan:
    """A run that is ready to be launched again.

    Attributes:
        cwd: the folder to launch it from.
        source: the commit of its code; None: that of ``cwd``.
        hashes: hash of the code in the image of each role, by role.
        tags: tags of the new run, see :class:`torchx.runs.records.NewRun`.
        notes: notes for the user.
        tasks: the tasks, if the run is a sweep.
    """

    run: Run
    app: AppDef
    scheduler: str
    cfg: dict[str, Any]
    cwd: str
    workspace: str = ""
    source: GitState | None = None
    hashes: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tasks: TaskList | None = None

    def submit(self, runner: Sweeps, info: AppDryRunInfo[Any], event: log_event) -> str:
        if self.tasks is None:
            return runner._schedule_or_discard(info, event)
        return submit(runner, info, self.tasks)

    def surroundings(self) -> AbstractContextManager[None]:
        """Change to the folder to launch from: some schedulers use the current directory."""
        return inside(self.cwd)

    def finish(self, info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
        """Add the origin of this plan to its request: tags, source, hashes and the sources of options."""
        made = info.submission
        made.tags = {**made.tags, **self.tags, "rerun_of": self.run.handle}
        made.source = self.source
        made.workspace_hashes.update(self.hashes)
        settings = made.settings = dict(made.settings or {})
        for key, recorded in self.run.cfg.items() if self.scheduler == self.run.scheduler else ():
            if key in settings and settings[key].value == recorded["value"]:
                settings[key] = Setting(settings[key].value, recorded["source"])
        return info


@contextmanager
def inside(folder: str) -> Iterator[None]:
    """Change the current directory temporarily. All threads share it, so other threads that call this wait."""
    with _CHANGED:
        before = os.getcwd()
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def plan(runner: Sweeps, run: Run, wish: Rerun) -> Plan:
    """Prepare a run to be launched again; errors are those of :meth:`Runner.rerun`."""
    app = run.appdef()
    if app is None:
        raise NotFoundError(f"the AppDef of `{run.app_id}` is not on record", hint="launch it with `torchx run`")
    scheduler = wish.scheduler or run.scheduler
    new = Plan(run=run, app=app, scheduler=scheduler, cfg={}, cwd=run.cwd, tasks=default_registry().tasks(run))
    if new.tasks is not None and wish.export:
        raise NotSupportedError(
            f"`{run.app_id}` is a sweep of {len(new.tasks.points)} tasks, and sweeps cannot be exported",
            hint="`torchx run --export DIR` with the values of one task exports that task",
        )
    if new.tasks is not None:
        new.notes.append(
            f"all {len(new.tasks.points)} tasks run again; `torchx sweep --retry-failed` is for those that failed"
        )
    files, backend = load_files(), runner._scheduler
    given = {**(runner.cfg_from_str(scheduler, *wish.cfg_literals) if wish.cfg_literals else {}), **wish.cfg}
    if scheduler == run.scheduler:
        opts = backend(scheduler).run_opts()
        needed = {k: r["value"] for k, r in run.cfg.items() if (option := opts.get(k)) and option.is_required}
        settings = {} if wish.scheduler else runner._settings(scheduler, needed, files)
        new.cfg = _options(run, settings, set(given), new.notes)
    new.cfg.update(given)
    for role in app.roles:
        role.env.pop(ENV_JOB_ID, None)
        if text := run.tags.get(f"workspace.{role.name}"):  # the run was a rerun that built no image
            role.workspace = Workspace.from_str(text)
    if "checkout" in run.tags:  # the run was a rerun from a checkout: go back to the original folder
        _move(new, app.roles, run.tags["checkout"], run.tags.get("worktree", ""))
    _code_then(new, backend(run.scheduler)) if wish.code == THEN else _code_now(new)
    if backend(scheduler).capabilities.workspaces and not backend(run.scheduler).capabilities.workspaces:
        new.workspace = f"file://{new.cwd}"  # the run used this folder directly
    if wish.command is not None:
        _take_commands(app, wish.command)
    if wish.changes:
        new.app = changed(app, wish.changes)
        check(new.app, image_program=True)
    if wish.export:
        without_values(new.app)
    new.notes += fill(new.app, files, wish.ask)
    return new


def _options(run: Run, settings: Mapping[str, Setting], given: set[str], notes: list[str]) -> dict[str, Any]:
    """Return the recorded run options, without defaults that have not changed since."""
    values = {}
    for key, recorded in run.cfg.items():
        value = recorded["value"]
        differs = key in settings and settings[key].value != value
        if recorded["source"] != DEFAULT or differs:
            values[key] = _unused_folder(value) if key in _FOLDERS and value and key not in given else value
        if differs and value is None and key not in given:  # a config file overrides None
            notes.append(f"the run had no `{key}`, and {settings[key].source} says `{settings[key].value}`")
    fill_options(values, given)
    return values


def _unused_folder(path: str) -> str:
    """Return a folder for the code of the new job, next to that of the run."""
    head, mark, _ = path.rpartition("-again-")
    return f"{head if mark else path}-again-{os.urandom(3).hex()}"


def _code_now(new: Plan) -> None:
    run = new.run
    if not os.path.isdir(new.cwd):
        raise NotFoundError(
            f"the folder `{new.cwd}`, in which `{run.app_id}` was launched, is gone",
            hint="`--code then` may do without",
        )
    for role in new.app.roles:
        base = run.tags.get(f"image.{role.name}", "")
        if base:
            role.image = base
        elif role.workspace and role.name in run.image_digests:
            raise NotFoundError(
                f"the base image of role `{role.name}` is not on record",
                hint=f"add `--set roles.{role.name}.image=IMAGE`, or `--code then`",
            )
    if run.git_commit and (run.git_dirty or read_commit(find_repository(new.cwd)[1]) != run.git_commit):
        new.notes.append("runs the code as it is now; `--code then` runs what the run had")


def _code_then(new: Plan, backend: Scheduler[Any]) -> None:
    """Make the roles use their recorded images, and a checkout of the code if it was not in the image."""
    run, same = new.run, new.scheduler == new.run.scheduler
    bare = []
    for role in new.app.roles:
        base = run.tags.get(f"image.{role.name}", "")
        digest = run.image_digests.get(role.name, "") if same else ""
        inside = bool(role.workspace) and bool(digest) and role.image != base
        if digest:
            role.image = digest
        elif base:
            role.image = base
        if inside:
            new.tags.update({f"image.{role.name}": base, f"workspace.{role.name}": str(role.workspace)})
            role.workspace = None
            if role.name in run.workspace_hashes:
                new.hashes[role.name] = run.workspace_hashes[role.name]
        elif role.workspace or not backend.capabilities.workspaces:
            bare.append(role)
    if bare:
        _check_out(new, bare)
    elif not os.path.isdir(new.cwd):
        new.cwd = os.getcwd()
    if run.git_commit:
        new.source = GitState(run.git_commit, run.git_dirty, run.tags.get("patch", ""))


def _check_out(new: Plan, roles: Sequence[Role]) -> None:
    for role in new.app.roles:  # relative paths of secrets start in the folder of the run
        for name, value in role.env.items():
            if isinstance(value, Secret):
                role.env[name] = absolute(value, new.cwd)
    folder, top, notes = old_code.checkout(new.run, new.cwd)
    new.tags.update(checkout=folder, worktree=top)
    _move(new, roles, top, folder)
    new.notes += notes


def _move(new: Plan, roles: Sequence[Role], old: str, folder: str) -> None:
    def moved(path: str) -> str:
        inside = os.path.relpath(os.path.realpath(path), os.path.realpath(old))
        if inside.split("/")[0] == "..":
            raise NotFoundError(
                f"`{path}` is code of `{new.run.app_id}` that is not in its git repository, and not on record",
                hint="`--code now` runs it as it is",
            )
        return os.path.normpath(os.path.join(folder, inside))

    for role in roles:
        if role.workspace:
            role.workspace.projects = {
                f"file://{moved(source.removeprefix('file://'))}": target
                for source, target in role.workspace.projects.items()
            }
    new.cwd = moved(new.cwd)


def _take_commands(app: AppDef, made: AppDef) -> None:
    """Take only entrypoints and arguments from an app that the component has just made."""
    roles = {role.name: role for role in made.roles}
    names = [role.name for role in app.roles]
    if len(made.roles) == 1 == len(names):
        roles = {names[0]: made.roles[0]}
    if sorted(roles) != sorted(names):
        raise SpecError(
            f"with these arguments the component makes roles `{', '.join(roles)}`, not `{', '.join(names)}`",
            hint="launch it with `torchx run`",
        )
    for role in app.roles:
        role.entrypoint, role.args = roles[role.name].entrypoint, roles[role.name].args
