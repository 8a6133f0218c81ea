"""The registry client against Debian's registry: logins, tokens, certificates, and bad days on the way there."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.docker import engine
from tests.backends.docker.faults import Fault, FaultyRegistry
from tests.backends.docker.image_stage import build, home, source
from tests.backends.docker.registry import PASSWORD, USER, Registry, TokenServer, running, sha256
from torchx.errors import BackendError, NotSupportedError, SpecError, TorchXError, TransientError
from torchx.specs.api import Workspace
from torchx.workspace.images.names import ImageName
from torchx.workspace.images.registry import (
    DOCKER_INDEX,
    DOCKER_MANIFEST,
    OCI_INDEX,
    OCI_MANIFEST,
    Blob,
    Manifest,
)
from torchx.workspace.images.registry import (
    Registry as Client,
)
from torchx.workspace.images.registry_auth import Credentials
from torchx.workspace.oci import ImageBuilder

__all__ = ["home", "source"]

Started = Iterator[Registry]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    try:
        engine.install("docker-registry", "docker-registry")
    except engine.Unavailable as e:
        pytest.skip(f"no registry can be had: {e}")


@pytest.fixture(scope="module")
def open_registry(tmp_path_factory: pytest.TempPathFactory) -> Started:
    with running(Registry(tmp_path_factory.mktemp("open"))) as started:
        push_base(Client(started.host), "base/py")
        yield started


@pytest.fixture(scope="module")
def tls_registry(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """Passwords, over TLS with a certificate that nobody trusts."""
    with running(Registry(tmp_path_factory.mktemp("tls"), tls=True, passwords=True)) as started:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSL_CERT_FILE", str(started.ca))
            push_base(Client(started.host, credentials=Credentials(USER, PASSWORD)), "base/py")
        yield started


@pytest.fixture(scope="module")
def token_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    server = TokenServer(tmp_path_factory.mktemp("tokens"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def token_registry(tmp_path_factory: pytest.TempPathFactory, token_server: TokenServer) -> Started:
    with running(Registry(tmp_path_factory.mktemp("token-registry"), tokens=token_server)) as started:
        push_base(Client(started.host, credentials=Credentials(USER, PASSWORD)), "base/py")
        yield started


def push_base(client: Client, repository: str, *, tag: str = "1", oci: bool = True, architecture: str = "amd64") -> str:
    """An image of one empty layer, made by hand: nothing here needs an engine. Returns the manifest's digest."""
    layer = b"\0" * 1024
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"WorkingDir": "/app"},
            "rootfs": {"type": "layers", "diff_ids": [sha256(layer)]},
            "history": [{"created_by": "by hand"}],
        }
    ).encode()
    for data in (layer, config):
        client.upload_blob(repository, Blob(sha256(data), len(data), lambda data=data: iter((data,))))  # type: ignore[misc]  # mypy cannot infer the default of a lambda
    kind = "vnd.oci.image" if oci else "vnd.docker.container.image"
    layer_type = "application/vnd.oci.image.layer.v1.tar" if oci else "application/vnd.docker.image.rootfs.diff.tar"
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST if oci else DOCKER_MANIFEST,
        "config": {
            "mediaType": f"application/{kind}.{'config.v1' if oci else 'v1'}+json",
            "size": len(config),
            "digest": sha256(config),
        },
        "layers": [{"mediaType": layer_type, "size": len(layer), "digest": sha256(layer)}],
    }
    content = json.dumps(manifest).encode()
    name = ImageName(client.host, repository, tag)
    client.put_manifest(name, Manifest(str(manifest["mediaType"]), sha256(content), content))
    client.close()
    return sha256(content)


def log_in(home: Path, **config: Any) -> None:
    folder = home / "docker-config"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def auths(registry: Registry, user: str = USER, password: str = PASSWORD) -> dict[str, object]:
    return {registry.host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}


