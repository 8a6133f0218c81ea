"""`torchx run`: what is launched with what, what is printed where, waiting and Ctrl-C."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchx.cli.argparse_util import Parser
from torchx.cli.cmd_run import (
    MISSING_COMPONENT_ERROR_MSG,
    CmdBuiltins,
    CmdRun,
    TorchXRunArgs,
    torchx_run_args_from_argparse,
    torchx_run_args_from_json,
)
from torchx.cli.run_args import fill_from_config
from torchx.config import active_profile
from torchx.errors import BackendError, ConfigError
from torchx.specs import AppState
from torchx.testing.site import site

from .conftest import Call, end, runs, spawn, state, until


def parse(*argv: str) -> argparse.Namespace:
    """Parses the arguments of ``torchx run``."""
    parser = Parser(prog="torchx run")
    CmdRun().add_arguments(parser)
    namespace: argparse.Namespace = parser.parse_args(list(argv))
    return namespace


def test_the_handle_is_the_last_line_of_stdout(torchx: Call, project: Path) -> None:
    """stdout has only the handle, and the job is on record."""
    outcome = torchx("run", "utils.echo", "--msg", "hi")
    assert outcome.code == 0
    handle = outcome.out.splitlines()[-1]
    assert outcome.out == handle + "\n"
    assert handle.startswith("local_cwd://torchx/echo-")
    assert torchx("status", handle).code == 0


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [("exit 0", 0, ""), ("echo broken >&2; exit 3", 1, "exit code 3"), ("kill -9 $$", 1, "SIGKILL")],
    ids=["succeeds", "fails", "is killed"],
)
def test_wait(torchx: Call, project: Path, command: str, code: int, said: str) -> None:
    """`--wait` exits with 0 or 1 like the job; the cause of a failure is on stderr, and stdout has only the handle."""
    outcome = torchx("run", "--wait", "utils.sh", "--", command)
    assert outcome.code == code
    assert outcome.out.count("\n") == 1
    assert said in outcome.err
    assert ("FAILED" in outcome.err) == bool(code)


@pytest.mark.parametrize("option", ["--log", "--tee_logs"])
def test_log_shows_all_of_it(torchx: Call, project: Path, option: str) -> None:
    """`--log` waits, and prints every line of every replica on stderr, prefixed with the replica."""
    outcome = torchx(
        "run", option, "utils.sh", "--num_replicas", "2", "--", 'for i in $(seq 500); do echo "line $i"; done'
    )
    assert outcome.code == 0
    assert outcome.out.count("\n") == 1
    for k in (0, 1):
        mine = [line for line in outcome.err.splitlines() if line.startswith(f"sh/{k} ")]
        assert mine == [f"sh/{k} line {i}" for i in range(1, 501)]


def test_dryrun_launches_nothing(torchx: Call, project: Path) -> None:
    """`--dryrun` shows the job, the options with their source, and the request; it launches and records nothing."""
    outcome = torchx("run", "--dryrun", "-cfg", "prepend_cwd=true", "utils.sh", "--env", "A=1", "--", "touch it")
    assert outcome.code == 0
    assert "'touch it'" in outcome.out
    assert "A=1" in outcome.out
    lines = [line.split() for line in outcome.out.splitlines()]
    assert ["prepend_cwd:", "true", "(-cfg)"] in lines
    assert runs(torchx) == []
    assert list(project.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_secrets_are_masked(torchx: Call, project: Path, paper: Any, options: list[str]) -> None:
    """`--dryrun` and `describe` print no secret, be it in the environment, an argument, or the request."""
    env = "HF_TOKEN=hunter2hunter2,DB=postgres://me:s3cr3tpw@h/d,PLAIN=shown"
    argv = ["utils.sh", "--env", env, "--", "run --api-key=hunter2hunter2"]
    for scheduler in ("local_cwd", "paper"):
        page = torchx("run", "--dryrun", *options, "-s", scheduler, *argv)
        assert page.code == 0
        assert "HF_TOKEN" in page.out
        assert "shown" in page.out
        assert "s3cr3tpw" not in page.out
    torchx("run", "-s", "paper", *argv)
    described = torchx("describe", "@last", *options).out
    assert "shown" in described
    assert "s3cr3tpw" not in described
    assert "HF_TOKEN=hunter2" not in described


@pytest.mark.parametrize("option", ["--no-check", "--allow-private-workspace"])
def test_options_end_with_the_command(torchx: Call, project: Path, option: str) -> None:
    """Later commands of the same process, as in a notebook, check the job and the workspace again."""
    before = dict(os.environ)
    assert torchx("run", option, "--dryrun", "utils.echo").code == 0
    left = [name for name in os.environ.keys() - before.keys() if not name.startswith("TORCHX_INTERNAL")]
    assert left == []


def test_help_of_a_component(torchx: Call) -> None:
    """`torchx run COMPONENT --help` prints the component's help, and launches nothing."""
    outcome = torchx("run", "utils.echo", "--help")
    assert outcome.code == 0
    assert "--msg" in outcome.out
    assert "--num_replicas" in outcome.out
    assert "--dryrun" not in outcome.out


