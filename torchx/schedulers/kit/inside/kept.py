"""The files of a replica that has ended: a folder, and how to run a command in it or to get an archive of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from torchx.schedulers.kit.inside import InsideProcess
from torchx.schedulers.kit.inside.spawned import SpawnedProcess

# As of a command that finds no file: a folder may have been removed meanwhile.
_IN_FOLDER = 'cd -- "$1" 2>/dev/null || { echo nothing; exit 0; }; shift; exec "$@"'


class Kept(NamedTuple):
    """A folder with files of an ended replica.

    Attributes:
        where: what messages call it.
        start: starts a command in it; None: only whole archives can be had.
        archive: returns a tar stream of an absolute path.
        here: it is a folder of this machine.
        folder: its absolute path.
        within: only paths in these folders are of the replica; empty: all are.
        close: ends what ``start`` needed.
    """

    where: str
    folder: str
    start: Callable[[Sequence[str]], InsideProcess] | None = None
    archive: Callable[[str], InsideProcess] | None = None
    here: bool = False
    within: Sequence[str] = ()
    close: Callable[[], None] = lambda: None


def below(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of these folders, or in one.

    >>> below("/data/x", ["/data"]), below("/data2", ["/data"]), below("/x", ["/"])
    (True, False, True)
    """
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def folders(
    paths: Sequence[str], spawn: Callable[[list[str]], InsideProcess] = SpawnedProcess, site: str = ""
) -> list[Kept]:
    """Return these folders of one machine, whose commands ``spawn`` starts; ``site`` names it unless it is this one."""

    def start(folder: str, argv: Sequence[str]) -> InsideProcess:
        return spawn(["sh", "-c", _IN_FOLDER, "sh", folder, *argv])

    found = dict.fromkeys(filter(None, paths))
    return [Kept(f"{site}:{path}" if site else path, path, partial(start, path), here=not site) for path in found]
