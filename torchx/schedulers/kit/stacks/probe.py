"""Samples the stacks of a replica's ranks. This file runs inside the replica, with ``python -c``.

It uses only the standard library of Python 3.7, the least that a replica may have, and prints one line of JSON per
rank, which :mod:`torchx.schedulers.kit.stacks` parses. It reads processes with py-spy if that is installed and may
attach, else with ``faulthandler``, by a signal that the program offers through the name of an open file: see
:mod:`torchx.distributed.stacks`.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Frames = list[list[Any]]

MARKS = ("TORCHX_LOCAL_JOB", "TORCHX_LOCAL_REPLICA", "TORCHX_JOB_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "LSB_JOBID")
"""All processes of a replica have the same values of these variables."""
OFFER = re.compile(r"/memfd:torchx-(stacks|calls)-(\d+)")
BROUGHT: tuple[str, ...] = ()
"""Additional paths of py-spy. :func:`torchx.schedulers.kit.stacks.probe_text` sets it."""
NO_SPY = "py-spy is not installed there"
_AGENTS = ("torchrun", "torch.distributed.run", "torch/distributed/run.py", "torch.distributed.launch")
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python\d|^<")
_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.M)
_PAUSES_S = (0.0, 0.13, 0.37, 0.23, 0.31, 0.17, 0.29, 0.11)  # irregular, to not be in step with a loop
_ANSWER_S = 2.0
_SPY_S = 20.0
_MAX_WORKERS = 4


class Process:
    """A process as shown in ``/proc``. Raises OSError if it is gone or belongs to another user."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = [entry.partition(b"=") for entry in file.read().split(b"\0")]
        self.env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in entries}
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            self.argv = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        self.parent, self.began = int(self.stat()[1]), int(self.stat()[19])
        self.exe = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        self.no_spy = self.why = self.by = ""
        self.looks: list[Frames] = []
        self.calls: list[dict[str, Any]] = []
        self.states = ""

    def stat(self, thread: str = "") -> list[str]:
        """Return the fields of its ``stat`` file from the state on."""
        with open(f"/proc/{self.pid}{thread}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2].split()

    def state(self) -> str:
        try:
            return self.stat()[0]
        except OSError:
            return ""

    def ticks(self) -> int:
        """CPU time of its main thread, in ticks."""
        try:
            return sum(map(int, self.stat(f"/task/{self.pid}")[11:13]))
        except OSError:
            return 0

    def is_agent(self) -> bool:
        return any(name in word for word in self.argv[:4] for name in _AGENTS)

    def is_python(self) -> bool:
        return self.exe.startswith(("python", "pypy"))

    def look(self) -> None:
        """Sample its stack, innermost frame first."""
        state = self.state()
        self.states += state
        if not self.is_python():
            self.why = f"it runs `{self.exe}`, not Python"
            return
        frames = self._spy(state) if not self.no_spy else []
        if not frames and state not in ("T", "t", "Z", ""):
            frames = self._ask()
        if frames:
            self.why = ""
            self.looks.append([[*frame, *_source(frame[1], frame[2])] for frame in frames])

    def _spy(self, state: str) -> Frames:
        import json
        import shutil
        import subprocess

        beside = (os.path.dirname(path) for path in (self.argv[0], sys.executable))
        places = [os.environ.get("PATH", os.defpath), *filter(None, beside)]
        spy = shutil.which("py-spy", path=os.pathsep.join(places)) or _brought()
        if spy is None:
            self.no_spy = self.why = NO_SPY
            return []
        words = [spy, "dump", "--json", "--pid", str(self.pid), *(["--nonblocking"] if state in ("T", "t") else [])]
        try:
            done = subprocess.run(words, capture_output=True, timeout=_SPY_S, check=True)
            threads = json.loads(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError) as e:
            said = (getattr(e, "stderr", None) or str(e).encode()).decode("utf-8", "replace")
            lines = [line for line in said.splitlines() if line.strip() and "RUST_BACKTRACE" not in line]
            self.no_spy = self.why = f"py-spy failed: {lines[-1].strip() if lines else 'no reason given'}"
            return []
        self.by = "py-spy"
        mains = [t for t in threads if t.get("os_thread_id") == self.pid or t.get("thread_name") == "MainThread"]
        frames = (mains or threads or [{"frames": []}])[0]["frames"]
        return [[f["name"].rpartition(".")[2], f["filename"], f["line"]] for f in frames]

    def _ask(self) -> Frames:
        """Sample its stack with the signal that it offers, if it still handles that; or else it would be killed."""
        try:
            offers = self._offers("stacks")
            if not offers:
                self.why = self.no_spy + ", and the program does not import torchx.distributed"
                return []
            number, path = offers[0]
            with open(f"/proc/{self.pid}/status", encoding="utf-8", errors="replace") as file:
                caught = int(re.search(r"^SigCgt:\s*(\w+)", file.read(), re.M).group(1), 16)  # type: ignore[union-attr]
            if not caught >> (number - 1) & 1:
                self.why = f"it no longer handles signal {number}"
                return []
            text = self._answer(path, partial(os.kill, self.pid, number))
        except OSError as e:
            self.why = f"it cannot be read: {e.strerror}"
            return []
        if not text:
            self.why = f"it does not answer signal {number}"
            return []
        self.by = "faulthandler"
        threads = re.split(r"^(?=Thread 0x|Current thread |Stack )", text, flags=re.M)
        mains = [t for t in threads if t.startswith("Current")] or threads[-1:]
        return [[name.rpartition(".")[2], file, int(line)] for file, line, name in _LINE.findall(mains[-1])]

    def tell(self) -> None:
        """Read the latest collectives of its process groups, if it offers them."""
        import json

        self.calls.append({})
        try:
            for number, path in self._offers("calls") if self.state() not in ("T", "t", "Z", "") else ():
                with open(f"/proc/{self.pid}/fd/{number}", "wb", buffering=0, opener=_at_once) as pipe:
                    self.calls[-1] = dict(json.loads(self._answer(path, partial(pipe.write, b"?"))))
        except (OSError, ValueError):
            pass  # it takes part in no collective, or is ending

    def _offers(self, kind: str) -> list[tuple[int, str]]:
        """Return the signals or descriptors that it offers, and the files to which it writes the response."""
        found = []
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            path = f"/proc/{self.pid}/fd/{fd}"
            with suppress(FileNotFoundError):  # files come and go
                match = OFFER.match(os.readlink(path))
                found += [(int(match.group(2)), path)] if match and match.group(1) == kind else []
        return found

    def _answer(self, path: str, ask: Callable[[], object]) -> str:
        with open(path, "r+b") as file:
            file.truncate(0)
            ask()
            deadline, before = time.monotonic() + _ANSWER_S, b""
            while time.monotonic() < deadline:
                time.sleep(0.02)
                file.seek(0)
                text = file.read()
                if text and text == before:
                    return text.decode("utf-8", "replace")
                before = text
        return ""

    def report(self) -> dict[str, Any]:
        return {"pid": self.pid, "state": self.state(), "by": self.by, "why": self.why, "looks": self.looks}


def _source(file: str, line: int) -> list[str]:
    """Return the text of a line of the user's own code."""
    return [] if _LIBRARY.search(file) else [linecache.getline(file, line).strip()[:200]]


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _brought() -> str | None:
    """Return a py-spy that was copied here, unless another user could have written it."""
    for path in BROUGHT:
        try:
            found = os.stat(path)
        except OSError:
            continue
        if found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022 and os.access(path, os.X_OK):
            return path
    return None


def find() -> tuple[dict[int, Process], list[Process]]:
    """Return the processes of this replica, and its ranks, or its main process if there are none."""
    mine = {name: os.environ[name] for name in MARKS if name in os.environ}
    found: dict[int, Process] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            process = Process(int(name))
        except OSError:
            continue
        found[process.pid] = process
    pid = os.getpid()
    while pid in found:  # exclude this process and its parents
        pid = found.pop(pid).parent
    found = {p.pid: p for p in found.values() if all(p.env.get(name) == mine[name] for name in mine)}
    ranks: dict[str, list[Process]] = {}
    for process in found.values():
        rank, parent = process.env.get("RANK", ""), found.get(process.parent)
        is_top = parent is None or parent.is_agent() or parent.env.get("RANK") != rank
        if rank.isdigit() and is_top and not process.is_agent():
            ranks.setdefault(rank, []).append(process)
    if not ranks:
        ranks[""] = [p for p in found.values() if p.parent not in found]
    tops = [min(group, key=lambda p: p.began) for group in ranks.values() if group]
    return found, [_python_of(top, found) for top in tops]


def children(process: Process, found: dict[int, Process]) -> list[Process]:
    return sorted((p for p in found.values() if p.parent == process.pid), key=lambda p: p.began)


def _python_of(top: Process, found: dict[int, Process]) -> Process:
    """Return the first process that runs Python among ``top`` and its descendants; ``top`` if there is none."""
    line = [top]
    for process in line:
        if process.is_python():
            return process
        line += children(process, found)
    return top


def look_at(processes: list[Process], pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
    """Sample all processes several times, to find where a slow one is most of the time."""
    import threading

    for pause_s in pauses_s:
        time.sleep(pause_s)
        threads = [threading.Thread(target=process.look) for process in processes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main() -> None:
    """Print what the ranks are doing."""
    import json
    from concurrent.futures import ThreadPoolExecutor

    _, ranks = find()
    with ThreadPoolExecutor(max(len(ranks), 1)) as pool:
        list(pool.map(Process.tell, ranks))
        used, since = {p.pid: p.ticks() for p in ranks}, time.monotonic()
        look_at(ranks)
        if any(look != rank.looks[0] for rank in ranks for look in rank.looks):
            look_at(ranks, _PAUSES_S * 2)  # more samples to see which rank is slow
        spent_s = time.monotonic() - since
        list(pool.map(Process.tell, ranks))
    found, _ = find()  # again, since workers may have been restarted
    for rank in ranks:
        busy = (rank.ticks() - used[rank.pid]) / os.sysconf("SC_CLK_TCK") / spent_s
        wants = sum(map(rank.states.count, "RD")) / max(len(rank.states), 1)  # runnable, perhaps without a processor
        busy = max(busy, wants)
        loading = rank.looks and any("torch/utils/data/" in frame[1] for frame in rank.looks[-1])
        workers = [p for p in children(rank, found) if p.is_python()][:_MAX_WORKERS] if loading else []
        look_at(workers, (0.0,))
        row = {"host": os.uname().nodename, "busy": round(busy, 2), "is_agent": rank.is_agent()}
        after = rank.calls[1] or rank.calls[0]
        before = rank.calls[0] or after  # a response may be missing on a busy machine
        row["calls"] = {group: calls for group, calls in after.items() if before.get(group) == calls}  # unchanged ones
        for key in ("RANK", "WORLD_SIZE"):
            value = rank.env.get(key, "")
            row[key.lower()] = int(value) if value.isdigit() else None
        row.update(rank.report(), workers=[worker.report() for worker in workers])
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
