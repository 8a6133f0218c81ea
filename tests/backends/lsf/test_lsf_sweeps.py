"""Sweeps on the look-alike of LSF: job arrays; tasks of several replicas are single jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.lsf.conftest import command, eventually
from tests.backends.lsf.lookalike.cluster import running
from tests.backends.lsf.lookalike.config import Config
from tests.backends.sweeps import PATIENCE_S, Ground, SweepContract, sweeps_of
from torchx.errors import CommandError
from torchx.schedulers.api import Stream
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.lsf.sweeps import Arrays
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppState
from torchx.specs.api import AppDef, Resource, Role
from torchx.specs.wishes.after import AFTER


def role_of(script: str, n: int) -> Role:
    small = Resource(cpu=1, gpu=0, memMB=512)
    return Role("r", "", entrypoint="sh", args=["-c", script], num_replicas=n, resource=small)


@pytest.fixture
def ground(scheduler: LsfScheduler) -> Iterator[Ground]:
    with sweeps_of("test", "lsf", role_of, native=True) as made:
        yield made


class TestSweepsOnLsf(SweepContract):
    """The contract."""

    def test_it_is_one_array(self, ground: Ground, cluster: Config) -> None:
        """One job id; `torchx list` has the sweep once; both streams are apart; a waiting task says why it waits."""
        handle = ground.sweep("echo {k}; echo oops >&2; exec sleep 600", 3, 1)
        ground.until(handle, lambda t: t.states[0] is AppState.RUNNING)
        eventually(lambda: ground.lines(f"{handle}/0"))
        lines = command("bjobs", "-noheader", "-o", "jobid jobindex job_name delimiter=','").splitlines()
        ids = {line.split(",")[0] for line in lines}
        app_id = handle.rpartition("/")[2]
        assert len(ids) == 1
        assert [line.partition(",")[2] for line in lines] == [f"{k},{app_id}.0-r.0[{k}]" for k in (1, 2, 3)]
        waits = ground.runner.status(f"{handle}/2")
        assert waits is not None
        assert (waits.state, waits.msg) == (AppState.PENDING, "the sweep has reached its limit of running tasks")
        listed = [job for job in ground.runner.list("lsf") if job.app_handle == handle]
        assert [job.state for job in listed] == [AppState.RUNNING]
        errors = ground.runner.open_logs(f"{handle}/0", [("r", 0)], LogQuery(stream=Stream.STDERR))
        assert [line for some in errors for line in some] == ["oops\n"]

    def test_tasks_that_share_an_element(self, ground: Ground, tmp_path: Path) -> None:
        """Each has its own log, end and cause; one is cancelled alone; those that failed are packed again."""
        gate = tmp_path / "gate"
        script = f"echo {{k}} $LSB_JOBINDEX; case {{k}} in v1) exit 4 ;; v3) until [ -e {gate} ]; do sleep 0.1; done ;;"
        handle = ground.sweep(f"{script} v4) sleep 1000 ;; esac", 7, 0, pack=3)
        ground.until(handle, lambda t: t.states[3] is AppState.RUNNING)
        assert ground.table(handle).states[4:6] == [AppState.PENDING] * 2
        gate.touch()
        ground.until(handle, lambda t: t.states[4] is AppState.RUNNING)
        ground.runner.cancel(f"{handle}/4")
        names = [state.name for state in ground.ended(handle).states]
        assert names == ["SUCCEEDED", "FAILED", "SUCCEEDED", "SUCCEEDED", "CANCELLED", "SUCCEEDED", "SUCCEEDED"]
        assert [ground.lines(f"{handle}/{k}") for k in range(7)] == [[f"v{k} {k // 3 + 1}\n"] for k in range(7)]
        status = ground.runner.status(f"{handle}/1")
        assert status is not None
        assert "exit code 4" in status.msg
        _, again = ground.runner.retry_sweep(handle)
        assert (again.points, again.pack) == ([("v1",), ("v4",)], 3)
        rest = ground.sweep("sleep 600", 4, 0, pack=2)
        ground.until(rest, lambda t: t.states[0] is AppState.RUNNING)
        ground.runner.cancel(rest)
        assert ground.ended(rest).counts() == {AppState.CANCELLED: 4}

    def test_a_job_after_it(self, ground: Ground) -> None:
        """It starts when the last task has ended, whatever became of the others."""
        handle = ground.sweep("test {k} = v0 || exec sleep 600", 3, 0)
        ground.until(handle, lambda t: t.counts() == {AppState.SUCCEEDED: 1, AppState.RUNNING: 2})
        later = AppDef("later", [role_of("echo later", 1)], metadata={AFTER: f"any:{handle}"})
        job = ground.runner.run(later, "lsf")
        ground.runner.cancel(f"{handle}/1")
        ground.until(handle, lambda t: t.states[1] is AppState.CANCELLED)
        waits = ground.runner.status(job)
        assert waits is not None
        assert (waits.state, "waits for another job" in waits.msg) == (AppState.PENDING, True)
        ground.runner.cancel(f"{handle}/2")
        ended = ground.runner.wait(job, wait_interval=1, timeout=PATIENCE_S)
        assert ended is not None
        assert ended.state is AppState.SUCCEEDED

    def test_lsf_forgets_it(self, ground: Ground, scheduler: LsfScheduler, tmp_path: Path) -> None:
        """What tasks wrote down is left, and LSF's reports on those that were killed."""
        mark = tmp_path / "failed"
        handle = ground.sweep(f"case {{k}} in v1) echo bad; touch {mark}; exit 7;; v2) exec sleep 600;; esac", 4, 0)
        eventually(mark.exists)
        ground.until(handle, lambda t: t.states[2] is AppState.RUNNING)
        ground.runner.cancel(f"{handle}/2")
        before = ground.ended(handle)
        assert [s.name for s in before.states] == ["SUCCEEDED", "FAILED", "CANCELLED", "SUCCEEDED"]
        folder = scheduler.folders(scheduler._here).of(handle.rpartition("/")[2])
        assert folder is not None
        scheduler._bjobs = lambda *_: []  # type: ignore[method-assign]  # CLEAN_PERIOD is over
        after = scheduler.describe(handle.rpartition("/")[2])
        assert after is not None
        assert after.tasks is not None
        assert (after.tasks.states, after.tasks.exit_codes[:2]) == (before.states, [0, 7])
        found = scheduler.describe_tasks(after.app_id, [1])
        assert found is not None
        assert "bad" in found[0].msg


