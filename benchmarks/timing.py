"""Paired measurement: everyone runs in each round, in turn, so that a busy machine slows all of them alike."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

COMMAND_PATIENCE_S = 15
PROGRAM_PATIENCE_S = 300
Sample = Callable[[], float]


class Cannot(Exception):
    """The contestant has no such ability, or the attempt failed; the message says what was seen."""


@dataclass
class Samples:
    """What each of them reached, one figure a round; or why there is none."""

    values: dict[str, list[float]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        values = self.values.get(name)
        return statistics.median(values) if values else None

    def ratio(self, name: str, base: str) -> float | None:
        """The median of the ratios of each round, not the ratio of medians: a round is one moment of the machine."""
        mine, theirs = self.values.get(name), self.values.get(base)
        if not mine or not theirs:
            return None
        return statistics.median(a / b for a, b in zip(mine, theirs, strict=False))


def measure(samplers: Mapping[str, Sample], rounds: int) -> Samples:
    """Sample everyone once a round, each time beginning with another. The first round warms caches and is dropped."""
    samples = Samples({name: [] for name in samplers})
    names = list(samplers)
    for number in range(rounds + 1):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            if name in samples.problems:
                continue
            try:
                value = samplers[name]()
            except Cannot as problem:
                samples.problems[name] = str(problem)
                samples.values.pop(name)
                continue
            if number:
                samples.values[name].append(value)
    return samples


def command(argv: list[str], env: Mapping[str, str], cwd: str, expect: str | None = None) -> Sample:
    """Seconds that ``argv`` takes. ``expect`` is a text that the output must hold, or the contestant cannot do it."""
    checked = expect is None

    def sample() -> float:
        nonlocal checked
        if not checked:
            done = _once(argv, env, cwd, COMMAND_PATIENCE_S)
            if done.returncode != 0 or (expect or "") not in done.stdout + done.stderr:
                raise Cannot(_last_line(done.stdout + done.stderr) or f"exit code {done.returncode}")
            checked = True
        return timed(argv, env, cwd)

    return sample


def timed(argv: list[str], env: Mapping[str, str], cwd: str) -> float:
    with open(os.devnull, "r+b") as null:
        started = time.perf_counter()
        done = subprocess.run(argv, env=dict(env), cwd=cwd, stdin=null, stdout=null, stderr=null, check=False)
        seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise Cannot(f"exit code {done.returncode}")
    return seconds


def program(argv: list[str], env: Mapping[str, str], cwd: str) -> Sample:
    """The figure that a program prints as its last line."""

    def sample() -> float:
        done = _once(argv, env, cwd, PROGRAM_PATIENCE_S)
        if done.returncode != 0:
            raise Cannot(_last_line(done.stderr or done.stdout) or f"exit code {done.returncode}")
        return float(done.stdout.strip().splitlines()[-1])

    return sample


def _once(argv: list[str], env: Mapping[str, str], cwd: str, patience_s: float) -> subprocess.CompletedProcess[str]:
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        return subprocess.run(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=null,
            stdout=pipe,
            stderr=pipe,
            text=True,
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Cannot(f"no end after {patience_s:g} s") from None


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:120] if lines else ""
