"""The kit itself: fake commands, clock, made-up packages, recordings; and that the contract can fail."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torchx.testing
from torchx.errors import CommandError, TransientError
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, get_scheduler_factories
from torchx.schedulers.kit.commands import Completed, LocalCommandRunner
from torchx.testing import FakeClock, FakeCommandRunner, Recordings
from torchx.testing.fixtures import (
    fake_clock_fixture,  # noqa: F401  # pytest finds fixtures by name
    fake_commands_fixture,  # noqa: F401  # pytest finds fixtures by name
)


def test_answers_by_longest_beginning_and_in_order(fake_commands: FakeCommandRunner) -> None:
    """The most specific script answers; several answers come in order, the last for ever."""
    fake_commands.on("squeue", stdout="all")
    fake_commands.on("squeue", "--me", stdout="first")
    fake_commands.on("squeue", "--me", stdout="second")
    said = [
        fake_commands.run(argv).stdout
        for argv in (["squeue", "--me"], ["squeue"], ["squeue", "--me"], ["squeue", "--me", "-l"])
    ]
    assert said == ["first", "all", "second", "second"]
    assert fake_commands.argvs("squeue") == [
        ["squeue", "--me"],
        ["squeue"],
        ["squeue", "--me"],
        ["squeue", "--me", "-l"],
    ]


def test_a_command_without_script_fails_the_test(fake_commands: FakeCommandRunner) -> None:
    """An unexpected command is an AssertionError that names it and what is scripted."""
    fake_commands.on("sinfo", "-h")
    with pytest.raises(AssertionError, match=r"`scancel 1`; there are answers to `sinfo -h`"):
        fake_commands.run(["scancel", "1"])


def test_faults_and_computed_answers(fake_commands: FakeCommandRunner) -> None:
    """A script may raise, fail with an exit code, or compute its answer from the call."""
    fake_commands.on("a", raises=TransientError("cut"))
    fake_commands.on("a", stdout="back")
    fake_commands.on("b", returncode=3, stderr="one\ntwo\n")
    fake_commands.on("c", stdout=lambda call: call.stdin.upper())
    with pytest.raises(TransientError):
        fake_commands.run(["a"])
    assert fake_commands.run(["a"]).stdout == "back"
    with pytest.raises(CommandError, match="`b` failed with exit code 3: one; two") as caught:
        fake_commands.run(["b", "x"]).check()
    assert (caught.value.argv, caught.value.returncode) == (["b", "x"], 3)
    assert fake_commands.run(["c"], stdin="x", timeout=2).stdout == "X"
    assert (fake_commands.calls[-1].stdin, fake_commands.calls[-1].timeout) == ("x", 2)


def test_local_runner() -> None:
    """The real runner passes arguments and stdin without a shell and keeps exit code and both outputs."""
    runner = LocalCommandRunner()
    done = runner.run(["sh", "-c", 'cat; echo "$1" >&2; exit 4', "sh", "$(id) 'x'"], stdin="in")
    assert (done.returncode, done.stdout, done.stderr) == (4, "in", "$(id) 'x'\n")
    assert runner.run(["printf", r"\377"]).stdout == "\ufffd"
    assert runner.run(["true"]) == Completed(["true"])


def test_local_runner_refusals(tmp_path: Any) -> None:
    """A missing program, one that cannot be started and one that hangs are each one clear error."""
    runner = LocalCommandRunner()
    with pytest.raises(CommandError, match="`no-such-program` is not installed") as caught:
        runner.run(["no-such-program"])
    assert caught.value.returncode == 127
    (tmp_path / "x").write_text("x")
    with pytest.raises(CommandError, match="cannot be started"):
        runner.run([str(tmp_path / "x")])
    with pytest.raises(CommandError, match="cannot be started: embedded null byte"):
        runner.run(["echo", "\0"])
    with pytest.raises(TransientError, match=r"did not answer within 0\.05 s"):
        runner.run(["sleep", "600"], timeout=0.05)


def test_clock(fake_clock: FakeClock) -> None:
    """Time stands still but for sleeping and advancing."""
    start = fake_clock.time()
    fake_clock.sleep(3)
    fake_clock.advance(4)
    assert fake_clock.monotonic() - start == 7
    assert fake_clock.slept == [3]
    with pytest.raises(ValueError, match="-1"):
        fake_clock.advance(-1)


def test_recordings(tmp_path: Any) -> None:
    """Outputs are found by tool and version, and read as they are."""
    (tmp_path / "slurm" / "22.05").mkdir(parents=True)
    (tmp_path / "slurm" / "23.11").mkdir()
    (tmp_path / "slurm" / "22.05" / "squeue.txt").write_bytes(b"a\r\nb")
    recordings = Recordings(str(tmp_path))
    assert recordings.versions("slurm") == ["22.05", "23.11"]
    assert recordings.read("slurm", "22.05", "squeue.txt") == "a\r\nb"


def test_every_export_is_there() -> None:
    """Each name in __all__ can be had."""
    assert all(getattr(torchx.testing, name) for name in torchx.testing.__all__)


def test_every_offered_scheduler_is_held_to_the_contract() -> None:
    """Each built-in that this build offers has a contract test, here or with the real parts, that imports its module."""
    tests = Path(__file__).parents[1]
    files = [*tests.glob("testing/test_contract_*.py"), *tests.glob("backends/*/test_*contract*.py")]
    texts = "".join(text for file in files if "SchedulerContract)" in (text := file.read_text()))
    modules = {name: DEFAULT_SCHEDULER_MODULES[name] for name in get_scheduler_factories(group="no.such.group")}
    held = {
        n for n, module in modules.items() if f"from {module} import" in texts or f'scheduler_name = "{n}"' in texts
    }
    assert set(modules) - held == set()


BAD_SCHEDULER = """
from torchx.schedulers.api import Capabilities, DescribeAppResponse, Scheduler
from torchx.specs import AppDryRunInfo
from torchx.testing import SchedulerContract

class Request:
    def __init__(self, app): self.app, self.app_id = app, app.name
    def __repr__(self): return f"{self.app_id} {[(r.entrypoint, r.args, r.env, r.metadata) for r in self.app.roles]}"

class Bad(Scheduler):
    capabilities = Capabilities(list=True, log_since=True)
    def __init__(self): super().__init__("bad", "s")
    def _submit_dryrun(self, app, cfg):
        app.roles[0].env["X"] = "1"
        return AppDryRunInfo(Request(app), repr)
    def schedule(self, info): return "id"
    def describe(self, app_id): return DescribeAppResponse(app_id=app_id)
    def list(self, cfg=None): return [1]
    def _cancel_existing(self, app_id): raise KeyError(app_id)
    def log_iter(self, *args, **kwargs): return []

class TestBad(SchedulerContract):
    def create_scheduler(self, folder): return Bad()
"""


def test_the_contract_can_fail(tmp_path: Any) -> None:
    """A scheduler that breaks its promises fails the tests that hold them."""
    (tmp_path / "test_bad.py").write_text(BAD_SCHEDULER)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=no",
            "-rf",
            "--rootdir",
            str(tmp_path),
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    failed = {
        line.split("::")[-1].partition(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")
    }
    assert {
        "test_dryrun_leaves_the_app_alone",
        "test_macros_are_substituted",
        "test_names_obey_the_rule[name0]",
        "test_ids_differ",
        "test_unknown_job",
        "test_list_without_options",
        "test_capabilities_are_well_formed",
        "test_what_it_cannot_do_is_refused[mount bind]",
        "test_logs_are_refused_when_there_are_none",
    } <= failed, done.stdout
