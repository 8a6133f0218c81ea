"""What is around the process: set-up lines, the check of its node, staged data, results, steps of an allocation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from benchmarks import inside, stage
from benchmarks.contestants import OURS, ROOT, Contestant
from benchmarks.timing import Cannot, Sample, timed

_RUN = ("run", "-s", "local_cwd", "--wait")
_RESULT = "result.bin"


def adds(allowed_s: float, *options: str, replicas: int = 1) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds by which these options make a job of ``true`` longer; the base is what is allowed."""

    def work(ours: Contestant, where: stage.Stage) -> float:
        job = ("utils.sh", "--num_replicas", str(replicas), "--", "true")
        given = [option.format(folder=where.folder, file=_file(where)) for option in options]
        with_them = timed([ours.torchx, *_RUN, *given, *job], where.env(ours), where.folder)
        without = timed([ours.torchx, *_RUN, *job], where.env(ours), where.folder)
        return max(with_them - without, 0.001)

    return _of_ours(work, lambda _: allowed_s)


def ended_copy() -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of a file out of a job that has ended; the floor is ``cp``."""

    def out(where: stage.Stage, argv: list[str], env: Mapping[str, str]) -> float:
        target = os.path.join(where.folder, "copied.bin")
        if os.path.exists(target):
            os.unlink(target)
        return timed([*argv, target], env, where.folder)

    def work(ours: Contestant, where: stage.Stage) -> float:
        return out(where, [ours.torchx, "cp", f"{where.finished_run(ours)}:{_file(where)}"], where.env(ours))

    return _of_ours(work, lambda where: out(where, ["cp", _file(where)], where.env(None)))


def step(allowed_s: float) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds until the program of a job in an allocation starts, above ``srun``; the base is what is allowed."""
    held: dict[str, str] = {}

    def work(ours: Contestant, where: stage.Stage) -> float:
        env = {**where.env(ours), "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin", "PYTHONPATH": ROOT}
        if where.folder not in held:
            held[where.folder] = _allocation(where)
        job_id = held[where.folder]
        mine = [sys.executable, "-m", "torchx", "run", "-s", "slurm", "--workspace=", "-cfg", f"in={job_id}"]
        srun = ["srun", f"--jobid={job_id}", "--overlap", "-N1", "-n1", "--mem=0", "sh", "-c"]
        return max(
            _starts([*mine, "utils.sh", "--memMB", "50", "--"], where, env) - _starts(srun, where, env),
            0.001,
        )

    return _of_ours(work, lambda _: allowed_s)


def _starts(argv: list[str], where: stage.Stage, env: Mapping[str, str]) -> float:
    """Seconds until the command that ``argv`` runs has started."""
    path = os.path.join(where.folder, "started")
    if os.path.exists(path):
        os.unlink(path)
    began = time.time()
    done = subprocess.run(
        [*argv, f"date +%s.%N >{path}.new; mv {path}.new {path}"],
        env=dict(env),
        cwd=where.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    while not os.path.exists(path):
        if done.returncode or time.time() - began > inside.PATIENCE_S:
            raise Cannot(done.stderr.strip()[-300:] or "it did not start")
        time.sleep(0.01)
    with open(path) as file:
        return float(file.read()) - began


def _allocation(where: stage.Stage) -> str:
    try:
        inside.cluster_up(where)
    except Exception as problem:
        raise Cannot(f"no `slurm` here: {problem}") from problem
    argv = ["salloc", "--no-shell", "-N1", "-n1", "--mem=200", "-t", "20"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = re.search(r"Granted job allocation (\d+)", done.stderr)
    if found is None:
        raise Cannot(done.stderr.strip()[-300:])
    where.at_last(lambda: subprocess.run(["scancel", found[1]], check=False))
    return found[1]


def _file(where: stage.Stage) -> str:
    """A file of the size that is copied."""
    path = os.path.join(where.folder, _RESULT)
    if not os.path.exists(path):
        with open(path, "wb") as file:
            for _ in range(where.sizes["copied_mb"]):
                file.write(os.urandom(1_000_000))
    return path


def _of_ours(
    work: Callable[[Contestant, stage.Stage], float], base: Callable[[stage.Stage], float]
) -> Callable[[Contestant | None, stage.Stage], Sample]:
    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        def sample() -> float:
            if contestant is None:
                return base(where)
            if contestant.name != OURS:
                raise Cannot("measured of ours alone")
            return work(contestant, where)

        return sample

    return sampler
