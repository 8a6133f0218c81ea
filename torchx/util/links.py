"""Decides by its text whether a symbolic link stays in a folder."""

from __future__ import annotations


def stays(name: str, target: str) -> bool:
    """Whether the link ``name``, a path below a folder, stays below it, whatever other links are there.

    Its target may only begin with ``..``: after a name, which may be a link to another folder, it can lead anywhere.

    >>> stays("a/b", "../c"), stays("a/b", "../../c"), stays("a", ".."), stays("a", "/etc/passwd")
    (True, False, False, False)
    >>> stays("a", "b/../c")
    False
    """
    folders, parts = ([part for part in path.split("/") if part not in ("", ".")] for path in (name, target))
    ups = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
    return bool(target) and not target.startswith("/") and ups < len(folders) and ".." not in parts[ups:]
