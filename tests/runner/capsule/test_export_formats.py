"""All export formats: they contain the requests that `schedule` sends, are valid for their tools, and have no secrets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.golden_apps import SCRIPTS, golden_apps
from tests.schedulers.kubernetes.test_kubernetes_golden import built_in
from torchx.errors import NotSupportedError
from torchx.runner import get_runner
from torchx.runner.capsule.export import FORMATS
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.kit.abilities import Exports
from torchx.schedulers.kit.manifests import to_yaml
from torchx.specs import AppDef, BindMount, Resource, RetryPolicy, Role, Secret
from torchx.specs.images import NamesOnly

HOSTILE = ["it's", "$HOME `id` $(id)", "a\nb", "", "*", '--x="y: z"', "ü→", "\\n", "#", "- a", "no", "1e3", "'", '"']
CFG = {
    "kubernetes": {"kind": "job"},
    "aws_batch": {"queue": "q", "image_repo": "reg/train"},
}
RESOURCE = Resource(cpu=2, gpu=0, memMB=512)


def role(name="main", **fields):
    given = {"image": "base:1", "entrypoint": "sh", "args": ["-c", "echo hi"], "resource": RESOURCE}
    return Role(name, **{**given, **fields})


APPS = {
    "plain": AppDef("plain", [role()]),
    "hostile": AppDef(
        "hostile", [role(args=["-c", "printf %s", *HOSTILE], env={f"V{i}": v for i, v in enumerate(HOSTILE)})]
    ),
    "two roles": AppDef(
        "two", [role("a", num_replicas=2), role("b", env={"RANK0": "${rank0_env}", "K": "${replica_id}"})]
    ),
    "retries": AppDef("retries", [role(max_retries=2, retry_policy=RetryPolicy.REPLICA)]),
    "ports": AppDef("ports", [role(port_map={"c10d": 29500}, num_replicas=3)]),
}
SECRET = AppDef("secret", [role(env={"HF_TOKEN": "hf_abcdefghijklmnopqrstuv", "MINE": Secret("env:MINE"), "A": "1"})])


@pytest.fixture
def runner(tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    with get_runner("test") as found:
        yield found


def export(runner, app, scheduler, folder):
    """Exports an app with its code, without a scheduler or a network."""
    with NamesOnly():
        workspace = f"file://{os.getcwd()}" if scheduler != "local_cwd" else None
        info = runner.dryrun(app, scheduler, CFG.get(scheduler, {}), workspace)
        runner.export(info, str(folder), f"file://{os.getcwd()}")
    return info


def test_each_format_has_a_scheduler_that_exports():
    """Each scheduler in the table of formats can export."""
    factories = get_scheduler_factories()
    assert {name for name in FORMATS.values() if isinstance(factories[name]("test"), Exports)} == set(FORMATS.values())


@pytest.mark.parametrize("app", APPS)
@pytest.mark.parametrize("scheduler", FORMATS.values())
def test_every_app_in_every_format(runner, tmp_path, app, scheduler):
    """The folder is complete: scripts that bash can parse, a README that names each file, the code; no import of torchx."""
    check_folder(runner, APPS[app], scheduler, tmp_path / "out")


NOT_MACHINERY = ("run.sh", "job.sh", "submit.sh")


@pytest.mark.parametrize("scheduler", FORMATS.values())
def test_golden_apps_in_every_format(runner, tmp_path, scheduler):
    """In addition, shellcheck finds nothing in the job's scripts, and manifests match the schemas of Kubernetes."""
    for name in SCRIPTS:
        (tmp_path / "project" / name).write_text("print(1)\n")
    folders = []
    for name, app in golden_apps().items():
        out = tmp_path / name
        for role in app.roles if scheduler not in ("local_cwd", "slurm", "lsf") else []:
            role.image = role.image if ":" in role.image else "base:1"  # a folder
        if check_folder(runner, app, scheduler, out):
            folders.append(out)
    assert len(folders) >= (20 if scheduler != "aws_batch" else 10)
    scripts = [str(path) for out in folders for path in out.glob("*.sh") if path.name in NOT_MACHINERY]
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    if shellcheck := shutil.which("shellcheck", path=path):
        # words of the user's program, empty values, loops over one name, what is set or read in files beside it
        argv = [shellcheck, "-S", "warning", "-e", "SC2016,SC1007,SC2043,SC2034,SC1091,SC2154", *scripts]
        assert subprocess.run(argv, capture_output=True, text=True, check=False).stdout == ""
    if scheduler == "kubernetes":
        _validate(folders)


def _validate(folders):
    yaml = pytest.importorskip("yaml")
    validate = pytest.importorskip("kubernetes_validate")
    for out in folders:
        for item in yaml.safe_load_all((out / "job.yaml").read_text()):
            for part in built_in(item):
                validate.validate(part, "1.37", strict=True)


