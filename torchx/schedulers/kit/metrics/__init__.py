"""Resource usage of replicas, as returned by backends with :class:`~torchx.schedulers.kit.abilities.ReportsUsage`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx.schedulers.kit.files import Files


@dataclass
class Gpu:
    """One GPU: its utilization in percent, its used memory and its total memory in bytes."""

    percent: float
    memory: int
    memory_total: int


@dataclass
class Sample:
    """The usage of a replica at one time.

    Attributes:
        at: Unix time.
        cpu: average number of processors in use since the sample before; None if unknown.
        memory: resident bytes.
        gpus: the GPUs that it may use.
        attempt: 0 for its first start.
    """

    at: float
    cpu: float | None
    memory: int
    gpus: list[Gpu] = field(default_factory=list)
    attempt: int = 0


@dataclass
class AttemptUsage:
    """A summary of one attempt.

    Attributes:
        cpu: average number of processors in use.
        memory: peak in bytes.
        gpu: average utilization of its GPUs in percent; None if it has none.
        seconds: between the first and the last sample.
        gpu_memory: peak of the used memory of its GPUs together, in bytes; None if it has none.
    """

    attempt: int
    cpu: float | None
    memory: int
    gpu: float | None
    seconds: float
    gpu_memory: int | None = None


@dataclass
class ReplicaMetrics:
    """The usage of one replica, oldest sample first.

    Attributes:
        cpus: number of processors that it may use; None if unknown.
        memory_limit: bytes that it may use; None if unknown.
        attempts: summaries, used if there are no samples: the job's files are gone, or a task was too short.
    """

    role: str
    replica: int
    cpus: float | None = None
    memory_limit: int | None = None
    samples: list[Sample] = field(default_factory=list)
    attempts: list[AttemptUsage] = field(default_factory=list)

    def memory_peak(self) -> int | None:
        """Return the peak in bytes over all attempts; None if unknown."""
        return max([0, *(s.memory for s in self.samples), *(a.memory for a in self.attempts)]) or None

    def summary(self) -> list[AttemptUsage]:
        """Summaries of all attempts with known usage."""
        if not self.samples:
            return self.attempts
        found: dict[int, list[Sample]] = {}
        for sample in self.samples:
            found.setdefault(sample.attempt, []).append(sample)
        return [_in_short(attempt, samples) for attempt, samples in sorted(found.items())]


def parse(role: str, replica: int, lines: Iterable[str]) -> ReplicaMetrics:
    """Parse the file that a sampler wrote for a replica. Skips invalid lines.

    >>> found = parse("w", 0, ['{"memory_limit": 8, "cpus": 2}', '{"t": 1.5, "a": 0, "cpu": 0.5, "mem": 7}', '{"t": 3'])
    >>> found.memory_limit, found.samples
    (8, [Sample(at=1.5, cpu=0.5, memory=7, gpus=[], attempt=0)])
    """
    import json

    found = ReplicaMetrics(role, replica)
    for line in lines:
        try:
            row = json.loads(line)
            if "t" not in row:
                found.memory_limit, found.cpus = row.get("memory_limit"), row.get("cpus")
                continue
            gpus = [Gpu(*numbers) for numbers in row.get("gpu", ())]
            found.samples.append(Sample(row["t"], row.get("cpu"), int(row["mem"]), gpus, int(row.get("a", 0))))
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def read_kept(files: Files, paths: Mapping[tuple[str, int], str]) -> list[ReplicaMetrics]:
    """Read the files of samplers, given by role and number of the replica, all in one query."""
    texts = files.grown(dict.fromkeys(paths.values(), 0)) if paths else {}
    return [
        parse(role, k, texts.get(path, b"").decode("utf-8", "replace").splitlines())
        for (role, k), path in paths.items()
    ]


def _in_short(attempt: int, samples: list[Sample]) -> AttemptUsage:
    """Averages are weighted by time: in a file that was thinned out, old samples cover more time than new ones."""
    spans = [samples[i + 1].at - samples[i].at for i in range(len(samples) - 1)]
    spans = [spans[0] if spans else 1.0, *spans]
    cpu = _mean([s.cpu for s in samples], spans)
    gpu = _mean([sum(g.percent for g in s.gpus) / len(s.gpus) if s.gpus else None for s in samples], spans)
    gpu_memory = max((sum(g.memory for g in s.gpus) for s in samples if s.gpus), default=None)
    return AttemptUsage(attempt, cpu, max(s.memory for s in samples), gpu, samples[-1].at - samples[0].at, gpu_memory)


def _mean(values: list[float | None], weights: list[float]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 2) if total else None
