"""The build context for an engine: the workspace and a Dockerfile as a tar archive."""

from __future__ import annotations

from collections.abc import Iterator

from torchx.specs.api import Workspace
from torchx.workspace import content
from torchx.workspace.files import open_workspace
from torchx.workspace.images import archive

TORCHX_DOCKERFILE = "Dockerfile.torchx"
# With the default Dockerfile the files are in a folder, so that `COPY` excludes that Dockerfile.
_FOLDER = "workspace"
DEFAULT_DOCKERFILE = f"ARG IMAGE\nFROM $IMAGE\nCOPY {_FOLDER}/ .\n".encode()


def context_chunks(workspace: Workspace | str) -> Iterator[bytes]:
    """Return the tar archive of a build context: the workspace without ignored files, and a ``Dockerfile.torchx``.

    The bytes depend only on the files and their times: entries are sorted, owners are dropped.
    """
    return (chunk for chunk, _ in archive.gathered((block, True) for block in _blocks(workspace)))


def own_dockerfile(workspace: Workspace | str) -> bytes:
    """Return the ``Dockerfile.torchx`` at the workspace's root, or empty bytes.

    As with Docker's own Dockerfile, ignore rules do not apply to it.
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
