"""A job's state as any process sees it, also when its supervisor, its machine or its folder is gone."""

from __future__ import annotations

import errno
import os
import select
import threading
from collections.abc import Iterator

import pytest

from tests.supervisor.forks import PATIENCE_S, Clock, Gate, eventually, forked, state
from torchx.supervisor import orphans, proctree, reader, statefile
from torchx.supervisor.reader import JobReader, send_command, wait_for_end
from torchx.supervisor.statefile import ForeignJobError, JobState, StateFileError, StateWriter, has_supervisor


class Written:
    """A job's folder with a state, and a FIFO that the test may hold open as a supervisor does."""

    def __init__(self, folder) -> None:
        self.folder = str(folder)
        facts = {
            "app_id": "a",
            "boot": proctree.boot_id(),
            "pidns": proctree.pid_namespace(),
            "host": os.uname().nodename,
        }
        self.job = JobState(facts, [("r", 1)])
        self.job.state = self.job.replicas[0].state = "RUNNING"
        self.fifo = -1

    def write(self) -> None:
        writer = StateWriter(f"{self.folder}/state", self.job)
        writer.flush()
        writer.close()

    def hold(self) -> None:
        os.mkfifo(f"{self.folder}/control")
        self.fifo = os.open(f"{self.folder}/control", os.O_RDONLY | os.O_NONBLOCK)

    def let_go(self) -> None:
        if self.fifo >= 0:
            os.close(self.fifo)
        self.fifo = -1


@pytest.fixture
def written(tmp_path) -> Iterator[Written]:
    written = Written(tmp_path)
    written.write()
    yield written
    written.let_go()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(reader, "time", clock)
    return clock


# -- reading -------------------------------------------------------------------------------------


def test_the_same_object_while_nothing_changes(written) -> None:
    """A change makes another one."""
    written.hold()
    looks = JobReader(written.folder)
    first = looks.read()
    assert first is not None and first.state == "RUNNING"
    assert looks.read() is first
    written.job.restarts = 1
    written.write()
    second = looks.read()
    assert second is not None and second is not first and second.restarts == 1


@pytest.mark.parametrize("ended", [True, False])
def test_no_such_job(tmp_path, written, ended) -> None:
    """None before there is one, and after it was deleted, also one that had ended."""
    assert JobReader(str(tmp_path / "none")).read() is None
    assert JobReader(str(tmp_path / "state")).read() is None  # not a folder
    written.hold()
    written.job.state = "SUCCEEDED" if ended else "RUNNING"
    written.write()
    looks = JobReader(written.folder)
    assert looks.read() is not None
    os.unlink(f"{written.folder}/state")
    assert looks.read() is None


def test_a_job_that_has_ended_is_not_read_again(written, monkeypatch) -> None:
    """It can become nothing else; whether it is there is all that is asked."""
    written.job.state = "SUCCEEDED"
    written.write()
    looks = JobReader(written.folder)
    first = looks.read()
    monkeypatch.setattr(reader, "read_bytes", lambda path: 1 / 0)
    assert looks.read() is first


def test_a_state_in_the_middle_of_a_change_is_read_again(written, monkeypatch) -> None:
    """What was torn is not remembered as what the file holds; what stays torn is an error."""
    written.hold()
    looks = JobReader(written.folder)
    real = statefile.read_bytes
    monkeypatch.setattr(reader, "read_bytes", lambda path: real(path)[:100])
    first = looks.read()
    assert first is not None and first.state == "RUNNING"
    monkeypatch.undo()
    assert looks.read() is not first
    with open(f"{written.folder}/state", "w", encoding="utf-8") as f:
        f.write("garbage")
    with pytest.raises(StateFileError):
        looks.read()


# -- a supervisor that is gone -------------------------------------------------------------------


def test_a_killed_supervisor_without_a_guardian(written, clock) -> None:
    """The job has FAILED, at once, and it is written down."""
    read = JobReader(written.folder).read()
    assert read is not None
    assert (read.state, read.msg) == ("FAILED", "the supervisor of the job was killed; its processes were ended")
    assert state(written.folder).state == "FAILED"
    assert clock.now == 1000.0


def test_a_guardian_of_that_pid_that_is_another(written, clock) -> None:
    """A pid that was given out again is not waited for."""
    written.job.guardian = (os.getpid(), proctree.start_ticks(os.getpid()) + 1)
    written.write()
    assert JobReader(written.folder).read().state == "FAILED"
    assert clock.now == 1000.0


