"""What a server would refuse is refused by a dry run, without asking it; good values pass."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.runner import get_runner
from torchx.schedulers.kit.findings import BAD
from torchx.schedulers.kit.rules import broken
from torchx.specs import AppDef, BindMount, Resource, Role, VolumeMount

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
    ],
)
def test_what_a_server_would_refuse(
    schedulers: list[str], cfg: dict[str, Any], fields: dict[str, Any], named: str
) -> None:
    """The error names the value; `doctor` finds a wrong option without a job."""
    for scheduler in schedulers:
        with pytest.raises(SpecError) as e:
            dryrun(scheduler, cfg, **fields)
        assert named in str(e.value), scheduler
        if cfg and not fields:
            with get_runner() as runner:
                found = runner.doctor(scheduler, {**CFG[scheduler], **cfg}, within_s=0.1)
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
        (MAKER, {"role": "MyRole", "max_run": 2419200, "input_mode": "Pipe", "output_path": "s3://b"}, {}),
    ],
)
def test_good_values_pass(schedulers: list[str], cfg: dict[str, Any], fields: dict[str, Any]) -> None:
    """The limits themselves are allowed."""
    for scheduler in schedulers:
        dryrun(scheduler, cfg, **fields)


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
