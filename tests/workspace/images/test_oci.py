"""Images without an engine: plans, uploads and their order, with a registry in memory."""

from __future__ import annotations

import functools
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, NotFoundError, NotSupportedError, ParseError, SpecError
from torchx.specs.api import Workspace
from torchx.workspace.images.names import ImageName
from torchx.workspace.images.registry import DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Blob, Manifest, _digest_of
from torchx.workspace.oci import ImageBuilder, Plan


class MemoryRegistry:
    """The methods of a registry's client, with dictionaries."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.blobs: dict[str, dict[str, bytes]] = {}
        self.manifests: dict[tuple[str, str], Manifest] = {}
        self.calls: list[str] = []

    def manifest(self, image: ImageName) -> Manifest:
        self.calls.append("GET manifest")
        found = self.manifests.get((image.repository, image.reference))
        if found is None:
            raise NotFoundError(f"no {image}")
        return found

    def manifest_digest(self, image: ImageName, *, action: str = "pull") -> str:
        self.calls.append("HEAD manifest")
        found = self.manifests.get((image.repository, image.reference))
        return found.digest if found else ""

    def put_manifest(self, image: ImageName, manifest: Manifest) -> None:
        self.calls.append("PUT manifest")
        document = json.loads(manifest.content)
        for one in [*document.get("layers", []), *([document["config"]] if "config" in document else [])]:
            data = self.blobs[image.repository][one["digest"]]
            assert (len(data), _digest_of(data)) == (one["size"], one["digest"])
        self.manifests[image.repository, image.tag] = self.manifests[image.repository, manifest.digest] = manifest

    def has_blob(self, repository: str, digest: str, *, action: str = "") -> bool:
        self.calls.append("HEAD blob")
        return digest in self.blobs.get(repository, {})

    def mount_blob(self, repository: str, digest: str, *, source: str) -> bool:
        self.calls.append("mount")
        found = self.blobs.get(source, {}).get(digest)
        if found is not None:
            self.blobs.setdefault(repository, {})[digest] = found
        return found is not None

    def upload_blob(self, repository: str, blob: Blob) -> None:
        self.calls.append("upload")
        self.blobs.setdefault(repository, {})[blob.digest] = b"".join(blob.chunks())

    def read_blob(self, repository: str, digest: str) -> Iterator[bytes]:
        yield self.blobs[repository][digest]

    def blob(self, repository: str, digest: str) -> bytes:
        return self.blobs[repository][digest]

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def add_image(self, name: str, *, docker: bool = False, layers: list[bytes] | None = None, **config: Any) -> str:
        """Stores an image; returns its digest."""
        image = ImageName.parse(f"{self.host}/{name}")
        layers = layers if layers is not None else [archive({"etc": ("dir", 0o755, 0)})]
        document = {"os": "linux", "architecture": "amd64", "config": {}, **config}
        document.setdefault("rootfs", {"type": "layers", "diff_ids": [_digest_of(layer) for layer in layers]})
        data = json.dumps(document).encode()
        for blob in (*layers, data):
            self.upload_blob(image.repository, Blob(_digest_of(blob), len(blob), lambda blob=blob: iter((blob,))))  # type: ignore[misc]  # mypy cannot infer the default of a lambda
        kind = DOCKER_MANIFEST if docker else OCI_MANIFEST
        manifest = {
            "schemaVersion": 2,
            "mediaType": kind,
            "config": {"mediaType": "x.docker.x" if docker else "x", "size": len(data), "digest": _digest_of(data)},
            "layers": [{"mediaType": "t", "size": len(b), "digest": _digest_of(b)} for b in layers],
        }
        return self.add_document(name, manifest, kind)

    def add_document(self, name: str, document: object, kind: str) -> str:
        image = ImageName.parse(f"{self.host}/{name}")
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        manifest = Manifest(kind, _digest_of(content), content)
        self.manifests[image.repository, image.tag] = self.manifests[image.repository, manifest.digest] = manifest
        self.calls.clear()
        return manifest.digest


def archive(entries: dict[str, tuple[str, int, int]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path, (kind, mode, uid) in entries.items():
            info = tarfile.TarInfo(path)
            info.mode, info.uid, info.gid = mode, uid, uid
            info.type = tarfile.DIRTYPE if kind == "dir" else tarfile.SYMTYPE
            info.linkname = "" if kind == "dir" else kind
            tar.addfile(info)
    return out.getvalue()


@pytest.fixture
def registries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryRegistry]:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    return {host: MemoryRegistry(host) for host in ("r.io", "other.io")}


@pytest.fixture
def r(registries: dict[str, MemoryRegistry]) -> MemoryRegistry:
    return registries["r.io"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "lib").mkdir(parents=True)
    (root / "train.py").write_text("1")
    (root / "lib" / "a.py").write_text("a")
    return root


def plan(
    registries: dict[str, MemoryRegistry],
    source: Path,
    base: str = "r.io/base",
    repo: str = "r.io/jobs",
    **options: str,
) -> tuple[ImageBuilder, Plan]:
    builder = ImageBuilder(registries.__getitem__)  # type: ignore[arg-type]  # it has the same calls
    return builder, builder.plan(Workspace({str(source): ""}), base=base, repository=repo, **options)


def pushed(registries: dict[str, MemoryRegistry], source: Path, **options: str) -> tuple[Plan, dict[str, Any]]:
    """Pushes; returns the plan and the image's configuration."""
    builder, made = plan(registries, source, **options)
    builder.push(made)
    registry = registries[made.name.registry]
    manifest = json.loads(registry.manifests[made.name.repository, made.name.tag].content)
    return made, json.loads(registry.blobs[made.name.repository][manifest["config"]["digest"]])