def test_arguments_behind_the_component_are_its_own(torchx: Call, project: Path) -> None:
    """Arguments after the component are passed on, even if `run` has an option of that name."""
    args = parse("-s", "x", "my.py:f", "-s", "y", "--wait", "--", "--json")
    assert args.scheduler == "x"
    assert args.component_name_and_args == ["my.py:f", "-s", "y", "--wait", "--", "--json"]
    assert not hasattr(args, "wait")
    assert not hasattr(args, "json")


def test_what_was_not_given_is_absent() -> None:
    """The namespace distinguishes an option that was not given from one with its default value."""
    assert vars(parse("utils.echo")) == {"component_name_and_args": ["utils.echo"]}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["utils.echo"], {"scheduler": "paper", "wait": True, "component": "dist.ddp", "cfg": ["queue=a"]}),
        (["-s", "local_cwd", "-cfg", "queue=b", "x"], {"scheduler": "local_cwd", "cfg": ["queue=b"], "wait": True}),
        (["--profile", "fast"], {"scheduler": "paper", "wait": False}),
    ],
    ids=["defaults", "command line wins", "profile"],
)
def test_defaults_from_config(project: Path, argv: list[str], expected: dict[str, Any]) -> None:
    """`[cli:run]` fills options that were not given; `[cli:run@profile]` overrides it."""
    from torchx.config import use_profile

    text = "[cli:run]\nscheduler = paper\nwait = true\ncomponent = dist.ddp\ncfg = queue=a\n[cli:run@fast]\nwait = no\n"
    (project / ".torchxconfig").write_text(text)
    args = parse(*argv)
    use_profile(getattr(args, "profile", None))
    try:
        fill_from_config(args)
    finally:
        use_profile(None)
    assert {key: getattr(args, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("default", "given"), [("timeout", "--piece"), ("piece", "--timeout"), ("timeout", "--timeout")]
)
def test_two_names_of_one_option(project: Path, default: str, given: str) -> None:
    """What is given wins over a default that is written under the other name."""
    (project / ".torchxconfig").write_text(f"[cli:run]\n{default} = 1h\n")
    args = parse("--total", "5h", given, "2h", "utils.echo")
    fill_from_config(args)
    assert (vars(args).get("timeout"), vars(args).get("piece")).count("2h") == 1
    assert "1h" not in vars(args).values()


def test_component_from_config(torchx: Call, project: Path) -> None:
    """The configured component runs by default; its arguments go after `--`."""
    (project / ".torchxconfig").write_text("[cli:run]\ncomponent = utils.echo\n")
    assert torchx("run", "--wait", "--", "--msg", "from config").code == 0
    assert torchx("log", "@last").out == "echo/0 from config\n"
    assert torchx("run", "--wait").code == 0
    assert torchx("run", "--dryrun", "utils.touch", "--file", "x").out.startswith("app touch")


def test_no_component(torchx: Call, project: Path) -> None:
    """A component that is neither given nor configured is an error."""
    assert MISSING_COMPONENT_ERROR_MSG in torchx("run", "--dryrun").err


def test_no_component_but_a_section_with_a_typo(project: Path) -> None:
    """A warning about the misspelled section, which may hold the component, precedes the error."""
    (project / ".torchxconfig").write_text("[cli:rnu]\ncomponent = utils.echo\n")
    argv = [sys.executable, "-m", "torchx", "run", "--dryrun"]  # here, pytest takes the warnings
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    warning, error, *_ = done.stderr.splitlines()
    assert "unknown section `[cli:rnu]`, did you mean `[cli:run]`?" in warning
    assert MISSING_COMPONENT_ERROR_MSG in error


def test_a_job_that_was_never_submitted_is_not_waited_for(
    torchx: Call, paper: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that stays UNSUBMITTED is an error; one that starts as UNSUBMITTED is waited for."""
    from torchx.runner.watching import wait

    monkeypatch.setattr(wait, "UNSUBMITTED_S", 0.05)
    paper.STATES["echo-0"] = AppState.UNSUBMITTED
    outcome = torchx("run", "--wait", "-s", "paper", "utils.echo")
    assert outcome.code == BackendError.exit_code
    assert "echo-0` is still UNSUBMITTED" in outcome.err
    states = iter([AppState.UNSUBMITTED, *[AppState.PENDING] * 2])

    class Slow(dict):
        def __getitem__(self, app_id: str) -> AppState:
            return next(states, AppState.SUCCEEDED)

    monkeypatch.setattr(paper, "STATES", Slow())
    monkeypatch.setattr(wait, "UNSUBMITTED_S", 1000.0)
    assert torchx("run", "--wait", "-s", "paper", "utils.echo").code == 0


def test_profile_lasts_for_one_call(torchx: Call, project: Path) -> None:
    """`--profile` also selects the scheduler's options, and ends with the command."""
    (project / ".torchxconfig").write_text("[local_cwd@p]\nprepend_cwd = true\n")
    document = json.loads(torchx("run", "--dryrun", "--json", "--profile", "p", "utils.echo").out)
    assert document["cfg"]["prepend_cwd"]["value"] is True
    assert ".torchxconfig:2" in document["cfg"]["prepend_cwd"]["source"]
    assert active_profile() is None


def test_local_is_deprecated(torchx: Call, project: Path) -> None:
    """`-s local` warns and uses the default scheduler."""
    outcome = torchx("run", "-s", "local", "--dryrun", "utils.echo")
    assert outcome.code == 0
    assert "`local` scheduler is deprecated" in outcome.err


def test_parent_run_id_reaches_the_job(torchx: Call, project: Path) -> None:
    """The job's environment names the parent run."""
    document = json.loads(torchx("run", "--dryrun", "--json", "--parent_run_id", "p1", "utils.echo").out)
    assert document["app"]["roles"][0]["env"]["TORCHX_PARENT_RUN_ID"] == "p1"


@pytest.mark.parametrize(
    ("options", "projects"),
    [
        ([], ["file://{cwd}"]),
        (["--workspace", "file:///somewhere"], ["file:///somewhere"]),
        (["--buck-target", "/a=b"], ["/a"]),
        (["--workspace="], []),
    ],
    ids=["current directory", "given", "old name", "none"],
)
def test_workspace(torchx: Call, project: Path, tmp_path: Path, options: list[str], projects: list[str]) -> None:
    """The default workspace is the current directory."""
    with site(str(tmp_path / "site")) as packages:
        packages.install(
            "lab", entry_points="[torchx.schedulers]\nlab = lab:create\n", files={"lab.py": WITH_WORKSPACES}
        )
        document = json.loads(torchx("run", "-s", "lab", "--dryrun", "--json", *options, "utils.echo").out)
    role = document["app"]["roles"][0]
    found = list((role["workspace"] or {"projects": {}})["projects"])
    assert found == [p.format(cwd=os.getcwd()) for p in projects]


WITH_WORKSPACES = """
    from torchx.schedulers.local_scheduler import CWDImageProvider, LocalScheduler
    from torchx.workspace import WorkspaceMixin

    class Lab(WorkspaceMixin, LocalScheduler):
        def caching_build_workspace_and_update_role(self, role, cfg, build_cache):
            pass

    def create(session_name, **kwargs):
        return Lab(session_name, CWDImageProvider)
"""


def test_a_scheduler_without_workspaces_says_what_it_does_not_use(
    torchx: Call, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`local_cwd` runs in the current directory, and warns if another workspace is given."""
    here = torchx("run", "--dryrun", "--json", "utils.echo")
    assert json.loads(here.out)["app"]["roles"][0]["workspace"] is None
    assert not caplog.records
    other = torchx("run", "--dryrun", "--json", "--workspace", "/somewhere", "utils.echo")
    assert json.loads(other.out)["app"]["roles"][0]["workspace"] is None
    assert "`local_cwd` builds no workspaces: `/somewhere` is not used" in caplog.text


def test_stdin(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--stdin` reads the whole job as JSON; options of the scheduler are typed and have the source `--stdin`."""
    data = {
        "scheduler": "local_cwd",
        "scheduler_args": {"prepend_cwd": "true"},
        "component_name": "utils.echo",
        "component_args": {"msg": "from json", "num_replicas": 2},
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(data)))
    document = json.loads(torchx("run", "--stdin", "--dryrun", "--json").out)
    assert document["cfg"]["prepend_cwd"] == {"value": True, "source": "--stdin"}
    assert document["app"]["roles"][0]["num_replicas"] == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps({**data, "wait": True})))
    assert torchx("run", "--stdin").code == 0
    assert "from json" in torchx("log", "@last/echo/1").out


