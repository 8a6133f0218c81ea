"""What is measured of a replica, from processes as the kernel describes them, and how it is written down."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import Clock, eventually
from torchx.supervisor import metrics
from torchx.supervisor.metrics import GpuQuery, Root, Sampler, parse_gpus, thinned_out, visible

MIB = 1 << 20
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Machine:
    """The processes of a machine, as ``/proc`` shows them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files: dict[str, bytes] = {}
        self.names = ["self", "meminfo"]
        patch.setattr(metrics, "read_bytes", self.read)
        patch.setattr(os, "listdir", lambda _: [*self.names])

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def add(self, pid: int, ppid: int, *, group: int = 1, session: int = 1, pages: int = 0, ticks: int = 0) -> None:
        # after the parent: group, session, eight others, four times, six others, start, size, resident pages
        numbers = [ppid, group, session, *[7] * 7, ticks, 10, 20, 30, *[7] * 6, pages]
        self.names.append(str(pid))
        self.files[f"/proc/{pid}/stat"] = f"{pid} (a) b) S {' '.join(map(str, numbers))} 7 7\n".encode()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(metrics, "time", clock)
    return clock


def _samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


# -- processes -----------------------------------------------------------------------------------


def test_a_process_as_the_kernel_describes_it(machine: Machine) -> None:
    """Its parent, session, group, its own times and those of its children in seconds, and its memory in bytes."""
    machine.add(5, 4, group=3, session=2, pages=11, ticks=40)
    found = metrics._read(5)
    assert found is not None
    assert (found.pid, found.ppid, found.homes) == (5, 4, (2, 3, 5))
    assert (found.seconds, found.resident) == (100 / TICKS, 11 * PAGE)
    words = machine.files["/proc/5/stat"].split()
    machine.files["/proc/5/stat"] = b" ".join(words[:-2])
    assert metrics._read(5) is not None, "nothing behind the memory is needed"
    machine.files["/proc/5/stat"] = b" ".join(words[:-3])
    assert metrics._read(5) is None
    assert metrics._read(6) is None


def test_whose_a_process_is(machine: Machine) -> None:
    """That of the replica whose session or group it is in, or of its nearest ancestor that belongs to one."""
    machine.add(10, 1, group=10, session=10)
    machine.add(20, 10, group=20, session=20)  # a replica below another one
    machine.add(11, 1, session=10)
    machine.add(12, 1, group=10)
    machine.add(13, 11, group=13, session=13)  # in a session of its own, below one of the replica
    machine.add(14, 13, group=13, session=13)
    machine.add(21, 20, group=20, session=20)
    machine.add(30, 1, group=30, session=30)
    machine.add(31, 30, group=30, session=30)
    found = metrics._families({10, 20, 40})
    assert {root: sorted(p.pid for p in family) for root, family in found.items()} == {
        10: [10, 11, 12, 13, 14],
        20: [20, 21],
        40: [],
    }


def test_shared_memory_counts_once(machine: Machine) -> None:
    """A single process has what it has; of several each has its share, or all of it if that cannot be read."""
    for pid in (10, 11, 12):
        machine.add(pid, 1, session=10, pages=100)
        machine.files[f"/proc/{pid}/smaps_rollup"] = b"0-f [rollup]\nRss:   400 kB\nPss:   7 kB\nPss_Anon: 3 kB\n"
    family = metrics._families({10})[10]
    assert metrics._memory(family[:1]) == 100 * PAGE
    assert metrics._memory(family) == 3 * 7 * 1024
    del machine.files["/proc/11/smaps_rollup"]
    machine.files["/proc/12/smaps_rollup"] = b"an old kernel"
    assert metrics._memory(family) == 7 * 1024 + 2 * 100 * PAGE


def test_processors_since_the_last_sample(machine: Machine, clock: Clock, tmp_path: Path) -> None:
    """The first time since its start; never less than none; of a replica that is gone, no sample, and nothing is kept."""
    sampler = Sampler(15.0, {"PATH": ""}, 0.0)
    root = Root(10, 998.0, 3, str(tmp_path / "samples"), None)
    other = Root(20, 998.0, 0, str(tmp_path / "other"), None)
    for ticks in (4 * TICKS - 60, 5 * TICKS - 60, TICKS, 2 * TICKS - 60):
        machine.names.clear()
        machine.add(10, 1, session=10, pages=1, ticks=ticks)
        sampler._sample([root, other])
        clock.now += 2.0
    found = _samples(tmp_path / "samples")
    assert [(s["t"], s["cpu"]) for s in found] == [
        (1000.0, 2.0),
        (1002.0, 0.5),
        (1004.0, 0.0),
        (1006.0, found[3]["cpu"]),
    ]
    assert {(s["a"], s["mem"], tuple(s["gpu"])) for s in found} == {(3, PAGE, ())}
    assert not (tmp_path / "other").exists()
    machine.names.clear()
    sampler._sample([other])
    assert [*sampler._before] == [20], "its pid may be another process's next time"


