"""Files of local jobs: who can read them, what is removed of a sweep, what is noted of a crash, who may have forged them."""

from __future__ import annotations

import errno
import os
import stat
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.supervisor.forks import Clock, request, role, state
from torchx.runner.watching import poller
from torchx.schedulers.local.jobs import LocalJobs
from torchx.supervisor import orphans, proctree, retention, statefile
from torchx.supervisor.layout import CRASH_FILE, JOB_FILES, make_folder, task_log, task_metrics
from torchx.supervisor.metrics import thin_out
from torchx.supervisor.orphans import end_job, leave_note
from torchx.supervisor.replica import Replica, spawn, why_not_started
from torchx.supervisor.statefile import (
    TASKS,
    ForeignJobError,
    JobState,
    ReplicaLine,
    StateFileError,
    StateWriter,
    check_owner,
    escape,
    parse_state,
    unescape,
)
from torchx.supervisor.watchdog import Watchdog, put_down

DAY = 86400.0
NOW = 1_800_000_000.0


def _write(folder: Path, job: JobState) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    writer = StateWriter(str(folder / "state"), job)
    writer.flush()
    writer.close()


# -- folders -------------------------------------------------------------------------------------


def test_our_files_are_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``umask 000`` too: when old jobs were removed, what a poller saw, and what a silent job was doing."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path))
    base = tmp_path / "local"
    (base / "torchx").mkdir(parents=True)
    (tmp_path / "pollers").mkdir()
    old = os.umask(0)
    try:
        assert LocalJobs("torchx").retention_due(str(base / "torchx" / "a-1")) is not None
        poller._Files("x").write(poller.Heartbeat(1, 1.0))
        put_down(str(base), cast(Watchdog, types.SimpleNamespace(text="silent", stacks="")))
        (base / "metrics.jsonl").write_text('{}\n{"t": 1.0, "a": 0}\n')
        thin_out(str(base / "metrics.jsonl"))
    finally:
        os.umask(old)
    found = {p.name.partition("@")[0]: stat.S_IMODE(p.stat().st_mode) for p in tmp_path.rglob("*") if p.is_file()}
    assert found.pop("metrics.jsonl") == 0o644
    assert found == dict.fromkeys([".tidied", "x", "watchdog.txt", "stacks.txt"], 0o600)


@pytest.mark.parametrize(("private", "mode"), [(True, 0o700), (False, 0o755)])
def test_who_can_read_a_folder(tmp_path: Path, private: bool, mode: int) -> None:
    """A private one only its owner, whatever the umask, and so its new parents; the umask is then as before."""
    old = os.umask(0o022)
    try:
        make_folder(str(tmp_path / "a" / "b"), private=private)
        assert [stat.S_IMODE(os.stat(tmp_path / path).st_mode) for path in ("a", "a/b")] == [mode] * 2
        make_folder(str(tmp_path / "a" / "b"), private=private)
        (tmp_path / "file").touch()
        with pytest.raises(OSError):
            make_folder(str(tmp_path / "file" / "b"), private=private)
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(old)


def test_files_of_a_task() -> None:
    """Below the job's logs, by role and number."""
    assert task_log("/logs", "a/b", 3) == "/logs/a%2fb/3.log"
    assert task_metrics("/logs", "a/b", 3) == "/logs/a%2fb/3.jsonl"
    assert task_metrics("/logs", "state", 3) == "/logs/%73tate/3.jsonl"


# -- removing ------------------------------------------------------------------------------------


def _sweep(base: Path, name: str, days: float, size: int = 0) -> Path:
    folder = base / "session" / name
    job = JobState({"app_id": name, "logs": str(folder), TASKS: "2"}, [("r", 2)])
    job.state, job.ended = "SUCCEEDED", NOW - days * DAY
    _write(folder, job)
    (folder / "r").mkdir()
    for k in range(2):
        Path(task_log(str(folder), "r", k)).write_bytes(b"x" * size)
        Path(task_metrics(str(folder), "r", k)).write_bytes(b"x")
    return folder


