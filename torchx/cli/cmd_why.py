"""``torchx why`` and ``torchx adopt``: the state of any job, and jobs on record that torchx did not launch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from torchx.cli.argparse_util import declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError, note
from torchx.cli.log_targets import JOB_HELP
from torchx.cli.render import document, fields, gray
from torchx.cli.run_args import NOTICES, notices_wanted
from torchx.runner import Runner
from torchx.runner.foreign.explain import Explained
from torchx.runner.show.json_output import handle_fields, status_fields
from torchx.schedulers.kit.failures.signatures import Match
from torchx.specs.failures import parse_failure
from torchx.specs.handles import FOREIGN
from torchx.util.datetime import ago, duration, local_time
from torchx.util.secrets import mask_text
from torchx.util.term import has_color, is_tty, iso, printable

_HELP = """\
Shows state, cause, pending reason and last output of any job that you can see, without changing it:

  torchx why 4711                            a job of Slurm or LSF; 4711_3, on LSF 4711[3], is a task of an array
  torchx why web                             a Docker container
  torchx why k8s://team/job/train            also: pod, jobset, pytorchjob, trainjob, rayjob
  torchx why 6f2c1d7e-1111-...               a job of AWS Batch, by its id
  torchx why @last

`torchx adopt` puts the job on record under a name, for the other verbs."""
_ADOPT_HELP = """\
Records the job, so that `status`, `log`, `wait`, `watch`, `list` and notices work for it:

  torchx adopt 4711 --name bert --notify mail
  torchx wait @bert && torchx log @bert
  torchx adopt --undo @bert                  remove the record; the job is not affected

`cancel` and `delete` need `--force` for an adopted job. `@last` never refers to one."""


class CmdWhy(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        _add_job(subparser)
        add = subparser.add_argument
        add("-n", "--lines", type=int, default=20, metavar="N", help="last N lines of its output (default: 20)")
        add(
            "--explain",
            action="store_true",
            help="say which signature decided the class of the cause, and which others match",
        )
        add("--json", action="store_true", help="one JSON document, for programs")

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.lines < 0:
            raise UsageError(f"`--lines {args.lines}` is below 0", hint="0 omits the output")
        found = runner.why(args.app_handle, args.scheduler, lines=args.lines)
        if args.json:
            extra = {"signatures": [_signature(match) for match in found.matches]} if args.explain else {}
            print(document({**_document(found), **extra}))
        else:
            _print_page(found)
            if args.explain:
                print("\n" + "\n".join(_explanation(found)))


class CmdAdopt(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _ADOPT_HELP
        _add_job(subparser)
        subparser.add_argument("--name", metavar="NAME", help="name for @NAME (default: its native name)")
        subparser.add_argument("--undo", action="store_true", help="remove the job from the record again")
        subparser.add_argument("--json", action="store_true", help="one JSON document, for programs")
        declare(subparser, NOTICES, sparse=True)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        if args.name is not None and (not args.name.isprintable() or set(args.name) & set(" @~/") or not args.name):
            raise UsageError(f"`{args.name}` is not a name", hint="letters, digits, `-`, `_` and `.`")
        if args.undo:
            handle, message = runner.disown(args.app_handle), "removed from the record; the job is not affected"
        else:
            wanted = notices_wanted(getattr(args, "notify", ""), getattr(args, "notify_on", ""))
            handle = runner.adopt(args.app_handle, args.scheduler, name=args.name or "", metadata=wanted)
            message = f"adopted: `torchx status @{args.name}`" if args.name else "adopted: `torchx status` shows it"
        if args.json:
            print(document({**handle_fields(handle), "adopted": not args.undo, "name": args.name}))
            return
        print(handle)
        if is_tty(sys.stderr):
            note(message)


def _add_job(subparser: argparse.ArgumentParser) -> None:
    """Declare the arguments that name a job, which torchx may not have launched."""
    add = subparser.add_argument
    add("app_handle", metavar="JOB", help=f"native id or name, {JOB_HELP}")
    add("-s", "--scheduler", metavar="NAME", help="look only on this scheduler")


def _document(found: Explained) -> dict[str, Any]:
    fields = handle_fields(found.handle)
    log = {"role": found.role, "replica": found.replica, "lines": [line.rstrip("\n") for line in found.lines]}
    return {
        **fields,
        "foreign": fields["session"] == FOREIGN,
        "on_record": found.on_record,
        "about": {key: mask_text(text) for key, text in found.about.items()},
        **status_fields(found.status),
        "started_at": iso(found.status.started_at),
        "ended_at": iso(found.status.ended_at),
        "log": None if found.replica is None else {**log, "note": found.log_note or None},
    }


def _signature(match: Match) -> dict[str, Any]:
    row = match.row
    named = {"name": row.name or None, "words": row.text or row.pattern, "of": row.of or None, "link": row.link or None}
    line = mask_text(match.line.partition("\n")[0].strip())
    return {"class": row.kind or None, "where": row.where, **named, "line": line, "decided": match.decided}


def _explanation(found: Explained) -> Iterator[str]:
    """Which signature decided the class, from which line, and the others that match."""
    cause = parse_failure(found.status.structured_error_msg)
    if cause is None:
        yield "class:    none: it did not fail"
        return
    decided = [m for m in found.matches if m.decided and cause.evidence and cause.evidence.strip()[:60] in m.line]
    yield f"class:    {cause.kind}" + (
        " (aftermath of another failure)" if decided and decided[0].row.aftermath else ""
    )
    if not decided:
        by = "a line that no signature has" if cause.evidence else "the exit code or signal"
        yield f"decided:  by {by}: {printable(mask_text(cause.evidence or cause.summary()))}"
    for label, matches in (("decided", decided[:1]), ("also", [m for m in found.matches if m not in decided[:1]])):
        for match in matches:
            told = _signature(match)
            whose = told["name"] or told["of"]
            yield f"{label + ':':<9} `{told['words']}` ({told['class'] or 'no class'}, {told['where']}; {whose})"
            yield f"          {printable(told['line'])}"
            if told["link"]:
                yield f"          {told['link']}"


def _print_page(found: Explained) -> None:
    color = has_color(sys.stdout)
    status = found.status
    started, ended = status.started_at, status.ended_at if status.is_terminal() else None
    took = f", after {duration(ended - started)}" if started is not None and ended is not None else ""
    pairs = [("app", found.handle), *((key, printable(mask_text(text))) for key, text in found.about.items())]
    pairs.append(("started", f"{local_time(started)} ({ago(started)})" if started is not None else ""))
    pairs.append(("ended", f"{local_time(ended)}{took}" if ended is not None else ""))
    print(fields(pairs))
    print(status.format(None, color=color))
    if found.log_note:
        print(f"\nlog of {found.role}/{found.replica}: {printable(found.log_note)}")
    elif found.replica is not None:
        title = "the end of its log:" if found.lines else "its log is empty"
        print(gray(f"\n{found.role}/{found.replica}, {title}", color=color))
        for line in found.lines:
            print("  " + printable(line.rstrip("\n")))
    if is_tty(sys.stdout):
        print(gray("\n" + " · ".join(_next_steps(found)), color=color))


def _next_steps(found: Explained) -> list[str]:
    follow = "" if found.status.is_terminal() else "-f "
    if found.on_record:
        return [f"torchx status {found.handle}", f"torchx log {follow}{found.handle}"]
    return [f"torchx log {follow}{found.handle}", f"torchx adopt {found.handle} --name NAME"]
