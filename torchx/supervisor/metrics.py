"""Samples the resource usage of replicas (memory, processors, GPUs) into one small file per replica.

``metrics.jsonl`` has a line with the limits, then one line per sample: ``t`` (Unix time), ``a`` (attempt), ``cpu``
(processors in use since the last sample), ``mem`` (bytes), ``gpu`` (per GPU: percent, bytes used, bytes in total).

The supervisor of a local job uses :class:`Sampler`. On nodes without torchx this file runs as a program, with only the
standard library of Python 3.8: ``python3 metrics.py SECONDS PID FILE`` samples a replica of a Slurm job.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Iterable, Mapping
    from typing import Any

    Gpu = tuple[int, int, int]

MAX_SAMPLES = 480
"""If a file has more samples, its older half is thinned out. At the usual rate the last hour is always complete."""

_FIRST_S = 1.0  # torchx.settings.FIRST_SAMPLE_S; intervals double from there, so that short jobs have samples, too
_SHORT_S = 60.0  # replicas that ran no longer get a sample of their end: the kernel knows the peak of their memory
_MOMENT_S = 0.5
_SHARE = 1000  # sampling takes at most 1/1000 of the time, however many processes there are
_ANSWER_S = 1.0
_MIB = 1 << 20
_QUERY = ("index", "uuid", "utilization.gpu", "memory.used", "memory.total")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Root:
    """The first process of a replica: its start (Unix time), the file for its samples, and the GPUs that it may use."""

    def __init__(self, pid: int, started: float, attempt: int, path: str, devices: str | None) -> None:
        self.pid = pid
        self.started = started
        self.attempt = attempt
        self.path = path
        self.devices = devices


class Sampler:
    """Samples all replicas of a job every ``every_s`` seconds, more often at first; 0: never.

    ``env`` is that of every replica; its ``PATH`` is searched for ``nvidia-smi``.
    """

    def __init__(self, every_s: float, env: Mapping[str, str], now: float) -> None:
        self._pause_s = min(_FIRST_S, every_s)
        self.due: float | None = now + self._pause_s if every_s > 0 and os.path.exists("/proc/self/stat") else None
        self._every_s = every_s
        self._env = env
        self._before: dict[int, tuple[float, float]] = {}  # pid of a replica -> time of its last sample, CPU seconds
        self._lines: dict[str, int] = {}  # file -> number of samples
        self._head = ""
        self._gpus: GpuQuery | None = None
        self._asked = False

    def look(self, roots: Iterable[Root], now: float) -> None:
        """Take samples of the running replicas if they are due."""
        if self.due is None or now < self.due:
            return
        began = time.thread_time()
        if not self._asked:
            self._gpus = self._gpus or GpuQuery(self._env)
            self._asked = self._gpus.ask()
            if self._asked:  # do not wait for nvidia-smi: its output within a second goes into the samples
                self.due = now + min(_ANSWER_S, self._every_s)
                return
        self._asked = False
        self._sample([*roots])
        self.due = now + max(self._pause_s, _SHARE * (time.thread_time() - began))
        self._pause_s = min(2 * self._pause_s, self._every_s)

    def ended(self, root: Root, used: resource.struct_rusage) -> None:
        """Take a last sample of a replica that was short, from what the kernel has counted."""
        wall = time.time()
        if self.due is None or not _MOMENT_S < wall - root.started < _SHORT_S:
            return
        since, before = self._before.get(root.pid, (root.started, 0.0))
        cpu = max(used.ru_utime + used.ru_stime - before, 0.0) / max(wall - since, 0.001)
        # A child starts with the memory of its parent.
        peak = used.ru_maxrss * 1024 if used.ru_maxrss > _own_peak() else 0
        if peak:
            sample = f'{{"t":{wall:.1f},"a":{root.attempt},"cpu":{cpu:.2f},"mem":{peak},"gpu":[]}}\n'
            self._write(root.path, sample)

    def _sample(self, roots: list[Root]) -> None:
        families = _families({root.pid for root in roots})
        wall = time.time()
        gpus = self._gpus.answer() if self._gpus else {}
        self._before = {root.pid: self._before.get(root.pid, (root.started, 0.0)) for root in roots}
        for root in roots:
            family = families.get(root.pid)
            if not family:
                continue
            since, used = self._before[root.pid]
            seconds = sum(process.seconds for process in family)
            self._before[root.pid] = (wall, seconds)
            cpu = max(seconds - used, 0.0) / max(wall - since, 0.001)
            seen = ",".join(f"[{a},{b},{c}]" for a, b, c in visible(gpus, root.devices))
            sample = f'{{"t":{wall:.1f},"a":{root.attempt},"cpu":{cpu:.2f},"mem":{_memory(family)}'
            self._write(root.path, f'{sample},"gpu":[{seen}]}}\n')

    def _write(self, path: str, line: str) -> None:
        count = self._lines.get(path, -1)
        how = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:  # whatever the job has put there: a link to /dev/zero, a FIFO, a folder, lines of its own
            fd = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            try:
                if count < 0:  # another process may have sampled an earlier attempt
                    count = os.pread(fd, _MIB, 0).count(b"\n") - 1
                if count < 0:
                    self._head = self._head or '{{"memory_limit":{},"cpus":{}}}\n'.format(*limits(self._env))
                    line = self._head + line
                os.write(fd, line.encode())
            finally:
                os.close(fd)
            self._lines[path] = max(count, 0) + 1
            if count >= MAX_SAMPLES:
                self._lines[path] = thin_out(path)
        except (OSError, ValueError, LookupError, TypeError):
            self._lines[path] = count  # for example a full disk: the job continues without


def _own_peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class _Process:
    def __init__(self, pid: int, ppid: int, homes: tuple[int, ...], seconds: float, resident: int) -> None:
        self.pid = pid
        self.ppid = ppid
        self.homes = homes
        self.seconds = seconds
        self.resident = resident


def _families(roots: set[int]) -> dict[int, list[_Process]]:
    """Map each replica to its process, the descendants, and other processes in its session or group."""
    children: dict[int, list[_Process]] = {}
    families: dict[int, list[_Process]] = {root: [] for root in roots}
    for name in os.listdir("/proc"):
        process = _read(int(name)) if name.isdigit() else None
        if process is None:
            continue
        home = next((home for home in process.homes if home in families), None)
        if home is not None:
            families[home].append(process)
        else:
            children.setdefault(process.ppid, []).append(process)
    for family in families.values():  # descendants in sessions of their own
        for process in family:
            family.extend(children.pop(process.pid, ()))
    return families


def _read(pid: int) -> _Process | None:
    try:
        data = read_bytes(f"/proc/{pid}/stat")
    except OSError:
        return None
    fields = data[data.rfind(b")") + 2 :].split()
    if len(fields) < 22:
        return None
    # utime, stime, and those of children that it has waited for.
    seconds = sum(map(int, fields[11:15])) / _TICKS
    return _Process(pid, int(fields[1]), (int(fields[3]), int(fields[2]), pid), seconds, int(fields[21]) * _PAGE)


def _memory(family: list[_Process]) -> int:
    """Resident bytes. Memory that several processes share, such as workers of a data loader, counts once."""
    if len(family) == 1:
        return family[0].resident
    return sum(_proportional(process) for process in family)


def _proportional(process: _Process) -> int:
    try:
        _, _, rest = read_bytes(f"/proc/{process.pid}/smaps_rollup").partition(b"\nPss:")
        return int(rest.split(None, 1)[0]) * 1024
    except (OSError, ValueError, IndexError):  # no permission, or an old kernel
        return process.resident


def read_bytes(path: str) -> bytes:
    """All bytes of a small file."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def limits(env: Mapping[str, str]) -> tuple[int, int]:
    """Return the limits of memory (bytes) and processors for this process and its children together.

    Those of the machine, or lower ones set by a cgroup or by Slurm.
    """
    asked, given = (env.get(name, "") for name in ("SLURM_MEM_PER_NODE", "SLURM_CPUS_PER_TASK"))
    cpus = len(os.sched_getaffinity(0))
    least = int(asked) * _MIB if asked.isdigit() and int(asked) else os.sysconf("SC_PHYS_PAGES") * _PAGE
    return _least_of_cgroups(least), min(cpus, int(given)) if given.isdigit() and int(given) else cpus


