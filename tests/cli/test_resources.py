"""What a script, a program, a sweep or a component asks for: `-h`, `--gpu`, `--mem` and others of `torchx run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Call

REPO = "image_repo=ghcr.io/me/x"
AWS = f"{REPO},queue=q"


@pytest.fixture(autouse=True)
def script(project: Path) -> None:
    (project / "train.py").write_text("print('hi')\n")


def dry(torchx: Call, *argv: str) -> tuple[dict[str, Any], str]:
    """The job that would be submitted, and what stderr says."""
    found = torchx("run", "--dryrun", "--json", *argv)
    assert found.code == 0, found.err
    return json.loads(found.out)["app"], found.err


def amounts(app: dict[str, Any]) -> tuple[int, int, int]:
    resource = app["roles"][0]["resource"]
    return resource["cpu"], resource["gpu"], resource["memMB"]


@pytest.mark.parametrize(
    "what", [["train.py"], ["--", "python", "train.py"], ["--", "ls", "-l"], ["dist.ddp", "--script", "train.py"]]
)
def test_every_form_takes_them(torchx: Call, what: list[str]) -> None:
    """Scripts, programs and components get the resource, the image, the variables and the name."""
    given = ["--gpu", "h100:8", "--cpu", "16", "--mem", "64G", "--image", "me:2", "--env", "A=b,c=d", "--name", "big"]
    app, said = dry(torchx, "-s", "slurm", *given, *what)
    role = app["roles"][0]
    assert amounts(app) == (16, 8, 65536)
    assert (role["resource"]["capabilities"], role["image"]) == ({"gpu_type": "h100"}, "me:2")
    assert (role["env"]["A"], app["name"], said) == ("b,c=d", "big", "")


@pytest.mark.parametrize(
    ("argv", "wanted", "said"),
    [
        (["-j", "2x8", "train.py"], (8, 0, 8192), "for 8 workers: 8 CPUs, 8 GiB of memory, no GPU"),
        (["dist.ddp", "-j", "2x8", "--script", "train.py"], (8, 0, 8192), "for 8 workers: 8 CPUs, 8 GiB of memory"),
        (["dist.torchrun", "-j", "2x4", "--script", "train.py"], (4, 0, 4096), "for 4 workers"),
        (["-j", "2x8", "--mem", "64G", "train.py"], (8, 0, 65536), "for 8 workers: 8 CPUs, no GPU; to set them"),
        (["-j", "2x8", "--gpu", "h100", "train.py"], (16, 8, 24576), "for 8 GPUs: 16 CPUs, 24 GiB of memory; to set"),
        (["--gpu", "2", "train.py"], (4, 2, 6144), "for 2 GPUs"),
        (["train.py"], (1, 0, 1024), "Assumed per node: 1 CPU, 1 GiB of memory, no GPU; to set them: --gpu 8"),
        (["-j", "2x8", "-h", "gpu.small", "--", "python", "train.py"], (8, 1, 32768), None),
        (["utils.sh", "ls"], (1, 0, 1024), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_amounts_grow_with_the_workers(
    torchx: Call, argv: list[str], wanted: tuple[int, int, int], said: str | None
) -> None:
    """CPUs and memory that nobody asked for follow from the workers or the GPUs, and a line says so."""
    app, err = dry(torchx, "-s", "slurm", *argv)
    assert amounts(app) == wanted
    assert (said in err and err.count("\n") == 1) if said else "Assumed" not in err


def test_nothing_is_assumed_where_nothing_is_reserved(torchx: Call) -> None:
    """Jobs on this machine are neither given nor denied CPUs and memory."""
    assert dry(torchx, "-j", "1x2", "train.py")[1] == ""


def test_defaults_of_the_config_file(torchx: Call, project: Path) -> None:
    """`[cli:run]` has the same keys; the command line and the component's own section override them."""
    config = project / ".torchxconfig"
    config.write_text("[cli:run]\nmem = 64G\ngpu = a100:4\nenv =\n  A=1\n  B=2\n[component:dist.ddp]\nmemMB = 2048\n")
    app, _ = dry(torchx, "-s", "slurm", "--env", "B=3", "train.py")
    role = app["roles"][0]
    assert (amounts(app)[1:], role["resource"]["capabilities"]) == ((4, 65536), {"gpu_type": "a100"})
    assert (role["env"]["A"], role["env"]["B"]) == ("1", "3")
    assert amounts(dry(torchx, "-s", "slurm", "-j", "1x4", "train.py")[0])[1:] == (4, 2048)
    assert amounts(dry(torchx, "-s", "slurm", "-h", "cpu.small", "train.py")[0]) == (1, 0, 2048)
    assert amounts(dry(torchx, "-s", "slurm", "utils.python", "--gpu", "1", "-c", "1")[0])[1] == 1
    assert dry(torchx, "-s", "slurm", "utils.echo")[0]["roles"][0]["resource"]["gpu"] == 0
    config.write_text("[cli:run]\nh = gpu.small\n")
    assert amounts(dry(torchx, "-s", "slurm", "--mem", "2G", "train.py")[0])[1:] == (0, 2048)


