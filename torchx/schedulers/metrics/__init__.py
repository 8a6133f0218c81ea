"""What replicas use: the samples that a backend with :class:`~torchx.schedulers.kit.abilities.Measures` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx.schedulers.kit.files import Files


@dataclass
class Gpu:
    """One GPU: how busy it is in percent, and bytes of its memory."""

    percent: float
    memory: int
    memory_total: int


@dataclass
class Sample:
    """What a replica used at one time.

    Attributes:
        at: Unix time.
        cpu: processors in use since the sample before, on average; None when only one moment was seen.
        memory: bytes that were resident.
        gpus: those that it may use.
        attempt: 0 for its first start.
    """

    at: float
    cpu: float | None
    memory: int
    gpus: list[Gpu] = field(default_factory=list)
    attempt: int = 0


@dataclass
class AttemptUsage:
    """The samples of one attempt in short.

    Attributes:
        cpu: processors in use, on average.
        memory: the most bytes.
        gpu: percent, on average over its GPUs; None without any.
        seconds: between the first sample and the last.
    """

    attempt: int
    cpu: float | None
    memory: int
    gpu: float | None
    seconds: float


@dataclass
class ReplicaMetrics:
    """What one replica used, oldest sample first.

    Attributes:
        cpus: how many processors it may use; None when that is not known.
        memory_limit: bytes that it may use.
        attempts: in short; of a job whose files are gone, and of a short task, there is nothing else.
    """

    role: str
    replica: int
    cpus: float | None = None
    memory_limit: int | None = None
    samples: list[Sample] = field(default_factory=list)
    attempts: list[AttemptUsage] = field(default_factory=list)

    def memory_peak(self) -> int | None:
        """The most bytes in any attempt; None when nothing is known."""
        return max([0, *(s.memory for s in self.samples), *(a.memory for a in self.attempts)]) or None

    def summary(self) -> list[AttemptUsage]:
        """Each attempt in short, as far as there are samples of it."""
        if not self.samples:
            return self.attempts
        found: dict[int, list[Sample]] = {}
        for sample in self.samples:
            found.setdefault(sample.attempt, []).append(sample)
        return [_in_short(attempt, samples) for attempt, samples in sorted(found.items())]


def parse(role: str, replica: int, lines: Iterable[str]) -> ReplicaMetrics:
    """The file of a replica as a sampler writes it; what cannot be read is left out.

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
    """What samplers have written down, by one look at all files.

    Args:
        paths: those of replicas, by role and number.
    """
    texts = files.grown(dict.fromkeys(paths.values(), 0)) if paths else {}
    return [
        parse(role, k, texts.get(path, b"").decode("utf-8", "replace").splitlines())
        for (role, k), path in paths.items()
    ]


def _in_short(attempt: int, samples: list[Sample]) -> AttemptUsage:
    """By time: after a file was thinned out, old samples stand for more of it than new ones."""
    spans = [samples[i + 1].at - samples[i].at for i in range(len(samples) - 1)]
    spans = [spans[0] if spans else 1.0, *spans]
    cpu = _mean([s.cpu for s in samples], spans)
    gpu = _mean([sum(g.percent for g in s.gpus) / len(s.gpus) if s.gpus else None for s in samples], spans)
    return AttemptUsage(attempt, cpu, max(s.memory for s in samples), gpu, samples[-1].at - samples[0].at)


def _mean(values: list[float | None], weights: list[float]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in known)
    return round(sum(value * weight for value, weight in known) / total, 2) if total else None
