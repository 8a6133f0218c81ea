"""Somebody else's repository executes nothing, and no verb copies or prints the files that secrets come from."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchx.settings import torchx_home
from torchx.util.redaction import forget
from torchx.workspace import private

from .conftest import Call
from .test_cmd_rerun import git, settled

CANARY = "t0p-s3cret-canary"
KEY = f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n"
FILES = {
    "wandb.key": CANARY,  # the target of a `file:` secret, without the form of a key
    "sub/.env": f"A={CANARY}",
    ".env.local": f"A={CANARY}",
    ".envrc": f"export A={CANARY}",
    "id_rsa": CANARY,
    ".netrc": f"machine x password {CANARY}",
    ".aws/credentials": CANARY,
    "server.pem": KEY,
}


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(private, "_secret_files", set())
    forget()
    yield
    forget()


@pytest.fixture
def repo(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setattr("torchx.util.git._FRESH_S", 0.0)
    (project / "train.py").write_text("print(1)\n")
    (project / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (project / ".env.example").write_text("A=\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    return project


def put(repo: Path, text: Callable[[str], str] = str) -> None:
    for name, content in FILES.items():
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(text(content))
        (repo / name).chmod(0o600)


def with_canary(folder: str) -> list[str]:
    found = subprocess.run(["grep", "-rlF", CANARY, folder], check=False, capture_output=True, text=True)
    return found.stdout.splitlines()


@pytest.mark.parametrize("committed", [False, True])
def test_no_verb_copies_or_prints_secret_files(torchx: Call, repo: Path, tmp_path: Path, committed: bool) -> None:
    """Patch, diff, rerun and export leave out each kind of secret file, committed or not, and name all of them."""
    if committed:
        put(repo, lambda text: f"{text}0")
        git(repo, "add", "-A", "-f")
        git(repo, "commit", "-qm", "two")
    put(repo)
    run = ("run", "--wait", "--secret", "WANDB_API_KEY=file:wandb.key", "train.py")
    assert torchx(*run).code == 0
    settled()
    (repo / "train.py").write_text("print(2)\n")
    put(repo, lambda text: f"{text}2")
    assert torchx(*run).code == 0
    settled()
    assert with_canary(torchx_home()) == []
    (patch, *_) = Path(torchx_home("patches")).glob("*.patch")
    found = patch.read_text()
    outcomes = [
        torchx("diff", "@last~1", "@last", "--full"),
        torchx("diff", "@last~1", "@last", "--json"),
        torchx("describe", "@last", "--json"),
        torchx("rerun", "@last", "--code", "then", "--wait"),
        torchx("export", "@last~1", "--code", "then", "-o", str(tmp_path / "then")),
    ]
    for outcome in outcomes:
        assert outcome.code == 0, outcome.err
        assert CANARY not in outcome.out + outcome.err
    said = [found, *(outcome.out + outcome.err for i, outcome in enumerate(outcomes) if i != 2)]
    assert [(name, text) for name in FILES for text in said if name not in text] == []
    assert with_canary(torchx_home()) == with_canary(str(tmp_path / "then")) == []
    assert {"ca.pem", ".env.example", "train.py"} <= set(os.listdir(tmp_path / "then" / "code"))


def test_patches_of_earlier_versions(torchx: Call, repo: Path) -> None:
    """A patch on record that has such files is read without them."""
    torchx("run", "--wait", "--secret", "WANDB_API_KEY=env:HOME", "train.py")
    settled()
    put(repo)
    (repo / "train.py").write_text("print(2)\n")
    torchx("run", "--wait", "--secret", "WANDB_API_KEY=file:wandb.key", "train.py")
    settled()
    git(repo, "add", "-A", "-N", "-f")
    (patch,) = Path(torchx_home("patches")).glob("*.patch")
    patch.write_text(git(repo, "diff", "--binary", "HEAD") + "\n")
    assert CANARY in patch.read_text()
    for words in (("diff", "--full", "@last~1", "@last"), ("rerun", "--code", "then", "--wait", "@last")):
        outcome = torchx(*words)
        assert (outcome.code, CANARY in outcome.out + outcome.err) == (0, False), outcome.err
        assert [name for name in FILES if name not in outcome.err] == []
    assert with_canary(torchx_home("code")) == []


def test_code_that_is_sent(torchx: Call, repo: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A workspace is refused for some of them, and lacks the others, which are named; so is an export."""
    for name in ("id_rsa", ".netrc", "server.pem", ".aws/credentials"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(FILES[name])
        refused = torchx("run", "--export", str(tmp_path / name.replace("/", "")), "train.py")
        assert (refused.code, name.split("/")[0] in refused.err) == (2, True)
        (repo / name).unlink()
        if name.startswith(".aws"):
            (repo / ".aws").rmdir()
    for name in ("wandb.key", "sub/.env", ".env.local", ".envrc"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(CANARY)
    (repo / "tool.sh").touch(0o755)
    (repo / ".torchxconfig").write_text("[secrets]\nWANDB_API_KEY = file:wandb.key\n")
    out = tmp_path / "out"
    out.mkdir(0o755)
    for words in (["-s", "slurm", "-cfg", f"job_dir={tmp_path}/job", "--dryrun"], ["--export", str(out)]):
        outcome = torchx("run", *words, "train.py")
        assert outcome.code == 0, outcome.err
        assert [
            n for n in ("wandb.key", "sub/.env", ".env.local", ".envrc") if f"{n}` is left out" not in caplog.text
        ] == []
        caplog.clear()
    assert with_canary(str(tmp_path / "out")) == []
    modes = {
        p.relative_to(out): stat.S_IMODE(p.lstat().st_mode) for p in (out, *out.rglob("*")) if ".git" not in p.parts
    }
    assert {mode for path, mode in modes.items() if path.name not in ("run.sh", "tool.sh")} == {0o700, 0o600}
    assert {(out / path).is_dir() for path, mode in modes.items() if mode == 0o700 and ".sh" not in path.name} == {True}
    assert modes[Path("code/tool.sh")] == 0o700


def test_an_older_relative_reference(torchx: Call, repo: Path) -> None:
    """A rerun from a checkout still finds the file, which is not in it."""
    (repo / "wandb.key").write_text(CANARY)
    program = ("utils.sh", 'echo "${#WANDB_API_KEY}"')
    torchx("run", "--wait", "--secret", "WANDB_API_KEY=file:wandb.key", *program)
    settled()
    outcome = torchx("rerun", "@last", "--code", "then", "--log")
    assert (outcome.code, str(len(CANARY)) in outcome.err) == (0, True), outcome.err


def hostile(repo: Path, marks: Path) -> None:
    """Makes git execute programs, each of which leaves a mark, in every way that a configuration can."""
    marks.mkdir()
    hooks = repo / ".git" / "evil-hooks"
    hooks.mkdir()
    for name in ("post-index-change", "post-checkout", "reference-transaction", "fsmonitor-watchman", "pre-commit"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {marks}/hook-{name}\n")
        (hooks / name).chmod(0o700)
    (repo / "a.bin").write_text("data")
    (repo / ".gitattributes").write_text("*.bin filter=evil diff=evil\n*.dat filter=a=b\n")
    (repo / "b.dat").write_text("data")
    sub = repo / "module"
    sub.mkdir()
    git(sub, "init", "-q")
    (sub / "file").write_text("x")
    git(sub, "add", "-A")
    git(sub, "commit", "-qm", "one")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "two")
    run = "touch {}/{}; cat"
    settings = {
        "core.fsmonitor": run,
        "core.pager": run,
        "core.sshCommand": run,
        "core.editor": run,
        "pager.diff": run,
        "diff.external": run,
        "diff.evil.command": run,
        "diff.evil.textconv": run,
        "filter.evil.clean": run,
        "filter.evil.smudge": run,
        "filter.evil.required": "true",
        "filter.a=b.clean": run,
        "filter.a=b.smudge": run,
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::sh -c 'touch {marks}/transport'",
        "protocol.ext.allow": "always",
        "credential.helper": run,
        "gpg.program": run,
        "core.hooksPath": str(hooks),
    }
    for name, value in settings.items():
        git(repo, "config", name, value.format(marks, name))
    git(sub, "config", "core.fsmonitor", f"touch {marks}/submodule")
    for mark in marks.iterdir():
        mark.unlink()


def test_a_hostile_repository_executes_nothing(
    torchx: Call, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its configuration says, no verb that calls git starts a program of it; git itself would."""
    marks = tmp_path / "marks"
    hostile(repo, marks)
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {marks}/variable")
    for i in range(2):
        for name in ("a.bin", "b.dat", "train.py", "module/file"):
            (repo / name).write_text(f"print({i}) # {name}\n")
        assert torchx("run", "--wait", "train.py").code == 0
        settled()
    verbs = [
        ("diff", "--full", "@last~1", "@last"),
        ("describe", "@last"),
        ("rerun", "--code", "then", "--wait", "@last"),
        ("rerun", "--code", "now", "--wait", "@last"),
        ("export", "--code", "then", "-o", str(tmp_path / "out"), "@last"),
        ("init", "../made"),
        ("list",),
    ]
    for words in verbs:
        assert torchx(*words).code == 0, words
        settled()
    assert sorted(os.listdir(marks)) == []
    assert "a.bin" in torchx("diff", "@last~3", "@last").out
    assert (tmp_path / "out" / "code" / "a.bin").read_text() == "print(1) # a.bin\n"
    run = json.loads(torchx("describe", "@last", "--json").out)["run"]
    assert (run["git_commit"], run["git_dirty"]) == (git(repo, "-c", "core.hooksPath=", "rev-parse", "HEAD"), True)
    subprocess.run(["git", "add", "-A"], check=False, capture_output=True)
    assert {"core.fsmonitor", "filter.evil.clean"} <= set(os.listdir(marks)), "the trap would not have worked"
