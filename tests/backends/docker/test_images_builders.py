"""Both image builders on a real engine and a real registry: what is in the workspace is in the image, and is new each time."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from tests.backends.docker.faults import FaultyRegistry
from tests.backends.docker.image_stage import (
    HOSTILE,
    build,
    docker,
    files_in,
    forget_locally,
    home,
    manifest_of,
    push_base,
    registry,
    source,
)
from tests.backends.docker.registry import Registry, running
from torchx.errors import BackendError

__all__ = ["home", "registry", "source"]

both = pytest.mark.parametrize("builder", ["docker", "oci"])


@pytest.fixture
def base(registry: Registry, home: Path) -> str:
    return f"{registry.host}/base/py:1"


def run(image: str, command: str) -> str:
    return docker("run", "--rm", "--pull", "always", image, "sh", "-c", command)


@both
def test_a_changed_file_is_in_the_next_image(builder: str, registry: Registry, base: str, source: Path) -> None:
    """Changed, added, removed, replaced by something else: the next run sees it, with no command in between."""
    repo = f"{registry.host}/changed/{builder}"
    first, _ = build(source, image=base, repo=repo, builder=builder)
    assert run(first, "python3 train.py; ./run.sh") == "first\nran"
    (source / "train.py").write_text("print('second')\n")
    (source / "new.py").write_text("new\n")
    (source / "secret").unlink()
    (source / "link").unlink()
    (source / "link").write_text("a file now\n")
    shutil.rmtree(source / "pkg")
    (source / "pkg").symlink_to("train.py")
    second, _ = build(source, image=base, repo=repo, builder=builder)
    assert second != first
    seen = run(second, "python3 train.py; cat new.py link; readlink pkg; ls -A | sort | tr '\\n' ' '")
    assert seen.split("\n") == ["second", "new", "a file now", "train.py", "empty link new.py pkg run.sh train.py"]
    assert run(first, "python3 train.py") == "first", "an image once pushed stays what it is"


def test_both_builders_make_the_same(registry: Registry, base: str, source: Path) -> None:
    """Content, modes, owners, links and directories are the same, for any name that a file can have."""
    for number, name in enumerate(HOSTILE):
        (source / name).write_text(f"{number}")
        if len(name) < 200:
            (source / "pkg" / f"{name}.d").mkdir()
            (source / "pkg" / f"{name}.d" / name).symlink_to(name)
    (source / "big.bin").write_bytes(os.urandom(3 << 20))
    (source / "pkg" / "sticky").mkdir()
    (source / "pkg" / "sticky").chmod(0o775)
    images = {b: build(source, image=base, repo=f"{registry.host}/same/{b}", builder=b)[0] for b in ("docker", "oci")}
    by_engine, by_us = (files_in(images[b]) for b in ("docker", "oci"))
    assert len(by_us) > 3 * len(HOSTILE)
    assert by_us == by_engine
    assert by_us[b"secret"] == ("f", "0o600", 0, 0, hashlib.sha256(b"s").digest())


def test_the_same_content_has_the_same_digest(registry: Registry, base: str, source: Path, tmp_path: Path) -> None:
    """On another machine (no cache, other times, another path) a copied tree gives the same tag and digest."""
    copied = tmp_path / "elsewhere" / "copy"
    shutil.copytree(source, copied, symlinks=True, copy_function=shutil.copy)
    for path in copied.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
    results = []
    for number, folder in enumerate((source, copied)):
        os.environ["TORCHX_HOME"] = str(tmp_path / f"home{number}")
        # Different repositories: nothing of the first push helps the second.
        image, env = build(folder, image=base, repo=f"{registry.host}/stable/{number}", builder="oci")
        results.append((image.rpartition(":")[2], env["TORCHX_IMAGE_DIGEST"].rpartition("@")[2]))
    assert results[0] == results[1]


def test_unchanged_is_not_sent_again(registry: Registry, base: str, source: Path) -> None:
    """A build of what is in the registry already asks twice and sends nothing, though this process knows of nothing."""
    with FaultyRegistry(registry.host) as proxy:
        image, repo = base.replace(registry.host, proxy.host), f"{proxy.host}/unchanged"
        build(source, image=image, repo=repo, builder="oci")
        proxy.seen.clear()
        build(source, image=image, repo=repo, builder="oci")
        assert [request.split()[0] for request in proxy.seen] == ["HEAD", "HEAD"], "the base image and the tag"


def test_one_changed_file_sends_one_small_layer(registry: Registry, base: str, source: Path) -> None:
    """The layer with what did not change is used again; the new one holds the changed file alone."""
    for number in range(40):
        (source / f"data{number}.bin").write_bytes(os.urandom(500_000))
    with FaultyRegistry(registry.host) as proxy:
        through, repo = base.replace(registry.host, proxy.host), f"{proxy.host}/delta"
        build(source, image=through, repo=repo, builder="oci")
        before = registry.blob_bytes()
        proxy.seen.clear()
        (source / "data7.bin").write_bytes(b"small now")
        pushed, env = build(source, image=through, repo=repo, builder="oci")
        assert registry.blob_bytes() - before < 5_000
        sent = [r for r in proxy.seen if r.startswith("PUT") and "/blobs/" in r]
        assert len(sent) == 2, "a layer and the configuration"
        image = pushed.replace(proxy.host, registry.host)
    env["TORCHX_IMAGE_DIGEST"] = env["TORCHX_IMAGE_DIGEST"].replace(proxy.host, registry.host)
    layers = manifest_of(registry, env["TORCHX_IMAGE_DIGEST"])["layers"]
    assert layers[-1]["size"] < 1_000
    assert run(image, "cat data7.bin; ls | wc -l").split() == ["small", "now46"]


def test_many_edits_do_not_make_many_layers(registry: Registry, base: str, source: Path) -> None:
    """After more edits than an image may have layers the image has what the workspace has, in a number of layers that any engine takes."""
    repo = f"{registry.host}/edits"
    for number in range(32):
        (source / f"file{number}").write_text(f"{number}")
        if number % 7 == 6:
            (source / f"file{number - 3}").unlink()
        image, env = build(source, image=base, repo=repo, builder="oci")
    assert len(manifest_of(registry, env["TORCHX_IMAGE_DIGEST"])["layers"]) <= 2 + 24
    assert files_in(image) == files_in(build(source, image=base, repo=f"{repo}/fresh", builder="docker")[0])


def test_a_registry_that_lost_the_layers_gets_them_again(registry: Registry, base: str, source: Path) -> None:
    """What the registry has is asked, not believed: after a clean-up everything is sent again."""
    repo = f"{registry.host}/lost"
    image, env = build(source, image=base, repo=repo, builder="oci")
    for layer in manifest_of(registry, env["TORCHX_IMAGE_DIGEST"])["layers"][2:]:
        registry.forget(layer["digest"])
    (source / "train.py").write_text("print('again')\n")
    image, _ = build(source, image=base, repo=repo, builder="oci")
    assert run(image, "python3 train.py; ./run.sh") == "again\nran"


def test_base_in_another_registry(registry: Registry, base: str, source: Path, tmp_path: Path) -> None:
    """A base image of another registry is copied: layers that cannot be mounted are carried over, in bounded memory."""
    with running(Registry(tmp_path / "other")) as other:
        image, _ = build(source, image=base, repo=f"{other.host}/me/jobs", builder="oci")
        assert run(image, "python3 train.py") == "first"
        forget_locally(other.host)


def test_several_projects(registry: Registry, base: str, source: Path, tmp_path: Path) -> None:
    """Each project goes to its place; of two files at one place the later project's wins."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "b.py").write_text("b = 2\n")
    (tmp_path / "lib" / "train.py").write_text("print('lib')\n")
    projects = {str(source): "", str(tmp_path / "lib"): "vendor/lib", f"file://{tmp_path}/lib/": ""}
    images = [
        build(projects, image=base, repo=f"{registry.host}/projects/{b}", builder=b)[0] for b in ("docker", "oci")
    ]
    assert files_in(images[0]) == files_in(images[1])
    assert run(images[1], "python3 train.py; cat vendor/lib/b.py") == "lib\nb = 2"


