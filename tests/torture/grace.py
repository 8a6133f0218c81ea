"""Jobs that are told to end while they work: what their handlers of SIGTERM start may save the work."""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torture.calls import Call, torchx
from tests.torture.local_jobs import job_folders
from tests.torture.rows import Round
from torchx.supervisor import proctree
from torchx.supervisor.reader import JobReader
from torchx.supervisor.statefile import RUNNING, TASKS, TERMINAL, JobState

_PATIENCE_S = 30.0
_SAVES_S = 0.4
_GRACE_S = 20  # longer than any save on a busy machine
_SHORT_GRACE_S = 1
# A program with a handler for SIGTERM, which starts SAVE; each leaves the file `up` when it can be told to end.
_TRAINERS = {
    "sh": "trap 'sh SAVE; exit 0' TERM; : >up; while :; do sleep 0.05; done",
    "background": "trap 'sh SAVE & exit 0' TERM; : >up; while :; do sleep 0.05; done",
    "session": "trap 'setsid sh SAVE; exit 0' TERM; : >up; while :; do sleep 0.05; done",
    "python": f"exec {shlex.quote(sys.executable)} train.py",
    "below a shell": f"{shlex.quote(sys.executable)} train.py; echo over",
}
_TRAIN_PY = """
import signal, subprocess, sys, time
def save(*_):
    subprocess.run(["sh", "SAVE"])
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open("up", "w").close()
while True:
    time.sleep(0.05)
"""
_WAYS = ("cancel", "timeout", "preempt", "gang", "shutdown", "sweep")


def grace(rng: random.Random, place: Path) -> Iterator[Round]:
    """A job that is told to end; its handler starts a program, which ends by itself, or is killed at the deadline."""
    for number in range(1 << 30):
        home = place / str(number)
        home.mkdir()
        yield _told_to_end(rng, home)


def _told_to_end(rng: random.Random, home: Path) -> Round:
    trainer, way = rng.choice(sorted(_TRAINERS)), rng.choice(_WAYS)
    if way == "sweep" and trainer == "session":
        trainer = "python"  # a task of a sweep is its process group
    endless = rng.random() < 0.2
    what = f"{trainer} under {way}{', a save without end' * endless}"
    save = "while :; do sleep 0.05; done" if endless else f"sleep {_SAVES_S}; echo saved >saved.new; mv saved.new saved"
    (home / "SAVE").write_text(f"trap '' USR1; {save}\n")
    (home / "train.py").write_text(_TRAIN_PY)
    within_s = _SHORT_GRACE_S if endless else _GRACE_S
    env = {"TORCHX_HOME": str(home), "TORCHX_ERROR_FILE": ""}
    ended = Call(partial(_submits, home, _TRAINERS[trainer], way, within_s), env, hasty=False).ended()
    if ended.code != 0:
        return Round(f"{what}: {ended.problem() or ended.err}", ())
    problem = _waits_for(home / "up") or ""
    if not problem:
        time.sleep(rng.random() * 0.1)
        problem = _tell(way, home, env) or _at_its_end(home, saves=not endless, within_s=within_s)
    return Round(problem and f"{what}: {problem}", ("replica",))


def _submits(home: Path, script: str, way: str, grace_s: int) -> int:
    if way == "sweep":
        from torchx.cli.main import main

        words = ["sweep", "-s", "local_cwd", "-cfg", f"cancel_grace_s={grace_s}", "--grid", "k=0", "utils.sh"]
        main([*words, f"cd {home}; : {{k}}; {script}"])
        return 0
    from torchx.runner import get_runner
    from torchx.specs import AppDef, Role

    roles = [Role("r", "", entrypoint="sh", args=["-c", f"cd {home}; {script}"])]
    if way == "gang":
        peer = f"until test -e {home}/go; do sleep 0.02; done; exit 3"
        roles.append(Role("peer", "", entrypoint="sh", args=["-c", peer]))
    with get_runner() as runner:
        runner.run(AppDef("a", roles), "local_cwd", {"cancel_grace_s": grace_s})
    return 0


def _waits_for(path: Path) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            return "the program does not begin"
        time.sleep(0.005)
    return ""


def _tell(way: str, home: Path, env: dict[str, str]) -> str:
    if way == "gang":
        (home / "go").touch()
    elif way == "shutdown":
        job = JobReader(job_folders(home)[0]).read()
        if job is None:
            return "the job is gone"
        os.kill(job.supervisor, signal.SIGTERM)
    else:
        verb = ["cancel", "@last"] if way in ("cancel", "sweep") else ["simulate", "--yes", way, "@last"]
        ended = torchx(verb, env, hasty=False).ended()
        return "" if ended.code == 0 else f"`torchx {verb[0]}`: {ended.problem() or ended.err}"
    return ""


def _at_its_end(home: Path, *, saves: bool, within_s: float) -> str:
    (folder,) = job_folders(home)
    reader, began = JobReader(folder), time.monotonic()
    while (job := reader.read()) is None or job.state not in TERMINAL or _runs(job):
        if time.monotonic() > began + _PATIENCE_S:
            return f"it does not end: {job and job.state}"
        time.sleep(0.005)
    spent = time.monotonic() - began
    if saves and not (home / "saved").exists():
        return f"{job.state} after {spent:.2f} s, and nothing is saved"
    if saves and spent > within_s - 1:
        return f"{job.state} after {spent:.2f} s, at the deadline and not when nothing of it was left"
    if left := [p for p in proctree.marked(folder, job.facts.get("mark", "")) if p.pid != job.supervisor]:
        proctree.send_all(left, signal.SIGKILL)
        return f"{job.state}, and {len(left)} processes are left behind"
    return ""


def _runs(job: JobState) -> bool:
    return TASKS in job.facts and any(line.state == RUNNING for line in job.replicas)
