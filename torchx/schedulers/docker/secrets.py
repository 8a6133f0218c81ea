"""Passes secrets to a container in a file, which a shell reads before it executes the program.

They are not in the container's configuration, which ``docker inspect`` shows to every user. A tmpfs would be empty
after a restart by the engine or a watcher, neither of which has the values. If the container is never restarted, the
file is emptied before the program starts.
"""

from __future__ import annotations

from typing import Any

from torchx.errors import BackendError
from torchx.schedulers.kit.shell import exports
from torchx.workspace.images import archive
from torchx.workspace.images.engine_errors import is_missing

FILE = ".torchx-secrets"
"""In the root of the container's file system, where no volume can hide it."""

_SHELL = "/bin/sh"


def command(words: list[str], *, may_restart: bool) -> list[str]:
    """Return the command that reads the file and executes a program.

    >>> command(["python", "train.py"], may_restart=False)[-3:]
    ['torchx', 'python', 'train.py']
    """
    empty = "" if may_restart else f" : >/{FILE};"
    return [_SHELL, "-c", f'. /{FILE} || exit 78;{empty} exec "$@"', "torchx", *words]


def put(container: Any, env: dict[str, str]) -> None:
    """Write the file into a container that has not been started; BackendError if its image has no shell."""
    try:
        stream, _ = container.get_archive(_SHELL)
        stream.close()
    except Exception as e:
        if not is_missing(e):
            raise
        raise BackendError(
            f"`{container.name}` cannot get its secrets: its image has no `{_SHELL}`",
            hint=f"use an image with a shell, or do not pass it secrets: {', '.join(env)}",
        ) from e
    text = "\n".join([*exports(env), ""]).encode("utf-8", "surrogateescape")
    # The program's user, whichever it is, has to read and empty it.
    container.put_archive("/", archive.small_file(FILE, 0o666, text) + archive.END)
