"""Code in a ConfigMap: what is shipped, how a container unpacks it, and its limits."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.schedulers.kubernetes.fake_cluster import Cluster
from tests.schedulers.kubernetes.test_kubernetes_golden import built_in
from torchx.errors import ConfigError
from torchx.runner import Runner
from torchx.schedulers.kubernetes.shipped_code import pack
from torchx.schedulers.kubernetes_scheduler import create_scheduler
from torchx.specs import AppDef, Resource, Role, Workspace

GROUPS = ["jobset.x-k8s.io/v1alpha2", "batch.volcano.sh/v1alpha1"]
KINDS = ["job", "jobset", "volcano"]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A workspace."""
    folder = tmp_path / "code"
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "train.py").write_text("print('hi')\n")
    (folder / "lib" / "run.sh").write_text("#!/bin/sh\necho run\n")
    (folder / "lib" / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("train.py")
    (folder / "junk.pyc").write_bytes(os.urandom(64))
    (folder / ".torchxignore").write_text("**/*.pyc\n")
    return folder


def app(*names: str) -> AppDef:
    roles = [
        Role(n, "img", entrypoint="python", args=["train.py", "$(HOME)"], num_replicas=2, resource=Resource(1, 0, 64))
        for n in names or ("a", "b")
    ]
    return AppDef("train", roles)


def run(cluster: Cluster, workspace: Path, given: AppDef | None = None, **cfg):
    """Runs a job with a Runner, as the command line does."""
    scheduler = create_scheduler("me", client=cluster)
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        return scheduler, runner.run(given or app(), "kubernetes", cfg, workspace=str(workspace)).rpartition("/")[2]


def templates(cluster: Cluster, kind: str):
    if kind == "jobset":
        return [job["template"]["spec"]["template"] for job in cluster.of("jobsets")[0]["spec"]["replicatedJobs"]]
    if kind == "volcano":
        return [task["template"] for task in cluster.of("jobs")[0]["spec"]["tasks"]]
    return [job["spec"]["template"] for job in cluster.of("jobs")]


@pytest.mark.parametrize("kind", KINDS)
def test_each_container_unpacks_the_code_before_its_program(code, kind):
    """All roles share one ConfigMap, which is deleted with the job; arguments are passed unchanged."""
    cluster = Cluster(groups=GROUPS)
    scheduler, app_id = run(cluster, code, kind=kind)
    (found,) = cluster.of("configmaps")
    owner = cluster.of("jobsets")[0] if kind == "jobset" else cluster.of({"job": "services"}.get(kind, "jobs"))[0]
    assert [ref["uid"] for ref in found["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
    for template in templates(cluster, kind):
        (main,) = template["spec"]["containers"]
        assert main["command"] == ["sh", "/torchx-code/start.sh", "python", "train.py", "$$(HOME)"]
        (volume,) = [v for v in template["spec"]["volumes"] if "configMap" in v]
        assert volume["configMap"]["name"] == found["metadata"]["name"]
        assert {"name": volume["name"], "mountPath": "/torchx-code", "readOnly": True} in main["volumeMounts"]
    assert scheduler.describe(app_id).roles[0].args == ["train.py", "$(HOME)"]
    scheduler.delete(app_id)
    assert cluster.objects == {}


def test_a_ttl_takes_the_code_along(code):
    """Only the Jobs own the Service, so that no cycle of owners keeps the objects alive."""
    cluster = Cluster()
    run(cluster, code, ttl_s=1, kind="job")
    for job in cluster.of("jobs"):
        cluster.take(job)
    assert cluster.objects == {}


def test_roles_with_code_of_their_own(code, tmp_path):
    """Each has its own ConfigMap; a role without a workspace is not changed."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "serve.py").write_text("print('serving')\n")
    given = app("trainer", "server", "plain")
    given.roles[0].workspace = Workspace({str(code): ""})
    given.roles[1].workspace = Workspace({str(other): ""})
    cluster = Cluster()
    scheduler = create_scheduler("me", client=cluster)
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        runner.run(given, "kubernetes", {"kind": "job"})
    names = [found["metadata"]["name"] for found in cluster.of("configmaps")]
    mounted = [
        [v["configMap"]["name"] for v in template["spec"]["volumes"] if "configMap" in v]
        for template in templates(cluster, "job")
    ]
    assert mounted == [[names[0]], [names[1]], []]
    assert templates(cluster, "job")[2]["spec"]["containers"][0]["command"][0] == "python"


def test_what_is_packed(code):
    """Files, links, empty folders and permissions, but no ignored files. The archive is reproducible."""
    packed = pack(Workspace({str(code): ""}))
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as archive:
        found = {one.name: one for one in archive.getmembers()}
    assert set(found) == {".torchxignore", "lib", "lib/empty", "lib/run.sh", "link", "train.py"}
    assert (found["link"].linkname, found["lib/run.sh"].mode) == ("train.py", 0o755)
    os.utime(code / "train.py", (1, 1))
    assert pack(Workspace({str(code): ""})) == packed
    (code / "train.py").write_text("print('ho')\n")
    assert pack(Workspace({str(code): ""})).hash != packed.hash


TAR = {"tar": "/bin/tar", "gzip": "/bin/gzip"}


@pytest.mark.parametrize("tools", [{"python3": sys.executable}, TAR, {**TAR, "python3": "/bin/false"}], ids=list)
def test_what_a_container_does(code, tmp_path, tools):
    """A real shell unpacks over what is there, by Python or by tar, and becomes the program. Modules of the image's
    working directory do not stand in for Python's own; a link to a folder stays one. Debian's `python3-minimal` has no
    `tarfile`."""
    folder, place, path = tmp_path / "torchx-code", tmp_path / "workdir", tmp_path / "bin"
    for new in (folder, place, path):
        new.mkdir()
    volume = pack(Workspace({str(code): ""})).as_object({})
    (folder / "start.sh").write_text(volume["data"]["start.sh"])
    archive = folder / "code.tgz"
    archive.write_bytes(base64.b64decode(volume["binaryData"]["code.tgz"]))
    (place / "train.py").write_text("old\n")
    (place / "struct.py").write_text("raise SystemExit('not that of Python')\n")
    if "tar" not in tools:
        (place / "usr").mkdir()
        (place / "lib").symlink_to("usr")
    for name, target in tools.items():
        (path / name).symlink_to(target)
    argv = ["/bin/sh", f"{folder}/start.sh", "/bin/sh", "-c", 'printf "%s|" "$@"', "sh", "a b", "$HOME", ""]
    env = {"PATH": str(path), "PYTHONHOME": sys.base_prefix}
    done = subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "a b|$HOME||"), done.stderr
    assert (place / "train.py").read_text() == "print('hi')\n"
    assert (place / "struct.py").exists() and os.access(place / "lib" / "run.sh", os.X_OK)
    assert (place / "lib").is_symlink() is ("tar" not in tools)
    assert archive.exists()  # a volume is read-only
    archive.write_bytes(b"broken")
    done = subprocess.run(argv, cwd=place, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"torchx: the code cannot be unpacked into {place}" in done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_agree(code, kind):
    """All built-in objects are valid."""
    validate = pytest.importorskip("kubernetes_validate")
    cluster = Cluster(groups=GROUPS)
    run(cluster, code, kind=kind)
    parts = [part for item in cluster.objects.values() for part in built_in(item)]
    assert {part["kind"] for part in parts} & {"Pod", "Job", "Service", "Secret", "ConfigMap"}
    for part in parts:
        validate.validate(part, "1.37", strict=True)


def test_a_dry_run_says_how_much_and_not_what(code):
    """It shows the size of the code instead of base64."""
    scheduler = create_scheduler("me")
    with Runner("me", {"kubernetes": lambda *_, **__: scheduler}) as runner:
        info = runner.dryrun(app(), "kubernetes", workspace=str(code))
    (found,) = [item for item in info.request.resource["items"] if item["kind"] == "ConfigMap"]
    data = found["binaryData"]["code.tgz"]
    assert data not in str(info) and "exec" not in str(info)
    size = len(base64.b64decode(data))
    shown = int(str(info).partition("code.tgz: (")[2].partition(" bytes)")[0])
    assert size <= shown <= size + 2


def test_what_is_too_large_is_refused(code):
    """The limit applies after compression. Nothing is created."""
    (code / "zeros").write_bytes(bytes(5_000_000))
    assert len(pack(Workspace({str(code): ""})).data) < 100_000
    (code / "noise").write_bytes(os.urandom(1_100_000))
    cluster = Cluster()
    with pytest.raises(ConfigError, match="is larger than the 1000 kB") as e:
        run(cluster, code, code="inline")
    assert "image_repo" in e.value.hint and cluster.objects == {}


def test_a_dockerfile_needs_an_image(code):
    """A `Dockerfile.torchx` is rejected without an image."""
    (code / "Dockerfile.torchx").write_text("ARG IMAGE\nFROM $IMAGE\n")
    with pytest.raises(ConfigError, match=r"has a `Dockerfile.torchx`"):
        run(Cluster(), code, code="inline")


@pytest.mark.parametrize(
    "cfg", [{"code": "registry"}, {"image_repo": "ghcr.io/me/jobs"}], ids=["asked for", "there is a registry"]
)
def test_an_image_is_built_where_that_is_wanted(code, cfg, monkeypatch):
    """With `code=registry` or an `image_repo`; without `image_repo`, code that is too large is an error."""
    from torchx.workspace.docker_workspace import DockerWorkspaceMixin

    built = []
    monkeypatch.setattr(
        DockerWorkspaceMixin, "caching_build_workspace_and_update_role", lambda *a: built.append(a[1].name)
    )
    cluster = Cluster()
    run(cluster, code, **cfg)
    assert built == ["a", "b"] and not cluster.of("configmaps")
    (code / "noise").write_bytes(os.urandom(1_100_000))
    run(Cluster(), code, **cfg)
    assert built == ["a", "b"] * 2
    with pytest.raises(ConfigError, match="is larger than the 1000 kB") as e:
        run(Cluster(), code)
    assert "image_repo" in e.value.hint and ".torchxignore" in e.value.hint


def test_an_option_that_nobody_knows_is_refused(code):
    """The error has the value."""
    with pytest.raises(ConfigError, match="code `carrier-pigeon` is not one of auto, bucket, inline, registry"):
        run(Cluster(), code, code="carrier-pigeon")
