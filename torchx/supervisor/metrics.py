"""What the replicas of a local job use: memory, processors and GPUs, every 15 s, into one small file for each replica.

``metrics.jsonl`` holds a line with the limits, then a line for each sample: ``t`` (Unix time), ``a`` (attempt), ``cpu``
(processors in use since the sample before), ``mem`` (bytes), ``gpu`` (for each GPU percent, bytes, bytes that it has).
"""

from __future__ import annotations

import os
import time

from torchx.supervisor.layout import METRICS_FILE
from torchx.supervisor.proctree import HAS_PROC
from torchx.supervisor.statefile import RUNNING, read_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torchx.supervisor.replica import Replica

    Gpu = tuple[int, int, int]

MOST_SAMPLES = 480
"""Of a file with more of them the older half is thinned out: the last hour is there in full, whatever came before."""

_SHARE = 1000  # of the time at most one part in so many is spent looking, however many processes there are
_ANSWER_S = 1.0
_MIB = 1 << 20
_QUERY = ("index", "uuid", "utilization.gpu", "memory.used", "memory.total")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Sampler:
    """Looks at all replicas of a job at once. A job that ends before the first look costs nothing.

    Args:
        every_s: seconds between two looks; 0: none are taken.
        env: of every replica; where ``nvidia-smi`` is looked for, too.
        now: by the monotonic clock.
    """

    def __init__(self, every_s: float, env: Mapping[str, str], now: float) -> None:
        self.due: float | None = now + every_s if every_s > 0 and HAS_PROC else None
        self._every_s = every_s
        self._env = env
        self._before: dict[int, tuple[float, float]] = {}  # pid of a replica -> time, processor seconds until then
        self._lines: dict[str, int] = {}  # file -> samples in it
        self._head = ""
        self._gpus: GpuQuery | None = None
        self._asked = False

    def look(self, replicas: Sequence[Replica], now: float) -> None:
        """Takes the samples, if it is time to."""
        if self.due is None or now < self.due:
            return
        began = time.thread_time()
        if not self._asked:
            self._gpus = self._gpus or GpuQuery(self._env)
            self._asked = self._gpus.ask()
            if self._asked:  # nobody waits for the answer: what there is in a second goes into the samples
                self.due = now + min(_ANSWER_S, self._every_s)
                return
        self._asked = False
        self._sample([r for r in replicas if r.line.pid and r.line.state == RUNNING])
        self.due = now + max(self._every_s, _SHARE * (time.thread_time() - began))

    def _sample(self, replicas: Sequence[Replica]) -> None:
        families = _families({r.line.pid for r in replicas})
        wall = time.time()
        gpus = self._gpus.answer() if self._gpus else {}
        self._before = {r.line.pid: self._before.get(r.line.pid, (r.line.started, 0.0)) for r in replicas}
        for replica in replicas:
            family = families.get(replica.line.pid)
            if not family:
                continue
            since, used = self._before[replica.line.pid]
            seconds = sum(process.seconds for process in family)
            self._before[replica.line.pid] = (wall, seconds)
            cpu = max(seconds - used, 0.0) / max(wall - since, 0.001)
            devices = {**self._env, **replica.request["env"]}.get("CUDA_VISIBLE_DEVICES")
            seen = ",".join(f"[{a},{b},{c}]" for a, b, c in visible(gpus, devices))
            sample = f'{{"t":{wall:.1f},"a":{replica.line.attempt},"cpu":{cpu:.2f},"mem":{_memory(family)}'
            self._write(f"{replica.request['folder']}/{METRICS_FILE}", f'{sample},"gpu":[{seen}]}}\n')

    def _write(self, path: str, line: str) -> None:
        count = self._lines.get(path, 0)
        if not count:
            self._head = self._head or f'{{"memory_limit":{memory_limit()},"cpus":{len(os.sched_getaffinity(0))}}}\n'
            line = self._head + line
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
            self._lines[path] = count + 1
            if count >= MOST_SAMPLES:
                self._lines[path] = thin_out(path)
        except (OSError, ValueError):
            self._lines[path] = max(count, 1)  # a full disk: the job goes on without


