"""Two roles in one job: a server and its clients, each with a size and a command of its own.

.. code-block:: shell

    torchx run examples/components/pipeline.py:pipeline --clients 3
"""

from __future__ import annotations

from torchx import specs
from torchx.specs import macros


def pipeline(clients: int = 2, greeting: str = "hello") -> specs.AppDef:
    """One server and some clients.

    Args:
        clients: how many replicas the client role has
        greeting: what each client says
    """
    resource = specs.Resource(cpu=1, gpu=0, memMB=128)
    server = specs.Role(
        name="server",
        image="",
        entrypoint="sh",
        args=["-c", f"echo serving job {macros.app_id}"],
        resource=resource,
    )
    client = specs.Role(
        name="client",
        image="",
        entrypoint="sh",
        args=["-c", 'echo "$GREETING from client $NUMBER"'],
        env={"GREETING": greeting, "NUMBER": macros.replica_id},
        num_replicas=clients,
        resource=resource,
    )
    return specs.AppDef(name="pipeline", roles=[server, client])
