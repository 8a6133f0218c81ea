"""Jobs that use neither GPUs nor processors are reported, and never before their first step."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tables import rows
from torchx.errors import NotSupportedError, SpecError
from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role
from torchx.specs.wishes import Wishes
from torchx.supervisor.idle import Idle

EVERY_S = 1.0


class Job:
    """A job of two replicas, whose samples and first step the test writes."""

    def __init__(self, folder: Path, seconds: float = 10.0, *, plain: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.files = [folder / f"metrics{k}" for k in range(2)]
        self.steps = folder / "steps"
        files = [str(path) for path in self.files]
        options: Any = {"seconds": seconds, "action": "notify", "files": files, "plain": plain}
        self.idle = Idle(options, [str(self.steps)], EVERY_S)
        self.now = 100.0
        self.idle.begin(self.now)

    def sampled(self, *cpus: float, gpus: list[float] | None = None) -> None:
        for path, cpu in zip(self.files, cpus, strict=True):
            row = {"t": time.time(), "a": 0, "cpu": cpu, "mem": 1, "gpu": [[g, 1, 2] for g in gpus or ()]}
            path.write_text(json.dumps({"cpus": 4}) + "\n" + json.dumps(row) + "\n")

    def turns(self, count: int = 12) -> list[str]:
        """What is reported within this many seconds."""
        found = []
        for _ in range(count):
            self.now += 1.0
            found.append(self.idle.turn(self.now))
        return [text for text in found if text]


def test_it_says_what_it_saw(tmp_path: Path) -> None:
    """Once, with the most that a replica used; and that the job went on."""
    job = Job(tmp_path)
    job.steps.touch()
    job.sampled(0.02, 0.05, gpus=[0, 3])
    assert job.turns() == [
        "idle for 10 s: 2 GPUs a replica at 3 % or less, at most 0.05 processors in use, as sampled on 2 replicas"
    ]
    assert job.idle.silent and not job.turns()
    assert not job.turns(60), "the sampler may be late"
    job.sampled(0.02, 1.5, gpus=[0, 3])
    (text,) = job.turns()
    assert text.startswith("it went on; before that, idle for 10 s")


@rows("seed", range(100))
def test_no_false_alarm_before_the_first_step(tmp_path: Path, seed: int) -> None:
    """Slow starts: a queue, set-up, staging and imports of any length use little or nothing."""
    job = Job(tmp_path / str(seed), seconds=2.0 + seed % 9)
    for k in range(20):
        job.sampled((seed * k % 7) / 100, (seed + k) % 5 * 0.3, gpus=[0] if seed % 2 else None)
        assert not job.turns(2)


def test_the_first_step_of_a_gpu_counts_without_reports(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.sampled(0.5, 0.5, gpus=[90])
    assert not job.turns()
    job.sampled(0.01, 0.01, gpus=[0])
    assert len(job.turns()) == 1


@rows("seed", range(100))
def test_no_false_alarm_in_slow_starts_of_plain_jobs(tmp_path: Path, seed: int) -> None:
    """Imports of any share of the processors are shorter than a tenth of the time; waits follow them."""
    job = Job(tmp_path / str(seed), 10.0, plain=True)
    _rows(job, [(0.9 * (seed + 1) / 100 + 0.05 * k, 1.0 + seed % 3) for k in range(2)])
    assert not job.turns(60)


@pytest.mark.parametrize(("plain", "work_s", "found"), [(True, 2.0, 1), (True, 0.5, 0), (False, 9.0, 0)])
def test_work_of_processors_is_a_first_step_of_plain_jobs(
    tmp_path: Path, plain: bool, work_s: float, found: int
) -> None:
    """Ten seconds allowed: it must have worked for one."""
    job = Job(tmp_path, plain=plain)
    _rows(job, [(work_s / 2, 0.8), (work_s, 0.9)])
    assert len(job.turns()) == found


def _rows(job: Job, busy: list[tuple[float, float]]) -> None:
    """Busy samples of replica 0, at these seconds after the begin, and an idle one after them and of replica 1."""
    rows = [*busy, (busy[-1][0] + 0.1, 0.0)]
    job.idle._from -= 100.0
    for path, samples in zip(job.files, (rows, rows[-1:]), strict=True):
        lines: list[dict[str, Any]] = [{"t": job.idle._from + t, "cpu": cpu, "gpu": []} for t, cpu in samples]
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        job.idle._checked = lines[-1]["t"]  # the earlier ones have been seen


def test_jobs_in_which_work_of_processors_is_not_a_first_step() -> None:
    """Something else runs before the program, or it has GPUs."""
    assert _is_plain(AppDef("a", [Role("r", "")]))
    for metadata in ({"torchx/setup": "true"}, {"torchx/stage": "/data=d"}, {"torchx/uv": "1"}):
        assert not _is_plain(AppDef("a", [Role("r", "")], metadata))
    assert not _is_plain(AppDef("a", [Role("r", ""), Role("g", "", resource=Resource(1, 1, 1))]))


def _is_plain(app: AppDef) -> bool:
    return Wishes.of(app).is_plain(app.roles)


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No samples; and a checkpoint that nobody would ask for."""
    monkeypatch.chdir(tmp_path)
    wish = {"torchx/idle": "4s:checkpoint", "torchx/retry": "standard"}
    with get_runner() as runner:
        with pytest.raises(NotSupportedError, match="cannot ask for a checkpoint of an idle job"):
            runner.dryrun(AppDef("a", [Role("r", "i", entrypoint="x")], wish), "local_docker")
        (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 0\n")
        with pytest.raises(SpecError, match="`--idle` needs samples"):
            runner.dryrun(AppDef("a", [Role("r", "", entrypoint="true")], wish), "local_cwd")


def test_one_busy_replica_or_missing_samples_are_enough(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.steps.touch()
    job.sampled(0.0, 0.3)
    assert not job.turns(30)
    job.sampled(0.0, 0.0)
    job.files[0].unlink()
    assert not job.turns(30)
    os.utime(job.steps, (1.0, 1.0))  # of an earlier attempt
    job.sampled(0.0, 0.0)
    job.idle.begin(job.now)
    assert not job.turns(30)


@pytest.mark.parametrize("text", ["soon", "1s", "30m:stop", "30m:checkpoint"])
def test_wrong_wishes(text: str) -> None:
    with pytest.raises(SpecError):
        Wishes.of(AppDef("a", metadata={"torchx/idle": text}))
