"""Reads runs as torchx 0.7 and its nightlies stored them with fsspec; nothing is written in this layout.

::

    ROOT/ID/metadata/TIME       {"metadata": {"lr": 0.1}}
    ROOT/ID/artifacts/TIME      {"name": "model", "path": "/m.pt", "metadata": null}
    ROOT/ID/sources/SOURCE      the name of an artifact, or nothing

``ID`` and ``SOURCE`` are Base32 of ids of runs, ``TIME`` is nanoseconds since the epoch.
"""

from __future__ import annotations

from base64 import b32decode, b32encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Read = Callable[[str, list[str]], Iterable[bytes | None]]
"""Return the contents of files of a folder; None for a missing one."""
Parse = Callable[[str, bytes], dict[str, Any] | None]


class OldRuns:
    """The runs in one folder; ``names`` lists a folder, and ``parse`` returns the record in a file."""

    def __init__(self, root: str, names: Callable[[str], list[str]], read: Read, parse: Parse) -> None:
        self._root, self._names, self._read, self._parse = root, names, read, parse
        self.folders: Mapping[str, str] = {run_id: name for name in names(root) if (run_id := decoded(name))}
        """Id of a run -> its folder."""

    def records(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        """Return the records of a kind, oldest first, as they are in the new layout."""
        if run_id not in self.folders:
            return []
        folder = f"{self._root}/{self.folders[run_id]}/{kind}"
        if kind == "sources":
            names = [name for name in self._names(folder) if decoded(name)]
            found = zip(names, self._read(folder, names), strict=True)
            return [
                {"source_run_id": decoded(n), "artifact_name": (data or b"").decode().strip() or None}
                for n, data in found
            ]
        names = sorted((name for name in self._names(folder) if name.isdecimal()), key=int)
        parsed = (
            self._parse(f"{folder}/{n}", data or b"") for n, data in zip(names, self._read(folder, names), strict=True)
        )
        return [record for record in parsed if record is not None]

    def children(self, run_id: str) -> list[str]:
        """Return the ids of the runs that have this run as a source."""
        name = b32encode(run_id.encode()).decode()
        return [
            other for other, folder in self.folders.items() if name in self._names(f"{self._root}/{folder}/sources")
        ]


def decoded(name: str) -> str:
    """Return the id of a run by the name of its folder; empty if it is something else.

    >>> decoded("OBWGC2LOL5UWI==="), decoded("runs"), decoded("AAAAAAA=")
    ('plain_id', '', '')
    """
    try:
        found = b32decode(name)
        return found.decode() if b32encode(found).decode() == name and b"\0" not in found else ""
    except ValueError:
        return ""
