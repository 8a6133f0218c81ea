"""The owner of one job: starts, ends, restarts and cancels real processes, and writes down what became of them."""

from __future__ import annotations

import os
import signal
import stat
import time
from typing import Any

import pytest

from tests.supervisor.forks import (
    GUARDIAN,
    Fork,
    Gate,
    eventually,
    forked,
    in_fork,
    request,
    role,
    started,
    state,
    until_dead,
)
from torchx.supervisor import at_end, proctree
from torchx.supervisor.layout import AT_END_FILE
from torchx.supervisor.reader import send_command
from torchx.supervisor.supervise import Supervisor
from torchx.supervisor.watchdog import Watchdog


@pytest.fixture
def job(tmp_path) -> str:
    return str(tmp_path / "job")


def _work(asked: Any, lasting=None):
    def work() -> int:
        supervisor = Supervisor(asked, GUARDIAN, lasting)
        supervisor.run()
        return 0 if supervisor.release() else 1

    return work


def _run(asked: Any) -> int:
    """The exit code of a supervisor: 0 when nothing of the job is left in its process."""
    with forked(_work(asked)) as fork:
        return fork.end()


def _text(job: str, name: str, replica: str = "r/0") -> str:
    with open(f"{job}/{replica}/{name}.log", encoding="utf-8") as f:
        return f.read()


# -- a job and its end ---------------------------------------------------------------------------


def test_a_job_that_succeeds(job) -> None:
    """Its replicas' output, exit codes, times and attempts are on record, and nothing of it is left."""
    before = time.time()
    assert _run(request(job, role("echo out; echo err >&2", "exit 0"), role("true", name="s"))) == 0
    read = state(job)
    assert (read.state, read.msg, read.first, read.restarts) == ("SUCCEEDED", "", -1, 0)
    assert before - 1 <= read.created <= read.replicas[0].started <= read.replicas[0].ended <= read.ended <= time.time()
    assert [(r.state, r.exit, r.attempt) for r in read.replicas] == [("SUCCEEDED", 0, 0)] * 3
    assert len({r.pid for r in read.replicas}) == 3
    assert read.guardian == GUARDIAN
    assert (_text(job, "stdout"), _text(job, "stderr")) == ("out\n", "err\n")
    assert sorted(_text(job, "combined").split()) == ["err", "out"]


def test_a_job_that_fails(job, gate) -> None:
    """The replica that failed first is named with its code; those that ran are cancelled."""
    assert _run(request(job, role(gate.wait, "exit 3"), role(gate.wait, name="s"))) == 0
    read = state(job)
    assert (read.state, read.first) == ("FAILED", 1)
    assert [r.state for r in read.replicas] == ["CANCELLED", "FAILED", "CANCELLED"]
    assert [r.exit for r in read.replicas] == [-15, 3, -15]
    assert all(r.ended >= r.started > 0 for r in read.replicas)


def test_a_signal_is_a_negative_exit_code(job) -> None:
    """A replica that is killed by SIGSEGV has -11."""
    _run(request(job, role("kill -SEGV $$")))
    assert state(job).replicas[0].exit == -11


def test_what_is_on_record_while_a_job_runs(job, gate, up) -> None:
    """Pid and start time of each replica, the supervisor's own pid, and RUNNING; the FIFO is the user's alone."""
    with forked(_work(request(job, role(f"{up.pass_on}; {gate.wait}")))) as fork:
        up.reached()
        read = eventually(lambda: (s := state(job)).replicas[0].ticks and s)
        line = read.replicas[0]
        assert (read.state, line.state, line.exit, line.ended) == ("RUNNING", "RUNNING", None, 0)
        assert line.ticks == proctree.start_ticks(line.pid)
        assert read.supervisor == fork.pid
        assert os.getsid(line.pid) == line.pid
        mode = os.stat(f"{job}/control").st_mode
        assert stat.S_ISFIFO(mode) and mode & 0o777 == 0o600
        gate.open()
        assert fork.end() == 0
    assert state(job).state == "SUCCEEDED"


def test_the_environment_of_a_replica(job) -> None:
    """The job's and its own variables, its own being stronger, and the marks by which its processes are found."""
    asked = request(
        job, role("true", 'echo "$A $B $TORCHX_LOCAL_JOB $TORCHX_LOCAL_REPLICA"'), env={"A": "job", "B": "job"}
    )
    asked["roles"][0]["replicas"][1]["env"] = {"B": "own"}
    _run(asked)
    assert _text(job, "stdout", "r/1") == f"job own {job} 1\n"


