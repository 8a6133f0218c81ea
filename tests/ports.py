"""Ports for the servers that tests start."""

from __future__ import annotations

import contextlib
import random
import socket

_KUBERNETES = range(30000, 32768)  # a node's own (NodePort)


def free(address: str = "127.0.0.1") -> int:
    """A port that nobody has."""
    return several(1, address)[0]


def several(count: int, address: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody has; and nobody is given one of them by chance before its server is up, or while it
    is restarted: they are none of those that the kernel gives to whoever connects, or asks for any port.
    """
    first, last = _given_by_the_kernel()
    ours = [port for port in range(10000, 65536) if not first <= port <= last and port not in _KUBERNETES]
    chosen: list[int] = []
    for port in random.SystemRandom().sample(ours, len(ours)):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise AssertionError(f"the machine has no {count} free ports outside of {first} to {last}")


def _given_by_the_kernel() -> tuple[int, int]:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
            first, last = map(int, f.read().split())
            return first, last
    except FileNotFoundError:
        return 49152, 65535  # https://www.rfc-editor.org/rfc/rfc6335#section-6
