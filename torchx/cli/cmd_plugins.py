"""``torchx plugins``: list plugins, where they come from, what they replace, and which failed to load."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torchx.schedulers
from torchx.cli import commands
from torchx.cli.cmd_base import SubCommand
from torchx.cli.failures import note
from torchx.cli.render import document, table
from torchx.plugins import PluginInfo, report
from torchx.util.term import has_color, is_tty, printable


class CmdPlugins(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def run(self, args: argparse.Namespace) -> None:
        # Registers the built-ins, so that the report shows which ones plugins replace.
        torchx.schedulers.get_scheduler_factories()
        commands.registry()
        found = report()
        if args.json:
            print(document({"plugins": [_fields(info) for info in found]}))
        else:
            _print(found)


def _fields(info: PluginInfo) -> dict[str, Any]:
    fields = {**vars(info), "package": info.dist or None}
    del fields["dist"]
    return fields | {key: fields[key] or None for key in ("version", "where", "error", "replaces")}


def _print(found: list[PluginInfo]) -> None:
    if not found and is_tty(sys.stdout):
        note("no plugin is installed")
        return
    rows = []
    for info in found:
        package = f"{info.dist} {info.version}".strip() or "-"
        rows.append([info.kind, info.name, info.status, package, info.value, _remark(info)])
    headers = ["KIND", "NAME", "STATUS", "PACKAGE", "OBJECT", "REMARK"]
    if not is_tty(sys.stdout):
        table(headers, rows)
        return
    # On a terminal, remarks follow the table in full: a column would cut them.
    table(headers[:-1], [row[:-1] for row in rows], shrink=[4, 3])
    red, end = ("\033[31m", "\033[0m") if has_color(sys.stdout) else ("", "")
    for info in found:
        if remark := _remark(info):
            status = f"{red}failed{end}: " if info.status == "failed" else ""
            where = f" ({info.where})" if info.where else ""
            print(f"{info.kind.replace('_', ' ')} {info.name}: {status}{printable(remark)}{where}")
    failed = sum(info.status == "failed" for info in found)
    if failed:
        note(f"{failed} failed to load; the others are not affected")


def _remark(info: PluginInfo) -> str:
    return info.error or (f"replaces that of {info.replaces}" if info.replaces else "")
