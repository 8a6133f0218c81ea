"""The owner of one job in small steps, at times of the test's own: what is not due yet is not done."""

from __future__ import annotations

import os
import select
import signal

import pytest

from tests.supervisor.forks import (
    GUARDIAN,
    PATIENCE_S,
    Clock,
    eventually,
    forked,
    in_fork,
    request,
    role,
    started,
    state,
    until_dead,
)
from torchx.supervisor import proctree, supervise
from torchx.supervisor.replica import Replica, owner_of
from torchx.supervisor.statefile import read_bytes
from torchx.supervisor.supervise import Supervisor


@pytest.fixture
def job(tmp_path) -> str:
    return str(tmp_path / "job")


def _text(job: str, name: str, replica: str = "r/0") -> str:
    with open(f"{job}/{replica}/{name}.log", encoding="utf-8") as f:
        return f.read()


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock(1000.0)
    monkeypatch.setattr(supervise, "time", clock)
    return clock


def _states(supervisor: Supervisor) -> list[str]:
    return [r.line.state for r in supervisor.replicas]


def _owner(supervisor: Supervisor, process: proctree.Process | None) -> Replica | None:
    return owner_of(process, supervisor.folder, supervisor.replicas, supervisor._unclean)


def test_a_signal_wakes_it(job) -> None:
    """The end of a child is heard while it sleeps, at once, whatever else it waits for."""

    def steps() -> None:
        supervisor = Supervisor(request(job, role("true")), GUARDIAN)
        assert signal.set_wakeup_fd(supervisor._wake_writer) == supervisor._wake_writer
        supervisor._start_pending()
        assert select.select([supervisor._wake], [], [], PATIENCE_S)[0]

    in_fork(steps)


def test_the_start_of_an_attempt_forgets_the_one_before(job, gate, clock) -> None:
    """A new process is not taken for one that had the time of another; orphans that come later are children again."""

    def steps() -> None:
        supervisor = started(job, role(gate.wait, gate.wait))
        replica = supervisor.replicas[0]
        replica.line.ticks, replica.line.exit, replica.line.ended, replica.kills = 5, 1, 2.0, 3
        supervisor._start(replica)
        assert (replica.line.ticks, replica.line.exit, replica.line.ended, replica.kills) == (0, None, 0.0, 0)
        supervisor._has_children = False
        supervisor._reap(1000.0)
        assert supervisor._has_children

    in_fork(steps)


def test_logs_grow_while_the_job_runs(job, gate) -> None:
    """Whoever follows a job sees its lines before it ends."""
    with forked(lambda: Supervisor(request(job, role(f"echo x; {gate.wait}")), GUARDIAN).run()) as fork:
        eventually(lambda: os.path.exists(f"{job}/r/0/combined.log") and _text(job, "combined") == "x\n")
        assert state(job).state == "RUNNING"
        gate.open()
        assert fork.end() == 0


def test_a_clean_end_completes_the_log(job, gate, clock) -> None:
    """Of a replica that has ended and left nothing the log is looked at once more, while the others are still running."""

    def steps() -> None:
        supervisor = started(job, role("echo x", gate.wait))
        until_dead(supervisor.replicas[0].line.pid)
        supervisor._reap(1000.0)
        supervisor._sweep(1000.0)
        assert _text(job, "combined") == "x\n"

    in_fork(steps)


def test_sixteen_are_started_at_a_time(job) -> None:
    """Between them the supervisor looks whether it is to cancel; a job of RUNNING replicas is RUNNING at the first."""

    def steps() -> None:
        supervisor = Supervisor(request(job, role(*["true"] * 17)), GUARDIAN)
        assert supervisor.job.state == "PENDING"
        assert supervisor._timeout_ms() == 0
        supervisor._start_pending()
        assert _states(supervisor) == ["RUNNING"] * 16 + ["PENDING"]
        assert supervisor.job.state == "RUNNING"
        supervisor._start_pending()
        assert _states(supervisor) == ["RUNNING"] * 17

    in_fork(steps)


