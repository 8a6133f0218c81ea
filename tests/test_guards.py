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


def run_suite(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"PYTEST_TORCHX_GRACE_S": "0.2", "TORCHX_PROFILE": "outer", "NO_COLOR": "1"}
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
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
    assert not {"TORCHX_PROFILE", "NO_COLOR"} & set(os.environ)
    assert not os.path.exists(os.environ["TORCHX_HOME"])
"""
    done = run_suite(tmp_path, test)
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
