"""What people type first: a script instead of a component, and torchx's options behind it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchx.cli.failures import UsageError
from torchx.cli.shorthand import program

from .conftest import Call, end, runs, spawn, state, until

SCRIPT = "import sys\nprint('got', sys.argv[1:])\n"


@pytest.fixture
def script(project: Path) -> Path:
    path = project / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    ("argv", "component", "words"),
    [
        (["train.py", "--epochs", "3"], "utils.python", ["--script", "train.py", "--", "--epochs", "3"]),
        (["src/train.py", "--", "-x"], "utils.python", ["--script", "src/train.py", "--", "-x"]),
        (["--", "train.py", "--", "-x"], "utils.python", ["--script", "train.py", "--", "--", "-x"]),
        (["--", "python", "train.py", "a b"], "utils.python", ["--script", "train.py", "--", "a b"]),
        (["--", "python3", "-u", "-m", "pets", "-x"], "utils.python", ["-m", "pets", "--", "-x"]),
        (["--", "python", "-c", "print(1)"], "utils.python", ["-c", "print(1)", "--"]),
        (["--", "python", "-O", "x.py"], "utils.sh", ["--", "exec", "python", "-O", "x.py"]),
        (["--", "ls", "my file"], "utils.sh", ["--", "exec", "ls", "my file"]),
        (["--", "ls"], "utils.sh", ["--", "exec", "ls"]),
        (["--", "utils.echo", "--msg", "x"], None, []),
        (["my.py:train"], None, []),
        (["--", "my.py:train"], None, []),
        (["--", "nvidia-smi", "-L"], "utils.sh", ["--", "exec", "nvidia-smi", "-L"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_programs(argv: list[str], component: str | None, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A script runs under Python, another program in a shell, and a component's name means the component."""
    monkeypatch.setattr("torchx.cli.shorthand.is_on_path", {"python", "ls"}.__contains__)
    dashes = argv[0] == "--"
    assert program(argv[dashes:], dashes=dashes, here=False) == (component and (component, words))
    if argv[1:2] == ["nvidia-smi"]:
        with pytest.raises(UsageError, match="no program or component `nvidia-smi` on this machine"):
            program(argv[1:], dashes=True, here=True)


def test_a_script_runs(torchx: Call, script: Path) -> None:
    """The job has the script's arguments and name; only the handle is printed."""
    outcome = torchx("run", "--wait", "train.py", "--epochs", "3", "-s", "x", "--wait")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("local_cwd://torchx/train-")
    assert torchx("log", "@last").out == "train/0 got ['--epochs', '3', '-s', 'x', '--wait']\n"
    assert torchx("run", "--wait", "--", sys.executable, "train.py").code == 0
    assert torchx("log", "@last").out == "sh/0 got []\n"


def test_a_size_makes_it_distributed(torchx: Call, script: Path) -> None:
    """Before a script, `-j` is that of dist.ddp; before a component, the component's own."""
    direct = json.loads(torchx("run", "--dryrun", "--json", "dist.ddp", "-j", "1x4", "--script", "train.py").out)
    for argv in (
        ["-j", "1x4", "train.py"],
        ["-j1x4", "--", "python", "train.py"],
        ["-j", "1x4", "dist.ddp", "--script", "train.py"],
    ):
        assert json.loads(torchx("run", "--dryrun", "--json", *argv).out)["app"] == direct["app"]
    refused = torchx("run", "-j", "1x4", "--", "ls", "-l")
    assert (refused.code, "`ls` is neither" in refused.err) == (2, True)
    assert "no argument `--j`" in torchx("run", "-j", "1x4", "utils.echo").err.replace("`-j`", "`--j`")