def test_two_samples_at_the_same_time(machine: Machine, clock: Clock, tmp_path: Path) -> None:
    """A clock that stands still, or was set back, makes no error and no infinite number."""
    sampler = Sampler(15.0, {"PATH": ""}, 0.0)
    machine.add(10, 1, session=10, ticks=TICKS - 60)
    for started in (1000.0, 5000.0):
        path = tmp_path / str(started)
        sampler._before.clear()
        sampler._sample([Root(10, started, 0, str(path), None)])
        assert [s["cpu"] for s in _samples(path)] == [1000.0]


# -- files ---------------------------------------------------------------------------------------


def test_limits_of_slurm_and_of_the_machine(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    """The lower number of processors counts; 0 or no number means that Slurm sets no limit."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    whole = os.sysconf("SC_PHYS_PAGES") * PAGE
    for given, cpus in (("2", 2), ("9", 4), ("4", 4), ("0", 4), ("x", 4), ("", 4)):
        assert metrics.limits({"SLURM_CPUS_PER_TASK": given}) == (whole, cpus)
    for asked, memory in (("3", 3 * MIB), ("0", whole), ("x", whole)):
        assert metrics.limits({"SLURM_MEM_PER_NODE": asked}) == (memory, 4)
    assert metrics.limits({}) == (whole, 4)


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is raised, no descriptor stays open, and once there is room the file begins with the limits."""
    sampler = Sampler(15.0, {}, 0.0)
    before = os.listdir("/proc/self/fd")

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        sampler._write(str(tmp_path / "samples"), '{"t":1}\n')
    sampler._write(str(tmp_path / "samples"), '{"t":2}\n')
    assert os.listdir("/proc/self/fd") == before
    head, line = (tmp_path / "samples").read_text().splitlines()
    assert (sorted(json.loads(head)), line) == (["cpus", "memory_limit"], '{"t":2}')


@pytest.mark.parametrize("what", ["a folder", "a FIFO", "/dev/zero", "lines of its own"])
def test_whatever_a_job_has_put_there(tmp_path: Path, what: str) -> None:
    """The supervisor neither crashes, nor waits, nor reads without end: the job goes on without samples."""
    path = tmp_path / "samples"
    if what == "a folder":
        path.mkdir()
    elif what == "a FIFO":
        os.mkfifo(path)
    elif what == "/dev/zero":
        path.symlink_to(what)
    else:
        path.write_text("{}\n" * 1000)
    before = os.listdir("/proc/self/fd")
    sampler = Sampler(15.0, {}, 0.0)
    for _ in range(2):
        sampler._write(str(path), '{"t":1}\n')
    assert os.listdir("/proc/self/fd") == before


def test_a_file_of_samples_can_be_read_by_others(tmp_path: Path) -> None:
    """As the logs beside it, and no child inherits it."""
    old = os.umask(0o022)
    try:
        Sampler(15.0, {}, 0.0)._write(str(tmp_path / "samples"), '{"t":1}\n')
    finally:
        os.umask(old)
    assert os.stat(tmp_path / "samples").st_mode & 0o777 == 0o644
    head, line = (tmp_path / "samples").read_text().splitlines()
    assert (sorted(json.loads(head)), line) == (["cpus", "memory_limit"], '{"t":1}')


def _row(t: float, a: int = 0, **more: Any) -> str:
    return json.dumps({"t": t, "a": a, "cpu": 1.0, "mem": 1, "gpu": [], **more}) + "\n"


def test_how_two_samples_become_one(tmp_path: Path) -> None:
    """The time of the later one, the most memory and GPU, the average of the processors over all that were merged."""
    rows = [
        _row(0.0, cpu=4.0, mem=9, gpu=[[10, 5, 80], [1, 9, 80]], n=3),
        _row(1.0, cpu=1.0, mem=8, gpu=[[20, 4, 80], [0, 3, 80]]),
        *(_row(float(t)) for t in range(10, 12)),
    ]
    head, merged, *rest = thinned_out(["head\n", *rows])
    assert (head, rest) == ("head\n", [json.dumps(json.loads(row), separators=(",", ":")) + "\n" for row in rows[2:]])
    assert json.loads(merged) == {"t": 1.0, "a": 0, "cpu": 3.25, "mem": 9, "gpu": [[20, 5, 80], [1, 9, 80]], "n": 4}


@pytest.mark.parametrize(
    ("times", "left"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 4, 5, 6, 7]),
        ([0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0]),
        ([0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7], [0.3, 0.4, 0.5, 0.6, 0.7]),
        ([0, 90, 91, 92, 100, 101, 102, 103], [0, 92, 100, 101, 102, 103]),
    ],
    ids=["equal", "none", "short", "a gap"],
)
def test_old_samples_are_equally_far_apart(times: list[float], left: list[float]) -> None:
    """Half as many as there were, or fewer; the newer half stays."""
    assert [json.loads(line)["t"] for line in thinned_out(["head\n", *map(_row, times)])[1:]] == left


# -- GPUs ----------------------------------------------------------------------------------------

TWO = "0, GPU-1a2b, 97, 1024, 81559\n1, GPU-3c4d, [N/A], 2048, 81559\n"


