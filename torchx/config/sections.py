"""Finds typos in the names of config file sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchx.util.strings import nearest

_WHOLE = (
    "named_resources",
    "cli:run",
    "torchx:tracker",
    "secrets",
    "notify",
    "metrics",
    "workspace",
    "failures",
    "cli",
    "prices",
    "logs",
)


def meant(section: str, schedulers: Iterable[str]) -> str | None:
    """Return the probable intended name of a section; None if the name is valid, or belongs to another tool.

    >>> meant("local_cdw", ["local_cwd"]), meant("componnt:utils.echo", []), meant("my_tool", ["slurm"])
    ('local_cwd', 'component:utils.echo', None)
    """
    from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

    known = [*schedulers, *DEFAULT_SCHEDULER_MODULES, *_WHOLE]
    if section in known:
        return None
    prefix, colon, rest = section.partition(":")
    if not colon:
        return nearest(section, known)
    choices = _CHOICES.get(prefix)
    if choices is None:
        near = nearest(prefix, _CHOICES)
        return near and f"{near}:{rest}"
    # Other environments with the same file may have further components: report only very similar names.
    cutoff = 0.8 if prefix == "component" else 0.6
    near = None if rest in (names := choices(rest)) else nearest(rest, names, cutoff)
    return near and f"{prefix}:{near}"


def _components(name: str) -> Iterable[str]:
    """Return the names of all components; empty if only an import could show whether ``name`` exists."""
    from torchx.component_reader.finder import component_names
    from torchx.plugins import COMPONENTS, names

    of_plugins = names(COMPONENTS)
    if ".py:" in name or any(n[:1] == "_" or f"{name}.".startswith(f"{n}.") for n in of_plugins):
        return ()
    return component_names()


def _commands(name: str) -> Iterable[str]:
    from torchx.plugins import COMMANDS, names

    return ["run", *names(COMMANDS)] if name != "run" else ()


def _gpu_backends() -> Iterable[str]:
    from torchx.schedulers import get_scheduler_factories

    return get_scheduler_factories()


_CHOICES: dict[str, Callable[[str], Iterable[str]]] = {
    "component": _components,
    "cli": _commands,
    "torchx": lambda _: ["tracker"],
    "gpu_types": lambda _: _gpu_backends(),
    "tracker": lambda _: (),  # any name: the tracker may be installed only in the job's image
}