def test_grace_is_to_the_moment(job, gate, up, clock) -> None:
    """Before the deadline a replica that ignores SIGTERM lives, at the deadline it is killed."""

    def steps() -> None:
        supervisor = started(job, role(f"trap '' TERM; {up.pass_on}; {gate.wait}"), grace_s=10.0)
        up.reached()
        replica = supervisor.replicas[0]
        supervisor._cancel("told")
        assert (supervisor.job.msg, supervisor._outcome, replica.stopping) == ("told", "CANCELLED", True)
        for now in (1000.0, 1005.0, 1009.999):
            supervisor._sweep(now)
            assert (replica.kills, proctree.start_ticks(replica.line.pid)) == (0, replica.line.ticks)
        supervisor._cancel("told again")
        assert (supervisor.job.msg, replica.deadline) == ("told", 1010.0)
        supervisor._sweep(1010.1)
        assert replica.kills == 1
        until_dead(replica.line.pid)
        assert not supervisor._is_over(1010.1)
        clock.now = 1011.0
        supervisor._reap(1011.0)
        assert (replica.line.state, replica.line.exit, replica.line.ended) == ("CANCELLED", -9, 1011.0)
        supervisor._sweep(1011.0)
        assert supervisor._is_over(1011.0)

    in_fork(steps)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_is_set_moves_no_deadline(job, gate, up, clock, step) -> None:
    """Back by an hour: SIGKILL comes when its time is there, and the logs are followed; forth: it does not come before."""

    def steps() -> None:
        supervisor = started(job, role(f"trap '' TERM; echo out; {up.pass_on}; {gate.wait}"), grace_s=10.0)
        up.reached()
        replica = supervisor.replicas[0]
        clock.stepped = step
        clock.now += 3.0
        supervisor._follow(clock.monotonic())
        assert read_bytes(job + "/r/0/combined.log") == b"out\n"
        supervisor._cancel("told")
        assert replica.deadline == 1013.0
        assert 1.0 <= supervisor._timeout_ms() <= 20.0
        clock.now = 1012.9
        supervisor._sweep(clock.monotonic())
        assert proctree.start_ticks(replica.line.pid) == replica.line.ticks
        clock.now = 1013.1
        supervisor._sweep(clock.monotonic())
        until_dead(replica.line.pid)
        supervisor._reap(clock.monotonic())
        assert replica.line.ended == 1013.1 + step  # what is written down is the time of the wall

    in_fork(steps)


def test_sweeps_have_a_pause(job, gate, clock) -> None:
    """Processes are looked for every 20 ms, not at each event; never while all is well."""

    def steps() -> None:
        supervisor = started(job, role(gate.wait))
        supervisor._sweep(1000.0)
        assert supervisor._next_sweep == 0.0  # nothing is to go
        supervisor._cancel("")
        assert supervisor._next_sweep == pytest.approx(1000.02)
        assert 1 <= supervisor._timeout_ms() <= 21
        until_dead(supervisor.replicas[0].line.pid)
        supervisor._reap(1000.01)
        supervisor._sweep(1000.01)
        assert not supervisor._unclean

    in_fork(steps)


def test_a_new_end_is_not_put_off(job, gate, clock) -> None:
    """Who is to be ended is told at once, although the last look at processes was only a moment ago."""

    def steps() -> None:
        supervisor = started(job, role(gate.wait, gate.wait))
        supervisor._next_sweep = 1000.02
        supervisor._stop(supervisor.replicas[:1], 1000.01)
        assert len(supervisor._sent_sigterm) == 1
        until_dead(supervisor.replicas[0].line.pid)

    in_fork(steps)


def test_how_long_it_sleeps(job, gate, clock) -> None:
    """Until the next look at the logs, or until a job is no longer a short one; at least a millisecond."""

    def steps() -> None:
        supervisor = started(job, role(gate.wait))
        replica = supervisor.replicas[0]
        assert replica.follower is not None
        replica.follower.due = 1000.5
        assert supervisor._timeout_ms() == pytest.approx(500)
        supervisor._on_lasting = lambda: None
        assert supervisor._timeout_ms() == pytest.approx(50)
        clock.now = 1000.2
        assert supervisor._timeout_ms() == 1
        supervisor._on_lasting = None
        supervisor._by_pid.clear()
        assert supervisor._timeout_ms() is None
        supervisor._unclean.add(replica)
        supervisor._next_sweep = 1000.21
        assert supervisor._timeout_ms() == pytest.approx(10)
        supervisor._unclean.clear()
        supervisor._outcome = "FAILED"
        assert supervisor._timeout_ms() == pytest.approx(10)
        supervisor._outcome = ""
        supervisor._by_pid[1] = replica
        replica.stopping, replica.follower = True, None
        assert supervisor._timeout_ms() == pytest.approx(10)

    in_fork(steps)