@pytest.mark.parametrize("with_index", [False, True])
def test_several_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_index: bool) -> None:
    """More tasks than an array may have: with a limit one array after the other; none runs before all are there.

    A site may show the index of an element with its id, or not.
    """
    folder = str(tmp_path / "lsf")
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    with running(folder, array_size=3, with_index=with_index) as config:
        monkeypatch.setenv("LSF_ENVDIR", folder)
        monkeypatch.setenv("PATH", f"{config.bindir}:/usr/local/bin:/usr/bin:/bin")
        with sweeps_of("test", "lsf", role_of, native=True) as ground:
            running_now = f"n=$(ls {tmp_path}/now* 2>/dev/null | wc -l); echo {{k}} $n"
            script = f"touch {tmp_path}/now$TORCHX_TASK; {running_now}; sleep 0.2; rm {tmp_path}/now$TORCHX_TASK"
            handle = ground.sweep(script, 8, 2)
            table = ground.ended(handle)
            assert table.counts() == {AppState.SUCCEEDED: 8}
            told = [line.split() for line in ground.lines(handle)]
            assert sorted(value for value, _ in told) == [f"v{k}" for k in range(8)]
            assert max(int(n) for _, n in told) <= 2
            assert len(set(command("bjobs", "-a", "-noheader", "-o", "jobid").replace("[", " ").split())) >= 3
            waiting = ground.sweep("exec sleep 600", 7, 0)
            ground.until(waiting, lambda t: t.counts().get(AppState.RUNNING, 0) == 7)
            ground.runner.cancel(f"{waiting}/6")
            ground.until(waiting, lambda t: t.states[6] is AppState.CANCELLED)
            ground.runner.cancel(waiting)
            assert ground.ended(waiting).counts() == {AppState.CANCELLED: 7}


def test_a_refused_array_leaves_nothing(scheduler: LsfScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two arrays is refused: the first, on hold until then, is gone."""
    made = Arrays.bsubs
    monkeypatch.setattr("torchx.schedulers.lsf.sweeps.most_tasks", lambda _: 2)
    monkeypatch.setattr(Arrays, "bsubs", lambda *words: [*made(*words)[:1], "bsub -q nowhere true"])
    with sweeps_of("test", "lsf", role_of, native=True) as ground:
        with pytest.raises(CommandError, match="nowhere: No such queue"):
            ground.sweep("true", 3, 0)
        told = command("bjobs", "-a", "-noheader", "-o", "stat start_time delimiter=','").splitlines()
        assert told[-2:] == ["EXIT,-", "EXIT,-"]
