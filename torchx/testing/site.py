"""Packages that appear to be installed, for tests of plugins."""

from __future__ import annotations

import contextlib
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping

from torchx.plugins import discovery, refresh


class Site:
    """A folder on ``sys.path`` with packages that a test creates.

    Args:
        folder: an empty folder; :func:`site` puts it on ``sys.path``.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def install(
        self, dist: str, version: str = "1.0", *, entry_points: str = "", files: Mapping[str, str] | None = None
    ) -> str:
        """Installs a package: ``entry_points`` is the text of its ``entry_points.txt``, ``files`` maps path -> source.

        Returns:
            The path of its ``dist-info`` folder.
        """
        info = os.path.join(self.folder, f"{dist.replace('-', '_')}-{version}.dist-info")
        self.write(os.path.join(info, "METADATA"), f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        if entry_points:
            self.write(os.path.join(info, "entry_points.txt"), entry_points)
        for path, text in (files or {}).items():
            self.write(path, text)
        refresh()
        return info

    def write(self, path: str, text: str) -> str:
        """Write one dedented file below the folder and return its full path."""
        full = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text))
        refresh()
        return full


@contextlib.contextmanager
def site(folder: str, *, first: bool = True) -> Iterator[Site]:
    """Put a :class:`Site` on ``sys.path``. At the end, its modules and what they registered are removed.

    >>> import tempfile
    >>> from torchx import plugins
    >>> with tempfile.TemporaryDirectory() as folder, site(folder) as s:
    ...     _ = s.install("acme", entry_points="[torchx.schedulers]\\nacme = acme:create\\n")
    ...     plugins.names("torchx.schedulers")
    ['acme']
    """
    from torchx.plugins import register

    modules = set(sys.modules)
    made = {group: set(register.registered(group)) for group in discovery.KINDS}
    sys.path.insert(0 if first else len(sys.path), folder)
    refresh()
    try:
        yield Site(folder)
    finally:
        sys.path.remove(folder)
        # All origins first: the path of a namespace package needs its parent in sys.modules.
        origins = {name: _origin(name) for name in set(sys.modules) - modules}
        for name, origin in origins.items():
            if origin.startswith(folder):
                del sys.modules[name]
        for group, names in made.items():
            for name in set(register.registered(group)) - names:
                register.forget(group, name)
        sys.path_importer_cache.pop(folder, None)
        refresh()


def _origin(module: str) -> str:
    found = sys.modules[module]
    return getattr(found, "__file__", None) or str(next(iter(getattr(found, "__path__", ())), ""))
