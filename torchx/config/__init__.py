"""``.torchxconfig`` and all other places that a run option comes from.

Precedence, lowest first: the option's default, the home directory's file, the current directory's file, the environment
(``TORCHX_<SCHEDULER>_<OPTION>``), the command line, code. ``$TORCHXCONFIG`` names one file to read instead of the two.
A profile (``--profile NAME``, ``$TORCHX_PROFILE``) lays ``[section@NAME]`` over ``[section]``.

.. code-block:: ini

    [slurm]
    partition = gpu
    mail-type = END

    [slurm@debug]
    partition = debug

    [component:dist.ddp]
    image = my_image:latest

    [cli:run]
    component = dist.ddp

    [tracker:fsspec]
    config = /shared/runs.conf

    [torchx:tracker]
    fsspec =
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from torchx.config import files as config_files
from torchx.config.files import CONFIG_FILE, ConfigFiles, active_profile, default_dirs, use_profile
from torchx.errors import ConfigError, TorchXError
from torchx.settings import ENV_CONFIG
from torchx.specs.api import UnknownSchedulerException, get_type_name
from torchx.specs.cfg_literals import join_options
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.reexports import reexports
from torchx.util.strings import did_you_mean

if TYPE_CHECKING:
    from torchx.config.ini import Entry
    from torchx.specs.api import CfgVal, runopts

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
"""What :func:`dump` writes where a value is needed; it counts as no value."""

DEFAULT = "default"
CODE = "code"
COMMAND_LINE = "-cfg"

_warned: set[str] = set()


class _DefaultDirs(Sequence[str]):
    """The current directory and the home directory, as they are when somebody looks: both may change."""

    def __getitem__(self, index: Any) -> Any:
        return default_dirs()[index]

    def __len__(self) -> int:
        return len(default_dirs())

    def __iter__(self) -> Iterator[str]:
        return iter(default_dirs())

    def __repr__(self) -> str:
        return repr(default_dirs())


DEFAULT_CONFIG_DIRS: Sequence[str] = _DefaultDirs()
"""Where config files are looked for, in order of precedence, the highest first."""


@dataclass
class Setting:
    """The value of a run option, and where it comes from.

    ``source`` is ``default``, ``file:line``, the name of an environment variable, ``-cfg``, or ``code``.
    """

    value: CfgVal
    source: str


class SourcedCfg(dict):  # type: ignore[type-arg]  # `dict[str, CfgVal]` as a base would import typing's machinery
    """A cfg that knows where it comes from; whatever is given without is from code.

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
    """Every run option's value and where it comes from, by the precedence above.

    Args:
        scheduler: name of the scheduler, which is the name of its section.
        opts: the options that it takes.
        cfg: what the caller gives; a :class:`SourcedCfg` when it is not code that gives it.
        files: what :func:`load_files` has just returned, for callers that ask it for more; None: those in force.

    Raises:
        ConfigError: a value is not of its option's type, a required one is missing, a key is unknown, or a config file
            is malformed. An unknown key in a file is warned about; so is one that code gives to the scheduler of a
            plugin, unless it is near the name of an option: it is passed on.

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
    """Adds to ``cfg`` the values of the scheduler's section that it does not have yet.

    Args:
        dirs: directories to look for config files in, in order of precedence, the highest first.

    Raises:
        ConfigError: a value is not of its option's type, or a config file is malformed.
    """
    for key, setting in _from_files(scheduler, _run_opts(scheduler), load_files(dirs)).items():
        cfg.setdefault(key, setting.value)


def load(scheduler: str, f: TextIO, cfg: dict[str, CfgVal]) -> None:
    """Adds to ``cfg`` the values of the scheduler's section in an open file that it does not have yet.

    Raises:
        ConfigError: a value is not of its option's type, or the text is malformed.
    """
    from torchx.config.ini import parse

    section: Mapping[str, Entry] = parse(f, str(getattr(f, "name", CONFIG_FILE))).get(scheduler) or {}
    for key, setting in _cast_section(scheduler, _run_opts(scheduler), section).items():
        cfg.setdefault(key, setting.value)


def dump(f: TextIO, schedulers: list[str] | None = None, required_only: bool = False) -> None:
    """Writes a template of a config file: a section for each scheduler with its options, their defaults and their help.

    Args:
        schedulers: names; all when None, less those that cannot be loaded, with a warning.
        required_only: leave out the options that have a default.

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
    """What the config files in force say; see :func:`torchx.config.files.load_files`."""
    return config_files.load_files(_dirs(dirs))


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """Paths of the config files in force; see :func:`torchx.config.files.find`."""
    return config_files.find(_dirs(dirs))


def get_configs(prefix: str, name: str, dirs: list[str] | None = None) -> dict[str, str]:
    """The values of section ``[prefix:name]``; none when there is no such section."""
    return get_section(f"{prefix}{CONFIG_PREFIX_DELIM}{name}", dirs)


