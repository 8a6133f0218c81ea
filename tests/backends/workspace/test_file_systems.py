"""Job folders on real file systems: ones whose files share blocks (btrfs, XFS), a full one, and as a user who is not root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.docker import engine
from torchx.errors import ConfigError
from torchx.specs import Role, Workspace
from torchx.workspace.dir_workspace import DirWorkspaceMixin
from torchx.workspace.files import MARKER
from torchx.workspace.snapshots import SnapshotStore, can_clone

PACKAGES = {"mkfs.btrfs": "btrfs-progs", "mkfs.xfs": "xfsprogs", "mkfs.ext4": "e2fsprogs"}
MB = 1 << 20
BIG = 64 * MB


def program(name: str) -> str:
    """The path of a program; its package is installed when it is missing."""
    try:
        engine.install(name, PACKAGES[name])
    except engine.Unavailable as e:
        pytest.skip(str(e))
    return shutil.which(name, path=engine.PATH) or pytest.skip(f"`{name}` cannot be installed")


def mounted(tmp: Path, make: str, size: int) -> Iterator[Path]:
    """A new file system in a file, mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    image, where = tmp / "image", tmp / "mnt"
    with image.open("wb") as f:
        f.truncate(size)
    where.mkdir()
    subprocess.run([program(make), "-q", str(image)], check=True, capture_output=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(where)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"the kernel mounts none of these: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


@pytest.fixture(params=["mkfs.btrfs", "mkfs.xfs"])
def sharing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A mounted file system whose files can share blocks."""
    yield from mounted(tmp_path, request.param, 512 * MB)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "lib").mkdir(parents=True)
    (folder / "train.py").write_text("train")
    (folder / "lib" / "run.sh").write_text("#!/bin/sh")
    (folder / "lib" / "run.sh").chmod(0o755)
    with (folder / "big.bin").open("wb") as f:
        f.write(os.urandom(BIG))
    return folder


def submit(source: Path, job_dir: Path, **cfg: bool) -> Path:
    role = Role("a", "base", entrypoint="x", workspace=Workspace({str(source): ""}))
    DirWorkspaceMixin().build_workspaces([role], {"job_dir": str(job_dir), **cfg})
    return Path(role.image)


def used(folder: Path) -> int:
    """Bytes that the file system has given out."""
    os.sync()
    stat = os.statvfs(folder)
    return (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def test_an_unchanged_workspace_costs_no_second_copy(sharing: Path, source: Path) -> None:
    """The second and third job's folders share the blocks of the first; each may write to its files, and nobody else sees it."""
    assert can_clone(str(sharing))
    first = submit(source, sharing / "jobs" / "1")
    before = used(sharing)
    second, third = submit(source, sharing / "jobs" / "2"), submit(source, sharing / "jobs" / "3")
    assert used(sharing) - before < BIG / 8
    with (second / "big.bin").open("r+b") as f:
        f.write(b"the job was here")
    (second / "train.py").write_text("changed by the job")
    for other in (first, third, submit(source, sharing / "jobs" / "4")):
        assert (other / "train.py").read_text() == "train"
        assert (other / "big.bin").read_bytes() == (source / "big.bin").read_bytes()
        assert os.stat(other / "lib" / "run.sh").st_mode & 0o777 == 0o755
        assert os.stat(other / "train.py").st_mtime == os.stat(source / "train.py").st_mtime


def test_the_snapshot_goes_after_the_last_job(sharing: Path, source: Path) -> None:
    """When the folders are gone, and nobody has used the code for a day, its space is free again."""
    jobs = sharing / "jobs"
    folders = [submit(source, jobs / str(n)) for n in range(2)]
    store = SnapshotStore(str(jobs))
    for folder in folders:
        store.sweep(unused_for_s=-60)
        assert len(os.listdir(store.path)) == 1
        shutil.rmtree(folder)
    store.sweep(unused_for_s=-60)
    assert os.listdir(store.path) == []


def test_a_full_disk(tmp_path: Path, source: Path) -> None:
    """One line that says so, and the half folder is gone: the next job may fit."""
    for disk in mounted(tmp_path, "mkfs.ext4", 48 * MB):
        with pytest.raises(ConfigError, match="No space left on device"):
            submit(source, disk / "job")
        assert sorted(os.listdir(disk)) == ["lost+found"]
        (source / "big.bin").unlink()
        assert (submit(source, disk / "job") / "train.py").read_text() == "train"


_AS_USER = """
import os, sys
# Now, for the interpreter's own folder may be closed to others.
import contextlib, errno, fcntl, hashlib, json, logging, encodings.idna
from torchx.specs import Role, Workspace
from torchx.workspace import content, copies, files, hashes, snapshots
from torchx.workspace.dir_workspace import DirWorkspaceMixin

source, home = sys.argv[1:]
os.setgid(65534); os.setgroups([]); os.setuid(65534)
os.environ["HOME"] = os.environ["TORCHX_HOME"] = home

def submit(workspace, name):
    role = Role("a", "base", entrypoint="x", workspace=Workspace({workspace: ""}))
    DirWorkspaceMixin().build_workspaces([role], {"job_dir": f"{home}/jobs/{name}", "share_code": True})
    return role.image

submit(source, "1")
image = submit(source, "2")
try:
    open(f"{image}/train.py", "a")
except PermissionError:
    print("refused")
os.replace(f"{image}/lib/run.sh", f"{image}/moved")
os.makedirs(f"{home}/ws")
os.close(os.open(f"{home}/ws/secret.key", os.O_CREAT | os.O_WRONLY, 0))
try:
    submit(f"{home}/ws", "3")
except Exception as e:
    print(type(e).__name__, e)
"""


def test_shared_code_as_a_user(source: Path) -> None:
    """Who is not root shares files read-only: a job cannot write to them, may move them; an unreadable file is named."""
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    home = Path("/var/tmp") / f"torchx-test-{os.getpid()}-{time.time_ns()}"
    home.mkdir()
    try:
        shutil.copytree(source, home / "src")
        for folder, _, files in os.walk(home):
            for name in ("", *files):
                os.chown(os.path.join(folder, name), 65534, 65534)
        argv = [sys.executable, "-c", _AS_USER, str(home / "src"), str(home)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "refused",
            "SpecError workspace file `secret.key` cannot be read: Permission denied",
        ]
        jobs = home / "jobs"
        if not can_clone(str(jobs)):
            assert os.stat(jobs / "1" / "big.bin").st_ino == os.stat(jobs / "2" / "big.bin").st_ino
        assert (jobs / "1" / "lib" / "run.sh").read_text() == "#!/bin/sh"
        assert (jobs / "2" / MARKER).read_text().startswith("sha256:")
        assert not (jobs / "3").exists()
    finally:
        shutil.rmtree(home)