@pytest.mark.parametrize(("replicas", "pause_s"), [(1, 0.2), (500, 1.0), (2000, 2.0)])
def test_silent_replicas_are_looked_at_more_rarely_the_more_there_are(job, replicas, pause_s) -> None:
    """From five times a second to once in two seconds."""

    def steps() -> None:
        supervisor = Supervisor(request(job, role(*["true"] * replicas)), GUARDIAN)
        assert supervisor._latest_look_s == pytest.approx(pause_s)

    in_fork(steps)


def test_logs_are_followed_when_they_are_due(job, gate, clock) -> None:
    """Neither earlier, nor of replicas that have ended and left nothing."""

    def steps() -> None:
        supervisor = started(job, role("echo x", gate.wait))
        first, second = supervisor.replicas
        until_dead(first.line.pid)
        assert first.follower is not None and second.follower is not None
        first.follower.due = second.follower.due = 1001.0
        supervisor._follow(1000.999)
        assert not os.path.exists(f"{job}/r/0/combined.log")
        supervisor._follow(1001.0)
        assert _text(job, "combined") == "x\n"
        supervisor._reap(1002.0)
        assert first.follower.due == 1002.0
        with open(f"{job}/r/0/stdout.log", "a", encoding="utf-8") as f:
            f.write("y\n")
        supervisor._follow(1002.0)  # it has ended, but something of it may still write
        assert _text(job, "combined") == "x\ny\n"
        supervisor._unclean.clear()
        first.follower.due = 1002.0
        with open(f"{job}/r/0/stdout.log", "a", encoding="utf-8") as f:
            f.write("z\n")
        supervisor._follow(1003.0)
        assert _text(job, "combined") == "x\ny\n"

    in_fork(steps)


def test_a_failed_replica_gives_its_children_the_grace(job, gate, up, clock) -> None:
    """What a replica left behind is told SIGTERM once, killed at the deadline, and its restart waits for it."""

    def steps() -> None:
        script = f"(trap '' TERM; {up.pass_on}; while :; do {gate.wait}; done) & read -r _ < '{job}/go'; exit 1"
        asked = request(job, role(script, gate.wait, retries=1, policy="REPLICA"), grace_s=10.0)
        os.mkfifo(f"{job}/go")
        supervisor = Supervisor(asked, GUARDIAN)
        supervisor._start_pending()
        replica = supervisor.replicas[0]
        up.reached()
        with open(f"{job}/go", "w", encoding="utf-8") as f:
            f.write("\n")
        until_dead(replica.line.pid)
        supervisor._reap(1000.0)
        assert (replica.line.state, replica.deadline) == ("FAILED", 1010.0)
        assert (supervisor.job.restarts, supervisor.job.first, supervisor._outcome) == (1, -1, "")
        (orphan,) = eventually(supervisor._orphans)
        ticks = proctree.start_ticks(orphan)
        supervisor._sweep(1000.1)
        assert len(supervisor._sent_sigterm) == 1
        supervisor._sweep(1009.9)
        assert (proctree.start_ticks(orphan), replica.kills, replica.line.attempt) == (ticks, 0, 0)
        assert supervisor._unclean == {replica} and not supervisor._starts.now
        supervisor._sweep(1010.0)
        assert replica.kills == 1
        until_dead(orphan)
        supervisor._reap(1010.1)
        supervisor._sweep(1010.1)
        assert (replica.line.state, replica.line.attempt, supervisor._starts.now) == ("PENDING", 1, [replica])
        assert supervisor._has_children
        supervisor._start_pending()
        assert (replica.line.state, replica.line.started, replica.line.ended, replica.kills) == (
            "RUNNING",
            1000.0,
            0.0,
            0,
        )
        assert (replica.line.exit, replica.stopping) == (None, False)

    in_fork(steps)


