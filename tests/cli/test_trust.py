"""What a project's `.torchxconfig` may do: announced once, and programs of its choice run only with consent."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.conftest import Call, Outcome, end, spawn, until
from torchx.cli.commands import VERBS
from torchx.config import files, trust
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES
from torchx.settings import torchx_home
from torchx.specs.secret import VALUES
from torchx.util.procs import own_program

RUN = ("run", "-s", "local_cwd", "--wait", "utils.sh", "true")
SECRET = "[cli:run]\nsecret = KEY=cmd:touch {marker}; echo x\n"
PROGRAMS = {
    "secret": SECRET,
    "secret-profile": "[cli:run@p]\nsecret =\n  OTHER\n  KEY=cmd:touch {marker}; echo x\n",
    "secrets": "[cli:run]\nsecret = KEY\n[secrets]\nKEY = cmd:touch {marker}; echo x\n",
    "secrets-interpolated": "[cli:run]\nsecret = KEY\n[secrets]\nK = cmd\nKEY = %(K)s:touch {marker}; echo x\n",
    "exec": "[notify]\nvia = exec:./hook.sh\n",
    "exec-among-others": "[notify]\nvia = exec:/bin/true, exec:./hook.sh\non = start\n",
    "webhook": "[notify]\nvia = webhook\nwebhook = cmd:touch {marker}; echo http://127.0.0.1:9/\n",
}
ANNOUNCED = {
    "[slurm]\nssh = login1": "`ssh = login1` connects to that host, with your SSH keys",
    "[lsf@p]\nssh = login1": "`ssh = login1` connects to that host, with your SSH keys",
    "[local_cwd]\nprepend_cwd = On": "`prepend_cwd = On` runs programs of this folder before those on PATH",
    "[kubernetes]\nimage_repo = x.org/y": "`image_repo = x.org/y` sends your code there",
    "[kubernetes]\nbucket = s3://y": "`bucket = s3://y` sends your code there",
    "[torchx:tracker]\nmlflow = http://x": "`mlflow = http://x` connects your jobs to that tracker",
    "[secrets]\nK = file:~/.ssh/id_rsa": "`K = file:~/.ssh/id_rsa` reads that file, for a secret",
    "[notify]\nvia = slack": "`via = slack` sends the outcome of your jobs to addresses in the config files",
    "[cli:run]\ncomponent = job.py:go": "`component = job.py:go` imports that file, when `torchx run` names no component",
}


@pytest.fixture
def torchx(torchx: Call, caplog: pytest.LogCaptureFixture) -> Call:
    """Calls the command line as if in a process of its own, with the warnings, which pytest takes, in ``err``."""

    def call(*argv: str) -> Outcome:
        files._parsed.clear()
        trust._found.clear()
        caplog.clear()
        done = torchx(*argv)
        warnings = "".join(f"torchx: warning: {record.getMessage()}\n" for record in caplog.records)
        return done._replace(err=warnings + done.err)

    return call


@pytest.fixture
def stranger(project: Path) -> Callable[[str], Path]:
    """Writes the config file of a stranger's folder, which is the current one; returns the path of a marker."""

    def write(text: str) -> Path:
        marker = project.parent / "marker"
        hook = project / "hook.sh"
        hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
        hook.chmod(0o755)
        (project / ".torchxconfig").write_text(text.format(marker=marker))
        return marker

    return write


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_needs_consent(
    name: str, stranger: Callable[[str], Path], torchx: Call, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    """Without a terminal, one line refuses it, with exit code 2, and nothing is submitted or run by any verb."""
    marker = stranger(PROGRAMS[name])
    if "@p" in PROGRAMS[name]:
        monkeypatch.setenv("TORCHX_PROFILE", "p")
    monkeypatch.setenv("OTHER", "value")
    refused = torchx(*RUN)
    assert (refused.code, refused.out) == (2, "")
    *announced, said = refused.error_lines()
    runs = r"torchx: warning: \.torchxconfig:\d+: `.+` runs a (command|program), for .+"
    assert [bool(re.fullmatch(runs, line)) for line in announced].count(True) == 1
    assert "runs a program that this folder chose, and you have not trusted its config file" in said
    assert "configure --trust" in refused.hint()
    for argv in (("run", "--dryrun", "utils.echo"), ("run", "--check", "utils.echo"), ("list",), ("doctor",)):
        torchx(*argv)
    assert "run on record" in torchx("status", "@last").err
    assert not marker.exists()
    monkeypatch.setenv("TORCHX_TRUST", "1")
    torchx(*RUN)
    until(marker.exists)
    marker.unlink()
    monkeypatch.delenv("TORCHX_TRUST")
    assert torchx(*RUN).code == 2
    assert torchx("configure", "--trust").out == f"{project}/.torchxconfig\n"
    torchx(*RUN)
    until(marker.exists)


def test_consent_is_for_a_file_and_its_content(stranger: Callable[[str], Path], torchx: Call, project: Path) -> None:
    """It ends when the file changes, and does not hold for a copy elsewhere; its record is private."""
    stranger(SECRET)
    assert torchx("configure", "--trust").code == 0
    assert torchx(*RUN).code == 0
    stranger(SECRET.replace("echo x", "echo y"))
    assert torchx(*RUN).code == 2
    stranger(SECRET)
    assert torchx(*RUN).code == 0
    copy = project / "copy"
    copy.mkdir()
    (copy / ".torchxconfig").write_text((project / ".torchxconfig").read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copy)
        assert torchx(*RUN).code == 2
        (copy / ".torchxconfig").unlink()
        assert torchx("configure", "--trust").code == 74
    folder = Path(torchx_home("trust"))
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("answer", ["y", "n"])
def test_the_question(stranger: Callable[[str], Path], project: Path, answer: str) -> None:
    """On a terminal torchx asks once; a no refuses."""
    marker = stranger(SECRET)
    child = spawn(project, *RUN)
    child.expect(
        r"\.torchxconfig:2: `cmd:touch .*` runs a program .* Trust this config file, until it changes\? \[y/N\]"
    )
    child.sendline(answer)
    assert end(child) == (0 if answer == "y" else 2)
    assert marker.exists() == (answer == "y")
    child = spawn(project, *RUN)
    assert child.expect([r"\[y/N\]", pexpect.EOF]) == (answer == "y")
    child.close(force=True)


@pytest.mark.parametrize("text", ANNOUNCED)
def test_announced_once(stranger: Callable[[str], Path], torchx: Call, text: str) -> None:
    """What connects is said once, with file and line, and again when the file has changed; it is not asked."""
    stranger(text + "\n")
    assert torchx("run", "--dryrun", "utils.echo").error_lines()[0].startswith("torchx: warning: .torchxconfig:2: `")
    assert ANNOUNCED[text] not in torchx("list").err
    stranger(f"# {text[1:4]}\n{text}\n")
    assert ANNOUNCED[text] in torchx("run", "--dryrun", "utils.echo").err


def test_where_nobody_sees_it(stranger: Callable[[str], Path], torchx: Call) -> None:
    """Completion and background processes discard stderr: the announcement is left to the next command."""
    stranger("[slurm]\nssh = login1\n")
    for argv in (["run", "--dryrun", "utils.echo"], ["__complete", "fish", "--", "run", "--profile", ""]):
        subprocess.run([*own_program("torchx.cli.main"), *argv], stderr=subprocess.DEVNULL, check=True)
    assert "`ssh = login1` connects" in torchx("run", "--dryrun", "utils.echo").err


def test_no_verb_runs_a_program(stranger: Callable[[str], Path], torchx: Call) -> None:
    """In a stranger's folder with each program at once, all verbs, also for a job on record, leave no marker."""
    assert torchx(*RUN).code == 0
    text = SECRET + "[secrets]\nKEY = cmd:touch {marker}; echo x\n[notify]\nvia = exec:./hook.sh, webhook\n"
    marker = stranger(text + "webhook = cmd:touch {marker}; echo http://127.0.0.1:9/\n")
    for verb in set(VERBS) - {"ui", "top", "watch", "configure"}:
        for argv in ([verb], [verb, "@last"], [verb, "--dryrun", "@last"], ["__complete", "fish", "--", verb, ""]):
            torchx(*argv)
    for argv in (
        ["run"],
        ["sweep", "--grid", "n=1,2"],
        ["export", "-o", "out"],
        ["run", "--check"],
        ["run", "--dryrun"],
    ):
        torchx(*argv, "-s", "local_cwd", "utils.sh", "true")
    assert not marker.exists()


def test_a_dry_run_does_not_connect(
    stranger: Callable[[str], Path], torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `ssh` in the folder's file, nothing starts `ssh` before a job is submitted or asked for."""
    stranger("[slurm]\nssh = login1\n[lsf]\nssh = login1\n")
    (project / "hook.sh").rename(project / "ssh")
    monkeypatch.setenv("PATH", str(project), prepend=os.pathsep)
    (project / "job.py").write_text("def go() -> 'AppDef': ...\n")
    for scheduler in ("slurm", "lsf"):
        shown = torchx("run", "--dryrun", "-s", scheduler, "utils.sh", "--image", "i", "true")
        assert (shown.code, "~/.torchx/code/" in shown.out) == (0, True)
        assert torchx("sweep", "--dryrun", "-s", scheduler, "--grid", "n=1,2", "utils.sh", "echo {n}").code == 0
        torchx("__complete", "fish", "--", "run", "-s", scheduler, "-cfg", "s")
    for argv in (["list"], ["doctor"], ["run", "--dryrun", "utils.echo"], ["runopts", "slurm"], ["configure", "-p"]):
        torchx(*argv)
    assert not (project.parent / "marker").exists()


@pytest.mark.parametrize("way", ["home", "TORCHXCONFIG"])
def test_files_that_the_user_chose(
    way: str, stranger: Callable[[str], Path], torchx: Call, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    """The file in the home, also by another path, and the one that `TORCHXCONFIG` names, need no consent."""
    marker = stranger(SECRET)
    link = project.parent / "link"
    link.symlink_to(project)
    monkeypatch.setenv(*(("HOME", str(link)) if way == "home" else (way, ".torchxconfig")))
    done = torchx(*RUN)
    assert (done.code, done.err) == (0, "")
    assert marker.exists()


def test_it_cannot_be_recorded(
    stranger: Callable[[str], Path], torchx: Call, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    """If the home cannot be written, the announcement is made each time, and consent is not remembered."""
    stranger("[slurm]\nssh = login1\n")
    monkeypatch.setenv("TORCHX_HOME", str(project / ".torchxconfig" / "home"))
    for _ in range(2):
        assert "`ssh = login1` connects" in torchx("run", "--dryrun", "utils.echo").err


def test_the_rules_name_what_exists() -> None:
    """Each row is for a section and key that torchx reads; what runs a command is a kind of secret, or a channel."""
    rows: Any = {(section, key) for section, key, *_ in trust.RULES}
    assert {asks for *_, asks in trust.RULES} == {True, False}
    assert "cmd" in VALUES
    assert ("notify", "via") in rows
    for name in DEFAULT_SCHEDULER_MODULES:
        assert re.fullmatch(trust._SCHEDULERS, name)
    for name in ("secrets", "notify", "named_resources", "component:x", "cli:run"):
        assert not re.fullmatch(trust._SCHEDULERS, name)
