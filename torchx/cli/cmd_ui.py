"""``torchx ui`` and ``torchx top``: show runs in the browser, or full screen in the terminal."""

from __future__ import annotations

import argparse
import os
import sys

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError
from torchx.errors import MissingDependencyError, install_extra
from torchx.runner import Runner
from torchx.util.term import is_tty


class CmdUi(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        from torchx.ui import ACTIONS

        add = subparser.add_argument
        add("--port", type=_port, default=0, metavar="N", help="port on 127.0.0.1 (default: any free port)")
        add("--no-open", "--no_open", action="store_true", help="print the address without opening a browser")
        allow = f"actions that the page may perform: {', '.join(ACTIONS)} (default: none)"
        add("--allow", type=_actions, default=(), metavar="ACTION,...", help=allow)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        from torchx.ui.server import serve

        def ready(address: str, once: str) -> None:
            print(address, flush=True)
            opened = not args.no_open and _open(once)
            if is_tty(sys.stderr):
                hint = "" if opened or args.no_open else "no browser here: open the address, over SSH after `ssh -L`; "
                print(f"{hint}Ctrl-C stops the server; jobs continue to run", file=sys.stderr)

        try:
            serve(runner, args.port, args.allow, ready)
        except KeyboardInterrupt:
            pass
        except MissingDependencyError:
            raise
        except ImportError as e:
            raise MissingDependencyError(f"`torchx ui` needs the package `{e.name}`", hint=install_extra("ui")) from e


class CmdTop(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = "Press `?` for the keys, and `q` to quit. Jobs continue to run."

    def work(self, runner: Runner, args: argparse.Namespace) -> None:  # noqa: ARG002  # a verb's signature
        if not (is_tty(sys.stdin) and is_tty(sys.stdout)) or os.environ.get("TERM", "") in ("", "dumb"):
            raise UsageError("`torchx top` needs a terminal", hint="in a pipe, use `torchx list` or `torchx watch`")
        try:
            from torchx.ui.top.app import Top
        except ImportError as e:
            name = str(e.name).partition(".")[0]
            raise MissingDependencyError(f"`torchx top` needs the package `{name}`", hint=install_extra("top")) from e
        Top(runner).run()


def _open(address: str) -> bool:
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False  # without a display, `webbrowser` would start a text browser in this terminal
    import webbrowser

    return webbrowser.open(address)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"`{text}` is not a valid port: 0 to 65535")
    return int(text)


def _actions(text: str) -> tuple[str, ...]:
    from torchx.ui import ACTIONS

    actions = tuple(word.strip() for word in text.split(",") if word.strip())
    for action in actions:
        if action not in ACTIONS:
            raise argparse.ArgumentTypeError(f"`{action}` is not an action of the page: {', '.join(ACTIONS)}")
    return actions
