"""Overlays: user-defined changes to a scheduler's request, such as fields of a Kubernetes pod.

An overlay is a dict with the structure of the request. Applying it merges dicts key by key, appends lists, and replaces
all other values; a tuple replaces a list. Three kinds of keys change that:

================================  ==============================================================
``PUT("tolerations"): [...]``     replaces the value, whatever its type
``DEL("nodeSelector"): None``     removes the key
``JOIN("env", on="name"): [...]`` merges lists of dicts: items with the same ``name`` are merged
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

NAMESPACE = "kubernetes"
_POD_KINDS, _POD_TYPE = ("pod", "V1Pod"), (("apiVersion", "v1"), ("kind", "Pod"))
_LIKE_A_POD = "write it like a pod: `{'spec': {...}}`"

# No key of a request begins with `!`, which starts a tag in YAML.
_DEL = "!del "
_PUT = "!put "
_JOIN = "!join("


def DEL(key: str) -> str:
    """Overlay key that removes ``key``; its value is ignored."""
    return _DEL + key


def PUT(key: str) -> str:
    """Overlay key that replaces ``key`` instead of merging into it."""
    return _PUT + key


def JOIN(key: str, *, on: str) -> str:
    """Overlay key that merges a list of dicts into that of ``key``: items with the same ``on`` are merged."""
    return f"{_JOIN}{on}) {key}"


def apply_overlay(base: _Overlay, overlay: _Overlay, *, _resolve: bool = True) -> None:
    """Apply an overlay to ``base`` in place; ``base`` shares no objects with the overlay afterwards.

    Args:
        base: the request; with ``_resolve=False``, an earlier overlay.
        overlay: the overlay to apply.
        _resolve: whether to evaluate ``PUT``, ``DEL`` and ``JOIN``. Otherwise they remain in ``base``, to which the
            overlay is added as :func:`set_overlay` does.

    Raises:
        SpecError: a dict would replace another type, or a ``JOIN`` applies to something other than lists of dicts.
    """
    if not _resolve:
        _added(base, overlay)
        return
    for key, value in without_tuples(overlay).items():
        operator, name, on = _parse(key)
        if operator == _DEL:
            base.pop(name, None)
        elif operator == _PUT:
            base[name] = _resolved(value)
        elif operator == _JOIN:
            base[name] = _joined(base.get(name) or [], value, name, on)
        else:
            base[name] = _merged(base, name, value)


def get_overlay(target: AppDef | Role, namespace: str, kind: str) -> _Overlay:
    """Return a copy of the overlay of that kind; empty if there is none.

    In the metadata of a role, a YAML or JSON file may replace an overlay, or all overlays of a namespace
    (``{"kubernetes": "file:///shared/overlay.yaml"}``). A file without the key ``kind`` is itself the overlay.

    Args:
        target: the app or role with the overlay in its metadata.
        namespace: name of the scheduler, for example ``kubernetes``.
        kind: the object that the overlay applies to, for example ``pod``.

    Raises:
        SpecError: the metadata contains no valid overlay.
    """
    if isinstance(target, AppDef):
        found: Any = _read_json(target.metadata, f"{namespace}.{kind}")
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


def pod_overlay(target: AppDef | Role) -> _Overlay:
    """Return the overlay of pods in the metadata of an app or role, in all forms in which programs write it.

    ``metadata["kubernetes"]`` is a pod (``{"spec": {...}}``), or has it under ``pod`` or ``V1Pod``; in place of a dict
    there may be the location of a YAML or JSON file. The metadata of an app may also have it as :func:`set_overlay`
    stores it.

    Raises:
        SpecError: something else is there.

    >>> pod_overlay(Role("trainer", "img", metadata={"kubernetes": {"V1Pod": {"spec": {"tolerations": ()}}}}))
    {'spec': {'!put tolerations': []}}
    """
    what = f"metadata `{NAMESPACE}` of `{target.name}`"
    found = pod_form(target.metadata.get(NAMESPACE), what)
    if isinstance(target, AppDef):
        for kind in (key.removeprefix(f"{NAMESPACE}.") for key in target.metadata if key.startswith(f"{NAMESPACE}.")):
            _added(found, pod_form({kind: get_overlay(target, NAMESPACE, kind)}, what))
    return found


def pod_form(found: Any, what: str) -> _Overlay:
    """Return an overlay in one of the forms of :func:`pod_overlay` as a dict like a pod; ``what`` begins errors."""
    found = {} if found is None else read_file(found, what) if isinstance(found, str) else found
    if not isinstance(found, dict):
        raise SpecError(f"{what} is a {type(found).__name__}, not a dict", hint=_LIKE_A_POD)
    new: _Overlay = {}
    for key, value in found.items():
        name = _parse(str(key))[1]
        if name in _POD_KINDS:
            _added(new, pod_form(value, what))
        elif name in ("spec", "metadata"):
            _added(new, {key: without_tuples(value)})
        elif (name, value) not in _POD_TYPE:
            raise SpecError(f"{what} has the key `{key}`, which is not understood", hint=_LIKE_A_POD)
    return new


def without_tuples(value: Any) -> Any:
    """Return a copy of an overlay with tuples, which replace a list, as lists with ``PUT``.

    >>> without_tuples({"args": ("x",), PUT("a"): [(1, 2)]})
    {'!put args': ['x'], '!put a': [[1, 2]]}
    """
    if isinstance(value, dict):
        return {
            PUT(k) if isinstance(v, tuple) and not str(k).startswith("!") else k: without_tuples(v)
            for k, v in value.items()
        }
    return [without_tuples(item) for item in value] if isinstance(value, list | tuple) else copy_data(value)


def set_overlay(target: AppDef | Role, namespace: str, kind: str, overlay: _Overlay) -> None:
    """Add a copy of the overlay to the existing overlay of ``target``.

    Dicts are merged and lists appended. If a field has several of ``PUT``, ``DEL``, ``JOIN`` and plain keys, the last
    one wins. The overlay is stored in ``metadata[namespace][kind]`` of a role; for an app, whose metadata values are
    strings, as JSON in ``metadata["namespace.kind"]``.

    >>> role = Role("trainer", image="img")
    >>> set_overlay(role, "kubernetes", "pod", {"spec": {"priority": 1}})
    >>> role.metadata
    {'kubernetes': {'pod': {'spec': {'priority': 1}}}}
    """
    overlay = without_tuples(overlay)
    validate_overlay(overlay, overlay_name=f"{namespace}.{kind}")
    if isinstance(target, AppDef):
        target.metadata[f"{namespace}.{kind}"] = json.dumps(_added(get_overlay(target, namespace, kind), overlay))
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
    """Check an overlay without applying it.

    Args:
        overlay: the overlay.
        blocklist: dotted paths that it must not change, for example ``metadata.name``.
        forbidden_keys: keys that it must not contain at any depth.
        overlay_name: name of the overlay in error messages.
        suggestion: hint of errors about ``blocklist`` and ``forbidden_keys``.

    Raises:
        SpecError: it violates one of these, or has a non-string key, a non-JSON value or a malformed operator.
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
    """Yield path, plain key and value of all nodes of an overlay; list items have the path of their list."""
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
    """Split a key into operator (or ""), plain key, and the ``on`` of a JOIN."""
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
    """Return a copy with all operators applied to an empty request."""
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
            raise SpecError(f'JOIN("{name}", on="{on}") needs lists of dicts, not `{items}`')
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


