"""``torchx mcp``: serve runs to coding agents, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import os
import sys

from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError
from torchx.errors import MissingDependencyError, install_extra
from torchx.runner import Runner

_HELP = """\
For clients that start it (the default, over stdin and stdout):

  {"mcpServers": {"torchx": {"command": "torchx", "args": ["mcp"]}}}

Without --allow its tools only read. What --allow permits stays within the bounds: the folder, the schedulers, the
number of jobs, and their GPU-hours. See docs/agents.md."""


class CmdMcp(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        add = subparser.add_argument
        allow = "what agents may do: run, rerun, cancel, cp, exec (default: only read)"
        add("--allow", metavar="ACTION,...", default="", help=allow)
        add("--allow-any", action="store_true", help="cancel, rerun, cp and exec for any job, not only for its own")
        add("--max-jobs", type=int, metavar="N", help="launch at most N jobs")
        add(
            "--max-gpu-hours",
            type=float,
            metavar="N",
            help="GPU-hours of all jobs that it launches; each needs a timeout",
        )
        add("--only-scheduler", action="append", default=[], metavar="NAME", help="launch only there; repeatable")
        add("--workspace", default=".", metavar="DIR", help="run verbs in this folder; files lie below it (default: .)")
        add("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp instead; 0: any free port")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Serve until stdin ends, or until Ctrl-C."""
        try:
            from torchx.mcp import server
            from torchx.mcp.acting import Bounds
        except ImportError as e:
            name = str(e.name).partition(".")[0]
            raise MissingDependencyError(f"`torchx mcp` needs the package `{name}`", hint=install_extra("mcp")) from e
        allowed = tuple(word.strip() for word in args.allow.split(",") if word.strip())
        for action in allowed:
            if action not in server.ACTIONS:
                raise UsageError(f"`--allow {action}` is not an action", hint=f"one of: {', '.join(server.ACTIONS)}")
        for option, value in (("--max-jobs", args.max_jobs), ("--max-gpu-hours", args.max_gpu_hours)):
            if value is not None and not value >= 0:
                raise UsageError(f"`{option} {value:g}` is below 0", hint="0 launches nothing")
        if not os.path.isdir(args.workspace):
            raise UsageError(f"`--workspace {args.workspace}` is not a folder", hint="name one that exists")
        folder = os.path.realpath(args.workspace)
        os.chdir(folder)
        bounds = Bounds(args.max_jobs, args.max_gpu_hours, tuple(args.only_scheduler), folder, args.allow_any)
        app = server.server(runner, allowed, bounds)
        if args.http is None:
            app.run("stdio")
        else:
            server.serve_http(app, args.http, os.environ.get("TORCHX_MCP_TOKEN"), _say)


def _say(address: str, token: str) -> None:
    print(address, flush=True)
    given = "the one in $TORCHX_MCP_TOKEN" if "TORCHX_MCP_TOKEN" in os.environ else token
    print(f"header: Authorization: Bearer {given}", file=sys.stderr)
