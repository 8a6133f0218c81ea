"""Roles in order: model servers, a trainer that waits until they answer, and a driver whose end ends the job.

.. code-block:: shell

    torchx run --wait examples/components/serve_and_run.py:serve_and_run --servers 2
"""

from __future__ import annotations

from torchx import specs


def serve_and_run(
    servers: int = 2,
    image: str = "",
    program: str = "examples/serve_and_run/program.py",
    load: float = 1.0,
    within: str = "5m",
) -> specs.AppDef:
    """Serve models, learn from them, and check what was learned.

    Args:
        servers: how many replicas the server has
        image: container image with Python
        program: path of the program
        load: seconds that a server needs to load its model
        within: how long that may take
    """
    resource = specs.Resource(cpu=1, gpu=0, memMB=256)
    server = specs.Role(
        name="server",
        image=image,
        entrypoint="python3",
        args=[program, "server", "--port", "${role.server.port.http}", "--load", str(load)],
        num_replicas=servers,
        port_map={"http": 8000},
        ready=specs.Ready(http="/health", within=within),
        resource=resource,
    )
    trainer = specs.Role(
        name="trainer",
        image=image,
        entrypoint="python3",
        args=[program, "trainer", "--port", "${role.trainer.port.http}"],
        port_map={"http": 8100},
        after=["server"],
        ready=specs.Ready(tcp="http"),
        resource=resource,
    )
    driver = specs.Role(
        name="driver",
        image=image,
        entrypoint="python3",
        args=[program, "driver", "--trainer", "${role.trainer.host}:${role.trainer.port.http}"],
        after=["trainer"],
        ends_job=True,
        resource=resource,
    )
    return specs.AppDef(name="serve-and-run", roles=[server, trainer, driver])
