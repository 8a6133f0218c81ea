"""A workspace comes to the login node as it is, and no more of it than has changed."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.backends.ssh.conftest import Serve
from tests.backends.ssh.sshd import Link
from torchx.errors import BackendError, ConfigError, SpecError
from torchx.schedulers.batch.ssh.remote_workspace import place_workspace
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
from torchx.specs.api import Workspace

SMALL_SYSTEM = [
    "sh",
    "cat",
    "mkdir",
    "ls",
    "cp",
    "mv",
    "rm",
    "touch",
    "find",
    "sed",
    "tail",
    "head",
    "wc",
    "awk",
    "sleep",
]
SMALL_SYSTEM += ["tar", "gzip", "env", "dd", "chmod"]
ODD_NAMES = [
    "it's",
    "a b  c ",
    "-rf",
    "$HOME",
    "*",
    "back\\slash",
    "ü",
    "new\nline",
    "日" * 50,
    os.fsdecode(b"\xff\xfe"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Code with what is hard to copy: odd names, links, modes, empty folders, an ignore file."""
    root = tmp_path / "my project's"
    (root / "pkg" / "empty").mkdir(parents=True)
    (root / "train.py").write_text("print('v1')\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    for name in ODD_NAMES:
        (root / "pkg" / name).write_text(name.encode("utf-8", "replace").decode())
    (root / "link").symlink_to("pkg")
    (root / "data.bin").write_bytes(os.urandom(3 << 20))
    (root / "secret.txt").write_text("not to be sent")
    (root / ".torchxignore").write_text("secret.txt\n")
    return root


def tree(root: Path) -> dict[str, object]:
    """What is below a folder: path to content and mode, or to the destination of a link."""
    found: dict[str, object] = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = Path(folder) / name
            key = str(path.relative_to(root))
            if path.is_symlink():
                found[key] = os.readlink(path)
            elif path.is_dir():
                found[key] = "folder"
            else:
                found[key] = (path.read_bytes(), path.stat().st_mode & 0o777)
    return found


def expected(project: Path) -> dict[str, object]:
    found = tree(project)
    del found["secret.txt"]
    return found


@pytest.mark.parametrize("way", ["rsync", "tar"])
def test_it_arrives_as_it_is(way: str, serve: Serve, project: Path, there: Path, tmp_path: Path) -> None:
    """By rsync, and by tar where the login node has no rsync; again only when it has changed, and then by its own copy."""
    serve("login", env=f"PATH={_limited(tmp_path)}" if way == "tar" else "")
    runner = SSHCommandRunner("login")
    first = place_workspace(runner, str(project), str(there / "job's 1"))
    assert first.sent == way
    assert tree(there / "job's 1") == expected(project)
    again = place_workspace(runner, str(project), str(there / "job 2"))
    assert again.sent == "" and again.hash == first.hash
    # A job may write into its own copy; the next one has the workspace as it was.
    (there / "job 2" / "train.py").write_text("changed by a job")
    (project / "train.py").write_text("print('v2')\n")
    (project / "run.sh").unlink()
    third = place_workspace(runner, str(project), str(there / "job 3"))
    assert third.sent == way
    assert tree(there / "job 3") == expected(project)
    assert tree(there / "job's 1")["train.py"] == (b"print('v1')\n", 0o644)
    left = [name for name in os.listdir(there / ".torchx" / "workspaces") if name.startswith("part")]
    assert left == []


def test_only_changes_are_sent(link: Link, project: Path, there: Path) -> None:
    """A file of 3 MB that has not changed does not travel again; nor does any, when there is no change at all."""
    runner = SSHCommandRunner("far")
    place_workspace(runner, str(project), str(there / "job1"))
    first = link.carried
    assert first > 3 << 20
    (project / "train.py").write_text("print('v2')\n")
    assert place_workspace(runner, str(project), str(there / "job2")).sent == "rsync"
    second = link.carried - first
    assert second < 100_000
    place_workspace(runner, str(project), str(there / "job3"))
    assert link.carried - first - second < 20_000
    assert tree(there / "job2") == tree(there / "job3") == expected(project)


def test_the_same_size_and_time_is_no_proof(runner: SSHCommandRunner, project: Path, there: Path) -> None:
    """A file whose content alone has changed is sent."""
    file = project / "train.py"
    place_workspace(runner, str(project), str(there / "job1"))
    times = file.stat()
    file.write_text("print('v7')\n")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    place_workspace(runner, str(project), str(there / "job2"))
    assert (there / "job2" / "train.py").read_text() == "print('v7')\n"


def test_without_rsync_here(
    runner: SSHCommandRunner, project: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tar is used, which Python has."""
    found = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, *args, **kw: None if name == "rsync" else found(name, *args, **kw)
    )
    assert place_workspace(runner, str(project), str(there / "job")).sent == "tar"
    assert tree(there / "job") == expected(project)


def test_a_login_shell_that_talks(serve: Serve, project: Path, there: Path) -> None:
    """Rsync cannot work with it: tar does."""
    serve("login", 'ForceCommand echo Welcome to the cluster; sh -c "$SSH_ORIGINAL_COMMAND"')
    assert place_workspace(SSHCommandRunner("login"), str(project), str(there / "job")).sent == "tar"
    assert tree(there / "job") == expected(project)


@pytest.mark.parametrize("way", ["rsync", "tar"])
@pytest.mark.parametrize("after_s", [0.1, 0.5, 1.0, 2.0])
def test_the_connection_is_cut_on_the_way(
    way: str, after_s: float, serve: Serve, project: Path, there: Path, tmp_path: Path
) -> None:
    """It arrives whole all the same."""
    login = serve("login", env=f"PATH={_limited(tmp_path)}" if way == "tar" else "")
    runner = SSHCommandRunner("login")
    runner.run(["true"])
    timer = threading.Timer(after_s, login.cut)
    timer.start()
    place_workspace(runner, str(project), str(there / "job"))
    timer.join()
    assert tree(there / "job") == expected(project)


def test_several_projects(runner: SSHCommandRunner, project: Path, there: Path, tmp_path: Path) -> None:
    """Each at its place."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "util.py").write_text("x = 1\n")
    place_workspace(runner, Workspace({str(project): "", str(tmp_path / "lib"): "third/lib"}), str(there / "job"))
    assert (there / "job" / "third" / "lib" / "util.py").read_text() == "x = 1\n"
    assert (there / "job" / "train.py").exists()


def test_a_place_that_is_taken(runner: SSHCommandRunner, project: Path, there: Path) -> None:
    """What lies there is somebody's; a workspace that is not there is told before anything is sent."""
    (there / "job").mkdir()
    (there / "job" / "results").touch()
    with pytest.raises(ConfigError, match=r"job_dir `.*/job` is not empty on `login`"):
        place_workspace(runner, str(project), str(there / "job"))
    assert os.listdir(there / "job") == ["results"]
    with pytest.raises(BackendError, match=r"`/proc/no/job` cannot be filled on `login`: .*/proc/no"):
        place_workspace(runner, str(project), "/proc/no/job")
    with pytest.raises(SpecError):
        place_workspace(runner, str(project / "no"), str(there / "x"))


def _limited(tmp_path: Path) -> str:
    """A PATH as of a small system: the shell's tools, and no rsync."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in SMALL_SYSTEM:
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    return str(tools)
