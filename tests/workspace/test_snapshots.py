"""Snapshots of workspaces that many jobs share."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace.trees import make, tree
from torchx.workspace import snapshots
from torchx.workspace.content import content_hash, entries
from torchx.workspace.copies import copy_file
from torchx.workspace.files import MARKER
from torchx.workspace.hashes import FileHashes
from torchx.workspace.snapshots import SnapshotStore

FILES = {"train.py": "train", "lib/run.sh": "run", "lib/link": "-> run.sh", "empty/": ""}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = make(tmp_path / "src", FILES)
    (folder / "lib" / "run.sh").chmod(0o755)
    return folder


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    (tmp_path / "jobs").mkdir()
    found = SnapshotStore(str(tmp_path / "jobs"))
    assert found.usable()
    return found


def place(store: SnapshotStore, source: Path, job: str, *, shared: bool = True) -> Path:
    folder = Path(store.path).parent / job
    folder.mkdir()
    with FileHashes("k") as hashes:
        content = store.place(entries(str(source)), str(folder), hashes, shared=shared)
    assert content == content_hash(entries(str(source)))
    return folder


def kept(store: SnapshotStore) -> list[str]:
    return sorted(os.listdir(store.path))


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "cloned"])
def test_the_same_content_is_stored_once(store: SnapshotStore, source: Path, shared: bool) -> None:
    """Two jobs of one workspace share a snapshot; a changed file gives another one; each job has its files."""
    first, second = place(store, source, "1", shared=shared), place(store, source, "2", shared=shared)
    assert len(kept(store)) == 1
    (source / "train.py").write_text("changed")
    third = place(store, source, "3", shared=shared)
    assert len(kept(store)) == 2
    found = [tree(folder) for folder in (first, second, third)]
    markers = [t.pop(MARKER) for t in found]
    assert found == [FILES, FILES, {**FILES, "train.py": "changed"}]
    assert markers[0] == markers[1] != markers[2]
    assert markers[2] == f"{content_hash(entries(str(source)))}\n"


def test_shared_files_cost_nothing_and_are_read_only(store: SnapshotStore, source: Path) -> None:
    """The job's files are those of the snapshot, and read-only; its folders are its own."""
    one, two = place(store, source, "1"), place(store, source, "2")
    stats = [os.stat(folder / "lib" / "run.sh") for folder in (one, two)]
    assert stats[0].st_ino == stats[1].st_ino
    assert [stat.S_IMODE(s.st_mode) for s in stats] == [0o555, 0o555]
    (one / "train.py").unlink()
    (one / "lib" / "new").write_text("a job may add, remove and replace files")
    assert tree(two) == {**FILES, MARKER: (two / MARKER).read_text()}


def test_cloned_files_may_be_written_to(store: SnapshotStore, source: Path) -> None:
    """Neither another job nor the store sees a change; modes and times are those of the source."""
    os.utime(source / "train.py", (1e9, 1e9))
    one = place(store, source, "1", shared=False)
    with open(one / "train.py", "r+") as f:
        f.write("JOB 1")
    two = place(store, source, "2", shared=False)
    assert (two / "train.py").read_text() == "train"
    assert stat.S_IMODE(os.stat(two / "lib" / "run.sh").st_mode) == 0o755
    assert os.stat(two / "train.py").st_mtime == 1e9


@pytest.mark.parametrize("damage", ["in place", "mode", "gone", "lease"])
def test_a_snapshot_that_was_tampered_with_is_not_used(store: SnapshotStore, source: Path, damage: str) -> None:
    """A user with enough rights can write anywhere: a modified snapshot is replaced."""
    place(store, source, "1")
    [name] = kept(store)
    victim = os.path.join(store.path, name, "files", "train.py")
    if damage == "in place":
        os.chmod(victim, 0o644)
        with open(victim, "w") as f:
            f.write("wrong")
        os.chmod(victim, 0o444)
    elif damage == "mode":
        os.chmod(victim, 0o644)
    elif damage == "gone":
        os.unlink(victim)
    else:
        os.unlink(os.path.join(store.path, name, "lease"))
    two = place(store, source, "2")
    assert (two / "train.py").read_text() == "train"
    assert kept(store) == [name]


