"""How a caller hands its jobs over: one launcher for all, another one when it has died, no job lost or run twice."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.supervisor.forks import PATIENCE_S, Clock, Fork, eventually, for_job, in_fork, request, role, state, text
from torchx.supervisor import client as client_module
from torchx.supervisor import launcher, proctree
from torchx.supervisor.client import LauncherClient, LauncherError
from torchx.supervisor.launcher import Launcher
from torchx.supervisor.reserve import Reserve
from torchx.supervisor.statefile import has_supervisor
from torchx.supervisor.supervise import Supervisor


@pytest.fixture
def client() -> Iterator[LauncherClient]:
    client = LauncherClient()
    yield client
    client.close()


def _asked(tmp_path, name: str, *scripts: str) -> Any:
    return request(tmp_path / name, role(*scripts))


def _ended(folder) -> str:
    eventually(lambda: not has_supervisor(str(folder)))
    return state(folder).state


def test_one_launcher_serves_all_jobs(client, tmp_path) -> None:
    """Started once, however often it is asked for; it ends when the caller lets go of it."""
    client._start()
    ends = (client._requests, client._answers)
    guardians = set()
    for name in "abc":
        client.submit(_asked(tmp_path, name, "true"))
        assert (client._requests, client._answers) == ends
        guardians.add(state(tmp_path / name).guardian)
        assert _ended(tmp_path / name) == "SUCCEEDED"
    assert len(guardians) == 1
    assert (client._requests, client._answers) == ends
    client.close()
    pid, ticks = guardians.pop()
    eventually(lambda: proctree.start_ticks(pid) != ticks)
    assert (client._requests, client._answers) == (-1, -1)
    for fd in ends:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


def test_the_process_that_starts_it_is_waited_for(client, tmp_path) -> None:
    """No zombie stays behind, neither after a job nor when none came."""
    client.submit(_asked(tmp_path, "a", "true"))
    assert client._starter == 0
    other = LauncherClient()
    other._start()
    starter = other._starter
    assert starter > 0
    other.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(starter, os.WNOHANG)
    other.close()


def test_a_launcher_has_no_secrets(client, tmp_path, monkeypatch) -> None:
    """Of the caller's environment it has what its start may need, and nothing else."""
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    client.submit(_asked(tmp_path, "a", "true"))
    pid = state(tmp_path / "a").guardian[0]
    assert proctree.environment(pid).get("MY_TOKEN") is None
    assert proctree.environment(pid).get("LC_ALL") == "C.UTF-8"
    assert proctree.environment(pid).get("PATH") == os.environ["PATH"]
    assert os.getsid(pid) != os.getsid(0)
    assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    status = dict(line.split(":", 1) for line in text(f"/proc/{pid}/status").splitlines())
    ignored = int(status["SigIgn"], 16)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
        assert ignored & 1 << number - 1, number
    assert int(status["PPid"]) != os.getpid()


def test_a_launcher_holds_nothing_of_its_caller(client, tmp_path) -> None:
    """A descriptor that a child may inherit is not kept open: who waits for its end would wait for ever."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    client.submit(_asked(tmp_path, "a", "true"))
    os.close(write)
    assert select.select([read], [], [], PATIENCE_S)[0]
    assert os.read(read, 1) == b""
    os.close(read)


def test_what_hides_from_a_killed_supervisor_is_ended(client, tmp_path) -> None:
    """Without the job's marks and in a session of its own: it falls to the launcher, which has no other such children."""
    script = f"env -i setsid sh -c \"echo \\$\\$ > '{tmp_path}/pid'; while :; do sleep 1000; done\" & wait"
    client.submit(_asked(tmp_path, "a", script))
    pid = int(eventually(lambda: os.path.exists(tmp_path / "pid") and text(tmp_path / "pid")))
    assert proctree.start_ticks(pid)
    os.kill(state(tmp_path / "a").supervisor, signal.SIGKILL)
    eventually(lambda: state(tmp_path / "a").state == "FAILED")
    assert not proctree.start_ticks(pid)
    assert "SIGKILL" in state(tmp_path / "a").msg


def test_a_refused_job_says_why(client, tmp_path) -> None:
    """The reason of the supervisor; the same launcher takes the next job."""
    asked = _asked(tmp_path, "a", "true")
    with pytest.raises(LauncherError, match=r"^\[Errno 2\] No such file or directory$"):
        client.submit({**asked, "job": str(tmp_path / "none")})
    client.submit(asked)
    assert _ended(tmp_path / "a") == "SUCCEEDED"