def get_config(prefix: str, name: str, key: str, dirs: list[str] | None = None) -> str | None:
    """The value of one key of section ``[prefix:name]``; None when it is not there."""
    return get_configs(prefix, name, dirs).get(key)


def load_sections(prefix: str, dirs: list[str] | None = None) -> dict[str, dict[str, str]]:
    """The values of all sections ``[prefix:name]``, by name."""
    start = prefix + CONFIG_PREFIX_DELIM
    names = [name[len(start) :] for name in load_files(dirs).names() if name.startswith(start)]
    return {name: get_configs(prefix, name, dirs) for name in names}


def get_section(name: str, dirs: list[str] | None = None) -> dict[str, str]:
    """The values of section ``[name]``; none when there is no such section."""
    return {key: entry.text for key, entry in load_files(dirs).section(name, active_profile()).items()}


def warn_of_unknown(section: str, key: str, problem: str, known: Iterable[str]) -> None:
    """Warns, once, about an unknown key of a section: where it is, and which known key is similar."""
    entry = load_files().section(section, active_profile()).get(key)
    where = CONFIG_FILE if entry is None else entry.where()
    close = did_you_mean(key, known)
    _warn_once(f"{where}: {problem} `{key}`" + (f", {close}" if close else ""))


def check_sections(schedulers: Iterable[str], files: ConfigFiles | None = None) -> None:
    """Warns about sections whose names look like typos; raises an error for a profile without a section.

    Raises:
        ConfigError: the active profile is in no file.
    """
    files = load_files() if files is None else files
    files.check_profile(active_profile())
    if files:
        from torchx.config.sections import meant

        for name in files.names():
            close = meant(name, schedulers)
            if close:
                _warn_once(f"{files.where(name)}: section `[{name}]` means nothing, did you mean `[{close}]`?")


# -- where values come from ------------------------------------------------------------------------


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


@functools.lru_cache(maxsize=1024)
def _variable_name(scheduler: str, key: str) -> str:
    return f"TORCHX_{scheduler}_{key}".upper().replace("-", "_")


def _from_environment(scheduler: str, opts: runopts) -> dict[str, Setting]:
    settings = {}
    for key in opts.names():
        name = _variable_name(scheduler, key)
        text = os.environ.get(name)
        if text is not None:
            settings[key] = Setting(_cast(opts, key, text, f"${name}"), f"${name}")
    return settings


def _from_caller(opts: runopts, cfg: Mapping[str, CfgVal]) -> dict[str, Setting]:
    from torchx.specs.structured_opts import StructuredOpts

    source = _source_of(cfg)
    if isinstance(cfg, StructuredOpts):  # it has all options: those that differ from the defaults were meant
        cfg = {key: value for key, value in cfg.items() if (opt := opts.get(key)) is None or value != opt.default}
    # None says nothing about an option, but must reach a scheduler that does not declare its options.
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


# -- keys that no option has -----------------------------------------------------------------------


def _check_known(scheduler: str, opts: runopts, cfg: Mapping[str, CfgVal]) -> None:
    from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

    source = _source_of(cfg)
    for key in opts.unknown(cfg):
        if source != CODE:
            raise unknown_option(scheduler, opts, key, source)
        if not len(opts):
            continue  # a scheduler that declares no options takes any
        text = _unknown(scheduler, opts, key)
        # Ours read no option but those that they declare; a plugin's may.
        if scheduler in DEFAULT_SCHEDULER_MODULES or "did you mean" in text:
            raise unknown_option(scheduler, opts, key, "`cfg`")
        _warn_once(f"{text} (passed on as it is)")


def unknown_option(scheduler: str, opts: runopts, key: str, source: str = COMMAND_LINE) -> ConfigError:
    """The error for a run option that the scheduler does not have.

    Args:
        source: who gave it.
    """
    close = did_you_mean(key, [name for name, _ in opts])
    show = f"`torchx runopts {scheduler}` shows them all"
    return ConfigError(
        f"{source}: scheduler `{scheduler}` has no run option `{key}`", hint=f"{close} ({show})" if close else show
    )


def _unknown(scheduler: str, opts: runopts, key: str) -> str:
    close = did_you_mean(key, [name for name, _ in opts])
    return f"scheduler `{scheduler}` has no run option `{key}`" + (f", {close}" if close else "")


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        logger("torchx.config").warning(text)


# -- small things ----------------------------------------------------------------------------------


def _dirs(dirs: Iterable[str] | None) -> Iterable[str] | None:
    return DEFAULT_CONFIG_DIRS if dirs is None else dirs


def _run_opts(scheduler: str) -> runopts:
    from torchx.schedulers import get_scheduler_factories

    factories = get_scheduler_factories()
    if scheduler not in factories:
        raise UnknownSchedulerException(scheduler, factories)
    made: Any = factories[scheduler]("config")
    try:
        opts: runopts = made.run_opts()
    finally:
        made.close()
    return opts


def _text_of(value: CfgVal) -> str:
    if value is None or isinstance(value, (str, bool, int, float)):
        return str(value)
    return join_options({"": value})[1:]