def oci(host: str, source: Path, repo: str = "me/jobs") -> tuple[str, dict[str, str]]:
    return build(source, image=f"{host}/base/py:1", repo=f"{host}/{repo}", builder="oci")


# -- logins -------------------------------------------------------------------------------------------


def test_password_and_certificate(
    tls_registry: Registry, home: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login of `docker login` and a certificate of `SSL_CERT_FILE` are used."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_registry.ca))
    log_in(home, auths=auths(tls_registry))
    image, env = oci(tls_registry.host, source)
    client = Client(tls_registry.host, credentials=Credentials(USER, PASSWORD))
    assert f"@{client.manifest_digest(ImageName.parse(image))}" in env["TORCHX_IMAGE_DIGEST"]
    client.close()


def test_certificate_of_docker(tls_registry: Registry, home: Path, source: Path) -> None:
    """The place where Docker looks for a registry's CA is looked into, too."""
    folder = home / ".config/docker/certs.d" / tls_registry.host
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_text(tls_registry.ca.read_text())
    log_in(home, auths=auths(tls_registry))
    oci(tls_registry.host, source, "me/certs")


def test_untrusted_certificate(tls_registry: Registry, home: Path, source: Path) -> None:
    """A certificate that nobody vouches for is refused at once, with where to put its CA; loopback is no excuse."""
    with pytest.raises(BackendError, match="is not trusted: self-signed certificate") as caught:
        oci(tls_registry.host, source)
    assert f"certs.d/{tls_registry.host}/ca.crt" in caught.value.hint


@pytest.mark.parametrize(
    ("login", "hint"), [(None, "log in: `docker login"), ("wrong", f"`{USER}` may not do this")], ids=["none", "wrong"]
)
def test_refused_login(
    login: str | None, hint: str, tls_registry: Registry, home: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registry, image and action are named, with what to do; it is not tried again, and no password is shown."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_registry.ca))
    if login:
        log_in(home, auths=auths(tls_registry, password=login))
    with pytest.raises(BackendError) as caught:
        oci(tls_registry.host, source)
    text = str(caught.value)
    assert f"registry `{tls_registry.host}` refuses to " in text and "/base/py:1` (401)" in text
    assert hint in caught.value.hint and f"docker login {tls_registry.host}" in caught.value.hint
    assert "wrong" not in text + caught.value.hint


def test_credential_helper(tls_registry: Registry, home: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper program is asked for the host, and what it says is used; another host's helper is not."""
    helper = home / "bin" / "docker-credential-torchxtest"
    helper.parent.mkdir()
    secret = json.dumps({"ServerURL": "x", "Username": USER, "Secret": PASSWORD})
    helper.write_text(f'#!/bin/sh\n[ "$1" = get ] && [ "$(cat)" = {tls_registry.host} ] && echo \'{secret}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{helper.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_registry.ca))
    log_in(home, credsStore="nonexistent", credHelpers={tls_registry.host: "torchxtest", "other": "nonexistent"})
    oci(tls_registry.host, source, "me/helper")


def test_token(token_registry: Registry, token_server: TokenServer, home: Path, source: Path) -> None:
    """Tokens are asked for by scope, a mount by both repositories at once, and used as long as they hold."""
    log_in(home, auths=auths(token_registry))
    token_server.asked.clear()
    oci(token_registry.host, source, "me/token")
    assert (USER, ["repository:base/py:pull"]) in token_server.asked
    assert (USER, ["repository:me/token:pull,push"]) in token_server.asked
    assert (USER, ["repository:me/token:pull,push", "repository:base/py:pull"]) in token_server.asked
    assert len(token_server.asked) == 3


def test_identity_token(token_registry: Registry, token_server: TokenServer, home: Path, source: Path) -> None:
    """An identity token, which single sign-on leaves in the login file, is exchanged for tokens."""
    log_in(home, auths={token_registry.host: {"auth": "", "identitytoken": "refresh-me"}})
    token_server.asked.clear()
    oci(token_registry.host, source, "me/identity")
    assert {user for user, _ in token_server.asked} == {USER}


def test_token_without_the_right_to_push(token_registry: Registry, home: Path, source: Path) -> None:
    """Somebody who is not logged in may read the base image, and is told what he may not do."""
    with pytest.raises(
        BackendError, match=r"refuses to push to `me/denied` \(401\): authentication required"
    ) as caught:
        oci(token_registry.host, source, "me/denied")
    assert caught.value.hint == f"log in: `docker login {token_registry.host}`"


# -- formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("oci_format", [True, False], ids=["oci", "docker"])
def test_image_for_several_platforms(oci_format: bool, open_registry: Registry, home: Path, source: Path) -> None:
    """Of an index the asked-for platform is taken, by default linux/amd64; the image keeps the base's format."""
    client = Client(open_registry.host)
    repository = f"multi/{'oci' if oci_format else 'docker'}"
    entries = []
    for architecture, variant in (("arm64", "v8"), ("amd64", "")):
        digest = push_base(client, repository, tag=architecture, oci=oci_format, architecture=architecture)
        platform = {"os": "linux", "architecture": architecture, **({"variant": variant} if variant else {})}
        size = len(client.manifest(ImageName(client.host, repository, digest=digest)).content)
        kind = OCI_MANIFEST if oci_format else DOCKER_MANIFEST
        entries.append({"mediaType": kind, "digest": digest, "size": size, "platform": platform})
    attestation = {**entries[0], "platform": {"os": "unknown", "architecture": "unknown"}}
    kind = OCI_INDEX if oci_format else DOCKER_INDEX
    index = {"schemaVersion": 2, "mediaType": kind, "manifests": [attestation, *entries]}
    content = json.dumps(index).encode()
    client.put_manifest(ImageName(client.host, repository, "all"), Manifest(kind, sha256(content), content))
    for asked, architecture in (("", "amd64"), ("linux/arm64", "arm64")):
        base = f"{client.host}/{repository}:all"
        name, _ = build(source, image=base, repo=f"{client.host}/me/multi", builder="oci", platform=asked)
        manifest = client.manifest(ImageName.parse(name))
        assert manifest.media_type == (OCI_MANIFEST if oci_format else DOCKER_MANIFEST)
        config = json.loads(client.blob("me/multi", json.loads(manifest.content)["config"]["digest"]))
        assert config["architecture"] == architecture
        assert len(config["rootfs"]["diff_ids"]) == len(config["history"]) == 2
    with pytest.raises(
        NotSupportedError, match="not available for `linux/s390x`, only for `linux/arm64/v8`, `linux/amd64`"
    ):
        build(source, image=base, repo=f"{client.host}/me/multi", builder="oci", platform="linux/s390x")
    client.close()


# -- bad days -----------------------------------------------------------------------------------------

PASSING = {
    "too many requests": Fault("POST .*uploads", times=2, status=429, headers={"Retry-After": "1"}),
    "too many requests, no time": Fault("HEAD .*/manifests/", status=429),
    "internal error": Fault("PUT .*uploads", times=2, status=500),
    "bad gateway on the manifest": Fault("PUT .*/manifests/", times=2, status=502),
    "cut in the middle of an upload": Fault("PUT .*uploads", times=2, cut_after=100_000),
    "cut before the body": Fault("PUT .*uploads", times=1, cut_after=0),
    "answer of the upload is lost": Fault("PUT .*uploads", times=1, swallow_answer=True),
    "answer of the manifest is lost": Fault("PUT .*/manifests/", times=1, swallow_answer=True),
    "answer of the upload's begin is lost": Fault("POST .*uploads", times=1, swallow_answer=True),
    "slow": Fault("PUT .*", times=1, delay_s=2),
    "the upload is forgotten": Fault("PUT .*uploads", times=1, status=404, body=b"{}"),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
def test_what_passes_is_overcome(fault: Fault, open_registry: Registry, home: Path, source: Path) -> None:
    """A trouble that passes does not keep an image from its registry: it is there, whole."""
    (source / "random.bin").write_bytes(os.urandom(400_000))
    with FaultyRegistry(open_registry.host, [fault]) as proxy:
        image, env = oci(proxy.host, source, "me/passing")
    assert fault.times == 0, "the fault happened"
    client = Client(open_registry.host)
    name = ImageName.parse(image.replace(proxy.host, open_registry.host))
    manifest = client.manifest(name)
    assert env["TORCHX_IMAGE_DIGEST"].endswith(manifest.digest)
    for layer in json.loads(manifest.content)["layers"]:
        data = client.blob(name.repository, layer["digest"])
        assert len(data) == layer["size"]
    client.close()


LASTING = {
    "500": (Fault("PUT .*uploads", times=99, status=500), "it answered 500, `slow down \\(TOOMANYREQUESTS\\)`"),
    "429": (Fault("POST .*uploads", times=99, status=429, headers={"Retry-After": "0"}), "it answered 429"),
    "cut": (Fault("PUT .*uploads", times=99, cut_after=50_000), "it cut the connection"),
}


@pytest.mark.parametrize(("fault", "reason"), LASTING.values(), ids=LASTING.keys())
def test_what_lasts_is_refused(
    fault: Fault, reason: str, open_registry: Registry, home: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a handful of attempts one line says which registry did what, and the tag was never to be seen."""
    monkeypatch.setattr("torchx.workspace.images.registry_http._FIRST_WAIT_S", 0.01)
    (source / "random.bin").write_bytes(os.urandom(400_000))
    repo = f"me/lasting-{len(reason)}"
    with FaultyRegistry(open_registry.host, [fault]) as proxy:
        with pytest.raises(TransientError, match=f"registry `{proxy.host}` .*{reason}.*6 attempts"):
            oci(proxy.host, source, repo)
        assert fault.times < 99
    assert open_registry.tags(repo) == []


REFUSALS = {
    "not allowed": (403, b'{"errors":[{"code":"DENIED","message":"not yours"}]}', r"\(403\): not yours \(DENIED\)"),
    "page of a proxy": (403, b"<html>corporate proxy</html>", r"(?m:\(403\)$)"),
    "quota": (413, b'{"errors":[{"code":"SIZE_INVALID","message":"too big"}]}', "answered 413: too big"),
}


@pytest.mark.parametrize(("status", "body", "said"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals_are_not_retried(
    status: int, body: bytes, said: str, open_registry: Registry, home: Path, source: Path
) -> None:
    """What will not change is not tried again; the registry's own words are in the message."""
    with FaultyRegistry(open_registry.host, [Fault("POST .*uploads", times=99, status=status, body=body)]) as proxy:
        with pytest.raises(BackendError, match=f"registry `{proxy.host}` .*push to `me/refused`.*{said}") as caught:
            oci(proxy.host, source, "me/refused")
        posts = [request for request in proxy.seen if request.startswith("POST")]
    assert not isinstance(caught.value, TransientError)
    assert len(posts) <= 3, "one for each blob"
    assert open_registry.tags("me/refused") == []


def test_a_long_pause_is_not_waited_for(open_registry: Registry, home: Path, source: Path) -> None:
    """A registry that asks to come back in an hour is reported, not waited for."""
    fault = Fault("HEAD .*", times=99, status=429, headers={"Retry-After": "3600"})
    proxy = FaultyRegistry(open_registry.host, [fault])
    with proxy, pytest.raises(TransientError, match="it answered 429"):
        oci(proxy.host, source)
    assert fault.times == 98


def test_a_wrong_blob_is_not_taken(open_registry: Registry, home: Path) -> None:
    """The registry's check of digests is passed on; what is read is checked here."""
    client = Client(open_registry.host, sleep=lambda _: None)
    with pytest.raises(BackendError, match="answered 400: provided digest did not match"):
        client.upload_blob("me/wrong", Blob(sha256(b"a"), 1, lambda: iter((b"b",))))
    client.close()


# -- workspaces that are hard to pack -----------------------------------------------------------------


def test_a_file_that_changes_meanwhile(open_registry: Registry, home: Path, source: Path) -> None:
    """What is pushed is what was named in the dry run, or nothing."""
    (source / "random.bin").write_bytes(os.urandom(400_000))  # is read again for the push
    builder = ImageBuilder()
    host = open_registry.host
    plan = builder.plan(Workspace({str(source): ""}), base=f"{host}/base/py:1", repository=f"{host}/me/changing")
    (source / "random.bin").write_bytes(os.urandom(400_000))
    with pytest.raises(SpecError, match=r"`random\.bin` was changed while the image was made"):
        builder.push(plan)
    builder.close()
    assert open_registry.tags("me/changing") == []


def test_a_log_that_grows_meanwhile(open_registry: Registry, home: Path, source: Path) -> None:
    """A file that another job writes to does not keep this one from being launched."""
    (source / "log.bin").write_bytes(os.urandom(400_000))
    builder = ImageBuilder()
    host = open_registry.host
    plan = builder.plan(Workspace({str(source): ""}), base=f"{host}/base/py:1", repository=f"{host}/me/growing")
    with (source / "log.bin").open("ab") as log:
        log.write(b"one more line")
    builder.push(plan)
    builder.close()
    assert open_registry.tags("me/growing") == [plan.name.tag]


@pytest.mark.parametrize("name", [".wh.train.py", ".wh..wh..opq", "pkg/.wh.x"])
def test_names_that_would_remove_files(name: str, open_registry: Registry, home: Path, source: Path) -> None:
    """A name that means `remove` in a layer is refused: it would take files of the base image away."""
    (source / name).write_text("x")
    with pytest.raises(SpecError, match="cannot be in an image"):
        oci(open_registry.host, source)


def test_dockerfile_needs_an_engine(open_registry: Registry, home: Path, source: Path) -> None:
    """A Dockerfile.torchx is not silently left out."""
    (source / "Dockerfile.torchx").write_text("ARG IMAGE\nFROM $IMAGE\nRUN pip install x\n")
    with pytest.raises(NotSupportedError, match=r"the `Dockerfile\.torchx` of workspace .* needs a Docker engine"):
        oci(open_registry.host, source)


def test_no_engine_and_no_registry(home: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` without an engine and without `image_repo` says what is missing, in one line."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home}/nobody.sock")
    with pytest.raises(TorchXError, match=r"no Docker engine answers: .*, and an image built without") as caught:
        build(source, image="a", repo="", builder="auto")
    assert re.search(r"image_repo=.*or start a Docker engine", caught.value.hint)


def test_auto_without_an_engine(
    open_registry: Registry, home: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` without an engine goes straight to the registry."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home}/nobody.sock")
    host = open_registry.host
    image, _ = build(source, image=f"{host}/base/py:1", repo=f"{host}/me/auto", builder="auto")
    assert open_registry.tags("me/auto") == [image.rpartition(":")[2]]


_HUGE = """
import resource, sys
from torchx.specs.api import Workspace
from torchx.workspace.oci import ImageBuilder
builder = ImageBuilder()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
plan = builder.plan(Workspace({sys.argv[1]: ""}), base=sys.argv[2] + "/base/py:1", repository=sys.argv[2] + "/me/huge")
builder.push(plan)
builder.close()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_huge_files(open_registry: Registry, home: Path, source: Path) -> None:
    """Files of hundreds of megabytes, compressible or not, go through in a few megabytes of memory."""
    block = os.urandom(1 << 20)
    with (source / "random.bin").open("wb") as f:
        for number in range(300):
            f.write(block[number:] + block[:number])
    with (source / "zeros.bin").open("wb") as f:
        f.truncate(400 << 20)
    argv = [sys.executable, "-c", _HUGE, str(source), open_registry.host]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100, "megabytes"
    assert open_registry.blob_bytes() > 300 << 20
