"""``torchx run``: launch a component as a job."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torchx.cli import resources, shorthand
from torchx.cli.argparse_util import Parser, Row, declare
from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import UsageError, note, warn
from torchx.cli.render import document
from torchx.cli.run_args import (
    STDIN,
    TEXT_OPTIONS,
    WHAT_GOES_ALONG,
    WHAT_TO_DO,
    WHERE,
    TorchXRunArgs,
    fill_from_config,
    parse_secrets,
    read_json,
    torchx_run_args_from_argparse,
    torchx_run_args_from_json,
    wanted,
)
from torchx.config import SourcedCfg, check_sections, use_profile
from torchx.runner import Runner, get_runner
from torchx.runner.ground.components import make_app
from torchx.runner.show.json_output import handle_fields
from torchx.schedulers import get_default_scheduler_name, get_scheduler_factories
from torchx.settings import ALLOW_PRIVATE_WORKSPACE, NO_CHECK
from torchx.specs import AppDryRunInfo
from torchx.specs.api import Workspace
from torchx.specs.images import NamesOnly
from torchx.util import term
from torchx.util.reexports import reexports
from torchx.util.term import is_tty

if TYPE_CHECKING:
    from torchx.cli.cmd_builtins import CmdBuiltins

reexports(__name__)

__all__ = [
    "LOCAL_SCHEDULER_WARNING_MSG",
    "MISSING_COMPONENT_ERROR_MSG",
    "CmdBuiltins",
    "CmdRun",
    "TorchXRunArgs",
    "torchx_run_args_from_argparse",
    "torchx_run_args_from_json",
]

MISSING_COMPONENT_ERROR_MSG = "missing component name, either provide it from the CLI or in .torchxconfig"
LOCAL_SCHEDULER_WARNING_MSG = (
    "`local` scheduler is deprecated and will be removed in the near future,"
    " please use other variants of the local scheduler (e.g. `local_cwd`)"
)
_HELP = """\
Runs a script, any program after `--`, or a component, which is a function that describes a job:

  torchx run train.py --epochs 3
  torchx run -j 1x4 train.py --epochs 3                 under torchrun: 1 node with 4 workers
  torchx run -- python -m my_module --epochs 3
  torchx run -s slurm -cfg partition=gpu dist.ddp -j 2x8 --script train.py -- --epochs 3

`torchx run COMPONENT --help` prints the component's arguments, `torchx builtins` lists components,
`torchx runopts SCHEDULER` lists the options for -cfg. Defaults come from [cli:run] in .torchxconfig.
On a terminal, torchx follows the job until Ctrl-C detaches it; the job continues. `-d` returns at once.
Otherwise it prints the job's handle, alone on the last line of stdout. Messages go to stderr."""
_SESSION = "utils.session"
_LOCAL = "local_cwd"


