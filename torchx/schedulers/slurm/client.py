"""Slurm's commands, hints for their errors, and queries for any number of jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from torchx.errors import BackendError, ParseError
from torchx.schedulers.batch.sites import COMMAND_TIMEOUT_S
from torchx.schedulers.kit.commands import Completed, LocalCommandRunner
from torchx.schedulers.slurm.parse import (
    SACCT_FIELDS,
    SEPARATOR,
    SQUEUE_FIELDS,
    JobRecord,
    lines_of,
    parse_sacct,
    parse_squeue,
    settled,
)
from torchx.util.notices import logger
from torchx.util.records import replace

Records = dict[str, list[JobRecord]]

_LISTED_DAYS = 14
NO_SUCH_JOB = re.compile(r"Invalid job id", re.IGNORECASE)
NO_ACCOUNTING = re.compile(r"accounting storage is disabled|not installed", re.IGNORECASE)
OVER = re.compile(r"Invalid job id|already complet|Job/step already", re.IGNORECASE)
NO_MEMORY = re.compile(r"Memory specification can not be satisfied", re.IGNORECASE)
_HINTS = (
    (r"memory specification", "`sinfo -o '%P %m'` shows how much memory the nodes have, in MiB"),
    (r"invalid partition", "`sinfo` shows the partitions"),
    (r"invalid (account|qos)|account/partition combination", "`sacctmgr show assoc user=$USER` shows yours"),
    (r"node configuration is not available", "`sinfo -N -l` shows what the nodes have, `sinfo -o '%N %G'` their GPUs"),
    (
        r"(invalid|bad) (--time|time (limit )?spec)|--time spec",
        "write minutes, `HH:MM:SS` or `D-HH:MM:SS`: `-cfg time=60`",
    ),
    (r"invalid node name", "`sinfo -N` shows the nodes"),
    (r"generic resource|gres", "`sinfo -o '%N %G'` shows the GPUs and other generic resources of the nodes"),
    (r"invalid feature|constraint", "`sinfo -o '%N %f'` shows the features of the nodes"),
    (r"dependency", "`squeue --me` shows the jobs that Slurm still knows"),
    (r"signal", "write `SIGNAL@SECONDS`, such as `-cfg signal=USR1@120`"),
    (r"mail-?type", "such as `BEGIN`, `END`, `FAIL`, `ALL`"),
    (r"time limit", "`sinfo -o '%P %l'` shows how long jobs may take"),
    (r"more processors|node count specification", "`replicas_per_node` puts several replicas on one node"),
    (r"reservation", "`scontrol show reservation` shows the reservations"),
    (r"licenses", "`scontrol show licenses` shows the licenses"),
    (r"'--parsable'", "is `sbatch` a wrapper of your site? it must pass on its options: `type -a sbatch`"),
    (r"unrecognized option", "`sbatch --help` lists the options here; some are those of plugins that a site may lack"),
    (
        r"not permitted to use|job violates accounting",
        "ask the cluster's administrators for the limits of your account",
    ),
)
_MAX_IDS = 500  # per command
_ACCOUNTING_PATIENCE_S = 2.0  # short: it only adds details
_ACCOUNTING_PAUSE_S = 30.0
_DETAILS_S = 5.0  # `torchx list` has 10 s


def hint_for(stderr: str) -> str:
    """Return what to do after ``sbatch`` rejected a job; empty if there is no advice.

    >>> hint_for("sbatch: error: invalid partition specified: x")
    '`sinfo` shows the partitions'
    """
    return next((hint for pattern, hint in _HINTS if re.search(pattern, stderr, re.IGNORECASE)), "")


def squeue_argv(app_ids: Iterable[str]) -> list[str]:
    """Return the query for jobs in the controller's memory; without ids for all of the user's."""
    ids = ",".join(app_ids)
    chosen = [f"--jobs={ids}"] if ids else ["--me"]
    fields = ",".join(f"{name}:{SEPARATOR}" for name in SQUEUE_FIELDS)
    return ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=all", *chosen, f"--Format={fields}"]


def sacct_argv(app_ids: Iterable[str], *, steps: bool = False) -> list[str]:
    """Return the query for jobs in accounting; without ids for all of the user's in the last two weeks."""
    ids = ",".join(app_ids)
    chosen = [f"--jobs={ids}"] if ids else [f"--starttime=now-{_LISTED_DAYS}days"]
    chosen += [] if steps else ["--allocations"]
    form = ["--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={','.join(SACCT_FIELDS)}"]
    return ["env", "SLURM_TIME_FORMAT=%s", "sacct", *form, *chosen]


