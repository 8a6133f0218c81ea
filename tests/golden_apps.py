"""Jobs with which nothing is wrong: those of the recorded scripts and manifests, and one of each ready-made component."""

from __future__ import annotations

from torchx.components import dist, metrics, serve, utils
from torchx.specs import AppDef

SCRIPTS = ("train.py", "t.py")
"""Files of the workspace that the jobs run."""


def golden_apps() -> dict[str, AppDef]:
    """Name to job, made anew each time."""
    from tests.schedulers.kubernetes.test_kubernetes_golden import app
    from tests.schedulers.lsf.test_lsf_scheduler import GOLDEN_JOBS
    from tests.schedulers.slurm.test_slurm_scheduler import JOBS
    from torchx.specs.copies import copy_data

    recorded = {f"slurm {name}": job for name, (job, _) in JOBS.items()}
    recorded |= {f"lsf {name}": job for name, (job, _) in GOLDEN_JOBS.items()}
    made = {
        "echo": utils.echo(msg="it's $HOME", num_replicas=2),
        "touch": utils.touch("a file"),
        "sh": utils.sh("echo", "a b", "*", num_replicas=2, env={"A": "b c"}, max_retries=1),
        "python": utils.python("--lr", "0.1", script="train.py"),
        "module": utils.python(m="json.tool"),
        "code": utils.python(c="print('${HOME}')"),
        "binary": utils.binary("-c", "true", entrypoint="sh"),
        "copy": utils.copy("file:///etc/hosts", "file:///tmp/hosts"),
        "booth": utils.booth(1, 2),
        "ddp": dist.ddp("--lr", "0.1", script="train.py", j="2x4", gpu=4, memMB=131072),
        "torchrun": dist.torchrun(script="train.py", j="1x2"),
        "spmd": dist.spmd("--lr", "0.1", script="train.py", j="1x1"),
        "tensorboard": metrics.tensorboard(logdir="/tmp/logs"),
        "torchserve": serve.torchserve(model_path="s3://models/m.mar", management_api="http://host:8081"),
    }
    return {**{name: copy_data(job) for name, job in recorded.items()}, "kubernetes": app(), **made}
