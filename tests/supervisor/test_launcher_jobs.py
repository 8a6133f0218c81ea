"""The launcher with a caller: takes requests, keeps supervisors in reserve, and speaks for those that were killed."""

from __future__ import annotations

import marshal
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.supervisor.forks import PATIENCE_S, Fork, eventually, forked, in_fork, request, role, state
from torchx.supervisor import launcher, proctree
from torchx.supervisor.launcher import HEADER, MAGIC, Launcher, read_request, signal_name
from torchx.supervisor.layout import AT_END_FILE, CONTROL_FIFO
from torchx.supervisor.reserve import Reserve
from torchx.supervisor.statefile import has_supervisor
from torchx.supervisor.supervise import Supervisor


class Caller:
    """Submits to a launcher that runs in a fork."""

    def __init__(self, prepare: Callable[[], object] = lambda: None) -> None:
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()

        def work() -> None:
            os.close(self.requests)
            os.close(self.answers)
            prepare()
            Launcher(requests, answers).run()

        self.fork = Fork(work)
        os.close(requests)
        os.close(answers)

    def submit(self, asked: dict) -> bytes:
        body = marshal.dumps(asked, 2)
        os.write(self.requests, MAGIC + len(body).to_bytes(8, "big") + body)
        return self.answer()

    def answer(self) -> bytes:
        assert select.select([self.answers], [], [], PATIENCE_S)[0], "no answer"
        return os.read(self.answers, 1000)

    def leave(self) -> None:
        if self.requests >= 0:
            os.close(self.requests)
            self.requests = -1

    def close(self) -> None:
        self.leave()
        os.close(self.answers)
        self.fork.kill()


@pytest.fixture
def caller() -> Iterator[Caller]:
    caller = Caller()
    yield caller
    caller.close()


def _ended(folder) -> str:
    eventually(lambda: not has_supervisor(str(folder)))
    return state(folder).state


def test_a_launcher_ends_with_its_caller_and_its_last_job(caller, gate, tmp_path) -> None:
    """A job is taken with `K`; the caller goes; the job runs on, and the launcher with it, until the job is over."""
    job = tmp_path / "job"
    assert caller.submit(request(job, role(gate.wait))) == b"K\n"
    caller.leave()
    assert state(job).guardian == (caller.fork.pid, proctree.start_ticks(caller.fork.pid))
    assert select.select([caller.answers], [], [], PATIENCE_S)[0]  # nobody who answers is left
    assert os.read(caller.answers, 10) == b""
    assert proctree.start_ticks(caller.fork.pid)
    gate.open()
    assert caller.fork.end() == 0
    assert _ended(job) == "SUCCEEDED"


def test_a_supervisor_is_ready_before_it_is_needed(caller, tmp_path, gate) -> None:
    """While a job runs another supervisor waits; all of them have sessions of their own once they have a job."""
    assert caller.submit(request(tmp_path / "1", role(gate.wait))) == b"K\n"
    assert caller.submit(request(tmp_path / "2", role(gate.wait))) == b"K\n"
    pids = [state(tmp_path / name).supervisor for name in "12"]
    assert len(set(pids)) == 2
    assert [os.getsid(pid) for pid in pids] == pids
    gate.open(2)
    assert [_ended(tmp_path / name) for name in "12"] == ["SUCCEEDED"] * 2


def test_the_next_one_reads_while_a_job_runs(tmp_path, gate) -> None:
    """A supervisor lets go of its turn as soon as it has a job, not when the job turns out to last."""
    caller = Caller(_no_job_lasts)
    for name in "12":
        assert caller.submit(request(tmp_path / name, role(gate.wait))) == b"K\n"
    eventually(lambda: state(tmp_path / "1").state == "RUNNING")  # the answer comes before the first process
    gate.open(2)
    assert [_ended(tmp_path / name) for name in "12"] == ["SUCCEEDED"] * 2
    caller.leave()
    assert caller.fork.end() == 0
    caller.close()


def test_a_supervisor_takes_another_job_after_a_short_one(tmp_path) -> None:
    """Up to as many as a process may take; then it is another process."""
    caller = Caller(lambda: (setattr(launcher, "_JOBS_PER_PROCESS", 2), _no_job_lasts()))
    pids = []
    for number in range(8):
        assert caller.submit(request(tmp_path / str(number), role("true"))) == b"K\n"
        assert _ended(tmp_path / str(number)) == "SUCCEEDED"
        pids.append(state(tmp_path / str(number)).supervisor)
    caller.leave()
    assert caller.fork.end() == 0
    caller.close()
    assert max(pids.count(pid) for pid in pids) == 2


def _no_job_lasts() -> None:
    from torchx.supervisor import supervise

    supervise._SHORT_S = PATIENCE_S


