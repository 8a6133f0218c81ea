"""``torchx runopts``: list the options of a scheduler."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from torchx.cli.argparse_util import CFG, CFG_ROW, JSON, Row, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import warn
from torchx.cli.render import document
from torchx.config import resolve
from torchx.errors import NotSupportedError, TorchXError
from torchx.runner import Runner
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.kit.abilities import NamesRights
from torchx.specs import runopts
from torchx.specs.api import get_type_name
from torchx.util.colors import ENDC, GREEN
from torchx.util.reexports import reexports
from torchx.util.term import has_color

reexports(__name__)

__all__ = ["ENDC", "GREEN", "CmdRunopts"]


class CmdRunopts(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        rbac = "print the minimal rights of jobs as a manifest: `runopts kubernetes --rbac -cfg kind=jobset`"
        rows: tuple[Row, ...] = (
            ("scheduler", "SCHEDULER", "default: all schedulers", {"nargs": "?"}),
            JSON,
            ("--rbac", "", rbac),
            ("-cfg", CFG, "with --rbac: options of the jobs", {**CFG_ROW, "default": []}),
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.rbac:
            print(_rights(runner, args.scheduler or "kubernetes", args.cfg), end="")
            return
        found: dict[str, runopts] = {}
        if args.scheduler:
            found[args.scheduler] = runner.scheduler_run_opts(args.scheduler)
        for name in [] if args.scheduler else runner.scheduler_backends():
            try:
                found[name] = runner.scheduler_run_opts(name)
            except TorchXError as e:  # for example, a package is missing
                warn(str(e))
        if args.json:
            print(document({"schedulers": {name: _fields(opts) for name, opts in found.items()}}))
            return
        color = has_color(sys.stdout)
        green, end = ("\033[32m", "\033[0m") if color else ("", "")
        print("\n\n".join(f"{green}{name}{end}:\n{_indent(opts)}" for name, opts in found.items()))


def _rights(runner: Runner, name: str, literals: list[str]) -> str:
    """Return the manifest of rights for jobs with these run options and those of the config files."""
    opts, cfg = runner.scheduler_run_opts(name), runner.cfg_from_str(name, *literals)
    scheduler = get_scheduler_factories()[name]("")
    try:
        if not isinstance(scheduler, NamesRights):
            raise NotSupportedError(f"`{name}` has no RBAC rights", hint="`kubernetes` and `kubernetes_mcad` do")
        return scheduler.rights({key: setting.value for key, setting in resolve(name, opts, cfg).items()})
    finally:
        scheduler.close()


def _indent(opts: runopts) -> str:
    if not len(opts):
        return "    (no options)"
    usage, _, rest = repr(opts).partition("\n\n")  # a line with all options helps nobody
    return "\n".join(f"    {line}".rstrip() for line in (rest or usage).splitlines())


def _fields(opts: runopts) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "type": get_type_name(opt.opt_type),
            "required": opt.is_required,
            "default": opt.default,
            "help": opt.help.strip(),
        }
        for name, opt in opts
    ]
