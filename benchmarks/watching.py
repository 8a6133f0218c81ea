"""What it costs a Slurm controller that people watch: questions by ``sdiag``, processor time, delay of what is seen.

Run as root beside a cluster that nobody else uses, with Slurm's commands on the path::

    python -m benchmarks.watching --jobs 10000 --watchers 50 --seconds 60

Jobs are submitted held, each by itself, and put on record in a home of their own; those that an earlier run has left
(``--keep``) are taken first. Then as many processes as ``--watchers`` run ``torchx watch``; some jobs are
cancelled meanwhile by ``scancel``, and each watcher says when it has seen that. For comparison as many ``squeue`` loops
(``watch -n2 squeue --me`` in effect) run for a while, as many programs that ask submitit every two seconds whether
their jobs are done, of which each has a hundred, and as many screens of ``turm``, each in a terminal of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from benchmarks.sweeping import others

_WATCH = """
import os, sys, time
from torchx.runner import get_runner
ready, out = sys.argv[1], open(sys.argv[2], "w")
with get_runner() as runner, runner.watch() as watch:
    open(ready, "w").close()
    for change in watch:
        print(change.seq, change.handle, change.state, time.time(), *os.times()[:2], file=out, flush=True)
"""
_LOOP = "while :; do squeue --me >/dev/null; sleep 2; done"
_SUBMITIT = """
import sys, time, submitit
jobs = [submitit.SlurmJob(folder=sys.argv[1], job_id=i) for i in sys.argv[2:]]
while True:
    [job.done() for job in jobs]
    time.sleep(2)
