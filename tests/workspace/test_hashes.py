"""Hashes of files are cached while the files are unchanged."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from tests.workspace.trees import make
from torchx.settings import torchx_home
from torchx.workspace import hashes as module
from torchx.workspace.content import Entry, entries, sha256_of
from torchx.workspace.hashes import FileHashes


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make(tmp_path / "src", {"a": "a", "lib/b": "b"})


@pytest.fixture(autouse=True)
def _later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that the files were written a minute ago: their change time cannot be set back."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 60)


def files(source: Path) -> list[Entry]:
    return [e for e in entries(str(source)) if e.kind == "file"]


def look(source: Path, monkeypatch: pytest.MonkeyPatch, key: str = "k") -> tuple[list[str], list[str]]:
    """The hashes, and the files that were read for them."""
    read = []

    def reading(entry: Entry) -> str:
        read.append(entry.path)
        return sha256_of(entry)

    with monkeypatch.context() as patch, FileHashes(key) as found:
        patch.setattr(module, "sha256_of", reading)
        return [found.of(entry) for entry in files(source)], read


def test_an_unchanged_file_is_read_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run uses the cache; another workspace has its own cache."""
    expected = [sha256_of(e) for e in files(source)]
    assert look(source, monkeypatch) == (expected, ["a", "lib/b"])
    assert look(source, monkeypatch) == (expected, [])
    assert look(source, monkeypatch, "other") == (expected, ["a", "lib/b"])


@pytest.mark.parametrize("how", ["in place", "same size and time", "replaced"])
def test_a_changed_file_is_read_again(source: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A change is detected even if size and modification time are the same."""
    os.utime(source / "a", (1e9, 1e9))
    look(source, monkeypatch)
    if how == "in place":
        (source / "a").write_text("aa")
    elif how == "same size and time":
        before = os.stat(source / "a").st_ctime_ns
        (source / "a").write_text("A")
        while os.stat(source / "a").st_ctime_ns == before:  # within one tick
            os.utime(source / "a", (1e9, 1e9))
        os.utime(source / "a", (1e9, 1e9))
    else:
        make(source, {"new": "A"})
        os.utime(source / "new", (1e9, 1e9))
        (source / "new").rename(source / "a")
    found, read = look(source, monkeypatch)
    assert read == ["a"]
    assert found == [sha256_of(e) for e in files(source)]


def test_a_file_that_was_just_written_is_not_trusted(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a tick of the file system's clock, a file may change without a trace, so it is not cached."""
    monkeypatch.setattr(module, "TICK_S", 120)
    look(source, monkeypatch)
    assert look(source, monkeypatch)[1] == ["a", "lib/b"]


def test_a_file_that_changes_while_it_is_read_is_not_trusted(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash of a file that changes while it is read is not cached."""

    def writing(entry: Entry) -> str:
        (source / entry.path).write_text("changed")
        return "0" * 64

    with monkeypatch.context() as patch, FileHashes("k") as found:
        patch.setattr(module, "sha256_of", writing)
        found.of(files(source)[0])
    assert look(source, monkeypatch)[1] == ["a", "lib/b"]


def test_files_that_are_gone_are_forgotten(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache contains the hashes that the last run used, and no draft is left."""
    look(source, monkeypatch)
    (source / "a").unlink()
    look(source, monkeypatch)
    [path] = glob.glob(torchx_home("cache", "workspaces", "*"))
    with open(path) as f:
        assert len(json.load(f)) == 1


@pytest.mark.parametrize(
    "text", ["", "junk", "[[1, 2, 3]]", '[["a", 2, 3, 4, 5, "f"]]', "[1]", "[[Infinity, 1]]", "3", "\0" * 99]
)
def test_a_damaged_cache(source: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A damaged cache counts as missing, and the next run writes a valid one."""
    look(source, monkeypatch)
    [path] = glob.glob(torchx_home("cache", "workspaces", "*"))
    with open(path, "w") as f:
        f.write(text)
    assert look(source, monkeypatch)[1] == ["a", "lib/b"]
    assert look(source, monkeypatch)[1] == []


def test_a_home_that_cannot_be_written(source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a cache the files are read again."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "file"))
    assert look(source, monkeypatch)[1] == ["a", "lib/b"]
    assert look(source, monkeypatch)[1] == ["a", "lib/b"]


def test_a_file_that_is_not_here(source: Path) -> None:
    """A file of another file system is always read, because it may have changed."""
    entry = Entry("x", "file", 0o644, size=1, opener=lambda: open(source / "a", "rb"))  # noqa: SIM115  # as a workspace opens it; it is closed there
    with FileHashes("k") as found:
        first = found.of(entry)
        (source / "a").write_text("b")
        second = found.of(entry)
    assert [first, second] == [hashlib.sha256(text).hexdigest() for text in (b"a", b"b")]
    assert glob.glob(torchx_home("cache", "workspaces", "*")) == []
