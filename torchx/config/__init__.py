"""Resolves run options from ``.torchxconfig`` files, the environment, the command line and code.

Precedence, lowest first: the option's default, the file in the home directory, the file in the current directory, the
environment (``TORCHX_<SCHEDULER>_<OPTION>``), the command line, code. ``$TORCHXCONFIG`` names one file to read instead
of both. With a profile (``--profile NAME``, ``$TORCHX_PROFILE``), ``[section@NAME]`` overrides ``[section]``.

docs/config.md lists the sections.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from torchx.config import files as config_files
from torchx.config.files import CONFIG_FILE, ConfigFiles, active_profile, default_dirs, use_profile
from torchx.config.ini import Entry, interpolated, parse
from torchx.errors import ConfigError, TorchXError
from torchx.settings import ENV_CONFIG
from torchx.specs.api import CfgVal, get_type_name, runopts
from torchx.specs.options.cfg_literals import join_options
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.reexports import reexports
from torchx.util.strings import did_you_mean

reexports(__name__)

__all__ = [
    "CONFIG_FILE",
    "CONFIG_PREFIX_DELIM",
    "DEFAULT_CONFIG_DIRS",
    "ENV_TORCHXCONFIG",
    "Setting",
    "SourcedCfg",
    "active_profile",
    "apply",
    "dump",
    "find_configs",
    "get_config",
    "get_configs",
    "load",
    "load_files",
    "load_sections",
    "resolve",
    "use_profile",
]

CONFIG_PREFIX_DELIM = ":"
ENV_TORCHXCONFIG = ENV_CONFIG
FIXME = "#FIXME"
"""Placeholder that :func:`dump` writes for required values; it is ignored when a file is read."""

DEFAULT = "default"
CODE = "code"
COMMAND_LINE = "-cfg"

_warned: set[str] = set()


class _DefaultDirs(Sequence[str]):
    """The current directory and the home directory, evaluated on each access because both may change."""

    def __getitem__(self, index: Any) -> Any:
        return default_dirs()[index]

    def __len__(self) -> int:
        return len(default_dirs())

    def __iter__(self) -> Iterator[str]:
        return iter(default_dirs())

    def __repr__(self) -> str:
        return repr(default_dirs())


_MANY = 5  # schedulers that have an option: too many to name
DEFAULT_CONFIG_DIRS: Sequence[str] = _DefaultDirs()
"""The folders to search for config files, highest precedence first."""


@dataclass
class Setting:
    """The value of a run option and its source.

    ``source`` is ``default``, ``file:line``, the name of an environment variable, ``-cfg``, or ``code``.
    """

    value: CfgVal
    source: str


class SourcedCfg(dict):  # type: ignore[type-arg]  # `dict[str, CfgVal]` as a base would import typing's machinery
    """A cfg with its source; any other mapping has the source ``code``.

    Unknown keys in it are errors.

    >>> SourcedCfg({"log_dir": "/tmp"}, source="--stdin").source
    '--stdin'
    """

    def __init__(self, cfg: Mapping[str, CfgVal], source: str = COMMAND_LINE) -> None:
        super().__init__(cfg)
        self.source = source


def resolve(
    scheduler: str,
    opts: runopts,
    cfg: Mapping[str, CfgVal] | None = None,
    *,
    files: ConfigFiles | None = None,
) -> dict[str, Setting]:
    """Resolve the value and the source of each run option, by the precedence above.

    Unknown keys in files are ignored with a warning. Unknown keys that code gives to the scheduler of a plugin are
    passed on with a warning, unless they are similar to the name of an option.

    Args:
        scheduler: name of the scheduler and of its section.
        opts: the run options of the scheduler.
        cfg: the caller's values; a :class:`SourcedCfg` if they are not from code.
        files: the result of :func:`load_files`, if the caller has it.

    Raises:
        ConfigError: a value has the wrong type, a required value is missing, a key is unknown, or a config file is
            malformed.

    >>> from torchx.specs import runopts
    >>> opts = runopts()
    >>> opts.add("queue", type_=str, help="queue to submit to", default="any")
    >>> resolve("my_scheduler", opts, {"queue": "gpu"})
    {'queue': Setting(value='gpu', source='code')}
    """
    given = _from_files(scheduler, opts, load_files() if files is None else files)
    given.update(_from_environment(scheduler, opts))
    if cfg:
        given.update(_from_caller(opts, cfg))
        _check_known(scheduler, opts, cfg)
    values = opts.resolve({key: setting.value for key, setting in given.items()})
    return {key: Setting(value, given[key].source if key in given else DEFAULT) for key, value in values.items()}


def apply(scheduler: str, cfg: dict[str, CfgVal], dirs: list[str] | None = None) -> None:
    """Add the values of the scheduler's section to ``cfg``; keys that ``cfg`` already has are kept.

    Args:
        dirs: folders to search for config files, highest precedence first.

    Raises:
        ConfigError: a value has the wrong type, or a config file is malformed.
    """
    for key, setting in _from_files(scheduler, _run_opts(scheduler), load_files(dirs)).items():
        cfg.setdefault(key, setting.value)


def load(scheduler: str, f: TextIO, cfg: dict[str, CfgVal]) -> None:
    """Add the values of the scheduler's section of an open file to ``cfg``; keys that ``cfg`` already has are kept.

    Raises:
        ConfigError: a value has the wrong type, or the text is malformed.
    """
    sections = interpolated(parse(f, str(getattr(f, "name", CONFIG_FILE))))
    section: Mapping[str, Entry] = sections.get(scheduler) or {}
    for key, setting in _cast_section(scheduler, _run_opts(scheduler), section).items():
        cfg.setdefault(key, setting.value)


def dump(f: TextIO, schedulers: list[str] | None = None, required_only: bool = False) -> None:
    """Write a template config file: a section for each scheduler, with its options, their defaults and help texts.

    Args:
        schedulers: names of schedulers; None: all, but those that cannot be loaded are skipped with a warning.
        required_only: omit the options that have a default.

    Raises:
        UnknownSchedulerException: there is no scheduler of that name.
    """
    from torchx.schedulers import get_scheduler_factories

    for scheduler in schedulers or list(get_scheduler_factories()):
        try:
            opts = _run_opts(scheduler)
        except TorchXError as e:
            if schedulers:
                raise
            _warn_once(str(e))
            continue
        f.write(f"[{scheduler}]\n")
        for name, opt in opts:
            if required_only and not opt.is_required:
                continue
            for line in opt.help.strip().splitlines():
                f.write(f"# {line.strip()}\n")
            value = f"{FIXME}:({get_type_name(opt.opt_type)})" if opt.is_required else _text_of(opt.default)
            f.write(f"{name} = {value}\n")
        f.write("\n")


def load_files(dirs: Iterable[str] | None = None) -> ConfigFiles:
    """Load the active config files; see :func:`torchx.config.files.load_files`."""
    return config_files.load_files(_dirs(dirs))


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """Paths of the active config files; see :func:`torchx.config.files.find`."""
    return config_files.find(_dirs(dirs))


def get_configs(prefix: str, name: str, dirs: list[str] | None = None) -> dict[str, str]:
    """Return the values of section ``[prefix:name]``; empty if there is no such section."""
    return get_section(f"{prefix}{CONFIG_PREFIX_DELIM}{name}", dirs)


def get_config(prefix: str, name: str, key: str, dirs: list[str] | None = None) -> str | None:
    """Return the value of one key of section ``[prefix:name]``; None if it is missing."""
    return get_configs(prefix, name, dirs).get(key)


def load_sections(prefix: str, dirs: list[str] | None = None) -> dict[str, dict[str, str]]:
    """Return the values of all sections ``[prefix:name]``, by name."""
    start = prefix + CONFIG_PREFIX_DELIM
    names = [name[len(start) :] for name in load_files(dirs).names() if name.startswith(start)]
    return {name: get_configs(prefix, name, dirs) for name in names}


def get_section(name: str, dirs: list[str] | None = None) -> dict[str, str]:
    """Return the values of section ``[name]``; empty if there is no such section."""
    return {key: entry.text for key, entry in load_files(dirs).section(name, active_profile()).items()}


def warn_of_unknown(section: str, key: str, problem: str, known: Iterable[str]) -> None:
    """Warns once about an unknown key of a section, with its file and line and a similar known key."""
    entry = load_files().section(section, active_profile()).get(key)
    where = CONFIG_FILE if entry is None else entry.where()
    close = did_you_mean(key, known)
    _warn_once(f"{where}: {problem} `{key}`" + (f", {close}" if close else ""))


def check_sections(schedulers: Iterable[str], files: ConfigFiles | None = None) -> None:
    """Warns about sections whose names look like typos.

    Raises:
        ConfigError: no file has a section for the active profile.
    """
    files = load_files() if files is None else files
    files.check_profile(active_profile())
    if files:
        from torchx.config.sections import meant

        for name in files.names():
            close = meant(name, schedulers)
            if close:
                _warn_once(f"{files.where(name)}: unknown section `[{name}]`, did you mean `[{close}]`?")


# -- sources of values -----------------------------------------------------------------------------


def _from_files(scheduler: str, opts: runopts, files: ConfigFiles) -> dict[str, Setting]:
    return _cast_section(scheduler, opts, files.section(scheduler, active_profile())) if files else {}


def _cast_section(scheduler: str, opts: runopts, section: Mapping[str, Entry]) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for key, entry in section.items():
        if key not in opts:
            _warn_once(f"{entry.where()}: {_unknown(scheduler, opts, key)}")
        elif not entry.text.startswith(FIXME):
            where = entry.where()
            settings[opts.name_of(key)] = Setting(_cast(opts, key, entry.text, where), where)
    return settings


def _from_environment(scheduler: str, opts: runopts) -> dict[str, Setting]:
    settings = {}
    for key in opts.names():
        name = f"TORCHX_{scheduler}_{key}".upper().replace("-", "_")
        text = os.environ.get(name)
        if text is not None:
            settings[key] = Setting(_cast(opts, key, text, f"${name}"), f"${name}")
    return settings


def _from_caller(opts: runopts, cfg: Mapping[str, CfgVal]) -> dict[str, Setting]:
    from torchx.specs.options.structured_opts import StructuredOpts

    source = _source_of(cfg)
    if isinstance(cfg, StructuredOpts):  # it has all options: only those that differ from their defaults were given
        cfg = {key: value for key, value in cfg.items() if (opt := opts.get(key)) is None or value != opt.default}
    # None does not set an option, but must reach a scheduler that does not declare its options.
    given = {opts.name_of(key): (key, value) for key, value in cfg.items()}
    return {name: Setting(v, source) for name, (key, v) in given.items() if v is not None or key not in opts}


def _source_of(cfg: Mapping[str, CfgVal]) -> str:
    return cfg.source if isinstance(cfg, SourcedCfg) else CODE


def _cast(opts: runopts, key: str, text: str, where: str) -> CfgVal:
    opt = opts.get(key)
    if opt is None or text == "None" or (not text and opt.opt_type is not str):
        return None
    if opt.is_type_list_of_str or opt.is_type_dict_of_str:
        text = text.replace("\n", ";")
    try:
        return opt.cast_to_type(text)
    except ConfigError as e:
        raise ConfigError(f"{where}: `{key}`: {e}", hint=e.hint) from None


# -- unknown keys ----------------------------------------------------------------------------------


def _check_known(scheduler: str, opts: runopts, cfg: Mapping[str, CfgVal]) -> None:
    from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

    source = _source_of(cfg)
    for key in opts.unknown(cfg):
        if source != CODE:
            raise unknown_option(scheduler, opts, key, source)
        if not len(opts):
            continue  # a scheduler that declares no options accepts any key
        text = _unknown(scheduler, opts, key)
        # The scheduler of a plugin may read options that it does not declare; built-in schedulers do not.
        if scheduler in DEFAULT_SCHEDULER_MODULES or "did you mean" in text:
            raise unknown_option(scheduler, opts, key, "`cfg`")
        _warn_once(f"{text} (passed on as it is)")


def unknown_option(scheduler: str, opts: runopts, key: str, source: str = COMMAND_LINE) -> ConfigError:
    """Return the error for a run option that the scheduler does not have; ``source`` is where it was given."""
    close = did_you_mean(key, [name for name, _ in opts]) or _who_has(key)
    show = f"`torchx runopts {scheduler}` shows them all"
    return ConfigError(
        f"{source}: scheduler `{scheduler}` has no run option `{key}`", hint=f"{close} ({show})" if close else show
    )


def _who_has(key: str) -> str:
    """Return the hint that names the built-in schedulers with an option, or an empty string."""
    from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, get_scheduler_factories

    found = []
    for name in DEFAULT_SCHEDULER_MODULES:
        with contextlib.suppress(TorchXError, ImportError, KeyError):
            backend = get_scheduler_factories()[name]("")
            found += [f"`{name}`"] if backend.run_opts().get(key) is not None else []
            backend.close()
    return f"{' and '.join(found)} {'has' if len(found) == 1 else 'have'} it" if 0 < len(found) < _MANY else ""


def _unknown(scheduler: str, opts: runopts, key: str) -> str:
    close = did_you_mean(key, [name for name, _ in opts])
    return f"scheduler `{scheduler}` has no run option `{key}`" + (f", {close}" if close else "")


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        logger("torchx.config").warning(text)


# -- helpers ---------------------------------------------------------------------------------------


def _dirs(dirs: Iterable[str] | None) -> Iterable[str] | None:
    return DEFAULT_CONFIG_DIRS if dirs is None else dirs


def _run_opts(scheduler: str) -> runopts:
    from torchx.schedulers import get_scheduler_factories, make_scheduler

    made = make_scheduler(scheduler, "config", get_scheduler_factories())
    try:
        return made.run_opts()
    finally:
        made.close()


def _text_of(value: CfgVal) -> str:
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value)
    return join_options({"": value})[1:]