def test_meanwhile_is_called_once(client, tmp_path) -> None:
    """While the supervisor sets itself up."""
    calls = []
    client.submit(_asked(tmp_path, "a", "true"), lambda: calls.append(1))
    assert calls == [1]


def _kill_all(pid: int) -> None:
    """The guardian and its reserve."""
    family = proctree.descendants(proctree.snapshot(), {pid})
    proctree.send_all(family, signal.SIGKILL)
    eventually(lambda: not any(proctree.start_ticks(p.pid) == p.ticks for p in family))


def test_a_launcher_that_was_killed_is_replaced(client, tmp_path) -> None:
    """The next job is taken by another one, in one call."""
    client.submit(_asked(tmp_path, "a", "true"))
    first = state(tmp_path / "a").guardian
    _ended(tmp_path / "a")
    _kill_all(first[0])
    client.submit(_asked(tmp_path, "b", "true"))
    assert state(tmp_path / "b").guardian != first
    assert _ended(tmp_path / "b") == "SUCCEEDED"


class _Failing(LauncherClient):
    """Its launcher is gone before it answers; each time it does something else first."""

    def __init__(self, *firsts: Any) -> None:
        super().__init__()
        self.firsts = list(firsts)

    def _exchange(self, message: bytes, meanwhile: Any) -> bytes:
        if meanwhile is not None:
            meanwhile()
        if self.firsts:
            self.firsts.pop(0)()
            return b""
        return super()._exchange(message, None)


def test_a_job_that_was_taken_is_not_run_twice(tmp_path) -> None:
    """The answer was lost, but a supervisor has the job: nothing is submitted again."""
    job = tmp_path / "job"
    job.mkdir()
    client = _Failing(lambda: (os.mkfifo(job / "control"), fds.append(os.open(job / "control", os.O_RDWR))))
    fds: list[int] = []
    (job / "state").touch()
    client.submit(for_job(job))
    assert client.firsts == [] and os.path.exists(job / "control")
    os.close(fds[0])
    client.close()


def test_a_job_that_was_half_taken_is_submitted_again(tmp_path) -> None:
    """What the killed supervisor had made is removed first; `meanwhile` is not called again."""
    asked = _asked(tmp_path, "job", "true")
    calls = []

    def half() -> None:
        os.mkfifo(tmp_path / "job" / "control")
        (tmp_path / "job" / "state").write_text("half")

    client = _Failing(half)
    client.submit(asked, lambda: calls.append(1))
    assert calls == [1]
    assert _ended(tmp_path / "job") == "SUCCEEDED"
    client.close()


def test_two_launchers_that_die_are_enough(tmp_path) -> None:
    """After the second one the caller hears of it; the job's folder is as it was left."""
    client = _Failing(lambda: None, lambda: (tmp_path / "job" / "state").write_text("x"), lambda: None)
    asked = _asked(tmp_path, "job", "true")
    with pytest.raises(LauncherError, match="ended unexpectedly"):
        client.submit(asked)
    assert len(client.firsts) == 1
    assert (tmp_path / "job" / "state").exists()
    assert client._requests == -1
    client.close()


class _Killed(LauncherClient):
    """Its first launcher is one in a fork of the test, where a supervisor kills itself at a chosen moment."""

    def __init__(self, moment: str) -> None:
        super().__init__()
        self.moment = moment
        self.fork: Fork | None = None

    def _start(self) -> None:
        if self.fork is not None:
            return super()._start()
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._process = os.getpid()

        def work() -> None:
            os.close(self._requests)
            os.close(self._answers)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            once = os.eventfd(1, os.EFD_NONBLOCK)
            for owner, name in ((launcher, "read_request"), (Reserve, "report"), (Supervisor, "__init__")):
                if name == self.moment:
                    setattr(owner, name, _then_die(getattr(owner, name), once))
            Launcher(requests, answers).run()

        self.fork = Fork(work)
        os.close(requests)
        os.close(answers)
        return None


def _then_die(real: Any, once: int) -> Any:
    def call(*args: Any) -> Any:
        value = real(*args)
        try:
            os.eventfd_read(once)
            os.kill(os.getpid(), signal.SIGKILL)
        except BlockingIOError:
            pass
        return value

    return call