class _Process:
    def __init__(self, pid: int, ppid: int, session: int, seconds: float, resident: int) -> None:
        self.pid = pid
        self.ppid = ppid
        self.session = session
        self.seconds = seconds
        self.resident = resident


def _families(roots: set[int]) -> dict[int, list[_Process]]:
    """By replica the processes at or below it, and those that it left in its session."""
    children: dict[int, list[_Process]] = {}
    families: dict[int, list[_Process]] = {root: [] for root in roots}
    for name in os.listdir("/proc"):
        process = _read(int(name)) if name.isdigit() else None
        if process is None:
            continue
        if process.session in families:
            families[process.session].append(process)
        else:
            children.setdefault(process.ppid, []).append(process)
    for family in families.values():  # sessions of their own, below
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
    # Its own time, and that of children that have ended and that it has waited for.
    seconds = sum(map(int, fields[11:15])) / _TICKS
    return _Process(pid, int(fields[1]), int(fields[3]), seconds, int(fields[21]) * _PAGE)


def _memory(family: list[_Process]) -> int:
    """Bytes that are resident. What several processes share, as the workers of a data loader do, counts once."""
    if len(family) == 1:
        return family[0].resident
    return sum(_proportional(process) for process in family)


def _proportional(process: _Process) -> int:
    try:
        _, _, rest = read_bytes(f"/proc/{process.pid}/smaps_rollup").partition(b"\nPss:")
        return int(rest.split(None, 1)[0]) * 1024
    except (OSError, ValueError, IndexError):  # not ours to read, or an old kernel
        return process.resident


def memory_limit() -> int:
    """Bytes that this process and its children may use together: what the machine has, or less by a cgroup."""
    least = os.sysconf("SC_PHYS_PAGES") * _PAGE
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
            except (OSError, ValueError):  # none there, or `max`
                continue
    return least


class GpuQuery:
    """``nvidia-smi``, which is started and not waited for: where a driver is in trouble it may never end."""

    def __init__(self, env: Mapping[str, str]) -> None:
        folders = env.get("PATH", os.defpath).split(os.pathsep)
        paths = (os.path.join(folder, "nvidia-smi") for folder in folders if folder)
        self._program = next((path for path in paths if os.access(path, os.X_OK)), "")
        self._env = {name: env[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in env}
        self._pipe = -1
        self._said = b""

    def ask(self) -> bool:
        """Starts it, unless it still runs; False when there is none."""
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
        """Index to uuid and numbers of each GPU, as far as it has answered."""
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
    """The answer of ``nvidia-smi``; a number that a GPU does not have is 0.

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
    """Those that ``CUDA_VISIBLE_DEVICES`` names; all where it is not set.

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
    """Makes the older half of a file half as long, its samples equally far apart. Returns how many samples are left."""
    import json

    with open(path, encoding="utf-8") as f:
        head, *lines = f
    samples: list[dict[str, Any]] = [json.loads(line) for line in lines]
    old, first = len(samples) // 2, samples[0]["t"]
    apart = max(samples[old]["t"] - first, 1.0) / max(old // 2, 1)
    kept: dict[tuple[int, int], dict[str, Any]] = {}
    for i, sample in enumerate(samples):
        place = (i, 0) if i >= old else (-1 - int((sample["t"] - first) / apart), sample["a"])
        kept[place] = _together(kept[place], sample) if place in kept else sample
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as f:
        f.write(head)
        f.writelines(f"{json.dumps(sample, separators=(',', ':'))}\n" for sample in kept.values())
    os.replace(new, path)
    return len(kept)


def _together(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """Two samples as one, which stands for ``n`` of them: the most memory, the processors on average."""
    n, more = one.get("n", 1), two.get("n", 1)
    cpu = round((one["cpu"] * n + two["cpu"] * more) / (n + more), 2)
    gpu = [[max(x, y) for x, y in zip(a, b)] for a, b in zip(one["gpu"], two["gpu"])]  # noqa: B905  # alike
    return {**two, "mem": max(one["mem"], two["mem"]), "cpu": cpu, "gpu": gpu, "n": n + more}
