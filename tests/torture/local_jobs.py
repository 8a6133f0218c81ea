"""Local jobs and the run registry under threads, forks, full disks and kills of writers."""

from __future__ import annotations

import contextlib
import glob
import os
import random
import resource
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.torture.calls import Call, torchx
from tests.torture.rows import Round
from torchx.supervisor import proctree
from torchx.supervisor.reader import JobReader
from torchx.supervisor.statefile import TERMINAL, JobState, StateFileError, read_state

_SETTLES_S = 45.0


def job_folders(home: Path) -> list[str]:
    return [os.path.dirname(path) for path in glob.glob(f"{home}/local/*/*/state")]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def raw(folder: str) -> JobState | None:
    """The state as it is on the disk: a reader of torchx would end the job itself if nobody else has."""
    try:
        return read_state(f"{folder}/state")
    except (OSError, StateFileError):
        return None


def at_its_end(folder: str, *, alone: bool = False) -> JobState | None:
    """The state of a job that has ended; ``alone``: without the help of a reader. None if it does not end."""
    deadline = time.monotonic() + _SETTLES_S
    reader = JobReader(folder)
    while time.monotonic() < deadline:
        job = raw(folder) if alone else reader.read()
        if job is not None and job.state in TERMINAL:
            return job
        time.sleep(0.01)
    return None


def rows(rng: random.Random, place: Path, *, writers: int = 16, each: int = 625) -> Iterator[str | Round]:
    """Many processes write runs into one registry, some of them are killed: no row that was acknowledged is missing."""
    for number in range(1 << 30):
        path = str(place / f"{number}.db")
        calls = [Call(partial(_write_rows, path, writer, each), hasty=False) for writer in range(writers)]
        doomed = rng.choice(calls)
        time.sleep(rng.random() * 0.5)
        reached = proctree.start_ticks(doomed.pid) > 0
        os.kill(doomed.pid, signal.SIGKILL)  # it is a zombie at least
        said: set[str] = set()
        for call in calls:
            ended = call.ended(600.0)
            said.update(ended.out.split())
            if ended.code and call is not doomed:
                yield f"a writer ended with {ended.code}: {ended.err[-400:]}"
        with contextlib.closing(sqlite3.connect(path)) as db:
            known = {handle for (handle,) in db.execute("SELECT handle FROM runs")}
            (sound,) = db.execute("PRAGMA integrity_check").fetchone()
        if sound != "ok":
            yield f"the registry is damaged: {sound}"
        for handle in sorted(said - known):
            yield f"`{handle}` was acknowledged and is not on record"
        yield Round("", ("writer",) if reached else (), len(said & known))


def _write_rows(path: str, writer: int, count: int) -> int:
    from torchx.runs import NewRun, RunRegistry
    from torchx.specs.api import AppState

    registry = RunRegistry(path)
    for k in range(count):
        run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
        handle = f"x://s/a-{writer}-{k}"
        registry.submitted(run_id, handle)
        if run_id:
            os.write(1, f"{handle}\n".encode())
        registry.saw(handle, AppState.SUCCEEDED)
    return 0


def threads(rng: random.Random, place: Path, *, count: int = 4) -> Iterator[str]:
    """One Runner in several threads, each with a job of its own: each gets its own state and its own lines."""
    for number in range(1 << 30):
        home = str(place / str(number))
        yield Call(partial(_in_threads, count), {"TORCHX_HOME": home}, hasty=False).ended().problem()