@pytest.mark.parametrize(
    ("argv", "texts"),
    [
        (["--gpu", "8x", "train.py"], ["`--gpu 8x` is not understood", "`h100:8`"]),
        (["--gpu", "h100,nvme:8", "train.py"], ["`--gpu h100,nvme:8` is not understood"]),
        (["--mem", "4X", "train.py"], ["`--mem 4X` is not understood", "`64G`"]),
        (["--cpu", "0", "train.py"], ["`--cpu 0` is not understood"]),
        (["-h", "gpu.smal", "train.py"], ["named resource `gpu.smal` is not known", "did you mean `gpu.small`?"]),
        (["-h", "gpu.small", "--mem", "4G", "train.py"], ["`-h gpu.small` names all of the resource", "`--mem 4G`"]),
        (["--gpu", "8", "utils.echo"], ["component `utils.echo` has no argument for `--gpu 8`", "`--msg`"]),
        (["--nodes", "2", "dist.ddp", "--script", "train.py"], ["`--nodes 2`", "`-j 2x1`"]),
        (["--env", "A", "train.py"], ["`--env A` is not NAME=VALUE"]),
        (["--gpu", "8", "utils.sh", "--gpu", "4", "ls"], ["`--gpu` of component `utils.sh` is given more than once"]),
        (["train.py", "--gpu", "h100:8"], ["`--gpu h100:8` comes after `train.py`"]),
    ],
    ids=lambda value: " ".join(value) if value[0][0] == "-" else "",
)
def test_wrong_requests(torchx: Call, argv: list[str], texts: list[str]) -> None:
    """One line names the value, and the next what to write."""
    found = torchx("run", "--dryrun", "-s", "slurm", *argv)
    assert (found.code, found.out) == (2, "")
    assert all(text in found.err for text in texts), found.err


@pytest.mark.parametrize(
    ("scheduler", "cfg", "texts"),
    [
        ("slurm", "partition=p", ["--gres=gpu:h100:8"]),
        ("lsf", "lsf_queue=q", ["num=8:gmodel=H100"]),
        ("kubernetes", REPO, ['nvidia.com/gpu: "8"', "nvidia.com/gpu.product", "- NVIDIA-H100-80GB-HBM3"]),
        ("kubernetes_mcad", REPO, ['nvidia.com/gpu: "8"', "- NVIDIA-H100-80GB-HBM3"]),
        ("aws_batch", AWS, ["instanceType: p5.48xlarge"]),
        ("aws_sagemaker", f"{REPO},role=r,instance_type=ml.p5.48xlarge", ["InstanceType: ml.p5.48xlarge"]),
    ],
)
def test_types_of_gpus(torchx: Call, scheduler: str, cfg: str, texts: list[str]) -> None:
    """Each backend is asked for the type in its own words."""
    wanted = ["--gpu", "h100:8", "--image", "me:1"]
    found = torchx("run", "--dryrun", "--full", "-s", scheduler, "-cfg", cfg, *wanted, "train.py")
    assert found.code == 0, found.err
    assert all(text.replace('"', "") in found.out.replace("'", "").replace('"', "") for text in texts), found.out


