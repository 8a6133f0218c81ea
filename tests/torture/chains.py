"""Chains of pieces (`--total`) that are hit once by `kill -9`: ``python -m tests.torture.chains local_cwd 20``.

Each has work for six pieces (fewer pieces on a busy machine, where their ends take long), and must end with SUCCEEDED, with every step recorded once, and with never two pieces at once.
The victims: the program, any or all of torchx's processes that own the job, or the command that waits. A command that
looks once a second stands for its user. For Slurm: ``slurm 5 --piece 60s``, where Slurm's commands are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torchx.runner import get_runner
from torchx.util.spans import parse_span

PROGRAM = """
import fcntl, json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
folder, steps, step_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
lock = open(f"{folder}/lock", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{folder}/overlap", "a").write(f"{os.getpid()}\\n")
path = f"{folder}/done.json"
done = json.load(open(path)) if os.path.exists(path) else []
while len(done) < steps:
    time.sleep(step_s)
    done.append(len(done))
    with open(f"{path}.{os.getpid()}", "w") as f:
        json.dump(done, f)
    os.replace(f"{path}.{os.getpid()}", path)
    if os.environ.get("TORCHX_PROGRESS"):
        open(os.environ["TORCHX_PROGRESS"], "a").close()
        os.utime(os.environ["TORCHX_PROGRESS"])
"""
PIECES = 6
VICTIMS = ("program", "one owner", "all owners", "owners and program", "command")


def processes(*words: str) -> list[int]:
    """Processes with one of these words in their command line, or as the local job of their environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes()
            if any(word.encode() in line for word in words) and int(name) != os.getpid():
                found.append(int(name))
    return found


def owners(scheduler: str, app_id: str) -> list[int]:
    """torchx's own processes behind a job: supervisor and guardian, or watcher. Slurm's script belongs to Slurm."""
    if scheduler != "local_cwd":
        return processes(f"watcher.py\0{app_id}") if scheduler == "local_docker" else []
    from torchx.schedulers.local.jobs import LocalJobs
    from torchx.supervisor.statefile import read_state

    folder = LocalJobs("torchx").find(app_id)
    state = read_state(f"{folder}/state")
    return [state.supervisor, state.guardian[0]]


def chain(seed: int, scheduler: str, piece: str, folder: Path) -> str:
    """Run a chain; return what went wrong, empty if nothing did."""
    dice = random.Random(seed)
    piece_s = parse_span(piece) or 5.0
    step_s = piece_s / 25
    work = folder / f"chain{seed}"
    work.mkdir()
    (work / "steps.py").write_text(PROGRAM)
    words = ["-s", scheduler, "--total", "2h", "--piece", piece, *OPTIONS.get(scheduler, ())]
    if scheduler == "local_docker":
        words += [
            "--workspace",
            "",
            "utils.sh",
            "--image",
            "torchx-test/python:1",
            "--mounts",
            f"type=bind,src={work},dst={work}",
        ]
    else:
        words += ["utils.sh"]
    python = "python3" if scheduler == "local_docker" else sys.executable
    steps = str(int(PIECES * 25 * 0.9))
    argv = [sys.executable, "-m", "torchx", "run", "--json", *words, "--", python, f"{work}/steps.py", str(work), steps]
    done = subprocess.run([*argv, f"{step_s:g}"], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"not launched: {done.stderr[-500:]}"
    handle = json.loads(done.stdout)["handle"]
    app_id = handle.rpartition("/")[2]
    waiter = subprocess.Popen([sys.executable, "-m", "torchx", "wait", handle], stdout=subprocess.DEVNULL)
    victim = VICTIMS[seed % len(VICTIMS)]
    kill_at = time.monotonic() + dice.uniform(0.5, PIECES * piece_s * 0.9)
    killed: list[int] = []
    deadline = time.monotonic() + PIECES * piece_s * 6 + 600
    try:
        with get_runner() as runner:
            while time.monotonic() < deadline:
                if not killed and time.monotonic() > kill_at:
                    killed = [*kill(dice, victim, scheduler, app_id, work, waiter)]
                status = runner.status(handle)
                if status is not None and status.is_terminal():
                    break
                time.sleep(1.0)
    finally:
        waiter.kill()
        waiter.wait()
    assert status is not None
    found = json.loads((work / "done.json").read_text())
    told = f"{victim} {killed}, {len(status.attempts)} pieces before the last"
    problems = [
        *([f"{status.state}: {status.msg}"] if str(status.state) != "SUCCEEDED" else []),
        *(["a step is missing or twice"] if found != list(range(int(steps))) else []),
        *(["two pieces at once"] if (work / "overlap").exists() else []),
        *(["nothing was killed"] if not killed else []),
        *([f"{len(status.attempts)} pieces"] if len(status.attempts) < 2 else []),
    ]
    return f"{'; '.join(problems)} ({told})" if problems else ""


def kill(
    dice: random.Random, victim: str, scheduler: str, app_id: str, work: Path, waiter: subprocess.Popen[bytes]
) -> Iterator[int]:
    """Kill the victims; yield their pids."""
    own = owners(scheduler, app_id)
    program = processes(f"{work}/steps.py")
    chosen = {
        "program": program,
        "one owner": dice.sample(own, min(len(own), 1)) or program[:1],
        "all owners": own or program,
        "owners and program": own + program,
        "command": [waiter.pid],
    }[victim]
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            yield pid


OPTIONS: dict[str, list[str]] = {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scheduler", choices=("local_cwd", "local_docker", "slurm"))
    parser.add_argument("count", type=int)
    parser.add_argument("--piece", default="5s")
    parser.add_argument("--side-by-side", type=int, default=4)
    parser.add_argument("--keep", default="", help="folder of the chains, which is kept")
    args = parser.parse_args()
    bad = 0
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(args.side_by_side) as pool:
        name = args.keep or stack.enter_context(tempfile.TemporaryDirectory())
        os.environ.setdefault("TORCHX_HOME", os.path.join(name, "home"))
        seeds = range(args.count)
        answers = pool.map(lambda seed: chain(seed, args.scheduler, args.piece, Path(name)), seeds)
        for seed, answer in zip(seeds, answers, strict=True):
            bad += bool(answer)
            print(f"{args.scheduler} {seed}: {answer or 'ok'}", flush=True)
    print(f"{args.count - bad} of {args.count} survived")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