def _least_of_cgroups(least: int) -> int:
    try:
        lines = read_bytes("/proc/self/cgroup").decode().splitlines()
    except OSError:
        return least
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base, name = (
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes") if controllers else ("/sys/fs/cgroup", "memory.max")
        )
        parts = path.strip("/").split("/")
        for depth in range(len(parts) + 1):
            try:
                least = min(least, int(read_bytes("/".join([base, *parts[:depth], name]))))
            except (OSError, ValueError):  # no limit, or `max`
                continue
    return least


class GpuQuery:
    """Runs ``nvidia-smi`` without waiting for it, since it may never exit if the driver has a problem."""

    def __init__(self, env: Mapping[str, str]) -> None:
        folders = env.get("PATH", os.defpath).split(os.pathsep)
        paths = (os.path.join(folder, "nvidia-smi") for folder in folders if folder)
        self._program = next((path for path in paths if os.access(path, os.X_OK)), "")
        self._env = {name: env[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in env}
        self._pipe = -1
        self._said = b""

    def ask(self) -> bool:
        """Start it unless it still runs. False if it is not installed or cannot be started."""
        if not self._program or self._pipe >= 0:
            return bool(self._program)
        pipe, writer = os.pipe()
        os.set_blocking(pipe, False)
        argv = [self._program, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 2)]
        try:
            os.posix_spawn(argv[0], argv, self._env, file_actions=[*null, (os.POSIX_SPAWN_DUP2, writer, 1)])
        except OSError:
            self._program = ""
            os.close(pipe)
            return False
        finally:
            os.close(writer)
        self._pipe, self._said = pipe, b""
        return True

    def answer(self) -> dict[str, tuple[str, Gpu]]:
        """Index -> UUID and numbers of each GPU; empty while there is no complete output."""
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return {}
            self._said += data
            if not data:
                os.close(self._pipe)
                self._pipe = -1
        return parse_gpus(self._said.decode("utf-8", "replace"))


