"""What a real LSF daemon does, row by row of what was recorded on one; see README.md."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.lsf.lookalike.cluster import running
from tests.backends.lsf.lookalike.config import Config
from tests.backends.shell import Shell
from torchx.errors import TransientError
from torchx.schedulers.batch import sites
from torchx.schedulers.lsf.ends import Ends
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs.api import AppDef, AppState, Resource, Role

from .conftest import command, eventually, wait_for


@pytest.fixture(params=[True, False], ids=["with reasons", "without"])
def lsf(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LsfScheduler]:
    """A cluster of its own, whose `bjobs` shows a requeued job as ended for a second; half of them give no reasons."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    with running(str(tmp_path / "lsf"), requeue_window_s=1, exit_reasons=request.param) as config:
        monkeypatch.setenv("LSF_ENVDIR", config.envdir)
        monkeypatch.setenv("PATH", f"{config.bindir}:/usr/bin:/bin")
        scheduler = LsfScheduler("test")
        scheduler.fresh_s = 0
        yield scheduler


def job(lsf: LsfScheduler, script: str) -> str:
    role = Role("r", "", entrypoint="sh", args=["-c", script], resource=Resource(cpu=1, gpu=0, memMB=512))
    return lsf.submit(AppDef("job", [role]), {})


def bsub(*words: str, cwd: Path) -> str:
    done = subprocess.run(["bsub", *words], cwd=cwd, capture_output=True, text=True, check=True)
    return done.stdout.partition("<")[2].partition(">")[0]


def stat(number: str) -> str:
    return command("bjobs", "-a", "-noheader", "-o", "stat", number).strip()


def state(lsf: LsfScheduler, app_id: str) -> AppState:
    found = lsf.describe(app_id)
    assert found is not None
    return found.state


def runs(lsf: LsfScheduler, app_id: str) -> bool:
    return state(lsf, app_id) is AppState.RUNNING


def failed(lsf: Any, number: str) -> Any:
    found = lsf.describe(number)
    return found if found.state is AppState.FAILED else None


def number_of(app_id: str) -> str:
    return command("bjobs", "-a", "-noheader", "-o", "jobid", "-g", f"/torchx_{app_id}").split()[-1]


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "of others"])
def test_a_requeued_job_goes_on(lsf: LsfScheduler, tmp_path: Path, ours: bool) -> None:
    """Through the time in which LSF shows it as ended, until its second run ends."""
    script = f"echo x >>{tmp_path}/runs; [ -e {tmp_path}/again ] || exec sleep 1000; sleep 1"
    app_id = job(lsf, script) if ours else bsub("-o", "out", "sh", "-c", f"'{script}'", cwd=tmp_path)
    seen: Any = lsf if ours else lsf.foreign()
    number = number_of(app_id) if ours else app_id
    eventually((tmp_path / "runs").exists)
    (tmp_path / "again").touch()
    command("brequeue", number)
    states, shown = [], set()
    while (tmp_path / "runs").read_text() != "x\nx\n":
        shown.add(stat(number))
        found = seen.describe(app_id)
        states.append(found.state)
    assert "EXIT" in shown
    assert not {AppState.CANCELLED, AppState.FAILED, AppState.SUCCEEDED} & {*states}, found
    lsf._ends._clock = lambda: time.time() + 3600
    assert eventually(lambda: seen.describe(app_id).state is AppState.SUCCEEDED)


@pytest.mark.parametrize("lsf", [False], indirect=True)
def test_a_kill_without_a_reason(lsf: LsfScheduler, tmp_path: Path) -> None:
    """It is final when it was seen long enough; of a job that torchx cancels, at once."""
    by_hand, by_us = job(lsf, f"{wait_for(tmp_path / 'never')}"), job(lsf, f"{wait_for(tmp_path / 'never')}")
    for app_id in (by_hand, by_us):
        eventually(functools.partial(runs, lsf, app_id))
    command("bkill", number_of(by_hand))
    lsf.cancel(by_us)
    eventually(lambda: stat(number_of(by_hand)) == stat(number_of(by_us)) == "EXIT")
    states: Any = [lsf.describe(by_hand), lsf.describe(by_us)]
    assert [found.state for found in states] == [AppState.RUNNING, AppState.CANCELLED]
    lsf._ends = Ends(lambda: time.time() + 100)
    assert state(lsf, by_hand) is AppState.CANCELLED


