"""What is measured: one row each, with its bound, its floor, and how to sample one contestant."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import around, images, inside, many, stage, topping, tracking
from benchmarks.contestants import OURS, Contestant
from benchmarks.timing import Cannot, Sample, Samples, command, measure, program

FLOOR = "floor"
PEER = "torchx 0.7.0"
PROGRAMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "programs.py")


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``base`` is what the figures are a ratio to: the floor, or a peer where the floor would say nothing.
    ``bound`` is what the design is held to; None: nothing.
    ``rate`` tells that the ratio is one of rates (more is better) and not one of times.
    ``front`` puts the row into the README as well.
    """

    what: str
    bound: float | None
    sampler: Callable[[Contestant | None, stage.Stage], Sample]
    floor_is: str = ""
    base: str = FLOOR
    rate: bool = False
    weight: float = 1.0
    unit: str = "ms"
    front: bool = False

    def samples(self, contestants: list[Contestant], where: stage.Stage, rounds: int) -> Samples:
        everyone: dict[str, Sample] = {}
        if self.base == FLOOR:
            everyone[FLOOR] = self.sampler(None, where)
        for contestant in contestants:
            everyone[contestant.name] = (
                refuse(contestant.problem) if contestant.problem else self.sampler(contestant, where)
            )
        return measure(everyone, max(2, round(rounds * self.weight)))


RUN = ("run", "-s", "local_cwd")
LOCAL = ("-s", "local_cwd")


def cli(*args: str, expect: str) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of one command."""

    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        if contestant is None:
            return bare_python(where)
        args_ = tuple(a for a in args if a not in LOCAL) if args[0] == "list" and contestant.name == OURS else args
        return command([contestant.torchx, *args_], where.env(contestant), where.folder, expect)

    return sampler


def finished(verb: str, expect: str) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of ``verb`` on a run that another process launched and that has ended."""

    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        if contestant is None:
            return bare_python(where)
        handle = where.finished_run(contestant)
        return command([contestant.torchx, verb, handle], where.env(contestant), where.folder, expect)

    return sampler


def imports(contestant: Contestant | None, where: stage.Stage) -> Sample:
    if contestant is None:
        return bare_python(where)
    return command([contestant.python, "-c", "import torchx.specs"], where.env(contestant), where.folder)


def api(name: str, size: str) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of one of the programs; the floor is the program ``floor_NAME``."""

    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        count = str(where.sizes[size])
        if contestant is None:
            return program([sys.executable, PROGRAMS, f"floor_{name}", count], where.env(None), where.folder)
        return program([contestant.python, PROGRAMS, name, count], where.env(contestant), where.folder)

    return sampler


def big_log(contestant: Contestant | None, where: stage.Stage) -> Sample:
    """Seconds until a pipe has taken the whole log of a finished run."""
    if contestant is None:
        return piped(["cat", where.big_file()], where, None)
    try:
        handle = where.big_run(contestant)
    except Cannot as problem:
        return refuse(str(problem))
    return piped([contestant.torchx, "log", handle], where, contestant)


def piped(argv: list[str], where: stage.Stage, contestant: Contestant | None) -> Sample:
    wanted = where.sizes["log_mb"] * 1_000_000

    def sample() -> float:
        started = time.perf_counter()
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(argv, env=where.env(contestant), cwd=where.folder, stdout=pipe, stderr=null) as process:
            assert process.stdout is not None
            taken = 0
            while chunk := os.read(process.stdout.fileno(), 1 << 20):
                taken += len(chunk)
        seconds = time.perf_counter() - started
        if process.returncode != 0 or taken < wanted:
            raise Cannot(f"gave {taken} bytes of {wanted}")
        return seconds

    return sample


def resident(contestant: Contestant | None, where: stage.Stage) -> Sample:
    """Megabytes of the process that waits, read when it has settled."""
    job = [*RUN, "--wait", "utils.sh", "sleep", "3"]
    argv = [sys.executable, "-c", "import time; time.sleep(3)"] if contestant is None else [contestant.torchx, *job]

    def sample() -> float:
        null = subprocess.DEVNULL
        with subprocess.Popen(argv, env=where.env(contestant), cwd=where.folder, stdout=null, stderr=null) as process:
            time.sleep(2.5)
            megabytes = stage.resident_mb(process.pid)
            process.wait()
        if process.returncode != 0:
            raise Cannot(f"exit code {process.returncode}")
        return megabytes

    return sample


def within(
    allowed_s: float, sampler: Callable[[Contestant | None, stage.Stage], Sample]
) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of that; the base is what is allowed."""
    return lambda contestant, where: (lambda: allowed_s) if contestant is None else sampler(contestant, where)


def bare_python(where: stage.Stage) -> Sample:
    return command([sys.executable, "-c", "pass"], where.env(None), where.folder)


def refuse(problem: str) -> Sample:
    def sample() -> float:
        raise Cannot(problem)

    return sample


