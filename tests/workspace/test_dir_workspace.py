"""Workspaces as folders: one copy per job."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.workspace.trees import make, tree
from torchx.errors import ConfigError, SpecError
from torchx.settings import ENV_WORKSPACE_HASH
from torchx.specs import Role, Workspace
from torchx.workspace import dir_workspace
from torchx.workspace.content import content_hash, entries
from torchx.workspace.dir_workspace import DirWorkspaceMixin, TmpDirWorkspaceMixin
from torchx.workspace.files import MARKER


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(make(tmp_path / "src", {"main.py": "v1"}))


def role(name: str, *sources: str) -> Role:
    return Role(name=name, image="base", entrypoint="x", workspace=Workspace(dict.fromkeys(sources, "")))


def code(folder: object) -> dict[str, str]:
    """The contents of a job folder, without our marker."""
    found = tree(folder)
    assert found.pop(MARKER).startswith("sha256:")
    return found


def test_the_copy_becomes_the_image(source: str, tmp_path: Path) -> None:
    """The job folder has the code as it was at submission; roles with one workspace share it."""
    job_dir = str(tmp_path / "jobs" / "1")
    roles = [role("a", source), role("b", source)]
    DirWorkspaceMixin().build_workspaces(roles, {"job_dir": job_dir})
    (tmp_path / "src" / "main.py").write_text("v2")
    assert [r.image for r in roles] == [job_dir, job_dir]
    assert code(job_dir) == {"main.py": "v1"}


def test_the_hash_is_in_the_roles_environment(source: str, tmp_path: Path) -> None:
    """The hash is the same for each role of the workspace, and for the next job with the same code."""
    roles = [role("a", source), role("b", source)]
    expected = content_hash(entries(source))
    DirWorkspaceMixin().build_workspaces(roles, {"job_dir": str(tmp_path / "1")})
    DirWorkspaceMixin().build_workspaces([third := role("c", source)], {"job_dir": str(tmp_path / "2")})
    assert [r.env[ENV_WORKSPACE_HASH] for r in (*roles, third)] == [expected] * 3


def test_roles_with_other_workspaces_get_other_folders(source: str, tmp_path: Path) -> None:
    """Each further workspace has a folder next to the job's."""
    make(tmp_path / "second", {"b.py": "b"})
    job_dir = str(tmp_path / "job")
    roles = [role("a", source), role("b", str(tmp_path / "second")), role("c", source)]
    DirWorkspaceMixin().build_workspaces(roles, {"job_dir": job_dir})
    assert [r.image for r in roles] == [job_dir, f"{job_dir}.b", job_dir]
    assert code(f"{job_dir}.b") == {"b.py": "b"}
    assert roles[0].env[ENV_WORKSPACE_HASH] != roles[1].env[ENV_WORKSPACE_HASH]


def test_several_projects(source: str, tmp_path: Path) -> None:
    """Several projects share one folder, each at its place."""
    make(tmp_path / "lib", {"l.py": "l"})
    r = Role("a", "base", entrypoint="x", workspace=Workspace({source: "", str(tmp_path / "lib"): "third/lib"}))
    DirWorkspaceMixin().build_workspaces([r], {"job_dir": str(tmp_path / "job")})
    assert code(r.image) == {"main.py": "v1", "third/lib/l.py": "l"}


def test_without_job_dir_nothing_is_copied(source: str) -> None:
    """Without `job_dir` the role is not changed."""
    r = role("a", source)
    DirWorkspaceMixin().build_workspaces([r], {})
    assert (r.image, r.env) == ("base", {})


