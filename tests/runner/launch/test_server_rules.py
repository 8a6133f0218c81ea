"""What a server would refuse is refused by a dry run, without asking it; good values pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torchx
from torchx.errors import SpecError
from torchx.runner import get_runner
from torchx.schedulers.kit.findings import BAD
from torchx.schedulers.kit.rules import broken
from torchx.specs import AppDef, BindMount, Resource, Role, VolumeMount
from torchx.specs.images import NamesOnly

ARN = "arn:aws:iam::123456789012:role/r"
CFG: dict[str, dict[str, Any]] = {
    "aws_batch": {"queue": "q"},
    "aws_sagemaker": {"role": ARN, "instance_type": "ml.m5.large"},
    "kubernetes": {},
    "kubernetes_mcad": {},
    "local_docker": {},
}
OTHERS: dict[str, dict[str, Any]] = {"local_cwd": {}, "slurm": {}, "lsf": {}}
KUBE, DOCKER, BATCH, MAKER = ["kubernetes", "kubernetes_mcad"], ["local_docker"], ["aws_batch"], ["aws_sagemaker"]
SLURM, LSF = ["slurm"], ["lsf"]
VOLUME = [VolumeMount("data", "/data")]


def dryrun(scheduler: str, cfg: dict[str, Any], **fields: Any) -> Any:
    """The dry run of a job that is right but for the given fields."""
    amounts = {"cpu": 1, "gpu": 0, "memMB": 64, **fields.pop("resource", {})}
    role = Role("w", **{"image": "busybox:1.36", "entrypoint": "echo", "resource": Resource(**amounts), **fields})
    with get_runner() as runner:
        return runner.dryrun(AppDef("a", [role]), scheduler, {**{**CFG, **OTHERS}[scheduler], **cfg})


@pytest.mark.parametrize(
    ("schedulers", "cfg", "fields", "named"),
    [
        *(
            ([*KUBE, *DOCKER], {}, {"port_map": {"a": port}}, str(port))
            for port in (0, -1, 65536, 99999999, "80", True)
        ),
        *(([*CFG], {}, {"image": image}, "image") for image in ("", "a b", "ghcr.io/Me/x", "x:", "x@sha256:12")),
        (
            [*KUBE, *DOCKER, *BATCH],
            {},
            {"mounts": [BindMount("/a", "/x"), BindMount("/b", "/x/")]},
            "two mounts is `/x`",
        ),
        ([*KUBE, *DOCKER, *BATCH], {}, {"mounts": [BindMount("/a", "x")]}, "`x`, not an absolute path"),
        (KUBE, {}, {"mounts": [BindMount("~/a", "/a")]}, "~/a"),
        ([*KUBE, *DOCKER], {}, {"mounts": [BindMount("a", "/a")]}, "`a`, not absolute"),
        ([*KUBE, *MAKER], {}, {"env": {"1 x": "y"}}, "1 x"),
        (MAKER, {}, {"env": {"a.b": "y"}}, "a.b"),
        ([*CFG], {}, {"env": {"A=1": "y"}}, "A=1"),
        ([*CFG], {}, {"env": {"hf.token": "y"}}, "hf.token"),
        (KUBE, {}, {"mounts": [BindMount("/a", "/dev/shm")]}, "`/dev/shm`"),
        *((KUBE, {}, {"mounts": [VolumeMount(name, "/x")]}, name) for name in ("My_Data", "-a", "a" * 254, "a..b")),
        (DOCKER, {}, {"mounts": [VolumeMount("a/b", "/x")]}, "a/b"),
        *((KUBE, {"namespace": name}, {}, "namespace") for name in ("Bad_Name", "a.b", "a" * 64)),
        *((KUBE[:1], {key: "Bad_Name"}, {}, key) for key in ("service_account", "priority_class", "image_secret")),
        (KUBE[1:], {"priority_class_name": "Bad Name"}, {}, "priority_class_name"),
        *((KUBE, {}, {"resource": {"devices": {name: 1}}}, name) for name in ("fpga", "nvidia.com/g pu", "-x.com/a")),
        *(([*KUBE], {}, {"resource": {"devices": {"nvidia.com/gpu": n}}}, str(n)) for n in (-1, 1.5, "2")),
        (KUBE, {}, {"resource": {"capabilities": {"example.com/zo ne": "a"}}}, "zo ne"),
        (KUBE, {}, {"resource": {"capabilities": {"example.com/zone": "a b"}}}, "a b"),
        *((BATCH, {"queue": q}, {}, "queue") for q in ("a b", "arn:aws:batch:x", "q" * 129)),
        *((BATCH, {key: "me"}, {}, key) for key in ("job_role_arn", "execution_role_arn")),
        *((BATCH, {"host_retries": n}, {}, "host_retries") for n in (-1, 10)),
        (BATCH, {"share_id": "a b"}, {}, "share_id"),
        (BATCH, {}, {"num_replicas": 1001}, "1001"),
        *((MAKER, {"instance_type": t}, {}, "instance_type") for t in ("m5.large", "ml.m5", "ml.")),
        *((MAKER, {"role": r}, {}, "role") for r in ("a b", "arn:aws:s3:::x")),
        *((MAKER, {"input_mode": m}, {}, "input_mode") for m in ("file", "Stream")),
        *((MAKER, {"max_run": n}, {}, "max_run") for n in (0, -1, 2419201)),
        *((MAKER, {"max_retry_attempts": n}, {}, "max_retry_attempts") for n in (0, 31)),
        (MAKER, {"volume_size": 0}, {}, "volume_size"),
        (MAKER, {"keep_alive_period_in_seconds": 3601}, {}, "keep_alive"),
        (MAKER, {"output_path": "/local"}, {}, "output_path"),
        (MAKER, {"training_repository_access_mode": "vpc"}, {}, "training_repository_access_mode"),
        *(
            (SLURM, {"time": t}, {}, f"`time` is `{t}`")
            for t in ("abc", "1:2:3:4", "1-2-3", "1.5", "2h", "1:30:00 h", "-2")
        ),
        *((SLURM, {"signal": s}, {}, "signal") for s in ("FOO@x", "USR1@100000", "USR1,TERM", "B:")),
        *((SLURM, {"mail-type": m}, {}, "mail-type") for m in ("END FAIL", "a@b.c")),
        *((SLURM, {"gres": g}, {}, "gres") for g in ("a:b:c:d", ",", "gpu::1", "gpu 1")),
        *((SLURM, {name: "a b"}, {}, name) for name in ("partition", "account", "qos", "reservation")),
        *((SLURM, {name: n}, {}, name) for name in ("nodelist", "exclude") for n in ("n[1-", "n 1", "n1]")),
        (SLURM, {"container": "pyxis"}, {"image": ""}, "image is empty"),
        (SLURM, {}, {"resource": {"devices": {"nvme": -1}}}, "nvme"),
        *((LSF, {"time": t}, {}, f"`time` is `{t}`") for t in ("1h", "1:2:3", "90m")),
        *((LSF, {"docker": True}, {"image": i}, "image") for i in ("", "/a/folder", "a b")),
        (LSF, {"host_network": True}, {"image": ""}, "image is empty"),
        *((LSF, {"gpu_options": g}, {}, "gpu_options") for g in ("2", "mode=a j_exclusive=yes", "nr=2")),
        (LSF, {"shm_size": "much"}, {}, "shm_size"),
    ],
)
def test_what_a_server_would_refuse(
    schedulers: list[str], cfg: dict[str, Any], fields: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the value; `doctor` finds a wrong option without a job."""
    monkeypatch.setenv("PATH", "/nowhere")  # no cluster of this machine is asked
    for scheduler in schedulers:
        with pytest.raises(SpecError) as e:
            dryrun(scheduler, cfg, **fields)
        assert named in str(e.value), scheduler
        if cfg and not fields:
            with get_runner() as runner:
                found = runner.doctor(scheduler, {**CFG, **OTHERS}[scheduler] | cfg, within_s=0.1)
            assert any(f.verdict == BAD and named in f.said for f in found), scheduler