@pytest.mark.parametrize(
    "extra", [["utils.echo"], ["-s", "paper"], ["-cfg", "a=b"], ["--workspace", "x"], ["-j", "1x2"]], ids=" ".join
)
def test_stdin_leaves_no_room(torchx: Call, project: Path, extra: list[str]) -> None:
    """An option for which the JSON has a key is rejected on the command line."""
    outcome = torchx("run", "--stdin", *extra)
    assert outcome.code == 2
    assert "cannot be combined with" in outcome.err


def test_run_args_from_json_keeps_everything() -> None:
    """Every attribute of TorchXRunArgs can be given; missing ones have their defaults."""
    data = {
        "component_name": "c",
        "scheduler": "s",
        "scheduler_args": {"a": 1},
        "dryrun": True,
        "wait": True,
        "log": True,
        "workspace": "w",
        "parent_run_id": "p",
        "tee_logs": True,
        "component_args": {"x": [1]},
    }
    args = torchx_run_args_from_json(data)
    assert {key: getattr(args, key) for key in data} == data
    assert (args.scheduler_cfg, args.component_args_str) == ({}, [])
    with pytest.raises(ConfigError, match="exclude each other"):
        torchx_run_args_from_json({**data, "component_args_str": ["--x"]})


def test_run_args_from_argparse() -> None:
    """The parsed command line becomes TorchXRunArgs."""
    args = torchx_run_args_from_argparse(parse("--wait", "-s", "paper", "c"), "c", ["--x", "1"], {"queue": "q"})
    expected = TorchXRunArgs("c", "paper", {}, scheduler_cfg={"queue": "q"}, wait=True, component_args_str=["--x", "1"])
    assert args == expected


