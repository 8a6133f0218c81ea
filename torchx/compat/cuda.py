"""Detection of NVIDIA GPUs."""

from __future__ import annotations

import os


def has_cuda_devices() -> bool:
    """Whether the NVIDIA driver has created at least one device node.

    It reads ``/dev`` only, without starting a program or loading a CUDA library.

    >>> has_cuda_devices() in (True, False)
    True
    """
    try:
        names = os.listdir("/dev")
    except OSError:
        return False
    return any(n.startswith("nvidia") and n[6:].isdigit() for n in names)
