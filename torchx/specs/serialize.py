"""Lossless conversion of jobs to and from JSON.

The format has a version number, and one key for each field::

    {"version": 1, "name": "train", "metadata": {}, "roles": [{"name": "trainer", "image": "img",
     "retry_policy": "APPLICATION", "resource": {"cpu": 1, "gpu": 0, "memMB": 128, ...},
     "mounts": [{"type": "bind", "src_path": "/a", "dst_path": "/b", "read_only": false}],
     "workspace": {"projects": {"/src": ""}}, ...}]}

Missing keys get the default of their field. A :class:`~torchx.specs.Secret` in ``env`` is stored as its reference:
``{"secret": "env:HF_TOKEN"}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchx.errors import SpecError
from torchx.specs.api import AppDef, Resource, RetryPolicy, Role, UnsetResource
from torchx.specs.copies import copy_data
from torchx.specs.mounts import BindMount, DeviceMount, MountType, VolumeMount
from torchx.specs.ready import PROBES, Ready
from torchx.specs.workspaces import Workspace
from torchx.util.records import record_fields
from torchx.util.secrets import AMBIGUOUS, mask_args, mask_env, mask_value
from torchx.util.strings import did_you_mean

Fallback = Callable[[Any], Any]

FORMAT_VERSION = 1
_ROLE_FIELDS = [name for name, *_ in record_fields(Role)]
_ORDER = ("after", "ready", "ends_job", "restarts_after")  # written only where they are set
_MAX_DEPTH = 100  # levels; code that copies and writes a job is recursive


def appdef_to_dict(app: AppDef, *, fallback: Fallback | None = None) -> dict[str, Any]:
    """Convert a job to JSON types; ``fallback`` converts values that have none, for example ``repr``, with loss.

    Raises:
        SpecError: a value has no JSON type, and there is no ``fallback``.

    >>> appdef_to_dict(AppDef("train"))
    {'version': 1, 'name': 'train', 'metadata': {}, 'roles': []}
    """
    whole = {
        "version": FORMAT_VERSION,
        "name": app.name,
        "metadata": app.metadata,
        "roles": [_role(role) for role in app.roles],
    }
    made: dict[str, Any] = _plain(whole, "", fallback)
    return made


def appdef_from_dict(data: dict[str, Any]) -> AppDef:
    """Convert the result of :func:`appdef_to_dict` back to a job.

    Raises:
        SpecError: a key is unknown, a value has the wrong type or is nested too deeply, or the format is newer.

    >>> appdef_from_dict({"version": 1, "name": "train"})
    AppDef(name='train')
    """
    _check_depth(data, "app")
    node = _Node(data, "app")
    version = node.take("version", int, FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise SpecError(
            f"app is of format `{version}`, and this version of torchx reads format {FORMAT_VERSION}",
            hint="install a newer torchx",
        )
    app = AppDef(
        name=node.take("name", str),
        roles=[_read_role(role, f"roles[{i}]") for i, role in enumerate(node.take("roles", list, []))],
        metadata=node.take("metadata", dict, {}),
    )
    node.close()
    return app


def role_to_dict(role: Role, *, fallback: Fallback | None = None) -> dict[str, Any]:
    """Convert a role to JSON types; see :func:`appdef_to_dict`."""
    made: dict[str, Any] = _plain(_role(role), "", fallback)
    return made


def role_from_dict(data: dict[str, Any]) -> Role:
    """Convert the result of :func:`role_to_dict` back to a role; raises like :func:`appdef_from_dict`."""
    _check_depth(data, "role")
    return _read_role(data, "role")


def masked(app: AppDef, least: int = AMBIGUOUS) -> AppDef:
    """Return a copy for display: credentials in ``env``, ``args`` and ``metadata`` are masked, those of grade ``least``
    and higher (see :func:`torchx.util.secrets.grade`).

    >>> masked(AppDef("a", [Role("r", "img", env={"HF_TOKEN": "abc"})])).roles[0].env
    {'HF_TOKEN': '********'}
    """
    copy: AppDef = copy_data(app)
    copy.metadata = mask_value("", copy.metadata, least)
    for role in copy.roles:
        role.env = mask_env(role.env, least)
        role.args = mask_args(role.args, least)
        role.metadata = mask_value("", role.metadata, least)
    return copy


def _role(role: Role) -> dict[str, Any]:
    own = vars(role)  # bypasses the overrides
    resource: Resource = own["resource"]
    amounts = _NULL if resource.is_unset else {name: getattr(resource, name) for name in _NULL}
    return {
        **{name: own[name] for name in _ROLE_FIELDS if name not in _ORDER},
        **{name: vars(value) if name == "ready" else value for name in _ORDER if (value := own.get(name))},
        "env": {k: v if v.__class__ is str else _reference(v) for k, v in own["env"].items()},
        "retry_policy": str(getattr(own["retry_policy"], "value", own["retry_policy"])),
        "resource": {**amounts, **{name: getattr(resource, name) for name in ("capabilities", "devices", "tags")}},
        "mounts": [_mount(mount) for mount in own["mounts"]],
        "workspace": None if own["workspace"] is None else {"projects": own["workspace"].projects},
    }


def _reference(value: Any) -> Any:
    from torchx.specs.secret import Secret

    return {"secret": str(value)} if isinstance(value, Secret) else value


def _mount(mount: BindMount | VolumeMount | DeviceMount) -> Any:
    for kind, (cls, fields) in _MOUNTS.items():
        if isinstance(mount, cls):
            return {"type": kind, **{name: getattr(mount, name) for name in fields}}
    return _NotAMount(mount)


class _NotAMount:
    """Wraps an invalid mount, so that :func:`_plain` rejects it even if it is a JSON type."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _plain(value: Any, path: str, fallback: Fallback | None) -> Any:
    kind = value.__class__
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float and value - value == 0:  # JSON has neither infinity nor NaN
        return value
    if kind is list or (kind is tuple and fallback is not None):
        return [_plain(item, f"{path}[{i}]", fallback) for i, item in enumerate(value)]
    if kind is dict:
        for key in value:
            if key.__class__ is not str and fallback is None:
                raise SpecError(f"`{path}` has the key `{key!r}`, which is not a string, and cannot be written as JSON")
        return {str(k): _plain(v, _below(path, k), fallback) for k, v in value.items()}
    if fallback is not None:
        return fallback(value)
    raise SpecError(f"`{path}` is `{value!r}` ({kind.__name__}), and cannot be written as JSON without loss")


