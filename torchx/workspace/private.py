"""Keeps credentials and home directories out of workspaces, and credentials out of what git copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from torchx.errors import SpecError
from torchx.settings import ALLOW_PRIVATE_WORKSPACE, torchx_home
from torchx.util.notices import logger

_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", ".azure", ".kube", ".docker"})
_FILES = frozenset({".netrc", "_netrc", ".pypirc", ".pgpass", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519"})
_KEY_SUFFIXES = (".pem", ".key")
_DOTENV = (".env", ".envrc")  # and `.env.local`, ...; jobs seldom need them, so they are left out
_EXAMPLES = (".example", ".sample", ".template", ".dist")
_KEY_BYTES = 1 << 14
_PRIVATE_KEY = b"PRIVATE KEY-----"
_MANY_FILES = 50_000
_MANY_BYTES = 1 << 30
_secret_files: set[str] = set()


def keep_out(paths: Iterable[str]) -> None:
    """Leaves these local files, from which values of secrets are read, out of all workspaces from now on."""
    _secret_files.update(paths)


def secret_files() -> set[tuple[int, int]]:
    """Device and inode of each of these files, whatever the path or link to it."""
    found = set()
    for path in _secret_files:
        with suppress(OSError):
            found |= {(s.st_dev, s.st_ino) for s in (os.lstat(path), os.stat(path))}
    return found


def why_left_out(name: str, info: Mapping[str, Any], secret: set[tuple[int, int]]) -> str:
    """Return why a file is left out of a workspace, without an error; empty if it is not."""
    if info.get("identity", ())[:2] in secret:
        return "a secret is read from it"
    if not ALLOW_PRIVATE_WORKSPACE.is_on() and (
        name in _DOTENV or (name.startswith(".env.") and not name.endswith(_EXAMPLES))
    ):
        return "it may contain credentials; `--allow-private-workspace` sends it"
    return ""


def git_patterns() -> list[str]:
    """Names of private files, for :func:`torchx.util.git.pathspecs`; some of them :func:`is_harmless`."""
    names = [*(f"{folder}/**" for folder in _FOLDERS), *_FILES, *_DOTENV, ".env.*", *(f"*{s}" for s in _KEY_SUFFIXES)]
    return [] if ALLOW_PRIVATE_WORKSPACE.is_on() else [f"**/{name}" for name in names]


def is_harmless(path: str, content: Callable[[str], bytes]) -> bool:
    """Whether a file that a pattern matches is an example or a public key; ``content`` takes its path after a colon."""
    *folders, name = path.split("/")
    is_public = name.endswith(_KEY_SUFFIXES) and _PRIVATE_KEY not in content(f":{path}")
    return _FOLDERS.isdisjoint(folders) and (is_public or name.endswith(_EXAMPLES))


def is_private_name(path: str) -> bool:
    """Whether a path is that of a private file by its name alone, as far away, where its content is not at hand.

    >>> is_private_name("a/.ssh/config"), is_private_name(".env.local"), is_private_name("a/.env.example")
    (True, True, False)
    """
    *folders, name = path.split("/")
    dotenv = name in _DOTENV or (name.startswith(".env.") and not name.endswith(_EXAMPLES))
    listed = not _FOLDERS.isdisjoint([*folders, name]) or name in _FILES or name.endswith(_KEY_SUFFIXES)
    return not ALLOW_PRIVATE_WORKSPACE.is_on() and (dotenv or listed)


def is_torchx_home(path: str) -> bool:
    """Return whether a local folder is torchx's own home, which is never part of a workspace."""
    home = torchx_home()
    return os.path.basename(path) == os.path.basename(home) and os.path.realpath(path) == os.path.realpath(home)


def check_root(root: str) -> None:
    """Raise SpecError for a workspace that is ``/`` or the user's home directory."""
    real = os.path.realpath(root)
    if ALLOW_PRIVATE_WORKSPACE.is_on():
        return
    if real == "/" or real == os.path.realpath(os.path.expanduser("~")):
        what = "the root of this machine" if real == "/" else "your home directory"
        raise SpecError(
            f"workspace `{root}` is {what}, and all of it would be sent with the job",
            hint="run from the project's folder, or without a workspace: `--workspace=`; "
            "to send it anyway: `--allow-private-workspace`",
        )


def check_entries(root: str, files: Iterable[Any]) -> None:
    """Raise SpecError if an entry that would be sent contains credentials; warns if there are unusually many bytes."""
    allowed = ALLOW_PRIVATE_WORKSPACE.is_on()
    count = size = 0
    for entry in files:
        count, size = count + 1, size + entry.size
        if not allowed and (what := _private(entry)):
            raise SpecError(
                f"workspace `{root}` contains {what}: `{entry.path}`, which would be sent with the job",
                hint="name it in `.torchxignore`; to send it anyway: `--allow-private-workspace`",
            )
    if count > _MANY_FILES or size > _MANY_BYTES:
        logger("torchx.workspace").warning(
            "workspace `%s` has %s files, %.1f GB: name in `.torchxignore` what jobs do not need",
            root,
            f"{count:,}",
            size / 1e9,
        )


def _private(entry: Any) -> str:
    """Return why an entry is private; empty if it is not."""
    name = entry.path.rpartition("/")[2]
    if entry.kind == "directory":
        return "a folder of credentials" if name in _FOLDERS else ""
    if name in _FILES:
        return "a file of credentials"
    if name.endswith(_KEY_SUFFIXES) and entry.kind == "file" and entry.size <= _KEY_BYTES:
        return "a private key" if any(_PRIVATE_KEY in chunk for chunk in entry.chunks()) else ""
    return ""
