"""The commit of a directory, and its uncommitted changes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from torchx.util import git
from torchx.util.git import GitState, find_repository, probe, read_commit

ENV = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def run_git(where, *words):
    argv = ["git", "-C", str(where), "-c", "user.name=x", "-c", "user.email=x@y", *words]
    done = subprocess.run(argv, env={**os.environ, **ENV}, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repo(tmp_path, monkeypatch):
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    where = tmp_path / "repo"
    where.mkdir()
    run_git(where, "init", "-q", "-b", "main")
    (where / "file").write_text("1")
    run_git(where, "add", "file")
    run_git(where, "commit", "-qm", "one")
    return where


def head(where):
    return run_git(where, "rev-parse", "HEAD")


@pytest.mark.parametrize("how", ["branch", "detached", "packed", "worktree", "subdirectory"])
def test_the_commit_of_a_clean_tree(repo, how):
    """The commit read from files equals that of git, wherever git stores it."""
    where = repo
    if how == "detached":
        run_git(repo, "checkout", "-q", "--detach")
    elif how == "packed":
        run_git(repo, "pack-refs", "--all")
    elif how == "worktree":
        where = repo.parent / "tree"
        run_git(repo, "worktree", "add", "-q", "-b", "other", str(where))
        run_git(repo, "pack-refs", "--all")
    elif how == "subdirectory":
        where = repo / "a" / "b"
        where.mkdir(parents=True)
    assert read_commit(find_repository(str(where))[1]) == head(repo)
    assert probe(str(where)).result(50) == GitState(head(repo), dirty=False)


@pytest.mark.parametrize(("change", "dirty"), [("modified", True), ("staged", True), ("untracked", False)])
def test_dirty_means_that_tracked_files_differ(repo, change, dirty):
    """Changed and staged files make a directory dirty; untracked files do not."""
    if change == "untracked":
        (repo / "new").write_text("1")
    else:
        (repo / "file").write_text("2")
    if change == "staged":
        run_git(repo, "add", "file")
    assert probe(str(repo)).result(50) == GitState(head(repo), dirty=dirty)


def test_outside_of_a_repository(tmp_path):
    """Outside of a repository there is no commit, and no program is started."""
    found = probe(str(tmp_path))
    assert found.done
    assert found.result() == GitState("", None)


def test_before_the_first_commit(tmp_path):
    """A repository without commits has no commit, and dirty is None."""
    run_git(tmp_path, "init", "-q")
    assert probe(str(tmp_path)).result(50) == GitState("", dirty=None)


def test_a_slow_git_is_not_waited_for(repo, monkeypatch, tmp_path):
    """After the timeout, the commit comes from files, dirty is None, and the child is killed."""
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    commit = head(repo)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    found = probe(str(repo))
    while not (tmp_path / "pid").exists() or not (pid := (tmp_path / "pid").read_text()):
        assert found._child is not None
    assert found.result(0.01) == GitState(commit, None)
    command = Path(f"/proc/{pid.strip()}/cmdline")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while command.read_bytes():  # killed, if not yet gone
            pass


@pytest.mark.parametrize("how", ["missing", "failing"])
def test_without_a_git_that_works(repo, monkeypatch, tmp_path, how):
    """The commit is known nevertheless."""
    commit = head(repo)
    (tmp_path / "bin").mkdir()
    if how == "failing":
        (tmp_path / "bin" / "git").write_text("#!/bin/sh\necho '1 .M file'; exit 128\n")
        (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert probe(str(repo)).result(50) == GitState(commit, None)


def test_a_directory_is_looked_at_once(repo):
    """A program that launches many jobs runs git once per directory."""
    first = probe(str(repo))
    assert probe(str(repo)) is first
    first.result(50)  # lets go of its pipe, and of git
    assert first.done
    assert (os.getpid(), str(repo)) in git._cache


def patches(folder):
    """Wait for the patches that are written in the background."""
    import time

    deadline = time.monotonic() + 60
    while [*folder.glob("*.start")]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return sorted(folder.glob("*.patch"))


def test_a_patch_holds_what_is_not_committed(repo, tmp_path):
    """The patch contains changed, staged, new, binary and removed files; the index of the repository is unchanged."""
    (repo / "old").write_text("x")
    run_git(repo, "add", "old")
    run_git(repo, "commit", "-qm", "two")
    (repo / "file").write_text("2")
    (repo / "staged").write_text("3")
    run_git(repo, "add", "staged")
    (repo / "a new").write_bytes(bytes(range(256)))
    (repo / "old").unlink()
    (repo / ".gitignore").write_text("ignored\n")
    (repo / "ignored").write_text("4")
    status = run_git(repo, "status", "--porcelain")
    probe_ = probe(str(repo), patches=str(tmp_path / "patches"))
    (patch,) = patches(tmp_path / "patches")
    assert probe_.result(50) == GitState(head(repo), dirty=True, patch=patch.name)
    assert run_git(repo, "status", "--porcelain") == status
    assert patch.stat().st_mode & 0o777 == 0o600
    clone = tmp_path / "clone"
    run_git(tmp_path, "clone", "-q", str(repo), str(clone))
    run_git(clone, "apply", str(patch))
    found = {path.name: path.read_bytes() for path in clone.iterdir() if path.is_file()}
    assert found == {p.name: p.read_bytes() for p in repo.iterdir() if p.is_file() and p.name != "ignored"}
    assert "[core]" not in patch.read_text(errors="replace")


def test_a_change_of_the_moment_of_the_commit(repo, tmp_path):
    """The patch contains an edit that changes neither size nor time, which `git status` reports too."""
    run_git(repo, "config", "core.trustctime", "false")
    when = (repo / "file").stat().st_mtime - 100
    os.utime(repo / "file", (when, when))
    run_git(repo, "update-index", "--refresh")
    (repo / "file").write_text("2")
    for path in (repo / "file", repo / ".git" / "index"):
        os.utime(path, (when, when))
    assert run_git(repo, "--no-optional-locks", "status", "--porcelain") == "M file"
    probe(str(repo), patches=str(tmp_path / "patches"))
    (patch,) = patches(tmp_path / "patches")
    assert "+2" in patch.read_text()


def test_a_clean_tree_leaves_no_patch(repo, tmp_path, monkeypatch):
    """A clean tree leaves no files, and old patches are removed."""
    folder = tmp_path / "patches"
    folder.mkdir()
    for name, days in (("old.patch", 100), ("young.patch", 10)):
        (folder / name).write_text("x")
        when = (folder / name).stat().st_mtime - days * 86400
        os.utime(folder / name, (when, when))
    (repo / "sub").mkdir()
    probe(str(repo / "sub"), patches=str(folder)).result(50)
    patches(folder)
    assert [path.name for path in folder.iterdir()] == ["young.patch"]


def test_a_patch_that_is_too_large_is_not_kept(repo, tmp_path, monkeypatch):
    """A patch above the limit is replaced by a note."""
    monkeypatch.setattr(git, "PATCH_LIMIT", 1000)
    (repo / "file").write_text("x" * 2000)
    probe(str(repo), patches=str(tmp_path / "patches"))
    (patch,) = patches(tmp_path / "patches")
    assert patch.read_text().strip() == git.TOO_LARGE


def test_a_program_that_goes_on_looks_again(repo, monkeypatch):
    """Jobs launched at once share a probe; a job launched after an edit gets a new one."""
    first = probe(str(repo))
    assert probe(str(repo)) is first
    assert first.result(50).dirty is False
    (repo / "file").write_text("2")
    monkeypatch.setattr(git, "_FRESH_S", 0.0)
    assert probe(str(repo)).result(50).dirty is True


def test_a_file_that_is_written_to_before_git_has_looked(repo, tmp_path, monkeypatch):
    """A patch with edits made after the submission would not match the job, so it is discarded."""
    (repo / "file").write_text("2")
    when = (repo / "file").stat().st_mtime + 3600
    os.utime(repo / "file", (when, when))
    probe(str(repo), patches=str(tmp_path / "patches"))
    (patch,) = patches(tmp_path / "patches")
    assert patch.read_text().strip() == git.TOO_LATE


def test_a_home_that_cannot_be_written(repo, tmp_path):
    """Without a patch, the state is known nevertheless."""
    (tmp_path / "home").write_text("a file")
    assert probe(str(repo), patches=str(tmp_path / "home" / "patches")).result(50) == GitState(head(repo), dirty=False)


def test_names_that_look_like_options(repo, tmp_path):
    """No name of a file is taken for an option of `find`, which could overwrite another file."""
    (repo / "-fprint").write_text("x")
    (repo / "file").write_text("2")
    probe(str(repo), patches=str(tmp_path / "patches"))
    (patch,) = patches(tmp_path / "patches")
    assert (repo / "file").read_text() == "2"
    assert {"+++ b/-fprint", "+++ b/file"} <= set(patch.read_text().splitlines())


def test_private_files_are_named_and_not_recorded(repo, tmp_path):
    """Given by a pattern, by a path, or by a link that leads to them; a clean tree without them leaves no patch."""
    for name in ("a/.env", "key", "tr\u00e4iner.py"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text("t0p-s3cret")
    (tmp_path / "link").symlink_to(repo / "key")
    probe_ = probe(str(repo / "a"), patches=str(tmp_path / "patches"), private=["**/.env", str(tmp_path / "link")])
    assert probe_.result(50).dirty is False
    (patch,) = patches(tmp_path / "patches")
    head, *rest = patch.read_text().split("diff --git ")
    assert head.splitlines() == ["left out: a/.env", "left out: key"]
    assert [text.splitlines()[0] for text in rest] == ["a/tr\u00e4iner.py b/tr\u00e4iner.py"]


@pytest.mark.parametrize("setting", ["core.fileMode=false", "core.autocrlf=true"])
def test_harmless_settings_of_the_repository_apply(repo, setting):
    """Those that a comparison of files depends on: else every file would differ."""
    name, value = setting.split("=")
    run_git(repo, "config", name, value)
    if name == "core.fileMode":
        (repo / "file").chmod(0o755)
    else:
        (repo / "file").write_bytes(b"1\r\n")
        run_git(repo, "commit", "-qam", "two")
        os.utime(repo / "file", (1, 1))
    assert probe(str(repo)).result(50).dirty is False


@pytest.mark.parametrize("kind", ["sha256", "split index", "sparse", "path with quotes"])
def test_unusual_repositories(tmp_path, monkeypatch, kind):
    """Their state and their changes are found as in others."""
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    where = tmp_path / ('a "b": c' if kind == "path with quotes" else "repo")
    where.mkdir()
    run_git(where, "init", "-q", *(["--object-format=sha256"] if kind == "sha256" else []))
    (where / "sub").mkdir()
    for name in ("file", "sub/other"):
        (where / name).write_text("1")
    run_git(where, "add", "-A")
    run_git(where, "commit", "-qm", "one")
    if kind == "split index":
        run_git(where, "update-index", "--split-index")
    elif kind == "sparse":
        run_git(where, "sparse-checkout", "set", "--cone", "--sparse-index")
    assert probe(str(where)).result(50) == GitState(head(where), dirty=False)
    (where / "file").write_text("2")
    monkeypatch.setattr(git, "_FRESH_S", 0.0)
    assert probe(str(where), patches=str(tmp_path / "patches")).result(50).dirty
    (patch,) = patches(tmp_path / "patches")
    assert patch.read_text().count("diff --git") == 1
