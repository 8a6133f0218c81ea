"""A process inside a replica that is our child: its streams, its terminal, its limits and its end."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.kit.inside import CHUNK, STDERR, STDOUT, Tty, spawned
from torchx.schedulers.kit.inside.run import Ran, python_words, run
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.supervisor.proctree import RLIMIT_LOCKS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def output(process: SpawnedProcess) -> dict[int, bytes]:
    """All that it prints, by stream."""
    found = {STDOUT: b"", STDERR: b""}
    while (piece := process.read()) is not None:
        found[piece[0]] += piece[1]
    return found


def sh(script: str, *words: str, **options: Any) -> SpawnedProcess:
    return SpawnedProcess(["sh", "-c", script, "sh", *words], **options)


def until(process: SpawnedProcess, text: bytes) -> None:
    """Reads until it has printed the text."""
    found = b""
    while text not in found:
        piece = process.read()
        assert piece is not None, found
        found += piece[1]


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    """Each test closes what it opens."""
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(("end", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -1 $$", 129)])
def test_its_streams_and_its_exit_code(end: str, code: int) -> None:
    """Arbitrary bytes pass; a signal is 128 plus its number."""
    with sh("cat; printf '\\377' >&2; " + end) as process:
        process.write(b"\0\xfe" * CHUNK)
        process.write(b"")
        process.close_stdin()
        process.close_stdin()
        found = output(process)
        assert (found[STDOUT] == b"\0\xfe" * CHUNK, found[STDERR], process.wait()) == (True, b"\xff", code)
        assert process.read() is None
        with pytest.raises(BrokenPipeError, match="its stdin is closed"):
            process.write(b"x")


def test_its_environment_folder_and_session(tmp_path: Path) -> None:
    """They are as asked; it leads a session of its own."""
    with sh("echo $A; pwd; cut -d' ' -f6 /proc/$$/stat; echo $$", env={"A": "b"}, cwd=str(tmp_path)) as process:
        a, folder, session, pid = output(process)[STDOUT].split()
    assert (a, folder, session) == (b"b", os.fsencode(tmp_path), pid)


SIZE = "import fcntl,struct,termios; print(struct.unpack('4H', fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))))"


def test_a_terminal() -> None:
    """It has the size asked for, and a new one later; it is the controlling one, and all output is on stdout."""
    script = 'echo >&2 err; tty < /dev/tty; "$@"; trap \'"$@"; exit 7\' WINCH; echo ready; while :; do sleep 0.01; done'
    with sh(script, sys.executable, "-c", SIZE, tty=Tty(91, 37)) as process:
        process.close_stdin()  # does nothing
        found = b""
        while b"ready" not in found:
            stream, data = process.read() or (0, b"")
            assert stream == STDOUT
            found += data
        assert found.split(b"\r\n")[0] == b"err"
        assert b"not a tty" not in found and b"(37, 91, 0, 0)" in found
        process.resize(50, 20)
        until(process, b"(20, 50, 0, 0)")
        assert (output(process)[STDERR], process.wait()) == (b"", 7)


def test_input_of_a_terminal() -> None:
    """It arrives, and a control character sends a signal."""
    with sh("stty -echo; echo ready; read line; echo got $line; exec sleep 600", tty=Tty()) as process:
        until(process, b"ready")
        process.write(b"text\n")
        until(process, b"got text")
        process.write(b"\x03")
        assert (output(process), process.wait()) == ({STDOUT: b"", STDERR: b""}, 130)
    with pytest.raises(BrokenPipeError, match="its terminal is closed"):
        process.write(b"x")
    process.close_stdin()  # nothing is left to close


def test_input_of_a_terminal_whose_program_ends() -> None:
    """A write that waits fails when its program ends, and so does the next one."""
    with sh("stty raw -echo; echo go; sleep 0.3", tty=Tty()) as process:
        until(process, b"go\n")
        for _ in range(2):
            with pytest.raises(BrokenPipeError):
                process.write(b"x" * (1 << 20))


@pytest.mark.parametrize("tty", [None, Tty()], ids=["pipes", "terminal"])
def test_a_program_that_cannot_be_started(tty: Tty | None) -> None:
    """The error is the system's, and nothing stays open."""
    with pytest.raises(FileNotFoundError):
        SpawnedProcess(["true"], tty=tty, cwd="/nowhere")


@pytest.fixture
def no_stdin() -> Iterator[None]:
    """As in a program that has closed its stdin: the next descriptor is 0."""
    kept = os.dup(0)
    os.close(0)
    yield
    os.dup2(kept, 0)
    os.close(kept)


