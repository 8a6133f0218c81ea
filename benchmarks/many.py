"""Many jobs: what `Runner.run` adds to `sbatch`, statuses one after the other, sweeps on Slurm, and here beside a pool.

The rows of Slurm submit to a partition that is down, so that nothing of it runs while it is timed; those that end with
``running`` to one whose nodes are free, so that the controller is busy with them. What must be fast in
seconds is held against them, as :mod:`benchmarks.inside` does. Run as ``python -m benchmarks.many NAME COUNT`` each of
the first two programs prints one figure, in seconds.
"""

from __future__ import annotations

import functools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks import inside, stage
from benchmarks.contestants import OURS, ROOT, Contestant
from benchmarks.sweeping import _pool, _sweep_here, counts
from benchmarks.timing import Cannot, Sample, program, timed

_CFG = {"partition": "closed", "time": "5"}
_RUNNING = "-running"
_SWEEP = re.compile(r"slurm://\S+")


def on_slurm(name: str, size: str, allowed_s: float) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of one of the programs, or commands, below; the base is what is allowed."""

    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        def sample() -> float:
            if contestant is None:
                return allowed_s
            if contestant.name != OURS:
                raise Cannot("measured of ours alone")
            _cluster(where)
            paths = {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "PYTHONPATH": ROOT}
            env, count = {**where.env(contestant), **paths}, where.sizes[size]
            if name in COMMANDS:
                return COMMANDS[name](count, where, env, cfg_of(name))
            return program([sys.executable, "-m", "benchmarks.many", name, str(count)], env, where.folder)()

        return sample

    return sampler


def cfg_of(name: str) -> dict[str, str]:
    """The run options of a row."""
    return {**_CFG, "partition": "main"} if name.endswith(_RUNNING) else _CFG


@functools.cache
def _cluster(where: stage.Stage) -> None:
    try:
        inside.cluster_up(where)
    except Exception as problem:
        raise Cannot(f"no `slurm` here: {problem}") from problem


def here(contestant: Contestant | None, where: stage.Stage) -> Sample:
    """Seconds of a sweep of `true` on this machine; the floor is a pool of threads, which keeps no logs."""

    def sample() -> float:
        if contestant is not None and contestant.name != OURS:
            raise Cannot("has no sweeps")
        if contestant is None:
            return _pool(where.sizes["tasks"], 2, None)
        with tempfile.TemporaryDirectory(dir=where.folder) as folder:
            return _sweep_here(where.sizes["tasks"], 2, folder)[1]

    return sample


# -- programs ------------------------------------------------------------------------------------------


def single(count: int, cfg: dict[str, str]) -> float:
    """What a call of Runner.run takes more than ``sbatch`` of the same script: the median of so many pairs."""
    with jobs(cfg) as (runner, submit):
        info = runner.dryrun(_app(), "slurm", cfg)
        handle = submit()
        backend = runner._scheduler("slurm")
        made = backend._submission(info, backend._here)
        folder = backend.folders(backend._here).of(handle.rpartition("/")[2])
        argv = [word.replace(made.folder, folder.path) for word in made.argv]
        differences = []
        for number in range(count):
            took = [0.0, 0.0]
            for ours in (number % 2, 1 - number % 2):
                started = time.perf_counter()
                submit() if ours else _ids.append(subprocess.check_output(argv, text=True).strip())
                took[ours] = time.perf_counter() - started
            differences.append(took[1] - took[0])
        return statistics.median(differences)


def statuses(count: int, cfg: dict[str, str]) -> float:
    """Seconds of Runner.status of so many jobs, one after the other: of those that wait, two questions to Slurm."""
    from torchx.runner import get_runner

    with jobs(cfg) as (_, submit):
        handles = [submit() for _ in range(count)]
        before = _looks()
        with get_runner() as runner:
            started = time.perf_counter()
            states = {str(status.state) for handle in handles if (status := runner.status(handle)) is not None}
            seconds = time.perf_counter() - started
        if not states <= {"PENDING", "RUNNING"} or (cfg is _CFG and _looks() - before > 2):
            raise SystemExit(f"{states}, {_looks() - before} questions")
        return seconds


def _looks() -> int:
    """Questions to the controller about jobs."""
    return sum(n for name, n in counts().items() if name.startswith("REQUEST_JOB_INFO"))


_ids: list[str] = []


@contextmanager
def jobs(cfg: dict[str, str]) -> Iterator[tuple[Any, Callable[[], str]]]:
    """A Runner, and what submits one more job; all of them are cancelled."""
    from torchx.runner import get_runner

    def submit() -> str:
        handle: str = runner.run(_app(), "slurm", cfg)
        _ids.append(handle.rpartition("/")[2])
        return handle

    with get_runner() as runner:
        try:
            yield runner, submit
        finally:
            subprocess.run(["scancel", *_ids], check=False)


def _app() -> Any:
    from torchx.specs import AppDef, Resource, Role

    small = Resource(cpu=1, gpu=0, memMB=50)
    return AppDef("bench", [Role("main", image="/tmp", entrypoint="sleep", args=["60"], resource=small)])


# -- commands ------------------------------------------------------------------------------------------

_TORCHX = [sys.executable, "-m", "torchx"]
_last: dict[str, str] = {}
"""The last sweep that was submitted for a stage: Slurm takes only so many tasks at a time."""


def prompt(count: int, where: stage.Stage, env: Mapping[str, str], cfg: dict[str, str]) -> float:
    """Seconds until ``torchx sweep`` has submitted so many tasks."""
    _cancel(where, env)
    options = ",".join(f"{key}={value}" for key, value in cfg.items())
    words = ["--workspace=", "--grid", f"k=0..{count - 1}", "utils.python", "--memMB", "50", "-c", "pass", "--", "{k}"]
    started = time.perf_counter()
    done = subprocess.run(
        [*_TORCHX, "sweep", "-s", "slurm", "-cfg", options, *words],
        env=env,
        cwd=where.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        raise Cannot(done.stderr.strip()[-300:])
    if where.folder not in _last:
        where.at_last(lambda: _cancel(where, env))
    _last[where.folder] = _SWEEP.findall(done.stdout)[-1]
    return seconds


def table(count: int, where: stage.Stage, env: Mapping[str, str], cfg: dict[str, str]) -> float:
    """Seconds that ``torchx status`` of that sweep takes more than the question to Slurm."""
    if not _last.get(where.folder):
        prompt(count, where, env, cfg)
    sweep = _last[where.folder]
    number = sweep.rpartition("-")[2]
    ours = timed([*_TORCHX, "status", sweep], env, where.folder)
    return max(ours - timed(["squeue", "--noheader", f"--jobs={number}"], env, where.folder), 0.001)


def _cancel(where: stage.Stage, env: Mapping[str, str]) -> None:
    if sweep := _last.get(where.folder):
        subprocess.run([*_TORCHX, "cancel", sweep], env=env, cwd=ROOT, check=False, capture_output=True)
        _last[where.folder] = ""


COMMANDS = {"prompt": prompt, "table": table, f"prompt{_RUNNING}": prompt}
PROGRAMS = {"single": single, "statuses": statuses}

if __name__ == "__main__":
    print(PROGRAMS[sys.argv[1].removesuffix(_RUNNING)](int(sys.argv[2]), cfg_of(sys.argv[1])))
