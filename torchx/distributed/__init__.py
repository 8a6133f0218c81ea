"""The rank of this process in its job, and the process group of the job.

It works the same in a job of one process, started with plain ``python``, and in one of many, started with torchrun::

    from torchx import distributed

    device = distributed.init_pg()
    with distributed.on_local_rank0_first():
        download(dataset)  # once on each host; the other ranks find it there
    model = Model().to(device)

PyTorch is imported only when needed; :func:`rank` and similar functions do not need it.

Inside a job, importing this module also lets ``torchx stacks`` read the stack of the process, which it dumps on the
signal ``SIGRTMIN + 13`` unless the program handles that signal itself.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from torchx.distributed import stacks
from torchx.distributed.checkpoints import progress, should_checkpoint
from torchx.distributed.ranks import is_local_rank0, is_rank0, local_rank, number, process_group, rank, world_size
from torchx.errors import MissingDependencyError, SpecError
from torchx.settings import ENV_JOB_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Literal

    import torch

    Backend = Literal["nccl", "gloo", "auto"]

__all__ = [
    "Backend",
    "init_pg",
    "is_local_rank0",
    "is_rank0",
    "local_cuda_device",
    "local_device",
    "local_rank",
    "on_local_rank0_first",
    "on_rank0_first",
    "progress",
    "rank",
    "should_checkpoint",
    "world_size",
]


def init_pg(backend: Backend = "auto", **kwargs: Any) -> torch.device:
    """Create the default process group, unless there is one, and return the device to compute on.

    In a process that torchrun did not start, the group has only this process, so the same program runs anywhere.
    Inside a job, ``torchx stacks`` can then show in which call of a collective this process waits.

    Args:
        backend: ``auto`` is ``nccl`` if each process on this host has a GPU of its own, else ``gloo``.
        kwargs: for :func:`torch.distributed.init_process_group`, for example ``timeout``.

    Returns:
        With ``nccl`` the GPU of this process, which becomes the current device; else the CPU.

    Raises:
        SpecError: ``nccl`` is requested, but there is no GPU for this rank.
        MissingDependencyError: PyTorch is not installed.
    """
    torch = _torch()
    dist = torch.distributed
    if dist.is_initialized():
        import logging

        if backend != "auto" and backend not in dist.get_backend():
            message = "init_pg: there is a process group with the backend `%s` already; it is kept"
            logging.getLogger(__name__).warning(message, dist.get_backend())
        _offer_calls()
        return local_device()
    if backend == "auto":
        # All ranks have to choose the same one, also those for which there is a GPU.
        enough = _has_cuda() and number("LOCAL_WORLD_SIZE", 1) <= torch.cuda.device_count()
        backend = "nccl" if dist.is_nccl_available() and enough else "gloo"
    device = torch.device("cpu")
    if backend == "nccl":
        device = local_cuda_device()
        torch.cuda.set_device(device)
    if not (
        kwargs.keys() & {"init_method", "store", "rank", "world_size"}
        or dist.is_torchelastic_launched()
        or _has_env_rendezvous()
    ):
        kwargs.update(store=dist.HashStore(), rank=0, world_size=1)
    dist.init_process_group(backend=backend, **kwargs)
    _offer_calls()
    return device


def local_cuda_device() -> torch.device:
    """Return the GPU of this process, whose index is the local rank.

    Raises:
        SpecError: there is no such GPU.
    """
    torch = _torch()
    if not _has_cuda():
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise SpecError(
            f"there is no GPU for local rank {local_rank()}: PyTorch sees {count} here",
            hint="start no more processes on a host than it has GPUs, or use the backend `gloo`",
        )
    return torch.device(f"cuda:{local_rank()}")


def local_device() -> torch.device:
    """Return the device for the process group: the GPU of this process with NCCL, the CPU with Gloo.

    Without a process group, it returns the GPU of this process if there is one, else the CPU.
    """
    torch = _torch()
    dist = process_group()
    on_gpu = "nccl" in dist.get_backend() if dist else _has_cuda()
    return local_cuda_device() if on_gpu else torch.device("cpu")


@contextmanager
def on_rank0_first() -> Iterator[None]:
    """Run the block on rank 0 while the others wait, then on all others.

    All ranks must enter it. If rank 0 fails in the block, the others continue. They wait no longer than the process
    group's ``timeout``.
    """
    with _first(is_rank0()):
        yield


@contextmanager
def on_local_rank0_first() -> Iterator[None]:
    """Like :func:`on_rank0_first`, for the first rank of each host: for example, to download once per host."""
    with _first(is_local_rank0()):
        yield


@contextmanager
def _first(is_first: bool) -> Iterator[None]:
    if not is_first:
        _barrier()
    try:
        yield
    finally:
        if is_first:
            _barrier()


def _barrier() -> None:
    dist = process_group()
    if dist is None:
        if world_size() > 1:
            import logging

            text = "the %d processes of this job do not wait for each other: no process group yet, call init_pg() first"
            logging.getLogger(__name__).warning(text, world_size())
        return
    # Without the device NCCL would have to guess it.
    dist.barrier(**({"device_ids": [local_rank()]} if "nccl" in dist.get_backend() else {}))


def _offer_calls() -> None:
    if os.environ.get(ENV_JOB_ID):
        stacks.offer_calls()


def _has_cuda() -> bool:
    torch = _torch()
    return bool(torch.cuda.is_available()) and local_rank() < torch.cuda.device_count()


def _has_env_rendezvous() -> bool:
    """Return whether another launcher (srun, a test) has set the variables that the default ``env://`` reads."""
    return all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))


def _torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as e:
        raise MissingDependencyError("torchx.distributed needs PyTorch", hint="pip install torch") from e
    return torch


if os.environ.get(ENV_JOB_ID):  # inside a job
    stacks.offer()


def __getattr__(name: str) -> Any:
    if name == "Backend":  # lazily: `typing` takes longer to import than this module
        from typing import Literal

        return Literal["nccl", "gloo", "auto"]
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
