"""Finds installed plugins without importing them.

There are two sources: the ``entry_points.txt`` of installed distributions, and functions decorated with
:mod:`torchx.plugins.register` in modules of the namespace package ``torchx_plugins``.

Reading the folders on ``sys.path`` takes 1 ms. ``importlib.metadata``, which takes 25 ms, is used only for path entries
other than plain folders (zip files, import hooks).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from torchx.util.any import Any
from torchx.util.records import dataclass, field

SCHEDULERS = "torchx.schedulers"
COMPONENTS = "torchx.components"
NAMED_RESOURCES = "torchx.named_resources"
TRACKERS = "torchx.tracker"
COMMANDS = "torchx.cli.cmds"
FAILURES = "torchx.failures"

KINDS = {
    SCHEDULERS: "scheduler",
    COMPONENTS: "component",
    NAMED_RESOURCES: "named_resource",
    TRACKERS: "tracker",
    COMMANDS: "command",
    FAILURES: "failure",
}
"""Entry-point group -> kind of its plugins; also the names of the decorators."""

registered: dict[str, dict[str, EntryPoint]] = {}
"""Plugins registered by decorators so far, by group and name."""

NAMESPACE = "torchx_plugins"


@dataclass(frozen=True)
class EntryPoint:
    """A plugin of an installed package, or of a decorator."""

    name: str
    value: str
    group: str
    dist: str = ""
    version: str = ""
    where: str = ""
    obj: Any = field(default=None, repr=False, compare=False)

    def load(self) -> Any:
        """Import and return the object; exceptions of the import propagate."""
        if self.obj is not None:
            return self.obj
        target = self.value.partition("[")[0]  # `module:attr [extra]`: extras are obsolete
        module, colon, attr = (part.strip() for part in target.partition(":"))
        names = [*module.split("."), *(attr.split(".") if colon else ())]
        if not all(name.isidentifier() for name in names):
            raise ValueError(f"`{self.value}` is not of the form `module:attribute`")
        return import_object(module, attr)


@dataclass(frozen=True)
class LoadFailure:
    """A plugin that failed to load."""

    name: str
    group: str
    where: str
    error: BaseException
    value: str = ""
    dist: str = ""

    def __str__(self) -> str:
        kind = KINDS.get(self.group, "plugin").replace("_", " ")
        return f"{kind} `{self.name}`{self.origin} failed to load: {self.reason}"

    @property
    def origin(self) -> str:
        """The source of the plugin, as part of a sentence."""
        return f" of package `{self.dist}`" if self.dist else f" of `{self.where}`" if self.where else ""

    @property
    def reason(self) -> str:
        """The error in one line."""
        lines = str(self.error).strip().splitlines()
        return f"{type(self.error).__name__}: {lines[0]}" if lines else type(self.error).__name__


def import_object(module: str, attr: str = "") -> Any:
    """Import a module by its dotted name, and return it or its (dotted) attribute.

    >>> import_object("os", "path.sep") == os.sep
    True
    """
    __import__(module)
    found: Any = sys.modules[module]
    for part in attr.split(".") if attr else ():
        found = getattr(found, part)
    return found


def entry_points(group: str) -> list[EntryPoint]:
    """Return all entry points of a group in the order of ``sys.path``; names may repeat."""
    return [e for d in _distributions() if group in d.text for e in parse(d.text, dist=d) if e.group == group]


def decorated(group: str) -> tuple[list[EntryPoint], list[LoadFailure]]:
    """Return the decorated plugins of a group, and the ``torchx_plugins`` modules that failed to import.

    It imports the modules of ``torchx_plugins.<kind>``, because that runs their decorators. These modules should have
    few imports of their own.
    """
    failures = []
    for module, where in _namespace_modules(group):
        failure = _failed_modules.get(module)
        if module not in sys.modules and failure is None:
            try:
                __import__(module)
            except (Exception, SystemExit) as e:
                failure = _failed_modules[module] = LoadFailure(module, group, where, e, value=module)
        if failure is not None:
            failures.append(failure)
    return list(registered.get(group, {}).values()), failures


def parse(text: str, *, dist: Distribution | None = None) -> list[EntryPoint]:
    """Parse an ``entry_points.txt``; lines that are neither a section nor ``name = value`` are skipped.

    >>> parse("[g]\\na = m:f\\n# no\\nb=m2 [extra]\\n")[1].value
    'm2 [extra]'
    """
    d = dist or Distribution("", "", "", "")
    found: list[EntryPoint] = []
    group = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            group = line[1:-1].strip()
            continue
        name, eq, value = line.partition("=")
        if eq and group:
            found.append(EntryPoint(name.strip(), value.strip(), group, d.name, d.version, d.where))
    return found


def refresh() -> None:
    """Clear the caches; the next query searches again."""
    global _scanned_key
    _scanned_key = None
    _failed_modules.clear()


@dataclass(frozen=True)
class Distribution:
    """An installed distribution and the text of its ``entry_points.txt``."""

    name: str
    version: str
    where: str
    text: str


_scanned_key: object = None
_scanned: list[Distribution] = []
_failed_modules: dict[str, LoadFailure] = {}


def _distributions() -> list[Distribution]:
    """Return distributions with entry points; of two with the same name, the first on ``sys.path`` counts."""
    global _scanned_key, _scanned
    paths = [p or os.getcwd() for p in sys.path if isinstance(p, str)]
    key = [(p, _mtime(p)) for p in paths]
    if key == _scanned_key:
        return _scanned
    seen: set[str] = set()
    found: list[Distribution] = []
    for path in dict.fromkeys(paths):
        for dist in _of_path(path):
            normal = _normal(dist.name)
            if normal not in seen:
                seen.add(normal)
                if dist.text:
                    found.append(dist)
    found += [d for d in _of_import_hooks() if _normal(d.name) not in seen]
    _scanned_key, _scanned = key, found
    return found


def _normal(name: str) -> str:
    """Normalize the name of a distribution: ``Foo_Bar`` and ``foo-bar`` are the same."""
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)


def _of_path(path: str) -> Iterator[Distribution]:
    try:
        names = sorted(os.listdir(path))
    except NotADirectoryError:
        from importlib import metadata

        yield from _of_metadata(metadata.distributions(path=[path]), path)
        return
    except OSError:
        return
    for name in names:
        stem, _, suffix = name.rpartition(".")
        if name == "EGG-INFO" and path.endswith(".egg"):
            stem = os.path.basename(path).removesuffix(".egg")
        elif suffix not in ("dist-info", "egg-info") or name.startswith("~"):
            continue
        # name-version.dist-info, name-version-py3.11.egg-info, name.egg-info
        dist, _, version = stem.partition("-")
        where = f"{path}/{name}"
        yield Distribution(dist, version.partition("-")[0], where, _read(f"{where}/entry_points.txt"))


def _of_import_hooks() -> Iterator[Distribution]:
    """Yield distributions that only import hooks find."""
    for finder in sys.meta_path:
        find: Any = getattr(finder, "find_distributions", None)
        if find is not None and not getattr(finder, "__module__", "").startswith(("_frozen_importlib", "importlib")):
            from importlib import metadata

            yield from _of_metadata(find(metadata.DistributionFinder.Context()), repr(finder))


def _of_metadata(found: Iterable[Any], where: str) -> Iterator[Distribution]:
    for dist in found:
        yield Distribution(dist.metadata["Name"] or "", dist.version, where, dist.read_text("entry_points.txt") or "")


def _namespace_modules(group: str) -> list[tuple[str, str]]:
    """Return the modules below ``torchx_plugins.<kind>`` as ``(dotted name, file or folder)``."""
    if group not in KINDS:
        return []
    package = f"{NAMESPACE}.{KINDS[group]}s"
    try:
        __import__(package)
    except (Exception, SystemExit) as e:
        if isinstance(e, ModuleNotFoundError) and e.name in (package, NAMESPACE):
            return []
        _failed_modules[package] = LoadFailure(package, group, "", e, value=package)
        return [(package, "")]
    found: dict[str, str] = {}
    for folder in getattr(sys.modules[package], "__path__", ()):  # a single file has run with the import above
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            stem = name.removesuffix(".py")
            where = os.path.join(folder, name)
            is_module = stem != name or os.path.exists(os.path.join(where, "__init__.py"))
            if is_module and stem.isidentifier() and stem != "__init__":
                found.setdefault(f"{package}.{stem}", where)
    return list(found.items())


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""
