"""Cancelling takes everything that the job started, gives it its time, and can be repeated."""

from __future__ import annotations

import time

import pytest

from torchx.schedulers.api import Stream
from torchx.specs.api import AppState

from .conftest import ended, eventually, lines, processes_of

STUBBORN = "trap '' TERM; echo up; while :; do sleep 100; done"


def test_cancel_takes_grandchildren_that_hide_and_ignore_sigterm(scheduler, submit) -> None:
    """A grandchild in a session of its own that ignores SIGTERM is gone, too; the grace period is kept."""
    app_id = submit(f'(setsid sh -c "{STUBBORN}" &); {STUBBORN}', 2)
    eventually(lambda: lines(scheduler, app_id).count("up\n") == 2 and lines(scheduler, app_id, 1).count("up\n") == 2)
    start = time.monotonic()
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state == AppState.CANCELLED
    assert time.monotonic() - start > 0.9
    assert processes_of(scheduler, app_id) == []


def test_cancel_lets_a_program_finish_its_work(scheduler, submit) -> None:
    """SIGTERM comes first: a program that handles it ends long before its time is over, its last words in the log."""
    app_id = submit(
        "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done", cfg={"cancel_grace_s": 600}
    )
    eventually(lambda: lines(scheduler, app_id) == ["up\n"])
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state == AppState.CANCELLED
    assert lines(scheduler, app_id, streams=Stream.STDOUT) == ["up\n", "saved\n"]


def test_cancel_without_grace_kills_at_once(scheduler, submit) -> None:
    """A grace period of 0 means SIGKILL: no program sees a SIGTERM."""
    app_id = submit("trap 'echo SIGTERM' TERM; echo up; while :; do sleep 0.01; done", cfg={"cancel_grace_s": 0})
    eventually(lambda: lines(scheduler, app_id) == ["up\n"])
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state == AppState.CANCELLED
    assert lines(scheduler, app_id) == ["up\n"]


def test_cancel_again_and_after_the_end_is_quiet(scheduler, submit) -> None:
    """Twice, afterwards, and for a job that never was: no error, no change."""
    app_id = submit("sleep 1000")
    for _ in range(3):
        scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state == AppState.CANCELLED
    scheduler.cancel(app_id)
    assert scheduler.describe(app_id).state == AppState.CANCELLED
    scheduler.cancel("job-that-never-was")
    done = submit("true")
    ended(scheduler, done)
    scheduler.cancel(done)
    assert scheduler.describe(done).state == AppState.SUCCEEDED


def test_cancel_while_starting(scheduler, submit) -> None:
    """Cancelled while hundreds of replicas are being started: all that were are ended, the others never start."""
    app_id = submit("sleep 1000", 400)
    scheduler.cancel(app_id)
    described = ended(scheduler, app_id)
    assert described.state == AppState.CANCELLED
    assert {r.state for r in described.roles_statuses[0].replicas} == {AppState.CANCELLED}
    assert processes_of(scheduler, app_id) == []


def test_cancel_wakes_stopped_processes(scheduler, submit) -> None:
    """A process stopped by SIGSTOP still gets to handle SIGTERM."""
    app_id = submit("trap 'echo bye; exit 0' TERM; echo up; kill -STOP $$; sleep 5", cfg={"cancel_grace_s": 600})
    eventually(lambda: lines(scheduler, app_id) == ["up\n"])
    eventually(lambda: any(p.state == "T" for p in processes_of(scheduler, app_id)))
    scheduler.cancel(app_id)
    assert ended(scheduler, app_id).state == AppState.CANCELLED
    assert lines(scheduler, app_id) == ["up\n", "bye\n"]


@pytest.mark.parametrize("code", [0, 1])
def test_what_a_job_leaves_behind_is_ended(scheduler, submit, tmp_path, code: int) -> None:
    """A daemon does not outlive its job, whether that succeeded or not."""
    up = tmp_path / "up"
    app_id = submit(
        f"(setsid sh -c \"trap '' TERM; touch {up}; while :; do sleep 1000; done\" &); "
        f"while [ ! -e {up} ]; do sleep 0.01; done; exit {code}"
    )
    assert ended(scheduler, app_id).state == (AppState.SUCCEEDED, AppState.FAILED)[code]
    assert processes_of(scheduler, app_id) == []


def test_a_daemon_without_the_jobs_environment_is_ended(scheduler, submit, tmp_path) -> None:
    """Not even one that cleared its environment and left its session gets away."""
    pid_file = tmp_path / "pid"
    daemon = f"setsid env -i sh -c 'echo $$ > {pid_file}; exec sleep 1000'"
    app_id = submit(f"({daemon} &); while [ ! -s {pid_file} ]; do sleep 0.01; done")
    ended(scheduler, app_id)
    pid = int(pid_file.read_text())
    from torchx.supervisor import proctree

    process = proctree.snapshot().get(pid)
    assert process is None or process.state in "ZX"


def test_delete_ends_a_running_job_and_removes_it(scheduler, submit) -> None:
    """Deleted, a job is unknown; its processes are gone; deleting again is quiet."""
    app_id = submit("sleep 1000", 2)
    scheduler.delete(app_id)
    assert scheduler.describe(app_id) is None
    assert scheduler.list() == []
    scheduler.delete(app_id)