def parse_version(text: str) -> tuple[int, int]:
    """Return the release in ``slurm-wlm 22.05.8``.

    >>> parse_version("slurm 24.11.0-0rc1")
    (24, 11)
    """
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None:
        raise ParseError(f"`{text.strip()}` is not a version of Slurm", text=text)
    return int(found[1]), int(found[2])


def version() -> tuple[int, int]:
    """Return the release of Slurm on this machine: ``(22, 5)`` for 22.05.8. Raises CommandError without Slurm."""
    return parse_version(LocalCommandRunner().run(["sinfo", "--version"], timeout=10).check().stdout)


def parse_kill_wait(config: str) -> float:
    """Return the seconds between SIGTERM and SIGKILL in the answer of ``scontrol show config``; 0 if it is not there.

    >>> parse_kill_wait("KeepAliveTime           = SYSTEM_DEFAULT\\nKillWait                = 30 sec\\n")
    30.0
    """
    found = re.search(r"^KillWait\s*=\s*(\d+)", config, re.MULTILINE)
    return float(found[1]) if found else 0.0


def parse_sbatch(text: str) -> str:
    """Return the job id in the answer of ``sbatch --parsable``: ``7`` or ``7;cluster``. Sites may print more lines.

    >>> parse_sbatch("Welcome\\n7;tst\\nBalance left: 12 hours\\n"), parse_sbatch("Submitted batch job 8\\n")
    ('7', '8')
    """
    # a step has a dot
    lines = r"^\s*(\d+);\S+\s*$", r"^\s*Submitted batch job (\d+)", r"^\s*(\d+(?:\.\d+)?)\s*$"
    found = next(filter(None, (set(re.findall(line, text, re.MULTILINE)) for line in lines)), set())
    if len(found) != 1:  # of several numbers any may be the id
        raise ParseError(f"`sbatch` answered `{text.strip()}`, which is not a job id", text=text)
    return str(found.pop())


