"""The example of a plugin package does what its users would do with it; its own tests pass where it is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.backends.gridengine.conftest import PLUGIN
from tests.backends.shell import Shell


def status(user: Shell, handle: str) -> dict:
    return json.loads(user.torchx("status", "--json", handle, check=False))


def test_torchx_finds_it(user: Shell) -> None:
    """`torchx plugins` names the package, and `runopts` shows the options with the help of their docstrings."""
    row = next(line.split() for line in user.torchx("plugins").splitlines() if "gridengine" in line)
    assert row[:5] == ["scheduler", "gridengine", "ok", "torchx_gridengine", "1.0"]
    assert "time limit, [hours:minutes:]seconds (qsub -l h_rt)" in user.torchx("runopts", "gridengine")
    shown = user.torchx("run", "--dryrun", "-s", "gridengine", "-cfg", "queue=x", "utils.echo", "--msg", "a b'c")
    assert re.search(r"qsub -terse -N echo-\w+ -t 1-1 .* -q x ", shown)
    assert "exec echo 'a b'\\''c'" in shown


def test_a_job(user: Shell) -> None:
    """It runs to its end; its output, status and line in the list are there from any shell, until it is deleted."""
    said = user.torchx(
        "run", "-s", "gridengine", "--wait", "--log", "utils.echo", "--msg", "hello", "--num_replicas", "2"
    )
    handle = next(line for line in said.splitlines() if "://" in line)
    assert handle.startswith("gridengine://torchx/echo-")
    lines = sorted(user.torchx("log", handle).splitlines())
    assert [line.split(maxsplit=1) for line in lines] == [["echo/0", "hello"], ["echo/1", "hello"]]
    found = status(user, handle)
    assert found["state"] == "SUCCEEDED"
    assert handle in user.torchx("list")
    assert handle in user.torchx("list", "-s", "gridengine")
    user.torchx("delete", handle)
    assert handle not in user.torchx("list", "-s", "gridengine")


def test_a_failure(user: Shell) -> None:
    """The replica that failed is the cause, with its last words; the others are ended with it."""
    script = "echo reason >&2; [ $0 = 0 ] || exit 3; sleep 1000"
    args = ["--num_replicas", "2", "sh", "-c", script, "${replica_id}"]
    user.torchx("run", "-s", "gridengine", "--wait", "utils.sh", *args, check=False)
    shown = user.torchx("status", "@last", check=False)
    assert "state:    FAILED" in shown
    assert re.search(r"sh/1 on \S+: exit code 3: reason", shown)
    assert "1 CANCELLED, 1 FAILED" in shown


def test_a_time_limit(user: Shell) -> None:
    """What Grid Engine killed for a limit has failed, and says which limit."""
    user.torchx("run", "-s", "gridengine", "-cfg", "time=1", "--wait", "utils.sh", "sleep", "1000", check=False)
    shown = user.torchx("status", "@last", check=False)
    assert "state:    FAILED" in shown
    assert "enforced h_rt" in shown


def test_cancel(user: Shell, eventually: Callable[..., object]) -> None:
    """A job that runs is CANCELLED, and its processes are gone."""
    mark = "1234.5678"
    handle = user.launch("-s", "gridengine", "utils.sh", "sleep", mark)
    eventually(lambda: status(user, handle)["state"] == "RUNNING", timeout_s=180)
    user.torchx("cancel", handle)
    eventually(lambda: status(user, handle)["state"] == "CANCELLED", timeout_s=180)
    eventually(lambda: not _processes(mark), timeout_s=180)


def test_refusals(user: Shell) -> None:
    """A queue that does not exist and an option that does not exist are one line each."""
    for cfg, words in (("queue=nosuch", "requests unknown queue"), ("que=x", "did you mean `queue`?")):
        argv = ["torchx", "run", "-s", "gridengine", "-cfg", cfg, "utils.echo"]
        done = subprocess.run(argv, cwd=user.cwd, env=user.env, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_its_own_tests_pass(user: Shell, tmp_path: Path) -> None:
    """The plugin's tests, the contract of all schedulers among them, pass against what was installed; no file skips."""
    shutil.copytree(PLUGIN / "tests", tmp_path / "tests")
    folders = ["--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "pytest")]
    argv = ["python", "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *folders, "tests"]
    done = subprocess.run(argv, cwd=tmp_path, env=user.env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) >= 80, done.stdout
    assert "no Grid Engine here" not in done.stdout


def _processes(mark: str) -> list[str]:
    done = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True, check=False)
    return done.stdout.split()
