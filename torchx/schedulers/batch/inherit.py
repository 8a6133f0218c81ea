"""Which variables of the user's shell the commands of a scheduler get: torchx's own options count, and its questions.

Others stay: defaults such as ``SBATCH_ACCOUNT``, and those that lead to the cluster, such as ``SLURM_CONF``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from torchx.util.records import dataclass


@dataclass(frozen=True)
class Inherited:
    """The variables of one scheduler.

    Attributes:
        dropped: they set options that torchx sets itself, or change answers that it reads.
        inside: it is set within a job of the scheduler.
        prefix: variables with this prefix describe that job, and do not apply to another one.
        kept: exceptions from ``prefix``.
    """

    dropped: frozenset[str] = frozenset()
    inside: str = ""
    prefix: str = ""
    kept: tuple[str, ...] = ()


def _names(**groups: str) -> frozenset[str]:
    return frozenset(f"{prefix}_{name}" for prefix, names in groups.items() for name in names.split())


RULES: Mapping[str, Inherited] = {
    "slurm": Inherited(
        dropped=_names(
            SBATCH="ARRAY_INX CLUSTERS ERROR EXPORT INPUT JOB_NAME NO_KILL NO_REQUEUE OPEN_MODE OUTPUT REQUEUE WAIT",
            SQUEUE="ACCOUNT ALL ARRAY ARRAY_UNIQUE FEDERATION FORMAT FORMAT2 LICENSES LOCAL NAMES PARTITION PRIORITY"
            " QOS SIB SIBLING SORT STATES USERS",
            SACCT="FEDERATION LOCAL",
            SINFO="ALL FEDERATION FORMAT FUTURE LOCAL PARTITION SORT",
            SCANCEL="ACCOUNT BATCH CRON CTLD FULL HURRY INTERACTIVE NAME PARTITION QOS STATE USER VERBOSE WCKEY",
            SCONTROL="ALL FEDERATION FUTURE LOCAL SIB SIBLING",
            # Most are options of `srun`: the steps of a job would get them.
            SLURM="BITSTR_LEN CONSTRAINT CPUS_PER_TASK DEBUG EXCLUSIVE EXIT_ERROR EXIT_IMMEDIATE GPUS GPUS_PER_NODE"
            " GPUS_PER_SOCKET GPUS_PER_TASK GRES HET_SIZE HOSTFILE LABELIO MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE"
            " SRUN_MULTI STDERRMODE STDOUTMODE TIMELIMIT TIME_FORMAT TRES_PER_TASK",
        ),
        inside="SLURM_JOB_ID",
        prefix="SLURM_",
        kept=("SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"),
    ),
    "lsf": Inherited(
        dropped=_names(
            BSUB="BLOCK CHK_RESREQ QUIET QUIET2 STDERR",
            LSB="BHOSTS_FORMAT BJOBS_FORMAT BQUEUES_FORMAT DEBUG_CMD DEFAULT_JOBGROUP INTERACTIVE"
            " SHORT_HOSTLIST TIME_CMD",
            LSF="DEBUG_CMD TIME_CMD",
        ),
        inside="LSB_JOBID",
        prefix="LSB_",
    ),
}


def shown(backend: str, system: str, prefixes: tuple[str, ...]) -> str:
    """Say which variables of this shell, with these prefixes, concern the commands of a scheduler."""
    ignored = sorted(hidden(backend, os.environ))
    others = sorted(name for name in os.environ if name.startswith(prefixes) and name not in ignored)
    parts = [f"in effect where torchx sets no such option: {', '.join(others)}"] if others else []
    parts += [f"ignored: {', '.join(ignored)}"] if ignored else []
    return "; ".join(parts) or f"your shell sets no options of {system}"


def hidden(backend: str, given: Mapping[str, str]) -> list[str]:
    """Return the names of those of the given variables that the scheduler's commands do not get.

    >>> hidden("slurm", {"SBATCH_WAIT": "1", "SBATCH_ACCOUNT": "a", "SLURM_NTASKS": "2", "HOME": "/"})
    ['SBATCH_WAIT']
    >>> hidden("slurm", {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_CONF": "/etc/slurm.conf"})
    ['SLURM_JOB_ID', 'SLURM_NTASKS']
    """
    rules = RULES.get(backend, Inherited())
    within = rules.prefix if rules.inside in given else ""
    return [
        name
        for name in given
        if name in rules.dropped or (within and name.startswith(within) and name not in rules.kept)
    ]


def environ(backend: str) -> dict[str, str]:
    """Return the environment of the scheduler's commands on this machine."""
    gone = {*hidden(backend, os.environ)}
    return {name: value for name, value in os.environ.items() if name not in gone}


def unset(backend: str) -> str:
    """Return a line for the shell of a login node, whose variables are not known here;
    empty if there is nothing to drop.
    """
    dropped = RULES.get(backend, Inherited()).dropped
    return f"unset {' '.join(sorted(dropped))}\n" if dropped else ""
