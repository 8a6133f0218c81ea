"""Samples of what replicas use: real processes, a stand-in for nvidia-smi, and files that stay small."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.supervisor.forks import GUARDIAN, Gate, eventually, forked, request, role, state
from torchx.schedulers.kit.metrics import parse
from torchx.settings import FIRST_SAMPLE_S
from torchx.supervisor import metrics
from torchx.supervisor.metrics import MAX_SAMPLES, Sampler, thin_out
from torchx.supervisor.supervise import Supervisor

MIB = 1 << 20
# 64 MiB in the first process, which two children share, and 32 MiB more in a child with a session of its own.
EATS = (
    f"{sys.executable} -c 'import os,time; x=bytearray(os.urandom(1))*{64 * MIB}\n"
    f'for i in range(2):\n  if not os.fork(): os.setsid(); y=bytearray(b"x")*{16 * MIB}; break\n'
    "while True: sum(range(10000))'"
)


def _samples(job: str, replica: str = "r/0") -> list[dict[str, Any]]:
    path = Path(job, replica, "metrics.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()[1:]] if path.exists() else []


def _work(asked: Any):
    return lambda: Supervisor(asked, GUARDIAN).run()


def _asked(job: str, *roles: dict, every: float = 0.05, env: dict[str, str] | None = None) -> Any:
    return {**request(job, *roles, env=env, grace_s=1.0), "sample_s": every}


@pytest.fixture
def job(tmp_path: Path) -> str:
    return str(tmp_path / "job")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a look takes on a busy machine, the next one comes soon."""
    monkeypatch.setattr(metrics, "_SHARE", 2)


@pytest.mark.usefixtures("often")
def test_a_tree_of_processes(job: str) -> None:
    """Children count, those that left the session too; what they share counts once. The limit is in the first line."""
    with forked(_work(_asked(job, role(EATS, "exec sleep 600")))):
        eventually(lambda: any(s["mem"] > 96 * MIB and s["cpu"] > 0.2 for s in _samples(job)))
        used = _samples(job)[-1]
        assert 96 * MIB < used["mem"] < 140 * MIB, "64 MiB of the first, which its children share, and twice 16"
        idle = eventually(lambda: _samples(job, "r/1"))[-1]
        assert (idle["cpu"] < 0.2, idle["mem"] < 20 * MIB, idle["gpu"]) == (True, True, [])
        head = json.loads(Path(job, "r/0/metrics.jsonl").read_text().splitlines()[0])
        assert head["cpus"] == len(os.sched_getaffinity(0))
        assert 0 < head["memory_limit"] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.usefixtures("often")
def test_attempts_are_told_apart(job: str, tmp_path: Path) -> None:
    """A replica that was started again is at its next attempt; each one's most memory is known."""
    gate = Gate(tmp_path / "gate")
    replica = role(f"{gate.wait}; exit 1", retries=1, policy="REPLICA")
    with forked(_work(_asked(job, replica))):
        for attempt in (0, 1):  # at its first moment a process has no memory yet
            eventually(lambda: any(s["a"] == attempt and s["mem"] for s in _samples(job)))  # noqa: B023  # called here
            gate.open()
    found = parse("r", 0, Path(job, "r/0/metrics.jsonl").read_text().splitlines())
    assert [(a.attempt, a.memory > 0) for a in found.summary()] == [(0, True), (1, True)]
    gate.close()


def test_a_short_job_leaves_nothing(job: str) -> None:
    """A job that ends before its first sample has no file; one that wants none never has."""
    with forked(_work(_asked(job, role("true"), every=15.0))) as fork:
        assert fork.end() == 0
    assert (_samples(job), Path(job, "r/0/metrics.jsonl").exists()) == ([], False)
    assert (Sampler(0, {}, 5.0).due, Sampler(15.0, {}, 5.0).due) == (None, 5.0 + FIRST_SAMPLE_S)


