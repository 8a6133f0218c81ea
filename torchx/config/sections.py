"""Names of the sections of a config file, and which one a name was meant to be."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torchx.util.strings import nearest

_WHOLE = ("named_resources", "cli:run", "torchx:tracker", "secrets", "notify", "metrics")


def meant(section: str, schedulers: Iterable[str]) -> str | None:
    """The name that a section was probably meant to have; None for one that means something, or is somebody else's.

    Args:
        section: its name, without a profile.
        schedulers: names of those that are installed.

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
    # One file serves environments with other plugins: of what may be a component there, only a likely typo is said.
    cutoff = 0.8 if prefix == "component" else 0.6
    near = None if rest in (names := choices(rest)) else nearest(rest, names, cutoff)
    return near and f"{prefix}:{near}"


def _components(name: str) -> Iterable[str]:
    """Names near to that of a component; none when it can be one that only an import would show."""
    from torchx.component_reader.finder import component_names
    from torchx.plugins import COMPONENTS, names

    of_plugins = names(COMPONENTS)
    if ".py:" in name or any(n[:1] == "_" or f"{name}.".startswith(f"{n}.") for n in of_plugins):
        return ()
    return component_names()


def _commands(name: str) -> Iterable[str]:
    from torchx.plugins import COMMANDS, names

    return ["run", *names(COMMANDS)] if name != "run" else ()


def _trackers(_: str) -> Iterable[str]:
    return ()  # any: the module that makes one may be installed in the job's image only


_CHOICES: dict[str, Callable[[str], Iterable[str]]] = {
    "component": _components,
    "cli": _commands,
    "torchx": lambda _: ["tracker"],
    "tracker": _trackers,
}
