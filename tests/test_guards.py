"""The guards of conftest.py catch what they are for: each is shown a test that misbehaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = (Path(__file__).parents[1] / "conftest.py").read_text()

CASES = {
    "a variable left behind": (
        "import os\ndef test_x(): os.environ['LEFT'] = '1'\n",
        "leaks environment variables: LEFT",
    ),
    "a variable removed": ("import os\ndef test_x(): del os.environ['PATH']\n", "leaks environment variables: PATH"),
    "a process left behind": (
        "import subprocess\ndef test_x(): subprocess.Popen(['sleep', '60'], start_new_session=True)\n",
        "outlived the tests: sleep 60",
    ),
}


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


@pytest.mark.parametrize(("test", "said"), CASES.values(), ids=CASES.keys())
def test_misbehaviour_fails_the_run(tmp_path: Path, test: str, said: str) -> None:
    """A run whose test leaves something behind fails, and says what."""
    done = run_suite(tmp_path, test)
    assert done.returncode == 1, done.stdout
    assert said in done.stdout


def test_good_behaviour_passes(tmp_path: Path) -> None:
    """A test that cleans up passes, with a home of its own and without the caller's settings."""
    test = """
import os
def test_x(monkeypatch):
    monkeypatch.setenv("MINE", "1")
    assert os.environ["TORCHX_HOME"].startswith(os.environ["HOME"])
    assert not "outer" in os.environ.values() and "NO_COLOR" not in os.environ
    assert not os.path.exists(os.environ["TORCHX_HOME"])
"""
    done = run_suite(tmp_path, test)
    assert done.returncode == 0, done.stdout


def test_whoever_asks_this_machine_fails_by_name(tmp_path: Path) -> None:
    """A program of a scheduler, also without the test's environment; an engine; the network: even if the test does not mind."""
    test = """
import contextlib, os, socket, subprocess
def test_a(): subprocess.run(["squeue", "--me"])
def test_b(): subprocess.run(["sh", "-c", "ssh host"], env={"PATH": os.environ["PATH"]})
def test_c():
    with contextlib.suppress(OSError): socket.socket(socket.AF_UNIX).connect("/run/docker.sock")
def test_d():
    with contextlib.suppress(OSError): socket.create_connection(("192.0.2.1", 80))
"""
    done = run_suite(tmp_path, test)
    assert (done.returncode, "4 passed, 4 errors" in done.stdout) == (1, True), done.stdout
    for said in (
        "a (call): squeue --me",
        "a process of it: ssh host",
        "c (call): /run/docker.sock",
        "d (call): ('192.0.2.1', 80)",
    ):
        assert said in done.stdout


def test_a_stand_in_is_found(tmp_path: Path) -> None:
    """A test that puts its own first on PATH, or none, asks nobody; servers of its own are on loopback, or in a folder."""
    test = """
import os, shutil, socket, subprocess
def test_x(tmp_path, monkeypatch):
    (tmp_path / "squeue").write_text("#!/bin/sh\\nexit 3\\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert subprocess.run(["squeue"]).returncode == 3
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert shutil.which("squeue") is None
    os.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()): ...
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("socket")
        server.listen()
        client.connect("socket")
"""
    done = run_suite(tmp_path, test)
    assert done.returncode == 0, done.stdout


def test_signals_that_are_ignored_here_are_not_in_what_a_test_starts(tmp_path: Path) -> None:
    """A run started by ``nohup``, or by a script with ``&``, is like any other."""
    test = """
import signal, subprocess
def test_x():
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        assert subprocess.run(["sh", "-c", f"kill -{int(number)} $$"]).returncode == -number
"""
    (tmp_path / "ignoring").write_text("#!/bin/sh\ntrap '' HUP INT QUIT\nexec \"$@\"\n")
    (tmp_path / "ignoring").chmod(0o755)
    done = run_suite(tmp_path, test, str(tmp_path / "ignoring"))
    assert done.returncode == 0, done.stdout


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