def test_an_old_sweep_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the logs and samples of its tasks, which count for the size of all jobs."""
    monkeypatch.setattr(retention, "time", Clock(NOW))
    old, big, new = (_sweep(tmp_path, name, days, 1 << 18) for name, days in (("old", 31), ("big", 2), ("new", 1)))
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=1 << 30)
    assert [folder.exists() for folder in (old, big, new)] == [False, True, True]
    retention.apply(str(tmp_path), max_age_s=30 * DAY, max_bytes=3 << 18)
    assert [folder.exists() for folder in (old, big, new)] == [False, False, True]


def test_a_job_without_a_record_of_its_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in its folder, as they always were by default."""
    monkeypatch.setattr(retention, "time", Clock(NOW))
    folder = tmp_path / "session" / "old"
    job = JobState({"app_id": "old"}, [("r", 1)])
    job.state, job.ended = "FAILED", NOW - 2 * DAY
    _write(folder, job)
    (folder / "r" / "0").mkdir(parents=True)
    (folder / "r" / "0" / "stdout.log").write_bytes(b"x" * 10_000)
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=20_000)
    assert folder.exists()
    retention.apply(str(tmp_path), max_age_s=0, max_bytes=5_000)
    assert not folder.exists()


@pytest.mark.parametrize("name", JOB_FILES)
def test_a_file_of_a_job_goes_with_its_folder(tmp_path: Path, name: str) -> None:
    """Each of them alone would keep the folder."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / name).touch()
    retention.discard_folder(str(tmp_path / "job"))
    assert not (tmp_path / "job").exists()


# -- crashes -------------------------------------------------------------------------------------


def test_a_note_of_a_crash(tmp_path: Path) -> None:
    """The traceback; that of a second crash is added, and text that is no text does not hide it."""
    for word in ("first", "second \udcff"):
        try:
            raise ValueError(word)
        except ValueError as e:
            leave_note(str(tmp_path), e)
    note = (tmp_path / CRASH_FILE).read_bytes().decode()
    assert note.count("Traceback") == 2 and "ValueError: first" in note and "ValueError: second ?" in note


@pytest.mark.parametrize(("lost", "said"), [(1, "r/0"), (3, "r/0, r/1, s/0"), (4, "r/0, r/1, s/0, ...")])
def test_replicas_that_are_lost_are_named(
    tmp_path: Path, lost: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of them, so that the message stays short."""
    monkeypatch.setattr(orphans, "time", Clock(NOW))
    facts = {"boot": proctree.boot_id(), "pidns": proctree.pid_namespace()}
    job = JobState(facts, [("r", 2), ("s", 3)])
    job.state = "RUNNING"
    for line in job.replicas:
        line.state = "SUCCEEDED"
    for line in job.replicas[:lost]:
        line.state, line.pid, line.ticks = "RUNNING", 999_999_999, 5
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "it was killed; its processes were ended")
    assert state(tmp_path).msg == f"it was killed; it is not known how {said} ended"


@pytest.mark.parametrize(
    ("pid", "ticks", "code", "ends"),
    [(0, 0, None, "CANCELLED"), (999_999_999, 0, None, "CANCELLED"), (999_999_999, 5, -9, "CANCELLED")],
    ids=["not started", "just started", "killed"],
)
def test_a_replica_that_is_cancelled_and_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pid: int, ticks: int, code: int | None, ends: str
) -> None:
    """One that had hardly begun, or that was killed together with its supervisor."""
    monkeypatch.setattr(orphans, "time", Clock(NOW))
    job = JobState({"boot": proctree.boot_id(), "pidns": proctree.pid_namespace()}, [("r", 1)])
    line = job.replicas[0]
    job.state = line.state = "RUNNING"
    line.pid, line.ticks = pid, ticks
    _write(tmp_path, job)
    assert end_job(str(tmp_path), "why", lambda _: code)
    read = state(tmp_path)
    assert (read.replicas[0].state, read.replicas[0].exit, read.msg) == (ends, None, "why")


# -- replicas ------------------------------------------------------------------------------------


def _replica(tmp_path: Path, **more: Any) -> Replica:
    asked: Any = {**request(tmp_path / "job", role("true"))["roles"][0]["replicas"][0], **more}
    return Replica(0, 0, 0, request=asked, line=ReplicaLine())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOENT, "No such file", "/bin/sh"), "cannot start `sh`: No such file"),
        (OSError(errno.ENOENT, "No such file", "sh"), "cannot start `sh`: No such file"),
        (OSError(errno.ENOENT, "No such file", "/cwd"), "cannot start `sh`: No such file: `/cwd`"),
        (OSError(errno.ENOEXEC, "Format"), "cannot start `sh`: Format (a script needs a first line like `#!/bin/sh`)"),
        (OSError("too long"), "cannot start `sh`: too long"),
    ],
)
def test_why_a_replica_was_not_started(tmp_path: Path, error: OSError, said: str) -> None:
    """It stands at the end of its stderr; where that cannot be written it is returned for the job."""
    replica = _replica(tmp_path)
    assert why_not_started(replica, error) == said
    os.makedirs(replica.request["folder"])
    Path(replica.request["stderr"]).write_text("before\n")
    assert why_not_started(replica, error) == ""
    assert Path(replica.request["stderr"]).read_text() == f"before\ntorchx: {said}\n"


