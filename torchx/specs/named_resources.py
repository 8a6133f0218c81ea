"""Named resources: built in, from plugins, and from configuration files.

For the same name, a configuration file takes precedence over a plugin, and a plugin over a built-in resource. The
module itself is a mapping of names to resources.

>>> from torchx.specs import named_resources
>>> named_resources["gpu.small"].gpu, "gpu.tiny" in named_resources
(1, False)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType

from torchx.errors import SpecError, TorchXError
from torchx.specs import configured, named_resources_aws, named_resources_generic
from torchx.specs.api import Resource
from torchx.specs.options.runopts import runopts
from torchx.util.strings import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from torchx.plugins import Registry

AWS_NAMED_RESOURCES = named_resources_aws.NAMED_RESOURCES
GENERIC_NAMED_RESOURCES = named_resources_generic.NAMED_RESOURCES

ResourceFactory = Callable[[], Resource]
"""A function that returns a new resource at each call."""

_GROUP = "torchx.named_resources"
# Names for an unspecified resource, which a component may use as default of an argument.
_NULLS = ("MISSING", "NULL")


class UnknownNamedResourceError(SpecError, KeyError):
    """No named resource has that name."""


def resource(
    cpu: int | None = None,
    gpu: int | None = None,
    memMB: int | None = None,
    h: str | None = None,
) -> Resource:
    """Return a resource by name, or from the given amounts.

    Args:
        cpu: logical cores, by default 2.
        gpu: GPUs, by default 0.
        memMB: memory in MiB, by default 1024.
        h: name of a named resource; overrides the other arguments.

    Raises:
        UnknownNamedResourceError: no named resource has that name.

    >>> resource(cpu=2), resource(cpu=2, h="gpu.small").gpu
    (Resource(cpu=2, gpu=0, memMB=1024), 1)
    """
    if h:
        return get_named_resources(h)
    return Resource(
        cpu=2 if cpu is None else cpu,
        gpu=0 if gpu is None else gpu,
        memMB=1024 if memMB is None else memMB,
    )


def get_named_resources(res: str) -> Resource:
    """Return a new resource of that name; ``NULL`` and ``MISSING`` return the null resource.

    Raises:
        UnknownNamedResourceError: no named resource has that name; also a ``KeyError``.
        SpecError: the factory or the configured text is invalid.

    >>> get_named_resources("aws_p3.2xlarge").gpu
    1
    """
    if res in _NULLS:
        return Resource(cpu=-1, gpu=-1, memMB=-1)
    text = configured.named_resources().get(res)
    if text is not None:
        return parse_resource(text, name=res)
    registry = _registry()
    if res not in registry:
        names = all_names()
        hint = did_you_mean(res, names) or f"there are: {', '.join(names)}"
        raise UnknownNamedResourceError(f"named resource `{res}` is not known", hint=hint)
    return _made_by(registry.get(res), res)


def all_names() -> list[str]:
    """Return all names, without loading plugins."""
    return sorted({*_registry().names(), *configured.named_resources()})


def parse_resource(text: str, *, name: str = "") -> Resource:
    """Parse the text of a resource: ``cpu=4,gpu=1,memMB=8192``, or a JSON object; messages name it ``name``.

    ``devices`` and ``capabilities`` are supported too: ``cpu=4,memMB=8192,devices=vpc.amazonaws.com/efa:1``.

    Raises:
        SpecError: a key is unknown, a value has the wrong type, or ``cpu`` or ``memMB`` is missing.

    >>> parse_resource('{"cpu": 4, "memMB": 8192, "devices": {"vpc.amazonaws.com/efa": 1}}').devices
    {'vpc.amazonaws.com/efa': 1}
    """
    what = f"named resource `{name}`" if name else "resource"
    try:
        values = _checked(_read(text))
        return Resource(**values)
    except (TypeError, ValueError, RecursionError) as e:  # SpecError and ConfigError are ValueErrors
        hint = getattr(e, "hint", "") or "write `cpu=4,gpu=1,memMB=8192`"
        raise SpecError(f"{what} `{text}`: {e}", hint=hint) from None


def _read(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        import json

        return dict(json.loads(text))

    opts = runopts()
    for key, tp in _TYPES.items():
        opts.add(key, type_=int if tp is int else dict[str, str], help="")
    return dict(opts.cfg_from_str(text))


def _checked(values: dict[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        tp = _TYPES.get(key)
        if tp is None:
            hint = did_you_mean(key, _TYPES) or f"one of: {', '.join(_TYPES)}"
            raise SpecError(f"`{key}` is not known", hint=hint)
        if not isinstance(value, tp) or isinstance(value, bool):
            raise SpecError(f"`{key}={value}` is not {'a whole number' if tp is int else 'an object'}")
    for key in ("cpu", "memMB"):
        if key not in values:
            raise SpecError(f"`{key}` is missing")
    return {**values, "devices": {name: int(n) for name, n in values.get("devices", {}).items()}}


_TYPES: dict[str, type] = {"cpu": int, "gpu": int, "memMB": int, "devices": dict, "capabilities": dict}


def _registry() -> Registry[ResourceFactory]:
    from torchx.plugins import Registry

    factories = {**GENERIC_NAMED_RESOURCES, **AWS_NAMED_RESOURCES}
    return Registry(_GROUP, {name: f"{made.__module__}:{made.__name__}" for name, made in factories.items()})


def _made_by(factory: ResourceFactory, name: str) -> Resource:
    try:
        made = factory()
    except TorchXError:
        raise
    except Exception as e:  # a plugin's own code
        raise SpecError(f"the factory of named resource `{name}` raised {type(e).__name__}: {e}") from e
    if not isinstance(made, Resource):
        raise SpecError(
            f"named resource `{name}` is a {type(made).__name__}",
            hint="its function must return a torchx.specs.Resource",
        )
    return made


class _CustomResources(Mapping[str, ResourceFactory]):
    """Named resources that are not built in; each access looks them up again."""

    def __getitem__(self, name: str) -> ResourceFactory:
        if name not in self._names():
            raise KeyError(name)
        return lambda: get_named_resources(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __repr__(self) -> str:
        return f"<named resources of plugins and configuration: {', '.join(self._names()) or 'none'}>"

    def _names(self) -> list[str]:
        from torchx.plugins import names

        return sorted({*names(_GROUP), *configured.named_resources()})


CUSTOM_NAMED_RESOURCES: Mapping[str, ResourceFactory] = _CustomResources()
"""Factories by name, from plugins and configuration files."""


class _NamedResources(ModuleType, Mapping[str, Resource]):
    """The class of this module: each access returns a new resource."""

    __eq__ = ModuleType.__eq__  # modules are compared by identity, and are hashable
    __hash__ = ModuleType.__hash__

    def __getitem__(self, name: str) -> Resource:
        return get_named_resources(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def _names(self) -> list[str]:
        return [*all_names(), *_NULLS]


named_resources = sys.modules["torchx.specs.named_resources"]
named_resources.__class__ = _NamedResources