def test_the_end_of_a_short_replica(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel counted, of a replica that ended before its first sample.

    A process starts with the peak of the one that forked it, here the test runner's, so this one needs more.
    """
    monkeypatch.setattr(metrics, "_MOMENT_S", 0.0)
    monkeypatch.setattr(metrics, "_FIRST_S", 600.0)
    most = metrics._own_peak() * 1024 + 100 * MIB
    eats = role(f"exec {sys.executable} -c 'x = bytes([1]) * {most}'")
    with forked(_work(_asked(job, eats, every=15.0))) as fork:
        assert fork.end() == 0
    (sample,) = _samples(job)
    assert most < sample["mem"] < most + 100 * MIB and sample["cpu"] > 0


@pytest.mark.parametrize("every", [15.0, 0.5])
def test_when_the_next_look_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: float) -> None:
    """In the end so long after the last, and sooner at first; where there are GPUs, a second after they were asked, or sooner if looks are."""
    monkeypatch.setattr(metrics, "_SHARE", 0)
    plain, gpus = Sampler(every, {"PATH": ""}, 100.0), Sampler(every, _smi(tmp_path / "bin", "#!/bin/sh\n"), 100.0)
    for sampler in (plain, gpus):
        first = 100.0 + min(every, 1.0)
        sampler.look([], first - 0.1)
        assert sampler.due == first
    pauses = []
    for _ in range(5):
        pauses.append(-plain.due)
        plain.look([], plain.due)
        gpus.look([], gpus.due)
        gpus.look([], gpus.due)
        pauses[-1] += plain.due
    assert pauses == [min(every, pause_s) for pause_s in (1.0, 2.0, 4.0, 8.0, 15.0)]
    for sampler in (plain, gpus):
        sampler.look([], 200.0)
    assert (plain.due, gpus.due) == (200.0 + every, 200.0 + min(every, 1.0))
    gpus.look([], 201.0)
    assert gpus.due == 201.0 + every
    gpus.look([], 300.0)
    assert gpus.due == 300.0 + min(every, 1.0), "and asked anew"


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.001, 15.0), (0.1, 100.0)])
def test_looks_that_take_long_are_seldom(monkeypatch: pytest.MonkeyPatch, took_s: float, pause_s: float) -> None:
    """Whatever is asked for, a thousandth of the time is the most that is spent on them."""
    times = iter([5.0, 5.0 + took_s])
    monkeypatch.setattr(metrics, "time", SimpleNamespace(thread_time=lambda: next(times), time=lambda: 0.0))
    sampler = Sampler(15.0, {"PATH": ""}, 100.0)
    sampler._pause_s = 15.0
    sampler.look([], 200.0)
    assert sampler.due == pytest.approx(200.0 + pause_s)


def test_a_program_beside_a_replica(tmp_path: Path) -> None:
    """As in a step of Slurm: it does not count itself, and ends with the replica, not only when it would look again."""
    folder = tmp_path / "job" / "r" / "0"
    folder.mkdir(parents=True)
    path = folder / "metrics.jsonl"
    program = f"{sys.executable} {metrics.__file__} 20 $$ {path}"
    script = f"({program} & echo $!); exec sleep 600"  # it is not the child of the replica
    step = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    with step:
        assert step.stdout is not None
        sampling = os.pidfd_open(int(step.stdout.readline()))
        eventually(lambda: _samples(str(tmp_path / "job")))
        step.kill()
        assert select.select([sampling], [], [], 15)[0], "the next look is due in 20 s"
        os.close(sampling)
    (sample,) = _samples(str(tmp_path / "job"))
    assert 0 < sample["mem"] < 4 * MIB, "of `sleep`, without Python"


def test_the_least_limit_of_all_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the top down to the process's own, in the old hierarchy and in the new one."""
    files: dict[str, bytes] = {}

    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(path)
        return files[path]

    monkeypatch.setattr(metrics, "read_bytes", read)
    assert metrics.limits({"SLURM_MEM_PER_NODE": "9"})[0] == 9 * MIB
    files["/proc/self/cgroup"] = b"9:memory:/a/b\n8:cpu,cpuacct:/\n0::/c/d\n"
    for folder, limit in (("", 8), ("/a", 7), ("/a/b", 6)):
        files[f"/sys/fs/cgroup/memory{folder}/memory.limit_in_bytes"] = str(limit * MIB).encode()
        assert metrics.limits({"SLURM_MEM_PER_NODE": "9"})[0] == limit * MIB
    files["/sys/fs/cgroup/memory/a/b/c/memory.limit_in_bytes"] = b"1"
    files["/sys/fs/cgroup/memory.max"] = b"max"
    for folder, limit in (("/c", 5), ("/c/d", 4)):
        files[f"/sys/fs/cgroup{folder}/memory.max"] = str(limit * MIB).encode()
        assert metrics.limits({"SLURM_MEM_PER_NODE": "9"})[0] == limit * MIB


# -- GPUs ------------------------------------------------------------------------------------------

SMI = """#!/bin/sh
echo "$@" > "${0%/*}/asked"
echo "0, GPU-1a2b, 97, 1024, 81559"
echo "1, GPU-3c4d, [N/A], 2048, 81559"
"""


def _smi(folder: Path, script: str) -> dict[str, str]:
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(script)
    program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


@pytest.mark.usefixtures("often")
def test_gpus_of_each_replica(job: str, tmp_path: Path) -> None:
    """Each replica has the GPUs that CUDA_VISIBLE_DEVICES leaves it, all where it is not set; the job ends as ever."""
    gate = Gate(tmp_path / "gate")
    roles = role(gate.wait, gate.wait, gate.wait)
    roles["replicas"][1]["env"] = {"CUDA_VISIBLE_DEVICES": "1"}
    roles["replicas"][2]["env"] = {"CUDA_VISIBLE_DEVICES": "GPU-1a2b"}
    with forked(_work(_asked(job, roles, env=_smi(tmp_path / "bin", SMI)))) as fork:
        first, second = [97, 1024 * MIB, 81559 * MIB], [0, 2048 * MIB, 81559 * MIB]
        for k, expected in enumerate([[first, second], [second], [first]]):
            eventually(lambda: expected in [s["gpu"] for s in _samples(job, f"r/{k}")])  # noqa: B023  # called at once
        gate.open(3)
        assert fork.end() == 0
    assert state(job).state == "SUCCEEDED"
    asked = (tmp_path / "bin" / "asked").read_text()
    assert asked == "--query-gpu=index,uuid,utilization.gpu,memory.used,memory.total --format=csv,noheader,nounits\n"
    gate.close()


@pytest.mark.usefixtures("often")
def test_a_driver_that_hangs(job: str, tmp_path: Path) -> None:
    """An nvidia-smi that never answers is started once; memory is sampled all the same, and the job can end."""
    gate = Gate(tmp_path / "gate")
    smi = 'echo x >> "${0%/*}/starts"; exec sleep 600'
    with forked(_work(_asked(job, role(gate.wait), env=_smi(tmp_path / "bin", f"#!/bin/sh\n{smi}\n")))) as fork:
        eventually(lambda: len(_samples(job)) > 2)
        gate.open()
        assert fork.end() == 0
    assert (tmp_path / "bin" / "starts").read_text() == "x\n"
    assert {tuple(s["gpu"]) for s in _samples(job)} == {()}
    gate.close()


# -- size ------------------------------------------------------------------------------------------


def test_old_samples_are_thinned_out(tmp_path: Path) -> None:
    """The older half is half as long; no peak is lost, attempts are not mixed, the newer half stays."""
    path = tmp_path / "metrics.jsonl"
    rows = [{"t": float(i), "a": int(i >= 3), "cpu": 1.0, "mem": i, "gpu": [[i, 1, 2]]} for i in range(12)]
    rows[4]["mem"] = 99
    path.write_text("\n".join(['{"memory_limit":5,"cpus":1}', *map(json.dumps, rows)]) + "\n")
    assert thin_out(str(path)) == 10
    found = parse("r", 0, path.read_text().splitlines())
    assert [s.at for s in found.samples] == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11]
    assert (found.memory_peak(), found.memory_limit) == (99, 5)
    assert [(a.attempt, a.memory) for a in found.summary()] == [(0, 2), (1, 99)]


