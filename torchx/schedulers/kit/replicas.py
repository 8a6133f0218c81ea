"""Iterates over the replicas of a job with their macros substituted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torchx.settings import ENV_REPLICA_ID, ENV_ROLE_NAME
from torchx.specs.api import AppDef, Role, macros
from torchx.util.records import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.specs.order import Addresses


@dataclass
class Replica:
    """One replica of a job.

    Attributes:
        role: a copy of its role with macros substituted, and the variables that tell a replica who it is; it may be
            modified.
        k: its number within the role.
        index: its number within the job, counted over all roles in order.
    """

    role: Role
    k: int
    index: int


def replicas(
    app: AppDef,
    app_id: str,
    *,
    rank0_env: str = "",
    img_root: Callable[[Role], str] | None = None,
    addresses: Addresses | None = None,
) -> Iterator[Replica]:
    """Yield every replica of every role. ``app`` is not changed.

    Args:
        app_id: value of the macro ``app_id``.
        rank0_env: name of the variable that holds rank 0's host; empty if the backend has none.
        img_root: returns the root of a role's image, called once per role; None: the macro ``img_root`` is empty.
        addresses: of the replicas, in a job whose roles have an order.

    >>> from torchx.specs.api import AppDef, Role
    >>> app = AppDef("a", [Role("w", "img", args=["${app_id}", "${replica_id}"], num_replicas=2)])
    >>> [r.role.args for r in replicas(app, "a-1")]
    [['a-1', '0'], ['a-1', '1']]
    """
    index = 0
    hosts = addresses.environment() if addresses else {}
    for role in app.roles:
        root = img_root(role) if img_root else ""
        for k in range(role.num_replicas):
            values = macros.Values(img_root=root, app_id=app_id, replica_id=str(k), rank0_env=rank0_env)
            if addresses:
                values.addresses = addresses.macros(role, k)
            own = values.apply(role)
            own.env = {ENV_REPLICA_ID: str(k), ENV_ROLE_NAME: role.name, **hosts, **own.env}
            yield Replica(own, k, index)
            index += 1
