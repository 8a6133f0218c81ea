"""Overlays: what a user adds to the request that a scheduler builds, such as fields of a Kubernetes pod.

An overlay is a dict in the shape of the request. Laid over it, a dict is merged key by key, a list is appended,
anything else replaces. Three kinds of keys do otherwise:

================================  ==============================================================
``PUT("tolerations"): [...]``     replaces, whatever it is
``DEL("nodeSelector"): None``     removes the key
``JOIN("env", on="name"): [...]`` merges lists of dicts: items with the same ``name`` become one
================================  ==============================================================

>>> pod = {"nodeSelector": {"zone": "a"}, "env": [{"name": "A", "value": "1"}], "args": ["x"]}
>>> env = {JOIN("env", on="name"): [{"name": "A", "value": "2"}]}
>>> apply_overlay(pod, {DEL("nodeSelector"): None, "args": ["y"], **env})
>>> pod
{'env': [{'name': 'A', 'value': '2'}], 'args': ['x', 'y']}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from torchx.errors import SpecError, install_extra
from torchx.specs.api import AppDef, Role
from torchx.specs.copies import copy_data

_Overlay = dict[str, Any]

# No key of a request begins with `!`: it opens a tag in YAML.
_DEL = "!del "
_PUT = "!put "
_JOIN = "!join("


def DEL(key: str) -> str:
    """A key of an overlay that removes ``key``; its value does not count."""
    return _DEL + key


def PUT(key: str) -> str:
    """A key of an overlay that replaces ``key``, instead of merging into it."""
    return _PUT + key


def JOIN(key: str, *, on: str) -> str:
    """A key of an overlay that merges a list of dicts into that of ``key``: items with the same ``on`` are merged."""
    return f"{_JOIN}{on}) {key}"


def apply_overlay(base: _Overlay, overlay: _Overlay, *, _resolve: bool = True) -> None:
    """Lays ``overlay`` over ``base``, which is changed in place; nothing of the overlay is shared with it.

    Args:
        base: the request; or, with ``_resolve=False``, an earlier overlay.
        overlay: what to lay over it.
        _resolve: whether ``PUT``, ``DEL`` and ``JOIN`` take effect. Otherwise they are kept in ``base``, so that the
            two overlays have become one.

    Raises:
        SpecError: a dict is laid over something else, or a ``JOIN`` has no lists of dicts to work on.
    """
    for key, value in overlay.items():
        operator, name, on = _parse(key)
        if not _resolve:
            _compose(base, key, value)
        elif operator == _DEL:
            base.pop(name, None)
        elif operator == _PUT:
            base[name] = _resolved(value)
        elif operator == _JOIN:
            base[name] = _joined(base.get(name) or [], value, name, on)
        else:
            base[name] = _merged(base, name, value)


def get_overlay(target: AppDef | Role, namespace: str, kind: str) -> _Overlay:
    """A copy of the overlay of that kind; empty when there is none.

    The metadata of a role may name a YAML or JSON file in the place of an overlay, or of all of a namespace
    (``{"kubernetes": "file:///shared/overlay.yaml"}``); a file that has no such kind is the overlay.

    Args:
        target: whose overlay.
        namespace: the scheduler that it is for, for example ``kubernetes``.
        kind: what it is laid over, for example ``pod``.

    Raises:
        SpecError: what stands in the metadata is not an overlay.
    """
    if isinstance(target, AppDef):
        found: Any = _read_json(target.metadata.get(_app_key(namespace, kind)), namespace, kind)
    else:
        in_namespace = target.metadata.get(namespace) or {}
        what = f"overlay `{namespace}.{kind}` of `{target.name}`"
        if isinstance(in_namespace, str):
            whole = read_file(in_namespace, what)
            found = whole.get(kind, whole) if isinstance(whole, dict) else whole
        else:
            found = in_namespace.get(kind) if isinstance(in_namespace, dict) else in_namespace
            found = read_file(found, what) if isinstance(found, str) else found
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise SpecError(f"overlay `{namespace}.{kind}` of `{target.name}` is a {type(found).__name__}, not a dict")
    copy: _Overlay = copy_data(found)
    return copy


def set_overlay(target: AppDef | Role, namespace: str, kind: str, overlay: _Overlay) -> None:
    """Adds a copy of the overlay to what ``target`` has of that namespace and kind.

    Dicts are merged and lists appended; of ``PUT``, ``DEL``, ``JOIN`` and plain keys of one field the last one counts.
    It stands in the metadata: of a role as ``metadata[namespace][kind]``; of an app, whose metadata are strings, as
    JSON under ``namespace.kind``.

    >>> role = Role("trainer", image="img")
    >>> set_overlay(role, "kubernetes", "pod", {"spec": {"priority": 1}})
    >>> role.metadata
    {'kubernetes': {'pod': {'spec': {'priority': 1}}}}
    """
    validate_overlay(overlay, overlay_name=f"{namespace}.{kind}")
    if isinstance(target, AppDef):
        target.metadata[_app_key(namespace, kind)] = json.dumps(_added(get_overlay(target, namespace, kind), overlay))
        return
    in_namespace = target.metadata.setdefault(namespace, {})
    if not isinstance(in_namespace, dict):
        raise SpecError(f"metadata `{namespace}` of role `{target.name}` is `{in_namespace}`, and cannot hold overlays")
    in_namespace[kind] = _added(get_overlay(target, namespace, kind), overlay)


def validate_overlay(
    overlay: _Overlay,
    *,
    blocklist: list[str] | None = None,
    forbidden_keys: set[str] | None = None,
    overlay_name: str = "overlay",
    suggestion: str = "",
) -> None:
    """Checks an overlay before it is laid over anything.

    Args:
        overlay: the overlay.
        blocklist: dotted paths that it must not touch: ``metadata.name``.
        forbidden_keys: keys that it must not have, at any depth.
        overlay_name: what to call it in an error.
        suggestion: the hint of an error about ``blocklist`` or ``forbidden_keys``.

    Raises:
        SpecError: one of these, a key that is not a string, a value that is not JSON, or a malformed operator.
    """
    if not isinstance(overlay, dict):
        raise SpecError(f"{overlay_name} is a {type(overlay).__name__}, not a dict")
    for path, name, value in _walk(overlay, "", overlay_name):
        if path in (blocklist or ()):
            raise SpecError(f"{overlay_name} must not change `{path}`", hint=suggestion)
        if name in (forbidden_keys or ()):
            raise SpecError(f"{overlay_name} must not have the key `{name}` (at `{path}`)", hint=suggestion)
        if not isinstance(value, dict | list | str | int | float | bool | type(None)):
            raise SpecError(f"{overlay_name} has a {type(value).__name__} at `{path}`, which is not a JSON type")


def _walk(value: Any, path: str, overlay_name: str) -> Iterator[tuple[str, str, Any]]:
    """Path, plain key and value of everything in an overlay; items of a list have the path of the list."""
    if isinstance(value, list):
        for item in value:
            yield path, "", item
            yield from _walk(item, path, overlay_name)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise SpecError(f"{overlay_name} has the key `{key!r}` at `{path or 'the top'}`, which is not a string")
            operator, name, on = _parse(key)
            below = f"{path}.{name}" if path else name
            if operator == _JOIN:
                _joined([], inner, name, on)
            yield below, name, inner
            yield from _walk(inner, below, overlay_name)


def _parse(key: str) -> tuple[str, str, str]:
    """Operator (or ""), plain key, and the field of a JOIN."""
    for operator in (_DEL, _PUT):
        if key.startswith(operator):
            return operator, key[len(operator) :], ""
    if key.startswith(_JOIN):
        on, close, name = key[len(_JOIN) :].partition(") ")
        if not (on and close and name):
            raise SpecError(f"overlay key `{key}` is malformed", hint='write JOIN("env", on="name")')
        return _JOIN, name, on
    return "", key, ""


def _merged(base: _Overlay, name: str, value: Any) -> Any:
    old = base.get(name)
    if isinstance(value, dict):
        if old is not None and not isinstance(old, dict):
            raise SpecError(f"overlay has a dict for `{name}`, which is `{old}`", hint=f'to replace it, PUT("{name}")')
        new = {} if old is None else old
        apply_overlay(new, value)
        return new
    if isinstance(value, list) and isinstance(old, list):
        return [*old, *_resolved(value)]
    return _resolved(value)


def _resolved(value: Any) -> Any:
    """A copy in which operators have taken effect on nothing: what ``value`` alone describes."""
    if isinstance(value, dict):
        new: _Overlay = {}
        apply_overlay(new, value)
        return new
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    return copy_data(value)


def _joined(old: Any, new: Any, name: str, on: str) -> list[Any]:
    for items in (old, new):
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise SpecError(f'JOIN("{name}", on="{on}") needs lists of dicts, and there is `{items}`')
    result = list(old)
    for item in new:
        if on not in item:
            raise SpecError(f'JOIN("{name}", on="{on}"): an item has no `{on}`: `{item}`')
        same = [i for i, other in enumerate(result) if other.get(on) == item[on]]
        if not same:
            result.append(_resolved(item))
        for i in same:
            apply_overlay(result[i], item)
    return result


def _compose(base: _Overlay, key: str, value: Any) -> None:
    """Lays one key of an overlay over an earlier overlay, so that both in turn do what the two did."""
    operator, name, on = _parse(key)
    if operator in (_DEL, _PUT):
        for other in [k for k in base if _parse(k)[1] == name]:
            del base[other]
        base[key] = copy_data(value)
    elif PUT(name) in base:
        whole = {name: base[PUT(name)]}
        apply_overlay(whole, {key: value})
        base[PUT(name)] = whole[name]
    elif DEL(name) in base:
        del base[DEL(name)]
        base[PUT(name)] = _joined([], value, name, on) if operator == _JOIN else _resolved(value)
    elif isinstance(value, dict) and base.get(name) is not None and not operator:
        if not isinstance(base[name], dict):
            raise SpecError(f"overlay has a dict for `{name}`, which is `{base[name]}`")
        apply_overlay(base[name], value, _resolve=False)
    elif isinstance(value, list) and isinstance(base.get(key), list):
        base[key] = [*base[key], *copy_data(value)]
    else:
        base[key] = copy_data(value)


def _added(overlay: _Overlay, more: _Overlay) -> _Overlay:
    """The overlay, with ``more`` added to it."""
    for key, value in more.items():
        operator, name, _ = _parse(key)
        for other in [k for k in overlay if k != key and _parse(k)[1] == name]:
            del overlay[other]
        old = overlay.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and not operator:
            _added(old, value)
        elif isinstance(value, list) and isinstance(old, list) and operator != _PUT:
            overlay[key] = [*old, *copy_data(value)]
        else:
            overlay[key] = copy_data(value)
    return overlay


def read_file(location: str, what: str) -> Any:
    """What a YAML or JSON file holds.

    Args:
        what: that it is, as the error begins.

    Raises:
        SpecError: it cannot be read.
    """
    try:
        with open(location.removeprefix("file://"), encoding="utf-8") as f:
            text = f.read()
        if location.endswith(".json") or find_spec("yaml") is None:
            return json.loads(text)
        import yaml

        return yaml.safe_load(text)
    except Exception as e:  # of the file system, or what each parser raises
        hint = "" if find_spec("yaml") else f"to read YAML: {install_extra('kubernetes')}"
        raise SpecError(f"{what}: the file `{location}` cannot be read: {e}", hint=hint) from None


def _app_key(namespace: str, kind: str) -> str:
    return f"{namespace}.{kind}"


def _read_json(text: str | None, namespace: str, kind: str) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise SpecError(f"metadata `{_app_key(namespace, kind)}` is not valid JSON: {e}") from None
