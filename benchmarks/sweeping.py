"""What many tasks cost: torchx sweep beside submitit, slurmgrid and a loop of the shell; on this machine beside a pool.

Run as root beside a Slurm cluster that nobody else uses, with Slurm's commands on the path, and with a shared folder::

    python -m benchmarks.sweeping slurm --tasks 10000 --loop 500 --ended 200
    python -m benchmarks.sweeping local --tasks 10000 --width 2

The first table is of tasks that cannot start yet (``--closed``: a partition that is down): seconds until the prompt is
back, questions and calls of ``sbatch`` that the controller counts, files, and the memory of the process that submits.
The second is of tasks that do nothing: seconds and questions until the one who submitted knows that all have ended.
The others are installed from PyPI, in one environment of their own below ``.cache``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PACKAGES = ("submitit==1.5.4", "slurmgrid==0.2.0", "turm==0.17.0")
_OF_DAEMONS = re.compile(r"COMPLETE|STEP|REGISTRATION|MESSAGE_|PING|EPILOG|PROLOG")

_SUBMITIT = """
import sys, time, subprocess, submitit
count, size, partition, wait = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "wait"
executor = submitit.AutoExecutor(folder="submitit", cluster="slurm")
executor.update_parameters(slurm_partition=partition, timeout_min=5, mem_gb=0.05, slurm_array_parallelism=size)
jobs = []
for first in range(0, count, size):  # it makes one array of what it is given, however long
    jobs += executor.map_array(str, range(first, min(first + size, count)))
print("submitted", time.time(), flush=True)
if wait:
    for job in jobs:
        job.result()
"""


@dataclass
class Cost:
    """What it took: until the prompt was back or all had ended, and what the controller was asked meanwhile."""

    name: str
    tasks: int
    seconds: float
    calls: dict[str, int]
    files: int
    memory_mb: float
    note: str = ""

    def line(self) -> str:
        submitted = sum(n for name, n in self.calls.items() if "SUBMIT" in name)
        cells = [self.name, f"{self.tasks:,}", f"{self.seconds:.1f}", f"{submitted:,}", f"{sum(self.calls.values()):,}"]
        return f"| {' | '.join([*cells, f'{self.files:,}', f'{self.memory_mb:.0f}', self.note])} |"


def counts() -> dict[str, int]:
    """Questions of users to the controller since its start, by kind; what its own daemons report is left out."""
    text = subprocess.run(["sdiag"], capture_output=True, text=True, check=True).stdout
    by_type = text.partition("by message type")[2].partition("by user")[0]
    found = re.findall(r"^\s+(REQUEST_\w+)\s+\(.*?count:(\d+)", by_type, re.MULTILINE)
    return {name: int(count) for name, count in found if not _OF_DAEMONS.search(name) and "STATS" not in name}


def measured(name: str, tasks: int, work: Callable[[str], object], note: str = "") -> Cost:
    """Does something in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="sweeping-", dir=os.getcwd()) as folder:
        before = counts()
        began = time.monotonic()
        work(folder)
        seconds = time.monotonic() - began
        asked = {kind: n - before.get(kind, 0) for kind, n in counts().items() if n > before.get(kind, 0)}
        files = sum(len(folders) + len(names) for _, folders, names in os.walk(folder))
        peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of all that this process has started
        return Cost(name, tasks, seconds, asked, files, peak_mb, note)


def others() -> str:
    """The Python of the environment that has them."""
    venv = os.path.join(ROOT, ".cache", "sweeping")
    python = os.path.join(venv, "bin", "python")
    if not os.path.exists(os.path.join(venv, "done")):
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
        open(os.path.join(venv, "done"), "w").close()
    return python


def run(argv: list[str], folder: str, **env: str) -> str:
    """What a command says."""
    done = subprocess.run(argv, cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv[:6]}: {done.stdout[-500:]}{done.stderr[-2000:]}")
    return done.stdout


def ours(tasks: int, partition: str, *, wait: bool) -> Callable[[str], object]:
    """``torchx sweep``, and ``torchx wait``."""

    def work(folder: str) -> None:
        env = {"TORCHX_HOME": os.path.join(folder, "home"), "PYTHONPATH": ROOT}
        torchx = [sys.executable, "-m", "torchx.cli.main"]
        cfg = f"partition={partition},job_dir={folder}/jobs,time=5"
        grid = ["--grid", f"k=0..{tasks - 1}", "utils.python", "--memMB", "50", "-c", "pass", "--", "{k}"]
        if wait:
            grid = ["--grid", f"k=0..{tasks - 1}", "utils.sh", "--memMB", "50", "true", "{k}"]
        handle = run([*torchx, "sweep", "-s", "slurm", "-cfg", cfg, *grid], folder, **env).split()[-1]
        if wait:
            run([*torchx, "wait", handle], folder, **env)

    return work


def submitit(tasks: int, size: int, partition: str, *, wait: bool) -> Callable[[str], object]:
    """``map_array``, an array at a time, and ``result()`` of each."""
    argv = [others(), "-c", _SUBMITIT, str(tasks), str(size), partition, "wait" if wait else "go"]
    return lambda folder: run(argv, folder)


def slurmgrid(tasks: int, partition: str) -> Callable[[str], object]:
    """``slurmgrid submit``, which stays until all have ended."""

    def work(folder: str) -> None:
        with open(os.path.join(folder, "points.csv"), "w") as file:
            file.write("k\n" + "".join(f"{k}\n" for k in range(tasks)))
        argv = [others(), "-m", "slurmgrid", "submit", "--manifest", "points.csv", "--command", "true {k}"]
        argv += ["--partition", partition, "--time", "00:05:00", "--mem", "50M", "--poll-interval", "1"]
        run([*argv, "--state-dir", "grid"], folder)

    return work


