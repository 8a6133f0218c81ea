"""Completion: what stands at the end of an unfinished line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchx.cli.cmd_complete import split_line
from torchx.cli.cmd_completion import SCRIPTS

from .conftest import HELLO, Call


@pytest.fixture
def complete(torchx: Call) -> Callable[..., list[str]]:
    """Returns the candidates for the last word, without descriptions."""

    def candidates(*words: str) -> list[str]:
        outcome = torchx("__complete", "fish", "--", *words)
        assert (outcome.code, outcome.err) == (0, "")
        return [line.partition("\t")[0] for line in outcome.out.splitlines()]

    return candidates


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["ru"], ["run", "runopts"]),
        (["--ver"], ["--version"]),
        (["--log_level", "WA"], ["WARNING"]),
        (["--log_level", "INFO", "canc"], ["cancel"]),
        (["help", "desc"], ["describe"]),
        (["run", "--dry"], ["--dryrun"]),
        (["run", "--scheduler", "local_c"], ["local_cwd"]),
        (["run", "--scheduler=local_c"], ["--scheduler=local_cwd"]),
        (["run", "-s", "local_cwd", "-cfg", "prep"], ["prepend_cwd="]),
        (["run", "-cfg", "prepend_cwd=true,log"], ["prepend_cwd=true,log_dir="]),
        (["run", "utils.ec"], ["utils.echo"]),
        (["run", "--dryrun", "dist.d"], ["dist.ddp"]),
        (["run", "utils.echo", "--m"], ["--msg"]),
        (["run", "-s", "local_cwd", "utils.echo", "--num"], ["--num_replicas"]),
        (["run", "dist.ddp", "-h", "gpu.s"], ["gpu.small"]),
        (["run", "dist.ddp", "--debug", "t"], ["true"]),
        (["run", "utils.sh", "--", "--"], []),
        (["log", "--streams", "std"], ["stdout", "stderr"]),
        (["list", "--state", "failed,run"], ["failed,running"]),
        (["runopts", "local_c"], ["local_cwd"]),
        (["builtins", "--print", "utils.t"], ["utils.touch"]),
        (["completion", "z"], ["zsh"]),
        (["tracker", ""], ["list"]),
        (["tracker", "list", ""], ["jobs", "metadata", "artifacts", "lineage"]),
        (["tracker", "list", "lineage", "--s"], ["--sources-only"]),
        (["tracker", "list", "jobs", "--p"], ["--parent-run-id"]),
        (["tracker", "list", "jobs", ""], []),
        (["run", "dist.ddp", "--script", ""], []),
        (["no_such_verb", ""], []),
        (["run", "no.such.component", "--"], []),
    ],
    ids=" ".join,
)
def test_candidates(complete: Callable[..., list[str]], words: list[str], found: list[str]) -> None:
    """Completes verbs, options, schedulers, run options, components and arguments; nothing for a file."""
    assert complete(*words) == found


def test_all_verbs(complete: Callable[..., list[str]]) -> None:
    """An empty word lists all verbs except hidden ones."""
    found = complete("")
    assert {"run", "status", "log"} <= set(found)
    assert "__complete" not in found


def test_functions_of_a_file(complete: Callable[..., list[str]], project: Path) -> None:
    """`file.py:` lists public functions without importing the file."""
    (project / "mine.py").write_text("raise SystemExit\ndef train(): ...\ndef test(): ...\ndef _no(): ...\n")
    assert complete("run", "mine.py:t") == ["mine.py:train", "mine.py:test"]


def test_arguments_of_a_function_in_a_file(complete: Callable[..., list[str]], project: Path) -> None:
    """Arguments are completed as of an installed component, but the file is only read: nothing in it runs."""
    source = """
    from typing import Annotated, Literal as L
    import torch_is_missing
    open("marker", "w")
    def go(a: str, conf: Annotated["str", "-cn"], *args: str, ok: "bool" = open("marker", "w"), h: L["-x"]): ...
    """
    (project / "mine.py").write_text(textwrap.dedent(source))
    assert complete("run", "mine.py:go", "--") == ["--a", "--conf", "--ok", "--h", "--help"]
    assert complete("run", "mine.py:go", "--ok", "t") == ["true"]
    assert complete("run", "mine.py:go", "-cn", "") == []
    assert complete("run", f"{project}/mine.py:none", "--") == ["--help"]
    assert complete("run", "gone.py:go", "--") == ["--help"]
    assert complete("run", "-s", "local_cwd", "mine.py:go", "") == []
    assert not (project / "marker").exists()


def test_profiles(complete: Callable[..., list[str]], project: Path) -> None:
    """`--profile` completes the profiles of the config file."""
    (project / ".torchxconfig").write_text("[local_cwd@prod]\nprepend_cwd = true\n")
    assert complete("run", "--profile", "") == ["prod"]


def test_trackers(complete: Callable[..., list[str]], torchx: Call, project: Path) -> None:
    """Nested verbs complete jobs and configured trackers."""
    (project / ".torchxconfig").write_text("[torchx:tracker]\nfsspec = tracked\nmlflow = http://x\n")
    app_id = torchx("run", "--wait", "utils.echo").out.strip().rpartition("/")[2]
    assert complete("tracker", "list", "metadata", "") == [app_id, "@last"]
    assert complete("tracker", "list", "jobs", "--parent-run-id", "@") == ["@last"]
    assert complete("tracker", "list", "artifacts", "@last", "--tracker", "") == ["fsspec", "mlflow"]


def test_jobs(complete: Callable[..., list[str]], torchx: Call, project: Path) -> None:
    """Completes recorded app ids, handles after `://`, and roles after the job."""
    handle = torchx("run", "--wait", "utils.echo").out.strip()
    app_id = handle.rpartition("/")[2]
    assert complete("status", "") == [app_id, "@last"]
    assert complete("status", "local_cwd://") == [handle]
    assert complete("cancel", "") == ["@last"], "it has ended"
    running = torchx("run", "utils.sh", "sleep", "600").out.strip()
    assert complete("cancel", "local_cwd://") == complete("wait", "local_cwd://") == [running]
    assert torchx("cancel", running).code == 0
    assert complete("log", f"{handle}/") == [f"{handle}/echo"]
    assert complete("log", f"{app_id}/ec") == [f"{app_id}/echo"]
    assert complete("log", "--tail", "@l") == ["@last"]


def test_what_to_run(complete: Callable[..., list[str]], project: Path) -> None:
    """Scripts and folders come before components."""
    (project / "src").mkdir()
    for name in ("train.py", "train.sh", "data.csv", "src/eval.py"):
        (project / name).write_text("")
    assert complete("run", "")[:4] == ["src/", "train.py", "train.sh", "dist.ddp"]
    assert complete("run", "src/") == ["src/eval.py"]
    assert complete("sweep", "--grid", "a=1,2", "tra") == ["train.py", "train.sh"]


def test_values_of_the_cluster(
    complete: Callable[..., list[str]], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions come from `sinfo`; other options have no candidates."""
    (project / "sinfo").write_text("#!/bin/sh\nprintf 'gpu*\\ncpu\\n'\n")
    (project / "sinfo").chmod(0o755)
    monkeypatch.setenv("PATH", str(project), prepend=os.pathsep)
    assert complete("run", "-s", "slurm", "-cfg", "partition=") == ["partition=cpu", "partition=gpu"]
    assert complete("run", "-s", "slurm", "-cfg", "time=5,partition=g") == ["time=5,partition=gpu"]
    assert complete("run", "-s", "slurm", "-cfg", "time=") == []


