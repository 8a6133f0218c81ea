"""Tar archives of workspace entries, block by block, for layers and build contexts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchx.workspace.content import DIRECTORY, Entry

_BLOCK = 512
_CHUNK = 1 << 20
END = b"\0" * (2 * _BLOCK)


def header(  # a header's fields
    path: str,
    mode: int,
    *,
    mtime: int = 0,
    size: int = 0,
    link: str = "",
    folder: bool = False,
    owner: tuple[int, int] = (0, 0),
) -> bytes:
    """Return the header of a file, of a link to ``link``, or of a folder."""
    import tarfile

    info = tarfile.TarInfo(path)
    info.mode, info.mtime, info.size, info.linkname = mode, mtime, size, link
    info.type = tarfile.DIRTYPE if folder else tarfile.SYMTYPE if link else tarfile.REGTYPE
    info.uid, info.gid = owner
    # GNU's format supports any name and any size, without a text encoding; engines read it with Go's archive/tar.
    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def header_of(entry: Entry, path: str, mtime: int) -> bytes:
    """Return the header of a workspace entry."""
    folder = entry.kind == DIRECTORY
    return header(path, entry.mode, mtime=mtime, size=entry.size, link=entry.target, folder=folder)


def small_file(path: str, mode: int, data: bytes) -> bytes:
    """Return a whole file: its header and its content."""
    return header(path, mode, size=len(data)) + data + padding(len(data))


def padding(size: int) -> bytes:
    """Return the padding after a content of ``size`` bytes."""
    return b"\0" * (-size % _BLOCK)


def gathered(blocks: Iterable[tuple[bytes, bool]]) -> Iterator[tuple[bytes, bool]]:
    """Join consecutive blocks of the same kind to chunks of about a megabyte."""
    taken, kind = bytearray(), True
    for block, this in blocks:
        if taken and (this != kind or len(taken) >= _CHUNK):
            yield bytes(taken), kind
            taken.clear()
        kind = this
        taken += block
    yield bytes(taken), kind
