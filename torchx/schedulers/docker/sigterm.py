"""Whether it is of any use to wait for a container to end after SIGTERM.

The engine sends the signal to the container's first process, for which the kernel knows no default: without a handler
it is lost, and the whole grace period would go by before SIGKILL. A plain ``python train.py`` is such a process.
https://man7.org/linux/man-pages/man7/pid_namespaces.7.html
"""

from __future__ import annotations

from typing import Any

_SIGTERM = 1 << 14
_HEARD = ("SigCgt", "SigIgn", "SigBlk")  # one that ignores it on purpose gets its time


def sigterm_is_lost(details: Any, proc: str = "/proc") -> bool:
    """Whether SIGTERM is certain to be lost; False where that is not known, as of an engine on another machine.

    Args:
        details: what the engine knows of the container, as ``docker inspect`` prints it.
    """
    state = details.get("State") if isinstance(details, dict) else None
    pid = (state or {}).get("Pid")
    container = str(details.get("Id") or "") if state else ""
    config = details.get("Config") or {} if state else {}
    other = config.get("StopSignal") not in (None, "", "SIGTERM", "15", 15)
    if not isinstance(pid, int) or pid <= 0 or not container or other:
        return False
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as f:
            if container not in f.read():  # another machine's process, or another process by now
                return False
        with open(f"{proc}/{pid}/status", encoding="utf-8", errors="replace") as f:
            masks = dict(line.split(":", 1) for line in f.read().splitlines() if ":" in line)
        return masks["NSpid"].split()[-1] == "1" and not any(int(masks[name], 16) & _SIGTERM for name in _HEARD)
    except (OSError, KeyError, ValueError, IndexError):
        return False