def test_verbs_of_plugins(complete: Callable[..., list[str]], install_plugin: Callable[..., None]) -> None:
    """A plugin's verb is completed like a built-in one."""
    install_plugin("my_tool", {"torchx.cli.cmds": ["hello = my_tool:Hello"]}, HELLO)
    assert complete("hel") == ["hello", "help"]
    assert complete("hello", "--h") == ["--help"]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_script(torchx: Call, shell: str) -> None:
    """Each shell has a script, which the shell parses if it is installed."""
    script = torchx("completion", shell).out
    assert "__complete" in script
    program = shutil.which(shell)
    if program:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("torchx canc", ["cancel"]),
        ("torchx run -s local_c", ["local_cwd"]),
        ("torchx run --scheduler=local_c", ["local_cwd"]),
        ("torchx status local_cwd:", None),
        ("torchx log @", ["@last"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_in_bash(
    torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch, line: str, replies: list[str] | None
) -> None:
    """The script fills COMPREPLY; handles are completed after their colon, where bash splits words."""
    handle = torchx("run", "--wait", "utils.echo").out.strip()
    program = project / "torchx"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m torchx "$@"\n')
    program.chmod(0o755)
    code = (
        f"{SCRIPTS['bash']}\nCOMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=(torchx x)\n"
        'COMP_WORDBREAKS=$\' \\t\\n"><=;|&(:\'\n_torchx_complete\nprintf "%s\\n" "${COMPREPLY[@]}"'
    )
    monkeypatch.setenv("PATH", f"{project}:/usr/bin:/bin")
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    expected = [handle.partition(":")[2]] if replies is None else replies
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("torchx a 'b c", ["torchx", "a", "b c"]),
        ('torchx a "b ', ["torchx", "a", "b "]),
        ("torchx a\\ b", ["torchx", "a b"]),
        ("torchx  a  ", ["torchx", "a", ""]),
    ],
    ids=repr,
)
def test_unfinished_lines(line: str, words: list[str]) -> None:
    """Open quotes and escaped blanks are split as a shell would."""
    assert split_line(line) == words


def test_errors_are_silent(torchx: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completion prints no errors."""
    monkeypatch.setenv("TORCHXCONFIG", "/no/such/file")
    assert torchx("__complete", "fish", "--", "run", "--profile", "") == (0, "", "")


def test_descriptions(torchx: Call, paper: Any) -> None:
    """fish and zsh get a tab and a description; bash gets only the word."""
    assert torchx("__complete", "zsh", "--", "canc").out == "cancel\tend jobs; their logs and records stay\n"
    assert torchx("__complete", "bash", "--", "canc").out == "cancel\n"