def test_a_script_that_is_not_there(torchx: Call, script: Path) -> None:
    """A missing script, or one that only defines components, is an error before the launch."""
    missing = torchx("run", "trian.py")
    assert (missing.code, "script `trian.py` does not exist" in missing.err) == (2, True)
    script.write_text("import torchx.specs as specs\ndef job(x: int = 1) -> specs.AppDef:\n    ...\n")
    components = torchx("run", "train.py")
    assert (components.code, "torchx run train.py:job" in components.hint()) == (2, True)
    assert runs(torchx) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["dist.ddp", "--dryrun", "--script", "train.py"],
        ["dist.ddp", "--dry-run", "--script", "train.py"],
        ["dist.ddp", "--script", "train.py", "--dryrun", "--json", "-cfg", "prepend_cwd=true", "--", "--epochs", "3"],
        ["utils.python", "--num_replicas", "2", "-s", "local_cwd", "--dryrun", "--script=train.py"],
    ],
    ids=["before its arguments", "with a dash", "among them", "with a value"],
)
def test_options_of_torchx_behind_the_component(torchx: Call, script: Path, argv: list[str]) -> None:
    """Options after the component are torchx's unless the component has them."""
    outcome = torchx("run", *argv)
    assert (outcome.code, outcome.err) == (0, "")
    if "--json" in argv:
        document = json.loads(outcome.out)
        assert document["cfg"]["prepend_cwd"] == {"value": True, "source": "-cfg"}
        assert document["app"]["roles"][0]["args"][-1].endswith("train.py --epochs 3")
    assert runs(torchx) == []


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["train.py", "--dryrun"], "torchx run --dryrun train.py ..."),
        (["utils.sh", "make", "--dry-run"], "torchx run --dry-run utils.sh ..."),
        (["train.py", "-s", "slurm"], "torchx run -s slurm train.py ..."),
        (["train.py", "--lr", "1", "-j", "2x8"], "torchx run -j 2x8 train.py ..."),
        (["utils.sh", "echo", "hi", "-s", "slurm"], "torchx run -s slurm utils.sh ..."),
        (["utils.sh", "echo", "hi", "--scheduler=slurm"], "torchx run --scheduler=slurm utils.sh ..."),
        (["utils.sh", "echo", "-cfg", "queue=a"], "torchx run -cfg queue=a utils.sh ..."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_would_reach_the_program(torchx: Call, script: Path, argv: list[str], hint: str) -> None:
    """Options of torchx among a program's arguments are an error with a hint."""
    outcome = torchx("run", *argv)
    assert outcome.code == 2
    assert hint in outcome.hint()
    assert runs(torchx) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["train.py", "--", "--dryrun"],
        ["train.py", "-s", "4", "-j", "8"],
        ["utils.sh", "--", "echo", "-s", "slurm", "--dryrun"],
    ],
    ids=" ".join,
)
def test_options_of_the_program(torchx: Call, script: Path, argv: list[str]) -> None:
    """Options after `--`, or unknown to torchx, are passed on."""
    assert torchx("run", "--wait", *argv).code == 0
    assert ("--dryrun" in torchx("log", "@last").out) == ("--dryrun" in argv)


def test_without_pytorch(torchx: Call, script: Path, tmp_path: Path) -> None:
    """dist.ddp fails before the launch without PyTorch; a torchrun on PATH is enough."""
    bash = str(tmp_path / "bin")
    os.mkdir(bash)
    os.symlink("/bin/bash", f"{bash}/bash")
    missing = torchx("run", "dist.ddp", "--env", f"PATH={bash}", "--script", "train.py")
    assert (missing.code, "PyTorch is not installed" in missing.err) == (2, True)
    assert runs(torchx) == []
    (tmp_path / "bin" / "torchrun").write_text('#!/bin/sh\necho "torchrun $*"\n')
    (tmp_path / "bin" / "torchrun").chmod(0o755)
    assert torchx("run", "--wait", "dist.ddp", "--env", f"PATH={bash}", "--script", "train.py").code == 0
    assert "torchrun --rdzv_backend c10d" in torchx("log", "@last").out


# -- in a terminal ---------------------------------------------------------------------------------


def test_a_terminal_follows_the_job(script: Path) -> None:
    """The output and the result are shown; the exit code is the job's."""
    script.write_text("print('hello from the job')\nraise SystemExit(3)\n")
    child = spawn(script.parent, "run", "train.py")
    child.expect("local_cwd://torchx/train-")
    child.expect("train/0.*? hello from the job")  # not that of the cause, which repeats it
    child.expect("exit code 3")
    assert end(child) == 1


def test_ctrl_c_detaches(torchx: Call, project: Path) -> None:
    """The job continues; a line shows how to follow and cancel it."""
    child = spawn(project, "run", "utils.sh", "--", "echo up; while [ ! -e go ]; do sleep 0.05; done")
    child.expect("sh/0.* up")
    child.sendintr()
    child.expect("detached, the job continues · torchx log -f sh-[a-z0-9]+ · torchx cancel sh-")
    assert end(child) == 130
    assert state(torchx) == "RUNNING"
    (project / "go").touch()
    until(lambda: state(torchx) == "SUCCEEDED")


