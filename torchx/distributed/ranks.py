"""Which process of a job this is, from the variables that torchrun and other launchers set."""

from __future__ import annotations

import os
import sys

from torchx.errors import SpecError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def rank() -> int:
    """Return the rank of this process in the job; 0 in a job of one process."""
    dist = process_group()
    return int(dist.get_rank()) if dist else number("RANK", 0)


def world_size() -> int:
    """Return the number of processes of the job."""
    dist = process_group()
    return int(dist.get_world_size()) if dist else number("WORLD_SIZE", 1)


def local_rank() -> int:
    """Return the rank of this process on its host, also the index of its GPU; 0 if torchrun did not start it."""
    return number("LOCAL_RANK", 0)


def is_rank0() -> bool:
    """Return whether this is the first process of the job."""
    return rank() == 0


def is_local_rank0() -> bool:
    """Return whether this is the first process on its host."""
    return local_rank() == 0


def process_group() -> Any:
    """Return ``torch.distributed`` if there is a process group, else None; does not import PyTorch."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def number(variable: str, default: int) -> int:
    """Return the number in an environment variable. Raises SpecError if it holds something else."""
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise SpecError(
            f"`{variable}` is `{text}`, which is not a number", hint="torchrun sets it in each process"
        ) from None
