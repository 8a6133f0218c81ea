"""The guards of conftest.py catch what they are for: each is shown a test that misbehaves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text()

LEAD_ELSEWHERE = "KUBECONFIG AWS_PROFILE AWS_SECRET_ACCESS_KEY HTTPS_PROXY http_proxy DOCKER_TLS_VERIFY GIT_DIR"


def run_suite(folder: Path, test: str, *wrapper: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTEST_TORCHX_GRACE_S": "0.2", "TORCHX_PROFILE": "outer", "NO_COLOR": "1"}
    env |= dict.fromkeys(LEAD_ELSEWHERE.split(), "outer")
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    argv = [*wrapper, sys.executable, "-m", "pytest", *options, str(folder)]
    return subprocess.run(argv, env=env, cwd=folder, capture_output=True, text=True, check=False)


def test_a_process_left_behind_fails_the_run(tmp_path: Path) -> None:
    """It is named, and ended."""
    test = "import subprocess\ndef test_x(): subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
    done = run_suite(tmp_path, test)
    assert (done.returncode, "1 passed in" in done.stdout) == (1, True), done.stdout
    assert "outlived the tests: sleep 60" in done.stdout


def test_misbehaviour_fails_by_name(tmp_path: Path) -> None:
    """Whoever leaves the environment changed, or asks a program of a scheduler, also without the test's environment; an
    engine; the network: even if the test does not mind. The next one finds all as it was."""
    test = """
import contextlib, os, socket, subprocess
def test_e(): os.environ["LEFT"] = "1"
def test_f(): assert "LEFT" not in os.environ; del os.environ["PATH"]
def test_g(): assert "PATH" in os.environ
def test_a(): subprocess.run(["squeue", "--me"])
def test_b(): subprocess.run(["sh", "-c", "ssh host"], env={"PATH": os.environ["PATH"]})
def test_c():
    with contextlib.suppress(OSError): socket.socket(socket.AF_UNIX).connect("/run/docker.sock")
def test_d():
    with contextlib.suppress(OSError): socket.create_connection(("192.0.2.1", 80))
"""
    done = run_suite(tmp_path, test)
    assert (done.returncode, "7 passed, 6 errors" in done.stdout) == (1, True), done.stdout
    assert re.findall(r"^ERROR \S+::test_(.)", done.stdout, re.MULTILINE) == [*"efabcd"]
    for said in (
        "leaks environment variables: LEFT",
        "leaks environment variables: PATH",
        "a (call): squeue --me",
        "a process of it: ssh host",
        "c (call): /run/docker.sock",
        "d (call): ('192.0.2.1', 80)",
    ):
        assert said in done.stdout


def test_good_behaviour_passes(tmp_path: Path) -> None:
    """A test that cleans up, has a home of its own, and none of the caller's settings. One that puts a stand-in first on
    PATH, or none, asks nobody; servers of its own are on loopback, or in a folder. A run started by ``nohup``, or by a
    script with ``&``, is like any other: signals that it ignores are not ignored in what a test starts."""
    test = """
import os, shutil, signal, socket, subprocess
def test_home(monkeypatch):
    monkeypatch.setenv("MINE", "1")
    assert os.environ["TORCHX_HOME"].startswith(os.environ["HOME"])
    assert not "outer" in os.environ.values() and "NO_COLOR" not in os.environ
    assert not os.path.exists(os.environ["TORCHX_HOME"])
def test_signals():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        assert subprocess.run(["sh", "-c", f"kill -{int(number)} $$"]).returncode == -number
def test_stand_in(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\\nexit 3\\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert subprocess.run(["squeue"]).returncode == 3
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert shutil.which("squeue") is None
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()): ...
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("socket")
        server.listen()
        client.connect("socket")
"""
    (tmp_path / "ignoring").write_text("#!/bin/sh\ntrap '' HUP INT QUIT\nexec \"$@\"\n")
    (tmp_path / "ignoring").chmod(0o755)
    done = run_suite(tmp_path, test, str(tmp_path / "ignoring"))
    assert (done.returncode, "3 passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 failed")], ids=["at-home", "in-the-gate"])
def test_the_gate_skips_nothing(tmp_path: Path, ci: str, outcome: str) -> None:
    """A test of the gate whose real part is not there fails in continuous integration; elsewhere it is skipped."""
    (tmp_path / "conftest.py").write_text("from tests.backends.conftest import pytest_runtest_makereport\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = smoke\n")
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.fixture\ndef part(): pytest.skip('no engine')\n@pytest.mark.smoke\ndef test_x(part): ...\n"
    )
    env = {**os.environ, "CI": ci, "PYTHONPATH": str(Path(__file__).parents[1])}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert outcome in done.stdout.replace("1 error", "1 failed"), done.stdout
    assert "no engine" in done.stdout or not ci
