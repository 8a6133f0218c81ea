"""Files on a login node: whole or not at all, and to the byte, whatever becomes of the connection."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.ssh.conftest import Endless
from tests.backends.ssh.sshd import Link, Sshd
from torchx.errors import BackendError, ConfigError, TransientError
from torchx.schedulers.batch.ssh.remote_files import RemoteFiles
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
from torchx.schedulers.kit.files import MAX_GROWN

ODD_NAMES = ["it's", "a b  c ", "-rf", "$HOME", "*", "back\\slash", "ü", "日本", "per%cent", '"q"', "tab\there", ";id"]
BYTES = bytes(range(256)) * 20


@pytest.fixture
def files(runner: SSHCommandRunner) -> RemoteFiles:
    return RemoteFiles(runner)


def test_what_is_written_is_read(files: RemoteFiles, there: Path) -> None:
    """Any bytes, under any name; by part; private to the user; and nothing else lies there afterwards."""
    folder = there / "a folder" / "below"
    files.make_folder(str(folder))
    files.make_folder(str(folder))
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ODD_NAMES:
        path = str(folder / name)
        files.write(path, BYTES)
        assert (folder / name).read_bytes() == BYTES
        assert (folder / name).stat().st_mode & 0o777 == 0o600
        assert files.read(path) == BYTES
    assert sorted(files.names(str(folder))) == sorted(ODD_NAMES) == sorted(os.listdir(folder))
    path = str(folder / "it's")
    assert files.read(path, 7, 3) == BYTES[7:10]
    assert files.read(path, 5000) == BYTES[5000:]
    assert files.read(path, len(BYTES)) == b""
    assert files.read(path, 10**6) == b""
    files.write(path, b"", mode=0o755)
    assert os.stat(path).st_mode & 0o777 == 0o755
    assert files.read(path) == b""


def test_sizes_of_many_files(files: RemoteFiles, there: Path) -> None:
    """All by one command; what is not there is None."""
    paths = {}
    for i, name in enumerate([*ODD_NAMES, *(f"f{i}" for i in range(500))]):
        (there / name).write_bytes(b"x" * i)
        paths[str(there / name)] = i
    paths[str(there / "not there")] = None
    assert files.sizes(paths) == paths


def test_what_is_not_there(files: RemoteFiles, there: Path) -> None:
    """Reading finds nothing, listing finds nothing, removing is quiet."""
    assert files.read(str(there / "no")) is None
    assert files.names(str(there / "no")) == []
    files.remove(str(there / "no"))
    assert files.grown({str(there / "no"): 0}) == {}


def test_removing(files: RemoteFiles, there: Path) -> None:
    """A folder with all in it; a link and not what it points to; never the home folder."""
    kept = there / "kept"
    kept.mkdir()
    (kept / "file").touch()
    folder = there / "-folder it's"
    (folder / "below").mkdir(parents=True)
    (folder / "link").symlink_to(kept)
    files.remove(str(folder))
    assert not folder.exists()
    (there / "link").symlink_to(kept)
    files.remove(str(there / "link"))
    assert (kept / "file").exists() and not (there / "link").exists()
    for path in ("/", str(there), f"{there}/kept/.."):
        with pytest.raises(ConfigError):
            files.remove(path)


def test_refusals_say_why(files: RemoteFiles, there: Path) -> None:
    """The path, the machine and the system's own reason."""
    (there / "file").touch()
    with pytest.raises(BackendError, match=r"`.*/file/x` cannot be made on `login`: .*(Not a directory|File exists)"):
        files.make_folder(str(there / "file" / "x"))
    with pytest.raises(BackendError, match="cannot be written on `login`: it is a folder"):
        files.write(str(there), b"x")
    with pytest.raises(BackendError, match="cannot be written on `login`"):
        files.write(str(there / "no" / "file"), b"x")
    with pytest.raises(BackendError, match="cannot be read on `login`: it is a folder"):
        files.read(str(there))
    for path in ("relative", "/new\nline", "/nul\0"):
        with pytest.raises(ConfigError, match="cannot be a path on a login node"):
            files.read(path)