def test_builtins_are_found_where_programs_look() -> None:
    """`CmdBuiltins` is importable from here."""
    assert CmdBuiltins.__name__ == "CmdBuiltins"


# -- in a terminal ---------------------------------------------------------------------------------


def test_ctrl_c_cancels_the_job(torchx: Call, project: Path) -> None:
    """The first Ctrl-C cancels the job; the command exits with 130."""
    child = spawn(project, "run", "--wait", "utils.sh", "--", "touch up; exec sleep 600")
    child.expect("local_cwd://")
    until((project / "up").exists)
    child.sendintr()
    child.expect("cancelling the job")
    assert end(child) == 130
    assert state(torchx) == "CANCELLED"


def test_second_ctrl_c_leaves_at_once(torchx: Call, project: Path) -> None:
    """A second Ctrl-C exits while the job is still being cancelled."""
    stubborn = "trap '' TERM; touch up; while [ ! -e go ]; do sleep 0.05; done"
    child = spawn(project, "run", "--wait", "-cfg", "cancel_grace_s=600", "utils.sh", "--", stubborn)
    child.expect("local_cwd://")
    until(lambda: (project / "up").exists() and state(torchx) == "RUNNING")
    child.sendintr()
    child.expect("cancelling the job")
    child.sendintr()
    assert end(child) == 130
    assert state(torchx) == "RUNNING"
    (project / "go").touch()
    until(lambda: state(torchx) != "RUNNING")


