"""What the replicas of a role used, against what they asked for, and what they would need."""

from __future__ import annotations

import math

from torchx.util.datetime import duration
from torchx.util.records import dataclass
from torchx.util.strings import size_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.specs.status import AppStatus

MARGIN = 1.3
"""Room above the peak of the memory. The average of the processors and the time get twice as much: they vary more."""

_WORTH = 0.75  # of what was asked; less is not worth a change
_LEAST_MB = 256


@dataclass(kw_only=True)
class RoleUsage:
    """What one replica of a role asked for, and what the replica with the highest usage used; None if unknown.

    Attributes:
        memory_asked, memory: bytes; the peak of resident memory, without the page cache.
        cpus_asked, cpus: processors, and their average use.
        gpus_asked, gpu: number of GPUs, and the average utilization of all of them in percent.
        gpu_memory, gpu_memory_total: peak of their used memory, and their memory, in bytes, all together.
        limit_s, seconds: time limit of the job, and how long it ran.
    """

    role: str
    memory_asked: int | None = None
    memory: int | None = None
    cpus_asked: float | None = None
    cpus: float | None = None
    gpus_asked: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None
    gpu_memory_total: int | None = None
    limit_s: float | None = None
    seconds: float | None = None

    def enough(self) -> dict[str, str]:
        """Return the options of ``torchx run`` that would do, with a margin; empty if nothing is worth a change.

        >>> RoleUsage(role="w", memory_asked=64 << 30, memory=9 << 30, cpus_asked=8, cpus=7.0).enough()
        {'mem': '12G'}
        """
        found: dict[str, str] = {}
        if self.memory_asked and self.memory:
            mb = max(self.memory * MARGIN / 2**20, _LEAST_MB)
            step = 1024 if mb > 4096 else _LEAST_MB
            mb = math.ceil(mb / step) * step
            if mb <= _WORTH * self.memory_asked / 2**20:
                found["mem"] = f"{mb // 1024}G" if mb % 1024 == 0 else f"{mb}M"
        if self.cpus_asked and self.cpus is not None:
            cpus = max(math.ceil(self.cpus * (2 * MARGIN - 1)), 1)
            if cpus <= _WORTH * self.cpus_asked:
                found["cpu"] = str(cpus)
        if self.limit_s and self.seconds:
            minutes = math.ceil(self.seconds * (2 * MARGIN - 1) / 60)
            minutes = math.ceil(minutes / 30) * 30 if minutes > 120 else math.ceil(minutes / 5) * 5
            if minutes * 60 <= _WORTH * self.limit_s:
                found["timeout"] = f"{minutes}m"
        return found

    def __str__(self) -> str:
        """Return what was used of what was asked for.

        >>> print(RoleUsage(role="w", memory_asked=64 << 30, memory=9 << 30, cpus_asked=8, cpus=1.25, gpu=35.2))
        9 GiB of 64 GiB memory, 1.2 of 8 CPUs, GPUs 35 % busy
        """
        words = []
        if self.memory and self.memory_asked:
            words.append(f"{size_text(self.memory)} of {size_text(self.memory_asked)} memory")
        if self.cpus is not None and self.cpus_asked:
            words.append(f"{self.cpus:.1f} of {self.cpus_asked:g} CPU{'' if self.cpus_asked == 1 else 's'}")
        if self.gpu is not None:
            words.append(f"GPUs {self.gpu:.0f} % busy")
        if self.gpu_memory and self.gpu_memory_total:
            words.append(f"{size_text(self.gpu_memory)} of {size_text(self.gpu_memory_total)} GPU memory")
        if self.limit_s and self.seconds:
            words.append(f"{duration(self.seconds)} of {duration(self.limit_s)}")
        return ", ".join(words)


def enough_of(status: AppStatus, usage: RoleUsage) -> dict[str, str]:
    """Return :meth:`RoleUsage.enough` of a job that succeeded; another one may not have used what it needs."""
    return usage.enough() if str(status.state) == "SUCCEEDED" else {}
