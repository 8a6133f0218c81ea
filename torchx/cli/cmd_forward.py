"""``torchx forward``: forward local ports to ports of a replica."""

from __future__ import annotations

import argparse
import sys

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_exec import WHERE, WHERE_HELP, find_replica
from torchx.cli.failures import UsageError, error, note
from torchx.runner import Runner

_MOST = 65535


class CmdForward(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        add("--open", action="store_true", help="open the first one in the browser")
        add("identifier", metavar=WHERE, help=WHERE_HELP)
        ports = "port of the replica, and local port (default: the same; 0: any free one)"
        add("ports", nargs="+", metavar="PORT[:LOCAL]", type=parse_ports, help=ports)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Forwards until Ctrl-C, or until the replica has ended."""
        handle, (role, k) = find_replica(runner, args.identifier)
        with runner.forward(handle, args.ports, role, k) as forwarding:
            forwarding.on_refusal(lambda why: error(f"{role}/{k} refuses the connection: {why}"))
            for (port, _), local in zip(args.ports, forwarding.local_ports, strict=True):
                print(f"http://localhost:{local}", flush=True)
                note(f"  is port {port} of {role}/{k}, until Ctrl-C")
            if args.open:
                import webbrowser

                webbrowser.open(f"http://localhost:{forwarding.local_ports[0]}")
            try:
                forwarding.run()
            except KeyboardInterrupt:
                sys.exit(0)


def parse_ports(text: str) -> tuple[int, int]:
    """Parses PORT[:LOCAL] into remote and local port; local port 0 means any free one.

    >>> parse_ports("6006"), parse_ports("6006:0")
    ((6006, 6006), (6006, 0))
    """
    there, colon, here = text.partition(":")
    parts = (there, here if colon else there)
    numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 6 else -1 for part in parts]
    if not 0 < numbers[0] <= _MOST or not 0 <= numbers[1] <= _MOST:
        raise UsageError(f"`{text}` is not a valid PORT[:LOCAL] (1-{_MOST})", hint="for example 6006, or 6006:8080")
    return numbers[0], numbers[1]
