"""Slurm's commands: how they are called, what they say when they fail, and their short answers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchx.errors import ParseError
from torchx.schedulers.slurm.answers import SACCT_FIELDS, SEPARATOR, SQUEUE_FIELDS

_LISTED_DAYS = 14
NO_SUCH_JOB = re.compile(r"Invalid job id", re.IGNORECASE)
NO_ACCOUNTING = re.compile(r"accounting storage is disabled|not installed", re.IGNORECASE)
OVER = re.compile(r"Invalid job id|already complet|Job/step already", re.IGNORECASE)
NO_MEMORY = re.compile(r"Memory specification can not be satisfied", re.IGNORECASE)
HINTS = (
    (r"memory specification", "`sinfo -o '%P %m'` shows how much memory the nodes have, in MiB"),
    (r"invalid partition", "`sinfo` shows the partitions"),
    (r"invalid (account|qos)|account/partition combination", "`sacctmgr show assoc user=$USER` shows what is yours"),
    (r"node configuration is not available", "`sinfo -N -l` shows what the nodes have"),
    (r"time limit", "`sinfo -o '%P %l'` shows how long jobs may take"),
    (r"more processors|node count specification", "`replicas_per_node` puts several replicas on one node"),
    (r"reservation", "`scontrol show reservation` shows the reservations"),
    (r"licenses", "`scontrol show licenses` shows the licenses"),
    (
        r"not permitted to use|job violates accounting",
        "ask the cluster's administrators for the limits of your account",
    ),
)


def squeue_argv(app_ids: Iterable[str], *, json: bool) -> list[str]:
    """The query for jobs that Slurm still has in memory; for all of the user's when none is named."""
    ids = ",".join(app_ids)
    chosen = [f"--jobs={ids}"] if ids else ["--me"]
    if json:
        return ["squeue", "--json", "--states=all", *chosen]
    fields = ",".join(f"{name}:{SEPARATOR}" for name in SQUEUE_FIELDS)
    return ["env", "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=all", *chosen, f"--Format={fields}"]


def sacct_argv(app_ids: Iterable[str], *, steps: bool = False) -> list[str]:
    """The query for jobs that ended a while ago; for all of the user's of two weeks when none is named."""
    ids = ",".join(app_ids)
    chosen = [f"--jobs={ids}"] if ids else [f"--starttime=now-{_LISTED_DAYS}days"]
    chosen += [] if steps else ["--allocations"]
    form = ["--noheader", "--parsable2", f"--delimiter={SEPARATOR}", f"--format={','.join(SACCT_FIELDS)}"]
    return ["env", "SLURM_TIME_FORMAT=%s", "sacct", *form, *chosen]


def sacct_name_argv(name: str, age_s: float) -> list[str]:
    """The query for the ids of jobs of a name, some of which may have ended long ago."""
    since = f"now-{int(age_s / 3600) + 2}hours"  # its clock may not be ours
    form = ["--noheader", "--parsable2", "--allocations", "--format=JobIDRaw"]
    return ["sacct", *form, f"--name={name}", f"--starttime={since}"]


def parse_version(text: str) -> tuple[int, int]:
    """The release in ``slurm-wlm 22.05.8``.

    >>> parse_version("slurm 24.11.0-0rc1")
    (24, 11)
    """
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None:
        raise ParseError(f"`{text.strip()}` is no version of Slurm", text=text)
    return int(found[1]), int(found[2])


def parse_sbatch(text: str) -> str:
    """The id in the answer of ``sbatch --parsable``: ``7`` or ``7;cluster``.

    >>> parse_sbatch("7;tst\\n")
    '7'
    """
    words = text.split()
    app_id = words[-1].partition(";")[0] if words else ""
    if not app_id.isdigit():
        raise ParseError(f"`sbatch` answered `{text.strip()}`, which is no job id", text=text)
    return app_id