@pytest.mark.parametrize(
    ("schedulers", "cfg", "fields"),
    [
        ([*KUBE, *DOCKER], {}, {"port_map": {"a": 1, "b": 65535}}),
        *(([*CFG], {}, {"image": i}) for i in ("a", "ghcr.io/me/x:V1.0", "localhost:5000/a/b@sha256:" + "0" * 64)),
        ([*KUBE, *DOCKER], {}, {"mounts": [*VOLUME, VolumeMount("more", "/data/more")]}),
        (KUBE, {}, {"resource": {"devices": {"nvidia.com/gpu": 2, "vpc.amazonaws.com/efa": 0}}}),
        (KUBE, {}, {"resource": {"capabilities": {"example.com/zone": "a", "arch": "any thing"}}}),
        (
            BATCH,
            {"queue": "arn:aws:batch:eu-west-1:123456789012:job-queue/q", "job_role_arn": ARN, "timeout_s": 60},
            {},
        ),
        ([*KUBE, *DOCKER, *BATCH, "local_cwd", "slurm", "lsf"], {}, {"env": {"a.b": "y"}}),
        *(
            (SLURM, {"time": t}, {})
            for t in ("90", "90:30", "2:00:00", "1-0", "2-1:1", "1-12:30:00", "UNLIMITED", "infinite", "-1")
        ),
        *((SLURM, {"signal": s}, {}) for s in ("USR1@120", "10", "B:USR1", "R:TERM@5", "RB:SIGUSR1@60", "RTMIN+1@9")),
        *((SLURM, {"mail-type": m}, {}) for m in ("NONE", "begin,END", "BEGIN, END", "TIME_LIMIT_80")),
        *((SLURM, {"gres": g}, {}) for g in ("gpu", "gpu:a100", "gpu:a100:4", "nvme:1,shard:2", "none", "bw:10G")),
        *((SLURM, {"nodelist": n}, {}) for n in ("n[1-3],n7", "rack[1,3]-n[01-16]", "a.b-c")),
        (SLURM, {"partition": "a,b", "account": "p/q.r-s", "qos": "+high"}, {}),
        *((SLURM, {"container": "pyxis"}, {"image": i}) for i in ("/s/a.sqsh", "nvcr.io#nvidia/pytorch:24.05", "a:1")),
        (SLURM, {"container": "pyxis", "container_image": "/s/a.sqsh"}, {"image": ""}),
        ([*SLURM, *LSF, "local_cwd"], {}, {"image": ""}),
        *((LSF, {"time": t}, {}) for t in ("90", "1:30")),
        *(
            (LSF, {"gpu_options": g}, {})
            for g in ("-", "num=2:mode=exclusive_process:j_exclusive=yes", "gmodel=A100-40")
        ),
        (LSF, {"docker": True, "shm_size": "8g"}, {}),
        (MAKER, {"role": "MyRole", "max_run": 2419200, "input_mode": "Pipe", "output_path": "s3://b"}, {}),
    ],
)
def test_good_values_pass(schedulers: list[str], cfg: dict[str, Any], fields: dict[str, Any]) -> None:
    """The limits themselves are allowed."""
    for scheduler in schedulers:
        dryrun(scheduler, cfg, **fields)