@pytest.mark.usefixtures("no_stdin")
def test_a_terminal_whose_descriptor_is_zero() -> None:
    """It is like any other: it has its size, takes input, and is closed in the end, also if nothing can be started."""
    with sh('stty -echo; stty size; read line; echo got $line; "$@"', "stty", "size", tty=Tty(91, 37)) as process:
        assert process._master == 0
        until(process, b"37 91")
        process.close_stdin()
        process.resize(50, 20)
        process.write(b"text\n")
        assert (output(process)[STDOUT].split(b"\r\n")[-3:-1], process.wait()) == ([b"got text", b"20 50"], 0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(0)
    with pytest.raises(FileNotFoundError):
        SpawnedProcess(["true"], tty=Tty(), cwd="/nowhere")
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(0)


def test_its_end_is_the_end_of_its_terminal(tmp_path: Path) -> None:
    """Its last words are read, although another process keeps the terminal open."""
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with sh('trap "" HUP; cat "$1" & echo last; exit 4', fifo, tty=Tty()) as process:
        assert (output(process)[STDOUT], process.wait()) == (b"last\r\n", 4)
        assert process.read() is None
        os.close(os.open(fifo, os.O_WRONLY))


def test_pipes_are_read_to_their_end(tmp_path: Path) -> None:
    """What a process that it left behind prints, is output, too."""
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    with sh('cat "$1" & echo first', fifo) as process:
        until(process, b"first\n")
        assert process.wait() == 0
        writer = os.open(fifo, os.O_WRONLY)
        os.write(writer, b"second")
        os.close(writer)
        assert output(process)[STDOUT] == b"second"


@pytest.mark.parametrize(
    ("traps", "code"), [("", 129), ("trap '' HUP", 143), ("trap '' HUP TERM", 137), ("trap 'exit 5' HUP", 5)]
)
@pytest.mark.parametrize("tty", [None, Tty()], ids=["pipes", "terminal"])
def test_closing_ends_it(traps: str, code: int, tty: Tty | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By SIGHUP; if it goes on, by SIGTERM, then by SIGKILL. Closing twice changes nothing."""
    assert 1 <= spawned._GRACE_S <= 2.5  # three times, while somebody waits
    monkeypatch.setattr(spawned, "_GRACE_S", 0.3)
    process = sh(f"{traps}\necho ready; exec >/dev/null 2>&1; while :; do sleep 0.01; done", tty=tty)
    until(process, b"ready")
    process.close()
    assert process.wait() == code
    process.close()
    assert process.read() is None
    process.send_signal(signal.SIGTERM)  # nobody is there


def test_a_signal_reaches_all_of_its_processes() -> None:
    """Its whole group gets it."""
    with sh("sh -c 'trap \"echo inner; exit\" USR1; echo ready; while :; do sleep 0.01; done' & wait") as process:
        until(process, b"ready")
        process.send_signal(signal.SIGUSR1)
        until(process, b"inner")
        assert process.wait() == 128 + signal.SIGUSR1


@pytest.mark.parametrize("tty", [None, Tty()], ids=["pipes", "terminal"])
def test_closing_wakes_who_reads(tty: Tty | None) -> None:
    """The other thread sees the end of the output."""
    process = sh("echo ready; exec sleep 600", tty=tty)
    until(process, b"ready")
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(process.read()))
    reader.start()
    while process._reading.acquire(blocking=False):  # until the thread reads
        process._reading.release()
    process.close()
    reader.join()
    assert found == [None]


def test_whoever_has_no_patience_does_not_wait() -> None:
    """With a limit, silence is the end of the output; for a second reader, too."""
    with sh("echo ready; exec sleep 600") as process:
        until(process, b"ready")
        process.settimeout(0.01)
        assert process.read() is None
        with process._reading:
            reader = threading.Thread(target=lambda: found.append(process.read()))
            found: list[object] = []
            reader.start()
            reader.join()
        assert found == [None]


def test_a_read_that_would_block_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may have read what was there."""
    read, refused = os.read, [True]

    def once(fd: int, size: int) -> bytes:
        if refused:
            refused.pop()
            raise BlockingIOError
        return read(fd, size)

    with sh("echo text") as process:
        monkeypatch.setattr(os, "read", once)
        assert output(process)[STDOUT] == b"text\n"
    assert refused == []


def test_a_process_of_its_own_depends_on_nobody() -> None:
    """Without a process beside, it watches none, and gets the limits of none."""
    with sh("cat /proc/$$/limits") as process:
        assert process._other < 0
        assert output(process)[STDOUT].decode() == Path("/proc/self/limits").read_text()


# -- beside another process ------------------------------------------------------------------------


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process with limits of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        for number, limits in {
            resource.RLIMIT_NOFILE: (77, 88),
            resource.RLIMIT_CORE: (0, 0),
            RLIMIT_LOCKS: (11, 12),
        }.items():
            resource.prlimit(process.pid, number, limits)
        yield process
        process.kill()


def test_it_has_the_limits_of_the_process_beside(other: subprocess.Popen[bytes]) -> None:
    """All of them, before it begins; its output is that of any process."""
    with sh("cat /proc/$$/limits; exit 6", beside=other.pid) as process:
        found, code = output(process)[STDOUT].decode(), process.wait()
    assert (found, code) == (Path(f"/proc/{other.pid}/limits").read_text(), 6)
    assert "77" in found


@pytest.mark.parametrize("tty", [None, Tty()], ids=["pipes", "terminal"])
def test_it_ends_with_the_process_beside(other: subprocess.Popen[bytes], tty: Tty | None) -> None:
    """What it has printed is read before."""
    with sh("trap '' HUP TERM; echo ready; while :; do sleep 0.01; done", beside=other.pid, tty=tty) as process:
        until(process, b"ready")
        other.kill()
        assert (output(process), process.wait()) == ({STDOUT: b"", STDERR: b""}, 137)


def test_a_process_beside_that_has_just_ended() -> None:
    """It cannot be waited for, and the program runs."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with sh("echo ran", beside=gone.pid) as process:
        assert (output(process)[STDOUT], process.wait()) == (b"ran\n", 0)


def test_limits_above_ours_are_left_out(other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are copied."""
    prlimit = resource.prlimit

    def refuses(pid: int, number: int, limits: Any = None) -> Any:
        if limits is not None and number == resource.RLIMIT_CORE:
            raise ValueError("not allowed to raise maximum limit")
        return prlimit(pid, number) if limits is None else prlimit(pid, number, limits)

    monkeypatch.setattr(resource, "prlimit", refuses)
    with sh("ulimit -n", beside=other.pid) as process:
        assert output(process)[STDOUT] == b"77\n"


# -- until it exits --------------------------------------------------------------------------------


def test_what_it_printed_and_how_it_ended() -> None:
    """Both streams apart, and the exit code; it reads what it is given, or the end of its input."""
    assert run(sh("cat; echo err >&2; exit 2"), b"text") == Ran(2, b"text", b"err\n")
    assert run(sh("cat; echo b; echo c")) == Ran(0, b"b\nc\n", b"")
    assert run(sh("exec true"), b"unread" * CHUNK).exit_code == 0


class Scripted:
    """A process whose every call is written down."""

    def __init__(self, *output: tuple[int, bytes] | BaseException) -> None:
        self.calls: list[object] = []
        self._output = iter(output)
        self._fed = threading.Event()

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        self.calls.append("closed")

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close_stdin(self) -> None:
        self.calls.append("stdin")
        self._fed.set()

    def read(self) -> tuple[int, bytes] | None:
        self._fed.wait()
        found = next(self._output, None)
        if isinstance(found, BaseException):
            raise found
        return found

    def wait(self) -> int:
        return 9


@pytest.mark.parametrize(("stdin", "calls"), [(b"x", [b"x", "stdin", "closed"]), (b"", ["stdin", "closed"])])
def test_nothing_is_written_if_there_is_nothing(stdin: bytes, calls: list[object]) -> None:
    """Its stdin is closed all the same, and the process in the end."""
    process: Any = Scripted((STDERR, b"a"), (STDOUT, b"b"), (STDERR, b"c"))
    assert run(process, stdin) == Ran(9, b"b", b"ac")
    assert process.calls == calls


def test_a_wait_that_is_interrupted_ends_the_process() -> None:
    """Whatever interrupts it."""
    process: Any = Scripted((STDOUT, b"a"), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(process)
    assert process.calls == ["stdin", "closed"]


@pytest.mark.parametrize("name", ["python3", "python", ""])
def test_the_python_of_a_replica(name: str, tmp_path: Path) -> None:
    """Whichever name it has; without one, the error says so."""
    if name:
        (tmp_path / name).symlink_to(sys.executable)
    done = subprocess.run(
        ["/bin/sh", *python_words("print('ran'); import sys; sys.exit(4)")[1:]],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    said = (4, b"ran\n", b"") if name else (127, b"", b"no python there\n")
    assert (done.returncode, done.stdout, done.stderr) == said
