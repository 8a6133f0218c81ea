"""What this machine has: processors, memory, GPUs."""

from __future__ import annotations

import os

from torchx.util.procs import find_program


def cpu_count() -> int:
    """Logical processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def memory_mb() -> int:
    """Main memory in MiB; 0 when the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)
    except (ValueError, OSError):
        return 0


def gpu_ids() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them. Never fails.

    ``CUDA_VISIBLE_DEVICES`` of this process decides if it is set; else what ``nvidia-smi`` lists, else what the
    driver shows in ``/proc``.
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
    # Slices of a GPU are listed below it, indented.
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines()) if answer.returncode == 0 else 0


def _driver_count() -> int:
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0