def test_a_relative_folder(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is an absolute path, because the job starts in another directory. `~` is the home directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    first, second = role("a", source), role("a", source)
    DirWorkspaceMixin().build_workspaces([first], {"job_dir": "jobs/1"})
    DirWorkspaceMixin().build_workspaces([second], {"job_dir": "~/2"})
    assert [first.image, second.image] == [str(tmp_path / "jobs" / "1"), str(tmp_path / "home" / "2")]


def test_a_folder_below_the_workspace(source: str) -> None:
    """Neither the folder of this job nor an earlier one becomes part of the copy."""
    for name in ("1", "2", "3"):
        r = role("a", source)
        DirWorkspaceMixin().build_workspaces([r], {"job_dir": f"{source}/jobs/{name}"})
        assert set(code(r.image)) <= {"main.py", "jobs/"}


def test_a_folder_in_use_is_refused(source: str, tmp_path: Path) -> None:
    """A job folder that is not empty is an error."""
    make(tmp_path / "job", {"precious": "x"})
    with pytest.raises(ConfigError, match=r"`.*/job` is not empty"):
        DirWorkspaceMixin().build_workspaces([role("a", source)], {"job_dir": str(tmp_path / "job")})
    assert os.listdir(tmp_path / "job") == ["precious"]


@pytest.mark.parametrize("made_before", [False, True], ids=["new folder", "the user's folder"])
def test_two_processes_never_fill_the_same_folder(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_before: bool
) -> None:
    """A submission that finds the folder of another one, still without files, is refused and removes nothing."""
    cfg: dict[str, Any] = {"job_dir": str(tmp_path / "job")}
    if made_before:
        (tmp_path / "job").mkdir()
    copy, refused = dir_workspace._copy, []

    def copied(*args: Any, **options: Any) -> str:
        monkeypatch.setattr(dir_workspace, "_copy", copy)
        with pytest.raises(ConfigError, match="is not empty"):
            DirWorkspaceMixin().build_workspaces([role("b", source)], cfg)
        refused.append(1)
        return copy(*args, **options)

    monkeypatch.setattr(dir_workspace, "_copy", copied)
    DirWorkspaceMixin().build_workspaces([r := role("a", source)], cfg)
    assert refused == [1]
    assert code(r.image) == {"main.py": "v1"}


def test_a_folder_that_another_process_fills_just_now(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was empty when it was listed, and has an owner since, is refused."""
    make(tmp_path / "job", {MARKER: ""})
    monkeypatch.setattr("os.listdir", lambda _: [])
    with pytest.raises(ConfigError, match="is not empty"):
        DirWorkspaceMixin().build_workspaces([role("a", source)], {"job_dir": str(tmp_path / "job")})
    assert (tmp_path / "job" / MARKER).exists()


def test_the_folder_of_an_earlier_role_does_not_block_the_next_attempt(source: str, tmp_path: Path) -> None:
    """If the workspace of a later role cannot be copied, the folders of the earlier ones are removed."""
    with pytest.raises(SpecError, match="nope` is not a directory"):
        DirWorkspaceMixin().build_workspaces(
            [role("a", source), role("b", "/nope")], {"job_dir": str(tmp_path / "job")}
        )
    assert os.listdir(tmp_path) == ["src"]


def test_an_empty_folder_is_filled(source: str, tmp_path: Path) -> None:
    """An existing empty folder keeps its permissions."""
    (tmp_path / "job").mkdir(mode=0o750)
    DirWorkspaceMixin().build_workspaces([r := role("a", source)], {"job_dir": str(tmp_path / "job")})
    assert code(r.image) == {"main.py": "v1"}
    assert os.stat(r.image).st_mode & 0o777 == 0o750


def test_a_folder_that_cannot_be_made(source: str, tmp_path: Path) -> None:
    """A job folder below a file is an error with its name and the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"job_dir `.*/file/job` cannot be made: Not a directory"):
        DirWorkspaceMixin().build_workspaces([role("a", source)], {"job_dir": str(tmp_path / "file" / "job")})


def test_a_full_disk(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file that could not be written, and nothing is left."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match=r"cannot be copied to `.*/job/main.py`: No space left on device"):
        DirWorkspaceMixin().build_workspaces([role("a", source)], {"job_dir": str(tmp_path / "job")})
    assert not (tmp_path / "job").exists()


def test_a_workspace_that_does_not_exist(tmp_path: Path) -> None:
    """The error names a missing workspace, and no folder is created for it."""
    with pytest.raises(SpecError, match="nope` is not a directory"):
        DirWorkspaceMixin().build_workspaces([role("a", "/nope")], {"job_dir": str(tmp_path / "job")})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("made_before", [False, True], ids=["new folder", "the user's folder"])
@pytest.mark.parametrize("error", [SpecError("unreadable"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_no_half_folder_is_left(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, made_before: bool
) -> None:
    """When the copy fails, its files are removed; an existing folder stays, empty."""
    job_dir = tmp_path / "job"
    if made_before:
        job_dir.mkdir()

    def fail(files: object, folder: str, *_: object, **__: Any) -> str:
        make(Path(folder), {"half/a": "a"})
        raise error

    monkeypatch.setattr(dir_workspace, "_copy", fail)
    with pytest.raises(type(error)):
        DirWorkspaceMixin().build_workspaces([role("a", source)], {"job_dir": str(job_dir)})
    assert job_dir.exists() is made_before
    assert not made_before or os.listdir(job_dir) == []


def test_shared_code(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `share_code` two jobs share their files; without it each has its own."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("torchx.workspace.snapshots.SnapshotStore.usable", lambda self: True)
    monkeypatch.setattr("torchx.workspace.snapshots.can_clone", lambda folder: False)
    inodes = []
    for name, share in (("1", True), ("2", True), ("3", False)):
        r = role("a", source)
        cfg: dict[str, Any] = {"job_dir": str(tmp_path / "jobs" / name), "share_code": share}
        DirWorkspaceMixin().build_workspaces([r], cfg)
        assert code(r.image) == {"main.py": "v1"}
        inodes.append(os.stat(f"{r.image}/main.py").st_ino)
    assert inodes[0] == inodes[1] != inodes[2]


def test_root_shares_no_code(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Permissions do not restrict root: each job gets a copy, with a warning."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("torchx.workspace.snapshots.can_clone", lambda folder: False)
    cfg: dict[str, Any] = {"job_dir": str(tmp_path / "job"), "share_code": True}
    with caplog.at_level(logging.WARNING, "torchx.workspace"):
        DirWorkspaceMixin().build_workspaces([r := role("a", source)], cfg)
    assert os.stat(f"{r.image}/main.py").st_nlink == 1
    assert "`share_code` is not used" in caplog.text


def test_a_store_that_is_not_ours_is_not_used(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job gets a copy if the store cannot be used."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("torchx.workspace.snapshots.SnapshotStore.usable", lambda self: False)
    cfg: dict[str, Any] = {"job_dir": str(tmp_path / "jobs" / "1"), "share_code": True}
    DirWorkspaceMixin().build_workspaces([r := role("a", source)], cfg)
    assert code(r.image) == {"main.py": "v1"}


def test_discarding(source: str, tmp_path: Path) -> None:
    """Folders for roles that are not submitted are removed; others stay."""
    mixin = DirWorkspaceMixin()
    r = role("a", source)
    mixin.build_workspaces([r], {"job_dir": str(tmp_path / "job")})
    theirs = Role("b", source, entrypoint="x")
    DirWorkspaceMixin().discard_workspaces([r, theirs])
    assert os.path.exists(r.image)
    mixin.discard_workspaces([r, theirs])
    assert not os.path.exists(r.image)
    assert os.path.exists(f"{source}/main.py")


def test_the_deprecated_hook(source: str, tmp_path: Path) -> None:
    """The deprecated hook gives the same result."""
    r = role("a", source)
    DirWorkspaceMixin().build_workspace_and_update_role(r, source, {"job_dir": str(tmp_path / "job")})
    assert code(r.image) == {"main.py": "v1"}
    assert r.env[ENV_WORKSPACE_HASH].startswith("sha256:")


def test_options() -> None:
    """`job_dir` and `share_code` are run options with help."""
    opts = DirWorkspaceMixin().workspace_opts()
    assert {name: (opt.opt_type, opt.default, opt.is_required) for name, opt in opts} == {
        "job_dir": (str, None, False),
        "share_code": (bool, False, False),
    }
    assert all(opt.help for _, opt in opts)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "tmp"


def test_temporary_folders(source: str, temporary: Path) -> None:
    """The temporary variant needs no option: each build has its own folder, which the roles of the build share."""
    a, b, c = role("a", source), role("b", source), role("c", source)
    TmpDirWorkspaceMixin().build_workspaces([a, b], {})
    TmpDirWorkspaceMixin().build_workspaces([c], {})
    assert a.image == b.image != c.image
    assert [code(r.image) for r in (a, c)] == [{"main.py": "v1"}] * 2
    assert a.env[ENV_WORKSPACE_HASH] == content_hash(entries(source))


def test_temporary_folders_are_discarded(source: str, temporary: Path) -> None:
    """When nothing is submitted, or the copy fails, no folder is left."""
    mixin = TmpDirWorkspaceMixin()
    mixin.build_workspaces([r := role("a", source)], {})
    mixin.discard_workspaces([r])
    assert os.listdir(temporary) == []
    with pytest.raises(SpecError):
        mixin.build_workspaces([role("a", "/nope")], {})
    assert os.listdir(temporary) == []
