"""Run options of a scheduler: types, defaults and help, and parsing of a job's values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from torchx.errors import ConfigError
from torchx.specs.cases import cases
from torchx.specs.copies import ATOMS, copy_data
from torchx.specs.options.cfg_literals import cast, split_options
from torchx.util.any import Any
from torchx.util.strings import nearest

CfgVal = str | int | float | bool | list[str] | dict[str, str] | None
"""The value of a run option."""

_SCALARS: tuple[type, ...] = (str, int, float, bool)
_LIST = list[str]
_DICT = dict[str, str]


class InvalidRunConfigException(ConfigError):
    """A run option has an invalid value.

    Args:
        invalid_reason: why the value is invalid.
        cfg_key: name of the option.
        cfg: all run options of the job.
    """

    def __init__(self, invalid_reason: str, cfg_key: str, cfg: Mapping[str, CfgVal], *, hint: str = "") -> None:
        super().__init__(f"run option `{cfg_key}`: {invalid_reason}", hint=hint)
        self.invalid_reason = invalid_reason
        self.cfg_key = cfg_key
        self.cfg = cfg


def get_type_name(tp: Any) -> str:
    """Return the name of an option's type.

    >>> get_type_name(int), get_type_name(list[str])
    ('int', 'list[str]')
    """
    known = _normalize(tp)
    return known.__name__ if known in _SCALARS else str(known).replace("typing.", "")


class runopt:  # noqa: N801 - a public name
    """A run option.

    Args:
        default: the default value.
        opt_type: ``str``, ``int``, ``float``, ``bool``, ``list[str]`` or ``dict[str, str]``.
        is_required: whether a job must set the option.
        help: the help text, or a function that returns it, called on first access.
    """

    __slots__ = ("_help", "default", "is_required", "opt_type")

    def __init__(self, default: CfgVal, opt_type: Any, is_required: bool, help: str | Callable[[], str]) -> None:
        self.default = default
        self.opt_type = _normalize(opt_type)
        self.is_required = is_required
        self._help = help

    @property
    def help(self) -> str:
        if not isinstance(self._help, str):
            self._help = self._help()
        return self._help

    @property
    def is_type_list_of_str(self) -> bool:
        """Whether the type is ``list[str]``."""
        return bool(self.opt_type == _LIST)

    @property
    def is_type_dict_of_str(self) -> bool:
        """Whether the type is ``dict[str, str]``."""
        return bool(self.opt_type == _DICT)

    def cast_to_type(self, value: str) -> CfgVal:
        """Convert a string to the type of the option; :meth:`runopts.cfg_from_str` describes lists and dicts.

        Raises:
            ConfigError: the string is not a value of that type.

        >>> runopt(None, list[str], False, "").cast_to_type("a,b;c")
        ['a', 'b', 'c']
        """
        return cast(value, self.opt_type)

    def __repr__(self) -> str:
        return (
            f"runopt(default={self.default!r}, opt_type={get_type_name(self.opt_type)}, "
            f"is_required={self.is_required}, help={self.help!r})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, runopt):
            return NotImplemented
        mine = (self.default, self.opt_type, self.is_required, self.help)
        return mine == (other.default, other.opt_type, other.is_required, other.help)

    __hash__ = None  # type: ignore[assignment]  # mutable, like the dataclasses beside it


def _as_text(default: Any, tp: Any) -> str:
    """Return a default of another type than its option's as a user would type it: a list as ``a,b``."""
    if isinstance(default, (list, tuple)):
        return ",".join(map(str, default))
    if isinstance(default, dict):
        return ",".join(f"{key}={value}" for key, value in default.items())
    return str(int(default) if isinstance(default, bool) and tp is not str else default)