def test_each_replica_has_its_directory(job, tmp_path) -> None:
    """Also when the next replica has another one, and the one after that the first again."""
    asked = request(job, role("pwd", "pwd", "pwd"))
    for replica, name in zip(asked["roles"][0]["replicas"], ["a", "b", "a"], strict=True):
        replica["cwd"] = str(tmp_path / name)
        os.makedirs(replica["cwd"], exist_ok=True)
    _run(asked)
    assert [_text(job, "stdout", f"r/{k}") for k in range(3)] == [f"{tmp_path}/{name}\n" for name in "aba"]


def test_replicas_have_the_signals_of_a_new_process(job) -> None:
    """Whatever the supervisor ignores or handles, a replica dies of SIGTERM, SIGPIPE, SIGINT and the others; no stdin."""

    def work() -> int:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        return _work(request(job, role("grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status; cat")))()

    with forked(work) as fork:
        assert fork.end() == 0
    masks = [int(line.split()[1], 16) for line in _text(job, "stdout").splitlines()]
    asked_for = 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGINT - 1)
    asked_for |= (
        1 << (signal.SIGHUP - 1) | 1 << (signal.SIGQUIT - 1) | 1 << (signal.SIGXFSZ - 1) | 1 << (signal.SIGUSR1 - 1)
    )
    assert [mask & asked_for for mask in masks] == [0, 0, 0]


# -- what cannot be started ----------------------------------------------------------------------


def test_a_python_that_cannot_create_sessions(job, tmp_path, monkeypatch) -> None:
    """As those of uv: a replica, what inspects a silent job and what runs at its end have a process group."""
    spawn, pids = os.posix_spawn, []

    def spawned(*args, setsid: bool = False, **how) -> int:
        if setsid:
            raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
        assert how["setpgroup"] == 0
        pids.append(spawn(*args, **how))
        return pids[-1]

    monkeypatch.setattr(os, "posix_spawn", spawned)
    assert _run(request(job, role("read -r words </proc/self/stat; set -- $$ $words; test $1 = $6"))) == 0
    assert state(job).state == "SUCCEEDED"
    (tmp_path / "job" / AT_END_FILE).write_bytes(b"/bin/true\0\0")
    at_end.start(job)
    watchdog = Watchdog({"seconds": 10, "program": ["/bin/false"]}, {}, lambda: 0)
    watchdog.begin(0.0)
    watchdog.turn(10.0)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 256]  # that of the replica is one of the fork


def test_a_program_that_is_not_there(job, gate) -> None:
    """Exit code 127, the reason in the replica's stderr, the others cancelled, those not yet started too."""
    asked = request(job, role(gate.wait, "true", *["true"] * 20))
    asked["roles"][0]["replicas"][1] |= {"exe": "/no/such", "argv": ["such"]}
    _run(asked)
    read = state(job)
    assert (read.state, read.first, read.msg) == ("FAILED", 1, "")
    assert [r.exit for r in read.replicas[:3]] == [-15, 127, None]
    assert [r.state for r in read.replicas[2:]] == ["CANCELLED"] * 20
    assert (read.replicas[1].pid, read.replicas[2].pid) == (0, 0)
    assert read.replicas[1].ended >= read.replicas[1].started > 0
    assert _text(job, "stderr", "r/1") == "torchx: cannot start `such`: No such file or directory\n"
    assert "cannot start" in _text(job, "combined", "r/1")


def test_a_script_without_a_first_line(job, tmp_path) -> None:
    """Exit code 126, and what the script needs."""
    script = tmp_path / "script"
    script.write_text("echo\n")
    script.chmod(0o755)
    asked = request(job, role("true"))
    asked["roles"][0]["replicas"][0] |= {"exe": str(script), "argv": [str(script)]}
    _run(asked)
    assert state(job).replicas[0].exit == 126
    text = _text(job, "stderr")
    assert "a script needs a first line like `#!/bin/sh`" in text
    assert text.count(str(script)) == 1


