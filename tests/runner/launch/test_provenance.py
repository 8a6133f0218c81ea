"""Image digests and code hashes: from builder and scheduler through the Runner into the record."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.runner.memory_backend import MemoryScheduler, backend, echo_app
from torchx.errors import BackendError, SpecError, TransientError
from torchx.runner import Runner
from torchx.settings import ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH
from torchx.specs import Workspace
from torchx.specs.images import report_image_digest, set_image_digest, set_workspace_hash
from torchx.workspace import WorkspaceMixin
from torchx.workspace.dir_workspace import DirWorkspaceMixin

BUILT, PULLED = f"sha256:{'a' * 64}", f"reg/echo@sha256:{'b' * 64}"


class Building(WorkspaceMixin, MemoryScheduler):
    """Builds an image, and gets its digest at submission."""

    learns = True

    def caching_build_workspace_and_update_role(self, role, cfg, build_cache):
        set_image_digest(role, BUILT)
        set_workspace_hash(role, "sha256:c0de")

    def schedule(self, dryrun_info):
        if self.learns:
            report_image_digest(dryrun_info, "echo", PULLED)
        return super().schedule(dryrun_info)


@pytest.fixture
def building(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Runner("test", {"memory": Building}) as runner:
        yield runner


def test_what_was_built_is_on_record_and_in_the_jobs_environment(building):
    """Digest and hash by role; the caller's app is not changed."""
    backend(building).learns = False
    app = echo_app()
    handle = building.run(app, "memory", workspace="/src")
    run = building.recorded(handle)
    assert run.image_digests == {"echo": BUILT}
    assert run.workspace_hashes == {"echo": "sha256:c0de"}
    env = building.describe(handle).roles[0].env
    assert (env[ENV_IMAGE_DIGEST], env[ENV_WORKSPACE_HASH]) == (BUILT, "sha256:c0de")
    assert run.appdef().roles[0].env[ENV_IMAGE_DIGEST] == BUILT
    assert app.roles[0].env == {}


def test_what_the_scheduler_ran_goes_first(building):
    """The digest from the engine overrides that of the builder."""
    run = building.recorded(building.run(echo_app(), "memory", workspace="/src"))
    assert run.image_digests == {"echo": PULLED}


def test_a_job_from_the_record_does_not_inherit_the_digest(building, runner):
    """An app from the record is submitted without the old digest."""
    old = building.recorded(building.run(echo_app(), "memory", workspace="/src")).appdef()
    for role in old.roles:
        role.workspace = None
    run = runner.recorded(runner.run(old, "memory"))
    assert (run.image_digests, run.workspace_hashes) == ({}, {})
    assert ENV_IMAGE_DIGEST in old.roles[0].env  # the caller's is as it was


def test_lists_leave_it_out(building):
    """Large columns are read only for a single run."""
    building.run(echo_app(), "memory", workspace="/src")
    [run] = building.runs(refresh=False)
    assert run.image_digests == {}


class Folders(DirWorkspaceMixin, MemoryScheduler):
    pass


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a")
    with Runner("test", {"memory": Folders}) as runner:
        yield runner


def test_a_refused_job_leaves_no_folder(folders, tmp_path):
    """The job folder is removed, so that the same command works later."""
    given = {"cfg": {"job_dir": str(tmp_path / "job")}, "workspace": str(tmp_path / "src")}
    backend(folders).refuses = BackendError("no such queue")
    with pytest.raises(BackendError, match="no such queue"):
        folders.run(echo_app(), "memory", **given)
    assert not (tmp_path / "job").exists()
    backend(folders).refuses = None
    handle = folders.run(echo_app(), "memory", **given)
    assert (tmp_path / "job" / "a.py").read_text() == "a"
    assert folders.recorded(handle).workspace_hashes["echo"].startswith("sha256:")


def test_a_job_without_a_request_leaves_no_folder(folders, tmp_path, monkeypatch):
    """Some errors are found only after the code was copied, such as a mount that the scheduler does not support."""
    given = {"cfg": {"job_dir": str(tmp_path / "job")}, "workspace": str(tmp_path / "src")}
    with monkeypatch.context() as patch:
        patch.setattr(backend(folders), "_submit_dryrun", lambda *_: (_ for _ in ()).throw(SpecError("no mounts")))
        with pytest.raises(SpecError, match="no mounts"):
            folders.dryrun(echo_app(), "memory", **given)
    assert not (tmp_path / "job").exists()
    assert folders.run(echo_app(), "memory", **given)


def test_a_lost_answer_leaves_the_folder(folders, tmp_path):
    """The job may have been started, so its code is kept."""
    backend(folders).refuses = TransientError("the connection was lost")
    with pytest.raises(TransientError):
        folders.run(echo_app(), "memory", {"job_dir": str(tmp_path / "job")}, workspace=str(tmp_path / "src"))
    assert (tmp_path / "job" / "a.py").exists()


def test_a_request_that_somebody_holds_keeps_its_folder(folders, tmp_path):
    """The caller of `dryrun` may submit the request again after a rejection."""
    cfg = {"job_dir": str(tmp_path / "job")}
    info = folders.dryrun(echo_app(workspace=Workspace({str(tmp_path / "src"): ""})), "memory", cfg)
    backend(folders).refuses = BackendError("no such queue")
    with pytest.raises(BackendError):
        folders.schedule(info)
    assert (tmp_path / "job" / "a.py").exists()


def test_a_refused_job_leaves_no_git_behind(tmp_path, monkeypatch):
    """After a failure, the process that inspects the code is waited for, and its pipe is closed."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.chdir(tmp_path)
    before = set(os.listdir("/proc/self/fd"))
    with Runner("test", {"memory": MemoryScheduler}) as runner:
        backend(runner).refuses = BackendError("no")
        with pytest.raises(BackendError):
            runner.run(echo_app(), "memory")
    assert set(os.listdir("/proc/self/fd")) <= before
