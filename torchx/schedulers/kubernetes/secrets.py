"""The secrets of an app as a Kubernetes Secret, which is owned by the app's first object and deleted with it.

https://kubernetes.io/docs/concepts/configuration/secret/
"""

from __future__ import annotations

from torchx.schedulers.kit.secrets import is_value, revealed, split
from torchx.schedulers.kubernetes import pods
from torchx.schedulers.kubernetes.names import Object
from torchx.specs.api import AppDef, Role, macros


def secret_names(role: Role) -> list[str]:
    """Variables to put into the Secret: those that are secret, have a value, and are the same for all replicas."""
    return [
        name
        for name, value in split(role.env)[1].items()
        if is_value(value) and macros.replica_id not in value and not value.startswith(pods.PLACEHOLDERS)
    ]


def secret_variables(role: Role, role_index: str, app_id: str) -> dict[str, Object]:
    """The secret variables of a role, each with its ``valueFrom``."""
    return {name: {"secretKeyRef": {"name": app_id, "key": f"{role_index}.{name}"}} for name in secret_names(role)}


def render_secret(app: AppDef, metadata: Object) -> Object | None:
    """The Secret of the app that ``metadata`` names, with references in place of values; None if it needs none."""
    data = {}
    for i, role in enumerate(app.roles):  # the same variable may have different values in two roles
        values = macros.Values(img_root="", app_id=metadata["name"], replica_id="", rank0_env=pods.ENV_RANK0_HOST)
        env = values.apply(role).env
        data.update({f"{i}.{name}": env[name] for name in secret_names(role)})
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data} if data else None


def with_secret(objects: list[Object], secret: Object | None, known: dict[str, str]) -> list[Object]:
    """Insert the Secret, with its values, after the first object; ``known`` caches values by reference."""
    if secret is None:
        return objects
    return [objects[0], {**secret, "stringData": revealed(secret["stringData"], known)}, *objects[1:]]


def note(secret: Object | None) -> str:
    """A comment that stands for the Secret in a dry run; empty if there is none."""
    if secret is None:
        return ""
    names = dict.fromkeys(key.partition(".")[2] for key in secret["stringData"])
    return f"# and a Secret `{secret['metadata']['name']}`, owned by the job: {', '.join(names)}\n"
