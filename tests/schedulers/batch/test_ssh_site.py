"""The options that select a login node, and the upload of workspaces."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.batch.fake_ssh import FakeSsh
from torchx.errors import ConfigError
from torchx.schedulers.batch.sites import site_of
from torchx.schedulers.batch.ssh import master as ssh_master
from torchx.schedulers.batch.ssh import remote_workspace
from torchx.schedulers.batch.ssh.remote_workspace import place_workspace
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
from torchx.schedulers.batch.ssh.site_workspace import SiteWorkspaceMixin
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs.api import AppDef, AppDryRunInfo, Role, Workspace
from torchx.specs.images import workspace_hashes
from torchx.util.records import replace
from torchx.workspace.content import Entry, content_hash, entries


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSsh]:
    made = FakeSsh(tmp_path / "fake")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("HOME", str(made.there))
    monkeypatch.setenv("TORCHX_HOME", str(made.there / ".torchx"))
    monkeypatch.setattr(time, "sleep", lambda s: None)
    yield made
    ssh_master.end_all()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "pkg" / "empty").mkdir(parents=True)
    (root / "train.py").write_text("1")
    (root / "run.sh").write_text("#!/bin/sh")
    (root / "run.sh").chmod(0o755)
    (root / "pkg" / "it's -n $x").write_text("odd")
    (root / "link").symlink_to("pkg")
    return root


def tree(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): os.readlink(path)
        if path.is_symlink()
        else (path.stat().st_mode & 0o700, path.read_bytes() if path.is_file() else None)
        for path in sorted(root.rglob("*"))
    }


def test_options() -> None:
    """Both options are optional; a site knows its name."""
    opts = SlurmScheduler("test").run_opts()
    assert [(name, opt.is_required) for name, opt in opts if name.startswith("ssh")] == [
        ("ssh", False),
        ("ssh_dir", False),
    ]
    assert site_of({"ssh": "me@login", "ssh_dir": "/scratch/me"}).name == "me@login"
    with pytest.raises(ConfigError):
        site_of({"ssh": "-x"})


@pytest.mark.parametrize("way", ["rsync", "tar"])
def test_a_workspace_and_what_changed(way: str, fake: FakeSsh, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied exactly, sent again only after changes, and each job has its own copy."""
    found = shutil.which
    if way == "tar":
        monkeypatch.setattr(shutil, "which", lambda name, *a, **kw: None if name == "rsync" else found(name, *a, **kw))
    elif not found("rsync"):
        pytest.skip("rsync is not installed; tests/backends/ssh install it")
    fake.quiet()
    runner = SSHCommandRunner("login")
    sent = []
    for i, text in enumerate(["1", "1", "2"]):
        (project / "train.py").write_text(text)
        target = fake.there / f"job {i}"
        sent.append(place_workspace(runner, str(project), str(target)).sent)
        assert tree(target) == tree(project)
        (target / "train.py").write_text("changed by a job")
    assert sent == [way, "", way]
    assert not list((fake.there / ".torchx" / "workspaces").glob("part.*"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_workspace_outlives_lost_connections(when: str, fake: FakeSsh, project: Path) -> None:
    """It is placed once and completely."""
    runner = SSHCommandRunner("login")
    runner.run(["true"])
    fake.loses(when, 3)
    place_workspace(runner, Workspace({str(project): "", str(project / "pkg"): "again"}), str(fake.there / "job"))
    assert tree(fake.there / "job")["again/it's -n $x"] == tree(project)["pkg/it's -n $x"]


def test_files_that_their_owner_may_not_read(fake: FakeSsh, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group may: the owner of a copy reads it, but the hash is that of the workspace, which is sent once."""

    def of_a_colleague(workspace: str) -> list[Entry]:
        return [replace(e, mode=0o044) if e.path == "train.py" else e for e in entries(workspace)]

    monkeypatch.setattr(remote_workspace, "entries", of_a_colleague)
    runner = SSHCommandRunner("login")
    placed = [place_workspace(runner, str(project), str(fake.there / f"job {i}")) for i in range(2)]
    assert [one.hash for one in placed] == [content_hash(of_a_colleague(str(project)))] * 2
    assert placed[0].sent and not placed[1].sent
    assert (fake.there / "job 1" / "train.py").stat().st_mode & 0o777 == 0o444


def test_relative_workspaces(fake: FakeSsh, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`.` is another one in each folder, and the same as its absolute path: the next copy builds upon the right one."""
    runner = SSHCommandRunner("login")
    for i, folder in enumerate((project, project / "pkg")):
        monkeypatch.chdir(folder)
        for j, name in enumerate((".", str(folder))):
            place_workspace(runner, Workspace({name: ""}), str(fake.there / f"job {i}.{j}"))
            assert len([*(fake.there / ".torchx" / "workspaces").glob("latest.*")]) == i + 1


def test_a_note_that_was_cut_short(fake: FakeSsh, project: Path) -> None:
    """A full disk leaves the name of the previous workspace empty: the next one is sent as if there was none."""
    runner = SSHCommandRunner("login")
    place_workspace(runner, str(project), str(fake.there / "one"))
    (note,) = (fake.there / ".torchx" / "workspaces").glob("latest.*")
    note.write_text("")
    place_workspace(runner, str(project), str(fake.there / "two"))
    assert tree(fake.there / "two") == tree(project)


def test_a_folder_that_is_taken(fake: FakeSsh, project: Path) -> None:
    """A folder with content is rejected."""
    with pytest.raises(ConfigError, match="is not empty on `login`"):
        place_workspace(SSHCommandRunner("login"), str(project), str(fake.there.parent))


def roles(project: Path) -> list[Role]:
    one, other = (Workspace({str(folder): ""}) for folder in (project, project / "pkg"))
    return [
        Role("a", "", workspace=one),
        Role("b", "", workspace=one),
        Role("c", "", workspace=other),
        Role("d", "as-it-is"),
    ]


def test_roles_with_workspaces(fake: FakeSsh, project: Path) -> None:
    """Each distinct workspace has its own folder and hash; a role without one keeps its image."""
    made = roles(project)
    SiteWorkspaceMixin().build_workspaces(made, {"ssh": "login"})
    images = [role.image for role in made]
    assert images[0] == images[1] != images[2]
    assert all(image.startswith("~/.torchx/code/") for image in images[:3])
    assert images[3] == "as-it-is"
    hashes = workspace_hashes(made)
    assert list(hashes) == ["a", "b", "c"]
    assert hashes["a"] == hashes["b"] != hashes["c"]
    local = SiteWorkspaceMixin()
    copies = roles(project)[:1]
    local.build_workspaces(copies, {"job_dir": str(project.parent / "local")})
    assert workspace_hashes(copies)["a"] == hashes["a"]


class OnASite(SiteWorkspaceMixin):
    """The workspace part of a scheduler."""

    def dry(self, made: list[Role]) -> AppDryRunInfo:
        self.build_workspaces(made, {"ssh": "login"})
        info = AppDryRunInfo("request", str)
        info._app = AppDef("job", made)
        return info

    def bring(self, info: AppDryRunInfo) -> list[str]:
        brought: dict[str, Any] = {}
        self._upload(info, site_of({"ssh": "login"}), brought)
        return [*brought]


def test_a_dry_run_sends_nothing(fake: FakeSsh, project: Path) -> None:
    """It only names folders, without connecting; the submission finds torchx's folder, and sends each workspace once."""
    site = OnASite()
    info = site.dry(roles(project))
    info.request = {"dirs": [f"cd {role.image}" for role in info._app.roles[:3]], "done": (info._app.roles[0].image,)}
    assert fake.calls() == []
    brought = site.bring(info)
    images = [role.image for role in info._app.roles[:3]]
    assert brought == list(dict.fromkeys(images))
    assert all(image.startswith(str(fake.there / ".torchx" / "code")) for image in images)
    assert info.request == {"dirs": [f"cd {image}" for image in images], "done": (images[0],)}
    assert tree(Path(images[0])) == tree(project)
    assert os.path.exists(f"{images[2]}/it's -n $x")
    assert info.submission.workspace_hashes == {}
    assert site.bring(info) == []  # it is there


def test_what_was_only_dried_is_forgotten(fake: FakeSsh, project: Path) -> None:
    """A program may make any number of dry runs."""
    site = OnASite()
    info = site.dry(roles(project))
    site.discard_workspaces(info._app.roles)
    assert site._named_folders == {}
    assert site.bring(info) == []


def test_a_workspace_that_changes_after_the_dry_run(fake: FakeSsh, project: Path) -> None:
    """The job gets the current content at submission, and the record its hash."""
    site = OnASite()
    info = site.dry(roles(project))
    before = workspace_hashes(info._app.roles)
    (project / "train.py").write_text("2")
    image = site.bring(info)[0]
    assert Path(image, "train.py").read_text() == "2"
    after = workspace_hashes(info._app.roles)
    assert after["a"] == after["b"] == place_workspace(SSHCommandRunner("login"), str(project), f"{image}-2").hash
    assert after["a"] != before["a"]
    assert after["c"] == before["c"]
    assert info.submission.workspace_hashes == {"a": after["a"], "b": after["b"]}


def test_a_folder_of_ones_own_needs_no_connection(fake: FakeSsh, project: Path) -> None:
    """With an absolute `ssh_dir` a dry run does not connect."""
    made = roles(project)[:1]
    SiteWorkspaceMixin().build_workspaces(made, {"ssh": "login", "ssh_dir": "/scratch/me"})
    assert made[0].image.startswith("/scratch/me/code/")
    assert fake.calls() == []


def test_a_job_dir(fake: FakeSsh, project: Path) -> None:
    """The user's own choice must be an absolute path."""
    made = roles(project)
    SiteWorkspaceMixin().build_workspaces(made, {"ssh": "login", "job_dir": f"{fake.there}/mine"})
    assert [role.image for role in made[:3]] == [f"{fake.there}/mine"] * 2 + [f"{fake.there}/mine.c"]
    with pytest.raises(ConfigError, match="job_dir `mine` is relative"):
        SiteWorkspaceMixin().build_workspaces(roles(project), {"ssh": "login", "job_dir": "mine"})


def test_without_ssh_nothing_is_sent(fake: FakeSsh, project: Path, tmp_path: Path) -> None:
    """The workspace is copied on this machine."""
    made = roles(project)[:1]
    SiteWorkspaceMixin().build_workspaces(made, {"job_dir": str(tmp_path / "job")})
    assert made[0].image == str(tmp_path / "job")
    assert fake.calls() == []


@pytest.mark.parametrize(
    ("said", "line"), [("", "it said nothing"), (" \n\n", "it said nothing"), ("one\n two \n\n", "two"), ("one", "one")]
)
def test_the_last_words_of_a_command(said: str, line: str) -> None:
    """The error quotes the last non-empty line."""
    from torchx.schedulers.kit.commands import last_line

    assert last_line(said) == line
