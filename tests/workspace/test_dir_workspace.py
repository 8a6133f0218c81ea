"""A workspace as a folder: one copy per job."""

import os
from typing import Any

import pytest

from torchx.errors import ConfigError, SpecError
from torchx.specs import Role, Workspace
from torchx.workspace.dir_workspace import DirWorkspaceMixin, TmpDirWorkspaceMixin


@pytest.fixture
def source(tmp_path: Any) -> str:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("v1")
    return str(tmp_path / "src")


def role(name: str, *sources: str) -> Role:
    return Role(name=name, image="base", entrypoint="x", workspace=Workspace(dict.fromkeys(sources, "")))


def test_copy_becomes_the_image(source: str, tmp_path: Any) -> None:
    """The job folder holds the code as it was at submission; roles with one workspace share it."""
    job_dir = str(tmp_path / "jobs" / "1")
    roles = [role("a", source), role("b", source)]
    DirWorkspaceMixin().build_workspaces(roles, {"job_dir": job_dir})
    with open(f"{source}/main.py", "w") as f:
        f.write("v2")
    assert [r.image for r in roles] == [job_dir, job_dir]
    with open(f"{job_dir}/main.py") as f:
        assert f.read() == "v1"


def test_roles_with_other_workspaces_get_other_folders(source: str, tmp_path: Any) -> None:
    """Each further workspace has a folder beside the job's."""
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "b.py").write_text("b")
    job_dir = str(tmp_path / "job")
    roles = [role("a", source), role("b", str(tmp_path / "second"))]
    DirWorkspaceMixin().build_workspaces(roles, {"job_dir": job_dir})
    assert [r.image for r in roles] == [job_dir, f"{job_dir}.b"]
    assert os.listdir(f"{job_dir}.b") == ["b.py"]


def test_without_job_dir_nothing_is_copied(source: str) -> None:
    """Without `job_dir` the role stays as it is."""
    r = role("a", source)
    DirWorkspaceMixin().build_workspaces([r], {})
    assert r.image == "base"


def test_a_folder_in_use_is_refused(source: str, tmp_path: Any) -> None:
    """A job folder that holds something is not written into."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "precious").write_text("x")
    with pytest.raises(ConfigError, match=r"`.*/job` is not empty"):
        DirWorkspaceMixin().build_workspaces([role("a", source)], {"job_dir": str(tmp_path / "job")})
    assert os.listdir(tmp_path / "job") == ["precious"]


def test_a_folder_that_cannot_be_made(source: str, tmp_path: Any) -> None:
    """A job folder below a file is refused with its name and the reason."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"job_dir `.*/file/job` cannot be made"):
        DirWorkspaceMixin().build_workspaces([role("a", source)], {"job_dir": str(tmp_path / "file" / "job")})


def test_a_workspace_that_does_not_exist(tmp_path: Any) -> None:
    """A missing workspace is said by name."""
    with pytest.raises(SpecError, match="nope` is not a directory"):
        DirWorkspaceMixin().build_workspaces([role("a", "/nope")], {"job_dir": str(tmp_path / "job")})


def test_the_deprecated_hook(source: str, tmp_path: Any) -> None:
    """Called by hand, the deprecated hook does the same."""
    r = role("a", source)
    DirWorkspaceMixin().build_workspace_and_update_role(r, source, {"job_dir": str(tmp_path / "job")})
    assert os.listdir(r.image) == ["main.py"]


def test_job_dir_is_an_option() -> None:
    """`job_dir` is a run option with help."""
    opt = DirWorkspaceMixin().workspace_opts().get("job_dir")
    assert opt is not None
    assert opt.opt_type is str
    assert not opt.is_required
    assert "share" in opt.help


def test_tmp_dir(source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The temporary variant needs no option: each build has a folder of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    a, b = role("a", source), role("a", source)
    TmpDirWorkspaceMixin().build_workspaces([a], {})
    TmpDirWorkspaceMixin().build_workspaces([b], {})
    assert a.image != b.image
    assert os.listdir(a.image) == ["main.py"]