def loop(tasks: int, partition: str, *, wait: bool) -> Callable[[str], object]:
    """``sbatch`` again and again, then ``squeue`` every second."""
    script = f"""
        for ((k = 0; k < {tasks}; k++)); do
          sbatch -p {partition} -t 5 --mem=50 -J sweeping-loop -o $PWD/%j.log --wrap="true $k" >/dev/null || exit
        done
        {'while [ -n "$(squeue -h -n sweeping-loop)" ]; do sleep 1; done' if wait else ""}
    """
    return lambda folder: run(["bash", "-c", script], folder)


_HEAD = """
| | tasks | seconds | `sbatch` | questions in all | files | memory, MB | |
|---|---:|---:|---:|---:|---:|---:|---|"""


def on_slurm(args: argparse.Namespace) -> None:
    """Both tables."""
    config = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=True).stdout
    size = int(re.findall(r"MaxArraySize\s*=\s*(\d+)", config)[0])
    most = re.findall(r"MaxJobCount\s*=\s*(\d+)", config)[0]
    others()
    print(f"MaxArraySize {size}, MaxJobCount {most}\n\nTasks that wait, until the prompt is back:\n{_HEAD}", flush=True)
    n, down = args.tasks, args.closed
    submitted = (
        ("torchx sweep", n, ours(n, down, wait=False), ""),
        ("submitit `map_array`", n, submitit(n, size - 1, down, wait=False), f"one call for each {size - 1:,} tasks"),
        ("loop of `sbatch`", args.loop, loop(args.loop, down, wait=False), ""),
    )
    for row in submitted:
        _show(*row)
        subprocess.run(["scancel", "--me", f"--partition={down}"], check=False)
    m, up = args.ended, args.open
    print(f"\nTasks that do nothing, until all are known to have ended:\n{_HEAD}", flush=True)
    ended = (
        ("torchx sweep, wait", m, ours(m, up, wait=True), ""),
        ("submitit `map_array`, `result()`", m, submitit(m, size - 1, up, wait=True), ""),
        ("slurmgrid", m, slurmgrid(m, up), "asks `sacct` every second, which is not counted"),
        ("loop of `sbatch`, `squeue`", m, loop(m, up, wait=True), ""),
    )
    for row in ended:
        _show(*row)


def _show(name: str, tasks: int, work: Callable[[str], object], note: str) -> None:
    """Measures in a process of its own, for the memory of its children alone, and prints the line."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            try:
                line = measured(name, tasks, work, note).line()
            except Exception as e:
                line = f"| {name} | {tasks:,} | could not be measured: {str(e).strip().splitlines()[-1][:200]} |"
            os.write(writer, line.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        print(pipe.read(), flush=True)
    os.waitpid(pid, 0)


def here(args: argparse.Namespace) -> None:
    """A sweep on this machine, and pools of threads that start the same program as often; in turn."""
    print(f"{args.tasks:,} times `true`, {args.width} at a time, below `{tempfile.gettempdir()}`:")
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(prefix="sweeping-") as folder:
            prompt, sweep = _sweep_here(args.tasks, args.width, folder)
        bare = _pool(args.tasks, args.width, None)
        with tempfile.TemporaryDirectory(prefix="sweeping-") as folder:
            logged = _pool(args.tasks, args.width, folder)
        print(
            f"sweep {sweep:.1f} s (prompt after {prompt:.1f} s); pool {bare:.1f} s, {sweep / bare:.2f} times that;"
            f" pool with a log for each {logged:.1f} s, {sweep / logged:.2f} times that",
            flush=True,
        )


def _sweep_here(tasks: int, width: int, folder: str) -> tuple[float, float]:
    """Seconds until the prompt is back, and until all have succeeded."""
    env = {"TORCHX_HOME": os.path.join(folder, "home"), "PYTHONPATH": ROOT}
    torchx = [sys.executable, "-m", "torchx.cli.main"]
    words = ["--max-parallel", str(width), "--grid", f"k=0..{tasks - 1}", "utils.binary", "--entrypoint", "true"]
    began = time.monotonic()
    run([*torchx, "sweep", "-s", "local_cwd", *words], folder, **env)
    prompt = time.monotonic() - began
    run([*torchx, "wait", "@last"], folder, **env)
    ended = time.monotonic() - began
    counts = json.loads(run([*torchx, "status", "--json", "@last"], folder, **env))["tasks"]["counts"]
    if counts != {"SUCCEEDED": tasks}:
        raise RuntimeError(counts)
    return prompt, ended


def _pool(tasks: int, width: int, logs: str | None) -> float:
    """Seconds of as many programs in a pool of threads; each with a file for its output where there is a folder."""

    def one(k: int) -> int:
        if logs is None:
            return subprocess.call(["true"])
        with open(os.path.join(logs, f"{k}.log"), "a") as file:
            return subprocess.call(["true"], stdout=file, stderr=subprocess.STDOUT)

    began = time.monotonic()
    with ThreadPoolExecutor(width) as pool:
        if any(pool.map(one, range(tasks))):
            raise RuntimeError("`true` failed")
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweeping", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("where", choices=("slurm", "local"))
    add("--tasks", type=int, default=10_000)
    add("--loop", type=int, default=500, help="tasks of the loop, each of them a job of its own")
    add("--ended", type=int, default=200, help="tasks of the second table")
    add("--closed", default="closed", help="a partition that is down")
    add("--open", default="main", help="a partition whose jobs start at once")
    add("--width", type=int, default=2)
    add("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not shutil.which("sbatch") and args.where == "slurm":
        parser.error("no sbatch on the path")
    (on_slurm if args.where == "slurm" else here)(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
