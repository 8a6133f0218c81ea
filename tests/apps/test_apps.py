"""Programs that components run inside a job."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchx.apps.utils import booth_main, copy_main, process_monitor
from torchx.runtime.tracking import FsspecResultTracker

pytest.importorskip("fsspec")


def test_copy(tmp_path: Path) -> None:
    """A path without a scheme and a URL both work; directories are created."""
    (tmp_path / "a").write_text("x")
    copy_main.main(["--src", str(tmp_path / "a"), "--dst", f"file://{tmp_path}/d/e/b"])
    assert (tmp_path / "d/e/b").read_text() == "x"


class Breaks(io.BytesIO):
    """Yields one block, and then an error."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError("the connection was lost")
        return super().read(4)


@pytest.mark.parametrize("before", [None, b"old"], ids=["a new file", "a file that is there"])
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_half_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, before: bytes | None) -> None:
    """An interrupted copy leaves the destination unchanged, on a disk and in a store."""
    import fsspec

    folder = f"{tmp_path}/dst"
    fs = fsspec.filesystem(scheme)
    fs.makedirs(folder)
    if before is not None:
        fs.pipe_file(f"{folder}/b", before)
    monkeypatch.setattr(fsspec, "open", lambda *_: contextlib.nullcontext(Breaks(b"0123456789")))
    with pytest.raises(OSError, match="connection was lost"):
        copy_main.main(["--src", "x", "--dst", f"{scheme}://{folder}/b"])
    assert [fs.cat_file(path) for path in fs.ls(folder, detail=False)] == ([before] if before is not None else [])


def test_copy_to_a_store_and_to_a_pipe(tmp_path: Path) -> None:
    """An object, and a non-regular file, which is written to and not replaced."""
    import fsspec

    (tmp_path / "a").write_bytes(b"x" * (3 << 20))
    copy_main.main(["--src", str(tmp_path / "a"), "--dst", f"memory://{tmp_path}/b"])
    assert fsspec.filesystem("memory").cat_file(f"{tmp_path}/b") == b"x" * (3 << 20)
    argv = [sys.executable, "-m", "torchx.apps.utils.copy_main", "--src", str(tmp_path / "a"), "--dst", "/dev/stdout"]
    assert len(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout) == 3 << 20
    copy_main.main(["--src", str(tmp_path / "a"), "--dst", "/dev/null"])
    assert not os.path.isfile("/dev/null")


def test_copy_of_nothing(tmp_path: Path) -> None:
    """A missing source is one line and exit code 1."""
    words = [sys.executable, "-m", "torchx.apps.utils.copy_main", "--src", f"{tmp_path}/no", "--dst", f"{tmp_path}/b"]
    done = subprocess.run(words, capture_output=True, check=False, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("copy: ")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("x1", "x2", "value"), [(1, 3, 0), (0, 0, 74), (-1, -2.5, 259.25)])
def test_booth(tmp_path: Path, capsys: pytest.CaptureFixture[str], x1: float, x2: float, value: float) -> None:
    """The value of the Booth function is printed and stored."""
    booth_main.main([f"--x1={x1}", f"--x2={x2}", "--trial_idx=3", f"--tracker_base={tmp_path}"])
    assert FsspecResultTracker(str(tmp_path)).get(3) == {"booth_eval": value}
    assert str(float(value)) in capsys.readouterr().out


def test_booth_needs_its_point() -> None:
    """Missing arguments are usage errors."""
    with pytest.raises(SystemExit) as e:
        booth_main.parse_args(["--x1", "1"])
    assert e.value.code == 2


# process_monitor


def monitor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchx.apps.utils.process_monitor", "--poll_rate", "0.02", *words]
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=300)


@pytest.mark.parametrize(("line", "code"), [("exit 0", 0), ("exit 5", 5), ("kill -9 $$", 128 + 9)])
def test_monitor_ends_with_the_program(line: str, code: int) -> None:
    """The exit code is that of the program; 128 plus the number for a signal, as in a shell."""
    assert monitor("--", "sh", "-c", line).returncode == code


def test_monitor_arguments() -> None:
    """Arguments after the program are passed to it."""
    args = process_monitor.parse_args(["--timeout", "5", "tensorboard", "--logdir", "x", "--timeout", "7"])
    assert (args.timeout, args.entrypoint, args.args) == (5.0, "tensorboard", ["--logdir", "x", "--timeout", "7"])


def test_monitor_times_out() -> None:
    """After the timeout the program is stopped, and the exit code shows it."""
    assert monitor("--timeout", "0.05", "sleep", "600").returncode == process_monitor.TIMEOUT_EXIT_CODE == 34


