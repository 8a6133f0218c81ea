"""The owner of one job between two attempts, when a job is silent, and on systems without ``/proc``, in small steps."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.forks import GUARDIAN, Clock, Gate, eventually, in_fork, request, role, started, state, until_dead
from torchx.supervisor import at_end, proctree, supervise
from torchx.supervisor.layout import AT_END_FILE, HANG_FILE
from torchx.supervisor.supervise import Supervisor

NOW = 1000.0


@pytest.fixture
def job(tmp_path: Path) -> str:
    return str(tmp_path / "job")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(NOW)
    monkeypatch.setattr(supervise, "time", clock)
    return clock


def _made(job: str, *roles: dict[str, Any], **more: Any) -> Supervisor:
    """A supervisor whose replicas run."""
    asked: Any = {**request(job, *roles, grace_s=10.0), **more}
    made = Supervisor(asked, GUARDIAN)
    while made._starts.now:
        made._start_pending()
    made.writer.flush()
    return made


# -- the end of an attempt -----------------------------------------------------------------------


def test_an_attempt_that_ends_at_its_limit_is_followed_by_another(job: str, gate: Gate, clock: Clock) -> None:
    """Its time stands still until all have ended; then it begins anew, and the reason of the last one is forgotten."""

    def steps() -> None:
        made = _made(job, role(gate.wait, gate.wait), again=["/bin/true"], limit={"seconds": 60, "text": "1m"})
        assert made._limit.due == NOW + 60
        made._end_attempt("timeout", "why")
        assert (made.job.kind, made.job.msg, made.job.restarts, made._outcome) == ("timeout", "why", 1, "")
        assert (made._limit.due, [r.stopping for r in made.replicas]) == (None, [True, True])
        made._end_attempt("preempted", "again")
        assert (made.job.kind, made.job.restarts) == ("timeout", 1), "it is ending already"
        for replica in made.replicas:
            until_dead(replica.line.pid)
        clock.now = NOW + 7
        made._reap(clock.now)
        made._sweep(clock.now)
        assert (made._starts.now, made._limit.due) == (made.replicas, NOW + 67)
        made.writer.flush()
        assert (state(job).kind, state(job).msg, state(job).restarts) == ("", "", 1)
        assert [(r.line.state, r.line.attempt) for r in made.replicas] == [("PENDING", 1)] * 2

    in_fork(steps)


def test_an_attempt_that_is_not_followed_by_another(job: str, gate: Gate, clock: Clock) -> None:
    """The program said no: the restart does not count, and the reason of the attempt is that of the job."""

    def steps() -> None:
        made = _made(job, role(gate.wait), again=["/bin/false"])
        made._end_attempt("timeout", "why")
        until_dead(made.replicas[0].line.pid)
        made._reap(NOW)
        made._sweep(NOW)
        assert (made._outcome, made.job.restarts, made.job.kind, made.job.msg) == ("FAILED", 0, "timeout", "why")
        assert (made._starts.now, made.replicas[0].line.attempt) == ([], 0)
        made.writer.flush()
        assert state(job).restarts == 0

    in_fork(steps)


def test_a_replica_that_is_restarted_alone(job: str, gate: Gate, clock: Clock) -> None:
    """The time of the job's attempt goes on, and so does its message."""

    def steps() -> None:
        limit = {"seconds": 60, "text": "1m"}
        made = _made(job, role("exit 3", gate.wait, retries=1, policy="REPLICA"), limit=limit)
        made.job.msg = "before"
        first = made.replicas[0]
        until_dead(first.line.pid)
        clock.now = NOW + 5
        made._reap(clock.now)
        made._sweep(clock.now)
        assert (made._starts.now, made._limit.due, made.job.msg) == ([first], NOW + 60, "before")

    in_fork(steps)


@pytest.mark.parametrize("how", ["ended", "outcome", "pending", "running"])
def test_whether_there_is_an_attempt_to_end(job: str, gate: Gate, clock: Clock, how: str) -> None:
    """Not when all replicas have ended, or the job is ending; replicas that are not started yet are one."""

    def steps() -> None:
        made = Supervisor(request(job, role(gate.wait)), GUARDIAN)
        if how != "pending":
            made._start_pending()
        if how == "ended":
            made._by_pid.clear()
        if how == "outcome":
            made._outcome = "SUCCEEDED"
        made._end_attempt("timeout", "why")
        over = how in ("ended", "outcome")
        assert (made.job.kind, made._outcome) == (
            "" if over else "timeout",
            {"ended": "", "outcome": "SUCCEEDED"}.get(how, "FAILED"),
        )
        made.writer.flush()
        assert state(job).kind == made.job.kind

    in_fork(steps)