@pytest.mark.parametrize("moment", ["read_request", "report", "__init__"])
def test_a_supervisor_that_is_killed_before_it_answers(tmp_path, moment) -> None:
    """After it has read the request, reported it, or made the job's files: submitted again at once, and run once."""
    client = _Killed(moment)
    client.submit(_asked(tmp_path, "a", f"echo run >> {tmp_path}/runs"))
    assert _ended(tmp_path / "a") == "SUCCEEDED"
    assert text(tmp_path / "runs") == "run\n"
    client.submit(_asked(tmp_path, "b", "true"))
    assert _ended(tmp_path / "b") == "SUCCEEDED"
    client.close()
    client.fork.kill()


def test_a_request_that_another_supervisor_takes_after_all(tmp_path) -> None:
    """One died that had not read it: two launchers have the request, the first to make the FIFO runs it, once."""
    asked = _asked(tmp_path, "job", f"echo run >> {tmp_path}/runs")
    other = LauncherClient()

    class _Doubtful(LauncherClient):
        answers = 0

        def _exchange(self, message: bytes, meanwhile: Any) -> bytes:
            self.answers += 1
            if self.answers == 1:
                other.submit(asked)
                assert _ended(tmp_path / "job") == "SUCCEEDED"
                return b"D"
            return super()._exchange(message, None)

    client = _Doubtful()
    client.submit(asked)
    assert client.answers == 2
    assert text(tmp_path / "runs") == "run\n"
    client.close()
    other.close()


