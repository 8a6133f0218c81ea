"""Named resources in t-shirt sizes, for any scheduler.

>>> NAMED_RESOURCES["gpu.small"]()
Resource(cpu=8, gpu=1, memMB=32768)
"""

from __future__ import annotations

from collections.abc import Callable

from torchx.specs.api import Resource

GiB = 1024
"""MiB in a GiB."""

# name: logical cores, GPUs, memory in MiB
_SIZES: dict[str, tuple[int, int, int]] = {
    "cpu.nano": (1, 0, GiB // 2),
    "cpu.micro": (1, 0, 1 * GiB),
    "cpu.small": (1, 0, 2 * GiB),
    "cpu.medium": (2, 0, 4 * GiB),
    "cpu.large": (2, 0, 8 * GiB),
    "cpu.xlarge": (8, 0, 32 * GiB),
    "gpu.small": (8, 1, 32 * GiB),
    "gpu.medium": (16, 2, 64 * GiB),
    "gpu.large": (32, 4, 128 * GiB),
    "gpu.xlarge": (64, 8, 256 * GiB),
}


def _factory(name: str) -> Callable[[], Resource]:
    def make() -> Resource:
        cpu, gpu, mem_mb = _SIZES[name]
        return Resource(cpu=cpu, gpu=gpu, memMB=mem_mb)

    make.__name__ = make.__qualname__ = name.replace(".", "_")
    return make


NAMED_RESOURCES: dict[str, Callable[[], Resource]] = {name: _factory(name) for name in _SIZES}
"""Factories by name."""

globals().update({factory.__name__: factory for factory in NAMED_RESOURCES.values()})