class runopts:  # noqa: N801 - a public name
    """The run options of a scheduler; iterates over ``(name, runopt)`` sorted by name.

    >>> opts = runopts()
    >>> opts.add("queue", type_=str, help="queue to submit to", required=True)
    >>> opts.add("priority", type_=int, help="priority of the job", default=10)
    >>> opts.resolve({"queue": "gpu"})
    {'queue': 'gpu', 'priority': 10}
    >>> opts.cfg_from_str("queue=gpu,priority=3")
    {'queue': 'gpu', 'priority': 3}
    """

    def __init__(self) -> None:
        self._opts: dict[str, runopt] = {}

    def add(
        self,
        cfg_key: str,
        type_: Any,
        help: str | Callable[[], str],
        default: CfgVal = None,
        required: bool = False,
    ) -> None:
        """Declare an option.

        Raises:
            ConfigError: the type is not supported, the default is of another type and cannot be read as a text of this
                one, or a required option has a default.
        """
        opt = runopt(default, type_, required, help)
        if opt.opt_type not in (*_SCALARS, _LIST, _DICT):
            raise ConfigError(
                f"run option `{cfg_key}` cannot be of type `{get_type_name(type_)}`",
                hint="one of: str, int, float, bool, list[str], dict[str, str]",
            )
        if required and default is not None:
            raise ConfigError(f"run option `{cfg_key}` is required, and has the default `{default}`: it cannot be both")
        if default is not None and not runopts.is_type(default, opt.opt_type):
            try:
                opt.default = cast(_as_text(default, opt.opt_type), opt.opt_type)
            except ConfigError:
                said = f"the default `{default}` of run option `{cfg_key}` is not of type {get_type_name(opt.opt_type)}"
                raise ConfigError(said) from None
        self._opts[cfg_key] = opt

    def get(self, name: str) -> runopt | None:
        """Return the option, or None. ``clusterName`` and ``cluster-name`` also match ``cluster_name``."""
        return self._opts.get(self.name_of(name))

    def name_of(self, key: str) -> str:
        """Return the declared name of the option that ``key`` matches; ``key`` itself if none matches.

        >>> opts = runopts()
        >>> opts.add("mail-type", type_=str, help="when to send mail")
        >>> opts.name_of("mailType"), opts.name_of("mail_type"), opts.name_of("other")
        ('mail-type', 'mail-type', 'other')
        """
        if key in self._opts:
            return key
        plain = cases.option(key).removesuffix("_")  # of a field whose name is a keyword of Python
        return next((name for name in self._opts if cases.option(name) == plain), key)

    def __or__(self, other: runopts) -> runopts:
        """Return the options of both; ``other`` takes precedence."""
        both = runopts()
        both.update(self)
        both.update(other)
        return both

    def update(self, other: runopts) -> None:
        """Add the options of ``other``, which take precedence."""
        self._opts.update(other._opts)

    def unknown(self, cfg: Mapping[str, CfgVal]) -> list[str]:
        """Return the keys of ``cfg`` that are not options.

        >>> runopts().unknown({"quue": "gpu"})
        ['quue']
        """
        return [key for key in cfg if key not in self._opts and key not in self]

    def resolve(self, cfg: Mapping[str, CfgVal]) -> dict[str, CfgVal]:
        """Return ``cfg`` with defaults filled in. Unknown keys are kept; :meth:`unknown` lists them.

        Raises:
            InvalidRunConfigException: a required option has no value, or a value has the wrong type.
        """
        resolved: dict[str, CfgVal] = dict(cfg)
        for key in [key for key in resolved if key not in self._opts]:
            name = self.name_of(key)
            if name != key:
                resolved.setdefault(name, resolved.pop(key))
        for name, opt in self._opts.items():
            value = resolved.get(name)
            if value is None:
                if opt.is_required:
                    raise self._missing(name, opt, cfg)
                default = opt.default
                resolved[name] = default if default.__class__ in ATOMS else copy_data(default)
            elif value.__class__ is not opt.opt_type and not runopts.is_type(value, opt.opt_type):
                raise InvalidRunConfigException(
                    f"`{value}` is of type {type(value).__name__}, and {get_type_name(opt.opt_type)} is expected",
                    name,
                    cfg,
                )
            elif value.__class__ is str and "\0" in value:
                raise InvalidRunConfigException(f"`{value!a}` has a NUL character in it", name, cfg)
        return resolved

    def cfg_from_str(self, cfg_str: str) -> dict[str, CfgVal]:
        """Parse ``name=value,name=value,...``; values of unknown options stay strings.

        ======================  ============================================================================
        ``a=1,b=x``             two options; before the name of an option, ``;`` also separates
        ``l=x;y;z``             a ``list[str]``, separated by ``;`` or ``,``
        ``d=K:v;K2:v2``         a ``dict[str, str]``, separated by ``;`` or ``,``; ``=`` may replace ``:``
        ``s=x,y``               a comma without ``name=`` after it belongs to the value of a ``str``
        ``s="x,y=1"``           quotes (``'`` or ``"``) around a value or an item protect separators in it
        ======================  ============================================================================

        Raises:
            InvalidRunConfigException: a value has the wrong type.
            ConfigError: there is text before the first name.
        """
        cfg: dict[str, CfgVal] = {}
        for name, text in split_options(cfg_str, self._opts):
            cfg[name] = self._cast(name, text, cfg)
        return cfg

    def cfg_from_json_repr(self, json_repr: str) -> dict[str, CfgVal]:
        """Parse a JSON object; strings are converted to the type of their option.

        Raises:
            InvalidRunConfigException: a value has the wrong type.
            ConfigError: the text is not a JSON object.
        """
        import json

        try:
            read = json.loads(json_repr)
        except (ValueError, RecursionError) as e:
            raise ConfigError(f"run options are not valid JSON: {e}: `{json_repr}`") from None
        if not isinstance(read, dict):
            raise ConfigError(f"run options are not a JSON object: `{json_repr}`", hint='write `{"name": value}`')
        cfg: dict[str, CfgVal] = {}
        for name, value in read.items():
            opt = self.get(name)
            if opt is not None and isinstance(value, str):
                cfg[name] = self._cast(name, value, read)
                continue
            if opt is not None and value is not None and not runopts.is_type(value, opt.opt_type):
                reason = f"`{json.dumps(value)}` is not of type {get_type_name(opt.opt_type)}"
                raise InvalidRunConfigException(reason, name, read)
            cfg[name] = value
        return cfg

    @staticmethod
    def is_type(obj: CfgVal, tp: Any) -> bool:
        """Whether ``obj`` is a value of the type; an int is also a float, a bool is not an int.

        >>> runopts.is_type(["a"], list[str]), runopts.is_type([1], list[str]), runopts.is_type(True, int)
        (True, False, False)
        """
        tp = _normalize(tp)
        if tp == _LIST:
            return isinstance(obj, list) and all(isinstance(item, str) for item in obj)
        if tp == _DICT:
            return isinstance(obj, dict) and all(isinstance(k, str) and isinstance(v, str) for k, v in obj.items())
        if isinstance(obj, bool):
            return bool(tp is bool)
        return isinstance(obj, (int, float) if tp is float else tp)

    def names(self) -> Iterable[str]:
        """Return the names in the order of declaration."""
        return self._opts

    def __iter__(self) -> Iterator[tuple[str, runopt]]:
        return iter(sorted(self._opts.items()))

    def __len__(self) -> int:
        return len(self._opts)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.name_of(name) in self._opts

    def __repr__(self) -> str:
        """Return the help text: usage, required and optional options."""
        required = [(name, opt) for name, opt in self if opt.is_required]
        optional = [(name, opt) for name, opt in self if not opt.is_required]
        usage = [f"{n}={n.upper()}" for n, _ in required] + [f"[{n}={n.upper()}]" for n, _ in optional]
        lines = ["usage:", f"    {','.join(usage)}"]
        for title, group in (("required arguments:", required), ("optional arguments:", optional)):
            if group:
                lines += ["", title]
            for name, opt in group:
                default = "" if opt.is_required else f", {opt.default}"
                lines.append(f"    {name}={name.upper()} ({get_type_name(opt.opt_type)}{default})")
                lines += [f"        {line.strip()}" for line in opt.help.strip().splitlines()]
        return "\n".join(lines)

    def _cast(self, name: str, text: str, cfg: Mapping[str, CfgVal]) -> CfgVal:
        opt = self.get(name)
        try:
            return cast(text, str if opt is None else opt.opt_type)
        except ConfigError as e:
            number = f"for example `{name}={opt.opt_type(4)}`" if opt and opt.opt_type in (int, float) else ""
            raise InvalidRunConfigException(str(e), name, cfg, hint=e.hint or number) from None

    def _missing(self, name: str, opt: runopt, cfg: Mapping[str, CfgVal]) -> InvalidRunConfigException:
        typo = nearest(name, self.unknown(cfg))
        hint = f"did you mean `{name}` by `{typo}`?" if typo else f"give it as `{name}=VALUE`"
        reason = f"a value is required, of type {get_type_name(opt.opt_type)}"
        return InvalidRunConfigException(reason, name, cfg, hint=hint)


def _normalize(tp: Any) -> Any:
    """Convert ``typing.List[str]`` to ``list[str]``, and so on."""
    origin = getattr(tp, "__origin__", None)
    return origin[tp.__args__] if origin in (list, dict) else tp