def _added(overlay: _Overlay, more: _Overlay) -> _Overlay:
    """Add ``more`` to the overlay in place and return it."""
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
    """Load a YAML or JSON file; raises SpecError, which begins with ``what``, if it cannot be read."""
    try:
        path = location.removeprefix("file://")
        if "://" in path:
            import fsspec

            text = fsspec.open(path, "r", encoding="utf-8").open().read()
        else:
            with open(path, encoding="utf-8") as f:
                text = f.read()
        if location.endswith(".json") or find_spec("yaml") is None:
            return json.loads(text)
        import yaml

        class Loader(yaml.SafeLoader):
            """Knows tuples, which replace a list."""

        def tuple_of(loader: Any, node: Any) -> tuple[Any, ...]:
            return tuple(loader.construct_sequence(node, deep=True))

        Loader.add_constructor("tag:yaml.org,2002:python/tuple", tuple_of)
        return yaml.load(text, Loader)  # noqa: S506  # a SafeLoader
    except Exception as e:  # from the file system or one of the parsers
        hint = "" if find_spec("yaml") else f"to read YAML: {install_extra('kubernetes')}"
        raise SpecError(f"{what}: the file `{location}` cannot be read: {e}", hint=hint) from None


def _read_json(metadata: dict[str, str], key: str) -> Any:
    text = metadata.get(key)
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError) as e:
        raise SpecError(f"metadata `{key}` is not valid JSON: {e}") from None
