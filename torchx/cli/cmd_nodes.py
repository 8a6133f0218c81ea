"""``torchx nodes``: show what is free on a scheduler, and when a job of some size would start."""

from __future__ import annotations

import argparse
import time

from torchx.cli.argparse_util import CFG, JSON, ArgOnceAction, Row, declare
from torchx.cli.cmd_base import RunnerCommand
from torchx.cli.failures import UsageError
from torchx.cli.render import document, table
from torchx.component_reader.arguments import in_mib
from torchx.runner import Runner
from torchx.schedulers import get_default_scheduler_name
from torchx.schedulers.kit.nodes import Pool
from torchx.specs.api import GPU_TYPE, Resource
from torchx.util.strings import size_text
from torchx.util.term import iso

_HEADERS = ("POOL", "NODES", "NODE", "FREE CPUS", "FREE MEMORY", "FREE GPUS")
_HELP = """\
  torchx nodes -s slurm                       partitions, shapes of nodes, what is free
  torchx nodes -s slurm --gpu h100:8 --nodes 2  where such a job fits now, and when it would start
  torchx run -s slurm -cfg partition=auto ...   runs where it starts first"""


class CmdNodes(RunnerCommand):
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        subparser.epilog = _HELP
        once = {"action": ArgOnceAction}
        rows: tuple[Row, ...] = (
            ("-s --scheduler", "NAME", "ask this scheduler (default: local_cwd)", once),
            ("-cfg", CFG, "options of the scheduler", {"action": "append", "default": [], "dest": "cfg"}),
            ("--gpu", "[TYPE:]N", "GPUs of a replica: `8`, `h100:8`", once),
            ("--cpu", "N", "CPUs of a replica", {"type": int, **once}),
            ("--mem", "SIZE", "memory of a replica: `64G`", once),
            ("--nodes", "N", "replicas of the job (default: 1)", {"type": int, **once}),
            JSON,
        )
        declare(subparser, rows)

    def work(self, runner: Runner, args: argparse.Namespace) -> None:
        scheduler = args.scheduler or get_default_scheduler_name()
        need = _need(args)
        count = 1 if args.nodes is None else args.nodes
        if count < 1:
            raise UsageError(f"`--nodes {count}` is not a number of replicas", hint="1 or more")
        cfg = runner.cfg_from_str(scheduler, *args.cfg)
        pools = runner.nodes(scheduler, cfg, need, count)
        if args.json:
            rows = [{**vars(pool), "start": None if pool.start is None else iso(pool.start)} for pool in pools]
            print(document({"scheduler": scheduler, "pools": rows}))
            return
        more = ("FIT NOW", "START") if need is not None else ()
        table((*_HEADERS, *more), [_row(pool, asked=need is not None) for pool in pools])


def _need(args: argparse.Namespace) -> Resource | None:
    if args.gpu is None and args.cpu is None and args.mem is None:
        return None if args.nodes is None else Resource(1, 0, -1)
    kind, colon, text = (args.gpu or "0").rpartition(":")
    memory = -1 if args.mem is None else in_mib(args.mem)
    gpus = text.isdecimal() and not (colon and not kind)
    fine = args.mem is None or (str(memory).isdecimal() and int(memory))
    if not (gpus and fine) or not (args.cpu is None or args.cpu > 0):
        wrong = f"--gpu {args.gpu}" if not gpus else f"--mem {args.mem}" if not fine else f"--cpu {args.cpu}"
        raise UsageError(f"`{wrong}` is not understood", hint="for example `--gpu h100:8 --mem 64G`")
    return Resource(args.cpu or 1, int(text), int(memory), {GPU_TYPE: kind} if kind else {})


def _row(pool: Pool, *, asked: bool) -> list[str]:
    parts = [
        f"{pool.cpus} CPUs" if pool.cpus >= 0 else "",
        size_text(pool.memory_mb << 20) if pool.memory_mb >= 0 else "",
    ]
    parts.append(f"{pool.gpus} {pool.gpu or 'GPUs'}" if pool.gpus > 0 else "")
    total = "?" if pool.nodes < 0 else str(pool.nodes)
    nodes = total if pool.usable == pool.nodes else f"{pool.usable} of {total}"
    free = ["?" if n < 0 else str(n) for n in (pool.free_cpus, pool.free_memory_mb, pool.free_gpus)]
    free[1] = "?" if pool.free_memory_mb < 0 else size_text(pool.free_memory_mb << 20)
    row = [
        pool.name,
        "quota" if pool.quota else nodes,
        ", ".join(filter(None, parts)),
        free[0],
        free[1],
        free[2] if pool.gpus else "-",
    ]
    if asked:
        late = None if pool.start is None else pool.start - time.time()
        when = "-" if late is None else "now" if late < 60 else time.strftime("%b %d %H:%M", time.localtime(pool.start))
        row += ["?" if pool.fitting < 0 else str(pool.fitting), pool.why or when]
    return row
