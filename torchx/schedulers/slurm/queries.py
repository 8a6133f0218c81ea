"""Asks Slurm for jobs: what it has in memory, then its accounting, each by one command for any number of jobs."""

from __future__ import annotations

from torchx.errors import BackendError, ParseError
from torchx.schedulers.slurm.answers import parse_sacct, parse_squeue, parse_squeue_json
from torchx.schedulers.slurm.commands import (
    NO_ACCOUNTING,
    NO_SUCH_JOB,
    parse_version,
    sacct_argv,
    sacct_name_argv,
    squeue_argv,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torchx.schedulers.kit.commands import Completed
    from torchx.schedulers.slurm.answers import JobRecord

    Records = dict[str, list[JobRecord]]

FILTERED_JSON = (23, 2)
"""From this release on ``squeue --json`` shows the jobs that were asked for; before, all of the cluster's."""

_MOST_IDS = 500  # in one command
_ACCOUNTING_PATIENCE_S = 2.0  # it only adds to what is known


class SlurmQueries:
    """Questions to one cluster.

    Args:
        run: runs a command, and tries again when Slurm does not answer.
    """

    def __init__(self, run: Callable[..., Completed]) -> None:
        self._run = run
        self._version: tuple[int, int] | None = None
        self._has_accounting = True

    def squeue(self, app_ids: Sequence[str] | None) -> Records:
        """Jobs that Slurm has in memory, by id; all of the user's when None. Those that it has not are left out."""
        return self._ask(app_ids, self._squeue)

    def sacct(self, app_ids: Sequence[str] | None, *, steps: bool = False) -> Records:
        """Jobs that accounting knows, with their steps if wanted; none where there is no accounting."""

        def ask(ids: Sequence[str]) -> list[JobRecord]:
            done = self._run(sacct_argv(ids, steps=steps), patience_s=_ACCOUNTING_PATIENCE_S)
            if done.returncode and NO_ACCOUNTING.search(done.stderr):
                self._has_accounting = False
                return []
            return parse_sacct(done.check().stdout)

        if not self._has_accounting:
            return {}
        try:
            return self._ask(app_ids, ask)
        except BackendError as e:
            import logging

            logging.getLogger("torchx.schedulers").warning("Slurm's accounting cannot be asked: %s", e)
            return {}

    def named(self, name: str, age_s: float) -> str:
        """The id of a job that accounting knows, and Slurm itself perhaps no more; empty when there is none.

        Args:
            age_s: seconds since it was submitted, if it was.
        """
        done = self._run(sacct_name_argv(name, age_s), patience_s=_ACCOUNTING_PATIENCE_S)
        ids = done.stdout.split() if done.returncode == 0 else []
        return min(ids, key=int) if all(i.isdecimal() for i in ids) and ids else ""

    def _squeue(self, ids: Sequence[str]) -> list[JobRecord]:
        if self._release() >= FILTERED_JSON:
            done = self._run(squeue_argv(ids, json=True))
            try:
                if done.returncode == 0:
                    return [r for r in parse_squeue_json(done.stdout) if not ids or r.job_id in ids]
            except ParseError:
                pass  # of a release that is newer than this torchx: its plain answer is as it always was
        done = self._run(squeue_argv(ids, json=False))
        if done.returncode and NO_SUCH_JOB.search(done.stderr):
            return []  # the answer when none of them is in its memory
        return parse_squeue(done.check().stdout)

    def _release(self) -> tuple[int, int]:
        if self._version is None:
            self._version = parse_version(self._run(["squeue", "--version"]).check().stdout)
        return self._version

    @staticmethod
    def _ask(app_ids: Sequence[str] | None, ask: Callable[[Sequence[str]], list[JobRecord]]) -> Records:
        if app_ids is None:
            return _by_id(ask(()))
        found: list[JobRecord] = []
        for start in range(0, len(app_ids), _MOST_IDS):
            found += ask(app_ids[start : start + _MOST_IDS])
        return _by_id(found)


def _by_id(records: Iterable[JobRecord]) -> Records:
    found: Records = {}
    for record in records:
        found.setdefault(record.job_id, []).append(record)
    return found