class SlurmQueries:
    """Queries to one cluster; ``run`` runs a command and retries it while Slurm does not answer."""

    def __init__(self, run: Callable[..., Completed]) -> None:
        self._run = run
        self._has_accounting = True
        self._kill_wait_s: float | None = None  # not asked yet; 0: unknown
        self._accounting_from = 0.0  # it is not queried before, because it did not answer
        self._seen: dict[str, JobRecord] = {}  # parsed lines of the last answer about all of the user's jobs

    def jobs(
        self,
        app_ids: Sequence[str] | None,
        *,
        tasks: bool = False,
        ended: Callable[[list[str]], bool] = lambda _: False,
    ) -> Records:
        """Jobs by id (None: the user's). Accounting has the state of ``COMPLETING`` ones, ``tasks`` that ended, and who
        cancelled a job. It is not waited for if its answer adds only details to jobs that have all ``ended``.
        """
        records = self.squeue(app_ids)
        ending = {i for i, found in records.items() if any(r.state == "COMPLETING" for r in found)}
        stopped = {i for i, found in records.items() if any(r.state == "CANCELLED" for r in found)}
        unclear = ending | stopped
        asked = None if app_ids is None else [i for i in app_ids if tasks or i not in records or i in unclear]
        if asked is None or asked:
            brief = asked is not None and ended([i for i in asked if i not in records])
            for app_id, found in self.sacct(asked, timeout_s=_DETAILS_S if brief else COMMAND_TIMEOUT_S).items():
                by = next((r.cancelled_by for r in found), "")
                records[app_id] = settled(records[app_id], found) if app_id in ending else records.get(app_id, found)
                if app_id in stopped:
                    records[app_id] = [replace(record, cancelled_by=by) for record in records[app_id]]
                if app_id in ending:
                    records[app_id] = [self._with_kill_time(record) for record in records[app_id]]
        return records

    def _with_kill_time(self, record: JobRecord) -> JobRecord:
        if record.state != "CANCELLED" or not record.completing or not record.ended:
            return record
        if self._kill_wait_s is None:
            self._kill_wait_s = 0.0
            with suppress(BackendError):  # it only adds a detail
                done = self._run(["scontrol", "show", "config"], patience_s=_ACCOUNTING_PATIENCE_S)
                self._kill_wait_s = parse_kill_wait(done.stdout)
        return replace(record, kill_at=record.ended + self._kill_wait_s) if self._kill_wait_s else record

    def squeue(self, app_ids: Sequence[str] | None) -> Records:
        """Jobs in the controller's memory by id; None: all of the user's.

        For thousands of ids, one query for all of the user's jobs replaces many.
        """

        def ask(ids: Sequence[str]) -> list[JobRecord]:
            done = self._run(squeue_argv(ids))
            if done.returncode and NO_SUCH_JOB.search(done.stderr):
                return []  # Slurm's answer if it knows none of them
            found = parse_squeue(done.check().stdout, self._seen)
            if not ids:
                self._seen = dict(zip(lines_of(done.stdout), found, strict=True))
            return found

        if app_ids is None or len(app_ids) <= _MAX_IDS:
            return self._ask(app_ids, ask)
        mine = self._ask(None, ask)
        others = [i for i in app_ids if i not in mine]  # jobs of other users, or gone
        return {**{i: mine[i] for i in app_ids if i in mine}, **self._ask(others, ask)}

    def sacct(
        self, app_ids: Sequence[str] | None, *, steps: bool = False, timeout_s: float = COMMAND_TIMEOUT_S
    ) -> Records:
        """Jobs in accounting, optionally with their steps; empty without accounting."""

        def ask(ids: Sequence[str]) -> list[JobRecord]:
            done = self._run(sacct_argv(ids, steps=steps), patience_s=_ACCOUNTING_PATIENCE_S, timeout_s=timeout_s)
            if done.returncode and NO_ACCOUNTING.search(done.stderr):
                self._has_accounting = False
                return []
            return parse_sacct(done.check().stdout)

        if not self._has_accounting or time.monotonic() < self._accounting_from:
            return {}
        try:
            return self._ask(app_ids, ask)
        except BackendError as e:
            if not self._accounting_from:
                logger("torchx.schedulers").warning("Slurm's accounting cannot be queried: %s", e)
            self._accounting_from = time.monotonic() + _ACCOUNTING_PAUSE_S
            return {}

    def named(self, name: str, age_s: float) -> str:
        """Return the id of the job with this name in accounting, submitted ``age_s`` seconds ago;
        empty if there is none.
        """
        since = f"now-{int(age_s / 3600) + 2}hours"  # the clocks may differ
        form = ["--noheader", "--parsable2", "--allocations", "--format=JobIDRaw"]
        argv = ["sacct", *form, f"--name={name}", f"--starttime={since}"]
        done = self._run(argv, patience_s=_ACCOUNTING_PATIENCE_S)
        return _first(done.stdout.splitlines() if done.returncode == 0 else []) or ""

    def submitted(self, name: str) -> str | None:
        """Return the id of the user's job with this name in the controller's memory; None if there is none."""
        # %F is the id of the job, also for the tasks of an array.
        argv = ["squeue", "--noheader", "--states=all", "--me", f"--name={name}", "--format=%F"]
        return _first(self._run(argv).check().stdout.splitlines())

    def commented(self, comment: str) -> str | None:
        """Return the id of the user's job with this comment, for scripts that set their own name;
        None if there is none.
        """
        done = self._run(["squeue", "--noheader", "--states=all", "--me", "--format=%F %k"])
        ids = [line.split()[0] for line in done.check().stdout.splitlines() if line.split()[1:] == [comment]]
        return _first(ids)

    def knows_no_memory(self, partitions: Iterable[str]) -> bool:
        """Whether nodes of these (or all) partitions have no configured memory; Slurm reports 1 MiB then."""
        argv = ["sinfo", "--noheader", "--format=%m", *(f"--partition={name}" for name in sorted(partitions))]
        return any(size.rstrip("+") in ("0", "1") for size in self._run(argv).stdout.split())

    @staticmethod
    def _ask(app_ids: Sequence[str] | None, ask: Callable[[Sequence[str]], list[JobRecord]]) -> Records:
        if app_ids is None:
            return _by_id(ask(()))
        found: list[JobRecord] = []
        for start in range(0, len(app_ids), _MAX_IDS):
            found += ask(app_ids[start : start + _MAX_IDS])
        return _by_id(found)


def _first(lines: Iterable[str]) -> str | None:
    """Return the smallest id among the lines of an answer; None if none is an id."""
    return min((line.strip() for line in lines if line.strip().isdecimal()), key=int, default=None)


def _by_id(records: Iterable[JobRecord]) -> Records:
    found: Records = {}
    for record in records:
        found.setdefault(record.job_id, []).append(record)
    return found