def parse_gpus(text: str) -> dict[str, tuple[str, Gpu]]:
    """Parse the output of ``nvidia-smi``. A number that is not available is 0.

    >>> parse_gpus("0, GPU-1a, 97, 1024, 81559\\n1, GPU-2b, [N/A], 3, 81559\\nsomething else\\n")["1"]
    ('GPU-2b', (0, 3145728, 85520809984))
    """
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_QUERY) and cells[0].isdigit():
            used, memory, total = (int(cell) if cell.isdigit() else 0 for cell in cells[2:])
            found[cells[0]] = (cells[1], (used, memory * _MIB, total * _MIB))
    return found


def visible(gpus: Mapping[str, tuple[str, Gpu]], devices: str | None) -> list[Gpu]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` names; all if it is not set.

    >>> two = {"0": ("GPU-1a", (1, 2, 3)), "1": ("GPU-2b", (4, 5, 6))}
    >>> visible(two, "1"), visible(two, "GPU-1"), visible(two, ""), len(visible(two, None))
    ([(4, 5, 6)], [(1, 2, 3)], [], 2)
    """
    if devices is None:
        return [gpu for _, gpu in gpus.values()]
    wanted = [word.strip() for word in devices.split(",") if word.strip()]
    return [
        gpu
        for word in wanted
        for i, (uuid, gpu) in gpus.items()
        if word == i or (word[:4] == "GPU-" and uuid.startswith(word))
    ]


def thin_out(path: str) -> int:
    """Thins out a file and returns how many samples are left."""
    with open(path, encoding="utf-8") as f:
        left = thinned_out([*f])
    new = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with open(new, "w", encoding="utf-8") as f:
        f.writelines(left)
    os.replace(f"{path}.new", path)
    return len(left) - 1


def thinned_out(lines: list[str]) -> list[str]:
    """Return the lines of a file with the older half merged into half as many samples at equal intervals."""
    import json

    samples = [sample for line in lines[1:] if (sample := _sample(line))]
    old, first = len(samples) // 2, samples[0]["t"]
    apart = max(samples[old]["t"] - first, 1.0) / max(old // 2, 1)
    kept: dict[tuple[int, int], dict[str, Any]] = {}
    for i, sample in enumerate(samples):
        place = (i, 0) if i >= old else (-1 - int((sample["t"] - first) / apart), sample["a"])
        kept[place] = _together(kept[place], sample) if place in kept else sample
    return [lines[0], *(f"{json.dumps(sample, separators=(',', ':'))}\n" for sample in kept.values())]


def _sample(line: str) -> dict[str, Any]:
    import json

    try:
        return dict(json.loads(line))
    except (TypeError, ValueError):  # a full disk has cut it off
        return {}


def _together(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """Merge two samples: the maximum of the memory, the average of the processors over all ``n`` merged samples."""
    n, more = one.get("n", 1), two.get("n", 1)
    cpu = round((one["cpu"] * n + two["cpu"] * more) / (n + more), 2)
    gpu = [[max(x, y) for x, y in zip(a, b)] for a, b in zip(one["gpu"], two["gpu"])]  # noqa: B905  # alike
    return {**two, "mem": max(one["mem"], two["mem"]), "cpu": cpu, "gpu": gpu, "n": n + more}


def main(every_s: float, pid: int, path: str) -> None:
    """Sample one replica of a Slurm job, from inside its step, until its first process has ended."""
    import select
    import signal

    os.setsid()  # so that this process does not count as part of the replica
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # reaps nvidia-smi
    job, role, k, _ = path.rsplit("/", 3)
    try:
        with open(f"{job}/events", encoding="utf-8") as file:
            starts = sum(line.split()[1:3] == ["up", f"{role}/{k}"] for line in file)
    except OSError:  # a task of a sweep, which is started once
        starts = 1
    age_s = min(_FIRST_S, every_s)  # of the replica: it has run for so long, at least
    root = Root(pid, time.time() - age_s, max(starts - 1, 0), path, os.environ.get("CUDA_VISIBLE_DEVICES"))
    sampler = Sampler(every_s, os.environ, time.monotonic() - age_s)
    ended = [os.pidfd_open(pid)] if hasattr(os, "pidfd_open") else []
    while os.path.exists(f"/proc/{pid}") and sampler.due is not None:
        sampler.look([root], time.monotonic())
        if select.select(ended, [], [], max(sampler.due - time.monotonic(), 0))[0]:
            return


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