def test_a_file_that_changes_between_hash_and_copy(
    store: SnapshotStore, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot is named after its contents, and the job has the hash of its files."""

    def writing(entry: object, path: str, hashes: FileHashes | None = None) -> str:
        (source / "train.py").write_text("later")
        return copy_file(entry, path, hashes)  # type: ignore[arg-type]  # an Entry

    monkeypatch.setattr(snapshots, "copy_file", writing)
    folder = Path(store.path).parent / "1"
    folder.mkdir()
    with FileHashes("k") as hashes:
        content = store.place(entries(str(source)), str(folder), hashes, shared=True)
    assert (folder / "train.py").read_text() == "later"
    assert content == (folder / MARKER).read_text().strip()
    assert kept(store) == [content.replace(":", "-")]


def test_a_snapshot_goes_when_no_job_folder_needs_it(store: SnapshotStore, source: Path) -> None:
    """A snapshot goes when its job folders are gone, however they went: at once on request, else after a day."""
    one, two = place(store, source, "1"), place(store, source, "2")
    for folder in (one, two):
        store.sweep(unused_for_s=-60)
        assert len(kept(store)) == 1
        subprocess.run(["rm", "-r", str(folder)], check=True)
    store.sweep()
    assert len(kept(store)) == 1
    store.sweep(unused_for_s=-60)
    assert kept(store) == []


def test_a_new_submission_sweeps(store: SnapshotStore, source: Path) -> None:
    """Long unused snapshots, and drafts of killed processes, are removed without any cleanup command."""
    subprocess.run(["rm", "-r", str(place(store, source, "1"))], check=True)
    [old] = kept(store)
    make(Path(store.path), {".draft-host-1-x/files/a": "a", ".draft-host-2-y/": ""})
    for path in (f"{store.path}/{old}/lease", f"{store.path}/.draft-host-1-x"):
        os.utime(path, (1e9, 1e9))
    (source / "train.py").write_text("changed")
    place(store, source, "2")
    assert len(kept(store)) == 2
    assert ".draft-host-2-y" in kept(store)  # somebody may still be at it
    assert old not in kept(store)


def test_a_draft_is_its_makers_while_that_lives(store: SnapshotStore) -> None:
    """A draft of a live process stays, however old; one of an ended process goes; one of another machine goes by age."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    host = os.uname().nodename
    ours, theirs, far = (f".draft-{name}-x" for name in (f"{host}-{os.getpid()}", f"{host}-{ended.pid}", "far-1"))
    make(Path(store.path), {f"{ours}/": "", f"{theirs}/": "", f"{far}/": ""})
    store.sweep(unused_for_s=-60)
    assert kept(store) == [ours]


@pytest.mark.parametrize("at", ["lease", "files/lib/run.sh"])
def test_a_snapshot_that_is_removed_under_our_hands(
    store: SnapshotStore, source: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """If another process removes the snapshot before our last link, it is created again."""
    place(store, source, "1")
    real, left = os.link, [2]

    def link(source_path: str, path: str) -> None:
        if left[0] and source_path.endswith(at):
            left[0] -= 1
            subprocess.run(["rm", "-rf", source_path.removesuffix(at)], check=True)
        real(source_path, path)

    monkeypatch.setattr(os, "link", link)
    assert tree(place(store, source, "2"))["train.py"] == "train"
    assert left == [0]


def test_a_snapshot_that_others_use_since_we_looked(
    store: SnapshotStore, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that is used again in the meantime stays: the remover checks twice."""
    real, jobs = os.rename, iter(("2", "3"))

    def rename(fro: str, to: str) -> None:
        if ".trash" in to and (job := next(jobs, "")):
            place(store, source, job)
        real(fro, to)

    def lease(path: Path) -> int:
        return os.stat(path).st_ino

    monkeypatch.setattr(os, "rename", rename)
    first = place(store, source, "1")
    [kept_one] = kept(store)
    assert lease(first / MARKER) == lease(first.parent / "2" / MARKER) == lease(Path(store.path, kept_one, "lease"))
    for job in ("1", "2"):
        subprocess.run(["rm", "-rf", first.parent / job], check=True)
    store.sweep(unused_for_s=-60)
    assert lease(first.parent / "3" / MARKER) == lease(Path(store.path, kept_one, "lease"))
    assert kept(store) == [kept_one]


def test_as_many_jobs_as_there_are_links(store: SnapshotStore, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a file has the maximum number of links, the job gets a read-only copy."""
    real = os.link

    def link(source_path: str, path: str) -> None:
        if source_path.endswith("train.py"):
            raise OSError(31, "Too many links")
        real(source_path, path)

    monkeypatch.setattr(os, "link", link)
    folder = place(store, source, "1")
    found = os.stat(folder / "train.py")
    assert (found.st_nlink, stat.S_IMODE(found.st_mode)) == (1, 0o444)


def test_a_store_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    """A folder that others may write to, or a link to one, is not trusted as a store, because it contains code to run."""
    store = SnapshotStore(str(tmp_path))
    os.mkdir(store.path)
    os.chmod(store.path, 0o777)
    assert not store.usable()
    os.rmdir(store.path)
    (tmp_path / "theirs").mkdir()
    os.symlink("theirs", store.path)
    assert not store.usable()
    os.unlink(store.path)
    assert store.usable()
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o700
    assert not SnapshotStore(str(tmp_path / "nowhere")).usable()


_SUBMIT = """
import os, sys
from torchx.workspace.content import entries
from torchx.workspace.hashes import FileHashes
from torchx.workspace.snapshots import SnapshotStore
source, jobs, first = sys.argv[1:]
store = SnapshotStore(jobs)
assert store.usable()
for i in range(5):
    target = os.path.join(jobs, f"{first}-{i}")
    os.mkdir(target)
    with FileHashes("k") as hashes:
        store.place(entries(source), target, hashes, shared=True)
    store.sweep(unused_for_s=-60)
"""


@pytest.mark.timeout(600)
def test_many_submitters_at_once(source: Path, tmp_path: Path) -> None:
    """Eight processes that also sweep: every job folder is complete, there is one snapshot, and no draft is left."""
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    argv = [sys.executable, "-c", _SUBMIT, str(source), str(jobs)]
    running = [subprocess.Popen([*argv, str(n)], stderr=subprocess.PIPE, text=True) for n in range(8)]
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * 8, said
    folders = [folder for folder in jobs.iterdir() if not folder.name.startswith(".")]
    assert len(folders) == 40
    for folder in folders:
        found = tree(folder)
        assert found.pop(MARKER).startswith("sha256:")
        assert found == FILES
    [name] = kept(SnapshotStore(str(jobs)))
    assert name.startswith("sha256-")
