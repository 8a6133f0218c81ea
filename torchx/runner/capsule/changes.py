"""``--set PATH=VALUE``: changes to the AppDef of a recorded job, by paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torchx.errors import SpecError
from torchx.specs.api import AppDef
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict
from torchx.util.foreign import loads
from torchx.util.strings import did_you_mean

_STRINGS = ("env",)
"""Mappings whose values are always text, even if they look like JSON."""
_OPEN = ("env", "metadata", "port_map", "devices", "capabilities", "tags", "overrides")
"""Mappings to which keys may be added."""
_ORDER: dict[str, Any] = {"after": [], "ready": None, "ends_job": False, "restarts_after": False}
"""Fields of a role that are only recorded where they are set."""


def changed(app: AppDef, changes: Iterable[str]) -> AppDef:
    """Return a copy of the app with changed values.

    Args:
        changes: ``roles.NAME.FIELD=VALUE``, for example ``roles.trainer.resource.gpu=4``. Without ``roles.NAME``, the
            field of each role is changed. NAME may be the number of a role. VALUE is text or JSON, as the field
            requires.

    Raises:
        SpecError: there is no such field, or the value has the wrong type.

    >>> from torchx.specs.api import AppDef, Role
    >>> app = changed(AppDef("a", [Role("trainer", "img", args=["--nnodes", "1:4"])]), ["env.LR=1", "num_replicas=8"])
    >>> app.roles[0].env, app.roles[0].num_replicas
    ({'LR': '1'}, 8)
    """
    data = appdef_to_dict(app)
    data["roles"] = [{**_ORDER, **role} for role in data["roles"]]
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path:
            raise SpecError(f"`--set {change}`: a value is missing", hint="write `--set num_replicas=8`")
        for target, keys in _targets(data, path.split("."), path):
            _put(target, keys, text, path)
    return appdef_from_dict(data)


def _targets(data: dict[str, Any], keys: list[str], path: str) -> list[tuple[dict[str, Any], list[str]]]:
    """Return the objects to change, and the remaining path below each."""
    if keys[0] != "roles":
        if keys[0] == "metadata" or (keys[0] == "name" and len(keys) == 1):
            return [(data, keys)]
        return [(role, keys) for role in data["roles"]]
    rest = path.removeprefix("roles").removeprefix(".")
    for i, role in enumerate(data["roles"]):
        for name in (role["name"], str(i)):
            if rest.startswith(f"{name}."):
                return [(role, rest[len(name) + 1 :].split("."))]
    raise _no_such(path, keys[1] if len(keys) > 1 else "", [f"roles.{role['name']}" for role in data["roles"]])


def _put(target: dict[str, Any], keys: list[str], text: str, path: str) -> None:
    *above, last = keys
    node: Any = target
    for key in above:
        node = node[_key(node, key, path)]
    open_ended = isinstance(node, dict) and bool(above) and above[-1] in _OPEN
    key = last if open_ended else _key(node, last, path)
    before = node.get(key) if isinstance(node, dict) else node[key]
    value = text if isinstance(before, str) or (above and above[-1] in _STRINGS) else _parsed(text)
    if last == "num_replicas" and not above:
        _resize(target, before, value)
    node[key] = value


def _key(node: dict[str, Any] | list[Any], key: str, path: str) -> Any:
    if isinstance(node, list):
        if key.isdecimal() and int(key) < len(node):
            return int(key)
        raise _no_such(path, key, [str(i) for i in range(len(node))])
    if not isinstance(node, dict) or key not in node:
        raise _no_such(path, key, node if isinstance(node, dict) else [])
    return key


def _resize(role: dict[str, Any], before: Any, after: Any) -> None:
    """Change the number of nodes in the arguments of torchrun, if they contain the old one."""
    line = " ".join(role["args"])
    if not re.search(r"--nnodes[ =]\d", line) or before == after:
        return
    if "localhost" in line:
        raise SpecError(
            f"role `{role['name']}` was made for one node, and its rendezvous is on localhost",
            hint="launch it with `torchx run` and another `-j`",
        )
    role["args"] = [re.sub(rf"(--nnodes[ =]){before}(?![\d:])", rf"\g<1>{after}", arg) for arg in role["args"]]
    for i, arg in enumerate(role["args"][:-1]):
        if arg == "--nnodes" and role["args"][i + 1] == str(before):
            role["args"][i + 1] = str(after)


def _parsed(text: str) -> Any:
    try:
        return loads(text)
    except ValueError:
        return text


def _no_such(path: str, key: str, known: Iterable[str]) -> SpecError:
    names = list(known)
    hint = did_you_mean(key, names) or (f"there are: {', '.join(names[:20])}" if names else "")
    return SpecError(f"`--set {path}`: there is no `{key}`", hint=hint)