@pytest.mark.parametrize(("replicas", "again"), [(8, True), (9, False)])
def test_after_a_big_job_the_memory_is_given_back(tmp_path, replicas, again) -> None:
    """A supervisor of more than eight replicas takes no other job."""

    def steps() -> None:
        _no_job_lasts()
        _requests, answers, _news = (os.open(os.devnull, os.O_RDWR) for _ in range(3))
        reserve = Reserve(_requests, answers, _news, (os.getppid(), 0))
        assert launcher.serve_one(request(tmp_path / "job", role(*["true"] * replicas)), reserve) is again

    in_fork(steps)


def test_a_job_that_lasts_lets_go_of_the_callers_pipes(caller, tmp_path, gate) -> None:
    """Else the caller would not see that all the others are gone."""
    assert caller.submit(request(tmp_path / "job", role(gate.wait))) == b"K\n"
    caller.leave()
    assert os.read(caller.answers, 10) == b""  # the end, although the job runs
    assert state(tmp_path / "job").state == "RUNNING"
    gate.open()
    assert caller.fork.end() == 0


def test_a_caller_that_was_killed_before_the_answer(caller, tmp_path) -> None:
    """The job was handed over: it goes on although nobody hears that it was taken."""
    body = marshal.dumps(request(tmp_path / "job", role("echo done")), 2)
    os.close(caller.answers)
    caller.answers = os.open(os.devnull, os.O_RDONLY)
    os.write(caller.requests, MAGIC + len(body).to_bytes(8, "big") + body)
    eventually((tmp_path / "job" / "state").exists)
    assert _ended(tmp_path / "job") == "SUCCEEDED"
    assert (tmp_path / "job" / "r" / "0" / "combined.log").read_text() == "done\n"
    caller.leave()
    assert caller.fork.end() == 0


def test_a_job_that_cannot_be_taken(caller, tmp_path) -> None:
    """The caller hears why, and the next one is taken."""
    asked = request(tmp_path / "job", role("true"))
    assert caller.submit({**asked, "job": str(tmp_path / "none")}).startswith(b"E[Errno 2] No such file")
    assert caller.submit(asked) == b"K\n"
    assert _ended(tmp_path / "job") == "SUCCEEDED"
    assert caller.submit({"job": str(tmp_path / "x")}) == b"E'env'"


@pytest.mark.parametrize(
    "message", [b"", b"txr", b"what is this?", MAGIC + b"\0" * 7 + b"\5ab"], ids=["end", "cut", "other", "half"]
)
def test_requests_that_are_none(caller, message) -> None:
    """At the end of the requests, whatever it is, the launcher ends."""
    os.write(caller.requests, message)
    caller.leave()
    assert caller.fork.end() == 0
    assert caller.answer() == b""


def test_a_request_is_read_whole(tmp_path) -> None:
    """In however many pieces it comes; what follows is left for the next reader."""
    asked: Any = {"env": {str(i): "x" * 1000 for i in range(3000)}}
    body = marshal.dumps(asked, 2)
    assert len(body) > 1 << 21
    read, write = os.pipe()

    def work() -> None:
        for piece in (MAGIC[:2], MAGIC[2:] + len(body).to_bytes(8, "big"), body, MAGIC):
            view = memoryview(piece)
            while view:
                view = view[os.write(write, view) :]

    with forked(work) as fork:
        assert read_request(read) == asked
        assert fork.end() == 0
    os.close(write)
    assert os.read(read, 100) == MAGIC
    assert HEADER == 12
    os.close(read)


@pytest.mark.parametrize(
    "sent", [MAGIC[:-1] + b"?" + (1).to_bytes(8, "big") + b"N", MAGIC + b"\0"], ids=["other", "cut"]
)
def test_what_is_no_request(sent) -> None:
    """Bytes of somebody else's, as long as ours or not, are not taken for a request."""
    read, write = os.pipe()
    os.write(write, sent)
    os.close(write)
    assert read_request(read) is None
    os.close(read)


def test_a_supervisor_that_is_killed(caller, tmp_path, gate) -> None:
    """Its job FAILED, with the signal's name; nothing of the job is alive, and other jobs are not touched."""
    job, other = tmp_path / "job", tmp_path / "other"
    assert caller.submit(request(other, role(gate.wait))) == b"K\n"
    script = f"trap '' TERM; setsid sh -c \"echo \\$\\$ > '{job}/pid'; while :; do {gate.wait}; done\" & wait"
    assert caller.submit(request(job, role(script, f"trap '' TERM; {gate.wait}"))) == b"K\n"
    daemon = int(eventually(lambda: os.path.exists(job / "pid") and (job / "pid").read_text()))
    eventually(lambda: all(line.pid for line in state(job).replicas))
    pids = [daemon, *(line.pid for line in state(job).replicas)]
    os.kill(state(job).supervisor, signal.SIGKILL)
    eventually(lambda: state(job).state == "FAILED")
    read = state(job)
    assert read.msg == "the supervisor of the job was killed by SIGKILL; its processes were ended"
    assert [r.state for r in read.replicas] == ["CANCELLED"] * 2
    assert not any(proctree.start_ticks(pid) for pid in pids)
    assert state(other).state == "RUNNING" and has_supervisor(str(other))
    assert caller.answer() == b"Djob\n"
    assert caller.submit(request(tmp_path / "next", role("true"))) == b"K\n"
    gate.open()
    assert _ended(other) == "SUCCEEDED"
    caller.leave()
    assert caller.fork.end() == 0


