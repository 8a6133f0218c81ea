"""The guardian of local jobs and its supervisors in small steps: who has died, who is told, what is left."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import Gate, in_fork, request, role, state, until_dead
from torchx.supervisor import launcher, proctree
from torchx.supervisor.launcher import Launcher
from torchx.supervisor.layout import CRASH_FILE
from torchx.supervisor.reserve import Reserve
from torchx.supervisor.statefile import JobState, StateWriter
from torchx.supervisor.supervise import Supervisor


class Guardian(Launcher):
    """A guardian whose caller is the test; to be used in a fork."""

    def __init__(self) -> None:
        self.ours, theirs = os.pipe()
        requests, self.requests = os.pipe()
        super().__init__(requests, theirs)

    def child(self, code: int) -> int:
        """A process that has ended with this exit code, or by a signal, and that nobody has waited for."""
        script = f"exit {code}" if code >= 0 else f"kill {code} $$"
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", script], {})
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    def told(self) -> bytes:
        """What the caller has heard since the last time."""
        return os.read(self.ours, 1000) if select.select([self.ours], [], [], 0)[0] else b""


def _running(folder: Path, pid: int = 0, ticks: int = 0) -> Path:
    folder.mkdir()
    facts = {"boot": proctree.boot_id(), "pidns": proctree.pid_namespace(), "logs": str(folder)}
    job = JobState(facts, [("r", 1)])
    job.state = job.replicas[0].state = "RUNNING"
    job.replicas[0].pid, job.replicas[0].ticks = pid, ticks
    writer = StateWriter(str(folder / "state"), job)
    writer.flush()
    writer.close()
    return folder


@pytest.mark.parametrize(
    ("code", "is_open", "told"),
    [(0, True, b""), (3, False, b""), (70, False, b""), (1, True, b"D\n"), (-9, True, b"D\n")],
    ids=["has left", "no more requests", "crashed", "failed", "killed"],
)
def test_a_supervisor_without_a_job_that_ends(code: int, is_open: bool, told: bytes) -> None:
    """The caller is told if it may have had a request; nobody else is forked if another one would end like it."""

    def steps() -> None:
        guardian = Guardian()
        pid = guardian.child(code)
        guardian.idle = {pid, 999_999_999}
        guardian._reap()
        assert (guardian.idle, guardian.open) == ({999_999_999}, is_open)
        assert guardian.told() == told

    in_fork(steps)


@pytest.mark.parametrize(
    ("code", "msg"),
    [
        (-9, "the supervisor of the job was killed by SIGKILL; its processes were ended"),
        (70, "the supervisor of the job crashed with exit code 70; its processes were ended"),
    ],
)
def test_a_supervisor_with_a_job_that_ends(tmp_path: Path, code: int, msg: str) -> None:
    """Its job has failed, and the caller hears the name of its folder; one that ends with 0 has recorded its end."""

    def steps() -> None:
        guardian = Guardian()
        job = _running(tmp_path / "job")
        guardian.jobs = {guardian.child(code): str(job), guardian.child(0): str(tmp_path / "fine"), 999_999_999: "x"}
        pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
        guardian._spared = {pid}
        guardian._reap()
        assert guardian.jobs == {999_999_999: "x"}
        assert (state(job).state, state(job).msg) == ("FAILED", msg)
        assert guardian.told() == b"Djob\n"
        assert proctree.start_ticks(pid), "a program of an earlier job goes on"

    in_fork(steps)


@pytest.mark.parametrize(("code", "ended"), [(0, "SUCCEEDED"), (5, "FAILED"), (-11, "FAILED")])
def test_an_orphan_that_has_ended_before(tmp_path: Path, code: int, ended: str) -> None:
    """A replica that ended together with its supervisor: its exit code is known, whoever is waited for first."""

    def steps() -> None:
        guardian = Guardian()
        replica = guardian.child(code)
        job = _running(tmp_path / "job", replica, 5)
        guardian.jobs = {guardian.child(-9): str(job)}
        guardian._reap()
        assert (state(job).replicas[0].state, state(job).replicas[0].exit) == (ended, code)
        assert guardian._ends == {}, "another process may have that pid next time"

    in_fork(steps)


def test_the_exit_code_of_an_orphan() -> None:
    """None for a child that runs and for a process that is no child; it is remembered once it is known."""

    def steps() -> None:
        guardian = Guardian()
        pid = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
        assert (guardian._code_of(pid), guardian._code_of(0), guardian._code_of(os.getppid())) == (None, None, None)
        os.kill(pid, signal.SIGTERM)
        until_dead(pid)
        assert guardian._code_of(pid) == guardian._code_of(pid) == -signal.SIGTERM
        assert guardian._code_of(guardian.child(7)) == 7

    in_fork(steps)


def test_a_job_whose_state_is_gone(tmp_path: Path) -> None:
    """What its killed supervisor left behind is ended all the same, and nothing else that the guardian has started."""
    gate, up = Gate(tmp_path / "gate"), Gate(tmp_path / "up")

    def steps() -> None:
        guardian = Guardian()
        env = {"PATH": os.environ["PATH"]}
        pids = [
            os.posix_spawn("/bin/sh", ["sh", "-c", f"{up.pass_on}; {gate.wait}"], env, setsid=True) for _ in range(4)
        ]
        for _ in pids:
            up.reached()
        left, with_job, idle, spared = pids
        guardian.jobs, guardian.idle, guardian._spared = {with_job: "/x"}, {idle}, {spared}
        guardian._supervisor_died(str(tmp_path / "none"), -9)
        assert [bool(proctree.start_ticks(pid)) for pid in (left, with_job, idle, spared)] == [False, True, True, True]

    in_fork(steps)
    gate.close()
    up.close()


def test_a_caller_that_does_not_read(tmp_path: Path) -> None:
    """The guardian does not wait for it, nor does it say anything once it has closed the pipe."""

    def steps() -> None:
        guardian = Guardian()
        os.set_blocking(guardian.reserve.answers, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(guardian.reserve.answers, b"x" * 4096)
        os.set_blocking(guardian.reserve.answers, True)
        guardian._say_died("/a/job")
        os.close(guardian.ours)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        guardian._say_died("/a/job")
        guardian._close()
        guardian._say_died("/a/job")

    in_fork(steps)


def test_a_spare_is_on_the_list_of_its_guardian(tmp_path: Path) -> None:
    """It does not hold the guardian's end of the news, or the guardian's death would not be heard by others."""

    def steps() -> None:
        guardian = Guardian()
        news = guardian._news

        def serve(reserve: Reserve) -> int:
            try:
                os.fstat(news)
            except OSError:
                return 5
            return 6

        launcher.serve = serve
        guardian._fork_spare()
        (pid,) = guardian.idle
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        os.fstat(news)

    in_fork(steps)


# -- supervisors ---------------------------------------------------------------------------------


def _reserve(patch: pytest.MonkeyPatch, *jobs: str) -> tuple[list[str], Reserve]:
    """A reserve with these requests, and what is done with them."""
    done: list[str] = []
    reserve = Reserve(*os.pipe(), os.open(os.devnull, os.O_RDWR), (os.getppid(), 0))
    requests: list[Any] = [{"job": job} for job in jobs]
    patch.setattr(reserve, "next_request", lambda read: requests.pop(0) if requests else None)
    patch.setattr(reserve, "rejoin", lambda: done.append("rejoin") or True)
    patch.setattr(os, "setsid", lambda: done.append("setsid"))
    patch.setattr(proctree, "become_subreaper", lambda: done.append("subreaper"))
    return done, reserve


def test_a_supervisor_serves_until_there_is_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the launcher's session once, for its first job; no more requests is another end than enough of them."""
    done, reserve = _reserve(monkeypatch, "a", "b")
    monkeypatch.setattr(launcher, "serve_one", lambda asked, _: done.append(asked["job"]) or True)
    assert launcher.serve(reserve) == 3
    assert done == ["setsid", "subreaper", "a", "rejoin", "b", "rejoin"]
    reserve.leave()