"""
_COUNTED = """#!/bin/sh
echo {name} >>{log}
exec {program} "$@"
"""
_CANCELLED = 20
_OF_SUBMITIT = 100
_TICKS = os.sysconf("SC_CLK_TCK")


def queries() -> dict[str, int]:
    """How often the controller was asked about jobs since its start, by kind of question."""
    text = subprocess.run(["sdiag"], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+(REQUEST_JOB_(?:USER_)?INFO(?:_SINGLE)?)\s+\(.*?count:(\d+)", text, re.MULTILINE)
    return {name: int(count) for name, count in found}


def asked(before: dict[str, int]) -> dict[str, int]:
    """Questions about jobs since then, by kind."""
    return {kind: n for kind, count in queries().items() if (n := count - before.get(kind, 0))}


def submit(jobs: int) -> list[str]:
    """The ids of so many held jobs."""
    left = ["squeue", "--me", "--noheader", "--states=PENDING", "--name=wrap", "--format=%i"]
    there = subprocess.run(left, capture_output=True, text=True, check=True).stdout.split()

    def one(_: int) -> str:
        argv = ["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()

    with ThreadPoolExecutor(8) as pool:
        return [*there, *pool.map(one, range(jobs - len(there)))][:jobs]


def record(ids: list[str]) -> None:
    """Puts them on record, as if torchx had submitted them."""
    from torchx.runs import NewRun, default_registry

    registry = default_registry()
    for app_id in ids:
        run_id = registry.begin(NewRun(scheduler="slurm", session="torchx", name="held"))
        registry.submitted(run_id, f"slurm://torchx/{app_id}")


def watched(watchers: int, seconds: float, ids: list[str], folder: str) -> dict[str, object]:
    """The figures of so many who watch for so long, while jobs are cancelled."""
    outs = [os.path.join(folder, f"{k}.txt") for k in range(watchers)]
    processes = [subprocess.Popen([sys.executable, "-c", _WATCH, f"{out}.ready", out]) for out in outs]
    while not all(os.path.exists(f"{out}.ready") for out in outs):
        time.sleep(0.5)
    settle = time.monotonic() + 30
    while time.monotonic() < settle and min(map(_pending, outs)) < len(ids):
        time.sleep(0.5)
    before, began, cpu, daemons = queries(), time.monotonic(), sum(_cpu(p.pid) for p in processes), _daemons()
    cancelled: dict[str, float] = {}
    for app_id in ids[:_CANCELLED]:
        subprocess.run(["scancel", app_id], check=True)
        cancelled[f"slurm://torchx/{app_id}"] = time.time()
        time.sleep(max(seconds / _CANCELLED - 0.05, 0))
    took, found = time.monotonic() - began, asked(before)
    cpu, daemons = sum(_cpu(p.pid) for p in processes) - cpu, _daemons() - daemons
    pids = _beat(folder)
    time.sleep(45)  # for the last changes
    for process in processes:
        process.kill()
        process.wait()
    late = sorted(delay for out in outs for delay in _delays(out, cancelled))
    due = len(cancelled) * watchers
    return {
        "watchers": watchers,
        "jobs": len(ids),
        "seconds": round(took, 1),
        "queries": found,
        "cpu % a watcher": round(100 * cpu / took / watchers, 2),
        "cpu % of Slurm's daemons": round(100 * daemons / took, 1),
        "changes missed": due - len(late),
        "late, median s": round(late[len(late) // 2], 2) if late else -1.0,
        "late, 95 % s": round(late[int(len(late) * 0.95)], 2) if late else -1.0,
        **pids,
    }


def beside(name: str, argvs: list[list[str]], seconds: float, folder: str) -> dict[str, object]:
    """The figures of other programs that ask, each for itself.

    Args:
        argvs: a process each; of Slurm's commands it finds ones that are counted.
    """
    tools, log = os.path.join(folder, "tools"), os.path.join(folder, "asked")
    os.makedirs(tools, exist_ok=True)
    for tool in ("squeue", "sacct", "scontrol"):
        with open(os.path.join(tools, tool), "w") as file:
            file.write(_COUNTED.format(name=tool, log=log, program=shutil.which(tool)))
        os.chmod(file.name, 0o755)
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    processes = [subprocess.Popen(argv, start_new_session=True, env=env, **quiet) for argv in argvs]
    time.sleep(seconds / 2)  # until all have begun
    open(log, "w").close()
    before, began, cpu, daemons = queries(), time.monotonic(), sum(_cpu(p.pid) for p in processes), _daemons()
    time.sleep(seconds)
    took, found = time.monotonic() - began, asked(before)
    cpu, daemons = sum(_cpu(p.pid) for p in processes) - cpu, _daemons() - daemons
    for process in processes:
        os.killpg(process.pid, 9)
        process.wait()
    with open(log) as file:
        calls = dict(Counter(file.read().split()))
    return {
        "name": name,
        "processes": len(argvs),
        "seconds": round(took, 1),
        "queries": found,
        "commands": calls,
        "cpu % a process": round(100 * cpu / took / len(argvs), 2),
        "cpu % of Slurm's daemons": round(100 * daemons / took, 1),
    }


def _beat(folder: str) -> dict[str, float]:
    pollers = os.path.join(folder, "home", "pollers")
    for name in os.listdir(pollers):
        if name.endswith(".json"):
            with open(os.path.join(pollers, name)) as file:
                said = json.load(file)
            return {"interval s": round(said["every"], 2)}
    return {}


def _pending(out: str) -> int:
    with open(out) as file:
        return file.read().count("PENDING")


def _cpu(pid: int) -> float:
    """Seconds of a process, and of its children that have ended."""
    with open(f"/proc/{pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:15])) / _TICKS


def _daemons() -> float:
    """Seconds of the controller and of the database behind it."""
    names = subprocess.run(["pgrep", "-x", "slurmctld|slurmdbd|mariadbd"], capture_output=True, text=True, check=True)
    return sum(map(_cpu, map(int, names.stdout.split())))


def _delays(out: str, cancelled: dict[str, float]) -> list[float]:
    with open(out) as file:
        rows = [line.split() for line in file]
    return [float(row[3]) - cancelled[row[1]] for row in rows if row[2] == "CANCELLED" and row[1] in cancelled]


def main(argv: list[str]) -> None:
    """Runs both and prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watching", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--watchers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--keep", action="store_true", help="leave the held jobs to the next run")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHX_HOME"] = os.path.join(folder, "home")
        began = time.monotonic()
        ids = submit(args.jobs)
        print(f"{len(ids)} jobs submitted in {time.monotonic() - began:.1f} s", flush=True)
        try:
            record(ids)
            print(json.dumps(watched(args.watchers, args.seconds, ids, folder)), flush=True)
            n, half = args.watchers, args.seconds / 2
            print(json.dumps(beside("squeue", [["sh", "-c", _LOOP]] * n, half, folder)), flush=True)
            parts = [ids[-(k + 1) * _OF_SUBMITIT :][:_OF_SUBMITIT] for k in range(n)]
            argvs = [[others(), "-c", _SUBMITIT, folder, *part] for part in parts]
            print(json.dumps(beside("submitit", argvs, half, folder)), flush=True)
            screen = f"stty rows 40 cols 120; exec {os.path.dirname(others())}/turm --me"
            argvs = [["script", "--quiet", "--flush", "--command", screen, "/dev/null"]] * n
            print(json.dumps(beside("turm", argvs, half, folder)), flush=True)
        finally:
            if not args.keep:
                subprocess.run(["scancel", f"--user={os.getuid()}", "--name=wrap"], check=False)


if __name__ == "__main__":
    main(sys.argv[1:])