def test_homes(files: RemoteFiles, there: Path) -> None:
    """Those of the login node."""
    assert files.home() == files.cwd() == str(there)
    assert files.torchx_home("slurm", "x") == f"{there}/.torchx/slurm/x"
    assert RemoteFiles(SSHCommandRunner("login", "~/my jobs")).torchx_home() == f"{there}/my jobs"
    assert RemoteFiles(SSHCommandRunner("login", "jobs")).torchx_home("a") == f"{there}/jobs/a"
    assert RemoteFiles(SSHCommandRunner("login", "/scratch/$me")).torchx_home("a") == "/scratch/$me/a"


def test_growth(files: RemoteFiles, there: Path) -> None:
    """Only what came after the offsets, of all files at once, in pieces of a bounded size."""
    paths = [str(there / name) for name in ODD_NAMES]
    for path in paths:
        Path(path).write_bytes(BYTES)
    assert files.grown(dict.fromkeys(paths, 100)) == dict.fromkeys(paths, BYTES[100:])
    assert files.grown(dict.fromkeys(paths, len(BYTES))) == {}
    assert files.grown({}) == {}
    big = there / "big"
    big.write_bytes(os.urandom(MAX_GROWN + 5))
    first = files.grown({str(big): 0})[str(big)]
    assert first + files.grown({str(big): len(first)})[str(big)] == big.read_bytes()
    assert len(first) == MAX_GROWN


