"""CPUs, memory and GPUs of this machine."""

from __future__ import annotations

import os

from torchx.util.procs import find_program


def cpu_count() -> int:
    """Return the number of logical CPUs that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def memory_mb() -> int:
    """Return the main memory in MiB; 0 if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)
    except (ValueError, OSError):
        return 0


def gpu_ids() -> list[str]:
    """Return the GPUs that this process may use, in the form of ``CUDA_VISIBLE_DEVICES``. Never raises.

    The sources are ``CUDA_VISIBLE_DEVICES`` if set, then ``nvidia-smi``, then the driver's files in ``/proc``.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [word.strip() for word in given.split(",") if word.strip() not in ("", "-1", "none", "NoDevFiles")]
    return [str(i) for i in range(_smi_count() or _driver_count())]


def _smi_count() -> int:
    program = find_program("nvidia-smi", os.environ.get("PATH", ""), os.sep)
    if program is None:
        return 0
    import subprocess

    try:
        answer = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return 0
    # MIG slices are listed below their GPU, indented.
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0


def _driver_count() -> int:
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0