def test_a_process_that_does_not_die_is_given_up(job, gate, up, clock) -> None:
    """After more than 500 SIGKILLs, and not one earlier: in an uninterruptible wait even that does not help."""

    def steps() -> None:
        supervisor = started(job, role("true"))
        replica = supervisor.replicas[0]
        until_dead(replica.line.pid)
        supervisor._reap(1000.0)
        assert supervisor._unclean == {replica}
        replica.kills = 500
        supervisor._settle({replica}, 1000.0)
        assert supervisor._unclean == {replica}
        replica.kills = 501
        supervisor._settle({replica}, 1000.0)
        assert not supervisor._unclean
        supervisor._rest.kills = 500
        assert supervisor._end_the_rest(1000.0)
        supervisor._rest.kills = 501
        assert not supervisor._end_the_rest(1000.0)

    in_fork(steps)


def test_daemons_that_hide_are_ended_after_the_last_replica(job, up, tmp_path, clock) -> None:
    """Without the job's marks and in another session: told SIGTERM, killed when the grace is over."""

    def steps() -> None:
        script = f"env -i setsid sh -c \"trap '' TERM; echo x > '{up.path}'; while :; do sleep 1000; done\" & {up.wait}; exit 0"
        supervisor = started(job, role(script), grace_s=10.0)
        replica = supervisor.replicas[0]
        until_dead(replica.line.pid)
        supervisor._reap(1000.0)
        supervisor._sweep(1000.0)
        assert not supervisor._unclean  # it belongs to no replica that anybody could know
        assert supervisor._orphans()
        assert not supervisor._is_over(1000.1)
        assert supervisor._outcome == "SUCCEEDED"
        assert (supervisor._rest.deadline, supervisor._rest.kills) == (1010.1, 0)
        assert len(supervisor._sent_sigterm) >= 1
        told = set(supervisor._sent_sigterm)
        assert supervisor._next_sweep == pytest.approx(1000.12)
        assert not supervisor._is_over(1000.11) and not supervisor._is_over(1010.0)
        assert supervisor._rest.kills == 0 and supervisor._sent_sigterm == told
        assert not supervisor._is_over(1010.1)
        assert supervisor._rest.kills == 1
        assert not supervisor._is_over(1010.11)
        assert supervisor._rest.kills == 1  # the next sweep is not due yet

        def over() -> bool:
            supervisor._reap(1010.2)
            return supervisor._is_over(1010.2)

        eventually(over)
        assert not supervisor._has_children

    in_fork(steps)


def test_a_failure_while_it_ends_already_restarts_nothing(job, gate, clock) -> None:
    """What fails after a cancellation neither is the first failure nor uses up a retry."""

    def steps() -> None:
        supervisor = started(job, role("exit 3", gate.wait, retries=5, policy="REPLICA"))
        first = supervisor.replicas[0]
        until_dead(first.line.pid)
        supervisor._give_up("CANCELLED", 1000.0)
        first.stopping = False  # as when it ended before the signal was sent
        supervisor._reap(1000.0)
        assert (first.line.state, supervisor.job.restarts, supervisor.job.first) == ("FAILED", 0, -1)
        assert supervisor._outcome == "CANCELLED"

    in_fork(steps)


@pytest.mark.parametrize("code", [0, 7])
def test_an_end_is_recorded_before_processes_are_looked_for(job, monkeypatch, code) -> None:
    """That takes some time, after which a supervisor that is killed could not say how the replica ended."""

    def steps() -> None:
        supervisor = Supervisor(request(job, role(f"exit {code}")), GUARDIAN)
        real, seen = supervisor._sweep, []

        def sweep(now: float) -> None:
            if supervisor.replicas[0].line.exit is not None:
                seen.append(state(job).replicas[0].exit)
            real(now)

        monkeypatch.setattr(supervisor, "_sweep", sweep)
        supervisor.run()
        assert seen and set(seen) == {code}

    in_fork(steps)


def test_a_failure_while_others_are_being_started(job, gate, clock) -> None:
    """Those that wait for their first start wait for the restart of all."""

    def steps() -> None:
        supervisor = Supervisor(request(job, role("exit 3", *[gate.wait] * 20, retries=1)), GUARDIAN)
        supervisor._start_pending()
        until_dead(supervisor.replicas[0].line.pid)
        supervisor._reap(1000.0)
        supervisor._start_pending()
        assert _states(supervisor).count("PENDING") == 5
        for replica in supervisor.replicas[1:16]:
            until_dead(replica.line.pid)
        supervisor._reap(1000.0)
        supervisor._sweep(1000.0)
        assert supervisor._starts.now == supervisor.replicas
        assert [r.line.attempt for r in supervisor.replicas] == [1] * 16 + [0] * 5

    in_fork(steps)