def _check_depth(data: Any, what: str) -> None:
    level = [data]
    for _ in range(_MAX_DEPTH):
        inner = (v.values() if isinstance(v, dict) else v for v in level if isinstance(v, (dict, list)))
        level = [value for values in inner for value in values]
        if not level:
            return
    raise SpecError(f"{what} is nested more than {_MAX_DEPTH} levels deep")


def _below(path: str, key: Any) -> str:
    name = str(key)
    if not name.isidentifier():
        return f"{path}[{name!r}]"
    return f"{path}.{name}" if path else name


_MOUNTS: dict[str, tuple[Any, dict[str, type]]] = {
    MountType.BIND.value: (BindMount, {"src_path": str, "dst_path": str, "read_only": bool}),
    MountType.VOLUME.value: (VolumeMount, {"src": str, "dst_path": str, "read_only": bool}),
    MountType.DEVICE.value: (DeviceMount, {"src_path": str, "dst_path": str, "permissions": str}),
}
_NOTHING = object()


class _Node:
    """Reader of a JSON object: each key is taken once, and :meth:`close` rejects keys that are left over."""

    def __init__(self, data: Any, path: str) -> None:
        if not isinstance(data, dict):
            raise SpecError(f"`{path}` is {_shown(data)}, and an object is expected")
        self.data = dict(data)
        self.path = path
        self.taken: list[str] = []

    def take(self, key: str, tp: type | tuple[type, ...], default: Any = _NOTHING) -> Any:
        self.taken.append(key)
        value = self.data.pop(key, default)
        if value is _NOTHING:
            raise SpecError(f"`{self.path}` has no `{key}`")
        wanted = tp if isinstance(tp, tuple) else (tp,)
        if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
            names = " or ".join(t.__name__ for t in wanted)
            raise SpecError(f"`{self.path}.{key}` is {_shown(value)}, and {names} is expected")
        return value

    def close(self) -> None:
        for key in self.data:
            raise SpecError(f"`{self.path}` has an unknown key `{key}`", hint=did_you_mean(str(key), self.taken))