def test_the_folder_of_a_replica_is_private_in_the_jobs_folder(tmp_path: Path) -> None:
    """In the folder of the user's own logs it is as the umask says; its logs are added to."""
    here = os.getcwd()
    old = os.umask(0o022)
    try:
        for folder, mode in ((tmp_path / "job" / "r" / "0", 0o700), (tmp_path / "logs" / "r" / "0", 0o755)):
            logs = {name: str(folder / f"{name}.log") for name in ("stdout", "stderr")}
            replica = _replica(tmp_path, folder=str(folder), argv=["sh", "-c", "pwd; echo e >&2"], **logs)
            for _ in range(2):
                pid = spawn(replica, str(tmp_path / "job"), {"PATH": os.environ["PATH"]})
                assert os.waitpid(pid, 0)[1] == 0
                assert os.getcwd() == "/"
            assert stat.S_IMODE(folder.stat().st_mode) == mode
            assert stat.S_IMODE((folder / "stdout.log").stat().st_mode) == 0o644
            assert (folder / "stdout.log").read_text() == f"{tmp_path}/job\n" * 2
            assert (folder / "stderr.log").read_text() == "e\n" * 2
    finally:
        os.umask(old)
        os.chdir(here)


# -- state files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0o020, 0o002])
@pytest.mark.parametrize("which", ["", "state"])
def test_files_that_others_can_write_to(tmp_path: Path, bits: int, which: str) -> None:
    """The group or all; what they can only read is trusted."""
    _write(tmp_path / "job", JobState({}, [("r", 1)]))
    path = tmp_path / "job" / which
    os.chmod(path, 0o755)
    check_owner(str(tmp_path / "job"))
    os.chmod(path, 0o755 | bits)
    with pytest.raises(ForeignJobError, match=rf"`{tmp_path}/job.*` \(mode {0o755 | bits:04o}\)"):
        check_owner(str(tmp_path / "job"))


def test_what_is_no_folder_of_a_job(tmp_path: Path) -> None:
    """A file, a link to a folder, and nothing at all: there is no such job, as the operating system says it."""
    _write(tmp_path / "job", JobState({}, [("r", 1)]))
    (tmp_path / "link").symlink_to("job")
    for path, error in (("job/state", NotADirectoryError), ("link", NotADirectoryError), ("none", FileNotFoundError)):
        with pytest.raises(error):
            check_owner(str(tmp_path / path))


def test_words_of_a_state_file() -> None:
    """All that is printable stays readable, but for what separates words; any bytes of a path survive."""
    assert escape("a/b.c~!{}") == "a/b.c~!{}"
    assert escape(" %:,=\n\x7fé") == "%20%25%3a%2c%3d%0a%7f%c3%a9"
    assert unescape("a%20b%25c%c3%a9") == "a b%cé"
    assert unescape(escape("\udcff/x")) == "\udcff/x"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data.replace(b" 1 ", b" 2 ", 1), r"a state file of format b'2'; this version of torchx reads 1"),
        (lambda data: data[:-112], "it has fewer lines than replicas"),
        (lambda data: data[:-1], "cut off: it has fewer lines"),
        (lambda data: b"x" + data, "^not a state file$"),
        (lambda data: data[:300] + b"!" + data[301:], "cut off, or in the middle of being written"),
    ],
)
def test_what_is_wrong_with_a_state_file(tmp_path: Path, change: Callable[[bytes], bytes], why: str) -> None:
    """It is said which: another format, a part of a file, a damaged one, or none at all."""
    _write(tmp_path, JobState({}, [("r", 2)]))
    data = statefile.read_bytes(str(tmp_path / "state"))
    assert len(parse_state(data).replicas) == 2
    with pytest.raises(StateFileError, match=why):
        parse_state(change(data))
