"""The look-alike's folder: what stands in its ``lsf.conf``, and where it keeps what."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

from .model import Host, Job, Queue


@dataclass
class Config:
    """A cluster as it was set up.

    Attributes:
        minute_s: how long the look-alike's minute is, seconds: tests do not wait for real ones.
        terminate_interval_s: JOB_TERMINATE_INTERVAL of lsb.params.
        clean_period_s: CLEAN_PERIOD: how long bjobs knows a job that has ended.
        unit: LSF_UNIT_FOR_LIMITS.
        array_size: MAX_JOB_ARRAY_SIZE.
        with_index: LSB_BJOBS_DISPLAY_ENH: the index of an element stands behind its id.
        requeue_window_s: for how long bjobs shows the end of a job that `brequeue` puts back.
        exit_reasons: whether bjobs shows termination reasons; without them it is as on a descendant of LSF 4.
        unreach_s: how long the jobs of a lost host stay RUN; it is `unreach` for that time, then `unavail`.
    """

    envdir: str
    hosts: list[Host] = field(default_factory=list)
    queues: list[Queue] = field(default_factory=list)
    apps: list[str] = field(default_factory=list)
    minute_s: float = 60
    terminate_interval_s: float = 10
    clean_period_s: float = 3600
    unit: str = "KB"
    array_size: int = 1000
    with_index: bool = False
    requeue_window_s: float = 0.3
    exit_reasons: bool = True
    unreach_s: float = 0.2
    name: str = "lookalike"

    @property
    def socket(self) -> str:
        return os.path.join(self.envdir, "mbatchd.sock")

    @property
    def bindir(self) -> str:
        return os.path.join(self.envdir, "bin")

    @property
    def history(self) -> str:
        return os.path.join(self.envdir, "lsb.events")

    def spool(self, job: Job) -> str:
        """Where a job's output is until it has ended, less its ending."""
        return os.path.join(self.envdir, "spool", job.reference)

    def archive(self, job: Job) -> None:
        """What bhist still tells when bjobs has forgotten the job."""
        with open(self.history, "a") as file:
            file.write(json.dumps(history(job)) + "\n")


def history(job: Job) -> dict[str, Any]:
    """What ``bhist -l`` tells: a line that is not yet folded, events, and seconds in the state of PEND and of RUN."""
    header = (
        f"Job <{job.reference}>, Job Name <{job.full_name}>, User <{job.user}>, Project <{job.project}>, "
        f"Job Group <{job.group}>, Command <{job.command}>"
    )
    end = job.finished or time.time()
    seconds = [(job.started or end) - job.submitted, end - job.started if job.started else 0]
    return {"id": job.reference, "header": header, "events": job.events, "seconds": seconds}


def write_config(config: Config) -> None:
    """Writes ``lsf.conf`` (here: JSON)."""
    data = {
        **vars(config),
        "hosts": [vars(h) for h in config.hosts],
        "queues": [vars(q) for q in config.queues],
    }
    with open(os.path.join(config.envdir, "lsf.conf"), "w") as file:
        json.dump(data, file, indent=1)


def read_config(envdir: str) -> Config:
    """The cluster of a folder."""
    with open(os.path.join(envdir, "lsf.conf")) as file:
        data = json.load(file)
    data["hosts"] = [Host(**h) for h in data["hosts"]]
    data["queues"] = [Queue(**q) for q in data["queues"]]
    return Config(**data)
