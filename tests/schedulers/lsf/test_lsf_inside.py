"""A process beside a replica on its host, with a shell in place of ``ssh`` and the login shell."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchx.errors import BackendError, NotFoundError, NotSupportedError
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.inside import not_running
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.schedulers.lsf.inside import OnHost, host_of
from torchx.specs.api import AppState

Enter = Callable[..., OnHost]
SLEEPS = ["sh", "-c", "echo ready; exec sleep 1000"]

linux = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("bash"), reason="needs /proc and bash")


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that LSF might have started."""
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": f"{tmp_path}/error.json", "WHO": "a replica's"}
    with subprocess.Popen(["sleep", "1000"], env=env, cwd=tmp_path) as process:
        yield process
        process.kill()


@pytest.fixture
def enter(tmp_path: Path, calls: list[list[str]]) -> Iterator[Enter]:
    """Starts a command on host `n1`."""
    made = []

    def run(argv: list[str]) -> Completed:
        calls.append(argv)
        done = subprocess.run(["sh", "-c", argv[-1]], capture_output=True, text=True, check=False)
        return Completed(argv, done.returncode, done.stdout, done.stderr)

    def spawn(argv: list[str], tty: object) -> SpawnedProcess:
        calls.append(argv)
        return SpawnedProcess(["sh", "-c", argv[-1]])

    def start(*argv: str, spawn: Callable[..., SpawnedProcess] = spawn) -> OnHost:
        ended = lambda: not_running("a-1", "r", 0, "FAILED")  # noqa: E731
        made.append(OnHost(spawn, "n1", str(tmp_path), argv, None, run=run, ended=ended))
        return made[-1]

    yield start
    for process in made:
        process.close()


@pytest.fixture
def calls() -> list[list[str]]:
    return []


@linux
def test_it_has_folder_and_environment_of_the_replica(
    replica: subprocess.Popen[bytes],
    enter: Enter,
    tmp_path: Path,
    calls: list[list[str]],
) -> None:
    """Exit code and output are the command's; ssh does not prompt for a password."""
    process = enter("sh", "-c", 'echo "$WHO $1"; pwd >&2; exit 7', "sh", "it's")
    said = {1: b"", 2: b""}
    while (piece := process.read()) is not None:
        said[piece[0]] += piece[1]
    assert said == {1: b"a replica's it's\n", 2: f"{tmp_path}\n".encode()}
    assert process.wait() == 7
    assert calls[0][:-1] == ["ssh", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", "-e", "none", "-T", "--", "n1"]


@linux
def test_it_ends_with_the_replica(replica: subprocess.Popen[bytes], enter: Enter) -> None:
    """LSF does not end it, so its script polls the replica."""
    process = enter(*SLEEPS)
    assert process.read() == (1, b"ready\n")
    replica.kill()
    assert process.read() is None
    assert process.wait() == 128 + signal.SIGTERM


@linux
def test_signals(replica: subprocess.Popen[bytes], enter: Enter, calls: list[list[str]]) -> None:
    """A second ssh sends them to the command's group; closing kills it."""
    process = enter(*SLEEPS)
    assert process.read() == (1, b"ready\n")
    process.send_signal(signal.SIGUSR1)
    assert process.read() is None
    assert process.wait() == 128 + signal.SIGUSR1
    assert calls[-1][-3:-1] == ["--", "n1"]
    process = enter(*SLEEPS)
    process.close()
    assert process.wait() != 0


@linux
def test_nobody_is_there(enter: Enter) -> None:
    """The replica has ended since its host was queried."""
    with pytest.raises(NotFoundError, match="is not running: it is FAILED"):
        enter("true").read()


def test_a_host_that_cannot_be_reached(enter: Enter) -> None:
    """The error says which login must work."""
    process = enter("true", spawn=lambda argv, tty: SpawnedProcess(["sh", "-c", "exit 255"]))
    assert process.read() is None
    with pytest.raises(BackendError, match="`ssh n1` ended with exit code 255"):
        process.wait()


@linux
@pytest.mark.usefixtures("replica")
def test_a_command_that_ends_like_ssh(enter: Enter) -> None:
    """Its exit code is its own."""
    process = enter("sh", "-c", "exit 255")
    assert process.read() is None
    assert process.wait() == 255


@linux
@pytest.mark.usefixtures("replica")
@pytest.mark.parametrize(("code", "found"), [(255, None), (254, 254), (0, 128 + signal.SIGKILL)])
def test_a_connection_that_is_lost(code: int, found: int | None, enter: Enter) -> None:
    """It is an error, if it is ssh that says so; otherwise the command was killed with all that ran it."""
    process = enter(
        "sh",
        "-c",
        "kill -KILL $PPID",
        spawn=lambda argv, tty: SpawnedProcess(["sh", "-c", f"({argv[-1]}); exit {code}"]),
    )
    while process.read():
        pass
    if found is None:
        with pytest.raises(BackendError, match="`ssh n1` ended with exit code 255"):
            process.wait()
    else:
        assert process.wait() == found


def test_a_client_that_ends_before_the_command(enter: Enter) -> None:
    """Nothing was started: with exit code 0 the replica is not there, otherwise the client has failed."""
    for code, error in ((0, NotFoundError), (3, BackendError)):
        process = enter("true", spawn=lambda argv, tty, code=code: SpawnedProcess(["sh", "-c", f"exit {code}"]))
        assert process.read() is None
        with pytest.raises(error):
            process.wait()


@linux
@pytest.mark.usefixtures("replica")
def test_a_command_too_long_for_ssh(enter: Enter) -> None:
    """It comes by stdin, before its own input."""
    process = enter("sh", "-c", 'printf %s "$1" | wc -c', "sh", "x" * 99_000)
    assert process.read() == (1, b"99000\n")
    assert process.read() is None
    assert process.wait() == 0


def test_the_size_of_a_terminal(enter: Enter, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed on."""
    process = enter("true")
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(process._link, "resize", lambda *size: seen.append(size))
    process.resize(99, 33)
    assert seen == [(99, 33)]


def test_who_can_be_entered(tmp_path: Path) -> None:
    """Running replicas that are not in a container."""
    folder = JobFolder(LocalFiles(), str(tmp_path))
    states = [AppState.RUNNING, AppState.FAILED]
    found = [ReplicaFacts(role="r", replica=k, state=state, host=f"n{k}") for k, state in enumerate(states)]
    (tmp_path / "replicas.sh").write_text("torchx_container() {\n:\n}\nexec -- sleep 1\n")
    assert host_of(folder, found, "a-1", "r", 0) == "n0"
    for k, state in ((1, "FAILED"), (2, "UNKNOWN")):
        with pytest.raises(NotFoundError, match=f"r/{k} of `a-1` is not running: it is {state}"):
            host_of(folder, found, "a-1", "r", k)
    (tmp_path / "replicas.sh").write_text("torchx_container a-1 docker run x\n" * 2)
    with pytest.raises(NotSupportedError, match="runs in a container") as refused:
        host_of(folder, found, "a-1", "r", 0)
    assert "`docker exec` on host `n0`" in str(refused.value.hint)
