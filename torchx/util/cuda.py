"""Whether this machine has NVIDIA GPUs."""

from __future__ import annotations

import os


def has_cuda_devices() -> bool:
    """True if the NVIDIA driver has given this machine at least one device node.

    Reads ``/dev`` only: it starts no program and needs no CUDA library.

    >>> has_cuda_devices() in (True, False)
    True
    """
    try:
        names = os.listdir("/dev")
    except OSError:
        return False
    return any(n.startswith("nvidia") and n[6:].isdigit() for n in names)