@pytest.mark.parametrize("during", ["announcement", "logs"])
def test_ctrl_c_right_after_the_submission(torchx: Call, monkeypatch: pytest.MonkeyPatch, during: str) -> None:
    """Ctrl-C cancels the job as soon as it is submitted, before the wait has begun."""
    from torchx.cli import waiting

    def interrupted(*args: object, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if during == "logs":
            patch.setattr(waiting, "tee_logs", interrupted)
        else:
            patch.setattr(waiting, "print", interrupted, raising=False)
        outcome = torchx("run", "--log", "utils.sh", "sleep", "600")
    assert (outcome.code, "cancelling the job" in outcome.err) == (130, True)
    assert state(torchx) == "CANCELLED"


def test_progress_is_shown_on_a_terminal_only(project: Path) -> None:
    """A progress line shows the state while waiting, and is cleared at the end."""
    child = spawn(project, "run", "--wait", "utils.sh", "--", "while [ ! -e go ]; do sleep 0.05; done")
    child.expect("RUNNING")
    child.expect("sh 1/1")
    (project / "go").touch()
    child.expect("SUCCEEDED")
    assert end(child) == 0


def test_progress_never_wraps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The line is shorter than the terminal for any number of roles, because a wrapped line cannot be cleared."""
    from torchx.cli import waiting
    from torchx.specs import AppStatus, ReplicaStatus, RoleStatus

    monkeypatch.setenv("COLUMNS", "60")
    roles = [RoleStatus(f"role{i}", [ReplicaStatus(0, AppState.RUNNING, f"role{i}", "")]) for i in range(20)]

    waiting.show_progress(AppStatus(AppState.RUNNING, roles=roles), since=time.time())
    line = capsys.readouterr().err.rpartition("\033[K")[2]
    assert line.startswith("RUNNING")
    assert "role0 1/1" in line
    assert len(line) < 60


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ("@last", "`local_cwd` does not start one job after another"),
        ("@last:fail", "`local_cwd` does not start one job after another"),
        ("@last:soon", "`soon` is not a condition"),
        ("nobody:ok", "no run on record is called `nobody`"),
        ("wait", "has no job to wait for"),
    ],
)
def test_after_another_job(torchx: Call, project: Path, after: str, said: str) -> None:
    """If the scheduler has no dependencies, nothing is launched, and the hint says what to type."""
    torchx("run", "utils.echo")
    outcome = torchx("run", "--after", after, "utils.echo")
    assert outcome.code != 0
    assert said in outcome.error_lines()[0]
    if "does not start" in said:
        assert outcome.hint() == "`--after wait` as well: then this command waits for it"
    assert len(runs(torchx)) == 1


@pytest.mark.parametrize(
    ("script", "condition", "starts"),
    [
        ("true", "", True),
        ("exit 3", "", False),
        ("exit 3", ":fail", True),
        ("true", ":fail", False),
        ("exit 3", ":any", True),
    ],
)
def test_starts_as_another_job_has_ended(
    torchx: Call, project: Path, script: str, condition: str, starts: bool
) -> None:
    """With `--after wait` the command waits; if the condition fails, nothing is submitted."""
    first = torchx("run", "utils.sh", script).out.strip()
    outcome = torchx("run", "--after", f"@last{condition}", "--after", "wait", "utils.echo")
    assert f"Waiting for {first}" in outcome.err
    assert len(runs(torchx)) == 1 + starts
    if not starts:
        assert f"`{first}` is" in outcome.error_lines()[1]
        assert outcome.hint() == "nothing was submitted"
    assert outcome.code == (0 if starts else 1)


def test_waits_for_another_job(torchx: Call, project: Path) -> None:
    """Nothing is submitted before the other job has ended, nor after Ctrl-C."""
    torchx("run", "utils.sh", "until test -e gate; do sleep 0.01; done; touch over")
    argv = ("run", "--after", "@last", "--after", "wait", "utils.sh", "test -e over")
    child = spawn(project, *argv)
    child.expect("Waiting for local_cwd://")
    child.sendintr()
    assert end(child) == 130
    child = spawn(project, *argv)
    child.expect("Waiting for local_cwd://")
    assert len(runs(torchx)) == 1
    (project / "gate").touch()
    child.expect("local_cwd://")
    end(child)
    assert torchx("wait", "@last").code == 0


def test_a_dry_run_waits_for_nobody(torchx: Call, project: Path) -> None:
    """A dry run shows at once what would be submitted."""
    torchx("run", "utils.sh", "sleep", "1000")
    outcome = torchx("run", "--dryrun", "--after", "@last", "--after", "wait", "utils.echo")
    assert outcome.code == 0
    assert "Waiting" not in outcome.err
    torchx("cancel", "@last")


def test_arguments_of_the_default_component(torchx: Call, project: Path) -> None:
    """They go after `--`, and the error for one that does not says so; a misspelt option gets both hints."""
    (project / ".torchxconfig").write_text("[cli:run]\ncomponent = utils.echo\n")
    refused = torchx("run", "--msg", "hi")
    assert refused.code == 2 and "`utils.echo` go after `--`: `torchx run -- --msg ...`" in refused.err
    assert "did you mean `--wait`?" in torchx("run", "--wiat").err
    assert torchx("run", "--wait", "--", "--msg", "hi").code == 0
