"""Run options of a scheduler as the fields of a dataclass."""

from __future__ import annotations

import functools
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchx.errors import ConfigError
from torchx.specs.cases import cases
from torchx.specs.options.runopts import CfgVal, runopts
from torchx.util.records import own_annotations, record_fields

if TYPE_CHECKING:
    from typing_extensions import Self


class StructuredOpts(Mapping[str, "CfgVal"]):
    """Base of dataclasses that declare and hold the run options of a scheduler; also a mapping of the options.

    Each field declares an option with its name and type (``X | None`` if optional); the string literal below the field
    is the help. A field without default is required. ``clusterName`` matches the field ``cluster_name``.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class MyOpts(StructuredOpts):
    ...     cluster: str
    ...     priority: int | None = None
    >>> opts = MyOpts.from_cfg({"cluster": "prod"})
    >>> opts.cluster, opts.priority
    ('prod', None)
    >>> opts | {"priority": 3}
    {'cluster': 'prod', 'priority': 3}
    >>> {name: opt.is_required for name, opt in MyOpts.as_runopts()}
    {'cluster': True, 'priority': False}
    """

    _names: tuple[tuple[str, str], ...] = ()
    """Field -> option, where the name of an option is not one of Python's."""

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return the declared options, for ``Scheduler._run_opts``."""
        opts, names = runopts(), dict(cls._names)
        for name, tp, default, has in _fields(cls):
            opts.add(names.get(name, name), type_=tp, help=_help_of(cls, name), default=default, required=not has)
        return opts

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, CfgVal]) -> Self:
        """Create an instance from ``cfg``. Missing options get their default; unknown keys are ignored.

        Raises:
            ConfigError: a required option is missing.
        """
        values: dict[str, CfgVal] = {}
        missing: list[str] = []
        names = dict(cls._names)
        aliases = {cases.option(key): cfg[key] for key in cfg if not key.islower() or "-" in key}
        for name, _, _, has_default in _fields(cls):
            value = cfg.get(names.get(name, name), cfg.get(name))
            if value is None and aliases:
                value = aliases.get(name)
            if value is not None:
                values[name] = value
            elif not has_default:
                missing.append(name)
        if missing:
            which = ", ".join(f"`{name}`" for name in missing)
            raise ConfigError(f"run option {which} is required", hint=f"give it as `{missing[0]}=VALUE`")
        return cls(**values)

    def __getitem__(self, key: str) -> CfgVal:
        if key not in self:
            raise KeyError(key)
        value: CfgVal = getattr(self, cases.option(key))
        return value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and cases.option(key) in iter(self)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _, _, _ in _fields(type(self)))

    def __len__(self) -> int:
        return len(_fields(type(self)))

    def __or__(self, other: Mapping[str, CfgVal]) -> dict[str, CfgVal]:
        return {**self, **other}

    def __ror__(self, other: Mapping[str, CfgVal]) -> dict[str, CfgVal]:
        return {**other, **self}

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Return the help of the fields; empty if the source is not available, for example in a REPL."""
        from torchx.util.field_docs import field_docs

        return field_docs(cls, StructuredOpts)


def _help_of(cls: type[StructuredOpts], name: str) -> Callable[[], str]:
    return lambda: cls.get_docstrings().get(name, "")  # lazy: it parses the source


@functools.cache
def _fields(cls: Any) -> list[tuple[str, Any, CfgVal, bool]]:
    """Return name, type, default, and whether there is a default, of each field."""
    # A subclass without a decorator has the fields of its base.
    decorated = next((base for base in cls.__mro__ if "__dataclass_fields__" in base.__dict__), None)
    if decorated is None:
        raise ConfigError(
            f"`{cls.__name__}` is a StructuredOpts, but not a dataclass", hint="put `@dataclass` above the class"
        )
    return [(n, _resolve_type(cls, n, tp), default, has) for n, tp, default, has in record_fields(decorated)]


def _resolve_type(cls: Any, name: str, annotation: Any) -> Any:
    while isinstance(annotation, str):  # `from __future__ import annotations` quotes a quoted annotation again
        annotation = _evaluate(cls, name, annotation)
    args = getattr(annotation, "__args__", ())
    if type(None) in args:  # a union with None
        (inner,) = [arg for arg in args if arg is not type(None)] if len(args) == 2 else [annotation]
        return inner
    return annotation


def _evaluate(cls: Any, name: str, annotation: str) -> Any:
    owner = next((base for base in cls.__mro__ if name in own_annotations(base)), cls)
    module = sys.modules.get(owner.__module__)
    try:
        return eval(annotation, {**vars(typing), **(vars(module) if module else {})})  # noqa: S307 - of an imported module
    except Exception as e:
        raise ConfigError(f"the type `{annotation}` of option `{name}` of `{cls.__name__}` cannot be read: {e}") from e
