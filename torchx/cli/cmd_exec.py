"""The verbs that connect to replicas of a running job: ``exec``, ``shell``, ``forward`` and ``ssh-config``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from torchx.cli.attach import Every, attach, passing_on, terminal
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError, error, note
from torchx.cli.log_targets import parse_target, select
from torchx.cli.render import document
from torchx.errors import EXIT_INTERRUPTED, BackendError, NotFoundError, TorchXError
from torchx.runner import Runner
from torchx.runner.show.json_output import handle_fields
from torchx.runner.watching.tee import replica_formats
from torchx.schedulers.kit.inside import InsideProcess
from torchx.specs.api import parse_app_handle
from torchx.util.log_streams import LineFormat
from torchx.util.records import replace
from torchx.util.term import has_color

Replica = tuple[str, int]

_AT_ONCE = 32
_MAX_PORT = 65535
SHELL = (
    "sh",
    "-c",
    'if [ -n "$SHELL" ] && [ -x "$SHELL" ]; then exec "$SHELL"; fi; exec "$(command -v bash || echo sh)"',
)
"""Starts ``$SHELL`` of the replica, else bash, else sh."""
WHERE = "JOB[/ROLE[/REPLICA]]"
WHERE_HELP = "a job or one of its replicas, such as `@last` or `my-app/trainer/3` (default: the first replica)"
WHERE_ALL_HELP = "a job or some of its replicas, such as `@last` or `my-app/trainer/3` (default: all replicas)"


class CmdExec(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        every = "run it in every replica, in parallel, with prefixed lines; exit with the highest exit code"
        add("--all", action="store_true", help=every)
        add("-t", "--tty", action="store_true", help="allocate a terminal for the command")
        add("-n", "--no-stdin", "--no_stdin", action="store_true", help="do not pass stdin on, as `ssh -n`")
        add("--json", action="store_true", help="one JSON document with exit code and output; stdin is not passed on")
        add("identifier", metavar=WHERE, help=WHERE_HELP)
        add("command", nargs="...", metavar="-- COMMAND", help="the command and its arguments")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        argv = _command(args)
        if args.tty and (args.all or args.json):
            other = "--all" if args.all else "--json"
            raise UsageError(f"`{other}` and `--tty` exclude each other", hint="a terminal belongs to one replica")
        if args.json:
            code = _told(runner, args.identifier, argv, every=args.all)
        elif args.all:
            code = _everywhere(runner, args.identifier, argv)
        else:
            code = _in_one(runner, args.identifier, argv, tty=args.tty, stdin=not args.no_stdin)
        sys.exit(code)


class CmdShell(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("identifier", metavar=WHERE, help=WHERE_HELP)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        code = _in_one(runner, args.identifier, SHELL, tty=True, stdin=True)
        sys.exit(code)


class CmdForward(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        add = subparser.add_argument
        add("--open", action="store_true", help="open the first one in the browser")
        add("--json", action="store_true", help="print the ports as one JSON document")
        add("identifier", metavar=WHERE, help=WHERE_HELP)
        ports = "port of the replica, and local port (default: the same; 0: any free one)"
        add("ports", nargs="+", metavar="PORT[:LOCAL]", type=parse_ports, help=ports)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        """Forward until Ctrl-C, or until the replica has ended."""
        handle, (role, k) = find_replica(runner, args.identifier)
        with runner.forward(handle, args.ports, role, k) as forwarding:
            forwarding.on_refusal(lambda why: error(f"{role}/{k} refuses the connection: {why}"))
            ports = [port for port, _ in args.ports]
            if args.json:
                pairs = [{"port": p, "local": q} for p, q in zip(ports, forwarding.local_ports, strict=True)]
                print(document({**handle_fields(handle), "role": role, "replica": k, "ports": pairs}), flush=True)
            for port, local in zip([] if args.json else ports, forwarding.local_ports, strict=False):
                print(f"http://localhost:{local}", flush=True)
                note(f"  is port {port} of {role}/{k}, until Ctrl-C")
            if args.open:
                import webbrowser

                webbrowser.open(f"http://localhost:{forwarding.local_ports[0]}")
            try:
                forwarding.run()
            except KeyboardInterrupt:
                sys.exit(0)


class CmdSshConfig(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.add_argument("identifier", metavar=WHERE, help=WHERE_ALL_HELP)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        from torchx.runner.inside import ssh

        keys = ssh.public_keys()
        handle, replicas = find_replicas(runner, args.identifier)
        done = runner.exec(handle, ["id", "-un"], *replicas[0])
        if done.exit_code:
            raise BackendError(f"the replica has no `id`: exit code {done.exit_code}")
        user = done.stdout.decode("utf-8", "replace").strip()
        names = ssh.host_names(parse_app_handle(handle)[2], replicas)
        for replica in replicas:
            print(ssh.entry(handle, replica, name=names[replica], user=user, keys=keys))


def find_replica(runner: Runner, identifier: str) -> tuple[str, Replica]:
    """Return the handle of a job and the named replica, by default the first one."""
    target = parse_target(identifier)
    if target.role is None or target.ids is None:
        handle, replicas = find_replicas(runner, identifier)
        return handle, replicas[0]
    if len(target.ids) > 1:
        raise UsageError(f"`{identifier}` names several replicas", hint="name one, or use `torchx exec --all` for each")
    return runner.resolve(target.reference), (target.role, target.ids[0])


def find_replicas(runner: Runner, identifier: str) -> tuple[str, list[Replica]]:
    """Return the handle of a job and the named replicas, by default all of them."""
    target = parse_target(identifier)
    handle = runner.resolve(target.reference)
    replicas = runner.log_replicas(handle)
    if not replicas:
        raise NotFoundError(f"`{handle}` has no replicas", hint=f"`torchx status {handle}` shows its state")
    return handle, select(replicas, replace(target, reference=handle))


def parse_ports(text: str) -> tuple[int, int]:
    """Parse PORT[:LOCAL] into remote and local port; local port 0 means any free one.

    >>> parse_ports("6006"), parse_ports("6006:0")
    ((6006, 6006), (6006, 0))
    """
    there, colon, here = text.partition(":")
    parts = (there, here if colon else there)
    numbers = [int(part) if part.isascii() and part.isdigit() and len(part) < 6 else -1 for part in parts]
    if not 0 < numbers[0] <= _MAX_PORT or not 0 <= numbers[1] <= _MAX_PORT:
        raise UsageError(f"`{text}` is not a valid PORT[:LOCAL] (1-{_MAX_PORT})", hint="for example 6006, or 6006:8080")
    return numbers[0], numbers[1]


def _command(args: argparse.Namespace) -> list[str]:
    """Return the command, after parsing our own options between the job and ``--``."""
    words: list[str] = args.command
    dashes = words.index("--") if "--" in words else 0
    ours = words[:dashes]
    if ours and all(word.startswith("-") for word in ours):
        args._parser.parse_args([*ours, args.identifier], args)
        words = words[dashes:]
    words = words[1:] if words[:1] == ["--"] else words
    if not words or words[0].startswith("-"):
        raise UsageError(
            "no command is given" if not words else f"`{words[0]}` is not a command",
            hint=f"write `torchx exec {args.identifier} -- COMMAND`; `torchx shell` opens a shell",
        )
    return words


def _in_one(runner: Runner, identifier: str, argv: Sequence[str], *, tty: bool, stdin: bool) -> int:
    handle, (role, k) = find_replica(runner, identifier)
    process = runner.open(handle, argv, role, k, tty=terminal() if tty else None)
    return attach(process, stdin=stdin, tty=tty)


def _told(runner: Runner, identifier: str, argv: Sequence[str], *, every: bool) -> int:
    """Run the command, and print one document; return the highest exit code."""
    handle, chosen = find_replicas(runner, identifier)
    chosen = chosen if every else [find_replica(runner, identifier)[1]]
    rows: list[dict[str, Any]] = []
    codes = []
    for role, k in chosen:
        done = runner.exec(handle, argv, role, k)
        out, err = (data.decode("utf-8", "replace") for data in (done.stdout, done.stderr))
        codes.append(done.exit_code)
        rows.append({"role": role, "replica": k, "exit_code": done.exit_code, "stdout": out, "stderr": err})
    print(document({**handle_fields(handle), "replicas": rows}))
    return max(codes)


def _everywhere(runner: Runner, identifier: str, argv: Sequence[str]) -> int:
    """Run the command in each of the named replicas; return the highest exit code."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Lock

    handle, replicas = find_replicas(runner, identifier)
    formats = replica_formats(replicas, color=has_color(sys.stdout))
    lock, every = Lock(), Every()

    def one(replica: Replica) -> int:
        try:
            with runner.open(handle, argv, *replica) as process:
                every.running.append(process)
                try:
                    if every.interrupted:
                        return EXIT_INTERRUPTED
                    return _with_prefix(process, shown=formats[replica], lock=lock)
                finally:
                    every.running.remove(process)
        except TorchXError as e:
            with lock:
                error(f"{replica[0]}/{replica[1]}: {e}", hint=e.hint)
            return e.exit_code

    with passing_on(every, tty=False), ThreadPoolExecutor(min(_AT_ONCE, len(replicas))) as pool:
        codes = list(pool.map(one, replicas))
    failed = {f"{role}/{k}": code for (role, k), code in zip(replicas, codes, strict=True) if code}
    if failed:
        note(f"{len(failed)} of {len(codes)} failed: " + ", ".join(f"{r} (exit code {c})" for r, c in failed.items()))
    return max(codes)


def _with_prefix(process: InsideProcess, *, shown: LineFormat, lock: AbstractContextManager[bool]) -> int:
    """Copy the output of a process; write only whole lines, each after the name of the replica."""
    outputs = {1: sys.stdout, 2: sys.stderr}
    unfinished: dict[int, list[bytes]] = {1: [], 2: []}

    def write(stream: int, lines: bytes) -> None:
        if lines:
            with lock:
                outputs[stream].buffer.write(shown.chunk(lines))
                outputs[stream].flush()

    process.close_stdin()
    while (piece := process.read()) is not None:
        stream, data = piece
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            write(stream, b"".join([*unfinished[stream], whole, newline]))
            unfinished[stream].clear()
        unfinished[stream].append(rest)
    for stream, pieces in unfinished.items():
        write(stream, b"".join(pieces))
    return process.wait()