def test_a_supervisor_that_cannot_take_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends, and does not come back to the others first."""
    done, reserve = _reserve(monkeypatch, "a", "b")
    monkeypatch.setattr(launcher, "serve_one", lambda asked, _: done.append(asked["job"]))
    assert launcher.serve(reserve) == 0
    assert done == ["setsid", "subreaper", "a"]
    monkeypatch.setattr(reserve, "rejoin", lambda: False)
    monkeypatch.setattr(launcher, "serve_one", lambda asked, _: done.append(asked["job"]) or True)
    assert launcher.serve(reserve) == 0
    reserve.leave()


@pytest.fixture
def served(tmp_path: Path) -> Callable[[Any], tuple[bool, bytes, bytes]]:
    """Whether another job may follow, the answer, and the news; to be used in a fork."""

    def serve(asked: Any) -> tuple[bool, bytes, bytes]:
        news, answers = os.pipe(), os.pipe()
        reserve = Reserve(os.open(os.devnull, os.O_RDWR), answers[1], news[1], (os.getppid(), 0))
        again = launcher.serve_one(asked, reserve)
        return again, os.read(answers[0], 1000), os.read(news[0], 1000)

    return serve


def test_a_job_that_is_served(tmp_path: Path, served: Callable[[Any], tuple[bool, bytes, bytes]]) -> None:
    """The guardian hears of it, the caller that it was taken; after a policy to tidy up the process takes no other."""

    def steps() -> None:
        from torchx.supervisor import supervise

        supervise._SHORT_S = 600.0
        job = str(tmp_path / "a")
        assert served(request(job, role("true"))) == (True, b"K\n", b"%d %s\0" % (os.getpid(), os.fsencode(job)))
        policy = {"base": str(tmp_path / "none"), "max_age_s": 1.0, "max_bytes": 0}
        again, answer, _ = served({**request(tmp_path / "b", role("true")), "retention": policy})
        assert (again, answer) == (False, b"K\n")

    in_fork(steps)
    assert state(tmp_path / "b").state == "SUCCEEDED"


@pytest.mark.parametrize("error", [ZeroDivisionError("why"), ZeroDivisionError(), KeyboardInterrupt()])
def test_a_crash_before_and_after_the_answer(
    tmp_path: Path, served: Callable[[Any], tuple[bool, bytes, bytes]], error: BaseException
) -> None:
    """Before it the caller hears why; after it a note is in the job's folder, and the process ends by the error."""

    def crash(*_: object, **__: object) -> None:
        raise error

    def steps() -> None:
        asked = request(tmp_path / "job", role("true"))
        Supervisor.run = crash  # type: ignore[method-assign]
        with pytest.raises(type(error)):
            served(asked)
        assert type(error).__name__ in (tmp_path / "job" / CRASH_FILE).read_text()
        if isinstance(error, Exception):
            Supervisor.__init__ = crash  # type: ignore[method-assign]
            again, answer, _ = served(asked)
            assert (again, answer) == (False, b"E" + (str(error) or repr(error)).encode())

    in_fork(steps)
