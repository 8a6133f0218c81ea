"""A workspace as an image: the build context, names of pushed images, the engine's answers."""

import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from torchx.errors import BackendError, ConfigError, MissingDependencyError
from torchx.specs import AppDef, Role, Workspace
from torchx.workspace import docker_workspace
from torchx.workspace.docker_workspace import DockerWorkspaceMixin, print_push_events, write_build_context

ID = "sha256:" + "ab" * 32


class FakeApi:
    """The build call of an engine: keeps its request, gives scripted events."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.requests: list[dict[str, Any]] = []
        self.files: list[str] = []

    def build(self, **request: Any) -> Iterator[dict[str, Any]]:
        with tarfile.open(fileobj=request.pop("fileobj")) as tar:
            self.files = tar.getnames()
        self.requests.append(request)
        return iter(self.events)


class FakeClient:
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.api = FakeApi(events)


@pytest.fixture
def source(tmp_path: Any) -> str:
    folder = tmp_path / "src"
    (folder / "lib").mkdir(parents=True)
    (folder / "main.py").write_text("main")
    (folder / "lib" / "a.py").write_text("a")
    (folder / "lib" / "run.sh").write_text("#!/bin/sh")
    (folder / "lib" / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("main.py")
    (folder / "secret.key").write_text("k")
    (folder / ".torchxignore").write_text("*.key\n")
    return str(folder)


def context_of(workspace: str) -> dict[str, tarfile.TarInfo]:
    out = io.BytesIO()
    write_build_context(out, workspace)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        return {m.name: m for m in tar.getmembers()}


def test_build_context(source: str) -> None:
    """The context holds the files less the ignored ones, with modes and links, and a Dockerfile that copies them."""
    members = context_of(source)
    assert list(members) == [".torchxignore", "link", "main.py", "lib/a.py", "lib/run.sh", "Dockerfile.torchx"]
    assert members["lib/run.sh"].mode == 0o755
    assert (members["link"].issym(), members["link"].linkname) == (True, "main.py")
    assert {m.uid for m in members.values()} == {0}


@pytest.mark.parametrize("ignore", ["", "*", "Dockerfile*"], ids=["kept", "all ignored", "ignored"])
def test_own_dockerfile_is_honoured(source: str, ignore: str) -> None:
    """A Dockerfile.torchx of the workspace is used as it is, also when it is ignored."""
    with open(f"{source}/.torchxignore", "w") as f:
        f.write(ignore)
    with open(f"{source}/Dockerfile.torchx", "w") as f:
        f.write("FROM scratch\n")
    members = context_of(source)
    assert members["Dockerfile.torchx"].size == len("FROM scratch\n")
    assert list(members).count("Dockerfile.torchx") == 1


def test_context_is_reproducible(source: str) -> None:
    """The same files give the same bytes."""
    first, second = io.BytesIO(), io.BytesIO()
    write_build_context(first, source)
    write_build_context(second, source)
    assert first.getvalue() == second.getvalue()


def test_context_from_memory() -> None:
    """A workspace that is not on this disk makes a context, too."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/ws_d/a.py": b"abc"})
    try:
        members = context_of("memory://ws_d")
    finally:
        memory.rm("/ws_d", recursive=True)
    assert members["a.py"].size == 3


def test_build(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine is given the context and the build arguments; what it built becomes the role's image."""
    client = FakeClient([{"stream": "Step 1\n"}, {"aux": {"ID": ID}}, {"stream": "done\n"}])
    mixin = DockerWorkspaceMixin(docker_client=client)
    roles = [Role(name=n, image="base:1", entrypoint="x", workspace=Workspace({source: ""})) for n in "ab"]
    mixin.build_workspaces(roles, {})
    assert [r.image for r in roles] == [ID, ID]
    (request,) = client.api.requests
    assert request["buildargs"] == {"IMAGE": "base:1", "WORKSPACE": source}
    assert request["dockerfile"] == "Dockerfile.torchx"
    assert "secret.key" not in client.api.files
    assert capsys.readouterr().err == "Step 1\ndone\n"


def test_quiet_build(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With `quiet` nothing is shown."""
    mixin = DockerWorkspaceMixin(docker_client=FakeClient([{"stream": "Step 1\n"}, {"aux": {"ID": ID}}]))
    mixin.build_workspaces(
        [Role(name="a", image="b", entrypoint="x", workspace=Workspace({source: ""}))], {"quiet": True}
    )
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([{"error": "no space left\n"}], "could not be built: no space left"),
        ([{"stream": "x"}], "did not say which image it built"),
    ],
    ids=["error", "no id"],
)
def test_failed_build(source: str, events: list[dict[str, Any]], message: str) -> None:
    """A failed build is one line with the engine's reason."""
    mixin = DockerWorkspaceMixin(docker_client=FakeClient(events))
    with pytest.raises(BackendError, match=message):
        mixin.build_workspaces([Role(name="a", image="b", entrypoint="x", workspace=Workspace({source: ""}))], {})


def test_push_names() -> None:
    """A built image is pushed under its content hash; images that were not built here stay; roles share one push."""
    app = AppDef("a", roles=[Role(name=n, image=i, entrypoint="x") for n, i in [("a", ID), ("b", ID), ("c", "x:1")]])
    images = DockerWorkspaceMixin().dryrun_push_images(app, {"image_repo": "reg/me"})
    assert images == {ID: ("reg/me", "ab" * 32)}
    assert [r.image for r in app.roles] == [f"reg/me:{'ab' * 32}", f"reg/me:{'ab' * 32}", "x:1"]


def test_push_needs_a_repository() -> None:
    """A built image without `image_repo` is refused with what to do."""
    app = AppDef("a", roles=[Role(name="a", image=ID, entrypoint="x")])
    with pytest.raises(ConfigError, match="there is no `image_repo`") as caught:
        DockerWorkspaceMixin().dryrun_push_images(app, {})
    assert "-cfg image_repo=" in caught.value.hint


def test_push_events() -> None:
    """Each change of a layer's status is one line; an error is raised with the registry's words."""
    out = io.StringIO()
    pushing = [{"id": "l1", "status": "Pushing"}] * 3 + [{"id": "l1", "status": "Pushed"}, {"status": "done"}, {}]
    print_push_events(pushing, stream=out)
    assert out.getvalue() == "l1: Pushing\nl1: Pushed\ndone\n"
    with pytest.raises(BackendError, match="the push failed: denied"):
        print_push_events([{"error": "denied"}], stream=out)


def test_options() -> None:
    """`image_repo` and `quiet` are run options."""
    opts = DockerWorkspaceMixin().workspace_opts()
    assert {name for name, _ in opts} == {"image_repo", "quiet"}


def test_missing_client_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the docker package one line says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "docker", None)
    with pytest.raises(MissingDependencyError) as caught:
        docker_workspace._connect()
    assert caught.value.hint == "pip install torchx[docker]"