def check_folder(runner, app, scheduler, out):
    """Returns False if the scheduler rejects such an app."""
    try:
        export(runner, app, scheduler, out)
    except Exception as e:  # what the scheduler refuses, such as two roles on Batch, is refused for an export, too
        assert type(e).__name__ in ("SpecError", "NotSupportedError", "ConfigError"), e
        with NamesOnly(), pytest.raises(type(e)):
            runner.dryrun(app, scheduler, CFG.get(scheduler, {}))
        return False
    for script in out.glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
        assert "import torchx" not in script.read_text()
        assert os.getcwd() not in script.read_text()  # the code is beside it
    readme = (out / "README.md").read_text()
    assert [p.name for p in out.iterdir() if p.is_file() and p.suffix != ".md" and f"`{p.name}`" not in readme] in (
        [],
        [".dockerignore"],
    )
    assert (out / "code" / "train.py").read_text() == "print(1)\n"
    assert "to-be-built:" not in "".join(p.read_text() for p in out.iterdir() if p.suffix in (".yaml", ".sh"))
    return True


@pytest.mark.parametrize("scheduler", [name for name in FORMATS.values() if name != "aws_batch"])
def test_no_value_of_a_secret(runner, tmp_path, scheduler):
    """No file contains a value; `run.sh` names the variables that are missing."""
    out = tmp_path / "out"
    export(runner, SECRET, scheduler, out)
    assert not [p for p in out.rglob("*") if p.is_file() and "abcdefghijklmno" in p.read_text()]
    done = subprocess.run(
        ["env", "-u", "HF_TOKEN", "-u", "MINE", str(out / "run.sh")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "HF_TOKEN, which is not in this folder" in done.stderr


def test_yaml_is_read_back():
    """Any string survives a round trip."""
    yaml = pytest.importorskip("yaml")
    data = {
        "a b": HOSTILE,
        "c": {"d": [[1, 2.5, None, True], {"e": {}, "f": []}]},
        "1": "x",
        "on": "y",
        "Y": 1,
        "é": "",
    }
    assert yaml.safe_load(to_yaml(data)) == yaml.safe_load(to_yaml(data, in_lines=True)) == data


def test_the_manifests_are_the_request(runner, tmp_path):
    """The manifests are the objects of the request, plus a ConfigMap with the code."""
    yaml = pytest.importorskip("yaml")
    info = export(runner, APPS["hostile"], "kubernetes", tmp_path / "out")
    found = [
        item for name in ("job.yaml", "code.yaml") for item in yaml.safe_load_all((tmp_path / "out" / name).read_text())
    ]
    assert sorted(found, key=str) == sorted(info.request.resource["items"], key=str)
    assert [item["kind"] for item in yaml.safe_load_all((tmp_path / "out" / "code.yaml").read_text())] == ["ConfigMap"]


def test_code_in_a_bucket_is_not_exported(runner, tmp_path):
    """The download URL is signed at submission, so it cannot be exported; the hint names alternatives. Nothing is uploaded."""
    cfg = {"kind": "job", "code": "bucket", "bucket": "s3://nowhere/code"}
    info = runner.dryrun(APPS["plain"], "kubernetes", cfg, f"file://{os.getcwd()}")
    with pytest.raises(NotSupportedError, match="signed when the job is submitted") as e:
        runner.export(info, str(tmp_path / "out"), f"file://{os.getcwd()}")
    assert "code=inline" in e.value.hint


def test_a_trainjob_is_exported_with_what_it_needs(runner, tmp_path):
    """In the form of Trainer 2.2."""
    info = runner.dryrun(APPS["plain"], "kubernetes", {"kind": "kubeflow"}, f"file://{os.getcwd()}")
    runner.export(info, str(tmp_path / "out"), f"file://{os.getcwd()}")
    assert "Kubeflow Trainer 2.2" in (tmp_path / "out" / "README.md").read_text()
    assert "kind: TrainJob\n" in (tmp_path / "out" / "job.yaml").read_text()


def test_batch_requests_are_those_of_the_api(runner, tmp_path):
    """The two files are the arguments of RegisterJobDefinition and SubmitJob; the image is built and pushed before."""
    info = export(runner, APPS["plain"], "aws_batch", tmp_path / "out")
    out = tmp_path / "out"
    assert json.loads((out / "job-definition.json").read_text()) == info.request.job_def
    assert {
        **json.loads((out / "job.request.json").read_text()),
        "jobDefinition": info.request.job_def["jobDefinitionName"],
    } == info.request.request()
    image = info.request.job_def["containerProperties"]["image"]
    assert f"build {image} base:1" in (out / "run.sh").read_text()


def test_services_are_the_containers(runner, tmp_path):
    """Compose gets what the engine would get: words, limits, mounts, ports; Compose substitutes nothing in them."""
    yaml = pytest.importorskip("yaml")
    app = AppDef(
        "c", [role(args=["-c", "echo $HOME"], mounts=[BindMount("/a", "/b", read_only=True)], port_map={"p": 80})]
    )
    export(runner, app, "local_docker", tmp_path / "out")
    (service,) = yaml.safe_load((tmp_path / "out" / "compose.yaml").read_text())["services"].values()
    assert service["entrypoint"] == ["sh", "-c", "echo $$HOME"]
    assert (service["cpus"], service["mem_limit"], service["shm_size"]) == (2.0, 512 << 20, 512 << 20)
    assert service["volumes"] == [{"type": "bind", "source": "/a", "target": "/b", "read_only": True}]
    assert service["ports"] == ["127.0.0.1::80"]