def test_a_living_guardian_has_the_word(written, clock, monkeypatch) -> None:
    """It is waited for, for two seconds and no longer, in short steps; what it writes is what is read."""
    written.job.guardian = (os.getpid(), proctree.start_ticks(os.getpid()))
    written.write()
    steps = []

    def sleep(seconds: float) -> None:
        steps.append(seconds)
        clock.now += 0.5
        if len(steps) == 3:
            written.job.state, written.job.msg = "FAILED", "it was killed by SIGKILL"
            written.write()

    monkeypatch.setattr(clock, "sleep", sleep)
    read = JobReader(written.folder).read()
    assert read is not None and read.msg == "it was killed by SIGKILL"
    assert steps == [0.002] * 3
    written.job.state, written.job.msg = "RUNNING", ""
    written.write()
    clock.now = 1000.0
    read = JobReader(written.folder).read()
    assert read is not None and read.msg.startswith("the supervisor of the job was killed")
    assert clock.now == 1002.0


@pytest.mark.parametrize("meanwhile", ["ended", "deleted"])
def test_while_the_guardian_is_waited_for(written, clock, monkeypatch, meanwhile) -> None:
    """The job may come to its proper end, or be deleted."""
    written.job.guardian = (os.getpid(), proctree.start_ticks(os.getpid()))
    written.write()

    def sleep(_: float) -> None:
        if meanwhile == "ended":
            written.job.state = "SUCCEEDED"
            written.write()
        else:
            os.unlink(f"{written.folder}/state")

    monkeypatch.setattr(clock, "sleep", sleep)
    read = JobReader(written.folder).read()
    assert (read and read.state) == ("SUCCEEDED" if meanwhile == "ended" else None)


@pytest.mark.parametrize("meanwhile", ["ended", "deleted"])
def test_a_job_that_ends_while_it_is_looked_at(written, monkeypatch, meanwhile) -> None:
    """RUNNING in the file, and then no supervisor: it is read once more before anybody speaks of a kill."""
    looks = JobReader(written.folder)

    def ends(_: str) -> bool:
        if meanwhile == "ended":
            written.job.state = "SUCCEEDED"
            written.write()
        else:
            os.unlink(f"{written.folder}/state")
        return False

    monkeypatch.setattr(reader, "has_supervisor", ends)
    read = looks.read()
    assert (read and read.state) == ("SUCCEEDED" if meanwhile == "ended" else None)


def test_a_machine_that_was_restarted(written) -> None:
    """Same name, another boot: the job has FAILED, and whoever now holds its FIFO does not matter."""
    written.job.facts["boot"] = "another"
    written.write()
    read = JobReader(written.folder).read()
    assert read is not None and (read.state, read.msg) == ("FAILED", "the machine was restarted while the job ran")


@pytest.mark.parametrize("here", ["another", ""], ids=["elsewhere", "boot not known here"])
def test_a_job_of_another_machine(written, monkeypatch, here) -> None:
    """Its last known state, and nothing is written: its supervisor cannot be seen from here."""
    written.job.facts |= {"boot": "another one", "host": "another"}
    written.write()
    if not here:
        written.hold()
        written.job.facts["host"] = os.uname().nodename
        written.write()
        monkeypatch.setattr(proctree, "boot_id", lambda: "")
    read = JobReader(written.folder).read()
    assert read is not None and read.state == "RUNNING"
    assert state(written.folder).state == "RUNNING"


def test_a_job_of_another_user(written, monkeypatch) -> None:
    """It cannot be written down; what is returned says the same."""
    monkeypatch.setattr(orphans, "end_job", lambda folder, reason: False)
    read = JobReader(written.folder).read()
    assert read is not None and (read.state, "was killed" in read.msg) == ("FAILED", True)
    assert state(written.folder).state == "RUNNING"


# -- who may be believed -------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["folder writable", "state writable", "state a FIFO", "state a link"])
def test_a_job_that_others_could_have_forged(written, tmp_path, what) -> None:
    """It is refused before it is opened, in a sentence; no process is ended, and nothing is written."""
    path = tmp_path / "state"
    if what == "folder writable":
        os.chmod(tmp_path, 0o777)
    elif what == "state writable":
        os.chmod(path, 0o620)
    elif what == "state a link":
        os.rename(path, tmp_path / "other")
        os.symlink("other", path)
    else:
        os.unlink(path)
        os.mkfifo(path)
    with pytest.raises(
        ForeignJobError, match=r"^(others can write to `.*` \(mode 0[67][27][07]\)|`.*state` is not a reg)"
    ):
        JobReader(written.folder).read()
    if what.endswith("writable"):
        assert state(written.folder).state == "RUNNING"