@pytest.mark.parametrize("how", ["-d", "--json", "config"])
def test_nothing_is_followed(torchx: Call, project: Path, how: str) -> None:
    """`--detach`, `--json` and `detach = true` in the config file return while the job runs."""
    if how == "config":
        (project / ".torchxconfig").write_text("[cli:run]\ndetach = true\n")
    options = [] if how == "config" else [how]
    child = spawn(project, "run", *options, "utils.sh", "--", "while [ ! -e go ]; do sleep 0.05; done")
    child.expect("local_cwd://torchx/sh-")
    assert end(child) == 0
    until(lambda: state(torchx) == "RUNNING")
    (project / "go").touch()
    until(lambda: state(torchx) == "SUCCEEDED")


def test_a_pipe_gets_the_handle(torchx: Call, project: Path) -> None:
    """With stdout in a pipe nothing is followed, even if stderr is a terminal: `handle=$(torchx run ...)`."""
    import pty

    reader, terminal = pty.openpty()
    argv = [sys.executable, "-m", "torchx", "run", "utils.sh", "--", "while [ ! -e go ]; do sleep 0.05; done"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=terminal, cwd=project, text=True, check=True)
    os.close(reader)
    os.close(terminal)
    assert done.stdout.startswith("local_cwd://torchx/sh-")
    until(lambda: state(torchx) == "RUNNING")
    (project / "go").touch()
    until(lambda: state(torchx) == "SUCCEEDED")


def test_detach_and_wait_exclude_each_other(torchx: Call, project: Path) -> None:
    """Both on the command line are an error; `--detach` overrides `wait = true`."""
    assert torchx("run", "-d", "--wait", "utils.echo").code == 2
    (project / ".torchxconfig").write_text("[cli:run]\nwait = true\n")
    assert torchx("run", "-d", "utils.sh", "exit", "3").code == 0


@pytest.mark.parametrize(
    ("argv", "prints"),
    [
        (["run.sh", "a b"], "sh/0 got a b\n"),
        (["./run.sh", "-x"], "sh/0 got -x\n"),
        (["plain.sh", "a"], "sh/0 got a\n"),
        (["bash", "run.sh", "a"], "sh/0 got a\n"),
        (["python", "train.py", "a"], "train/0 got ['a']\n"),
        (["--", "run.sh", "a"], "sh/0 got a\n"),
    ],
    ids=" ".join,
)
def test_a_program_without_dashes(torchx: Call, script: Path, argv: list[str], prints: str) -> None:
    """A file that is there, or an interpreter with its script, is what it looks like; a configured component is not."""
    for name in ("run.sh", "plain.sh"):
        (script.parent / name).write_text('#!/bin/sh\necho got "$@"\n')
    (script.parent / "run.sh").chmod(0o755)
    if argv[0] != "--":
        (script.parent / ".torchxconfig").write_text("[cli:run]\ncomponent = utils.echo\n")
    found = torchx("run", "--wait", *argv)
    assert found.code == 0, found.err
    assert torchx("log", "@last").out == prints


def test_a_file_that_is_not_there(torchx: Call, project: Path) -> None:
    """The error names the file and where it was looked for."""
    found = torchx("run", "./run.sh")
    assert (found.code, found.out) == (2, "")
    assert f"there is no file `./run.sh` in `{project}`" in found.err


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("-p", "-cfg partition="),
        ("--partition=gpu", "-cfg partition="),
        ("--time", "--timeout"),
        ("--gres", "--gpu h100:8"),
        ("--gpus", "--gpu 8"),
        ("-n", "-j 2x8"),
        ("-N2", "--nodes 2"),
        ("--memory", "--mem 64G"),
        ("--job-name", "--name"),
        ("--volume", "--mounts"),
    ],
)
def test_options_of_other_tools(torchx: Call, script: Path, option: str, ours: str) -> None:
    """The hint names the option of torchx that does the same."""
    found = torchx("run", option, "1", "train.py")
    assert (found.code, found.out) == (2, "")
    assert f"unknown option `{option.partition('=')[0]}`" in found.err
    assert ours in found.err.partition("hint:")[2]


@pytest.mark.parametrize("option", ["--zzz", "--frobnicate", "--priority"])
def test_no_guess_at_a_distance(torchx: Call, script: Path, option: str) -> None:
    """An option that resembles none of ours gets no `did you mean`."""
    found = torchx("run", option, "1", "train.py")
    assert found.code == 2
    assert "did you mean" not in found.err