def test_a_time_limit_ends_also_what_is_being_restarted(job, gate, clock) -> None:
    """One replica is restarted, another one runs: the attempt of the whole job is over."""

    def steps() -> None:
        supervisor = started(job, role(gate.wait, gate.wait, retries=1, policy="REPLICA"))
        supervisor._restart(supervisor.replicas[:1], 1000.0)
        supervisor._end_attempt("timeout", "it reached its time limit of 1h")
        assert (supervisor._outcome, supervisor.job.kind) == ("FAILED", "timeout")
        assert all(replica.stopping for replica in supervisor.replicas)

    in_fork(steps)


def test_a_time_limit_ends_replicas_that_are_restarted_one_by_one(job, gate, clock) -> None:
    """All of them wait for a restart, but each for its own: no attempt of the whole job begins then."""

    def steps() -> None:
        supervisor = started(job, role(gate.wait, gate.wait, retries=1, policy="REPLICA"))
        for replica in supervisor.replicas:
            supervisor._restart([replica], 1000.0)
        supervisor._end_attempt("timeout", "it reached its time limit of 1h")
        assert (supervisor._outcome, supervisor.job.kind) == ("FAILED", "timeout")

    in_fork(steps)


def test_what_waits_for_a_restart_is_not_started_after_a_cancellation(job, clock) -> None:
    """A replica between two attempts, and one that waits for its start, end as CANCELLED."""

    def steps() -> None:
        supervisor = started(job, role("exit 3", "true", retries=5, policy="REPLICA"))
        first, second = supervisor.replicas
        until_dead(first.line.pid)
        until_dead(second.line.pid)
        supervisor._reap(1000.0)
        assert (first.line.state, supervisor._starts.now, first.restart) == ("PENDING", [first], None)
        supervisor._cancel("")
        assert (_states(supervisor), supervisor._starts.now) == (["CANCELLED", "SUCCEEDED"], [])
        supervisor.writer.flush()
        assert [r.state for r in state(job).replicas] == ["CANCELLED", "SUCCEEDED"]

    in_fork(steps)


def test_whose_a_process_is(job, gate, up, clock) -> None:
    """By its session while its replica is unclean, else by the marks that it was started with; no other's is ours."""

    def steps() -> None:
        supervisor = started(job, role("true", gate.wait))
        first, second = supervisor.replicas
        mine = proctree.snapshot()[second.line.pid]
        assert eventually(lambda: _owner(supervisor, mine)) is second
        assert _owner(supervisor, None) is None
        mine.state = "Z"
        assert _owner(supervisor, mine) is None
        until_dead(first.line.pid)
        supervisor._reap(1000.0)
        child = proctree.Process(os.getpid(), "S", 1, first.line.pid, 1)
        assert _owner(supervisor, child) is first
        assert _owner(supervisor, proctree.Process(os.getpid(), "S", 1, 1, 1)) is None
        supervisor.folder = "/another"
        mine.state = "S"
        assert _owner(supervisor, mine) is None

    in_fork(steps)


def test_marks_that_make_no_sense_name_no_replica(job, up, gate) -> None:
    """A process whose mark is no number of a replica is nobody's, and does not stop the supervisor."""

    def steps() -> None:
        supervisor = started(job, role("true", "true"))
        for word, owner in [("1", 1), ("2", None), ("-1", None), ("", None), ("x", None)]:
            marks = {"PATH": os.environ["PATH"], proctree.ENV_JOB: job, proctree.ENV_REPLICA: word}
            pid = os.posix_spawn("/bin/sh", ["sh", "-c", f"{up.pass_on}; {gate.wait}"], marks, setsid=True)
            up.reached()
            found = _owner(supervisor, proctree.snapshot()[pid])
            assert (found and found.index) == owner, word
            os.kill(pid, signal.SIGKILL)

    in_fork(steps)


def test_what_is_left_in_a_process_ends_it(job) -> None:
    """A supervisor that could not end a child of its job must not take another job."""

    def steps() -> None:
        supervisor = Supervisor(request(job, role("true")), GUARDIAN)
        supervisor.run()
        supervisor._has_children = True
        assert not supervisor.release()

    in_fork(steps)