def test_a_directory_that_is_not_there(job) -> None:
    """The directory is named; the next job of this process is not led astray by it."""
    asked = request(job, role("true"))
    asked["roles"][0]["replicas"][0]["cwd"] = f"{job}/none"
    _run(asked)
    assert _text(job, "stderr").endswith(f"No such file or directory: `{job}/none`\n")


def test_a_folder_that_cannot_be_made(job) -> None:
    """Where not even the replica's stderr can be written the job says why."""
    asked = request(job, role("true"))
    with open(f"{job}/r", "w", encoding="utf-8"):
        pass
    _run(asked)
    assert state(job).state == "FAILED"
    assert state(job).msg.startswith("cannot start `sh`: ")


# -- restarts ------------------------------------------------------------------------------------

FAILS_ONCE = 'test -e "$0.again" || { touch "$0.again"; exit 5; }'


def _once(job: str, k: int) -> str:
    return FAILS_ONCE.replace("$0", f"{job}/mark{k}")


def test_a_replica_is_started_again(job, gate) -> None:
    """REPLICA: that one alone, with the same files, without the error file of its first attempt; then it succeeded."""
    asked = request(job, role(_once(job, 0) + f"; echo well; {gate.pass_on}", gate.wait, retries=1, policy="REPLICA"))
    error_file = f"{job}/r/0/error.json"
    os.makedirs(os.path.dirname(error_file))
    with open(error_file, "w", encoding="utf-8") as f:
        f.write("{}")
    _run(asked)
    read = state(job)
    assert (read.state, read.restarts, read.first) == ("SUCCEEDED", 1, -1)
    assert [(r.attempt, r.exit) for r in read.replicas] == [(1, 0), (0, 0)]
    assert _text(job, "combined") == "well\n"
    assert not os.path.exists(error_file)


def test_the_first_attempt_keeps_an_error_file(job) -> None:
    """Only a restart removes it."""
    asked = request(job, role("true"))
    os.makedirs(f"{job}/r/0")
    with open(f"{job}/r/0/error.json", "w", encoding="utf-8") as f:
        f.write("{}")
    _run(asked)
    assert os.path.exists(f"{job}/r/0/error.json")


@pytest.mark.parametrize(("policy", "others"), [("ROLE", 0), ("APPLICATION", 1)])
def test_a_role_or_all_are_started_again(job, gate, policy, others) -> None:
    """ROLE: all replicas of that role; APPLICATION: of all roles. What ran was cancelled, and is no failure."""
    asked = request(
        job,
        role(_once(job, 0), f"test -e '{job}/mark0.again' || {gate.wait}", retries=1, policy=policy),
        role("true" if not others else f"test -e '{job}/mark0.again' || {gate.wait}", name="s"),
    )
    _run(asked)
    read = state(job)
    assert (read.state, read.restarts, read.first) == ("SUCCEEDED", 1, -1)
    assert read.replicas[0].attempt == 1
    assert read.replicas[2].attempt == others
    assert [r.exit for r in read.replicas] == [0, 0, 0]


def test_no_retry_is_left(job) -> None:
    """Two retries are three attempts, and the last one's failure is the job's."""
    _run(request(job, role("exit 4", retries=2, policy="REPLICA")))
    read = state(job)
    assert (read.state, read.restarts, read.first) == ("FAILED", 2, 0)
    assert (read.replicas[0].attempt, read.replicas[0].exit) == (2, 4)


def test_an_elastic_role_goes_on(job) -> None:
    """A failure above the minimum is on record, and the job succeeds without that replica."""
    _run(request(job, role("exit 4", "true", least=1)))
    read = state(job)
    assert (read.state, read.first) == ("SUCCEEDED", -1)
    assert [r.state for r in read.replicas] == ["FAILED", "SUCCEEDED"]


def test_a_restart_waits_until_nothing_is_left(job, gate) -> None:
    """What a failed attempt left behind has ended before the next one starts, even if it ignores SIGTERM."""
    daemon = f"(trap '' TERM; {gate.pass_on}; while :; do read -r _ < '{job}/never'; done) & read -r _ < '{gate.path}'"
    check = f"test -e '{job}/mark' && kill -0 $(cat '{job}/mark') 2> /dev/null && echo alive"
    asked = request(
        job,
        role(
            f"{check}; test -e '{job}/mark' && exit 0; {daemon}; echo $! > '{job}/mark'; exit 1",
            retries=1,
            policy="REPLICA",
        ),
        grace_s=0.05,
    )
    os.mkfifo(f"{job}/never")
    _run(asked)
    assert (state(job).state, state(job).replicas[0].attempt) == ("SUCCEEDED", 1)
    assert _text(job, "stdout") == ""


