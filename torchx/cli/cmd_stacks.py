"""``torchx stacks``: show what every rank of a job is doing."""

from __future__ import annotations

import argparse
import sys
from functools import partial

from torchx.cli.argparse_util import JSON, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.cmd_exec import WHERE, WHERE_ALL_HELP, find_replicas
from torchx.cli.log_targets import OR_LAST, or_last
from torchx.cli.render import bold, document, gray
from torchx.runner import Runner
from torchx.schedulers.kit.stacks import Stacks
from torchx.schedulers.kit.stacks.page import page
from torchx.schedulers.kit.stacks.probe import NO_SPY
from torchx.util.term import has_color

_HELP = """\
Prints a one-sentence summary, then the stacks; ranks that do the same share one. Frames inside PyTorch are omitted:
a stack shows your own lines, and the collective in which a rank waits. Each rank is sampled eight times in two
seconds, and more often while ranks make progress.

  torchx stacks @last
  torchx stacks my-app/trainer/3          the ranks of one replica

Stacks are read by py-spy where it may attach: by that of the replica, or by a copy of that of this machine, so that
`pip install py-spy` here is enough. Otherwise a program that imports torchx.distributed dumps its own stack. The job
continues to run. See docs/hangs.md."""


class CmdStacks(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        declare(subparser, (JSON, ("identifier", WHERE, WHERE_ALL_HELP, OR_LAST)))

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        handle, replicas = find_replicas(runner, or_last(runner, args.identifier))
        whole = len(replicas) == len(runner.log_replicas(handle))
        found = runner.stacks(handle, None if whole else replicas)
        if args.json:
            _print_json(handle, found)
        else:
            _print_page(found)


def _print_json(handle: str, found: Stacks) -> None:
    suspects = {id(rank) for group in found.groups if group.suspect for rank in group.ranks}
    ranks = [
        {
            "role": rank.role,
            "replica": rank.replica if rank.replica >= 0 else None,
            "rank": rank.rank,
            "host": rank.host or None,
            "pid": rank.pid or None,
            "state": rank.state or None,
            "doing": rank.doing,
            "suspect": id(rank) in suspects,
            "read_by": rank.by or None,
            "unread_because": rank.why or None,
            "frames": [{"function": f.function, "file": f.file, "line": f.line} for f in rank.frames],
        }
        for rank in found.ranks
    ]
    unread = [{"role": role, "replica": k, "why": why} for (role, k), why in found.unread.items()]
    print(document({"handle": handle, "sentence": found.sentence, "ranks": ranks, "unread": unread}))


def _print_page(found: Stacks) -> None:
    color = has_color(sys.stdout)
    first, *others = page(found, partial(gray, color=color))
    print(bold(first, color=color), *others, sep="\n")
    if any(NO_SPY in rank.why for rank in found.ranks):
        hint = "\n`pip install py-spy` on this machine lets torchx send it along; docs/hangs.md has other ways"
        print(gray(hint, color=color))
