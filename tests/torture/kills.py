"""Local jobs whose processes are killed at any moment; what is left must end and record them, without anybody's help."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from tests.torture.calls import Call
from tests.torture.local_jobs import at_its_end, job_folders, lines, raw
from tests.torture.rows import Round
from torchx.supervisor import proctree
from torchx.supervisor.reader import send_command
from torchx.supervisor.statefile import (
    CANCELLED,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TERMINAL,
    JobState,
    has_supervisor,
)

_SETS = [s for n in (1, 2, 3) for s in combinations(("supervisor", "guardian", "replica"), n)]
_ALONE_S = 15.0  # for what a supervisor or a guardian does at once on a machine that has nothing else to do
_APPEARS_S = 10.0


class Script(NamedTuple):
    """What a replica runs. ``code``: its exit code; None: it runs until it is ended."""

    text: str
    code: int | None


SHORT = (
    Script("true", 0),
    Script("sleep 0.05", 0),
    Script("sleep 0.1; exit 3", 3),
    Script("trap '' TERM; sleep 0.1", 0),
    Script("env -i setsid -f sleep 1000; sleep 0.1", 0),
    Script("(setsid sleep 1000 &); exit 3", 3),
)
ENDLESS = (
    Script("exec sleep 1000", None),
    Script("sleep 1000 & wait", None),
    Script("env -i setsid -f sleep 1000; exec sleep 1000", None),
    Script("(setsid sleep 1000 &); exec sleep 1000", None),
)


def kills(rng: random.Random, place: Path) -> Iterator[Round]:
    """Jobs, and `kill -9` of a supervisor, a guardian or a replica; of the caller, too, or not."""
    left: list[tuple[str, ...]] = []
    for number in range(1 << 30):
        home = place / str(number)
        home.mkdir()
        left = left or rng.sample(_SETS, len(_SETS))
        made = _killed_at_some_moment(rng, home, left[-1])
        if made.reached:
            left.pop()  # so that each set has its turn soon
        yield made


def _killed_at_some_moment(rng: random.Random, home: Path, victims: tuple[str, ...]) -> Round:
    script = rng.choice(ENDLESS if rng.random() < 0.6 else SHORT)
    count, replicas, caller_dies = rng.choice((1, 1, 3)), rng.choice((1, 1, 2)), rng.random() < 0.3
    what = (
        f"{count} x {replicas} x `{script.text}` under kills of {', '.join(victims)}{' and the caller' * caller_dies}"
    )
    env = {"TORCHX_HOME": str(home), "TORCHX_ERROR_FILE": ""}
    call = Call(partial(_submits, home, script.text, count, replicas), env, hasty=False)
    folder = _appears(call, home, rng.randrange(count))
    if folder:
        _at_some_moment(rng, folder)
    if caller_dies:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(call.pid, signal.SIGKILL)
    killed = _kill(folder, victims) if folder else {}
    ended = call.ended()
    problem = ""
    if ended.code is None:
        problem = "the caller hangs"
    elif ended.code == TWICE or (ended.code != 0 and not killed and not caller_dies):
        problem = f"exit code {ended.code} of the caller"
    problem = f"{problem}: {ended.err[-300:]}" if problem else _settled(home, script, killed)
    for folder in job_folders(home) if problem else ():
        _end(folder)
    return Round(problem and f"{what}: {problem}", tuple(sorted(set(killed.values()))))


# -- the caller ------------------------------------------------------------------------------------

TWICE = 99
"""The exit code of a caller whose launcher gave more answers than it was asked."""


class Answers:
    """Counts what the launcher of this process answers to requests; each has one answer."""

    def __init__(self) -> None:
        from torchx.supervisor import client

        self._launcher, self._of = client.shared, client.LauncherClient
        self._exchange = self._of._exchange
        self.taken = 0

    def __enter__(self) -> Answers:
        real, counted = self._exchange, self

        def exchange(self: Any, message: bytes, meanwhile: Any) -> bytes:
            answer = real(self, message, meanwhile)
            counted.taken += answer.count(b"K\n")
            return answer

        self._of._exchange = exchange  # type: ignore[method-assign]  # sees each answer
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._of._exchange = self._exchange  # type: ignore[method-assign]

    def left(self, within_s: float = 0.05) -> int:
        """Answers that nobody has waited for."""
        deadline, found = time.monotonic() + within_s, b""
        while self._launcher._answers >= 0 and time.monotonic() < deadline:
            os.set_blocking(self._launcher._answers, False)
            with contextlib.suppress(BlockingIOError):
                found += os.read(self._launcher._answers, 1 << 16)
            time.sleep(0.005)
        return found.count(b"K\n")


def _submits(home: Path, script: str, count: int, replicas: int) -> int:
    """Submits jobs by one launcher, one after the other."""
    from torchx.runner import get_runner
    from torchx.specs import AppDef, Role

    script = f'echo "$TORCHX_LOCAL_JOB $TORCHX_LOCAL_REPLICA" >> {home}/runs; {script}'
    role = Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=replicas)
    submitted = code = 0
    with Answers() as answers, get_runner() as runner:
        for _ in range(count):
            try:
                runner.run(AppDef("a", [role]), "local_cwd")
                submitted += 1
            except Exception as e:  # the launcher and its supervisors may have been killed
                os.write(2, f"{e}\n".encode())
                code = 1
        extra = answers.taken + answers.left() - submitted
    if extra > 0:
        os.write(2, f"the launcher answered {submitted} requests {submitted + extra} times\n".encode())
        return TWICE
    return code


# -- kills -----------------------------------------------------------------------------------------


def _appears(call: Call, home: Path, number: int) -> str:
    """The folder of this job of a caller, in the order of their submission; empty when the caller ends before."""
    deadline = time.monotonic() + _APPEARS_S
    while time.monotonic() < deadline:
        ended = proctree.start_ticks(call.pid) == 0
        found = sorted(job_folders(home), key=lambda folder: os.stat(f"{folder}/control").st_ctime_ns)
        if len(found) > number:
            return found[number]
        if ended:
            break
        time.sleep(0.0005)
    return ""


def _at_some_moment(rng: random.Random, folder: str) -> None:
    """Waits: until it has just begun, or until a replica runs, and then up to the end of a short one."""
    if rng.random() < 0.3:
        time.sleep(rng.random() * 0.01)
        return
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        job = raw(folder)
        if job is not None and (job.state in TERMINAL or any(line.ticks for line in job.replicas)):
            break
        time.sleep(0.001)
    time.sleep(rng.choice((0.0, 0.05, 0.1)) + rng.random() * 0.02)


def _kill(folder: str, victims: tuple[str, ...]) -> dict[int, str]:
    """Which processes got the signal, all of them alive and of a job that had not ended: pid -> what it is."""
    job = raw(folder)
    if job is None or job.state in TERMINAL:
        return {}
    pids = {"supervisor": [job.supervisor], "guardian": [job.guardian[0]], "replica": [r.pid for r in job.replicas[:1]]}
    return {pid: victim for victim in victims for pid in pids[victim] if pid > 1 and sent(pid)}


def sent(pid: int) -> bool:
    """Whether SIGKILL went to a process that was alive."""
    process = proctree.read_process(pid)
    if process is None or process.state in "ZX":
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


# -- what must hold --------------------------------------------------------------------------------


def _settled(home: Path, script: Script, killed: dict[int, str]) -> str:
    """What is wrong with the jobs when all has come to rest."""
    if twice := [start for start, n in Counter(lines(home / "runs")).items() if n > 1]:
        return f"{twice} ran twice"
    for folder in job_folders(home):
        if problem := _at_rest(folder, script, killed):
            return problem
    return ""


def _at_rest(folder: str, script: Script, killed: dict[int, str]) -> str:
    deadline = time.monotonic() + _ALONE_S
    while (job := raw(folder)) is None or job.state not in TERMINAL:
        lost = job is not None and job.supervisor in killed and not has_supervisor(folder)
        if job is not None and lost and job.guardian[0] in killed:
            job = at_its_end(folder)  # nobody is left but a reader
            if job is None:
                return "no reader ends it"
            break
        if time.monotonic() > deadline:
            return f"{'the guardian' if lost else 'the supervisor'} records no end: {job and job.state}"
        if script.code is None and not lost and not _is_a_victim(job, killed):
            send_command(folder, "cancel")
        time.sleep(0.01)
    return _wrong_verdict(job, script, killed) or _left_behind(folder, job)


def _is_a_victim(job: JobState | None, killed: dict[int, str]) -> bool:
    return job is not None and any(line.pid in killed for line in job.replicas)


def _wrong_verdict(job: JobState, script: Script, killed: dict[int, str]) -> str:
    states = [line.state for line in job.replicas]
    if {PENDING, RUNNING} & set(states):
        return f"{job.state}, and its replicas are {states}"
    if job.state == SUCCEEDED and script.code != 0:
        return "SUCCEEDED"
    if job.supervisor in killed or _is_a_victim(job, killed):
        return ""
    expected = CANCELLED if script.code is None else FAILED if script.code else SUCCEEDED
    first = job.replicas[max(job.first, 0)]
    if job.state != expected or (script.code is not None and first.exit != script.code):
        return f"{job.state} with exit code {first.exit}, not {expected}: {job.msg}"
    return ""


def _left_behind(folder: str, job: JobState) -> str:
    deadline = time.monotonic() + 5.0
    while left := [p for p in proctree.marked(folder, job.facts.get("mark", "")) if p.pid != job.supervisor]:
        if time.monotonic() > deadline:
            return f"{job.state}, and {len(left)} processes are left behind"
        time.sleep(0.01)
    return ""


def _end(folder: str) -> None:
    """Kills all of a job that nobody has ended."""
    job = raw(folder)
    mark = job.facts.get("mark", "") if job else ""
    while left := proctree.marked(folder, mark):
        proctree.send_all(left, signal.SIGKILL)
        time.sleep(0.01)
