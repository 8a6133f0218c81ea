"""``python -m tests.mutation ROOM [--n 40] [--seed 1]``: plants changes one at a time, prints those that no test notices."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from tests.mutation import shell
from tests.mutation.changes import Change, changes, is_another_program
from tests.mutation.choice import Tests, batches, cost
from tests.mutation.house import candidates, copy_tree, room_folder, sources

ISOLATED = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
if os.getuid():
    ISOLATED.append("--map-root-user")
# Only the copy can be written to: a planted change may delete what it should not. The folder of ssh's sockets, which
# cannot lie deeper, is an empty one.
_CLOSED = """mount --bind "$0" "$0"; sockets=/tmp/torchx-ssh-$(id -u)
mkdir -p -m 700 "$sockets" && mount -t tmpfs -o mode=700 none "$sockets"
mount -o remount,bind,ro / ; cd "$1" && shift && exec "$@"
"""


class Worker:
    """A copy of the checkout, and a process in which tests are run in it."""

    def __init__(self, top: str, folder: str) -> None:
        self.copy = os.path.join(folder, "copy")
        copy_tree(top, self.copy)
        program = [sys.executable, "-B", "-m", "tests.mutation.worker"]
        self._log = open(os.path.join(folder, "log"), "wb")  # noqa: SIM115  # closed with the process
        self._process = subprocess.Popen(
            [*ISOLATED, "sh", "-c", _CLOSED, folder, self.copy, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,  # a test that signals its process group would reach us, namespaces or not
            env={**os.environ, "PYTHONPATH": self.copy, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """Hand it a job, wait for the answer.

        Raises:
            RuntimeError: it is gone.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"the worker has ended (it needs `unshare`, of Linux): {self.log()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def log(self) -> str:
        """The end of what it and its tests have printed."""
        with open(self._log.name, encoding="utf-8", errors="replace") as f:
            return f.read()[-2000:]

    def notices(self, change: Change, source: str, chosen: list[list[str]], tests: Tests) -> str:
        """What notices the change: a test, ``time``, or nothing."""
        path = os.path.join(self.copy, change.path)
        try:
            with open(path, "w", encoding="utf-8") as f:
                f.write(change.made(source))
            for nodes in chosen:
                answer = self.ask({"tests": nodes, "limit_s": 20.0 + 8.0 * cost(nodes, tests)})
                if answer["noticed"]:
                    return str(answer.get("by") or answer["noticed"])
        finally:
            with open(path, "w", encoding="utf-8") as f:
                f.write(source)
        return ""

    def close(self) -> None:
        self._process.communicate()
        self._log.close()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("room", help="`kit`, `runs`, ... or a path such as torchx/runs/store.py")
    parser.add_argument("--n", type=int, default=40, help="how many changes")
    parser.add_argument("--seed", type=int, default=1, help="the same seed chooses the same changes")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at the same time")
    parser.add_argument("--at", default="", help="all changes of these lines instead: `12` or `12-20`; ROOM is a file")
    args = parser.parse_args(argv)
    top = os.getcwd()
    started = time.monotonic()
    folder = room_folder(top, args.room)
    texts = {path: _read(os.path.join(top, path)) for path in sources(top, folder, (".py", ".sh"))}
    if args.at:
        first, _, last = args.at.partition("-")
        planted = [c for c in _all(texts) if int(first) <= c.line <= int(last or first)]
    else:
        planted = choose(texts, args.n, args.seed)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        workers = []
        for number in range(max(1, args.jobs)):
            place = os.path.join(scratch, str(number))
            os.mkdir(place)
            workers.append(Worker(top, place))
        try:
            tests = mapped(workers, top, folder)
            print(f"{folder}: {len(tests)} tests, {len(planted)} changes, seed {args.seed}", flush=True)
            survivors = survived(workers, planted, texts, tests, top)
        finally:
            for worker in workers:
                worker.close()
    for change in sorted(survivors):
        print(f"\n{change.path}:{change.line}: {change.kind}\n{change.diff(texts[change.path])}")
    noticed = len(planted) - len(survivors)
    print(f"\n{noticed} of {len(planted)} noticed ({time.monotonic() - started:.0f} s)")
    return 0


def choose(texts: dict[str, str], n: int, seed: int) -> list[Change]:
    """``n`` changes of these sources; the same ones for the same sources and seed."""
    every = _all(texts)
    random.Random(seed).shuffle(every)
    chosen: list[Change] = []
    while every and len(chosen) < n:
        change = every.pop()
        if _is_program(texts[change.path], change):
            chosen.append(change)
    return chosen


def mapped(workers: list[Worker], top: str, folder: str) -> Tests:
    """Which lines each test runs. Kept below ``.cache`` for each test file, until it or torchx changes."""
    code = hashlib.sha256("".join(_read(os.path.join(top, p)) for p in sources(top, "torchx")).encode()).hexdigest()
    tests: Tests = {}
    stale = []
    for path in candidates(top, folder):
        kept = _kept(top, path, code)
        if os.path.exists(kept):
            tests.update(json.loads(_read(kept)))
        else:
            stale.append(path)

    def one(worker: Worker, path: str) -> None:
        answer = worker.ask({"map": [path]})
        if "tests" not in answer:
            raise RuntimeError(f"`{path}` cannot be run: {worker.log()}")
        found = answer["tests"]
        if answer["failed"]:
            print(f"left out, as they fail unchanged or are skipped: {', '.join(answer['failed'])}", flush=True)
        tests.update(found)
        with open(_kept(top, path, code), "w", encoding="utf-8") as f:
            json.dump(found, f)

    _share(workers, stale, one)
    return tests


def survived(
    workers: list[Worker], planted: list[Change], texts: dict[str, str], tests: Tests, top: str
) -> list[Change]:
    """Those that no test notices."""
    survivors: list[Change] = []

    def one(worker: Worker, change: Change) -> None:
        by = worker.notices(change, texts[change.path], batches(change, tests, top), tests)
        print(f"{change.path}:{change.line}: {change.kind}: {by or 'NOT NOTICED'}", flush=True)
        if not by:
            survivors.append(change)

    _share(workers, planted, one)
    return survivors


def _share(workers: list[Worker], work: list[Any], do: Any) -> None:
    left: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for item in work:
        left.put(item)
    problems: list[BaseException] = []

    def run(worker: Worker) -> None:
        try:
            while True:
                do(worker, left.get_nowait())
        except queue.Empty:
            pass
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def _all(texts: dict[str, str]) -> list[Change]:
    return [
        change
        for path, text in sorted(texts.items())
        for change in (shell.changes(text, path) if path.endswith(".sh") else changes(text, path))
    ]


def _is_program(source: str, change: Change) -> bool:
    if change.path.endswith(".sh"):
        return shell.is_script(change.made(source))
    return is_another_program(source, change)


def _kept(top: str, path: str, code: str) -> str:
    conftest = os.path.join(os.path.dirname(path), "conftest.py")
    looked = (path, "tests/conftest.py", conftest, "tests/mutation/worker.py")
    state = code + "".join(_read(os.path.join(top, p)) for p in looked)
    folder = os.path.join(top, ".cache", "mutation")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, f"{path.replace('/', '.')}-{hashlib.sha256(state.encode()).hexdigest()[:16]}.json")


def _read(path: str) -> str:
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as f:
        return f.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