def test_a_job_in_a_folder_of_another_user(written, monkeypatch) -> None:
    """Whoever made the folder could have written anything; root is no exception."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ForeignJobError, match=rf"`{written.folder}` belongs to user {os.getuid()}, and you are user"):
        JobReader(written.folder).read()


# -- the FIFO ------------------------------------------------------------------------------------


def test_who_has_a_supervisor(written, monkeypatch) -> None:
    """Only who holds the FIFO for reading counts; nothing stays open; what may not be looked at is taken as alive."""
    assert not has_supervisor(written.folder)
    assert not has_supervisor(f"{written.folder}/state")
    before = os.listdir("/proc/self/fd")
    written.hold()
    assert has_supervisor(written.folder)
    written.let_go()
    assert not has_supervisor(written.folder)
    assert os.listdir("/proc/self/fd") == before
    os.unlink(f"{written.folder}/control")
    os.symlink("control", f"{written.folder}/control")
    assert has_supervisor(written.folder)  # ELOOP: nobody knows


def test_asking_to_cancel(written, tmp_path) -> None:
    """The word arrives; False where nobody reads; what else is wrong is raised."""
    assert not send_command(written.folder, "cancel")
    assert not send_command(f"{written.folder}/state", "cancel")
    written.hold()
    before = os.listdir("/proc/self/fd")
    assert send_command(written.folder, "cancel")
    assert os.listdir("/proc/self/fd") == before
    assert os.read(written.fifo, 100) == b"cancel\n"
    written.let_go()
    assert not send_command(written.folder, "cancel")
    os.unlink(f"{written.folder}/control")
    os.symlink("control", f"{written.folder}/control")
    with pytest.raises(OSError) as e:
        send_command(written.folder, "cancel")
    assert e.value.errno == errno.ELOOP


def test_asking_often_enough(written) -> None:
    """A pipe that is full of cancellations takes no other one, and that is well."""
    written.hold()
    fd = os.open(f"{written.folder}/control", os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(fd, b"cancel\n" * 1000)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(fd, b"x")
    os.close(fd)
    assert send_command(written.folder, "cancel")


def test_asking_one_who_goes_at_that_moment(written, monkeypatch) -> None:
    """Between opening and writing: False, as if it had been gone before."""
    written.hold()
    real = os.write

    def write(fd: int, data: bytes) -> int:
        written.let_go()
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    assert send_command(written.folder, "cancel") is False


def _descriptors() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


def test_waiting_for_the_end(written, tmp_path) -> None:
    """It sleeps while the supervisor lives, and wakes when it lets go; False at once where there is none."""
    assert wait_for_end(written.folder, 1000) is False
    up = Gate(tmp_path / "up")
    hold = Gate(tmp_path / "hold")

    def supervise() -> None:
        written.hold()
        up.open()
        os.read(hold.fd, 1)

    with forked(supervise) as fork:
        up.reached()
        results = []
        waiting = threading.Thread(target=lambda: results.append(wait_for_end(written.folder, PATIENCE_S)))
        waiting.start()
        eventually(lambda: any(os.readlink(f"/proc/self/fd/{fd}").endswith("/control") for fd in _descriptors()))
        assert results == []
        hold.open()
        waiting.join()
        assert results == [True]
        assert fork.end() == 0
    up.close()
    hold.close()


@pytest.mark.parametrize(("timeout_s", "waited_ms"), [(0.25, 250), (3600.0, 3_600_000), (1e9, 3_600_000)])
def test_how_long_it_waits(written, monkeypatch, timeout_s, waited_ms) -> None:
    """As long as it was told, an hour at most: then the caller looks, and waits again."""
    written.hold()
    asked: list[float] = []

    class Poll:
        def register(self, fd: int, events: int) -> None:
            asked.append(events)

        def poll(self, timeout_ms: float) -> list[object]:
            asked.append(timeout_ms)
            return []

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(select, "poll", Poll)
    assert wait_for_end(written.folder, timeout_s) is True
    assert asked == [0, waited_ms]
    assert os.listdir("/proc/self/fd") == before
