"""What is free: the answers of each scheduler as pools, and where a job of some size fits."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.aws.batch_cloud import Cloud
from tests.schedulers.docker.fake_docker import refusal
from torchx.cli.main import main
from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.aws.batch.nodes import pools as batch_pools
from torchx.schedulers.aws.batch.queues import inspect
from torchx.schedulers.docker.nodes import nodes as docker_nodes
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.nodes import Node, Pool, pools_of
from torchx.schedulers.kubernetes import nodes as kube
from torchx.schedulers.kubernetes import quotas
from torchx.schedulers.kubernetes.api.errors import FORBIDDEN, ApiError
from torchx.schedulers.kubernetes.client import KubeApi
from torchx.schedulers.lsf.nodes import nodes as lsf_nodes
from torchx.schedulers.slurm import nodes as slurm
from torchx.schedulers.slurm.options import SlurmOpts
from torchx.specs.api import GPU_TYPE, Resource, Role

SINFO = """\
gpu                 |up                  |mixed               |48/80/0/128         |1031000             |400000              |gpu:h100:8(S:0-1)   |gpu:h100:3(IDX:0-2) |
gpu                 |up                  |idle                |0/128/0/128         |1031000             |0                   |gpu:h100:8(S:0-1)   |gpu:h100:0(IDX:N/A) |
gpu                 |up                  |drained             |0/0/128/128         |1031000             |0                   |gpu:h100:8(S:0-1)   |gpu:h100:0(IDX:N/A) |
cpu                 |up                  |allocated           |64/0/0/64           |1                   |0                   |(null)              |gpu:0               |
closed              |down                |idle                |0/64/0/64           |1                   |0                   |(null)              |gpu:0               |
garbage
"""


def run(answers: dict[str, Completed]) -> Any:
    """A cluster that answers the commands that contain these words."""

    def asked(argv: list[str], **_: Any) -> Completed:
        text = " ".join(argv)
        return next((done for word, done in answers.items() if word in text), Completed(argv, 0, "", ""))

    return asked


def done(stdout: str = "", stderr: str = "", code: int = 0) -> Completed:
    return Completed(["x"], code, stdout, stderr)


START = "sbatch: Job 17 to start at 2026-11-29T17:00:00 using 16 processors on nodes n1 in partition gpu"
ANSWERS = {
    "sinfo": done(SINFO),
    "--partition=gpu": done(stderr=START),
    "--partition=closed": done(stderr=START.replace("17:00", "16:00")),  # as Slurm says
    "--partition=cpu": done(stderr="sbatch: error: Requested node configuration is not available", code=1),
}


def test_slurm() -> None:
    """Free is what running jobs leave; drained nodes are in the pool, and not free. 1 MiB is no memory."""
    need = Resource(4, 8, 1000, {GPU_TYPE: "h100"})
    gpu, cpu, closed = slurm.pools(run(ANSWERS), SlurmOpts(), need, 2)
    assert (gpu.name, gpu.gpu, gpu.nodes, gpu.usable, gpu.gpus) == ("gpu", "h100", 3, 2, 8)
    assert (gpu.free_cpus, gpu.free_gpus, gpu.free_memory_mb) == (208, 13, 631000 + 1031000)
    assert gpu.fitting == 1 and gpu.start == 1795971600 and gpu.why == ""
    assert (cpu.memory_mb, cpu.free_memory_mb, cpu.free_cpus, cpu.fitting, cpu.start) == (-1, -1, 0, 0, None)
    assert cpu.why == "Requested node configuration is not available"
    assert (closed.usable, closed.free_cpus, closed.start, closed.why) == (0, 0, None, "takes no jobs now")
    found = slurm.pools(run(ANSWERS), SlurmOpts(partition="cpu,gpu"), None, 1)
    assert [pool.name for pool in found] == ["gpu", "cpu"]
    with pytest.raises(NotFoundError, match="no partition `gpus`"):
        slurm.pools(run(ANSWERS), SlurmOpts(partition="gpus"), None, 1)


def test_the_partition_that_starts_first() -> None:
    """Of those that take the job; without any, the reasons are told."""
    role = Role("r", "", resource=Resource(1, 0, 100))
    assert slurm.first_to_start(run(ANSWERS), SlurmOpts(), [role]) == "gpu"
    refused = {**ANSWERS, "--partition=gpu": done(stderr="sbatch: error: too large", code=1)}
    with pytest.raises(BackendError, match="gpu: too large; cpu: Requested node"):
        slurm.first_to_start(run(refused), SlurmOpts(), [role])


@pytest.mark.parametrize(("replicas", "least", "spares", "nodes"), [(6, None, 0, 3), (5, None, 2, 5), (6, 2, 0, 1)])
def test_how_many_nodes_it_asks_for(replicas: int, least: int | None, spares: int, nodes: int) -> None:
    """Two replicas share one; an elastic job starts with the least number."""
    role = Role("r", "", num_replicas=replicas, min_replicas=least, resource=Resource(1, 0, 100))
    asked: list[str] = []
    slurm.first_to_start(
        lambda argv, **_: asked.extend(argv) or run(ANSWERS)(argv), SlurmOpts(replicas_per_node=2), [role], spares
    )
    assert {word for word in asked if word.startswith("--nodes")} == {f"--nodes={nodes}"}


def test_lsf() -> None:
    """Slots and GPUs of hosts that take jobs; an LSF that knows no GPU fields has none."""
    head = "HOST_NAME          STATUS          JL/U    MAX  NJOBS    RUN\n"
    hosts = done(f"{head}h1 ok - 64 16 16\nh2 closed_Adm - 64 0 0\nh3 closed_Full - 8 8 8\nh4 unavail - - - -\n")
    answers = {"ngpus": done("h1 8 2\nh2 8 0\nh3 - -\n"), "bhosts -w": hosts}
    found = {pool.cpus: pool for pool in pools_of(lsf_nodes(run(answers)), Resource(32, 1, -1))}
    assert (found[64].nodes, found[64].usable, found[64].free_cpus, found[64].free_gpus) == (2, 1, 48, 6)
    assert found[64].fitting == 1 and found[8].fitting == 0
    assert [node.gpus for node in lsf_nodes(run({"ngpus": done(code=255), "bhosts -w": hosts}))] == [0] * 4


def pod(node: str, phase: str = "Running", **requests: str) -> dict[str, Any]:
    named = {"nvidia.com/gpu" if k == "gpu" else k: v for k, v in requests.items()}
    return {
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": named}}, {}]},
        "status": {"phase": phase},
    }


NODE: dict[str, Any] = {
    "metadata": {"name": "n1", "labels": {"eks.amazonaws.com/nodegroup": "a", "nvidia.com/gpu.product": "H100"}},
    "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
    "status": {
        "allocatable": {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


@pytest.mark.parametrize("may_list", [True, False])
def test_kubernetes(may_list: bool) -> None:
    """What pods ask for is taken, unless they have ended; without the right to list them it is unknown."""

    class Api:
        def items(self, path: str) -> list[dict[str, Any]]:
            if path == "/api/v1/nodes":
                master = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
                return [NODE, {**NODE, "metadata": {"name": "n0"}, "spec": {"taints": [master]}}]
            if not may_list:
                raise BackendError("forbidden")
            return [pod("n1", cpu="500m", memory="1Gi", gpu="3"), pod("n1", "Succeeded", cpu="9"), pod("", cpu="9")]

    api: Any = Api()
    ours, master = pools_of(kube.nodes(api), Resource(1, 4, 1024))
    assert (ours.name, ours.gpu, ours.cpus, ours.gpus, ours.usable) == ("a", "H100", 16, 8, 1)
    assert (master.name, master.usable) == ("nodes", 0)
    found = (ours.free_cpus, ours.free_memory_mb, ours.free_gpus, ours.fitting)
    assert found == ((15, 63 << 10, 5, 1) if may_list else (-1, -1, -1, -1))


@pytest.mark.parametrize(
    ("host", "devices", "gpus"),
    [
        ("", None, 4),  # this machine's
        ("tcp://far:2375", None, -1),
        ("tcp://far:2375", ["nvidia.com/gpu=0", "nvidia.com/gpu=1", "nvidia.com/gpu=all", "nvidia.com/gpu=GPU-7"], 2),
    ],
)
def test_docker(host: str, devices: Any, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What running containers were given is taken; one that is removed meanwhile holds nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setattr("os.path.exists", lambda _: False)
    about = {"Name": "box", "NCPU": 16, "MemTotal": 64 << 30, "DiscoveredDevices": devices and [{"ID": d} for d in devices]}  # fmt: skip
    limits: dict[str, dict[str, Any]] = {
        "a": {"NanoCpus": 2_500_000_000, "Memory": 8 << 30, "DeviceRequests": [{"Count": 0, "DeviceIDs": ["0", "1"]}]},
        "b": {"NanoCpus": 0, "Memory": 0, "DeviceRequests": [{"Count": 1}]},
        "c": {"DeviceRequests": None},
    }

    class Engine:
        @property
        def api(self) -> Any:
            return self

        def info(self) -> dict[str, Any]:
            return about

        def containers(self, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
            return [{"Id": name} for name in (*limits, "gone")]

        def inspect_container(self, name: str) -> dict[str, Any]:
            if name == "gone":
                raise refusal(404, "No such container: gone")
            return {"HostConfig": limits[name]}

    (pool,) = pools_of(docker_nodes(Engine()), Resource(13, 0, -1))
    assert (pool.name, pool.cpus, pool.free_cpus, pool.free_memory_mb >> 10) == ("box", 16, 13, 56)
    assert (pool.gpus, pool.free_gpus) == (gpus, {4: 1, 2: 0, -1: -1}[gpus])
    assert pool.fitting == 1 and pools_of(docker_nodes(Engine()), Resource(1, 2, -1))[0].fitting == 0
    limits["b"]["DeviceRequests"] = [{"Count": -1}]
    assert pools_of(docker_nodes(Engine()), None)[0].free_gpus == min(gpus, 0)


def batch(*types: str, need: Resource | None = None, name: str = "", **more: Any) -> list[Pool]:
    """The pools of an account whose queue `q` has a compute environment of these instances, of 256 vCPUs."""
    cloud = Cloud(queues=("q", "other"))
    resources: Any = cloud.environment["computeResources"]
    resources.update({"instanceTypes": [*types], "desiredvCpus": 100, **more.pop("resources", {})})
    cloud.environment.update(more)
    return batch_pools(inspect(cloud, name or "q"), need)


def test_batch() -> None:
    """What may still be started, of each size: 156 vCPUs."""
    need = Resource(8, 8, 1 << 10, {GPU_TYPE: "a100"})
    small, large = batch("m5.2xlarge", "p4d.24xlarge", need=need)
    assert (small.name, small.cpus, small.nodes, small.free_cpus, small.gpus) == ("q/ce m5.2xlarge", 8, 32, 152, 0)
    assert (small.fitting, small.why) == (0, "a replica is larger than this instance, or has other GPUs")
    assert (large.gpu, large.gpus, large.nodes, large.usable, large.free_gpus) == ("a100", 8, 2, 2, 8)
    assert (large.free_memory_mb, large.fitting, large.why) == (large.memory_mb, 1, "")
    assert [pool.gpus for pool in batch("g5", name="other") if pool.name.startswith("other/ce g5.")][-1] == 8
    assert [pool.name.partition("/")[0] for pool in batch_pools(inspect(Cloud(("a", "b"))), None)] == ["a", "b"]


def test_batch_without_a_known_size() -> None:
    """Batch chooses the instance, or is Fargate: vCPUs are known at most."""
    (pool,) = batch("optimal", need=Resource(1, 0, 1))
    assert (pool.name, pool.cpus, pool.nodes, pool.usable, pool.free_cpus, pool.fitting) == ("q/ce optimal", -1, -1, -1, 156, -1)  # fmt: skip
    (fargate,) = batch(resources={"type": "FARGATE", "instanceTypes": None, "desiredvCpus": None})
    assert (fargate.name, fargate.free_cpus) == ("q/ce FARGATE", -1)


@pytest.mark.parametrize("types", ["optimal", "m5.2xlarge"])
def test_batch_that_starts_nothing(types: str) -> None:
    """A compute environment that is disabled, and a job that is too large for all of it."""
    (pool,) = batch(types, state="DISABLED", need=Resource(1, 0, 1))
    assert (pool.usable, pool.free_cpus, "`ce` is disabled" in pool.why) == (0, 0, True)
    (pool,) = batch(types, need=Resource(300, 0, 1))
    assert "it asks for 300 vCPUs" in pool.why and pool.fitting <= 0 and pool.usable
    with pytest.raises(NotFoundError, match="Batch has no queue `nope`"):
        batch(types, name="nope")


FLAVORS = [
    {"name": "cpu", "resources": [{"name": "cpu", "nominalQuota": "20"}, {"name": "memory", "nominalQuota": "64Gi"}]},
    {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 16}]},
]
RESERVED = [
    {"name": "cpu", "resources": [{"name": "cpu", "total": "7500m"}, {"name": "memory", "total": "80Gi"}]},
    {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "3", "borrowed": "0"}]},
]
CLUSTER_QUEUE = {
    "metadata": {"name": "all"},
    "spec": {"resourceGroups": [{"coveredResources": [], "flavors": [flavor]} for flavor in FLAVORS]},
    "status": {"flavorsReservation": RESERVED, "flavorsUsage": []},
}


def queues(need: Resource | None, local: Any = None, cluster: Any = None, group: str = "v1beta1") -> list[Pool]:
    """The queue `team` of a namespace, whose cluster queue, unless it may be listed, has the quota above."""
    spec = {"metadata": {"name": "team"}, "spec": {"clusterQueue": "all"}, **(local or {})}

    class Api(KubeApi):
        def items(self, path: str, query: Any = None) -> list[dict[str, Any]]:
            if path.endswith("/clusterqueues") and cluster is None:
                raise ApiError("forbidden", status=FORBIDDEN)
            base = f"/apis/kueue.x-k8s.io/{group}"
            found = {f"{base}/namespaces/a%2Fb/localqueues": [spec], f"{base}/clusterqueues": [cluster]}
            if path not in found:
                raise NotFoundError("the server could not find the requested resource")
            return found[path]

    return quotas.pools(Api(), "a/b", need)


def test_queues_of_kueue() -> None:
    """Quota, by flavor, and what is not reserved of it; borrowed amounts leave nothing."""
    cpu, gpu = queues(Resource(4, 4, 1024, {GPU_TYPE: "h100"}), None, CLUSTER_QUEUE)
    assert (cpu.name, cpu.quota, cpu.cpus, cpu.memory_mb, cpu.gpus) == ("queue team (cpu)", True, 20, 64 << 10, -1)
    assert (cpu.free_cpus, cpu.free_memory_mb, cpu.fitting) == (12, 0, 0)
    assert (gpu.name, gpu.gpu, gpu.cpus, gpu.gpus, gpu.free_gpus, gpu.fitting) == ("queue team (h100)", "h100", -1, 16, 13, 3)  # fmt: skip
    assert queues(Resource(1, 1, 1, {GPU_TYPE: "a100"}), None, CLUSTER_QUEUE)[1].fitting == 0
    assert queues(None, None, CLUSTER_QUEUE, group="v9") == []


@pytest.mark.parametrize("who", ["local", "cluster"])
def test_queues_that_admit_nothing(who: str) -> None:
    """Stopped, or not active; without rights to cluster queues, the amounts are unknown."""
    hold = {"spec": {"clusterQueue": "all", "stopPolicy": "Hold"}}
    inactive = {"status": {"conditions": [{"type": "Active", "status": "False", "message": "no flavor"}]}}
    stopped = {**CLUSTER_QUEUE, "spec": {**CLUSTER_QUEUE["spec"], "stopPolicy": "Hold"}}  # type: ignore[dict-item]
    local, cluster = (hold, CLUSTER_QUEUE) if who == "local" else ({}, stopped)
    for pool in queues(Resource(1, 1, 1), local, cluster):
        assert (pool.usable, max(pool.free_cpus, pool.free_gpus), pool.fitting) == (0, 0, 0)
        assert "is stopped" in pool.why
    assert queues(None, inactive, CLUSTER_QUEUE)[0].why == "no flavor"
    (unseen,) = queues(Resource(1, 0, 1))
    assert (unseen.name, unseen.cpus, unseen.free_gpus, unseen.usable, unseen.fitting) == ("queue team", -1, -1, -1, -1)


def test_a_size_that_fits_nowhere() -> None:
    """Another type of GPU, or more memory than is free."""
    node = Node("a", 8, 1000, 2, "v100", 8, 500, 2)
    for need, count in (
        (Resource(1, 1, 100), 1),
        (Resource(1, 1, 100, {GPU_TYPE: "h100"}), 0),
        (Resource(1, 0, 501), 0),
    ):
        assert pools_of([node], need)[0].fitting == count


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, JSON, and what is not understood."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    main(["nodes", "-s", "local_cwd", "--gpu", "1"])
    head, row = capsys.readouterr().out.splitlines()
    assert head.split("\t")[-2:] == ["FIT NOW", "START"]
    assert row.split("\t")[0] == "this machine" and f"{len(os.sched_getaffinity(0))} CPUs" in row and "2 GPUs" in row
    main(["nodes", "--json"])
    (pool,) = json.loads(capsys.readouterr().out)["pools"]
    assert (pool["gpus"], pool["free_gpus"], pool["start"]) == (2, -1, None)
    for wrong in (["--gpu", "h100:"], ["--mem", "0"], ["--gpu", ":8"], ["--nodes", "0"], ["--cpu", "-1"]):
        with pytest.raises(SystemExit) as e:
            main(["nodes", *wrong])
        assert e.value.code == 2 and wrong[1] in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["nodes", "-s", "aws_sagemaker", "-cfg", "role=r"])
    assert "cannot tell what its nodes have" in capsys.readouterr().err
