"""All replicas are submitted or none, once; and what became of them is known when LSF has forgotten them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.backends.lsf.lookalike.cluster import running
from torchx.errors import BackendError, CommandError, TransientError
from torchx.schedulers.kit.commands import Completed, LocalCommandRunner
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, Resource, Role

from .conftest import command, ended, eventually, lines


def app(n: int = 3, script: str = "sleep 1000") -> AppDef:
    role = Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=Resource(1, 0, 64))
    return AppDef("job", [role])


def faulty_bsub(folder: Path, at: int, deed: str) -> str:
    """A PATH on which the ``at``-th bsub does something else."""
    real = next(p for p in os.environ["PATH"].split(":") if os.path.exists(f"{p}/bsub"))
    bin_folder = folder / "faulty"
    bin_folder.mkdir()
    script = bin_folder / "bsub"
    script.write_text(
        f'#!/bin/bash\necho x >>{folder}/calls\n[ $(wc -l <{folder}/calls) = {at} ] && {{ {deed}; }}\nexec {real}/bsub "$@"\n'
    )
    script.chmod(0o755)
    return f"{bin_folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("deed", "told"),
    [
        ("echo 'Request aborted by esub. Job not submitted.' >&2; exit 255", "aborted by esub"),
        ("kill -KILL $PPID; sleep 0.2; exit 1", "did not take the job: its submission ended"),
        ("kill -TERM $PPID; sleep 0.2; exit 1", "did not take the job"),
    ],
    ids=["refused", "killed", "terminated"],
)
def test_nothing_is_half_submitted(scheduler, monkeypatch, tmp_path, deed: str, told: str) -> None:
    """When the third bsub fails, or the submission is killed there, no replica has run, none is left, nor is the folder."""
    monkeypatch.setenv("PATH", faulty_bsub(tmp_path, 3, deed))
    with pytest.raises(CommandError, match=told):
        scheduler.submit(app(5, f"touch {tmp_path}/ran"), {})
    eventually(lambda: not command("bjobs", "-noheader"))
    assert not (tmp_path / "ran").exists()
    assert not [n for n in os.listdir(tmp_path / "home" / "lsf") if n.startswith("job-")]


def test_a_refusal_tells_what_to_do(scheduler) -> None:
    """LSF's own words are the message, and the hint names the option."""
    with pytest.raises(CommandError, match=r"nosuch: No such queue\. Job not submitted\.") as refused:
        scheduler.submit(app(2), {"lsf_queue": "nosuch"})
    assert "lsf_queue" in refused.value.hint
    assert not command("bjobs", "-noheader")


class Lossy(LocalCommandRunner):
    """Loses the answer of the first submission; ``before`` it was run, or after."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.lost = False

    def run(self, argv, *, stdin: str = "", timeout: float | None = None) -> Completed:
        submits = argv[-1].endswith("submit.sh") and not self.lost
        if submits:
            self.lost = True
            if not self.before:
                super().run(argv, stdin=stdin, timeout=timeout)
            raise TransientError("the connection broke")
        return super().run(argv, stdin=stdin, timeout=timeout)


@pytest.mark.parametrize("before", [True, False], ids=["request-lost", "answer-lost"])
def test_submitted_once(scheduler, before: bool) -> None:
    """A connection that breaks, before or after LSF took the job, leads to one job."""
    lsf = LsfScheduler("test", commands=Lossy(before=before), sleep=lambda s: None)
    app_id = lsf.submit(app(2), {})
    assert len(command("bjobs", "-noheader", "-g", f"/torchx_{app_id}").splitlines()) == 2
    assert len(command("bjobs", "-noheader").splitlines()) == 2


def test_an_incomplete_submission_is_cleared_away(scheduler, monkeypatch, tmp_path) -> None:
    """Replicas that an interrupted submission left on hold are ended before it is tried again."""

    class Cut(Lossy):
        def run(self, argv, *, stdin: str = "", timeout: float | None = None) -> Completed:
            if argv[-1].endswith("submit.sh") and not self.lost:
                with open(argv[-1]) as file:
                    text = file.read()
                with open(argv[-1], "w") as file:  # as if the machine had stopped before the job was let go
                    file.write(text.replace("bresume", "exit 0; bresume"))
                try:
                    return super().run(argv, stdin=stdin, timeout=timeout)
                finally:
                    with open(argv[-1], "w") as file:
                        file.write(text)
            return super().run(argv, stdin=stdin, timeout=timeout)

    lsf = LsfScheduler("test", commands=Cut(before=False), sleep=lambda s: None)
    app_id = lsf.submit(app(2, "echo hi"), {})
    assert ended(lsf, app_id).state is AppState.SUCCEEDED
    assert lines(lsf, app_id, 1) == ["hi\n"]


def test_what_lsf_has_forgotten(tmp_path, monkeypatch) -> None:
    """After CLEAN_PERIOD bjobs knows a job no more: its replicas' own files, and LSF's reports, tell how it ended."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    with running(str(tmp_path), clean_period_s=0.5) as config:
        monkeypatch.setenv("LSF_ENVDIR", config.envdir)
        monkeypatch.setenv("PATH", f"{config.bindir}:{os.environ['PATH']}")
        lsf = LsfScheduler("test")
        lsf.fresh_s = 0
        good, bad = lsf.submit(app(2, "echo hi"), {}), lsf.submit(app(2, "exit 5"), {})
        long = lsf.submit(app(1, f"exec {os.path.realpath('/usr/bin/sleep')} 1000"), {"time": "1"})
        waits = lsf.submit(app(1), {"hosts": "127.0.0.11", "bsub_args": "-n 99"})
        lsf.cancel(waits)
        eventually(lambda: not command("bjobs", "-a", "-noheader"))
        assert (tmp_path / "home/lsf" / waits / "submitted").write_text(str(int(time.time() - 3600)))
        assert lsf.describe(good).state is AppState.SUCCEEDED
        assert lsf.describe(bad).state is AppState.FAILED
        assert "exit code 5" in lsf.describe(bad).msg
        assert "TERM_RUNLIMIT" in lsf.describe(long).msg
        assert lsf.describe(waits).state is AppState.CANCELLED
        assert lines(lsf, good) == ["hi\n"]
        assert lsf.describe("job-of-nobody") is None


def test_a_workspace(scheduler, tmp_path) -> None:
    """The workspace is copied to `jobdir`, and the job runs in it: later changes are not seen."""
    source = tmp_path / "project"
    source.mkdir()
    (source / "main.txt").write_text("as submitted\n")
    role = Role("r", "", entrypoint="cat", args=["main.txt"], resource=Resource(1, 0, 64))
    app_id = scheduler.submit(AppDef("job", [role]), {"jobdir": str(tmp_path / "run")}, workspace=f"file://{source}")
    (source / "main.txt").write_text("changed\n")
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    assert lines(scheduler, app_id) == ["as submitted\n"]
    assert (tmp_path / "run" / "torchx-jobs" / app_id).is_dir()


def test_without_lsf(tmp_path, monkeypatch) -> None:
    """Where LSF's commands are not installed, that is said, and what to do."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(BackendError, match="bjobs` is not installed") as missing:
        LsfScheduler("test").list()
    assert "login node" in missing.value.hint
    with pytest.raises(BackendError, match="bsub` is not installed"):
        LsfScheduler("test").submit(app(1), {})
    assert os.listdir(tmp_path / "home" / "lsf") == []
