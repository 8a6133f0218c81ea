"""`torchx doctor -s local_docker` and `run --check` on a real engine and real registries: what is bad is what they refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.backends.docker import engine
from tests.backends.docker.conftest import ended, role_of
from tests.backends.docker.registry import Registry, running, sha256
from tests.backends.docker.test_images_registry import push_base
from torchx.errors import TorchXError
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.workspace.images.names import ImageName
from torchx.workspace.images.registry import OCI_INDEX, OCI_MANIFEST, Manifest
from torchx.workspace.images.registry import Registry as Client


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One with images of several architectures: `one/amd64`, `one/arm64`, and `index/arm64`, `index/both`."""
    try:
        engine.install("docker-registry", "docker-registry")
    except engine.Unavailable as e:
        pytest.skip(f"no registry can be had: {e}")
    with running(Registry(tmp_path_factory.mktemp("registry"))) as started:
        with closing(Client(started.host)) as client:
            for architecture in ("amd64", "arm64"):
                push_base(client, f"one/{architecture}", architecture=architecture)
            for name, architectures in (("arm64", ["arm64"]), ("both", ["amd64", "arm64"])):
                _push_index(client, f"{started.host}/index/{name}:1", architectures)
        yield started


def _push_index(client: Client, image: str, architectures: list[str]) -> None:
    variants = []
    for architecture in architectures:
        name = ImageName.parse(image)
        digest = push_base(client, name.repository, tag=architecture, architecture=architecture)
        size = len(client.manifest(ImageName.parse(image.rpartition(":")[0] + f":{architecture}")).content)
        platform = {"architecture": architecture, "os": "linux"}
        variants.append({"mediaType": OCI_MANIFEST, "size": size, "digest": digest, "platform": platform})
    content = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": variants}).encode()
    client.put_manifest(ImageName.parse(image), Manifest(OCI_INDEX, sha256(content), content))


def check(scheduler: DockerScheduler, role: Role) -> dict[str, Finding]:
    info = scheduler.submit_dryrun(AppDef("job", [role]), {})
    return {f.what: f for check in scheduler.diagnose({}, info) for f in check.findings()}


def test_an_engine_and_a_job_with_which_nothing_is_wrong(scheduler: DockerScheduler, docker_image: str) -> None:
    """Nothing is bad; the job is not made by it, and runs when it is."""
    found = {f.what: f for check in scheduler.diagnose({}) for f in check.findings()}
    assert set(found) == {"engine", "disk", "GPUs"}
    assert (found["engine"].verdict, BAD in {f.verdict for f in found.values()}) == (GOOD, False)
    before = {job.app_id for job in scheduler.list()}
    role = role_of("true", 2, image=docker_image)
    found = check(scheduler, role)
    assert {f.verdict for f in found.values()} == {GOOD}, found
    assert {job.app_id for job in scheduler.list()} == before
    assert ended(scheduler, scheduler.submit(AppDef("job", [role]), {})).state is AppState.SUCCEEDED


def test_more_processors_than_there_are(scheduler: DockerScheduler, docker_image: str) -> None:
    """The engine refuses them; as many as the fix says it takes."""
    role = role_of("true", image=docker_image, resource=Resource(cpu=5000, gpu=0, memMB=100))
    found = check(scheduler, role)["size of role `r`"]
    assert found.verdict == BAD
    with pytest.raises(TorchXError):
        scheduler.submit(AppDef("job", [role]), {})
    role.resource.cpu = int(found.fix.strip("`").split()[1])
    assert check(scheduler, role)["size of role `r`"].verdict == GOOD
    assert ended(scheduler, scheduler.submit(AppDef("job", [role]), {})).state is AppState.SUCCEEDED


@pytest.mark.parametrize(
    ("image", "verdict", "said"),
    [
        ("one/amd64", GOOD, "for amd64"),
        ("index/both", GOOD, "for amd64, arm64"),
        ("one/arm64", BAD, "--platform linux/amd64"),
        ("index/arm64", BAD, "--platform linux/amd64"),
        ("one/amd46", BAD, "--image HOST/NAME:TAG"),
        ("one/amd64:2", BAD, "--image HOST/NAME:TAG"),
    ],
)
def test_images(scheduler: DockerScheduler, registry: Registry, image: str, verdict: str, said: str) -> None:
    """In the registry, for the machine of the engine, or not."""
    if engine.run("docker", "info", "--format", "{{.Architecture}}").strip() != "x86_64":
        pytest.skip("the images of this test are for others")
    name = f"{registry.host}/{image}" + ("" if ":" in image else ":1")
    found = check(scheduler, role_of("true", image=name))["image of role `r`"]
    assert (found.verdict, said in found.said + found.fix) == (verdict, True), found


def test_registries_that_tell_nothing(
    scheduler: DockerScheduler, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that wants a password which is not known here, and one that does not answer."""
    with running(Registry(tmp_path, tls=True, passwords=True)) as closed:
        monkeypatch.setenv("SSL_CERT_FILE", str(closed.ca))
        for host in (closed.host, "127.0.0.1:9"):
            found = check(scheduler, role_of("true", image=f"{host}/me/train:1"))["image of role `r`"]
            assert found.verdict == UNKNOWN, found