@pytest.mark.parametrize(
    ("argv", "code", "texts"),
    [
        (["-s", "local_cwd"], 5, ["`local_cwd` cannot ask for a type of GPU", "`--gpu 8`"]),
        (["-s", "local_docker"], 5, ["`local_docker` cannot ask for a type of GPU"]),
        (["-s", "kubernetes", "-cfg", REPO], 2, ["`kubernetes` has no GPU type `z9`", "[gpu_types:kubernetes]"]),
        (["-s", "aws_batch", "-cfg", AWS], 2, ["`aws_batch` has no GPU type `z9`"]),
        (["-s", "aws_sagemaker", "-cfg", f"{REPO},role=r,instance_type=ml.p5.48xlarge"], 2, ["no GPU type `z9`"]),
    ],
)
def test_types_that_a_backend_cannot_ask_for(torchx: Call, argv: list[str], code: int, texts: list[str]) -> None:
    """No job gets other GPUs than those it asked for."""
    found = torchx("run", "--dryrun", *argv, "--gpu", "z9:8", "--image", "me:1", "train.py")
    assert (found.code, found.out) == (code, "")
    assert all(text in found.err for text in texts), found.err


@pytest.mark.parametrize(
    ("backend", "cfg", "text", "wanted"),
    [
        ("slurm", "partition=p", "hopper", "--gres=gpu:hopper:4"),
        ("lsf", "lsf_queue=q", "NVIDIAZ9", "num=4:gmodel=NVIDIAZ9"),
        ("kubernetes", REPO, "example.com/gpu=z9", "example.com/gpu: z9"),
        ("kubernetes", REPO, "claim:z9-{n}", "resourceClaimTemplateName: z9-4"),
        ("kubernetes", REPO, "amd.com/gpu", "amd.com/gpu: 4"),
        ("aws_batch", AWS, "p9.9xlarge", "instanceType: p9.9xlarge"),
    ],
)
def test_types_of_a_site(torchx: Call, project: Path, backend: str, cfg: str, text: str, wanted: str) -> None:
    """The config file adds a type; its name is no typo of a section."""
    (project / ".torchxconfig").write_text(f"[gpu_types:{backend}]\nz9 = {text}\n")
    asked = ["--gpu", "z9:4", "--image", "me:1"]
    found = torchx("run", "--dryrun", "--full", "-s", backend, "-cfg", cfg, *asked, "train.py")
    assert found.code == 0, found.err
    assert wanted in found.out.replace("'", "").replace('"', "")
    assert ("nvidia.com/gpu:" in found.out) == (text == "example.com/gpu=z9")
    assert "gpu_types" not in found.err


def test_a_component_that_loses_the_type(torchx: Call, project: Path) -> None:
    """A component that computes with the number of GPUs asks for any type: an error, because it was told one."""
    (project / "own.py").write_text(
        "from torchx import specs\n"
        "def job(gpu: int = 0) -> specs.AppDef:\n"
        "    '''A job.'''\n"
        "    needs = specs.Resource(cpu=1, gpu=gpu * 2, memMB=64)\n"
        "    return specs.AppDef('a', [specs.Role('r', image='', entrypoint='ls', resource=needs)])\n"
    )
    assert torchx("run", "--dryrun", "-s", "slurm", "own.py:job", "--gpu", "2").code == 0
    found = torchx("run", "--dryrun", "-s", "slurm", "own.py:job", "--gpu", "a100:2")
    assert (found.code, found.out) == (2, "")
    assert "component `own.py:job` does not ask for GPUs of the type `a100`" in found.err


def test_help_is_still_there(torchx: Call) -> None:
    """`-h` without a name prints the help, as `--help` does."""
    assert torchx("run", "-h").out == torchx("run", "--help").out != ""


def test_a_sweep(torchx: Call) -> None:
    """Sweeps take the same options."""
    found = torchx("sweep", "--dryrun", "--json", "-s", "slurm", "--gpu", "1", "--grid", "a=1,2", "train.py", "{a}")
    assert found.code == 0, found.err
    assert amounts(json.loads(found.out)["app"]) == (2, 1, 3072)