def test_plan_sends_nothing(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """A dry run only reads: the base, and whether the result exists. It still determines the digest."""
    r.add_image("base")
    _, made = plan(registries, source)
    assert set(r.calls) == {"HEAD manifest", "GET manifest"}
    assert made.reference == f"r.io/jobs@{made.digest}"
    assert made.name.tag != made.digest and len(made.name.tag) == 64


@pytest.mark.parametrize("docker", [False, True], ids=["oci", "docker"])
def test_push(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path, docker: bool) -> None:
    """The base's layers are mounted, the new one is sent, the manifest comes last; the configuration lists all layers."""
    digest = r.add_image("base", docker=docker, history=[{"created_by": "x"}], created="2020-01-01T00:00:00Z")
    made, config = pushed(registries, source)
    assert r.calls.count("mount") == 1 and r.calls.count("upload") == 2 and r.calls[-1] == "PUT manifest"
    assert len(config["rootfs"]["diff_ids"]) == len(config["history"]) == 2
    assert config["config"]["Labels"]["org.opencontainers.image.base.digest"] == digest
    assert config["history"][1]["created"] == "2020-01-01T00:00:00Z"
    manifest = r.manifests["jobs", made.name.tag]
    assert manifest.media_type == (DOCKER_MANIFEST if docker else OCI_MANIFEST)
    kind = (
        "application/vnd.docker.image.rootfs.diff.tar.gzip" if docker else "application/vnd.oci.image.layer.v1.tar+gzip"
    )
    assert json.loads(manifest.content)["layers"][-1]["mediaType"] == kind


def test_pushed_twice(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """The second time the tag exists, and nothing is sent."""
    r.add_image("base")
    first, _ = pushed(registries, source)
    r.calls.clear()
    builder, second = plan(registries, source)
    builder.push(second)
    assert r.calls == ["HEAD manifest", "HEAD manifest"]
    assert (second.reference, second.workspace_hash) == (first.reference, first.workspace_hash)


def test_change(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """A changed file gives another tag and one more layer; with an empty cache there is one full layer."""
    r.add_image("base")
    first, _ = pushed(registries, source)
    (source / "lib" / "b.py").write_text("b")
    second, config = pushed(registries, source)
    assert second.name.tag != first.name.tag
    assert [sorted(layer.contents) for layer in second.layers] == [["lib", "lib/a.py", "train.py"], ["lib", "lib/b.py"]]
    assert len(config["rootfs"]["diff_ids"]) == 3


def test_lost_layer(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """A layer that the registry no longer has is built again."""
    r.add_image("base")
    first, _ = pushed(registries, source)
    del r.blobs["jobs"][first.layers[0].digest]
    (source / "new").write_text("")
    second, _ = pushed(registries, source)
    assert len(second.layers) == 1 and set(second.layers[0].contents) == {"lib", "lib/a.py", "new", "train.py"}


def test_base_in_another_registry(registries: dict[str, MemoryRegistry], source: Path) -> None:
    """The layers of a base image in another registry are copied, once."""
    registries["other.io"].add_image("base")
    pushed(registries, source, base="other.io/base")
    assert registries["r.io"].calls.count("upload") == 3 and "mount" not in registries["r.io"].calls


def test_mount_that_the_registry_does_not_do(
    registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the registry does not mount a layer, it is copied."""
    r.add_image("base")
    monkeypatch.setattr(r, "mount_blob", lambda repository, digest, source: False)
    pushed(registries, source)
    assert r.calls.count("upload") == 3


def test_no_manifest_after_a_failure(
    registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a layer is rejected, the tag does not appear."""
    r.add_image("base")
    builder, made = plan(registries, source)

    def refuse(repository: str, blob: Blob) -> None:
        raise BackendError("disk full")

    monkeypatch.setattr(r, "upload_blob", refuse)
    with pytest.raises(BackendError, match="disk full"):
        builder.push(made)
    assert "PUT manifest" not in r.calls and ("jobs", made.name.tag) not in r.manifests


def test_platform(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """The requested platform is used, else linux/amd64; an error lists the available ones."""
    entries = []
    for architecture in ("arm64", "amd64"):
        digest = r.add_image(f"base:{architecture}", architecture=architecture)
        entries.append({"digest": digest, "platform": {"os": "linux", "architecture": architecture}})
    r.add_document("base:latest", {"manifests": entries}, OCI_INDEX)
    assert pushed(registries, source)[1]["architecture"] == "amd64"
    assert pushed(registries, source, platform="linux/arm64")[1]["architecture"] == "arm64"
    with pytest.raises(
        NotSupportedError, match="not available for `linux/riscv64`, only for `linux/arm64`, `linux/amd64`"
    ):
        plan(registries, source, platform="linux/riscv64")
    with pytest.raises(NotSupportedError, match="is for `linux/amd64`, not for `linux/arm64`"):
        plan(registries, source, base="r.io/base:amd64", platform="linux/arm64")


def test_directories_above(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """Owners and modes of the directories above come from the image; links in the path are followed."""
    layers = [
        archive({"./home/u/": ("dir", 0o700, 7), "code": ("/home/u", 0, 0)}),
        archive({"home/u/app": ("dir", 0o750, 8), "home": ("dir", 0o711, 0)}),
    ]
    r.add_image("base", layers=layers, config={"WorkingDir": "/code/app/"})
    _, made = plan(registries, source)
    assert made.base.place == "home/u/app"
    assert [(f.path, f.mode, f.uid) for f in made.base.above] == [
        ("home", 0o711, 0),
        ("home/u", 0o700, 7),
        ("home/u/app", 0o750, 8),
    ]


def test_a_damaged_cache(
    registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path, tmp_path: Path
) -> None:
    """A machine that loses its power may leave zeros in files that were just written: the cache is ignored."""
    r.add_image("base", layers=[archive({"app": ("dir", 0o750, 8)})], config={"WorkingDir": "/app"})
    made = []
    for _ in range(2):
        made.append(plan(registries, source)[1])
        for path in (tmp_path / "home" / "cache").rglob("*"):
            if path.is_file():
                path.write_bytes(bytes(path.stat().st_size))
    assert made[0].name == made[1].name
    assert made[0].base.above == made[1].base.above


def test_link_without_end(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """A cycle of links is an error."""
    r.add_image("base", layers=[archive({"a": ("b", 0, 0), "b": ("a", 0, 0)})], config={"WorkingDir": "/a"})
    with pytest.raises(NotSupportedError, match="leads nowhere"):
        plan(registries, source)


def test_base_images_that_cannot_be_built_on(
    registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path
) -> None:
    """Each unsupported image is an error with the reason."""
    r.add_image("onbuild", config={"OnBuild": ["RUN x"]})
    r.add_image("windows", os="windows")
    r.add_document("old", {"schemaVersion": 1, "fsLayers": []}, "application/vnd.docker.distribution.manifest.v1+json")
    r.add_document("garbage", b"<html>", OCI_MANIFEST)
    r.add_document("list", b"[]", OCI_MANIFEST)
    for name, error, words in [
        ("onbuild", NotSupportedError, "ONBUILD"),
        ("windows", NotSupportedError, "not for Linux"),
        ("old", NotSupportedError, "obsolete format"),
        ("garbage", ParseError, "cannot be read"),
        ("list", ParseError, "cannot be read"),
        ("missing", NotFoundError, "missing"),
    ]:
        with pytest.raises(error, match=words):
            plan(registries, source, base=f"r.io/{name}")


@pytest.mark.parametrize(
    "document",
    [
        {"config": {"digest": "sha256:0"}, "layers": None},
        {"config": {"digest": "sha256:0"}, "layers": [None]},
        {"config": None, "layers": []},
        {"manifests": None},
        {"manifests": [None]},
        {"manifests": [{"digest": None, "platform": {"os": "linux", "architecture": "amd64"}}]},
    ],
    ids=str,
)
def test_null_in_a_document(
    document: dict[str, Any], registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path
) -> None:
    """Null instead of a list or an object is an error that names the image."""
    r.add_document("odd", document, OCI_MANIFEST)
    with pytest.raises(ParseError, match=r"the registry's answer for `r\.io/odd:latest` cannot be read"):
        plan(registries, source, base="r.io/odd")


def test_dockerfile(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """A Dockerfile.torchx at the root is an error; elsewhere it is an ordinary file."""
    r.add_image("base")
    (source / "lib" / "Dockerfile.torchx").write_text("FROM x")
    plan(registries, source)
    (source / "Dockerfile.torchx").write_text("FROM x")
    with pytest.raises(NotSupportedError, match="needs a Docker engine"):
        plan(registries, source)


def test_damaged_cache(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path, tmp_path: Path) -> None:
    """Cached documents are checked against their digest."""
    r.add_image("base")
    first, _ = pushed(registries, source)
    for path in (tmp_path / "home" / "cache" / "documents").iterdir():
        path.write_bytes(b"{}")
    (source / "new").write_text("")
    second, _ = pushed(registries, source)
    assert second.base == first.base


@pytest.mark.parametrize("name", ["R.io/Upper", "https://r.io/x", "r.io/x:y:z", "r.io/", "x@sha256:1", "r.io/a:"])
def test_names_that_are_none(name: str, registries: dict[str, MemoryRegistry], source: Path) -> None:
    """Malformed names are errors before any request."""
    with pytest.raises(SpecError, match="is not the name of an image"):
        plan(registries, source, base=name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ubuntu", "docker.io/library/ubuntu:latest"),
        ("me/x:1", "docker.io/me/x:1"),
        ("localhost/x", "localhost/x:latest"),
        ("[::1]:5000/x", "[::1]:5000/x:latest"),
        ("index.docker.io/me/x", "docker.io/me/x:latest"),
        ("gcr.io/a/b/c@sha256:" + "0" * 64, "gcr.io/a/b/c@sha256:" + "0" * 64),
        ("r.io:5000/a__b/c-d.e:V1.2_3", "r.io:5000/a__b/c-d.e:V1.2_3"),
    ],
)
def test_names(name: str, expected: str) -> None:
    """Names are parsed as Docker does."""
    assert str(ImageName.parse(name)) == expected


def test_progress(registries: dict[str, MemoryRegistry], r: MemoryRegistry, source: Path) -> None:
    """The progress includes every byte and every layer."""
    r.add_image("base")
    builder, made = plan(registries, source)
    told: list[tuple[int, bool]] = []
    builder.push(made, functools.partial(lambda *of: told.append(of)))
    assert sum(done for _, done in told) == 3
    assert sum(size for size, _ in told) == sum(blob.size for blob in made.uploads)
