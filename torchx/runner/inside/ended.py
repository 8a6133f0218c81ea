"""Copies files of replicas that have ended, from wherever the backend keeps them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from typing import Any

from torchx.errors import BackendError, NotFoundError
from torchx.runner.inside.copy import Copied, Progress, download, download_archive
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import KeepsFiles
from torchx.schedulers.kit.inside import NotRunningError
from torchx.schedulers.kit.inside.kept import Kept, below


def download_kept(
    backend: Scheduler[Any],
    app_id: str,
    replica: tuple[str, int],
    ends: tuple[str, str],
    *,
    cwd: str,
    progress: Progress,
    private: Callable[[str], bool],
    running: NotRunningError,
) -> Copied:
    """Copy a file or folder, ``ends`` being source and target, of a replica that is not ``running``.

    Raises:
        NotFoundError: the error given, if the backend keeps no files; else one that says where it was looked for.
    """
    places = backend.kept(app_id, *replica, cwd) if isinstance(backend, KeepsFiles) else []
    if not places:
        raise running
    source, target = ends
    try:
        for place in places:
            try:
                return _from(place, source, target, progress, private)
            except NotFoundError:
                if not target:
                    raise
    finally:
        for place in places:
            place.close()
    looked = ", ".join(place.where for place in places)
    raise NotFoundError(
        f"{running}, and there is no `{source}` where its files are: {looked}", hint="paths are relative to these"
    )


def _from(place: Kept, source: str, target: str, progress: Progress, private: Callable[[str], bool]) -> Copied:
    path = posixpath.join(place.folder, source)
    if place.within and not below(posixpath.normpath(path), place.within):
        raise NotFoundError(f"`{path}` is not in {place.where}")
    if place.here and _is_same(path, target):
        return Copied(0, 0, 1, [])
    if place.start is not None:
        return download(place.start, source, target, progress, here=place.here, private=private)
    assert place.archive is not None
    try:
        return download_archive(place.archive, path, target, progress, private=private)
    except BackendError as e:
        if "404" in str(e) or "Could not find" in str(e):
            raise NotFoundError(str(e)) from e
        raise


def _is_same(source: str, target: str) -> bool:
    """Whether a copy would be on itself: the job ran in the folder that the copy goes to."""
    base = os.path.basename(source.rstrip("/"))
    return (
        any(os.path.exists(p) and os.path.samefile(source, p) for p in (target, os.path.join(target, base)))
        if (os.path.exists(source))
        else False
    )
