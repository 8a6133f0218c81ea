"""The bytes of a layer depend only on its files."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from torchx.errors import SpecError
from torchx.workspace import content
from torchx.workspace.images.layers import Folder, Item, Layer, item, pack
from torchx.workspace.images.registry import Blob


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "lib" / "empty").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\n" * 100)
    (root / "lib" / "run.sh").write_text("#!/bin/sh\n")
    (root / "lib" / "run.sh").chmod(0o755)
    (root / "link").symlink_to("lib/run.sh")
    (root / os.fsdecode(b"\xff bytes\n")).write_text("x")
    return root


def items(source: Path) -> list[Item]:
    return [item(entry, content.sha256_of) for entry in content.entries(str(source))]


def packed(source: Path, place: str = "opt/app") -> tuple[Layer, bytes]:
    above = [Folder("opt"), Folder("opt/app", 0o750, 1000, 1000)] if place else []
    layer, blob = pack(items(source), place, above)
    return layer, b"".join(blob.chunks())


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        return {member.name: member for member in tar}


def test_a_layer_is_what_it_says(source: Path) -> None:
    """Digest, size and diff id match the bytes; paths are below the working directory."""
    layer, data = packed(source)
    assert layer.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    assert layer.size == len(data)
    assert layer.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(data)).hexdigest()
    found = members(data)
    assert found["opt/app"].mode == 0o750 and found["opt/app"].uid == 1000
    assert found["opt/app/lib/run.sh"].mode == 0o755 and found["opt/app/lib/empty"].isdir()
    assert found["opt/app/link"].linkname == "lib/run.sh"
    assert found["opt/app/\udcff bytes\n"].size == 1
    assert {(m.mtime, m.uname) for m in found.values()} == {(347155200, "")}
    assert {m.uid for name, m in found.items() if name.startswith("opt/app/")} == {0}
    assert layer.contents["train.py"][1] == 900


def test_the_root_of_the_image(source: Path) -> None:
    """Without a working directory, a layer contains no directory above the workspace."""
    assert set(members(packed(source, "")[1])) == {entry.path for entry in content.entries(str(source))}


def test_same_files_same_bytes(source: Path, tmp_path: Path) -> None:
    """Times, the path of the workspace and the order of directories have no effect."""
    copied = tmp_path / "copy"
    shutil.copytree(source, copied, symlinks=True, copy_function=shutil.copy)
    os.utime(copied / "train.py", (5, 5))
    assert packed(copied) == packed(source)
    (copied / "lib" / "run.sh").chmod(0o744)
    assert packed(copied)[0].digest != packed(source)[0].digest


def test_what_does_not_compress_is_not_compressed(source: Path) -> None:
    """A layer of random bytes is a plain archive that is read again from the files: it needs no memory and no disk."""
    (source / "weights.bin").write_bytes(os.urandom(1 << 20))
    layer, data = packed(source)
    assert not layer.compressed and layer.digest == layer.diff_id
    assert members(data)["opt/app/weights.bin"].size == 1 << 20


def test_both_kinds_in_one_layer(source: Path) -> None:
    """Random bytes among text are stored, the text is compressed, and the result is one valid gzip file."""
    (source / "a.bin").write_bytes(os.urandom(200_000))
    (source / "b.txt").write_text("text " * 200_000)
    (source / "c.bin").write_bytes(os.urandom(200_000))
    layer, data = packed(source)
    assert layer.compressed and 400_000 < len(data) < 450_000
    assert layer.diff_id == "sha256:" + hashlib.sha256(gzip.decompress(data)).hexdigest()
    assert len(members(data)) == 11
    assert packed(source) == (layer, data)


def test_blob_can_be_read_again(source: Path) -> None:
    """A second attempt to send a layer starts at its beginning."""
    (source / "b.txt").write_bytes(os.urandom(700_000).hex().encode())
    _, blob = pack(items(source), "", [])
    assert b"".join(blob.chunks()) == b"".join(blob.chunks())


def test_home_that_cannot_be_written(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a writable home, the bytes are kept elsewhere."""
    monkeypatch.setenv("TORCHX_HOME", "/proc/nowhere")
    (source / "b.txt").write_bytes(os.urandom(1_500_000).hex().encode())
    layer, data = packed(source)
    assert layer.size == len(data) > 1 << 20


@pytest.mark.parametrize("size", [10, 500_000], ids=["small", "large"])
def test_file_that_changes(size: int, source: Path) -> None:
    """The packed content matches the hash, or packing fails; bytes appended to a log do not matter."""
    path = source / "z.log"
    path.write_bytes(os.urandom(size))
    before = items(source)
    with path.open("ab") as f:
        f.write(b"more")
    _, blob = pack(before, "", [])
    assert members(b"".join(blob.chunks()))["z.log"].size == size
    path.write_bytes(os.urandom(size + 4))
    with pytest.raises(SpecError, match=r"`z\.log` was changed while the image was made"):
        pack(before, "", [])
    path.unlink()
    with pytest.raises(SpecError, match=r"`z\.log`"):
        pack(before, "", [])


def test_remote_file_that_changes() -> None:
    """Files on a remote file system are hashed while they are sent."""
    opened = iter([io.BytesIO(b"abc"), io.BytesIO(b"abd")])
    entry = content.Entry("a", content.FILE, 0o644, size=3, opener=lambda: next(opened))
    one = item(entry, content.sha256_of)
    with pytest.raises(SpecError, match="`a` was changed"):
        pack([one], "", [])


@pytest.mark.parametrize("name", [".wh.a", "lib/.wh..wh..opq"])
def test_names_that_remove(name: str, source: Path) -> None:
    """`.wh.a` in a layer removes `a`, so an image cannot contain such a file."""
    (source / name).write_text("")
    with pytest.raises(SpecError, match="cannot be in an image"):
        items(source)


def test_empty_layer() -> None:
    """A layer without files is a valid archive."""
    layer, blob = pack([], "", [])
    assert isinstance(blob, Blob) and members(b"".join(blob.chunks())) == {} and layer.contents == {}
