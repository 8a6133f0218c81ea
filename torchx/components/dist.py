"""Distributed PyTorch: ``torchrun`` on any number of nodes.

``ddp`` and ``spmd`` call ``torchrun`` with fewer options.

**Size.** ``-j 1x2`` is one node with two workers; ``-j 2x8`` is two nodes with eight. ``-j 2:4x8`` is elastic: the job
starts with four nodes and continues as long as two are left. ``-j 4`` is four nodes with a worker per GPU of the
resource (``-h`` or ``--gpu``), or one worker without GPUs; with ``ddp`` it is one node with four workers.

**Rendezvous.** On one node, ``torchrun`` uses a free port of localhost. On several, replica 0 hosts the store; the
environment variable that ``macros.rank0_env`` names holds its host name. A node that starts before replica 0, or before
its name resolves, retries for 15 minutes (``read_timeout`` and ``join_timeout`` of ``--rdzv_conf``). The port is
``--rdzv_port``, or ``TORCHX_RANK0_PORT`` if ``--rdzv_port`` is the default and the scheduler sets that variable (as
``local_cwd`` does, where jobs share a machine).

**Failure.** With ``--max_retries``, the scheduler restarts all nodes. In an elastic job it restarts the failed node
only, and the workers of the other nodes continue in a new rendezvous (``torchrun --max_restarts``).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping

import torchx
from torchx import specs
from torchx.components.structured_arg import JobSize, StructuredNameArgument, program_name
from torchx.components.structured_arg import StructuredJArgument as StructuredJArgument  # noqa: PLC0414  # programs import it from here
from torchx.errors import SpecError
from torchx.specs import macros
from torchx.util.notices import logger

_TORCH_DEBUG_FLAGS: dict[str, str] = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "TORCH_NCCL_DESYNC_DEBUG": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
}
"""Environment of ``--debug``: synchronous kernels, checks of collectives, C++ stack traces."""

_DEFAULT_PORT = 29500
_WAIT_S = 900
"""Timeout for replica 0 and for the rendezvous: pulling an image may take minutes."""


def torchrun(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = torchx.IMAGE,
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    max_restarts: int | None = None,
    rdzv_port: int = _DEFAULT_PORT,
    rdzv_backend: str = "c10d",
    rdzv_endpoint: str | None = None,
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
    torchrun_args: list[str] | None = None,
) -> specs.AppDef:
    """Distributed PyTorch with every option of torchrun.

    The workers of all nodes run the same script or module, and communicate through torch.distributed.

        torchx run dist.torchrun -j 2x8 -h aws_p4d.24xlarge --script train.py -- --epochs 3

    Args:
        script_args: arguments of the script, after ``--``
        script: the script, relative to the image or the current directory; this or ``-m``
        m: the module, as in ``python -m``; this or ``--script``
        image: container image; for schedulers without containers, a directory
        name: name of the job: experiment/run, experiment/, /run or run; the defaults are default-experiment
            and the name of the script
        h: named resource of each node, for example gpu.small; overrides cpu, gpu and memMB
        cpu: CPUs of each node
        gpu: GPUs of each node
        memMB: memory of each node, in MiB; or 4G
        j: size: [min_nnodes:]nnodes[xnproc_per_node]. Without nproc_per_node, each node has a worker per GPU of the
            resource, or one worker without GPUs; with min_nnodes the job is elastic
        env: environment variables: A=1,B=2
        metadata: metadata of the job: A=1,B=2
        max_retries: how often the scheduler restarts the job (elastic: the failed node)
        max_restarts: how often torchrun restarts the workers of a node; by default 0, in an elastic job as often as
            nodes can be lost
        rdzv_port: port of the rendezvous at replica 0
        rdzv_backend: backend of the rendezvous: c10d, static, etcd-v2, ...
        rdzv_endpoint: host:port of the rendezvous, if replica 0 does not host it
        rdzv_conf: further options of the rendezvous: join_timeout=900,read_timeout=900
        mounts: mounts: type=bind,src=/host,dst=/job[,readonly]
        debug: whether to set the debug flags of torch
        tee: streams of the workers that appear in the log: 0 unchanged, 1 stdout, 2 stderr, 3 both, each line
            with the worker's rank
        torchrun_args: further options of torchrun: --monitor-interval=1,--log-dir=/logs
    """
    if (script is None) == (m is None):
        raise _needs_program(script, script_args)
    resource = specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h)
    size = JobSize.parse(j, gpus=resource.gpu)
    _warn_of_too_few_gpus(j, size, resource.gpu)
    full_name = StructuredNameArgument.parse_from(name, m=m, script=script)
    if max_restarts is None:
        # Each node that is lost while the job can continue costs the others one restart, each time that it returns.
        max_restarts = (size.max_nnodes - size.min_nnodes) * (1 + max_retries)
    command = [
        "torchrun",
        *_rendezvous(size, rdzv_backend, rdzv_endpoint, rdzv_port, rdzv_conf),
        *("--nnodes", size.nnodes, "--nproc_per_node", str(size.nproc_per_node)),
        *(("--max_restarts", str(max_restarts)) if max_restarts else ()),
        # An empty role shortens the prefix of log lines to the rank: `[0]:`.
        *("--tee", str(tee), "--role", ""),
        *(torchrun_args or ()),
        *(("-m", m) if m is not None else (script or "",)),
        *script_args,
    ]
    role = specs.Role(
        name=get_role_name(script, m),
        image=image,
        entrypoint="bash",
        args=["-c", _args_join(command)],
        env=_env(env, full_name, debug=debug, restarts=max_restarts > 0, workers=size.nproc_per_node),
        num_replicas=size.max_nnodes,
        min_replicas=size.min_nnodes if size.elastic else None,
        max_retries=max_retries,
        retry_policy=specs.RetryPolicy.REPLICA if size.elastic else specs.RetryPolicy.APPLICATION,
        resource=resource,
        port_map={"c10d": rdzv_port},
        mounts=specs.parse_mounts(mounts) if mounts else [],
        metadata={"script": script} if script is not None else {},
    )
    return specs.AppDef(name=full_name.run_name, roles=[role], metadata=dict(metadata or {}))


def ddp(
    *script_args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = torchx.IMAGE,
    name: str = "/",
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 1024,
    j: str = "1x2",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    rdzv_port: int = _DEFAULT_PORT,
    rdzv_backend: str = "c10d",
    rdzv_conf: str | None = None,
    mounts: list[str] | None = None,
    debug: bool = False,
    tee: int = 3,
) -> specs.AppDef:
    """Distributed data parallel training: runs a PyTorch script on many workers and nodes with torchrun.

        torchx run dist.ddp -j 2x2 --script train.py -- --epochs 3

    Args:
        script_args: arguments of the script, after ``--``
        script: the script, relative to the image or the current directory; this or ``-m``
        m: the module, as in ``python -m``; this or ``--script``
        image: container image; for schedulers without containers, a directory
        name: name of the job: experiment/run, experiment/, /run or run; the defaults are default-experiment
            and the name of the script
        h: named resource of each node, for example gpu.small; overrides cpu, gpu and memMB
        cpu: CPUs of each node
        gpu: GPUs of each node
        memMB: memory of each node, in MiB; or 4G
        j: size: [[min_nnodes:]nnodesx]nproc_per_node; a single number is the number of workers on one node; with
            min_nnodes the job is elastic
        env: environment variables: A=1,B=2
        metadata: metadata of the job: A=1,B=2
        max_retries: how often the scheduler restarts the job (elastic: the failed node)
        rdzv_port: port of the rendezvous at replica 0; with one node, any free port is used
        rdzv_backend: backend of the rendezvous: c10d, static, etcd-v2, ...
        rdzv_conf: further options of the rendezvous: join_timeout=900,read_timeout=900
        mounts: mounts: type=bind,src=/host,dst=/job[,readonly]
        debug: whether to set the debug flags of torch
        tee: streams of the workers that appear in the log: 0 unchanged, 1 stdout, 2 stderr, 3 both, each line
            with the worker's rank
    """
    options = {**locals(), "j": _of_one_node(j)}  # torchrun() has all of them
    return torchrun(*options.pop("script_args"), **options)


def spmd(
    *args: str,
    script: str | None = None,
    m: str | None = None,
    image: str = torchx.IMAGE,
    name: str = "/",
    h: str = "gpu.small",
    j: str = "1x1",
    env: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    mounts: list[str] | None = None,
    debug: bool = False,
) -> specs.AppDef:
    """Run one program on many workers with torchrun, sized by a named resource.

        torchx run dist.spmd -j 2 -h gpu.large -m pets.train -- --epochs 3

    Args:
        args: arguments of the script or module, after ``--``
        script: the script, relative to the image or the current directory; this or ``-m``
        m: the module, as in ``python -m``; this or ``--script``
        image: container image; for schedulers without containers, a directory
        name: name of the job: experiment/run, experiment/, /run or run; the defaults are default-experiment
            and the name of the script
        h: named resource of each node, for example gpu.small
        j: size: [min_nnodes:]nnodes[xnproc_per_node]. Without nproc_per_node, each node has a worker per GPU of the
            resource, or one worker without GPUs
        env: environment variables: A=1,B=2
        metadata: metadata of the job: A=1,B=2
        max_retries: how often the scheduler restarts the job
        mounts: mounts: type=bind,src=/host,dst=/job[,readonly]
        debug: whether to set the debug flags of torch
    """
    options = locals()  # torchrun() has all of them
    return torchrun(*options.pop("args"), **options)


def get_role_name(script: str | None, m: str | None) -> str:
    """Return the role name of a script or module: ``train`` for ``src/train.py`` and ``pets.train``.

    Raises:
        SpecError: neither is given.

    >>> get_role_name("src/train.py", None)
    'train'
    """
    name = program_name(script, m)
    if not name:
        raise _needs_program(script, ())
    return name


def parse_nnodes(j: str) -> tuple[int, int, int, str]:
    """Parse ``-j``: minimum nodes, maximum nodes, workers per node, and the value of ``torchrun --nnodes``.

    A single number is the number of workers on one node.

    Raises:
        SpecError: ``j`` is malformed.

    >>> parse_nnodes("2:4x8")
    (2, 4, 8, '2:4')
    >>> parse_nnodes("2x8")
    (2, 2, 8, '2')
    >>> parse_nnodes("8")
    (1, 1, 8, '1')
    """
    size = JobSize.parse(_of_one_node(j))
    return size.min_nnodes, size.max_nnodes, size.nproc_per_node, size.nnodes


def _of_one_node(j: str) -> str:
    return f"1x{j}" if j.strip().isdigit() else j


class _noquote(str):  # noqa: N801  # programs import it under this name
    """A word that :func:`_args_join` does not quote, so that the shell expands it."""

    __slots__ = ()


def _args_join(args: Iterable[str]) -> str:
    """Quote and join words into a line for a shell; macros in it still work.

    >>> _args_join(["echo", "it's $5", _noquote("$HOME")])
    'echo \\'it\\'"\\'"\\'s $5\\' $HOME'
    """
    return " ".join(arg if isinstance(arg, _noquote) else shlex.quote(arg) for arg in args)


def _rendezvous(size: JobSize, backend: str, endpoint: str | None, port: int, conf: str | None) -> list[str]:
    """Return the options of torchrun by which the nodes find each other."""
    words = ["--rdzv_backend", backend, "--rdzv_id", macros.app_id]
    if endpoint is not None:
        words += ["--rdzv_endpoint", endpoint]
    elif size.max_nnodes == 1 and backend == "c10d":
        # torchrun chooses the port, and the workers need not resolve the machine's host name.
        words += ["--rdzv_endpoint", "localhost:0", "--local_addr", "localhost"]
    else:
        host = "localhost" if size.max_nnodes == 1 else f"$${{{macros.rank0_env}}}"
        chosen = f"${{TORCHX_RANK0_PORT:-{port}}}" if port == _DEFAULT_PORT else str(port)
        words += ["--rdzv_endpoint", _noquote(f'"{host}:{chosen}"')]
    if backend == "static":
        words += ["--node_rank", _noquote(f'"{macros.replica_id}"')]
    if size.max_nnodes > 1 and backend == "c10d":
        given = {pair.partition("=")[0].strip() for pair in (conf or "").split(",")}
        wanted = {"read_timeout": str(_WAIT_S), "join_timeout": str(_WAIT_S)}
        if endpoint is None:
            # Explicit, because torchrun compares host names: on one machine all nodes would match.
            wanted["is_host"] = f"$(({macros.replica_id}==0))"
        pairs = [f"{k}={v}" for k, v in wanted.items() if k not in given]
        conf_word = ",".join(pairs)
        if conf:
            conf_word += f",{shlex.quote(conf)}" if conf_word else shlex.quote(conf)
        return [*words, "--rdzv_conf", _noquote(conf_word)]
    return [*words, "--rdzv_conf", conf] if conf else words


def _env(
    given: Mapping[str, str] | None, name: StructuredNameArgument, *, debug: bool, restarts: bool, workers: int
) -> dict[str, str]:
    """Return the environment of the nodes; values of the user take precedence."""
    return {
        "PYTHONUNBUFFERED": "1",  # otherwise the log stays empty until a worker ends
        "TORCHX_TRACKING_EXPERIMENT_NAME": name.experiment_name,
        "TORCHX_TRACKING_RUN_NAME": name.run_name,
        "LOGLEVEL": os.environ.get("LOGLEVEL", "WARNING"),  # of torchrun
        # As torchrun sets it, with a banner of four lines, where it is not set.
        **({"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} if workers > 1 else {}),
        # By default torchrun's agents share one store with all generations of workers, where gloo finds the addresses
        # of dead workers: `connectFullMesh failed` (torch 2.13). This gives each generation its own store.
        **({"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts else {}),
        **(_TORCH_DEBUG_FLAGS if debug else {}),
        **(given or {}),
    }


def _warn_of_too_few_gpus(j: str, size: JobSize, gpus: int) -> None:
    if 0 < gpus < size.nproc_per_node:
        logger("torchx").warning(
            "`-j %s` starts %d workers on nodes of %d GPUs: some share one", j, size.nproc_per_node, gpus
        )


def _needs_program(script: str | None, script_args: tuple[str, ...]) -> SpecError:
    if script is not None:
        return SpecError("both `--script` and `-m` are given", hint="keep one of the two")
    first = script_args[0] if script_args else ""
    meant = f"did you mean `--script {first}`? " if first.endswith(".py") else ""
    return SpecError(
        "neither `--script` nor `-m` is given",
        hint=f"{meant}write `--script train.py -- --epochs 3`, or `-m my_module -- --epochs 3`",
    )
