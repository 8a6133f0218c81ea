"""`torchx run utils.session`: a shell that opens when the job runs, and a job that ends with it."""

from __future__ import annotations

from pathlib import Path

from .conftest import Call, end, spawn, state, until


def test_the_job_ends_with_the_shell(torchx: Call, project: Path) -> None:
    """Early input is kept; the command returns the exit code of the shell and cancels the job."""
    child = spawn(project, "run", "utils.session", "--timeout", "1h")
    child.sendline("echo as-$((40 + 2)); touch here; exit 5")
    child.expect("as-42")
    child.expect("has ended")
    assert end(child) == 5
    until(lambda: state(torchx) == "CANCELLED")
    assert (project / "here").exists()


def test_the_shell_ends_with_the_job(torchx: Call, project: Path) -> None:
    """If the job is cancelled, the command shows its state and exits with 1."""
    child = spawn(project, "run", "utils.session")
    child.sendline('PS1=; stty -echo; echo op""en')
    child.expect("open")
    torchx("cancel", "@last")
    child.expect("CANCELLED")
    assert end(child) == 1


def test_without_a_terminal(torchx: Call, project: Path) -> None:
    """Prints the handle and a hint; the job stays."""
    launched = torchx("run", "utils.session")
    app_id = launched.out.strip().rpartition("/")[2]
    assert (launched.code, launched.out.startswith("local_cwd://")) == (0, True)
    assert f"`torchx shell {app_id}` opens a shell" in launched.err
    until(lambda: state(torchx) == "RUNNING")
    torchx("cancel", "@last")
    assert torchx("wait", "@last").code == 1


def test_where_nobody_is_let_in(torchx: Call, project: Path, paper: object) -> None:
    """If the scheduler cannot open shells, nothing is submitted; `--detach` opens none."""
    refused = torchx("run", "-s", "paper", "utils.session")
    assert (refused.code, refused.out, "scheduler `paper` cannot" in refused.err) == (5, "", True)
    assert torchx("run", "-s", "paper", "--detach", "utils.session").code == 0