def test_what_nvidia_smi_prints() -> None:
    """MiB become bytes, what is not available is 0, and a line of another kind is passed over."""
    first = ("GPU-1a2b", (97, 1024 * MIB, 81559 * MIB))
    assert parse_gpus(TWO) == {"0": first, "1": ("GPU-3c4d", (0, 2048 * MIB, 81559 * MIB))}
    assert parse_gpus("No devices were found\nx, GPU-9, 1, 2, 3\n0, GPU-1a2b, 97, 1024\n") == {}
    assert parse_gpus("0, GPU-1a2b, 97, 1024, 81559, 5\n") == {}


@pytest.mark.parametrize(
    ("devices", "seen"),
    [
        *((None, [97, 0]), ("", []), ("0", [97]), ("1,0", [0, 97]), (" 1 , ", [0]), ("GPU-3c", [0]), ("GPU-", [97, 0])),
        *(("2", []), ("3c4d", []), ("-1", []), ("MIG-1", [])),
    ],
)
def test_which_gpus_a_replica_sees(devices: str | None, seen: list[int]) -> None:
    """As CUDA reads the variable: numbers or beginnings of UUIDs, in their order; all if it is not set."""
    assert [gpu[0] for gpu in visible(parse_gpus(TWO), devices)] == seen


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Pids of the programs that were asked; tests before may have left other children."""
    spawn, pids = os.posix_spawn, []
    monkeypatch.setattr(os, "posix_spawn", lambda *args, **how: pids.append(spawn(*args, **how)) or pids[-1])
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # it has ended, unless the test has failed
        os.waitpid(pid, 0)


@pytest.fixture
def smi(tmp_path: Path, asked: list[int]) -> Iterator[Path]:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n/usr/bin/env > '{folder}/env'\nread -r line || printf '0, GPU-1, 5, 6, 7\\n'\n")
    program.chmod(0o755)
    yield program


def test_nvidia_smi_is_found_by_the_path_of_the_replicas(smi: Path, tmp_path: Path, asked: list[int]) -> None:
    """The first that can be run; it gets the variables that it needs, nothing to read, and is asked anew each time."""
    useless = tmp_path / "useless"
    useless.mkdir()
    (useless / "nvidia-smi").write_text("")
    env = {"PATH": f"{useless}::{smi.parent}", "HOME": "/h", "LD_LIBRARY_PATH": "/l", "TOKEN": "secret"}
    query = GpuQuery(env)
    before = os.listdir("/proc/self/fd")
    assert query.answer() == {}
    for times in (1, 2):
        assert query.ask() is True
        assert query.ask() is True, "it still runs, or its output was not taken"
        assert eventually(query.answer) == query.answer() == {"0": ("GPU-1", (5, 6 * MIB, 7 * MIB))}
        assert len(asked) == times
    assert os.listdir("/proc/self/fd") == before
    given = dict(line.split("=", 1) for line in (smi.parent / "env").read_text().splitlines())
    assert {name: given.get(name) for name in env} == {**env, "TOKEN": None}


def test_a_nvidia_smi_that_cannot_be_started(smi: Path) -> None:
    """It is not tried again; nothing stays open."""
    query = GpuQuery({"PATH": str(smi.parent)})
    smi.write_text("#!/no/such/program\n")
    before = os.listdir("/proc/self/fd")
    assert query.ask() is False
    smi.write_text("#!/bin/sh\n")
    assert query.ask() is False
    assert (query.answer(), os.listdir("/proc/self/fd")) == ({}, before)
    assert GpuQuery({"PATH": ""}).ask() is False


def test_half_an_answer_is_none(smi: Path, tmp_path: Path) -> None:
    """Numbers are only taken when all are there."""
    os.mkfifo(tmp_path / "go")
    smi.write_text(f"#!/bin/sh\necho '0, GPU-1, 5, 6, 7'; read -r _ < '{tmp_path}/go'; echo '1, GPU-2, 8, 9, 10'\n")
    query = GpuQuery({"PATH": str(smi.parent)})
    query.ask()
    eventually(lambda: query.answer() == {} and query._said)
    assert query.answer() == {}
    (tmp_path / "go").write_text("\n")
    assert [*eventually(query.answer)] == ["0", "1"]


# -- as a program --------------------------------------------------------------------------------


def test_the_program_counts_attempts(tmp_path: Path) -> None:
    """By the starts of its replica that the job has on record; it ends with the process that it samples."""
    folder = tmp_path / "job" / "r" / "1"
    folder.mkdir(parents=True)
    events = ["1 up r/1", "2 down r/1", "3 up r/0", "4 up r/1", "5 up r/11"]
    (tmp_path / "job" / "events").write_text("".join(f"{event} x\n" for event in events))
    path = folder / "metrics.jsonl"
    replica = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
    try:
        program = subprocess.Popen([sys.executable, "-I", "-S", metrics.__file__, "20", str(replica.pid), str(path)])
        eventually(lambda: path.exists() and _samples(path))
        assert program.poll() is None
    finally:
        replica.kill()
        replica.wait()
    assert program.wait(60) == 0
    assert [sample["a"] for sample in _samples(path)] == [1]
