"""Finds and reads the active config files, and merges their sections in order of precedence."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence

from torchx.config.ini import Entry, Sections, read
from torchx.errors import ConfigError
from torchx.settings import ENV_CONFIG, ENV_PROFILE
from torchx.util.notices import logger
from torchx.util.strings import did_you_mean

CONFIG_FILE = ".torchxconfig"
_MAX_BYTES = 1 << 20
_Signature = tuple[str, int, int, int]

# Sections that people write, but nothing reads -> where their values belong.
_NO_EFFECT = {
    **dict.fromkeys(
        ("scheduler", "schedulers", "runopts", "cfg"), "run options belong in `[slurm]`, `[kubernetes]`, ..."
    ),
    **dict.fromkeys(("default", "defaults", "component", "components"), "defaults belong in `[component:NAME]`"),
    **dict.fromkeys(("torchx", "run", "runner", "options"), "options of `torchx run` belong in `[cli:run]`"),
}

_profile: str | None = None
_parsed: dict[str, tuple[_Signature, Sections]] = {}


def use_profile(name: str | None) -> None:
    """Select the profile for this process; None: that of ``$TORCHX_PROFILE``."""
    global _profile
    _profile = name


def active_profile() -> str | None:
    """Return the name of the active profile; None if there is none."""
    return _profile or os.environ.get(ENV_PROFILE) or None


def default_dirs() -> list[str]:
    """Return the folders to search for config files, highest precedence first: the current and the home directory."""
    return [os.getcwd(), os.environ.get("HOME") or os.path.expanduser("~")]


def find(dirs: Iterable[str] | None = None) -> list[str]:
    """Paths of the active config files, highest precedence first.

    If ``$TORCHXCONFIG`` is set, it names the only one; ``/dev/null`` disables config files.

    Raises:
        ConfigError: ``$TORCHXCONFIG`` does not name a file.
    """
    return [signature[0] for signature in _signatures(dirs)]


def load_files(dirs: Iterable[str] | None = None) -> ConfigFiles:
    """Load the active config files. A file is read again only if it has changed.

    Raises:
        ConfigError: a file cannot be read, or is malformed.
    """
    return ConfigFiles([_sections(signature) for signature in _signatures(dirs)])


class ConfigFiles:
    """The sections of several config files, highest precedence first."""

    def __init__(self, files: Sequence[Sections]) -> None:
        self._files = files

    def __bool__(self) -> bool:
        return any(self._files)

    def section(self, name: str, profile: str | None = None) -> dict[str, Entry]:
        """Return the values of ``[name]``, overridden by those of ``[name@profile]``."""
        found: dict[str, Entry] = {}
        for wanted in (name, f"{name}@{profile}") if profile else (name,):
            for sections in reversed(self._files):
                found.update(sections.get(wanted, {}))
        return found

    def names(self) -> list[str]:
        """Names of all sections, without profiles."""
        return list(dict.fromkeys(name.partition("@")[0] for sections in self._files for name in sections))

    def profiles(self) -> list[str]:
        """Names of all profiles."""
        found = (name.partition("@")[2] for sections in self._files for name in sections)
        return list(dict.fromkeys(name for name in found if name))

    def where(self, section: str) -> str:
        """File and line of the section, or of its first profile."""
        heads = (s for sections in self._files for name, s in sections.items() if name.partition("@")[0] == section)
        head = next(heads, None)
        return CONFIG_FILE if head is None else head.where()

    def check_profile(self, profile: str | None) -> None:
        """Raise ConfigError if no file has a section for the profile."""
        if profile is None or profile in (known := self.profiles()):
            return
        hint = did_you_mean(profile, known) or (
            f"there are: {', '.join(known)}" if known else f"write `[scheduler@{profile}]` in `{CONFIG_FILE}`"
        )
        raise ConfigError(f"no config file has a section for profile `{profile}`", hint=hint)


def _signatures(dirs: Iterable[str] | None) -> list[_Signature]:
    named = os.environ.get(ENV_CONFIG)
    if named:
        signature = _signature(named)
        if signature is None:
            raise ConfigError(
                f"${ENV_CONFIG} names `{named}`, which is not a file", hint=f"unset {ENV_CONFIG}, or correct it"
            )
        return [signature]
    found: list[_Signature] = []
    for folder in default_dirs() if dirs is None else dirs:
        path = f"{folder}/{CONFIG_FILE}"
        # Usually there is no file, and `access` is cheaper than an exception from `stat`.
        signature = _signature(path) if os.access(path, os.F_OK) else None
        if signature is not None and signature not in found:
            found.append(signature)
    return found


def _signature(path: str) -> _Signature | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(status.st_mode):
        return None
    regular = stat.S_ISREG(status.st_mode) or os.path.realpath(path) == os.devnull
    if not regular or status.st_size > _MAX_BYTES:  # reading a FIFO blocks, and a device may have no end
        what = f"larger than {_MAX_BYTES >> 20} MiB" if regular else "not a regular file"
        raise ConfigError(f"the config file `{path}` is {what}", hint="remove it, or name another in $TORCHXCONFIG")
    return os.path.abspath(path), status.st_mtime_ns, status.st_size, status.st_ino


def _sections(signature: _Signature) -> Sections:
    path = signature[0]
    known = _parsed.get(path)
    if known is None or known[0] != signature:
        known = _parsed[path] = (signature, read(path))
        for name in _NO_EFFECT.keys() & known[1].keys():
            where = known[1][name].where()
            logger("torchx").warning("%s: section `[%s]` has no effect: %s", where, name, _NO_EFFECT[name])
        if _is_projects(path):
            from torchx.config.trust import scan

            scan(path, known[1])
    return known[1]


def _is_projects(path: str) -> bool:
    """Whether it is the project's file, perhaps a stranger's; see :mod:`torchx.config.trust`."""
    folder, home = default_dirs()
    return (
        not os.environ.get(ENV_CONFIG)
        and path == os.path.join(folder, CONFIG_FILE)
        and os.path.realpath(folder) != os.path.realpath(home)
    )
