"""Asks before a job that could use more GPU-hours than ``max_gpu_hours`` in ``[cli]`` of the config files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchx.config import active_profile, load_files
from torchx.errors import ConfigError
from torchx.specs.wishes import Wishes
from torchx.util.datetime import duration
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.schedulers.api import Scheduler
    from torchx.specs.api import AppDef, AppDryRunInfo

KEY = "max_gpu_hours"
HINT = "`--yes` submits it; a shorter `--timeout`, or fewer tasks, ask for less"

confirm: Callable[[str], None] | None = None
"""Asks the user; raises an error if the answer is no. The command line sets it; programs are not asked."""


@dataclass(frozen=True)
class Asked:
    """What a job asks for: ``tasks`` of a sweep, each with ``gpus``, for ``limit_s`` seconds, in all attempts."""

    tasks: int
    gpus: float
    limit_s: float | None
    attempts: int = 1

    def hours(self) -> float | None:
        """Return the most GPU-hours; None if nothing limits them.

        >>> Asked(200, 8, 7200).hours(), Asked(1, 0, None).hours(), Asked(1, 8, None).hours()
        (3200.0, 0.0, None)
        """
        if not self.gpus:
            return 0.0
        return self.tasks * self.gpus * self.attempts * self.limit_s / 3600 if self.limit_s else None

    def __str__(self) -> str:
        """Return it as a sum.

        >>> print(Asked(200, 8, 7200)); print(Asked(1, 8, 7200, 3)); print(Asked(1, 16, None))
        200 x 8 GPUs x 2 h = 3,200 GPU-hours
        8 GPUs x 2 h x 3 attempts = 48 GPU-hours
        16 GPUs without a time limit
        """
        hours = self.hours()
        size = f"{f'{self.tasks:,} x ' if self.tasks > 1 else ''}{self.gpus:g} GPU{'' if self.gpus == 1 else 's'}"
        if hours is None or not self.limit_s:
            return f"{size} without a time limit"
        attempts = f" x {self.attempts} attempts" if self.attempts > 1 else ""
        return f"{size} x {duration(self.limit_s)}{attempts} = {hours:,.10g} GPU-hour{'' if hours == 1 else 's'}"


def asked(app: AppDef, limit_s: float | None, tasks: int = 1) -> Asked:
    """Return what a job asks for; ``limit_s`` is the time limit of the run options, if the job has none of its own."""
    wishes = Wishes.of(app)
    gpus = sum(max(role.resource.gpu, 0) * role.num_replicas for role in app.roles)
    if wishes.retry and wishes.retry.total:
        return Asked(tasks, gpus, wishes.retry.total_s)
    retries = sum(max(rule.times, 0) for rule in wishes.retry.rules) if wishes.retry else 0
    return Asked(tasks, gpus, wishes.timeout_s or limit_s, 1 + retries)


def check(info: AppDryRunInfo[Any], backend: Scheduler[Any], tasks: int = 1) -> None:
    """Ask the user if a job asks for more than the limit in the config files."""
    entry = load_files().section("cli", active_profile()).get(KEY)
    if confirm is None or entry is None or info._app is None:
        return
    try:
        most = float(entry.text)
    except ValueError:
        most = -1.0
    if not most >= 0:  # or NaN
        raise ConfigError(f"{entry.where()}: `{KEY}` is `{entry.text}`", hint="a number, such as 100")
    found = asked(info._app, backend.time_limit_s(info._cfg), tasks)
    hours = found.hours()
    if hours is None or hours > most:
        confirm(f"{found}; {entry.where()} permits {most:,g} without a question")
