"""``lsf``: one LSF job for each replica, tied together by a job group; submitted all or none.

It writes ``submit.sh`` with a ``bsub`` for each replica, and ``replicas.sh``, which those jobs run
(:mod:`torchx.schedulers.lsf.replicas`). The first job is submitted on hold and released last, and all others wait for
its start, so that an interrupted submission leaves nothing running. A replica runs in the role's image if that is a
folder (a workspace: ``jobdir``), else in the folder of submission; with ``docker`` in a container of the image.

Limits: the job's folder must be on a file system that all hosts share. LSF starts replicas one by one, not as a gang:
those that run wait for the others. Tested on a look-alike, not on LSF itself; see docs/lsf.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torchx.schedulers.api import NONE
from torchx.schedulers.batch.base import CAPABILITIES
from torchx.schedulers.lsf.answers import (
    bjobs_msg_to_describe,
    bjobs_msg_to_list,
    bjobs_msg_to_log_file,
    get_job_state,
)
from torchx.schedulers.lsf.client import (
    find_rank0_host,
    find_rank0_host_from_bhosts_stdout,
)
from torchx.schedulers.lsf.options import Opts
from torchx.schedulers.lsf.reasons import STATES
from torchx.schedulers.lsf.replicas import (
    get_command,
    get_docker_command,
)
from torchx.schedulers.lsf.request import RANK0_HOST, LsfBsub, cleanup_str, get_bsub, get_submit_script
from torchx.schedulers.lsf.sweep_jobs import SpecialJobs
from torchx.specs.api import AppState, CfgVal
from torchx.specs.ready import PROBES
from torchx.util.records import replace
from torchx.util.reexports import reexports

reexports(__name__)

__all__ = [
    "JOB_STATE",
    "NONE",
    "RANK0_HOST",
    "LsfBsub",
    "LsfScheduler",
    "Opts",
    "bjobs_msg_to_describe",
    "bjobs_msg_to_list",
    "bjobs_msg_to_log_file",
    "cleanup_str",
    "create_scheduler",
    "find_rank0_host",
    "find_rank0_host_from_bhosts_stdout",
    "get_bsub",
    "get_command",
    "get_docker_command",
    "get_job_state",
    "get_submit_script",
]

JOB_STATE: dict[str, AppState] = STATES
"""LSF's states to torchx's."""


class LsfScheduler(SpecialJobs):
    """Submits to IBM Spectrum LSF. Arguments: see :class:`BatchScheduler`."""

    capabilities = replace(
        CAPABILITIES,
        retry_actions=("retry", "avoid", "mem", "checkpoint"),
        timeout="time",
        metrics="sums",
        watchdog=True,
        after=("ok", "any", "fail"),
        order=PROBES,
    )
    transient = re.compile(r"(?i)LSF is down|daemon not responding|cannot connect to LSF|communication time ?out")
    programs = "LSF's commands (bsub, bjobs, ...)"
    submits = "bsub"
    options = Opts
    rules = "torchx.schedulers.lsf.rules:RULES"

    def __init__(self, session_name: str, **parts: Any) -> None:
        super().__init__("lsf", session_name, **parts)

    def time_limit_s(self, cfg: Mapping[str, CfgVal]) -> float | None:
        hours, _, minutes = str(cfg.get("time") or "0").rpartition(":")
        return float(hours or 0) * 3600 + float(minutes) * 60 or None


def create_scheduler(session_name: str, **kwargs: Any) -> LsfScheduler:  # noqa: ARG001  # the contract's signature
    """Return the factory of ``lsf``."""
    return LsfScheduler(session_name)
