"""``torchx builtins``: the components that can be run by name."""

from __future__ import annotations

import argparse
import sys

from torchx.cli.cmd_base import SubCommand
from torchx.cli.render import document, gray
from torchx.component_reader.finder import get_builtin_source, get_components
from torchx.util.term import fit, has_color, is_tty, printable, width


class CmdBuiltins(SubCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("--print", dest="print_component", metavar="NAME", help="print a component's source")
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")

    def run(self, args: argparse.Namespace) -> None:
        if args.print_component:
            print(get_builtin_source(args.print_component))
            return
        found = get_components()
        if args.json:
            rows = [
                {"name": c.name, "description": c.description.strip(), "errors": list(c.validation_errors)}
                for c in found.values()
            ]
            print(document({"components": rows}))
            return
        _print_list([(c.name, c.description, c.validation_errors) for c in found.values()])


def _print_list(rows: list[tuple[str, str, list[str]]]) -> None:
    tty, color, room = is_tty(sys.stdout), has_color(sys.stdout), width(sys.stdout)
    column = max((len(name) for name, _, _ in rows), default=0)
    for name, description, errors in rows:
        text = printable((f"cannot be used: {errors[0]}" if errors else description.strip()).partition("\n")[0])
        if not tty:
            print(f"{name}\t{text}")
            continue
        print(f"  {name:<{column}}  {gray(fit(text, room - column - 4, pad=False), color=color)}")
    if tty:
        print(gray("\ntorchx run NAME --help shows a component's arguments", color=color))