def test_monitor_times_out_before_the_start(tmp_path: Path) -> None:
    """The timeout counts from the beginning, even if the start file never appears."""
    done = monitor("--timeout", "0.05", "--start_on_file", f"{tmp_path}/no", "--", "touch", f"{tmp_path}/started")
    assert done.returncode == 34
    assert not (tmp_path / "started").exists()


def test_monitor_starts_and_ends_on_files(tmp_path: Path) -> None:
    """The program starts when one file exists, and is stopped when the other exists."""
    (tmp_path / "go").touch()
    line = f"touch {tmp_path}/done; exec sleep 600"
    done = monitor("--start_on_file", f"file://{tmp_path}/go", "--exit_on_file", f"{tmp_path}/done", "sh", "-c", line)
    assert done.returncode == 0


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Restores the signal handlers."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_monitor_waits_for_the_start_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is checked repeatedly; nothing starts before it exists."""
    looks: list[bool] = []

    def appears_at_the_third_look(path: str) -> bool:
        looks.append(not (tmp_path / "started").exists())
        return len(looks) == 3

    monkeypatch.setattr(process_monitor, "_exists", appears_at_the_third_look)
    process_monitor.main(["--poll_rate", "0", "--start_on_file", "x", "touch", str(tmp_path / "started")])
    assert looks == [True, True, True]
    assert (tmp_path / "started").exists()


@pytest.mark.usefixtures("_handlers")
def test_monitor_outlives_a_store_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failing store neither ends the program nor disables the timeout; it gives one warning."""
    looks: list[str] = []
    exists = process_monitor._exists

    def counted(path: str) -> bool:
        looks.append(path)
        return exists(path)

    def now() -> float:
        """The timeout is reached when the program has run and the store was queried three times."""
        return 3600.0 if len(looks) >= 3 and (tmp_path / "ran").exists() else 0.0

    monkeypatch.setattr(process_monitor, "_exists", counted)
    monkeypatch.setattr(process_monitor, "_warned", set())
    monkeypatch.setattr(process_monitor, "time", SimpleNamespace(monotonic=now))
    words = ["--poll_rate", "0.02", "--timeout", "1800", "--exit_on_file", "nosuch://store/done"]
    with pytest.raises(SystemExit) as e:
        process_monitor.main([*words, "sh", "-c", f"touch {tmp_path}/ran; exec sleep 600"])
    assert e.value.code == 34
    assert capsys.readouterr().err.count("`nosuch://store/done` cannot be looked for") == 1


def test_a_store_with_errors_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors of a cloud's package, which are no OSErrors, are warnings, too: the program has to go on."""
    from fsspec.implementations.memory import MemoryFileSystem

    class HttpError(Exception):
        """That of gcsfs, as those of botocore, comes directly from Exception."""

    def fails(*_: object) -> bool:
        raise HttpError("503")

    monkeypatch.setattr(MemoryFileSystem, "exists", fails)
    monkeypatch.setattr(process_monitor, "_warned", set())
    assert not process_monitor._exists("memory://done")
    assert not process_monitor._exists("memory://done")
    assert capsys.readouterr().err.count("`memory://done` cannot be looked for: 503") == 1


def test_monitor_is_stopped_before_the_start(tmp_path: Path) -> None:
    """A signal during the wait for the start file ends the monitor, and nothing is started."""
    words = ["--start_on_file", f"{tmp_path}/no", "touch", f"{tmp_path}/started"]
    code = (
        "import os, signal, sys; from torchx.apps.utils import process_monitor as m; "
        "m._exists = lambda path: os.kill(os.getpid(), signal.SIGTERM); m.main(sys.argv[1:])"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, timeout=300)
    assert done.returncode == 128 + signal.SIGTERM
    assert not (tmp_path / "started").exists()


def test_monitor_of_nothing() -> None:
    """A missing program is a one-line error."""
    done = monitor("/no/such/program")
    assert done.returncode == 1
    assert done.stderr == "`/no/such/program` cannot be started: No such file or directory\n"


def test_monitor_passes_on_a_signal() -> None:
    """SIGTERM reaches the program, and the monitor exits with the program's code."""
    words = ["sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.02; done"]
    command = [sys.executable, "-m", "torchx.apps.utils.process_monitor", "--poll_rate", "0.02", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(timeout=300) == 7


def test_monitor_of_what_is_meant_to_run_until_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code after the timeout can be set; a timeout before the program has started is always a failure."""
    monkeypatch.setenv("TORCHX_TIMEOUT_EXIT_CODE", "0")
    assert monitor("--timeout", "0.2", "sleep", "600").returncode == 0
    assert monitor("--timeout", "0.2", "--start_on_file", f"{tmp_path}/no", "true").returncode == 34
