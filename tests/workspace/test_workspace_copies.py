"""Copies the files of a workspace to a folder."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.workspace.trees import make, tree
from torchx.errors import ConfigError, SpecError
from torchx.specs import Workspace
from torchx.workspace.content import content_hash, entries
from torchx.workspace.copies import copy_tree, merge, remove_tree
from torchx.workspace.hashes import FileHashes

FILES = {"train.py": "train", "lib/a.py": "a", "lib/link": "-> a.py", "empty/": "", "new\nline": "x", "-rf": "y"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = make(tmp_path / "src", FILES)
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (1e9, 1e9))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "out").mkdir()
    return str(tmp_path / "out")


@pytest.fixture(params=["first time", "unchanged"])
def hashes(request: pytest.FixtureRequest, source: Path, monkeypatch: pytest.MonkeyPatch) -> FileHashes:
    """Hashes of files; the second time they are cached, and the kernel copies."""
    found = FileHashes("test")
    monkeypatch.setattr("torchx.workspace.hashes.TICK_S", -1)
    if request.param == "unchanged":
        content_hash(entries(str(source)), found.of)
    return found


def test_a_copy_is_whole(source: Path, target: str, hashes: FileHashes) -> None:
    """Files, links, empty folders, modes and times are copied, and the hash matches the copy."""
    (source / "train.py").chmod(0o755)
    (source / "lib").chmod(0o750)
    files = entries(str(source))
    assert copy_tree(files, target, hashes) == content_hash(files)
    assert tree(target) == FILES
    copy = os.stat(f"{target}/train.py")
    assert (stat.S_IMODE(copy.st_mode), copy.st_mtime) == (0o755, 1e9)
    assert stat.S_IMODE(os.stat(f"{target}/lib").st_mode) == 0o750
    assert content_hash(entries(target)) == content_hash(files)


def test_modes_do_not_depend_on_the_umask(source: Path, target: str) -> None:
    """A readable file stays readable under a private umask; a private one stays private."""
    (source / "train.py").chmod(0o666)
    (source / "-rf").chmod(0o600)
    before = os.umask(0o077)
    try:
        copy_tree(entries(str(source)), target)
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE(os.stat(f"{target}/{name}").st_mode) for name in ("train.py", "-rf")}
    assert modes == {"train.py": 0o666, "-rf": 0o600}


def test_a_copy_is_independent(source: Path, target: str, hashes: FileHashes) -> None:
    """Source and copy do not see each other's writes."""
    copy_tree(entries(str(source)), target, hashes)
    with open(f"{target}/train.py", "r+") as f:
        f.write("TRAIN")
    with open(source / "lib" / "a.py", "r+") as f:
        f.write("A")
    assert (source / "train.py").read_text() == "train"
    with open(f"{target}/lib/a.py") as f:
        assert f.read() == "a"


def test_a_file_that_was_written_to_since_it_was_hashed(source: Path, target: str, hashes: FileHashes) -> None:
    """The returned hash is that of the copy, not of an earlier version."""
    files = entries(str(source))
    (source / "train.py").write_text("TRAIN")
    content = copy_tree(files, target, hashes)
    assert content == content_hash(entries(target))
    with open(f"{target}/train.py") as f:
        assert f.read() == "TRAIN"


@pytest.mark.parametrize("error", [errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.EIO], ids=errno.errorcode.get)
def test_a_kernel_that_cannot_copy(
    source: Path, target: str, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """If the kernel cannot copy between two file systems, we read and write."""

    def refuse(*_: object) -> int:
        raise OSError(error, "no")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    copy_tree(entries(str(source)), target, hashes)
    assert tree(target) == FILES


def test_a_full_disk(source: Path, target: str, hashes: FileHashes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line with the path and the reason."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match=r"cannot be copied to `.*/out/.*`: No space left on device"):
        copy_tree(entries(str(source)), target, hashes)


def test_nothing_is_written_through_a_link(source: Path, target: str, tmp_path: Path) -> None:
    """A link in place of a new file is not followed."""
    os.symlink(tmp_path / "victim", f"{target}/train.py")
    with pytest.raises(ConfigError, match="File exists"):
        copy_tree(entries(str(source)), target)
    assert not (tmp_path / "victim").exists()


def test_a_path_too_long_for_the_target(tmp_path: Path) -> None:
    """A tree may be too deep below a longer path: the error has the reason."""
    whole, rest = divmod(4090 - len(f"{tmp_path}/s"), 101)
    os.makedirs(os.path.join(tmp_path, "s", *["d" * 100] * whole, "d" * max(rest - 1, 1)))
    long = tmp_path / ("t" * 200)
    long.mkdir()
    try:
        with pytest.raises(ConfigError, match="File name too long"):
            copy_tree(entries(str(tmp_path / "s")), str(long))
    finally:
        remove_tree(str(long))
        remove_tree(str(tmp_path / "s"))


def test_an_unreadable_file(source: Path, target: str) -> None:
    """The error names the file."""
    files = entries(str(source))
    (source / "lib" / "a.py").unlink()
    with pytest.raises(SpecError, match=r"`lib/a\.py` cannot be read"):
        copy_tree(files, target)


# -- into a folder that holds something ------------------------------------------------------------


def test_merge_replaces_what_is_in_the_way(source: Path, tmp_path: Path) -> None:
    """Conflicting files, links and folders are replaced; the rest stays; no link is followed."""
    out = make(
        tmp_path / "out",
        {"train.py": "-> ../victim", "lib": "-> ../elsewhere", "-rf/deep/x": "", "keep": "kept", "empty/mine": "m"},
    )
    make(tmp_path, {"elsewhere/a.py": "not ours", "victim": "not ours"})
    merge(Workspace({str(source): ""}), str(out))
    assert tree(out) == {**{k: v for k, v in FILES.items() if k != "empty/"}, "keep": "kept", "empty/mine": "m"}
    assert (tmp_path / "elsewhere" / "a.py").read_text() == (tmp_path / "victim").read_text() == "not ours"


def test_merge_into_the_source_itself(source: Path) -> None:
    """A target below the workspace does not become part of the copy."""
    merge(Workspace({str(source): ""}), str(source / "out"))
    assert tree(source / "out") == FILES


def test_merge_where_nobody_may_write(source: Path, tmp_path: Path) -> None:
    """A file in place of the folder is a one-line error."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be copied to `.*/file/out`"):
        merge(Workspace({str(source): ""}), str(tmp_path / "file" / "out"))


def test_remove(source: Path, tmp_path: Path) -> None:
    """Removes a folder and everything below it without following links; or everything except the folder itself."""
    make(tmp_path, {"other/x": "x", "src/out": "-> ../other"})
    remove_tree(str(source), keep=True)
    assert os.listdir(source) == []
    remove_tree(str(source))
    remove_tree(str(source))  # gone already: quiet
    assert os.listdir(tmp_path) == ["other"]
    assert os.listdir(tmp_path / "other") == ["x"]