def test_growth_is_waited_for(files: RemoteFiles, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes soon after the news, and after the time that was given when there are none."""
    monkeypatch.setattr("torchx.schedulers.batch.ssh.remote_files._ONE_WAIT_S", 3000.0)
    log = there / "log"
    timer = threading.Timer(1.0, log.write_bytes, (b"news",))
    timer.start()
    assert files.grown({str(log): 0, str(there / "other"): 0}, wait_s=3000) == {str(log): b"news"}
    timer.join()
    begun = time.monotonic()
    assert files.grown({str(log): 4}, wait_s=1) == {}
    assert time.monotonic() - begun > 0.9


def test_a_followed_file_is_whole_after_many_cuts(files: RemoteFiles, login: Sshd, there: Path) -> None:
    """Not a byte is lost or repeated, wherever the connection is cut."""
    log = there / "log"
    written = bytearray()
    stop = threading.Event()

    def write() -> None:
        chance = random.Random(1)
        with log.open("ab", buffering=0) as f:
            while not stop.is_set():
                block = chance.randbytes(chance.randrange(1, 50_000))
                f.write(block)
                written.extend(block)
                time.sleep(0.02)

    def cut() -> None:
        chance = random.Random(2)
        while sum(cuts) < 5 and not stop.is_set():  # and no more: on a busy machine nothing would ever get through
            time.sleep(chance.uniform(0.3, 1.2))
            cuts.append(login.cut())

    cuts: list[int] = []
    files.home()
    threads = [threading.Thread(target=write), threading.Thread(target=cut)]
    for thread in threads:
        thread.start()
    read = b""
    deadline = time.monotonic() + 400
    try:
        while (sum(cuts) < 5 or len(read) < 200_000) and time.monotonic() < deadline:
            read += files.grown({str(log): len(read)}, wait_s=2).get(str(log), b"")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert sum(cuts) >= 5
    while more := files.grown({str(log): len(read)}).get(str(log)):
        read += more
    assert read == bytes(written)


def test_a_write_that_is_cut_leaves_the_old_file(
    link: Link, there: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., object]
) -> None:
    """The other side sees the end of the input, and must not take it for the end of the file."""
    files = RemoteFiles(SSHCommandRunner("far"))
    target = there / "file"
    files.write(str(target), b"old")
    data = os.urandom(8 << 20)
    for part in (0.01, 0.1, 0.5, 0.9, 1.0):  # all of what is sent is more than the file
        link.cut_after(int(part * len(data)))
        with monkeypatch.context() as impatient, pytest.raises(TransientError):
            impatient.setattr("torchx.schedulers.batch.ssh.remote_files.PATIENCE_S", 0)
            files.write(str(target), data)
        assert target.read_bytes()[:64] == b"old"  # all of it: of what was sent more would be there
    link.cut_after(None)
    files.write(str(target), data)
    arrived = target.read_bytes() == data
    assert arrived  # without eight megabytes of differences
    eventually(lambda: not [name for name in os.listdir(there) if name not in ("file", ".torchx")])


# -- at most once ----------------------------------------------------------------------------------


def _counter(there: Path, seconds: float) -> list[str]:
    """A command that counts how often it was run."""
    script = f"cat >> {there}/input; sleep {seconds}; echo ran >> {there}/runs; echo job 7; echo note >&2; exit 3"
    return ["sh", "-c", script]


def test_once(runner: SSHCommandRunner, there: Path) -> None:
    """Asked for again with the same token, the answer is that of the one time; another token is another time."""
    command = _counter(there, 0)
    answers = [runner.run_once(command, token="t-1", stdin="it's in\n") for _ in range(3)]
    assert {(a.returncode, a.stdout, a.stderr) for a in answers} == {(3, "job 7\n", "note\n")}
    assert (there / "runs").read_text() == "ran\n"
    assert (there / "input").read_text() == "it's in\n"
    runner.run_once(command, token="t-2")
    assert (there / "runs").read_text() == "ran\nran\n"


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5])
def test_once_whenever_it_is_cut(after_s: float, runner: SSHCommandRunner, login: Sshd, there: Path) -> None:
    """The connection is killed before, while and after the command is started: it runs once, and its answer comes."""
    runner.run(["true"])
    timer = threading.Timer(after_s, login.cut)
    timer.start()
    done = runner.run_once(_counter(there, 0.6), token="job-a.b_1", stdin="in\n" * 5000)
    timer.join()
    assert (done.returncode, done.stdout, done.stderr) == (3, "job 7\n", "note\n")
    assert (there / "runs").read_text() == "ran\n"
    assert (there / "input").read_text() == "in\n" * 5000


def test_once_from_two_at_the_same_time(runner: SSHCommandRunner, there: Path) -> None:
    """Both have the answer."""
    answers = []
    command = _counter(there, 1)
    threads = [
        threading.Thread(target=lambda: answers.append(runner.run_once(command, token="t").stdout)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["job 7\n"] * 2
    assert (there / "runs").read_text() == "ran\n"


def test_once_that_does_not_end(runner: SSHCommandRunner, there: Path, endless: Endless) -> None:
    """What is not known is said to be unknown; it is not started again, and its answer may still be had."""
    command = ["sh", "-c", f"{endless.script}; {_counter(there, 0)[-1]}"]
    with pytest.raises(TransientError, match="was started and has not answered within 1 s"):
        runner.run_once(command, token="t", timeout=1)
    endless.end()
    assert runner.run_once(command, token="t").stdout == "job 7\n"
    assert (there / "runs").read_text() == "ran\n"


def test_once_without_a_place_for_the_answer(runner: SSHCommandRunner, there: Path) -> None:
    """Nothing is started."""
    (there / ".torchx").touch()
    with pytest.raises(BackendError, match=r"`sh` was not started on `login`: .*(File exists|Not a directory)"):
        runner.run_once(_counter(there, 0), token="t")
    assert not (there / "runs").exists()


def test_once_with_a_program_that_is_not_there(runner: SSHCommandRunner) -> None:
    """As for any command."""
    with pytest.raises(BackendError, match="`sbatch-x` is not installed on `login`"):
        runner.run_once(["sbatch-x"], token="t")
