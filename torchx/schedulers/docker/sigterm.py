"""Detects containers that SIGTERM would not end, so that nothing waits for the whole grace period in vain.

The engine signals the container's first process (PID 1), for which the kernel has no default action: without a handler
the signal is lost. A plain ``python train.py`` is an example.
https://man7.org/linux/man-pages/man7/pid_namespaces.7.html
"""

from __future__ import annotations

from typing import Any

_SIGTERM = 1 << 14
_HANDLED = ("SigCgt", "SigIgn", "SigBlk")  # a process that ignores it on purpose gets the grace period, too


def sigterm_is_lost(details: Any, proc: str = "/proc") -> bool:
    """Whether a container, as ``docker inspect`` shows it, is certain to lose SIGTERM; False if this is not known."""
    state = details.get("State") if isinstance(details, dict) else None
    pid = (state or {}).get("Pid")
    container = str(details.get("Id") or "") if state else ""
    config = details.get("Config") or {} if state else {}
    other = config.get("StopSignal") not in (None, "", "SIGTERM", "15", 15)
    if not isinstance(pid, int) or pid <= 0 or not container or other:
        return False
    try:
        with open(f"{proc}/{pid}/cgroup", encoding="utf-8", errors="replace") as f:
            if container not in f.read():  # a process of another machine, or the pid was reused
                return False
        with open(f"{proc}/{pid}/status", encoding="utf-8", errors="replace") as f:
            masks = dict(line.split(":", 1) for line in f.read().splitlines() if ":" in line)
        return masks["NSpid"].split()[-1] == "1" and not any(int(masks[name], 16) & _SIGTERM for name in _HANDLED)
    except (OSError, KeyError, ValueError, IndexError):
        return False