def test_what_a_killed_supervisor_leaves_without_marks(caller, tmp_path, gate) -> None:
    """A process that has neither the environment nor the limits of its job is known by its parent, who is gone."""
    job = tmp_path / "job"
    script = (
        "import os, resource; os.fork() and os._exit(0); os.setsid(); resource.setrlimit(10, (4242, 4242)); "
        f"os.execve('/bin/sh', ['sh', '-c', \"echo $$ > '{job}/pid'; {gate.wait}\"], {{}})"
    )
    start = role(gate.wait)
    start["replicas"][0] |= {"argv": ["sh", "-c", f'"$0" -c "$1"; {gate.wait}', sys.executable, script]}
    assert caller.submit(request(job, start)) == b"K\n"
    daemon = int(eventually(lambda: os.path.exists(job / "pid") and (job / "pid").read_text()))
    assert proctree.environment(daemon) == {} and not proctree.has_mark(daemon, state(job).facts["mark"])
    os.kill(state(job).supervisor, signal.SIGKILL)
    assert caller.answer() == b"Djob\n"
    assert not proctree.start_ticks(daemon)


def test_programs_at_the_end_of_jobs_outlive_other_supervisors(caller, tmp_path, gate) -> None:
    """One that a supervisor had started when it was killed, and one that was started in its place."""
    job, other = tmp_path / "job", tmp_path / "other"
    asked = request(job, role("true"))
    (job / AT_END_FILE).write_bytes(f"/bin/sh\0-c\0echo $$ >> '{job}/pids'; {gate.wait}\0\0".encode())

    def pids() -> list[int]:
        return [*map(int, (job / "pids").read_text().split())] if (job / "pids").exists() else []

    assert caller.submit(asked) == b"K\n"
    eventually(pids)
    os.kill(state(job).supervisor, signal.SIGKILL)
    assert caller.answer() == b"Djob\n"
    eventually(lambda: len(pids()) == 2)
    assert caller.submit(request(other, role(gate.wait))) == b"K\n"
    os.kill(state(other).supervisor, signal.SIGKILL)
    assert caller.answer() == b"Dother\n"
    assert all(map(proctree.start_ticks, pids())) and state(job).state == "SUCCEEDED"


def _crash(*_: object) -> None:
    raise ZeroDivisionError("a defect")


def test_a_supervisor_that_crashes(tmp_path) -> None:
    """What is needed to find the defect is in the job's folder, and the job says that it was one."""

    def prepare() -> None:
        Supervisor.run = _crash  # type: ignore[method-assign,assignment]

    caller = Caller(prepare)
    assert caller.submit(request(tmp_path / "job", role("true"))) == b"K\n"
    eventually(lambda: state(tmp_path / "job").state == "FAILED")
    assert "crashed with exit code 70" in state(tmp_path / "job").msg
    note = (tmp_path / "job" / "supervisor.log").read_text()
    assert "ZeroDivisionError: a defect" in note and "serve_one" in note
    caller.leave()
    assert caller.fork.end() == 0
    caller.close()


def test_a_reserve_that_crashes_is_not_forked_again_and_again() -> None:
    """The launcher ends: the caller hears of it at once."""

    def prepare() -> None:
        launcher.serve = _crash  # type: ignore[assignment]

    caller = Caller(prepare)
    assert caller.answer() == b""
    assert caller.fork.end() == 0
    caller.close()


def test_a_killed_reserve_is_replaced(caller, tmp_path) -> None:
    """One that was killed while it waited has lost no job; the next request is taken."""
    spare = eventually(lambda: proctree.descendants(proctree.snapshot(), {caller.fork.pid})[1:])[0]
    os.kill(spare.pid, signal.SIGKILL)
    eventually(lambda: not proctree.start_ticks(spare.pid))  # else it might take the request with it
    assert caller.answer() == b"D\n"  # it had none, but only a caller can know that it had sent none
    assert caller.submit(request(tmp_path / "job", role("true"))) == b"K\n"
    assert state(tmp_path / "job").supervisor != spare.pid
    assert _ended(tmp_path / "job") == "SUCCEEDED"