def _in_threads(count: int) -> int:
    from torchx.runner import get_runner
    from torchx.specs import AppDef, AppState, Role

    problems: list[str] = []

    def one(word: str) -> None:
        try:
            app = AppDef("a", [Role("r", "", entrypoint="sh", args=["-c", f"echo {word}; exit {len(word) % 2}"])])
            handle = runner.run(app, "local_cwd")
            status = runner.wait(handle, wait_interval=0.05)
            expected = AppState.FAILED if len(word) % 2 else AppState.SUCCEEDED
            if status is None or status.state is not expected:
                problems.append(f"{word}: {status}")
            if "".join(runner.log_lines(handle, "r")).strip() != word:
                problems.append(f"{word}: the lines of another")
        except BaseException as e:
            problems.append(f"{word}: {e!r}")

    with get_runner() as runner:
        started = [threading.Thread(target=one, args=("w" * (k + 1),)) for k in range(count)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
    for problem in problems:
        os.write(2, f"{problem}\n".encode())
    return 99 if problems else 0


def forks(rng: random.Random, place: Path, *, lines: int = 200) -> Iterator[str]:
    """A process forks while it reads the logs of a job that runs: parent and children read all lines, each once."""
    for number in range(1 << 30):
        env = {"TORCHX_HOME": str(place / str(number))}
        at = sorted(rng.randrange(lines) for _ in range(3))
        yield Call(partial(_forks_at, at, lines), env, hasty=False).ended().problem()


def _forks_at(at: list[int], lines: int) -> int:
    from torchx.runner import get_runner
    from torchx.specs import AppDef, Role

    script = f"i=0; while [ $i -lt {lines} ]; do echo $i; i=$((i+1)); done"
    expected = [str(i) for i in range(lines)]
    children = []
    with get_runner() as runner:
        handle = runner.run(AppDef("a", [Role("r", "", entrypoint="sh", args=["-c", script])]), "local_cwd")
        read = []
        for k, line in enumerate(runner.log_lines(handle, "r", should_tail=True)):
            read.append(line.strip())
            if k in at:
                child = Call(lambda: _reads(runner, handle, expected), hasty=False)
                children.append(child)
    bad = [ended.err for ended in (child.ended() for child in children) if ended.code]
    if read != expected or bad:
        os.write(2, f"parent read {len(read)} of {lines} lines; children: {bad}\n".encode())
        return 99
    return 0


def _reads(runner: object, handle: str, expected: list[str]) -> int:
    found = [line.strip() for line in runner.log_lines(handle, "r", should_tail=True)]  # type: ignore[attr-defined]
    status = runner.wait(handle, wait_interval=0.05)  # type: ignore[attr-defined]
    if found != expected or str(status.state) != "SUCCEEDED":
        os.write(2, f"a child read {len(found)} lines: {status}".encode())
        return 99
    return 0


_VERBS = (
    ["run", "--wait", "-s", "local_cwd", "utils.echo", "--msg", "x" * 3000],
    ["list"],
    ["status", "@last"],
    ["describe", "--json", "@last"],
    ["log", "@last"],
    ["delete", "@last"],
)


def disks(rng: random.Random, place: Path) -> Iterator[str]:
    """Each verb where no file may become longer than some bytes, as on a full disk: one line and a documented code."""
    env = {"TORCHX_HOME": str(place / "home")}
    torchx(list(_VERBS[0]), env).ended()
    for _ in range(1 << 30):
        verb = rng.choice(_VERBS)
        limit = rng.choice((0, 1, 512, 4096, 8192, 40_000))

        def work(verb: list[str] = verb, limit: int = limit) -> int:
            from torchx.cli.main import main

            sys.dont_write_bytecode = True  # Python 3.11 keeps a file that it could write in part only
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            main(list(verb))
            return 0

        problem = _outside_of_files(work, env)
        yield problem and f"`torchx {' '.join(verb)[:60]}` with {limit} bytes: {problem}"


def _outside_of_files(work: Callable[[], int], env: dict[str, str]) -> str:
    """As `Call`, with pipes for the output: a file's length is what is limited."""
    read, write = os.pipe()

    call = Call(work, env, hasty=False, output=write)
    os.close(write)
    said = bytearray()
    os.set_blocking(read, True)
    pump = threading.Thread(target=lambda: said.extend(b"".join(iter(lambda: os.read(read, 1 << 16), b""))))
    pump.start()
    ended = call.ended()
    pump.join(5)
    os.close(read)
    return ended._replace(err=said.decode("utf-8", "replace")).problem()