@pytest.mark.parametrize("lsf", [False], indirect=True)
def test_limits_and_lost_files(lsf: LsfScheduler, tmp_path: Path) -> None:
    """Without reasons of LSF: the run limit by its signal, a lost job file by the report."""
    late = bsub("-W", "1", "-o", "late", "sleep", "1000", cwd=tmp_path)
    lost = bsub("-H", "-o", "lost", "-e", "err", "true", cwd=tmp_path)
    command("badmin", "nofile", lost)
    command("bresume", lost)
    lsf._ends._clock = lambda: time.time() + 3600
    seen: Any = lsf.foreign()
    ends: list[Any] = [eventually(functools.partial(failed, seen, n)) for n in (late, lost)]
    assert [found.msg.partition(": ")[2].partition(":")[0] for found in ends] == [
        "it ran longer than its time limit (TERM_RUNLIMIT)",
        "exit code 127",
    ]
    assert "Cannot open your job file" in ends[1].msg


def test_a_host_without_a_link(scheduler: LsfScheduler, submit: Any, tmp_path: Path) -> None:
    """Its jobs are unknown, a kill of them is taken, and they end as they do when the link is there again."""
    alive, killed = (
        submit(f"until [ -e {tmp_path}/go ]; do sleep 0.05; done", cfg={"hosts": "127.0.0.14"}) for _ in "12"
    )
    for app_id in (alive, killed):
        eventually(functools.partial(runs, scheduler, app_id))
    command("badmin", "lose", "127.0.0.14")
    try:
        eventually(lambda: stat(number_of(alive)) == "UNKWN")
        assert "unavail" in command("bhosts", "127.0.0.14")
        scheduler.cancel(killed)
        told: Any = scheduler.describe(killed)
        assert told.state is not AppState.CANCELLED
    finally:
        command("badmin", "find", "127.0.0.14")
    (tmp_path / "go").touch()
    eventually(lambda: state(scheduler, alive) is AppState.SUCCEEDED)
    eventually(lambda: state(scheduler, killed) is AppState.CANCELLED)


@pytest.mark.parametrize("line", ["seq 9 | wc -l", "echo a|cat|cat"])
def test_a_command_with_pipes_is_its_name(lsf_shell: Shell, tmp_path: Path, line: str) -> None:
    """Without `-J`; what `torchx why` says is that job's."""
    number = bsub("-o", "out", line, cwd=tmp_path)
    eventually(lambda: stat(number) == "DONE")
    told = lsf_shell.torchx("why", f"lsf://foreign/{number}", check=False)
    assert line in told
    assert str(tmp_path) in told
    assert "normal" in told


def test_odd_names(cluster: Config, tmp_path: Path) -> None:
    """They are taken, except for one that is too long."""
    for name in ('odd "name" %J [x', "a|3|b", "ümläut", "two\nlines"):
        number = bsub("-J", name, "true", cwd=tmp_path)
        assert command("bjobs", "-a", "-noheader", "-o", "job_name", number).strip() == name.replace("\n", "")
    done = subprocess.run(["bsub", "-J", "x" * 600, "true"], capture_output=True, text=True, check=False)
    assert (done.returncode, "Bad job name. Job not submitted." in done.stderr) == (255, True)


@pytest.fixture
def hung(cluster: Config, scheduler: LsfScheduler, submit: Any) -> Iterator[str]:
    """A running job of a daemon that answers nobody."""
    app_id = submit("exec sleep 1000")
    eventually(lambda: state(scheduler, app_id) is AppState.RUNNING)
    command("badmin", "hang")
    yield app_id
    command("badmin", "go")


def test_a_daemon_that_hangs(hung: str, scheduler: LsfScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query ends when torchx's patience does, with the program's name; no job is submitted twice."""
    monkeypatch.setattr(sites, "COMMAND_TIMEOUT_S", 1)
    began = time.monotonic()
    with pytest.raises(TransientError, match="bjobs"):
        scheduler.run_command(scheduler._here, ["bjobs"], patience_s=2, timeout_s=1)
    assert time.monotonic() - began < 20
    command("badmin", "go")
    assert scheduler.describe(hung) is not None


def test_an_option_that_does_not_exist(cluster: Config, lsf_shell: Shell) -> None:
    """A wrong option is named, without a hint about a word of the usage."""
    done = subprocess.run(["bsub", "-z", "true"], capture_output=True, text=True, check=False)
    assert done.stderr.startswith("bsub: illegal option -- z\n")
    _, told = lsf_shell.start("run", "-s", "lsf", "-cfg", "bsub_args=-z", "utils.echo").communicate(timeout=300)
    assert "illegal option -- z" in told
    assert "project" not in told


def test_the_path_in_a_job(cluster: Config, tmp_path: Path) -> None:
    """LSF's commands come first."""
    number = bsub("-o", "out", "echo $PATH", cwd=tmp_path)
    eventually(lambda: stat(number) == "DONE")
    assert f"\n{cluster.bindir}:" in (tmp_path / "out").read_text()
