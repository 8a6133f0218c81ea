"""The secrets of an app as a Secret of Kubernetes, which the app's first object owns: removed with it.

https://kubernetes.io/docs/concepts/configuration/secret/
"""

from __future__ import annotations

from torchx.schedulers.kit.secrets import is_value, revealed, split
from torchx.schedulers.kubernetes import pods
from torchx.schedulers.kubernetes.names import Object
from torchx.specs.api import AppDef, Role, macros


def secret_names(role: Role) -> list[str]:
    """The variables that the Secret has: what is secret, has a value here, and is the same for all replicas."""
    return [
        name
        for name, value in split(role.env)[1].items()
        if is_value(value) and macros.replica_id not in value and not value.startswith(pods.PLACEHOLDERS)
    ]


def secret_variables(role: Role, role_index: str, app_id: str) -> dict[str, Object]:
    """Where a pod of the role finds them, each a ``valueFrom``."""
    return {name: {"secretKeyRef": {"name": app_id, "key": f"{role_index}.{name}"}} for name in secret_names(role)}


def render_secret(app: AppDef, metadata: Object) -> Object | None:
    """The Secret of an app, with references where it has no values yet; None when it needs none.

    Args:
        metadata: its own; its name is that of the app.
    """
    data = {}
    for i, role in enumerate(app.roles):  # two roles may have other values of one name
        values = macros.Values(img_root="", app_id=metadata["name"], replica_id="", rank0_env=pods.ENV_RANK0_HOST)
        env = values.apply(role).env
        data.update({f"{i}.{name}": env[name] for name in secret_names(role)})
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data} if data else None


def with_secret(objects: list[Object], secret: Object | None, known: dict[str, str]) -> list[Object]:
    """The objects, and behind their owner the Secret with its values.

    Args:
        known: values that were looked up.
    """
    if secret is None:
        return objects
    return [objects[0], {**secret, "stringData": revealed(secret["stringData"], known)}, *objects[1:]]


def note(secret: Object | None) -> str:
    """What a dry run says of the Secret, which it does not show; empty when there is none."""
    if secret is None:
        return ""
    names = dict.fromkeys(key.partition(".")[2] for key in secret["stringData"])
    return f"# and a Secret `{secret['metadata']['name']}`, owned by the job: {', '.join(names)}\n"
