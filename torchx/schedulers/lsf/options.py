"""The run options of ``lsf``, and their checks."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torchx.specs.api import AppDef, CfgVal
from torchx.specs.options.structured_opts import StructuredOpts
from torchx.specs.wishes import Wishes
from torchx.util.records import dataclass

_EARLY_MIN = 2


@dataclass
class Opts(StructuredOpts):
    """Run options of ``lsf``."""

    lsf_queue: str | None = None
    """queue to submit to; default: the cluster's own default"""

    jobdir: str | None = None
    """new folder, on a file system that all hosts share, for the workspace and the logs; the job runs in it"""

    container_workdir: str | None = None
    """working directory in the container; implies docker"""

    host_network: bool = False
    """containers use the network of their host; implies docker"""

    shm_size: str | None = None
    """size of /dev/shm in the container, for example 8g; implies docker"""

    docker: bool = False
    """run replicas in containers of their image, by `docker run` on the hosts"""

    project: str | None = None
    """project to charge (bsub -P)"""

    app: str | None = None
    """application profile (bsub -app)"""

    resreq: str | None = None
    """further resource requirements (bsub -R), for example select[type==X86_64]"""

    time: str | None = None
    """time limit: [hours:]minutes (bsub -W)"""

    exclusive: bool = False
    """hosts for this job alone (bsub -x)"""

    hosts: str | None = None
    """names of hosts or host groups to choose from, separated by blanks (bsub -m)"""

    gpu_options: str | None = None
    """how GPUs are given (bsub -gpu), for example mode=exclusive_process:j_exclusive=yes"""

    memory: str = "host"
    """how memMB is requested: host; task, a share for each CPU (RESOURCE_RESERVE_PER_TASK=Y clusters); none"""

    bsub_args: str | None = None
    """any other options of bsub, as in a shell: -G team -sla gold"""


def job_dir(cfg: Mapping[str, CfgVal]) -> str | None:
    """Return the option ``jobdir``; an absolute path if it is on this machine."""
    given = str(cfg.get("jobdir") or "")
    if not given:
        return None
    return given if cfg.get("ssh") else os.path.abspath(os.path.expanduser(given))


def in_docker(cfg: Opts) -> bool:
    """Whether replicas run in containers: explicitly, or because an option for containers is set."""
    return cfg.docker or cfg.host_network or bool(cfg.container_workdir or cfg.shm_size)


def bsub_words(app: AppDef, opts: Opts) -> list[str]:
    """Return the options of ``bsub`` for a job with a retry policy: rerun it if a host is lost, warn it of its time
    limit.

    >>> from torchx.specs.api import AppDef
    >>> bsub_words(AppDef("a", metadata={"torchx/retry": "standard"}), Opts(time="1:30"))
    ['-r', '-wa', 'URG', '-wt', '2']
    """
    rules = Wishes.of(app).retry
    if rules is None:
        return []
    hours, _, minutes = (opts.time or "").rpartition(":")
    early = min(_EARLY_MIN, (int(hours or 0) * 60 + int(minutes or 0)) // 2)
    asked = rules.rule("timeout").checkpoint and early
    return ["-r", *(["-wa", "URG", "-wt", str(early)] if asked else [])]  # by default programs ignore URG