@pytest.mark.parametrize("answers", [[b"D"], [b"D", b"Ethe FIFO exists"]])
def test_a_job_that_another_supervisor_has_just_taken(tmp_path, answers) -> None:
    """Its state can be read when the request is answered, though the FIFO is made before it."""
    job = tmp_path / "job"
    job.mkdir()
    fifo = str(job / "control")

    class _Doubtful(LauncherClient):
        def _exchange(self, message: bytes, meanwhile: Any) -> bytes:
            if len(answers) == 1:
                os.mkfifo(fifo)
                readers.append(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
                (job / "state").touch()
                threading.Timer(0.1, (job / "state").write_text, ["x"]).start()
            return answers.pop(0)

    readers: list[int] = []
    client = _Doubtful()
    client.submit(for_job(job))
    assert (job / "state").read_text() == "x"
    client.close()
    os.close(readers[0])


class _Told(LauncherClient):
    """Its launchers answer as they are told; before each answer something else may happen."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.told = list(answers)

    def _exchange(self, message: bytes, meanwhile: Any) -> bytes:
        before, answer = self.told.pop(0)
        before()
        return answer


def test_a_doubt_is_settled_before_an_error(tmp_path) -> None:
    """An error says that the job does not run: not while a supervisor that nobody has killed may have the request."""
    job = tmp_path / "job"
    job.mkdir()
    client = _Told((_nothing, b"Djob"), (_nothing, b"D"), (_nothing, b"D"), (_nothing, b"K\n"))
    client.submit(for_job(job))
    assert client.told == []
    client.close()


def test_files_of_one_that_may_have_the_job_are_kept(tmp_path) -> None:
    """Whom a doubt was about may have taken the job meanwhile, although another one was killed that had read it, too."""
    job = tmp_path / "job"
    job.mkdir()

    def taken() -> None:
        os.mkfifo(job / "control")
        readers.append(os.open(job / "control", os.O_RDONLY | os.O_NONBLOCK))
        (job / "state").write_text("x")

    readers: list[int] = []
    client = _Told((_nothing, b"D"), (taken, b"Djob"))
    client.submit(for_job(job))
    assert readers and (job / "state").exists() and (job / "control").exists()
    client.close()
    os.close(readers[0])


def test_a_job_whose_supervisor_was_killed_while_it_began(tmp_path, monkeypatch) -> None:
    """It has made the FIFO and written no state: the job does not run, and the caller hears of it."""
    monkeypatch.setattr(client_module, "time", Clock(0.0))
    job = tmp_path / "job"
    job.mkdir()
    client = _Told((_nothing, b"D"), (lambda: os.mkfifo(job / "control"), b"Ethe FIFO exists"))
    with pytest.raises(LauncherError, match="ended unexpectedly"):
        client.submit(for_job(job))
    client.close()


def _nothing() -> None:
    pass


def test_news_of_the_dead_is_no_answer_to_another_request(tmp_path) -> None:
    """What was said of another job, perhaps long ago, is passed over; an answer behind it counts."""
    client = LauncherClient()
    for said, answer in [
        (b"Dold-1\nK\n", b"K\n"), (b"D\nEno", b"Eno"), (b"Dold-1\nDnew-1\n", b"Dnew-1"), (b"D\nDold-1\n", b"D"),
    ]:  # fmt: skip
        client._answers, ours = os.pipe()
        theirs, client._requests = os.pipe()
        client._awaited = b"new-1"
        os.write(ours, said)
        assert client._exchange(b"x", None) == answer
        for fd in (client._answers, client._requests, ours, theirs):
            os.close(fd)


def test_a_big_request_to_a_launcher_that_is_gone(client, tmp_path) -> None:
    """More than a pipe holds: the write breaks, and another launcher gets it whole."""
    client.submit(_asked(tmp_path, "a", "true"))
    _ended(tmp_path / "a")
    _kill_all(state(tmp_path / "a").guardian[0])
    asked = _asked(tmp_path, "b", "true")
    asked["env"]["BIG"] = "x" * 100_000
    asked["padding"] = "y" * 3_000_000
    client.submit(asked)
    assert _ended(tmp_path / "b") == "SUCCEEDED"


def test_an_answer_that_does_not_come(client, tmp_path, monkeypatch) -> None:
    """The caller does not wait for ever, and a late answer is not taken for that to the next request."""
    client.submit(_asked(tmp_path, "a", "true"))
    _ended(tmp_path / "a")
    guardian = state(tmp_path / "a").guardian[0]
    family = proctree.descendants(proctree.snapshot(), {guardian})
    proctree.send_all(family, signal.SIGSTOP)
    monkeypatch.setattr(client_module, "ANSWER_S", 0.01)
    with pytest.raises(LauncherError, match="did not answer within 0 s"):
        client.submit(_asked(tmp_path, "b", "true"))
    assert client._requests == -1
    proctree.send_all(family, signal.SIGKILL)
    monkeypatch.setattr(client_module, "ANSWER_S", 60.0)
    client.submit(_asked(tmp_path, "c", "true"))
    assert _ended(tmp_path / "c") == "SUCCEEDED"


def test_it_waits_a_minute_for_an_answer() -> None:
    """A machine may be busy for long; the kernel counts in milliseconds."""
    assert client_module.ANSWER_S == 60
    asked: list[object] = []

    class Poll:
        def register(self, fd: int, events: int) -> None:
            asked.append((fd, events))

        def poll(self, timeout_ms: float) -> list[object]:
            asked.append(timeout_ms)
            return []

    client = LauncherClient()
    client._requests, write = os.pipe()[::-1]
    client._answers = write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "poll", Poll)
        with pytest.raises(LauncherError):
            client._exchange(b"x", None)
    assert asked == [(write, select.POLLIN), 60_000]
    os.close(client._requests)
    os.close(write)


def test_an_interrupted_wait_drops_the_launcher(client, tmp_path) -> None:
    """Ctrl-C while a job is handed over: the next one has a launcher of its own."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.submit(_asked(tmp_path, "a", "true"), interrupt)
    assert client._requests == -1
    client.submit(_asked(tmp_path, "b", "true"))
    assert _ended(tmp_path / "b") == "SUCCEEDED"


def test_a_fork_has_a_launcher_of_its_own(client, tmp_path) -> None:
    """It neither writes into its parent's pipe nor waits for its parent's lock; the parent's goes on."""
    client.submit(_asked(tmp_path, "a", "true"))
    parent = state(tmp_path / "a").guardian
    client._lock.acquire()

    def child() -> None:
        client.close()  # not ours
        assert client._requests >= 0
        client.submit(_asked(tmp_path, "b", "true"))
        assert state(tmp_path / "b").guardian != parent
        client.close()

    in_fork(child)
    client._lock.release()
    client.submit(_asked(tmp_path, "c", "true"))
    assert state(tmp_path / "c").guardian == parent


def test_threads_of_a_fork_share_a_launcher(client, tmp_path) -> None:
    """One of them drops the launcher of the parent, while the others wait: none closes what another one has opened."""
    client.submit(_asked(tmp_path, "a", "true"))

    def child() -> None:
        other = threading.Thread(target=client.submit, args=[_asked(tmp_path, "c", "true")])
        drop = client._drop

        def slowly() -> None:
            client._drop, alone = drop, client._lock.locked()
            other.start()
            if not alone:
                other.join()
            drop()

        client._drop = slowly
        client.submit(_asked(tmp_path, "b", "true"))
        other.join()
        assert state(tmp_path / "b").guardian == state(tmp_path / "c").guardian != state(tmp_path / "a").guardian
        client.close()

    in_fork(child)


def test_a_fork_while_the_launcher_is_started(client, tmp_path, monkeypatch) -> None:
    """By another thread: the fork starts its own."""
    spawn = os.posix_spawn

    def forks(*args: Any, **options: Any) -> int:
        monkeypatch.setattr(os, "posix_spawn", spawn)

        def child() -> None:
            client.submit(_asked(tmp_path, "b", "true"))
            assert client._process == os.getpid()
            client.close()

        in_fork(child)
        return spawn(*args, **options)

    monkeypatch.setattr(os, "posix_spawn", forks)
    client.submit(_asked(tmp_path, "a", "true"))
    assert state(tmp_path / "a").guardian != state(tmp_path / "b").guardian


def test_a_fork_does_not_wait_for_its_parents_children(client, tmp_path) -> None:
    """The process that starts the launcher is the parent's to wait for."""
    client._start()
    starter = client._starter

    def child() -> None:
        client.submit(_asked(tmp_path, "a", "true"))
        client.close()

    in_fork(child)
    assert client._starter == starter
    assert os.waitpid(starter, 0)[0] == starter
    client.close()  # it has been waited for already: quiet


def test_threads_take_turns(client, tmp_path) -> None:
    """Jobs of several threads go through one launcher, each with its own answer."""
    problems: list[BaseException] = []

    def submit(name: str) -> None:
        try:
            client.submit(_asked(tmp_path, name, "true"))
        except BaseException as e:
            problems.append(e)

    threads = [threading.Thread(target=submit, args=(name,)) for name in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len({state(tmp_path / name).guardian for name in "abcdef"}) == 1
    assert [_ended(tmp_path / name) for name in "abcdef"] == ["SUCCEEDED"] * 6


def test_threads_that_come_first_start_one_launcher(client, tmp_path, monkeypatch) -> None:
    """Whoever is second waits until there is one, and does not start another over it."""
    made = []
    real = client_module._pipe

    def pipe() -> tuple[int, int]:
        made.append(real())
        select.select([], [], [], 0.02)  # the other thread comes by just now
        return made[-1]

    monkeypatch.setattr(client_module, "_pipe", pipe)
    both = threading.Barrier(2)

    def submit(name: str) -> None:
        both.wait()
        client.submit(_asked(tmp_path, name, "true"))

    threads = [threading.Thread(target=submit, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert [_ended(tmp_path / name) for name in "ab"] == ["SUCCEEDED"] * 2


def test_no_python(client, monkeypatch, tmp_path) -> None:
    """A launcher that cannot be started is a LauncherError with the reason; nothing stays open."""
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(LauncherError, match=r"cannot start `.*none`: No such file or directory"):
        client.submit(_asked(tmp_path, "a", "true"))
    assert os.listdir("/proc/self/fd") == before
    monkeypatch.undo()
    client.submit(_asked(tmp_path, "a", "true"))
    assert _ended(tmp_path / "a") == "SUCCEEDED"


def test_no_descriptors(client, monkeypatch, tmp_path) -> None:
    """A second pipe that cannot be opened is a LauncherError, too, and the next submission has both."""
    before = os.listdir("/proc/self/fd")
    real, made = client_module._pipe, []

    def pipe() -> tuple[int, int]:
        if made:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(real())
        return made[0]

    monkeypatch.setattr(client_module, "_pipe", pipe)
    with pytest.raises(LauncherError, match=r"cannot start `.*`: Too many open files"):
        client.submit(_asked(tmp_path, "a", "true"))
    assert os.listdir("/proc/self/fd") == before
    monkeypatch.undo()
    client.submit(_asked(tmp_path, "a", "true"))
    assert _ended(tmp_path / "a") == "SUCCEEDED"


def test_a_caller_without_standard_streams(tmp_path) -> None:
    """Where 0, 1 and 2 are closed the pipes do not take their place."""

    def child() -> None:
        kept = os.dup(2)
        for fd in (0, 1, 2):
            os.close(fd)
        ends = client_module._pipe()
        os.dup2(kept, 2)
        assert min(ends) > 2
        for fd in (0, 1):
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(fd)
        os.write(ends[1], b"x")
        assert os.read(ends[0], 2) == b"x"
        assert not any(os.get_inheritable(fd) for fd in ends)
        client = LauncherClient()
        client.submit(_asked(tmp_path, "a", "true"))
        assert _ended(tmp_path / "a") == "SUCCEEDED"
        client.close()

    in_fork(child)


def test_the_program_of_the_launcher_is_there() -> None:
    """Its path is that of a file beside the package."""
    assert os.path.isfile(client_module.PROGRAM)