def test_working_directory_of_somebody_else(registry: Registry, docker_image: str, home: Path, source: Path) -> None:
    """The directories above the workspace keep their owner and mode; the job's user can still write there."""
    made = "RUN mkdir -p /home/u/app && chown -R 1000:1000 /home/u && chmod 710 /home/u && chmod 2750 /home/u/app\n"
    base = push_base(registry, f"FROM {docker_image}\n{made}USER 1000:1000\nWORKDIR /home/u/app\n", "base/user:1")
    image, _ = build(source, image=base, repo=f"{registry.host}/user", builder="oci")
    seen = run(image, "stat -c '%a %u:%g' /home/u /home/u/app train.py; touch /home/u/app/mine && id -u")
    assert seen.split("\n") == ["710 1000:1000", "2750 1000:1000", "644 0:0", "1000"]


def test_working_directory_behind_a_link(registry: Registry, docker_image: str, home: Path, source: Path) -> None:
    """A link on the way to the working directory stays a link."""
    made = "RUN mkdir -p /srv/real/app && ln -s /srv/real /code\n"
    base = push_base(registry, f"FROM {docker_image}\n{made}WORKDIR /code/app\n", "base/link:1")
    image, _ = build(source, image=base, repo=f"{registry.host}/link", builder="oci")
    assert run(image, "readlink /code; cat /srv/real/app/train.py; pwd -P; python3 train.py").split("\n") == [
        "/srv/real",
        "print('first')",
        "/srv/real/app",
        "first",
    ]