@pytest.mark.parametrize(("word", "kept"), [(b"preempt", True), (b"expire", True), (b"cancel", False), (b"", False)])
def test_commands_between_two_attempts(job: str, gate: Gate, clock: Clock, word: bytes, kept: bool) -> None:
    """They are kept for the attempt that begins, but for a cancellation, which is for the whole job."""

    def steps() -> None:
        made = _made(job, role(gate.wait, gate.wait), again=["/bin/true"])
        made._end_attempt("timeout", "why")
        made._words = word
        made._obey()
        assert made._words == (word if kept else b"")
        assert made._outcome == ("CANCELLED" if word == b"cancel" else "")
        assert made.job.kind == "timeout"

    in_fork(steps)


def test_a_limit_that_is_made_to_expire(job: str, gate: Gate, clock: Clock) -> None:
    """At once if there is nothing to save; unknown words do nothing."""

    def steps() -> None:
        made = _made(job, role(gate.wait), limit={"seconds": 60, "text": "1m"})
        made._words = b"hello"
        made._obey()
        assert (made._words, made._outcome, made._limit.is_over(NOW)) == (b"", "", False)
        made._words = b"expire"
        made._obey()
        assert made._limit.is_over(NOW) and made._limit.why == "it reached its time limit (simulated)"
        assert made._timeout_ms() == 1.0

    in_fork(steps)


# -- silence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "kind", "again"), [("stacks", "", True), ("cancel", "timeout", False), ("retry", "timeout", True)]
)
def test_a_job_that_is_silent(
    job: str, gate: Gate, clock: Clock, monkeypatch: pytest.MonkeyPatch, action: str, kind: str, again: bool
) -> None:
    """The report is on disk when a notice is sent; then the job is left alone, ended, or its attempt is."""

    def steps() -> None:
        made = _made(job, role(gate.wait), again=["/bin/true"], watchdog={"seconds": 5, "action": action})
        sent: list[tuple[str, str, str]] = []
        monkeypatch.setattr(at_end, "start", lambda *words: sent.append((*words, state(job).msg)) or 4711)
        monkeypatch.setattr(made._watchdog, "turn", lambda now: None)
        made._watch(made._watchdog, NOW)
        assert (sent, state(job).msg) == ([], "")
        made._watchdog.text, made._watchdog.silent = "silent", True
        monkeypatch.setattr(made._watchdog, "turn", lambda now: "silent")
        made._watch(made._watchdog, 1234.6)
        assert sent == [(job, "1235", "silent")]
        assert (made._senders, made.job.kind, bool(made._again)) == ({4711}, kind, again)
        assert made._outcome == ("FAILED" if action == "cancel" else "")
        assert Path(job, HANG_FILE).read_text() == "silent"
        assert made.replicas[0].stopping is (action != "stacks")
        made._watchdog.text, made._watchdog.silent = "it continued", False
        monkeypatch.setattr(made._watchdog, "turn", lambda now: "it continued")
        made._watch(made._watchdog, 1240.0)
        made.writer.flush()
        assert (len(sent), state(job).msg) == (1, "it continued")

    in_fork(steps)


@pytest.mark.parametrize(
    ("kind", "msg", "left"), [("", "silent", ""), ("timeout", "silent", "silent"), ("", "other", "other")]
)
def test_a_report_is_no_reason_of_the_end(job: str, clock: Clock, kind: str, msg: str, left: str) -> None:
    """That a job was silent for some time is not said of one that has ended, unless it was ended for that."""

    def steps() -> None:
        made = started(job, role("true"))
        until_dead(made.replicas[0].line.pid)
        made._reap(NOW)
        made.job.kind, made.job.msg, made._watchdog.text, made._outcome = kind, msg, "silent", "SUCCEEDED"
        made._finish()
        assert (state(job).msg, state(job).ended) == (left, NOW)

    in_fork(steps)


def test_the_program_at_the_end_is_waited_for(job: str, tmp_path: Path, clock: Clock) -> None:
    """It is started when the last state is on disk, and the supervisor stays until it has ended."""

    def steps() -> None:
        words = f"/bin/sh\0-c\0cp '{job}/state' '{tmp_path}/seen'\0\0PATH={os.environ['PATH']}\0"
        made = started(job, role("true"))
        Path(job, AT_END_FILE).write_text(words)
        until_dead(made.replicas[0].line.pid)
        made._reap(NOW)
        made._senders.add(999_999_999)  # one that has been waited for already
        made._outcome = "SUCCEEDED"
        made._finish()
        assert (tmp_path / "seen").read_bytes() == Path(job, "state").read_bytes()
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    in_fork(steps)


def test_a_notice_that_is_being_sent_does_not_keep_the_job_open(job: str, gate: Gate, clock: Clock) -> None:
    """Two looks, one pause apart, that find nothing but its program are enough; it is not told to end."""

    def steps() -> None:
        made = started(job, role("true"))
        until_dead(made.replicas[0].line.pid)
        made._senders.add(os.posix_spawn("/bin/sh", ["sh", "-c", gate.wait], {"PATH": os.environ["PATH"]}))
        made._reap(NOW)
        made._sweep(NOW)
        assert not made._unclean and made._has_children
        made._next_sweep = 0.0
        assert not made._is_over(NOW)
        assert not made._is_over(NOW + 0.01)
        assert made._is_over(NOW + 0.02)
        assert made._sent_sigterm == set() and made._outcome == "SUCCEEDED"
        gate.open()

    in_fork(steps)


