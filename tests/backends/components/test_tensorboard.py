"""A real TensorBoard as a job of this machine: its page is fetched, and it ends by file or by time."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, build_opener

import pytest

from tests import ports
from torchx.runner import Runner, get_runner
from torchx.specs import AppState

pytest.importorskip("tensorboard", reason="tensorboard is not installed; the extra `ci` has it")

WRITES = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

writer = EventFileWriter("runs/first")
for step in range(5):
    value = Summary.Value(tag="loss", simple_value=1 / (step + 1))
    writer.add_event(Event(step=step, wall_time=step, summary=Summary(value=[value])))
writer.close()
"""

# Time is over when the test says so, however long the server needs to begin.
CLOCK = """
import os, sys, time

if "torchx.apps.utils.process_monitor" in sys.orig_argv:
    now, sleep = time.monotonic, time.sleep

    def slept(seconds):
        if sys._getframe(1).f_globals["__name__"] == "__main__":  # not in `subprocess`, which waits for the server
            open("waits", "w").close()
        sleep(seconds)

    time.monotonic = lambda: now() + 900 * os.path.exists("over")
    time.sleep = slept
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    """A runner in a folder where a training has written five losses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # TensorBoard notes there that it runs
    subprocess.run([sys.executable, "-c", WRITES], check=True, capture_output=True)
    with get_runner("components") as found:
        yield found


@pytest.fixture
def port() -> int:
    return ports.free()


@pytest.fixture
def eventually(eventually: Callable[..., object]) -> Callable[..., object]:
    return functools.partial(eventually, timeout_s=300)


def page(port: int, path: str, host: str = "127.0.0.1") -> bytes:
    """The page; empty while nobody is there."""
    try:
        with build_opener(ProxyHandler({})).open(f"http://{host}:{port}{path}", timeout=60) as answer:
            return bytes(answer.read())
    except (OSError, HTTPException):
        return b""


def launched(runner: Runner, port: int, *words: str) -> str:
    return runner.run_component("metrics.tensorboard", ["--logdir", "runs", "--port", str(port), *words], "local_cwd")


def ended(runner: Runner, handle: str) -> AppState:
    status = runner.wait(handle, wait_interval=0.2, timeout=300)
    assert status is not None
    return status.state


def test_until_a_file_appears(runner: Runner, port: int, tmp_path: Path, eventually: Callable[..., object]) -> None:
    """It shows what the training wrote, on the loopback interface alone, and is gone once the file is there."""

    def shown(what: str) -> Any:
        return json.loads(page(port, f"/data/plugin/scalars/{what}") or b"null")

    def becomes(question: Callable[[], object], answer: object) -> None:
        """It reads files beside answering: at first it may have found none, or some."""
        with contextlib.suppress(AssertionError):
            eventually(lambda: question() == answer)
        assert question() == answer

    handle = launched(runner, port, "--exit_on_file", "done")
    try:
        eventually(lambda: b"TensorBoard" in page(port, "/"))
        becomes(lambda: shown("tags"), {"first": {"loss": {"displayName": "", "description": ""}}})
        losses = [[0, 1], [1, 0.5], [2, 0.333], [3, 0.25], [4, 0.2]]
        becomes(lambda: [[n, round(x, 3)] for _, n, x in shown("scalars?run=first&tag=loss") or ()], losses)
        with socket.socket() as s:  # every address of 127/8 is this machine: it is at one of them
            assert s.connect_ex(("127.0.0.2", port)) != 0
        (tmp_path / "done").touch()
        assert ended(runner, handle) == AppState.SUCCEEDED
        assert page(port, "/") == b""
    finally:
        runner.cancel(handle)


@pytest.fixture
def _clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """900 s are over when the file `over` is there; the file `waits` says that the job waits for its start."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)


@pytest.mark.usefixtures("_clock")
def test_until_time_is_over(runner: Runner, port: int, tmp_path: Path, eventually: Callable[..., object]) -> None:
    """It begins when the training says so; to have run for as long as was asked is to have succeeded."""
    handle = launched(runner, port, "--start_on_file", "runs/first/begun", "--timeout", "900")
    try:
        eventually((tmp_path / "waits").exists)
        assert page(port, "/") == b""
        (tmp_path / "runs" / "first" / "begun").touch()
        eventually(lambda: b"TensorBoard" in page(port, "/"))
        assert runner.status(handle).state == AppState.RUNNING
        (tmp_path / "over").touch()
        assert ended(runner, handle) == AppState.SUCCEEDED
        assert page(port, "/") == b""
    finally:
        runner.cancel(handle)


def test_a_port_that_is_taken(runner: Runner) -> None:
    """The job fails, and its status says why."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        handle = launched(runner, s.getsockname()[1])
        assert ended(runner, handle) == AppState.FAILED
        assert "already in use" in str(runner.status(handle))


def test_cancelled(runner: Runner, port: int, eventually: Callable[..., object]) -> None:
    """Nothing of it is left."""
    handle = launched(runner, port)
    eventually(lambda: b"TensorBoard" in page(port, "/"))
    runner.cancel(handle)
    assert ended(runner, handle) == AppState.CANCELLED
    assert page(port, "/") == b""
