"""Rules of a server for what a job names: a dry run and ``doctor`` apply them without asking it.

Each backend names one table of them in its attribute ``rules``: rows of :class:`Rule`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchx.errors import SpecError
from torchx.specs.api import Role, VolumeMount
from torchx.util.records import dataclass

Allows = Callable[[Any], object]
Find = Callable[[Role], Iterable[tuple[str, Any]]]
"""Return what a rule is about: words that name it, and the value."""
When = Callable[[Mapping[str, Any]], object]


def _always(_: Mapping[str, Any]) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """A rule: ``find`` names a run option, or finds values in a role; what it does not allow is refused.

    ``said`` ends a sentence that begins with the value. The rule holds if the run options are as ``when`` says.
    """

    find: str | Find
    allows: Allows
    said: str
    hint: str = ""
    when: When = _always


def broken(table: str, roles: Iterable[Role], cfg: Any) -> Iterator[SpecError]:
    """Yield an error for each value that a rule of a table refuses. Values with macros are not known yet."""
    module, _, name = table.partition(":")
    for rule in getattr(__import__(module, fromlist=[name]), name) if table else ():
        if not rule.when(cfg):
            continue
        if isinstance(rule.find, str):
            found = [(f"`{rule.find}`", cfg.get(rule.find))] if cfg.get(rule.find) is not None else []
        else:
            found = [(f"role `{role.name}`: {what}", value) for role in roles for what, value in rule.find(role)]
        for what, value in found:
            if not (isinstance(value, str) and "${" in value) and not rule.allows(value):
                shown = f"`{value}`" if value != "" else "empty"
                yield SpecError(f"{what} is {shown}, {rule.said}", hint=rule.hint)


def text(pattern: str, most: int = 253) -> Allows:
    """Return a check for texts that match as a whole.

    >>> text("[a-z]+", 3)("ab"), text("[a-z]+", 3)("abcd"), text("[a-z]+")(1)
    (True, False, False)
    """
    return lambda value: isinstance(value, str) and len(value) <= most and bool(re.fullmatch(pattern, value))


def whole(least: int, most: float = float("inf")) -> Allows:
    """Return a check for whole numbers.

    >>> whole(1)(1), whole(1, 3)(4), whole(1)(True), whole(1)("1")
    (True, False, False, False)
    """
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def mount_paths(role: Role) -> list[tuple[str, Any]]:
    """Return the values of a rule for mounts: their paths. The backend itself refuses what is not a mount."""
    return [("a mount's path", mount.dst_path) for mount in role.mounts if hasattr(mount, "dst_path")]


def _repeated(role: Role) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for _, given in mount_paths(role):
        path = given.rstrip("/") or "/"
        yield ("the path of two mounts", path) if path in seen else ("", None)
        seen.add(path)


LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = text(rf"{LABEL}(\.{LABEL})*")
NAME = r"[A-Za-z0-9]([-\w.]*[A-Za-z0-9])?"
QUALIFIED = rf"({LABEL}(\.{LABEL})*/)?{NAME}"


def _images(role: Role) -> Iterator[tuple[str, Any]]:
    """Yield the image, unless the workspace's own Dockerfile names it."""
    if not role.image and role.workspace:
        from torchx.workspace.images.docker_context import own_dockerfile

        text = own_dockerfile(role.workspace)
        if text and not re.search(rb"\$\{?IMAGE\b", text):
            return
    yield "the image", role.image


_IMAGE = r"([\w.-]+(:\d+)?/)?[^A-Z\s:@]+(:[\w.-]{1,128})?(@sha256:[0-9a-f]{64})?"


def images(when: When = _always) -> tuple[Rule, Rule]:
    """Return the rules for the images of roles that run in containers: that there is one, and its form."""
    which = "and jobs run in containers here: which one (`--image HOST/NAME:TAG`)?"
    for_all = "for all jobs: `TORCHX_IMAGE`, or `image` in `[cli:run]` of `.torchxconfig`"
    other = "name another: `--image HOST/NAME:TAG`"
    return (
        Rule(_images, bool, which, for_all, when),
        Rule(_images, text(f"({_IMAGE})?", 4096), "which is not the name of a container image", other, when),
    )


PORTS = Rule(lambda r: [(f"port `{name}`", n) for name, n in r.port_map.items()], whole(1, 65535), "not 1 to 65535")
MOUNTS = (
    Rule(
        lambda r: [("a mount's source", getattr(m, "src_path", "/")) for m in r.mounts], text("[/~].*"), "not absolute"
    ),
    Rule(mount_paths, text("/.*", 4096), "not an absolute path"),
    Rule(_repeated, lambda value: value is None, "and a path can have one only", "remove one, or choose another path"),
)
DEVICES = Rule(
    lambda r: [(f"the number of `{name}`", n) for name, n in r.resource.devices.items()], whole(0), "not 0 or more"
)


def one_of(option: str, *values: str) -> Rule:
    """Return the rule for an option with a few values."""
    return Rule(option, values.__contains__, f"not one of {', '.join(values)}")


def volumes(allows: Allows, said: str) -> Rule:
    """Return the rule for names of volumes."""
    return Rule(lambda r: [("a volume", m.src) for m in r.mounts if isinstance(m, VolumeMount)], allows, said)