def test_of_few_samples_none_is_left_out(tmp_path: Path) -> None:
    """The older half of two or three is one."""
    path = tmp_path / "metrics.jsonl"
    rows = [{"t": float(i), "a": 0, "cpu": 1.0, "mem": i, "gpu": []} for i in range(3)]
    path.write_text("\n".join(['{"memory_limit":5,"cpus":1}', *map(json.dumps, rows)]) + "\n")
    assert thin_out(str(path)) == 3


def test_another_process_goes_on(tmp_path: Path) -> None:
    """It writes no second line of limits, and counts what is there: the file stays small whoever writes to it."""
    path = tmp_path / "metrics.jsonl"
    first = '{"t":0.0,"a":0,"cpu":0.5,"mem":1,"gpu":[]}\n'
    for count in range(1, MAX_SAMPLES + 1):
        Sampler(15.0, {}, 0.0)._write(str(path), first.replace("0.0", f"{count}.0"))
        assert path.read_text().count("\n") == count + 1
    Sampler(15.0, {}, 0.0)._write(str(path), first)
    assert path.read_text().count("\n") < MAX_SAMPLES, "thinned out"
    assert path.read_text().count("memory_limit") == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """What a job has put where its samples belong is not written to, and the job goes on without samples."""
    (tmp_path / "precious").write_text("x\n")
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("precious")
    Sampler(15.0, {}, 0.0)._write(str(path), "{}\n")
    assert (tmp_path / "precious").read_text() == "x\n"


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """A full disk leaves a part of a line: without it, the file is thinned out as ever."""
    path = tmp_path / "metrics.jsonl"
    rows = [json.dumps({"t": float(i), "a": 0, "cpu": 1.0, "mem": i, "gpu": []}) for i in range(12)]
    rows[3] = rows[3][:20]
    rows[9] += rows[9]
    path.write_text("\n".join(['{"memory_limit":5,"cpus":1}', *rows, "[1]"]) + "\n")
    assert thin_out(str(path)) == 7, "five, and five that became two"
    assert [s.at for s in parse("r", 0, path.read_text().splitlines()).samples][2:] == [6, 7, 8, 10, 11]


def test_a_file_stays_small(tmp_path: Path) -> None:
    """After thousands of samples there are no more than MAX_SAMPLES and one, the first and the last among them."""
    sampler = Sampler(15.0, {}, 0.0)
    path = tmp_path / "metrics.jsonl"
    for i in range(4000):
        sampler._write(str(path), f'{{"t":{i}.0,"a":0,"cpu":0.5,"mem":{i},"gpu":[]}}\n')
    found = parse("r", 0, path.read_text().splitlines())
    assert len(found.samples) <= MAX_SAMPLES + 1
    assert (found.samples[0].at < 100, found.samples[-1].at, found.memory_peak()) == (True, 3999, 3999)
    gaps = [b.at - a.at for a, b in zip(found.samples, found.samples[1:], strict=False)]
    assert max(gaps) < 200, "old ones are about equally far apart"
    assert gaps[-120:] == [1.0] * 120
    assert path.stat().st_size < 100_000