def _read_role(data: Any, path: str) -> Role:
    node = _Node(data, path)
    retry_policy = node.take("retry_policy", str, RetryPolicy.APPLICATION.value)
    workspace = node.take("workspace", (dict, type(None)), None)
    ready = node.take("ready", (dict, type(None)), None)
    if retry_policy not in RetryPolicy.__members__:
        raise SpecError(
            f"`{path}.retry_policy` is `{retry_policy}`", hint=f"one of: {', '.join(RetryPolicy.__members__)}"
        )
    role = Role(
        name=node.take("name", str),
        image=node.take("image", str),
        min_replicas=node.take("min_replicas", (int, type(None)), None),
        entrypoint=node.take("entrypoint", str, "<MISSING>"),
        args=node.take("args", list, []),
        env={k: _read_variable(v, f"{path}.env") for k, v in node.take("env", dict, {}).items()},
        num_replicas=node.take("num_replicas", int, 1),
        max_retries=node.take("max_retries", int, 0),
        retry_policy=RetryPolicy[retry_policy],
        resource=_read_resource(node.take("resource", dict, _NULL), f"{path}.resource"),
        port_map=node.take("port_map", dict, {}),
        metadata=node.take("metadata", dict, {}),
        mounts=[_read_mount(m, f"{path}.mounts[{i}]") for i, m in enumerate(node.take("mounts", list, []))],
        workspace=None if workspace is None else _read_workspace(workspace, f"{path}.workspace"),
        overrides=node.take("overrides", dict, {}),
        after=node.take("after", list, []),
        ready=None if ready is None else _read_ready(ready, f"{path}.ready"),
        ends_job=node.take("ends_job", bool, False),
        restarts_after=node.take("restarts_after", bool, False),
    )
    node.close()
    return role


def _read_ready(data: Any, path: str) -> Ready:
    node = _Node(data, path)
    texts = {name: node.take(name, (str, int) if name == "tcp" else str, "") for name in PROBES}
    ready = Ready(
        **texts, within=node.take("within", str, "5m"), at_least=node.take("at_least", (int, type(None)), None)
    )
    node.close()
    return ready


def _read_variable(value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        return value
    from torchx.specs.secret import Secret

    node = _Node(value, path)
    secret = Secret(node.take("secret", str))
    node.close()
    return secret


_NULL: dict[str, Any] = {"cpu": -1, "gpu": -1, "memMB": -1}
"""The resource of a role without one."""


def _read_resource(data: Any, path: str) -> Resource:
    node = _Node(data, path)
    number = (int, float)
    cpu, gpu, memory = node.take("cpu", number), node.take("gpu", number, 0), node.take("memMB", number)
    amounts = {} if (cpu, gpu, memory) == (-1, -1, -1) else {"cpu": cpu, "gpu": gpu, "memMB": memory}
    resource = (Resource if amounts else UnsetResource)(
        **amounts,
        capabilities=node.take("capabilities", dict, {}),
        devices=node.take("devices", dict, {}),
        tags=node.take("tags", dict, {}),
    )
    node.close()
    return resource


def _read_mount(data: Any, path: str) -> BindMount | VolumeMount | DeviceMount:
    node = _Node(data, path)
    kind = node.take("type", str)
    if kind not in _MOUNTS:
        raise SpecError(f"`{path}.type` is `{kind}`", hint=f"one of: {', '.join(_MOUNTS)}")
    cls, fields = _MOUNTS[kind]
    defaults = {"read_only": False, "permissions": "rwm"}
    values = {name: node.take(name, tp, defaults.get(name, _NOTHING)) for name, tp in fields.items()}
    node.close()
    mount: BindMount | VolumeMount | DeviceMount = cls(**values)
    return mount


def _read_workspace(data: Any, path: str) -> Workspace:
    node = _Node(data, path)
    projects = node.take("projects", dict)
    node.close()
    for src, dst in projects.items():
        if not isinstance(src, str) or not isinstance(dst, str):
            raise SpecError(f"`{path}.projects` maps {_shown(src)} to {_shown(dst)}, and strings are expected")
    return Workspace(projects)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