PYTHON = "`python -c pass`"
ROWS = (
    Row("`torchx --help`", 3, cli("--help", expect="run"), PYTHON, front=True),
    Row("`torchx --version`", 3, cli("--version", expect="."), PYTHON),
    Row("`torchx run --dryrun utils.echo`", 6, cli(*RUN, "--dryrun", "utils.echo", expect="echo"), PYTHON),
    Row("`torchx run --wait utils.echo`", 10, cli(*RUN, "--wait", "utils.echo", expect="local"), PYTHON, front=True),
    Row("`torchx status` of a finished run, {runs} on record", 5, finished("status", "SUCCEEDED"), PYTHON, front=True),
    Row("`torchx list`, {runs} on record", 5, cli("list", *LOCAL, expect="://"), PYTHON),
    Row("`torchx list --all`, {runs} on record", None, cli("list", "--all", *LOCAL, expect="://"), PYTHON, weight=0.4),
    Row("`torchx log` of a finished run, {runs} on record", 5, finished("log", "hello"), PYTHON),
    Row("`import torchx.specs`", 2.5, imports, PYTHON),
    Row("`Runner.dryrun`, {dryruns} calls", 3, api("dryrun", "dryruns"), base=PEER, rate=True, weight=0.4),
    Row("dryrun of {dryrun_replicas} replicas", 0.5, api("dryrun_replicas", "dryrun_replicas"), base=PEER, weight=0.4),
    Row(
        "`Runner.run` of `/bin/true`, {jobs} jobs",
        0.4,
        api("run", "jobs"),
        "`Popen().wait()`",
        rate=True,
        weight=0.4,
    ),
    Row(
        "`Runner.status` of an ended job, {statuses} calls",
        50,
        api("status_ended", "statuses"),
        base=PEER,
        rate=True,
        weight=0.4,
    ),
    Row(
        "`Runner.status` of a running job, {statuses} calls",
        None,
        api("status_running", "statuses"),
        base=PEER,
        rate=True,
        weight=0.2,
    ),
    Row(
        "`Runner.log_lines`, {lines} lines",
        0.3,
        api("log_lines", "lines"),
        "`for line in file`",
        rate=True,
        weight=0.2,
    ),
    Row("`torchx log` of {log_mb} MB to a pipe", 0.3, big_log, "`cat`", rate=True, weight=0.2),
    Row(
        "{replicas} replicas of `/bin/true`, run and waited for",
        3,
        api("replicas", "replicas"),
        "as many `Popen`",
        weight=0.1,
        front=True,
    ),
    Row("resident memory of a CLI that waits for a job", 2.5, resident, "`python`", weight=0.2, unit="MB"),
    Row(
        "one changed file of {workspace_mb} MB of code to a registry",
        0.1,
        images.changed_file,
        "`docker build && docker push`",
        weight=0.4,
        front=True,
    ),
    Row("`import torchx.tracker`", 2, tracking.imports, PYTHON),
    Row(
        "1,000 metadata writes from 8 processes", 0.3, tracking.writes, "as many lines to files", rate=True, weight=0.4
    ),
    *(
        Row(
            f"`torchx exec` of `true` on `{scheduler}`, above {tool}",
            1,
            inside.above_the_tool(scheduler),
            "what is allowed",
            weight=0.6,
        )
        for scheduler, tool in (
            ("local_cwd", "`true`"),
            ("local_docker", "`docker exec`"),
            ("slurm", "`srun --overlap`"),
            ("kubernetes", "`kubectl exec`"),
        )
    ),
    *(
        Row(
            f"`torchx cp` of {{copied_mb}} MB out of `{scheduler}` and in",
            1.3,
            inside.copies(scheduler),
            tool,
            weight=0.2,
        )
        for scheduler, tool in (
            ("local_cwd", "`cp`"),
            ("local_docker", "`docker cp`"),
            ("slurm", "`srun cat`"),
            ("kubernetes", "`kubectl cp`"),
        )
    ),
    *(
        Row(what, 1, many.on_slurm(name, size, allowed_s), "what is allowed", weight=0.1)
        for what, name, size, allowed_s in (
            ("`Runner.run` on `slurm`, above `sbatch`", "single", "slurm_runs", 0.01),
            ("`Runner.status` of {slurm_jobs} Slurm jobs, one after the other", "statuses", "slurm_jobs", 0.2),
            ("`Runner.run` on `slurm`, above `sbatch`, of jobs that start", "single-running", "slurm_runs", 0.01),
            ("`torchx sweep` of {slurm_tasks} running tasks, until the prompt", "prompt-running", "slurm_tasks", 3.0),
            ("`torchx sweep` of {slurm_tasks} tasks on `slurm`, until the prompt", "prompt", "slurm_tasks", 3.0),
            ("`torchx status` of those {slurm_tasks} tasks on `slurm`, above `squeue`", "table", "slurm_tasks", 0.3),
        )
    ),
    *(
        Row(what, 1, within(allowed_s, sampler), "what is allowed", weight=0.6)
        for what, allowed_s, sampler in (
            ("what `torchx run` checks by itself of a script among {files} files", 0.05, api("checks", "files")),
            ("`torchx doctor`", 1.0, cli("doctor", expect="0 bad")),
            ("`torchx run --check utils.echo`", 3.0, cli("run", "--check", "utils.echo", expect="0 bad")),
        )
    ),
    Row("a key of `torchx top`, {runs} on record", 1, within(0.1, topping.key()), "what is allowed", weight=2),
    Row("{steps} calls of `progress(step)`, 20 us each", 1, within(2.0, api("steps", "steps")), "what is allowed"),
    *(
        Row(what, 1, sampler, "what is allowed", weight=0.4)
        for what, sampler in (
            ("set-up lines of 4 replicas on `local_cwd`, 50 ms each", around.adds(0.2, "--setup", "A=1", replicas=4)),
            ("`--check-nodes` on `local_cwd`, two good replicas", around.adds(10.0, "--check-nodes", replicas=2)),
            ("second job with `--stage` of {copied_mb} MB", around.adds(1.0, "--stage", "{file}={folder}/staged.bin")),
            ("start in an allocation (`in=JOBID`), above `srun`", around.step(0.15)),
        )
    ),
    Row("`torchx cp` of {copied_mb} MB of an ended job", 1.3, around.ended_copy(), "`cp`", weight=0.4),
    Row("sweep of {tasks} times `true` on `local_cwd`", 2, many.here, "a pool of threads", weight=0.1),
)
"""In the order of the table."""
