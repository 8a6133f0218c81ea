"""The build context of an engine: the workspace as a tar archive, with the Dockerfile that says what to do with it."""

from __future__ import annotations

from torchx.workspace import content
from torchx.workspace.files import open_workspace

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterator
    from typing import IO

    from torchx.specs.api import Workspace
    from torchx.workspace.content import Entry

_BLOCK = 512
TORCHX_DOCKERFILE = "Dockerfile.torchx"
# The files are in a folder of their own, so that `COPY` leaves out the Dockerfile that was not the user's.
_FOLDER = "workspace"
DEFAULT_DOCKERFILE = f"ARG IMAGE\nFROM $IMAGE\nCOPY {_FOLDER}/ .\n".encode()


def write_build_context(out: IO[bytes], workspace: Workspace | str) -> None:
    """Writes the tar archive of a build context to a file, see :func:`context_chunks`."""
    for chunk in context_chunks(workspace):
        out.write(chunk)


def context_chunks(workspace: Workspace | str) -> Iterator[bytes]:
    """The tar archive of a build context: the workspace less ignored files, and a ``Dockerfile.torchx``.

    The same files give the same bytes but for their times: entries are sorted, owners are dropped.

    Raises:
        SpecError: the workspace cannot be read, or is written to meanwhile.
    """
    gathered = bytearray()
    for block in _blocks(workspace):
        gathered += block
        if len(gathered) >= content.CHUNK:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)


def own_dockerfile(workspace: Workspace | str) -> bytes:
    """The ``Dockerfile.torchx`` at the workspace's root, or nothing.

    An ignore rule does not keep it from the engine, as with Docker's own.
    """
    projects = {workspace: ""} if isinstance(workspace, str) else workspace.projects
    found = b""
    for source, place in projects.items():
        if place:
            continue
        fs, root = open_workspace(source)
        path = f"{root.rstrip('/')}/{TORCHX_DOCKERFILE}"
        if fs.isfile(path):
            found = bytes(fs.cat_file(path))
    return found


def _blocks(workspace: Workspace | str) -> Iterator[bytes]:
    import tarfile

    dockerfile = own_dockerfile(workspace)
    text, prefix = (dockerfile, "") if dockerfile else (DEFAULT_DOCKERFILE, f"{_FOLDER}/")
    info = tarfile.TarInfo(TORCHX_DOCKERFILE)
    info.size = len(text)
    yield _header(info) + text + _padding(len(text))
    if prefix:
        info = tarfile.TarInfo(_FOLDER)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        yield _header(info)
    for entry in content.entries(workspace):
        if entry.path != TORCHX_DOCKERFILE:
            yield _header(_info(prefix, entry))
            if entry.kind == content.FILE:
                yield from entry.chunks()
                yield _padding(entry.size)
    yield b"\0" * (2 * _BLOCK)


def _info(prefix: str, entry: Entry) -> tarfile.TarInfo:
    import tarfile

    info = tarfile.TarInfo(prefix + entry.path)
    info.mode, info.mtime = entry.mode, max(0, int(entry.mtime))
    if entry.kind == content.DIRECTORY:
        info.type = tarfile.DIRTYPE
    elif entry.kind == content.LINK:
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
    else:
        info.size = entry.size
    return info


def _header(info: tarfile.TarInfo) -> bytes:
    import tarfile

    return info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return b"\0" * (-size % _BLOCK)