def test_image_without_working_directory(registry: Registry, docker_image: str, home: Path, source: Path) -> None:
    """The workspace goes to `/`, as `COPY . .` has it, and spoils nothing there."""
    base = push_base(registry, f"FROM {docker_image}\nENV A=1\nLABEL mine=yes\n", "base/root:1")
    image, env = build(source, image=base, repo=f"{registry.host}/root", builder="oci")
    assert run(image, "python3 /train.py; /run.sh; pwd; stat -c %a /tmp; echo $A") == "first\nran\n/\n1777\n1"
    labels = docker("inspect", "-f", "{{.Config.Labels}} {{len .RootFS.Layers}}", image)
    assert "mine:yes" in labels and "torchx.pytorch.org/version:" in labels and labels.endswith(" 2")
    assert len(docker("history", "-q", image).split()) == 4
    assert docker("inspect", "-f", "{{.RepoDigests}}", image) == f"[{env['TORCHX_IMAGE_DIGEST']}]"


def test_workspace_from_memory(registry: Registry, base: str) -> None:
    """Sources that are on no disk go through both builders."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/images_ws/train.py": b"print('from memory')\n", "/images_ws/sub/x": b"x"})
    try:
        for builder in ("docker", "oci"):
            image, _ = build("memory://images_ws", image=base, repo=f"{registry.host}/mem/{builder}", builder=builder)
            assert run(image, "python3 train.py; cat sub/x") == "from memory\nx"
    finally:
        memory.rm("/images_ws", recursive=True)


def test_base_image_that_is_not_there(registry: Registry, home: Path, source: Path) -> None:
    """One line says which image is not where."""
    with pytest.raises(LookupError, match=f"registry `{registry.host}` has no image `{registry.host}/no/such:1`") as e:
        build(source, image=f"{registry.host}/no/such:1", repo=f"{registry.host}/x", builder="oci")
    assert "builder=docker" in e.value.hint  # type: ignore[attr-defined]  # it is one of ours


def test_registry_that_is_not_there(home: Path, source: Path) -> None:
    """A port where nobody listens is given up on soon, with the registry's name."""
    with pytest.raises(BackendError, match=r"registry `127\.0\.0\.1:9` could not be used: nothing listens there"):
        build(source, image="127.0.0.1:9/a:1", repo="127.0.0.1:9/x", builder="oci")
