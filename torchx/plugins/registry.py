"""Registries of built-ins and plugins, which are loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping

from torchx.errors import EXIT_MISSING_DEPENDENCY, NotFoundError, TorchXError
from torchx.plugins.discovery import KINDS, EntryPoint, LoadFailure, decorated, entry_points
from torchx.util import notices
from torchx.util.any import Any, Generic, T
from torchx.util.notices import logger
from torchx.util.records import dataclass

OK = "ok"
FAILED = "failed"
SHADOWED = "shadowed"


class PluginError(TorchXError, ImportError):
    """A plugin is installed but cannot be loaded."""

    exit_code = EXIT_MISSING_DEPENDENCY

    def __init__(self, failure: LoadFailure) -> None:
        hint = "repair or uninstall it; `torchx plugins` lists all plugins"
        missing = getattr(failure.error, "name", None) if isinstance(failure.error, ModuleNotFoundError) else None
        if missing:
            hint = f"install `{missing}`, or repair the plugin; `torchx plugins` lists all plugins"
        TorchXError.__init__(self, str(failure), hint=hint)
        self.failure = failure


@dataclass(frozen=True)
class PluginInfo:
    """A line of ``torchx plugins``.

    ``status`` is ``ok``, ``failed`` or ``shadowed`` (another plugin has the name). ``replaces`` is ``built-in`` if the
    plugin replaces a built-in.
    """

    name: str
    kind: str
    group: str
    value: str
    dist: str
    version: str
    where: str
    status: str
    error: str = ""
    replaces: str = ""


class Registry(Generic[T]):
    """The built-ins and plugins of an entry-point group.

    A plugin may replace a built-in; users rely on that. Of two plugins with the same name, a decorated function wins
    over an entry point, and the first on ``sys.path`` over later ones.

    Args:
        group: the entry-point group.
        builtins: name -> ``module:attr``.
    """

    def __init__(self, group: str, builtins: Mapping[str, str] | None = None) -> None:
        self.group = group
        self.builtins = dict(builtins or {})
        _builtins.setdefault(group, {}).update(self.builtins)

    def names(self) -> list[str]:
        """Return all names, built-ins first; imports modules of ``torchx_plugins`` only."""
        return list(dict.fromkeys([*self.builtins, *winners(self.group)]))

    def __contains__(self, name: object) -> bool:
        return name in self.builtins or name in winners(self.group)

    def find(self, name: str) -> EntryPoint | None:
        """Return the plugin or built-in of that name, or None."""
        plugin = winners(self.group).get(name)
        if plugin is not None or name not in self.builtins:
            return plugin
        return EntryPoint(name, self.builtins[name], self.group, dist="torchx")

    def get(self, name: str) -> T:
        """Load the object of that name.

        Raises:
            NotFoundError: there is no plugin or built-in of that name.
            PluginError: it cannot be loaded.
        """
        entry = self.find(name)
        if entry is None:
            raise not_found(self.group, name, self.names())
        found: T = load(entry)
        return found


def winners(group: str) -> dict[str, EntryPoint]:
    """Return the plugins of a group by name; see :class:`Registry` for their precedence."""
    made, _ = decorated(group)
    found: dict[str, EntryPoint] = {}
    for entry in [*made, *entry_points(group)]:
        found.setdefault(entry.name, entry)
    return found


def load(entry: EntryPoint) -> Any:
    """Load the object of a plugin; raises PluginError if the import fails."""
    if not entry.value.startswith("torchx."):
        notices.ready()
    try:
        return entry.load()
    except (Exception, SystemExit) as e:
        failure = LoadFailure(entry.name, entry.group, entry.where, e, value=entry.value, dist=entry.dist)
        raise PluginError(failure) from e


def load_group(group: str, default: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Load the plugins of an entry-point group; return ``default`` if there are none.

    A plugin that fails to load is skipped, with one warning.

    >>> load_group("no.such.group") is None
    True
    """
    found: dict[str, Any] = {}
    _, failures = decorated(group)
    for failure in failures:
        _warn_once(failure)
    entries = winners(group)
    for name, entry in entries.items():
        try:
            found[name] = load(entry)
        except PluginError as e:
            _warn_once(e.failure)
    return found if entries else default


def not_found(group: str, name: str, choices: list[str]) -> NotFoundError:
    """Return the error for an unknown name; the hint has the nearest name and the plugins that failed to load."""
    from torchx.util.strings import did_you_mean

    kind = KINDS.get(group, "plugin").replace("_", " ")
    hints = [did_you_mean(name, choices), *(str(f) for f in decorated(group)[1])]
    return NotFoundError(
        f"no {kind} `{name}`", hint="; ".join(h for h in hints if h) or f"there are: {', '.join(choices)}"
    )


def report() -> list[PluginInfo]:
    """Load every plugin of every group and return their states, for ``torchx plugins``."""
    found = []
    for group, kind in KINDS.items():
        made, failures = decorated(group)
        winning: dict[str, EntryPoint] = {}
        builtins = _builtins.get(group, {})
        for entry in [*made, *entry_points(group)]:
            first = winning.setdefault(entry.name, entry)
            status, error, replaces = OK, "", ""
            if first is not entry:
                status, error = SHADOWED, f"`{entry.name}` is taken by {first.dist or first.where}"
            elif entry.name in builtins and builtins[entry.name] != entry.value:
                replaces = "built-in"
            if status == OK:
                try:
                    load(entry)
                except PluginError as e:
                    status, error = FAILED, e.failure.reason
            known = (entry.value, entry.dist, entry.version, entry.where)
            found.append(PluginInfo(entry.name, kind, group, *known, status, error, replaces))
        for f in failures:
            found.append(PluginInfo(f.name, kind, group, f.value, "", "", f.where, FAILED, f.reason))
    return found


_builtins: dict[str, dict[str, str]] = {}
_warned: set[tuple[str, str, str]] = set()


def _warn_once(failure: LoadFailure) -> None:
    key = (failure.group, failure.name, failure.where)
    if key not in _warned:
        _warned.add(key)
        logger("torchx.plugins").warning("%s (`torchx plugins` shows all)", failure)
