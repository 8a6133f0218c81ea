"""The run options of ``lsf``."""

from __future__ import annotations

from torchx.specs.structured_opts import StructuredOpts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from torchx.util.records import dataclass


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
    """how memMB is asked for: host; task, a share for each CPU (RESOURCE_RESERVE_PER_TASK=Y clusters); none"""

    bsub_args: str | None = None
    """any other options of bsub, as in a shell: -G team -sla gold"""