# -- being cancelled -----------------------------------------------------------------------------


def test_cancelling(job, gate, up) -> None:
    """The word `cancel` ends all of it, children too; anything else in the FIFO ends nothing."""
    with forked(_work(request(job, role(f'{up.pass_on}; sh -c "{gate.wait}; echo"; true')))) as fork:
        up.reached()
        line = eventually(lambda: (s := state(job).replicas[0]).ticks and s)
        child = eventually(lambda: proctree.descendants(proctree.snapshot(), {line.pid})[1:])[0]
        fd = os.open(f"{job}/control", os.O_WRONLY)
        os.write(fd, b"hello\n")
        os.close(fd)
        assert send_command(job, "cancel")
        assert fork.end() == 0
    read = state(job)
    assert (read.state, read.msg, read.first) == ("CANCELLED", "", -1)
    assert (read.replicas[0].state, read.replicas[0].exit) == ("CANCELLED", -15)
    assert proctree.start_ticks(child.pid) != child.ticks


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_is_told_to_stop(job, gate, up, number) -> None:
    """The machine is going down: the job is cancelled, and says so."""
    with forked(_work(request(job, role(f"{up.pass_on}; {gate.wait}")))) as fork:
        up.reached()
        os.kill(fork.pid, number)
        assert fork.end() == 0
    assert (state(job).state, "shutting down" in state(job).msg) == ("CANCELLED", True)


def test_a_replica_may_use_its_grace(job, gate, up) -> None:
    """SIGTERM comes once, and a replica that needs its time for a checkpoint gets it: its own exit code is kept."""
    script = f"trap '{up.pass_on}; {gate.wait}; echo saved; exit 7' TERM; {up.pass_on}; while :; do {gate.wait}; done"
    with forked(_work(request(job, role(script)))) as fork:
        up.reached()
        assert send_command(job, "cancel")
        up.reached()
        assert state(job).replicas[0].state == "RUNNING"
        gate.open()
        assert fork.end() == 0
    read = state(job)
    assert (read.state, read.replicas[0].state, read.replicas[0].exit) == ("CANCELLED", "CANCELLED", 7)
    assert _text(job, "stdout") == "saved\n"


def test_a_replica_that_ignores_sigterm_is_killed_after_its_grace(job, up) -> None:
    """Then, and its children with it."""
    with forked(_work(request(job, role(f"trap '' TERM; {up.pass_on}; sleep 1000; true"), grace_s=0.05))) as fork:
        up.reached()
        assert send_command(job, "cancel")
        assert fork.end() == 0
    assert state(job).replicas[0].exit == -9


def test_a_stopped_replica_is_woken(job, gate, up) -> None:
    """One that was stopped by SIGSTOP acts on SIGTERM all the same."""
    with forked(_work(request(job, role(f"trap 'exit 6' TERM; {up.pass_on}; {gate.wait}; {gate.wait}")))) as fork:
        up.reached()
        pid = state(job).replicas[0].pid or eventually(lambda: state(job).replicas[0].pid)
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: proctree.snapshot()[pid].state == "T")
        send_command(job, "cancel")
        assert fork.end() == 0
    assert state(job).replicas[0].exit == 6


@pytest.mark.parametrize("own_session", [False, True], ids=["child", "own session"])
def test_what_a_replica_left_behind_is_ended(job, tmp_path, own_session) -> None:
    """A job ends when the last of its processes has, also one that has made a session of its own."""
    detach = "setsid " if own_session else ""
    hold = Gate(tmp_path / "hold")
    script = f"{detach}sh -c 'echo $$ > \"{job}/pid\"; {hold.pass_on}; read -r _ < \"{job}/never\"' & read -r _ < '{hold.path}'"
    asked = request(job, role(script))
    os.mkfifo(f"{job}/never")
    assert _run(asked) == 0
    hold.close()
    assert (state(job).state, state(job).replicas[0].exit) == ("SUCCEEDED", 0)
    with open(f"{job}/pid", encoding="utf-8") as f:
        assert not proctree.start_ticks(int(f.read()))


