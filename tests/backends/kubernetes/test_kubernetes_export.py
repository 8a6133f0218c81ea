"""Exported jobs on a real API server and kubelet. There is no kubectl here: a stand-in posts the same documents."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

from tests.backends.kubernetes.jobs import Jobs
from tests.backends.shell import ROOT
from torchx.runner import Runner
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, AppState, CfgVal, Resource, Role, Secret

KUBECTL = """\
#!{python}
# `kubectl create --filename FILE...`
import sys
import yaml
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.kubernetes_scheduler import create_scheduler

assert sys.argv[1] == "create", sys.argv
api = create_scheduler("kubectl")._api(None)
for option, name in zip(sys.argv[2::2], sys.argv[3::2]):
    assert option == "--filename", sys.argv
    for item in yaml.safe_load_all(sys.stdin if name == "-" else open(name)):
        api.create(item)
"""


def test_kubectl_alone(jobs: Jobs, tmp_path: Path) -> None:
    """The job runs with its code and its secret, and what torchx makes of it is what it makes of its own jobs."""
    project, bin_ = tmp_path / "project", tmp_path / "bin"
    project.mkdir()
    bin_.mkdir()
    (project / "data.txt").write_text("data\n")
    kubectl = bin_ / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable))
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IEXEC)
    script = 'cat data.txt; echo "$A it\'s yes"; [ "$TOKEN" = "a\'b \\$" ] || exit 4; exit 3'
    env = {"A": "x $y: 1", "TOKEN": Secret("env:TOKEN")}
    role = Role(
        "main", jobs.image, entrypoint="sh", args=["-c", script], env=env, resource=Resource(cpu=1, gpu=0, memMB=100)
    )
    cfg: dict[str, CfgVal] = {"namespace": jobs.namespace, "kind": "job", "reserved_millicpu": 1000}
    with Runner("test", {"kubernetes": create_scheduler}) as runner:
        info = runner.dryrun(AppDef("exported", [role]), "kubernetes", cfg, workspace=f"file://{project}")
        runner.export(info, str(tmp_path / "out"))
    run = {
        "PATH": f"{bin_}:{os.environ['PATH']}",
        "KUBECONFIG": os.environ["KUBECONFIG"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "TOKEN": "a'b $",
    }
    subprocess.run([str(tmp_path / "out" / "run.sh")], env=run, check=True, timeout=300)
    app_id = f"{jobs.namespace}:{info.request.app_id}"
    found = jobs.until(app_id)
    assert (found.state, jobs.log(app_id)) == (AppState.FAILED, ["data", "x $y: 1 it's yes"])
    assert "exit code 3" in found.msg
