"""Two versions of torchx on one registry: a newer one's file is left alone, and what was set aside is taken back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.torture.calls import Call, torchx
from tests.torture.rows import Round
from torchx.runs import NewRun, RunRegistry, schema
from torchx.supervisor import proctree

_READERS = 5
_RUNS = 3
_VERBS = (
    ["list"],
    ["list", "--json"],
    ["run", "--wait", "-s", "local_cwd", "utils.echo"],
    ["status", "@last"],
    ["log", "@last"],
    ["delete", "@last"],
)


def versions(rng: random.Random, place: Path) -> Iterator[str | Round]:
    """The registry of a newer version, and files set aside by older ones, under verbs and processes that are killed."""
    for number in range(1 << 30):
        home = place / str(number)
        home.mkdir()
        yield rng.choice((_of_a_newer, _set_aside))(rng, str(home / "runs.db"))


def _of_a_newer(rng: random.Random, path: str) -> Round:
    said = _add(path, "a", rng.randrange(1, 9))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + rng.randrange(1, 3)}")
    before = Path(path).read_bytes()
    env = {"TORCHX_HOME": os.path.dirname(path), "TORCHX_ERROR_FILE": ""}
    verbs = rng.choices(_VERBS, k=2)
    calls = [torchx(verb, env, hasty=False) for verb in verbs]
    reached = _kill(rng, calls, 0.2)
    for verb, call in zip(verbs, calls, strict=True):
        problem = call.ended().problem()
        if problem and call.pid not in reached:
            return Round(f"`torchx {' '.join(verb)}` beside a newer registry: {problem}", ())
    moved = _beside(path)
    if moved or Path(path).read_bytes() != before:
        return Round(f"{verbs}: a newer registry was {f'moved to {moved}' if moved else 'written to'}", ())
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION}")
    return Round(_lost(path, said), ("", *("verb" for _ in reached)))


def _set_aside(rng: random.Random, path: str) -> Round:
    said = []
    for second in range(rng.randrange(1, 4)):
        said += _add(path, f"aside-{second}", rng.randrange(1, _RUNS + 1))
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.rename(path + end, f"{path}.newer-20261129T1200{second:02}-{rng.randrange(1, 9999)}{end}")
    if rng.random() < 0.7:
        said += _add_as_older(path, rng.randrange(1, schema.VERSION + 1))
    readers = [Call(partial(_use, path, k), hasty=False) for k in range(_READERS)]
    reached = _kill(rng, readers, 0.7)
    for reader in readers:
        ended = reader.ended()
        said += ended.out.split()
        if ended.code and reader.pid not in reached:
            return Round(f"a reader of what was set aside: exit code {ended.code}: {ended.err[-400:]}", ())
    problem = _lost(path, said)
    if not problem and (left := _beside(path)):
        problem = f"{left} was not taken back"
    return Round(problem, ("", *("reader" for _ in reached)))


def _kill(rng: random.Random, calls: list[Call], within_s: float) -> set[int]:
    """Kills one or two of them; returns those that were alive."""
    time.sleep(rng.random() * within_s)
    doomed = {call.pid for call in rng.sample(calls, rng.randrange(1, 3))}
    alive = {pid for pid in doomed if proctree.start_ticks(pid) > 0}
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)  # it is a zombie at least
    return alive


def _add(path: str, name: str, count: int) -> list[str]:
    registry = RunRegistry(path)
    handles = [f"local_cwd://torchx/{name}-{k}" for k in range(count)]
    for handle in handles:
        run_id = registry.begin(NewRun(scheduler="local_cwd", session="torchx", name=name, handle=handle))
        registry.submitted(run_id, handle)
    registry.close()
    return handles


def _add_as_older(path: str, version: int) -> list[str]:
    from tests.runs.test_run_registry_schema import file_of_version

    file_of_version(path, version)
    return ["local_cwd://torchx/old-1", "local_cwd://torchx/old-2"]


def _use(path: str, k: int) -> int:
    for handle in _add(path, f"since-{k}", k % 2):
        os.write(1, f"{handle}\n".encode())
    RunRegistry(path).list()
    return 0


def _lost(path: str, said: list[str]) -> str:
    known = Counter(run.handle for run in RunRegistry(path).list())
    lost, twice = sorted(set(said) - known.keys()), [handle for handle, n in known.items() if n > 1]
    return f"lost: {lost}" * bool(lost) or f"twice: {twice}" * bool(twice)


def _beside(path: str) -> list[str]:
    """What was moved aside."""
    folder, name = os.path.split(path)
    ends = (".newer", ".damaged", ".old")
    return [file for file in os.listdir(folder) if file.startswith(f"{name}.") and any(end in file for end in ends)]