def test_old_jobs_are_removed_after_a_job(caller, tmp_path) -> None:
    """With a policy in the request, and by a process that takes no other job."""
    base = tmp_path / "base"
    old = base / "s" / "old"
    assert caller.submit(request(old, role("true"))) == b"K\n"
    _ended(old)
    asked = request(base / "s" / "new", role("true"))
    policy = {"base": str(base), "max_age_s": 1e-9, "max_bytes": 0}
    assert caller.submit({**asked, "retention": policy}) == b"K\n"
    eventually(lambda: not old.exists())
    caller.leave()
    assert caller.fork.end() == 0


def _news_of(said: list[bytes]) -> list[tuple[dict[int, str], set[int]]]:
    requests, answers = os.pipe()
    guardian = Launcher(requests, answers)
    guardian.idle = {7, 12}
    seen = []
    for news in said:
        os.write(guardian.reserve.news, news)
        assert guardian._read_news()
        seen.append((dict(guardian.jobs), set(guardian.idle)))
    assert guardian._read_news()  # nothing new, and not the end
    assert guardian.jobs == seen[-1][0]
    for fd in (guardian._news, guardian._wake, guardian._wake_writer):
        os.close(fd)
    guardian.reserve.leave()
    return seen


def test_news_may_come_in_pieces() -> None:
    """Whole words are taken, what is cut waits for its rest; who is free again is idle."""
    assert _news_of([b"7 /a b\x0012 /c", b"d\0", b"7\0"]) == [
        ({7: "/a b"}, {12}),
        ({7: "/a b", 12: "/cd"}, set()),
        ({12: "/cd"}, {7}),
    ]


def test_the_end_of_the_news_is_told_from_nothing_new() -> None:
    """False only when nobody can write any more."""
    requests, answers = os.pipe()
    guardian = Launcher(requests, answers)
    guardian._close()
    assert guardian._read_news() is False
    assert guardian.open is False
    guardian._close()  # and closes nothing twice
    for fd in (guardian._news, guardian._wake, guardian._wake_writer):
        os.close(fd)


def test_a_job_of_a_supervisor_that_nobody_can_wait_for() -> None:
    """Where there is no child at all there is no job either."""

    def steps() -> None:
        guardian = Launcher(*os.pipe())
        guardian.jobs[1] = "/x"
        guardian._reap()
        assert guardian.jobs == {}

    in_fork(steps)


def test_a_supervisor_that_took_a_job_and_died_at_once(tmp_path) -> None:
    """Its last words are heard before its end: the job is on record as FAILED."""

    def steps() -> None:
        guardian = Launcher(*os.pipe())
        folder = tmp_path / "job"
        asked = request(folder, role("true"))

        def work() -> int:
            Supervisor(asked, guardian.reserve.guardian)
            guardian.reserve.report(str(folder))
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        guardian.idle.add(Fork(work).pid)
        eventually(lambda: guardian._reap() or not guardian.idle)
        assert state(folder).state == "FAILED"
        assert (guardian.jobs, guardian.open) == ({}, True)

    in_fork(steps)


def test_names_of_signals() -> None:
    """By name where it has one."""
    assert (signal_name(9), signal_name(63)) == ("SIGKILL", "signal 63")


def test_a_job_that_cannot_be_reported_is_not_taken(tmp_path) -> None:
    """Without a guardian who knows of it nobody would end it: the caller finds another launcher."""

    def steps() -> None:
        news = os.pipe()
        os.close(news[0])
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        reserve = Reserve(*os.pipe(), news[1], (os.getppid(), 0))
        assert launcher.serve_one(request(tmp_path / "job", role("true")), reserve) is False
        assert os.listdir(tmp_path / "job") == []

    in_fork(steps)


def test_a_caller_that_has_turned_to_another_launcher(tmp_path) -> None:
    """The job that the other one runs in this folder is left alone: this supervisor ends without an error."""

    def steps() -> None:
        asked = request(tmp_path / "job", role("true"))
        os.mkfifo(tmp_path / "job" / CONTROL_FIFO)
        news, answers = os.pipe(), os.pipe()
        os.close(answers[0])
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        reserve = Reserve(os.pipe()[0], answers[1], news[1], (os.getppid(), 0))
        assert launcher.serve_one(asked, reserve) is False
        assert os.listdir(tmp_path / "job") == [CONTROL_FIFO]

    in_fork(steps)


def test_tidying_up_gives_way_to_others(tmp_path) -> None:
    """Nobody waits for it."""

    def steps() -> None:
        before = os.nice(0)
        launcher._tidy_up({"base": str(tmp_path), "max_age_s": 1.0, "max_bytes": 0})
        assert os.nice(0) == min(19, before + 10)

    in_fork(steps)
