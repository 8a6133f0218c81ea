"""TensorBoard as a job."""

from __future__ import annotations

import torchx
from torchx import specs
from torchx.errors import SpecError

# User values are passed as "$@", never inside this text. Anybody who reaches the port can read the logs, so a local job
# listens on loopback; in a container or on a node, it would not be reachable there.
_EXEC = 'exec python -m tensorboard.main "$@"'
_EXEC_WHERE_IT_MAY_BE_SEEN = (
    'case "$TORCHX_JOB_ID" in local_cwd:*) set -- --host=127.0.0.1 "$@";; *) set -- --bind_all "$@";; esac; ' + _EXEC
)


def tensorboard(  # noqa: PLR0917  # public signature
    logdir: str,
    image: str = torchx.IMAGE,
    timeout: float = 3600,
    port: int = 6006,
    start_on_file: str = "",
    exit_on_file: str = "",
    host: str | None = None,
) -> specs.AppDef:
    """Run a TensorBoard server until a file appears or the time limit is reached.

        torchx run metrics.tensorboard --logdir runs --exit_on_file runs/done

    The server has no authentication. On this machine (local_cwd) it therefore listens on the loopback interface only;
    elsewhere it listens on all interfaces of its container or node.

    Args:
        logdir: log directory, or a URL that TensorBoard can read
        image: container image, with torchx and tensorboard
        timeout: seconds after which it ends; 0 for no limit
        port: port to listen on; 0 for any free port, which the log shows
        start_on_file: start only when this file exists: a path or a URL of fsspec
        exit_on_file: end when this file exists: a path or a URL of fsspec
        host: address to listen on; by default 127.0.0.1 on this machine, and all interfaces elsewhere
    """
    if not 0 <= port <= 65535:
        raise SpecError(f"`--port {port}` is not a valid port (0-65535)", hint="0 takes any free port")
    if not timeout >= 0:
        raise SpecError(f"`--timeout {timeout}` is not a valid time", hint="give seconds, or 0 for no limit")
    # `=`, because a value that begins with a dash would be taken for an option.
    monitor = [f"--timeout={timeout:.15g}"]
    monitor += [f"--start_on_file={start_on_file}"] if start_on_file else []
    monitor += [f"--exit_on_file={exit_on_file}"] if exit_on_file else []
    server = [f"--logdir={logdir}", f"--port={port}", *([f"--host={host}"] if host else [])]
    role = specs.Role(
        name="tensorboard",
        image=image,
        entrypoint="python",
        args=[
            *("-m", "torchx.apps.utils.process_monitor", *monitor, "--"),
            *("sh", "-c", _EXEC if host else _EXEC_WHERE_IT_MAY_BE_SEEN, "tensorboard", *server),
        ],
        env={"TORCHX_TIMEOUT_EXIT_CODE": "0"},  # reaching the time limit is a success
        port_map={"http": port} if port else {},
        resource=specs.resource(cpu=1, gpu=0, memMB=2048),
    )
    return specs.AppDef(name="tensorboard", roles=[role])