# -- without /proc -------------------------------------------------------------------------------


def test_without_proc_process_groups_are_ended(
    job: str, gate: Gate, up: Gate, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM once, SIGKILL at the deadline, and what is left of a group when its first process has ended."""

    def steps() -> None:
        child = f"(trap '' TERM; {up.pass_on}; while :; do {gate.wait}; done)"
        made = _made(job, role(f"trap '' TERM; {child} & {child}", f"{child} & {up.pass_on}; exit 0"))
        for _ in range(4):
            up.reached()
        first, second = made.replicas
        groups = {p.pid: p.group for p in proctree.snapshot().values() if p.group in (first.line.pid, second.line.pid)}
        monkeypatch.setattr(proctree, "HAS_PROC", False)
        until_dead(second.line.pid)
        made._reap(NOW)
        made._sweep(NOW)
        assert second not in made._unclean
        for pid, group in groups.items():
            if group == second.line.pid:
                until_dead(pid)
        sent: list[tuple[int, int]] = []
        real = proctree.signal_group
        monkeypatch.setattr(proctree, "signal_group", lambda *words: sent.append(words) or real(*words))
        made._cancel("")
        made._next_sweep = 0.0
        made._sweep(NOW + 9.9)
        assert sent == [(first.line.pid, signal.SIGTERM)]
        made._next_sweep = 0.0
        made._sweep(NOW + 10.0)
        assert sent[1:] == [(first.line.pid, signal.SIGKILL)]
        for pid in groups:
            until_dead(pid)
        eventually(lambda: made._reap(NOW + 10.1) or not made._by_pid)
        made._sweep(NOW + 10.1)
        made._has_children = True
        assert made._is_over(NOW + 10.1), "nothing can be known of what else is left"

    in_fork(steps)


# -- starts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exe", "code"), [("/no/such", 127), ("/etc/hostname", 126), ("/", 126)])
def test_exit_codes_of_what_cannot_be_started(job: str, clock: Clock, exe: str, code: int) -> None:
    """As those of a shell: 127 for a program that is not there, 126 for what cannot be run."""

    def steps() -> None:
        asked = request(job, role("true"))
        asked["roles"][0]["replicas"][0]["exe"] = exe
        made = Supervisor(asked, GUARDIAN)
        made._start_pending()
        line = made.replicas[0].line
        assert (line.exit, line.started, line.ended, line.pid, line.state) == (code, NOW, NOW, 0, "FAILED")
        assert (made._outcome, made._by_pid, state(job).replicas[0].exit) == ("FAILED", {}, code)

    in_fork(steps)


@pytest.mark.parametrize(
    ("marks", "restarting"),
    [([None, None], False), (["a", None], False), (["a", "b"], False), (["a", "a"], True)],
)
def test_when_the_whole_job_is_between_two_attempts(
    job: str, clock: Clock, marks: list[str | None], restarting: bool
) -> None:
    """When all its replicas wait for the same restart."""

    def steps() -> None:
        made = Supervisor(request(job, role("true", "true")), GUARDIAN)
        for replica, mark in zip(made.replicas, marks, strict=True):
            replica.restart = mark
        assert made._is_restarting() is restarting

    in_fork(steps)


def test_only_what_runs_is_sampled(job: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the GPUs that its own variables name, its attempt, and a file in its folder."""

    def steps() -> None:
        roles = role("true", gate.wait, gate.wait)
        roles["replicas"][1]["env"] = {"CUDA_VISIBLE_DEVICES": "3"}
        asked: Any = {**request(job, roles, env={"CUDA_VISIBLE_DEVICES": "1,2"}), "sample_s": 5.0}
        made = Supervisor(asked, GUARDIAN)
        looks: list[list[tuple[int, str | None, int, str]]] = []

        def look(roots: Any, now: float) -> None:
            looks.append([(r.pid, r.devices, r.attempt, r.path) for r in roots])
            if made.replicas[0].line.state == "SUCCEEDED" and len(looks[-1]) == 2:
                gate.open(2)

        monkeypatch.setattr(made._sampler, "look", look)
        made.replicas[1].line.attempt = 4
        made.run()
        lines = [r.line for r in made.replicas]
        both = [
            (lines[1].pid, "3", 4, f"{job}/r/1/metrics.jsonl"),
            (lines[2].pid, "1,2", 0, f"{job}/r/2/metrics.jsonl"),
        ]
        assert both in looks and looks[-1] == []

    in_fork(steps)