# -- around a job --------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["end", "cancel", "signal"])
def test_what_happens_wakes_it(job, gate, up, how) -> None:
    """The end of a replica, a word in the FIFO and a signal are heard at once, though it would sleep for ever."""

    def work() -> None:
        Supervisor._timeout_ms = lambda self: 0 if self._starts.now else None  # type: ignore[method-assign]
        Supervisor(request(job, role(f"{up.pass_on}; {gate.wait}")), GUARDIAN).run()

    with forked(work) as fork:
        up.reached()
        eventually(lambda: state(job).replicas[0].ticks)
        if how == "end":
            gate.open()
        elif how == "cancel":
            send_command(job, "cancel")
        else:
            os.kill(fork.pid, signal.SIGTERM)
        assert fork.end() == 0
    assert state(job).state == ("SUCCEEDED" if how == "end" else "CANCELLED")


def test_short_jobs_are_not_called_lasting(job, tmp_path) -> None:
    """`lasting` is called once for a job of more than 50 ms, while it runs, and never for a shorter one."""
    calls = []

    def steps() -> None:
        supervisor = Supervisor(request(job, role("true")), GUARDIAN, lambda: calls.append(1))
        supervisor.job.created = time.time() + 1000
        supervisor.run()
        assert calls == []

    in_fork(steps)
    gate, called = Gate(tmp_path / "g"), Gate(tmp_path / "called")
    with forked(_work(request(tmp_path / "long", role(gate.wait)), called.open)) as fork:
        called.reached()
        assert state(tmp_path / "long").state == "RUNNING"
        gate.open()
        assert fork.end() == 0
        assert called.is_empty()
    gate.close()
    called.close()


def test_its_process_is_as_before(job) -> None:
    """After a job the descriptors are those of before, the directory is the root, no signal is written anywhere."""

    def steps() -> None:
        before = os.listdir("/proc/self/fd")
        for number in range(3):
            supervisor = Supervisor(request(f"{job}{number}", role("true")), GUARDIAN)
            supervisor.run()
            assert supervisor.release()
        assert os.listdir("/proc/self/fd") == before
        assert os.getcwd() == "/"
        assert signal.set_wakeup_fd(-1) == -1

    in_fork(steps)


def test_the_end_of_a_fifo_is_the_end_on_record(job) -> None:
    """Whoever waits at the FIFO finds the last state as soon as it is let go; logs are complete by then."""

    def steps() -> None:
        supervisor = started(job, role("printf 'no end'"))
        until_dead(supervisor.replicas[0].line.pid)
        supervisor._reap(time.time())
        supervisor._outcome = "SUCCEEDED"
        supervisor._finish()
        assert (state(job).state, _text(job, "combined")) == ("SUCCEEDED", "no end")
        assert state(job).ended >= supervisor.job.created
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(supervisor._control)

    in_fork(steps)


def test_an_incomplete_log_is_said(job) -> None:
    """A log that could not be written is a message of the job, unless it has another one."""

    def steps(msg: str, expected: str) -> None:
        folder = f"{job}{len(msg)}"
        supervisor = started(folder, role("echo x"))
        os.symlink("/dev/full", f"{folder}/r/0/combined.log")
        until_dead(supervisor.replicas[0].line.pid)
        supervisor._outcome, supervisor.job.msg = "SUCCEEDED", msg
        supervisor._finish()
        assert state(folder).msg == expected

    in_fork(lambda: steps("", "combined.log is incomplete: No space left on device"))
    in_fork(lambda: steps("before", "before"))


def test_a_job_whose_files_cannot_be_made_is_refused(job, tmp_path) -> None:
    """OSError, before any process was started."""

    def steps() -> None:
        asked = request(job, role(f"echo > {tmp_path}/ran"))
        os.mkfifo(f"{job}/control")
        with pytest.raises(FileExistsError):
            Supervisor(asked, GUARDIAN)
        assert not (tmp_path / "ran").exists()

    in_fork(steps)


def test_forks_of_this_file_end() -> None:
    """A fork that fails says so: the other tests of this file can fail."""
    with pytest.raises(AssertionError):
        in_fork(lambda: pytest.fail("on purpose"))
    with forked(lambda: 3) as fork:
        assert isinstance(fork, Fork) and fork.end() == 3
