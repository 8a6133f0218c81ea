"""The build context of an engine: the workspace as a tar archive, with the Dockerfile that says what to do with it."""

from __future__ import annotations

from collections.abc import Iterator

from torchx.specs.api import Workspace
from torchx.workspace import content
from torchx.workspace.files import open_workspace
from torchx.workspace.images import archive

TORCHX_DOCKERFILE = "Dockerfile.torchx"
# The files are in a folder of their own, so that `COPY` leaves out the Dockerfile that was not the user's.
_FOLDER = "workspace"
DEFAULT_DOCKERFILE = f"ARG IMAGE\nFROM $IMAGE\nCOPY {_FOLDER}/ .\n".encode()


def context_chunks(workspace: Workspace | str) -> Iterator[bytes]:
    """The tar archive of a build context: the workspace less ignored files, and a ``Dockerfile.torchx``.

    The same files give the same bytes but for their times: entries are sorted, owners are dropped.

    Raises:
        SpecError: the workspace cannot be read, or is written to meanwhile.
    """
    return (chunk for chunk, _ in archive.gathered((block, True) for block in _blocks(workspace)))


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
    dockerfile = own_dockerfile(workspace)
    text, prefix = (dockerfile, "") if dockerfile else (DEFAULT_DOCKERFILE, f"{_FOLDER}/")
    yield archive.small_file(TORCHX_DOCKERFILE, 0o644, text)
    if prefix:
        yield archive.header(_FOLDER, 0o755, folder=True)
    for entry in content.entries(workspace):
        if entry.path != TORCHX_DOCKERFILE:
            yield archive.header_of(entry, prefix + entry.path, max(0, int(entry.mtime)))
            if entry.kind == content.FILE:
                yield from entry.chunks()
                yield archive.padding(entry.size)
    yield archive.END