class CmdRun(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        subparser.usage = "torchx run [options] COMPONENT|SCRIPT.py|-- PROGRAM [arguments]"
        self.declare(subparser, WHAT_TO_DO)

    def declare(self, subparser: argparse.ArgumentParser, more: Iterable[Row]) -> None:
        """Declare the options and the component; ``more`` are further options."""
        subparser._optionals.conflict_handler = "resolve"  # `-h` is a resource; alone, it prints the help
        declare(subparser, (*WHERE, *more, *WHAT_GOES_ALONG), sparse=True)
        subparser.add_argument(
            "component_name_and_args",
            nargs=argparse.REMAINDER,
            metavar="COMPONENT|SCRIPT.py",
            help="what to run, and its arguments",
        )

    def run(self, args: argparse.Namespace) -> None:
        profile = getattr(args, "profile", None)
        if profile:
            use_profile(profile)
        try:
            self._run(args)
        finally:
            if profile:
                use_profile(None)
            ALLOW_PRIVATE_WORKSPACE.option = NO_CHECK.option = False  # in a notebook, further commands follow

    def torchx_json_from_stdin(self, args: argparse.Namespace | None = None) -> dict[str, Any]:
        """Read the JSON object from stdin, and add flags of the command line ``args``; see :func:`read_json`."""
        data = read_json(sys.stdin.read())
        for key in ("dryrun", "wait", "log", "tee_logs"):
            if args is not None and getattr(args, key, False):
                data[key] = True
        return data

    def verify_no_extra_args(self, args: argparse.Namespace) -> None:
        """Raise UsageError for an argument for which the JSON of ``--stdin`` has a key."""
        extra = getattr(args, "component_name_and_args", None)
        if extra:
            raise UsageError(f"`--stdin` cannot be combined with `{' '.join(extra)}`", hint="put it into the JSON")
        for key in (*TEXT_OPTIONS, *resources.TEXTS, "after", "notify", "notify_on", "size"):
            if hasattr(args, key):
                option = {"cfg": "-cfg", "size": "-j", "h": "-h"}.get(key, f"--{key}")
                raise UsageError(f"`--stdin` cannot be combined with `{option}`", hint="put it into the JSON")

    def _run(self, args: argparse.Namespace) -> None:
        from_stdin = getattr(args, "stdin", False)
        if from_stdin:
            self.verify_no_extra_args(args)
            run_args = torchx_run_args_from_json(self.torchx_json_from_stdin(args))
        else:
            component, component_args = what_to_run(args)
            run_args = torchx_run_args_from_argparse(args, component, component_args, {})
            if not hasattr(args, "workspace"):
                run_args.workspace = Workspace({f"file://{os.getcwd()}": ""}).to_text()  # with its commas
        # Now, because an option may also stand after the component, or in the config file.
        ALLOW_PRIVATE_WORKSPACE.option = getattr(args, "allow_private_workspace", False)
        NO_CHECK.option = getattr(args, "no_check", False)
        if run_args.scheduler == "local":
            warn(LOCAL_SCHEDULER_WARNING_MSG)
            run_args.scheduler = get_default_scheduler_name()
        with get_runner() as runner:
            _set_cfg(runner, run_args, literals=getattr(args, "cfg", []), from_stdin=from_stdin)
            if runner._scheduler(run_args.scheduler).capabilities.resources:
                resources.assume(run_args, always=hasattr(args, "is_program"))
            self.go(runner, run_args, args)

    def go(self, runner: Runner, run_args: TorchXRunArgs, args: argparse.Namespace) -> None:
        """Check, exports, shows or launches the job, depending on the options."""
        with_logs = run_args.log or run_args.tee_logs
        given = {**vars(args), "wait": run_args.wait, "log": with_logs}
        as_json = given.get("json", False)
        if given.get("check"):
            import functools

            from torchx.cli.cmd_doctor import conclude, report
            from torchx.specs.wishes.timeouts import parse_timeout

            within_s = parse_timeout(given["check_timeout"]) if given.get("check_timeout") else None
            ask = functools.partial(call_runner, runner, "check", run_args, within_s=within_s)
            found = report(run_args.scheduler, ask, as_json=as_json)
            conclude({run_args.scheduler: found}, as_json=as_json)
        elif "export" in given:
            from torchx.cli.cmd_export import export_to

            with NamesOnly():
                info = call_runner(runner, "dryrun", run_args)
            export_to(runner, info, args.export, workspace=run_args.workspace, as_json=as_json)
        elif run_args.dryrun or given.get("manifest"):
            show_dryrun(runner, lambda: call_runner(runner, "dryrun", run_args), given)
        elif run_args.component_name == _SESSION and not any(map(given.get, ("wait", "log", "json", "detach"))):
            from torchx.cli.questions import asking_for_hours
            from torchx.cli.session import hold

            with asking_for_hours(yes=given.get("yes", False)):
                hold(runner, run_args.scheduler, lambda: call_runner(runner, "run", run_args))
        else:
            launch(runner, run_args.scheduler, lambda: call_runner(runner, "run", run_args), given)


def what_to_run(args: argparse.Namespace) -> tuple[str, list[str]]:
    """Return the component and its arguments.

    Adds to ``args`` the options of torchx that stand after the component, and those of the config files.
    """
    words = list(getattr(args, "component_name_and_args", ()))
    program_first = shorthand.is_program(words)
    script = bool(words) and words[0].endswith(".py")
    if script or program_first:
        shorthand.refuse(words[1:], words[0])
    elif words and not words[0].startswith("-") and (parser := getattr(args, "_parser", None)) is not None:
        ours, words[1:] = shorthand.hoist(parser, words[0], words[1:])
        if ours:
            parser.parse_args(ours, args)
    given = resources.given_by(args)
    _fill(args)
    size = getattr(args, "size", None)
    dashes = words[:1] == ["--"] and not getattr(args, "component", None)
    program = None
    here = (getattr(args, "scheduler", None) or get_default_scheduler_name()) == _LOCAL
    if script or program_first or (dashes and words[1:]):
        program = shorthand.program(words[dashes:], size=size, dashes=dashes or program_first, here=here)
    if program is None:
        component, component_args = _split_component(args, words)
        component_args = ["-j", size, *component_args] if size else component_args
        return component, resources.arguments_for(component, component_args, args, given)
    args.is_program = True
    if here and "--script" in program[1]:
        shorthand.check_script(program[1])
    return program[0], resources.arguments_for(*program, args, given)


def _trusts(question: str) -> bool:
    from torchx.cli.questions import agreed

    return is_tty(sys.stdin) and is_tty(sys.stderr) and agreed(question)


term.ask = _trusts  # not in `torchx top`, whose screen covers the terminal


def parsed(words: list[str]) -> argparse.Namespace:
    parser = Parser(prog="torchx run")
    CmdRun().add_arguments(parser)
    parser.set_defaults(_parser=parser)
    args: argparse.Namespace = parser.parse_args(words)
    return args


def _fill(args: argparse.Namespace) -> None:
    """Add the options of the config files. ``--detach`` overrides their ``wait = true``."""
    waits = ("wait", "log", "tee_logs")
    detach = getattr(args, "detach", False)
    if detach and any(hasattr(args, name) for name in waits):
        raise UsageError("`--detach` returns at once, and `--wait` and `--log` wait", hint="leave one of them out")
    for name in waits if detach else ():
        setattr(args, name, False)
    fill_from_config(args)


def _split_component(args: argparse.Namespace, words: list[str]) -> tuple[str, list[str]]:
    """Return the component, by default that of the config file, and its arguments."""
    configured = getattr(args, "component", None)
    dashes = words[:1] == ["--"]
    words = words[dashes:]
    if words and not words[0].startswith("-") and not (dashes and configured):
        return words[0], words[1:]
    if configured:
        if dashes and words and shorthand.is_on_path(words[0]) and is_tty(sys.stderr):
            note(
                f"`{words[0]}` is an argument of `{configured}`; to run the program: torchx run utils.sh {words[0]} ..."
            )
        return configured, words
    check_sections(get_scheduler_factories())  # warns of a misspelled section, which may hold the component
    raise UsageError(MISSING_COMPONENT_ERROR_MSG, hint="`torchx builtins` lists components")


def _set_cfg(runner: Runner, run_args: TorchXRunArgs, *, literals: list[str], from_stdin: bool) -> None:
    """Types the scheduler's options and records their source."""
    if not from_stdin:
        run_args.scheduler_cfg = runner.cfg_from_str(run_args.scheduler, *literals)  # type: ignore[assignment]
        return
    import json

    opts = runner.scheduler_run_opts(run_args.scheduler)
    typed = opts.cfg_from_json_repr(json.dumps(run_args.scheduler_args))
    run_args.scheduler_cfg = SourcedCfg({**run_args.scheduler_cfg, **typed}, source=STDIN)


def call_runner(runner: Runner, verb: str, run_args: TorchXRunArgs, *, sweep: bool = False, **more: Any) -> Any:
    """Call ``run``, ``dryrun`` or ``check`` of the Runner for the component, with its secrets, policies and notices.

    With ``sweep``, the result of ``dryrun`` is going to be submitted as a sweep. The verb gets ``more`` as it is.
    """
    given = {
        **more,
        "cfg": run_args.scheduler_cfg,
        "workspace": run_args.workspace or None,
        "parent_run_id": run_args.parent_run_id,
    }
    name, component_args = run_args.component_name, run_args.component_args or run_args.component_args_str
    wishes = wanted(run_args)
    if verb == "check":
        del given["parent_run_id"]
    elif not (run_args.env or run_args.secrets or run_args.after or wishes):
        return getattr(runner, f"{verb}_component")(name, component_args, run_args.scheduler, **given)
    app = make_app(name, component_args, None)
    for role in app.roles:
        role.env.update({**run_args.env, **parse_secrets(run_args.secrets)})
    if run_args.after:
        from torchx.runner.watching.after import put_after, wait_for

        submits = (verb == "run" or sweep) and not run_args.dryrun
        for condition, handle in put_after(runner, app, run_args.after, run_args.scheduler, sweep=sweep):
            if submits:  # wait here, because the scheduler cannot
                note(f"Waiting for {handle}")
                wait_for(runner, condition, handle)
    app.metadata.update(wishes)
    if "hang" in run_args.notify_on and not {"torchx/watchdog", "torchx/idle"} & app.metadata.keys():
        warn("a hang is only detected with a watchdog: add `--watchdog 10m`, for example")
    return getattr(runner, verb)(app, run_args.scheduler, **given)


def show_dryrun(runner: Runner, make: Callable[[], AppDryRunInfo[Any]], given: Mapping[str, Any]) -> None:
    """Show what would be submitted, without building an image. ``given`` holds ``json`` and ``full``."""
    from torchx.cli import spec_page

    with NamesOnly():
        info = make()
    spec_page.show_dryrun(
        info, as_json=given.get("json", False), full=given.get("full", False), manifest=given.get("manifest", False)
    )
    runner.discard(info)


def launch(runner: Runner, scheduler: str, submit: Callable[[], str], given: Mapping[str, Any]) -> None:
    """Submit a job, prints its handle, and wait for it or follows it; ``given`` may have the options for that."""
    from torchx.cli.questions import asking_for_hours

    with_logs, as_json = given.get("log", False), given.get("json", False)
    waits = given.get("wait", False) or with_logs
    alone = not (waits or as_json or given.get("detach"))
    follows = alone and is_tty(sys.stdout) and is_tty(sys.stderr)
    if follows and not runner._scheduler(scheduler).capabilities.log_follow:
        note(f"`{scheduler}` does not show the logs of running jobs, so the job is not followed")
        follows = False
    if waits or follows:  # imported before the submission, so that a Ctrl-C right after it is handled
        from torchx.cli.waiting import wait_for
    with asking_for_hours(yes=given.get("yes", False)):
        handle = submit()
    if waits or follows:
        wait_for(runner, handle, with_logs=with_logs or follows, as_json=as_json, cancels=waits)
    elif as_json:
        print(document(handle_fields(handle)))
    else:
        if is_tty(sys.stderr):
            note(f"Launched app: {handle.rpartition('/')[2]} · torchx log -f @last · torchx status @last")
        print(handle, flush=True)  # alone on the last line of stdout, where programs read it