@pytest.mark.parametrize(
    ("dockerfile", "asks"), [("FROM busybox\n", False), ("ARG IMAGE\nFROM $IMAGE\n", True), ("", True)]
)
def test_no_image(dockerfile: str, asks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question names `--image`. A Dockerfile of the workspace's own may answer it; $TORCHX_IMAGE does for all."""
    if dockerfile:
        (tmp_path / "Dockerfile.torchx").write_text(dockerfile)
    with NamesOnly(), get_runner() as runner:
        for scheduler in ("local_docker", "kubernetes"):
            words, cfg = ["--msg", "hi"], {"image_repo": "localhost:1/x"}
            try:
                runner.dryrun_component("utils.echo", words, scheduler, cfg, workspace=str(tmp_path))
            except SpecError as e:
                assert asks and "which one (`--image HOST/NAME:TAG`)?" in str(e)
            else:
                assert not asks
    monkeypatch.setenv("TORCHX_IMAGE", "me/train:1")
    assert torchx.IMAGE == "me/train:1"


def test_every_value_that_is_not_known_yet_passes() -> None:
    """A macro may become anything; an option without a value is not checked."""
    role = Role("w", image="${img_root}/x", port_map={"a": 1})
    assert list(broken("torchx.schedulers.kubernetes.rules:RULES", [role], {"namespace": None})) == []
    assert list(broken("", [Role("w", image="")], {"namespace": "A B"})) == []


def test_a_name_that_no_environment_can_hold_is_left_out_on_slurm(caplog: pytest.LogCaptureFixture) -> None:
    """With a warning that names it, as programs written for other versions expect."""
    role = Role("w", image="", entrypoint="echo", env={"SANITIZER=1": "x", "a.b": "c"}, resource=Resource(1, 0, 64))
    with get_runner() as runner:
        shown = str(runner.dryrun(AppDef("a", [role]), "slurm"))
    assert "SANITIZER" not in shown and "a.b=c" in shown and "SANITIZER=1" in caplog.text
    assert "SANITIZER=1" in role.env


def test_the_home_directory_in_a_bind_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not know `~`."""
    monkeypatch.setenv("HOME", "/home/me")
    info = dryrun("local_docker", {}, mounts=[BindMount("~/data", "/data")])
    assert info.request.containers[0].kwargs["mounts"][0]["Source"] == "/home/me/data"
