"""Logs that outlive their pods: archives and the ends of followed logs."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from torchx.cli.cmd_delete import _delete
from torchx.cli.failures import UsageError
from torchx.errors import NotFoundError, NotSupportedError
from torchx.runner import Runner
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.settings import torchx_home
from torchx.specs import AppDef, Resource, Role, UnknownAppException

LINES = [f"step {i} é\n" for i in range(300)]
KEEP = LogQuery(keep=True)


def role(name):
    return Role(name, "img", entrypoint="t", num_replicas=2, resource=Resource(1, 0, 64))


class Job:
    """A job whose first replica has ended and has the log :data:`LINES`."""

    def __init__(self):
        self.cluster = Cluster()
        with self.runner() as runner:
            self.handle = runner.run(AppDef("train", [role("a")]), "kubernetes", {"kind": "job"})
        (job,) = self.cluster.of("jobs")
        ended = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
        self.cluster.run_pods(job, {"phase": "Succeeded", "containerStatuses": [ended]}, most=1)
        (pod,) = self.cluster.of("pods")
        self.write(pod, LINES)
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}

    def runner(self):
        return Runner("me", {"kubernetes": lambda *_, **__: create_scheduler("me", client=self.cluster)})

    def write(self, pod, lines):
        text = "".join(f"2026-01-01T00:00:00.{i:09}Z {line}" for i, line in enumerate(lines))
        self.cluster.logs[pod["metadata"]["name"], ""] = text.encode()

    def read(self, query=LogQuery(), k=0):  # noqa: B008  # it is frozen
        with self.runner() as runner:
            (lines,) = runner.open_logs(self.handle, [("a", k)], query)
            return list(lines)

    def vanish(self):
        """Deletes the Job like `kubectl delete job`."""
        self.cluster.take(self.cluster.of("services")[0])
        for pod in self.cluster.of("pods"):
            self.cluster.take(pod)


@pytest.fixture
def job():
    return Job()


def archive() -> list[Path]:
    return sorted(Path(torchx_home("kubernetes", "archive")).rglob("*.gz*"))


def test_an_archived_log_is_shown_whole_when_the_pods_are_gone(job, caplog):
    """Unchanged, also in another process; only the owner can read it, and `torchx delete` deletes it."""
    assert job.read(KEEP) == LINES
    (path,) = archive()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert job.read() == LINES and "archived" not in caplog.text
    with job.runner() as runner:
        assert runner.status(job.handle).is_terminal()
    job.vanish()
    assert job.read() == LINES and "were archived on this machine" in caplog.text
    assert job.read(LogQuery(regex=None, follow=True)) == LINES
    with pytest.raises(NotFoundError, match="their logs with them") as e:
        job.read(k=1)
    assert "--archive" in e.value.hint
    with job.runner() as runner:
        _delete(runner, job.handle, force=False)
        with pytest.raises(UnknownAppException):
            runner.log_replicas(job.handle)
    assert archive() == []


def test_archived_lines_have_their_times(job):
    """For `--since`, `--until` and `--timestamps`; a line in several parts has one time."""
    from datetime import datetime, timezone

    (pod,) = job.cluster.of("pods")
    long = "x" * 40_000 + "\n"
    pieces = [f"2026-01-01T00:00:01.000000001Z {long[i : i + (1 << 14)]}" for i in range(0, len(long), 1 << 14)]
    text = "2026-01-01T00:00:00.000000001Z first\n" + "".join(pieces) + "2026-01-01T00:00:02.000000001Z last"
    job.cluster.logs[pod["metadata"]["name"], ""] = text.encode()
    before = job.read(KEEP)
    assert "".join(before) == f"first\n{long}last"
    job.vanish()
    assert "".join(job.read()) == "".join(before)
    second = datetime(2026, 1, 1, 0, 0, 1, tzinfo=timezone.utc).timestamp()
    assert "".join(job.read(LogQuery(since=second))) == f"{long}last"
    assert job.read(LogQuery(until=second)) == ["first\n"]
    assert job.read(LogQuery(since=second + 1, timestamps=True)) == ["2026-01-01T00:00:02.000Z last"]


def test_reading_an_archive_changes_nothing(job):
    """It changes neither the archive nor the end of a followed log."""
    job.read(KEEP)
    job.vanish()
    (before,) = [path.read_bytes() for path in archive()]
    assert job.read(KEEP) == LINES
    assert job.read(LogQuery(follow=True)) == LINES
    assert [path.read_bytes() for path in archive()] == [before]
    assert not Path(torchx_home("kubernetes", "logs")).exists()


def test_the_end_that_was_followed_is_not_taken_for_the_whole(job):
    """If `--archive` finds only the end of a followed log, this is shown, and not archived."""
    assert job.read(LogQuery(follow=True)) == LINES
    job.vanish()
    assert job.read(KEEP) == LINES[-200:]
    assert archive() == []


def test_a_newer_archive_takes_the_place_of_the_older(job):
    """A complete archive replaces an older one; an incomplete one does not, except the first."""
    (pod,) = job.cluster.of("pods")
    with job.runner() as runner:
        (lines,) = runner.open_logs(job.handle, [("a", 0)], KEEP)
        opened = iter(lines)
        assert next(opened) == LINES[0]
        opened.close()
    job.write(pod, LINES[:7])
    assert job.read(KEEP) == LINES[:7]
    job.write(pod, LINES)
    with job.runner() as runner:
        (lines,) = runner.open_logs(job.handle, [("a", 0)], KEEP)
        begun = iter(lines)
        next(begun)
        begun.close()
    job.vanish()
    assert job.read() == LINES[:7]


@pytest.mark.parametrize("damaged", [lambda data: data[:-20], lambda data: data[:10] + b"\xff" + data[11:]])
def test_a_damaged_archive_is_read_as_far_as_it_goes(job, caplog, damaged):
    """A warning says so."""
    job.read(KEEP)
    (path,) = archive()
    path.write_bytes(damaged(path.read_bytes()))
    job.vanish()
    found = job.read()
    assert found == LINES[: len(found)] and "cannot be read completely" in caplog.text


def test_what_only_a_regex_shows_is_kept_whole(job):
    """A regex selects the lines to show, not those to archive."""
    import re

    assert job.read(LogQuery(keep=True, regex=re.compile("step 7 "))) == ["step 7 é\n"]
    job.vanish()
    assert job.read() == LINES


def test_a_scheduler_that_keeps_logs_itself_refuses(tmp_path):
    """The hint says what to do instead."""
    from torchx.specs import AppState

    with Runner("me") as runner:
        app = AppDef("e", [Role("e", str(tmp_path), entrypoint="true")])
        handle = runner.run(app, "local_cwd")
        assert runner.wait(handle, wait_interval=0.01).state is AppState.SUCCEEDED
        with pytest.raises(NotSupportedError, match="keeps no copies of logs on this machine"):
            runner.open_logs(handle, [("e", 0)], KEEP)


def test_a_job_that_is_gone_is_deleted_without_force(job):
    """The record and the remaining objects are deleted. A job that still runs needs `--force`."""
    del job.cluster.of("jobs")[0]["status"]
    job.cluster.of("pods")[0]["status"] = {"phase": "Running"}
    with job.runner() as runner:
        with pytest.raises(UsageError, match="is RUNNING"):
            _delete(runner, job.handle, force=False)
        job.cluster.take(job.cluster.of("jobs")[0])
        for pod in job.cluster.of("pods"):
            job.cluster.take(pod)
        assert runner.status(job.handle).gone
        _delete(runner, job.handle, force=False)
        assert runner.recorded(job.handle) is None
    assert job.cluster.objects == {}


def test_a_followed_log_takes_the_place_of_an_archive_made_meanwhile(job):
    """A second command archives what there is; the first one has the log up to the end."""
    (pod,) = job.cluster.of("pods")
    with job.runner() as runner:
        (lines,) = runner.open_logs(job.handle, [("a", 0)], KEEP)
        followed = iter(lines)
        assert next(followed) == LINES[0]
        job.write(pod, LINES[:7])
        assert job.read(KEEP) == LINES[:7]
        assert list(followed) == LINES[1:]
    job.vanish()
    assert job.read() == LINES
    assert len(archive()) == 1


def test_an_old_log_that_somebody_else_deletes(job, monkeypatch):
    """The followers of several replicas, which end at the same time, all delete what is too old."""
    old = Path(torchx_home("kubernetes", "logs")) / "old.log"
    old.parent.mkdir(parents=True)
    old.write_text("old")
    os.utime(old, (0, 0))
    unlink = os.unlink

    def twice(path):
        unlink(path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", twice)
    assert job.read(LogQuery(follow=True)) == LINES
    monkeypatch.undo()
    job.vanish()
    assert job.read() == LINES[-200:]
