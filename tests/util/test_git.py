"""Which commit a directory holds, and whether its files differ from it."""

from __future__ import annotations

import os
import subprocess

import pytest

from torchx.util import git
from torchx.util.git import GitState, find_git_dir, probe, read_commit

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
    """The commit is found by its files alone, wherever git keeps it, and by git itself."""
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
    assert read_commit(find_git_dir(str(where))) == head(repo)
    assert probe(str(where)).result(50) == GitState(head(repo), dirty=False)


@pytest.mark.parametrize(("change", "dirty"), [("modified", True), ("staged", True), ("untracked", False)])
def test_dirty_means_that_tracked_files_differ(repo, change, dirty):
    """What git does not know of changes nothing about what can be checked out again."""
    if change == "untracked":
        (repo / "new").write_text("1")
    else:
        (repo / "file").write_text("2")
    if change == "staged":
        run_git(repo, "add", "file")
    assert probe(str(repo)).result(50) == GitState(head(repo), dirty=dirty)


def test_outside_of_a_repository(tmp_path):
    """There is no commit, and no program is started to find that out."""
    found = probe(str(tmp_path))
    assert found.done
    assert found.result() == GitState("", None)


def test_before_the_first_commit(tmp_path):
    """A repository without a commit has none, and whether files differ from it cannot be said."""
    run_git(tmp_path, "init", "-q")
    assert probe(str(tmp_path)).result(50) == GitState("", dirty=None)


def test_a_slow_git_is_not_waited_for(repo, monkeypatch, tmp_path):
    """After the time given, the commit is what the files say, dirty is unknown, and the child is gone."""
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    commit = head(repo)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    found = probe(str(repo))
    pid = found._child[0]
    assert found.result(0.01) == GitState(commit, None)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("how", ["missing", "failing"])
def test_without_a_git_that_works(repo, monkeypatch, tmp_path, how):
    """The commit is known all the same."""
    commit = head(repo)
    (tmp_path / "bin").mkdir()
    if how == "failing":
        (tmp_path / "bin" / "git").write_text("#!/bin/sh\necho '1 .M file'; exit 128\n")
        (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert probe(str(repo)).result(50) == GitState(commit, None)


def test_a_directory_is_looked_at_once(repo):
    """A program that launches many jobs asks git once for each directory."""
    first = probe(str(repo))
    assert probe(str(repo)) is first
    first.result(50)  # lets go of its pipe, and of git
    assert first.done
    assert (os.getpid(), str(repo)) in git._cache


def patches(folder):
    """The patches that are written beside the caller, once that is done."""
    import time

    deadline = time.monotonic() + 60
    while [*folder.glob("*.start")]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return sorted(folder.glob("*.patch"))


def test_a_patch_holds_what_is_not_committed(repo, tmp_path):
    """Changed, staged, new, binary and removed files: applied to the commit, the patch gives the tree; its own is left alone."""
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
    """An edit that size and time do not show, since both are those of the commit, is in the patch as git's own status has it."""
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
    """Nothing is left behind of a tree that does not differ, and old patches go."""
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
    """Of a difference beyond the limit it is on record that it was too large."""
    monkeypatch.setattr(git, "PATCH_LIMIT", 1000)
    (repo / "file").write_text("x" * 2000)
    probe(str(repo), patches=str(tmp_path / "patches"))
    (patch,) = patches(tmp_path / "patches")
    assert patch.read_text().strip() == git.TOO_LARGE


def test_a_program_that_goes_on_looks_again(repo, monkeypatch):
    """Many jobs at once cost one look; a job that is launched after an edit is a look of its own."""
    first = probe(str(repo))
    assert probe(str(repo)) is first
    assert first.result(50).dirty is False
    (repo / "file").write_text("2")
    monkeypatch.setattr(git, "_FRESH_S", 0.0)
    assert probe(str(repo)).result(50).dirty is True


def test_a_file_that_is_written_to_before_git_has_looked(repo, tmp_path, monkeypatch):
    """A patch with edits that came after the submission would say what did not run: it is not kept."""
    (repo / "file").write_text("2")
    when = (repo / "file").stat().st_mtime + 3600
    os.utime(repo / "file", (when, when))
    probe(str(repo), patches=str(tmp_path / "patches"))
    (patch,) = patches(tmp_path / "patches")
    assert patch.read_text().strip() == git.TOO_LATE


def test_a_home_that_cannot_be_written(repo, tmp_path):
    """There is no patch, and what git says is known all the same."""
    (tmp_path / "home").write_text("a file")
    assert probe(str(repo), patches=str(tmp_path / "home" / "patches")).result(50) == GitState(head(repo), dirty=False)
