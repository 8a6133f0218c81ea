"""Secrets of a container: in a file of its own, which a shell reads that then becomes the program.

Not in its configuration, which ``docker inspect`` shows to everybody. Nor in a tmpfs: that is empty when the engine, or
a watcher, starts the container again, and nobody may be there by then who knows the values. Where the container is
never started again, the file is emptied before the program begins.
"""

from __future__ import annotations

from typing import Any

from torchx.errors import BackendError
from torchx.schedulers.kit.shell import exports
from torchx.workspace.images.engine_errors import is_missing

FILE = ".torchx-secrets"
"""In the root of the container's file system, where no volume hides it."""

_SHELL = "/bin/sh"


def command(words: list[str], *, may_restart: bool) -> list[str]:
    """The words of a program that gets its secrets by the file.

    >>> command(["python", "train.py"], may_restart=False)[-3:]
    ['torchx', 'python', 'train.py']
    """
    empty = "" if may_restart else f" : >/{FILE};"
    return [_SHELL, "-c", f'. /{FILE} || exit 78;{empty} exec "$@"', "torchx", *words]


def put(container: Any, env: dict[str, str]) -> None:
    """Writes the file into a container that was created and not started.

    Raises:
        BackendError: its image has no shell.
    """
    import docker.errors

    from torchx.workspace.images import archive

    try:
        stream, _ = container.get_archive(_SHELL)
        stream.close()
    except docker.errors.APIError as e:
        if not is_missing(e):
            raise
        raise BackendError(
            f"`{container.name}` cannot be handed its secrets: its image has no `{_SHELL}`",
            hint=f"use an image with a shell, or other names for: {', '.join(env)}",
        ) from e
    text = "\n".join([*exports(env), ""]).encode("utf-8", "surrogateescape")
    # Whoever the program runs as has to read and to empty it.
    container.put_archive("/", archive.small_file(FILE, 0o666, text) + archive.END)
