"""Workspaces as images: the build context, the builder, names of pushed images, and the output."""

from __future__ import annotations

import io
import os
import socket
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, ConfigError, MissingDependencyError
from torchx.specs import AppDef, CfgVal, Role, Workspace
from torchx.workspace import docker_workspace
from torchx.workspace.docker_workspace import DockerWorkspaceMixin, print_push_events
from torchx.workspace.images import docker_build
from torchx.workspace.images.docker_context import context_chunks
from torchx.workspace.images.progress import Display, Transfer

ID = "sha256:" + "ab" * 32
DIGEST = "sha256:" + "cd" * 32


class FakeApi:
    """The build call of an engine: records its request, returns scripted events."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.requests: list[dict[str, Any]] = []
        self.files: list[str] = []

    def build(self, **request: Any) -> Iterator[dict[str, Any]]:
        with tarfile.open(fileobj=io.BytesIO(b"".join(request.pop("fileobj")))) as tar:
            self.files = tar.getnames()
        self.requests.append(request)
        return iter(self.events)


class FakeImages:
    """The images of an engine: records tags, returns scripted events of a push."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.tags: list[tuple[str, str, str]] = []

    def get(self, image: str) -> Any:
        class Image:
            def tag(_, repository: str, tag: str) -> None:
                self.tags.append((image, repository, tag))

        return Image()

    def push(self, repository: str, **_: Any) -> Iterator[dict[str, Any]]:
        return iter(self.events)


class FakeClient:
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.api = FakeApi(events)
        self.images = FakeImages(events)


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "60")


@pytest.fixture
def source(tmp_path: Path) -> str:
    folder = tmp_path / "src"
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "main.py").write_text("main")
    (folder / "lib" / "a.py").write_text("a")
    (folder / "lib" / "run.sh").write_text("#!/bin/sh")
    (folder / "lib" / "run.sh").chmod(0o755)
    (folder / "lib").chmod(0o750)
    (folder / "link").symlink_to("main.py")
    (folder / "secret.key").write_text("k")
    (folder / ".torchxignore").write_text("*.key\n")
    return str(folder)


def roles(source: str, names: str = "a", image: str = "base:1") -> list[Role]:
    return [Role(name=n, image=image, entrypoint="x", workspace=Workspace({source: ""})) for n in names]


def context_of(workspace: Workspace | str) -> dict[str, tarfile.TarInfo]:
    out = io.BytesIO()
    out.writelines(context_chunks(workspace))
    out.seek(0)
    with tarfile.open(fileobj=out, errors="surrogateescape") as tar:
        return {m.name: m for m in tar.getmembers()}


# -- the context --------------------------------------------------------------------------------------


def test_build_context(source: str) -> None:
    """The context has the files without ignored ones, with modes, links and directories, in a folder next to our Dockerfile."""
    members = context_of(source)
    assert list(members) == [
        "Dockerfile.torchx",
        "workspace",
        *(f"workspace/{p}" for p in (".torchxignore", "lib", "lib/a.py", "lib/empty", "lib/run.sh", "link", "main.py")),
    ]
    assert members["workspace/lib/run.sh"].mode == 0o755 and members["workspace/lib"].mode == 0o750
    assert members["workspace/link"].issym() and members["workspace/link"].linkname == "main.py"
    assert {m.uid for m in members.values()} == {0}


@pytest.mark.parametrize("ignore", ["", "*", "Dockerfile*"], ids=["kept", "all ignored", "ignored"])
def test_own_dockerfile_is_honoured(source: str, ignore: str) -> None:
    """A Dockerfile.torchx of the workspace is used unchanged, even if ignored; then paths have no prefix."""
    Path(source, ".torchxignore").write_text(ignore)
    Path(source, "Dockerfile.torchx").write_text("FROM scratch\n")
    members = context_of(source)
    assert members["Dockerfile.torchx"].size == len("FROM scratch\n")
    assert ("main.py" in members) == (ignore != "*")
    assert "workspace" not in members


def test_context_is_reproducible(source: str) -> None:
    """The same files give the same bytes."""
    first, second = io.BytesIO(), io.BytesIO()
    first.writelines(context_chunks(source))
    second.writelines(context_chunks(source))
    assert first.getvalue() == second.getvalue()


def test_hostile_names(source: str) -> None:
    """Any valid file name is unchanged in the archive."""
    names = [os.fsdecode(b"\xff"), "new\nline", "x" * 255, "ü", " ", "-rf", "a\\b"]
    for name in names:
        Path(source, name).write_text("1")
    assert {f"workspace/{name}" for name in names} <= set(context_of(source))


def test_several_projects(source: str, tmp_path: Path) -> None:
    """Each project is at its place; the Dockerfile of the project at the root is used."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "Dockerfile.torchx").write_text("FROM x")
    assert "workspace/vendor/Dockerfile.torchx" in context_of(Workspace({source: "", f"{tmp_path}/lib": "vendor"}))
    members = context_of(Workspace({source: "sub", f"{tmp_path}/lib": ""}))
    assert "sub/main.py" in members and members["Dockerfile.torchx"].size == 6


def test_context_from_memory() -> None:
    """A workspace on a remote file system also becomes a context."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/ws_d/a.py": b"abc"})
    out = io.BytesIO()
    try:
        out.writelines(context_chunks("memory://ws_d"))
    finally:
        memory.rm("/ws_d", recursive=True)
    with tarfile.open(fileobj=io.BytesIO(out.getvalue())) as tar:
        found = {name: file.read() for name in tar.getnames() if (file := tar.extractfile(name)) is not None}
    assert found.pop("workspace/a.py") == b"abc"
    assert {name for name in found if name.startswith("workspace/")} == set()


# -- builds by an engine ------------------------------------------------------------------------------


def test_build(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine gets the context and the build arguments; roles with the same workspace get the same image."""
    client = FakeClient([{"stream": "Step 1/2 : ARG IMAGE\n"}, {"aux": {"ID": ID}}, {"stream": "done\n"}])
    mixin = DockerWorkspaceMixin(docker_client=client)
    both = roles(source, "ab")
    mixin.build_workspaces(both, {"platform": "linux/arm64", "build_args": {"INDEX": "x", "IMAGE": "other"}})
    assert [r.image for r in both] == [ID, ID]
    assert [r.env["TORCHX_IMAGE_DIGEST"] for r in both] == [ID, ID]
    assert both[0].env["TORCHX_WORKSPACE_HASH"].startswith("sha256:")
    (request,) = client.api.requests
    assert request["buildargs"] == {"IMAGE": "base:1", "WORKSPACE": source, "INDEX": "x"}
    assert (request["dockerfile"], request["pull"]) == ("Dockerfile.torchx", False)
    assert request["platform"] == "linux/arm64"
    assert "workspace/secret.key" not in client.api.files
    assert capsys.readouterr().err == "Step 1/2 : ARG IMAGE\ndone\n"


def test_other_image_or_workspace_is_built_for_itself(source: str, tmp_path: Path) -> None:
    """Only roles with the same image and workspace share a build."""
    client = FakeClient([{"aux": {"ID": ID}}])
    (tmp_path / "other").mkdir()
    every = roles(source, "ab") + roles(source, "c", "base:2") + roles(str(tmp_path / "other"), "d")
    every.append(Role(name="e", image="none", entrypoint="x"))
    DockerWorkspaceMixin(docker_client=client).build_workspaces(every, {"quiet": True})
    assert len(client.api.requests) == 3
    assert every[-1].image == "none"


def test_older_hook(source: str) -> None:
    """A subclass that overrides the older hook is still called; without an override the mixin builds."""

    class Own(DockerWorkspaceMixin):
        def build_workspace_and_update_role(self, role: Role, workspace: str, cfg: Any) -> None:
            role.image = f"own of {workspace}"

    (role,) = roles(source)
    Own().build_workspaces([role], {})
    assert role.image == f"own of {source}"
    client = FakeClient([{"aux": {"ID": ID}}])
    DockerWorkspaceMixin(docker_client=client).build_workspace_and_update_role(role, source, {"quiet": True})
    assert role.image == ID


def test_quiet_build(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With `quiet` nothing is shown."""
    mixin = DockerWorkspaceMixin(docker_client=FakeClient([{"stream": "Step 1\n"}, {"aux": {"ID": ID}}]))
    mixin.build_workspaces(roles(source), {"quiet": True})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("quiet", [False, True])
def test_failed_build(source: str, quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of a failed build is shown once, `quiet` or not, and one line has the step and the reason."""
    events = [
        {"stream": "Step 2/3 : RUN pip install x\n"},
        {"stream": "\x1b[91mno such package\x1b[0m\n"},
        {"error": "The command '/bin/sh -c pip install x' returned a non-zero code: 3\n"},
    ]
    mixin = DockerWorkspaceMixin(docker_client=FakeClient(events))
    with pytest.raises(BackendError) as caught:
        mixin.build_workspaces(roles(source), {"quiet": quiet})
    assert (
        str(caught.value) == f"the image of workspace `{source}` could not be built at `RUN pip install x`: exit code 3"
    )
    assert "`base:1`" in caught.value.hint
    assert capsys.readouterr().err == "Step 2/3 : RUN pip install x\nno such package\n"


def test_build_without_an_id(source: str) -> None:
    """An engine that reports no image id is an error."""
    with pytest.raises(BackendError, match="reported no image id after it built"):
        DockerWorkspaceMixin(docker_client=FakeClient([{"stream": "x"}])).build_workspaces(roles(source), {})


def test_build_on_a_terminal(source: str) -> None:
    """One line changes, cut to the terminal's width, and one stays; an error prints the whole output."""
    out = Terminal()
    events: list[dict[str, Any]] = [
        {"stream": "Step 1/2 : " + "x" * 100 + "\n"},
        {"stream": "noise\n"},
        {"aux": {"ID": ID}},
    ]
    docker_build.build(FakeClient(events), Workspace({source: ""}), "b", stream=out)
    first, *_, last = out.getvalue().split("\r")[1:]
    assert first.startswith("Building: Step 1/2 : xxx") and first.endswith("…\x1b[K") and len(first) == 59 + 3
    assert last == f"\x1b[KBuilt sha256:abababababab from {source} on b\n"
    out = Terminal()
    with pytest.raises(BackendError):
        docker_build.build(
            FakeClient([{"stream": "one\ntwo\n"}, {"error": "e"}]),
            Workspace({source: ""}),
            "b",
            stream=out,
        )
    assert out.getvalue().endswith("\x1b[Kone\ntwo\n")


def test_unused_arguments_are_in_order(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine's warning about unused build arguments of ours is not shown."""
    warning = "[Warning] One or more build-args [{}] were not consumed\n"
    events: list[dict[str, Any]] = [
        {"stream": warning.format("WORKSPACE")},
        {"stream": warning.format("MINE")},
        {"aux": {"ID": ID}},
    ]
    DockerWorkspaceMixin(docker_client=FakeClient(events)).build_workspaces(roles(source), {})
    assert capsys.readouterr().err == warning.format("MINE")


def test_engine_errors_are_ours(source: str) -> None:
    """Errors of the client's library and of the connection become one line; other errors are not changed."""
    docker = pytest.importorskip("docker")

    def fail(error: Exception) -> BaseException:
        client = FakeClient([])
        client.api.build = lambda **_: (_ for _ in ()).throw(error)  # type: ignore[method-assign]  # fails
        with pytest.raises(type(error) if isinstance(error, KeyError) else BackendError) as caught:
            docker_build.build(client, Workspace({source: ""}), "b", quiet=True)
        return caught.value

    said = docker.errors.APIError("x", explanation=b"dockerfile parse error\n line 1")
    assert str(fail(said)).endswith("could not be built: dockerfile parse error line 1")
    assert str(fail(ConnectionResetError("reset"))).endswith("the Docker engine no longer answers: reset")
    assert isinstance(fail(KeyError("bug")), KeyError)


# -- who builds ---------------------------------------------------------------------------------------


def test_auto_prefers_the_engine_that_was_given(source: str) -> None:
    """A client given by the scheduler counts as an engine that answers."""
    mixin = DockerWorkspaceMixin(docker_client=FakeClient([{"aux": {"ID": ID}}]))
    (role,) = roles(source)
    mixin.build_workspaces([role], {"builder": "auto", "image_repo": "r.io/x", "quiet": True})
    assert role.image == ID


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"builder": "kaniko"}, "`kaniko` is not an image builder"),
        ({"builder": "oci"}, "an image built without an engine needs a registry"),
        ({"builder": "oci", "image_repo": "r/n", "build_args": {"A": "1"}}, "which only an engine builds"),
        ({"builder": "auto"}, r"no Docker engine answers: `.*/nobody`: .*, and an image built without"),
        ({"builder": "docker"}, None),
    ],
)
def test_nobody_can_build(
    cfg: dict[str, CfgVal], message: str | None, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error names in one line what is missing."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody")
    with pytest.raises(ConfigError if message else (BackendError, MissingDependencyError), match=message):
        DockerWorkspaceMixin().build_workspaces(roles(source), cfg)


def test_missing_client_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the docker package one line says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "docker", None)
    with pytest.raises(MissingDependencyError) as caught:
        docker_workspace._connect()
    assert caught.value.hint == "pip install 'docker>=7'"


# -- pushes -------------------------------------------------------------------------------------------


def test_push_names() -> None:
    """A built image is pushed under its content hash; images that were not built here stay; roles share one push."""
    app = AppDef("a", roles=[Role(name=n, image=i, entrypoint="x") for n, i in [("a", ID), ("b", ID), ("c", "x:1")]])
    images = DockerWorkspaceMixin().dryrun_push_images(app, {"image_repo": "reg/me"})
    assert images == {ID: ("reg/me", "ab" * 32)}
    assert [r.image for r in app.roles] == [f"reg/me:{'ab' * 32}", f"reg/me:{'ab' * 32}", "x:1"]


def test_push_needs_a_repository() -> None:
    """A built image without `image_repo` is an error with a hint."""
    app = AppDef("a", roles=[Role(name="a", image=ID, entrypoint="x")])
    with pytest.raises(ConfigError, match="there is no `image_repo`") as caught:
        DockerWorkspaceMixin().dryrun_push_images(app, {})
    assert "-cfg image_repo=" in caught.value.hint


def test_push() -> None:
    """The image is tagged and pushed, and its digest in the registry is recorded."""
    client = FakeClient([{"id": "1", "status": "Pushed"}, {"aux": {"Tag": "t", "Digest": DIGEST}}])
    mixin = DockerWorkspaceMixin(docker_client=client)
    mixin.push_images({ID: ("reg/me", "t")})
    assert client.images.tags == [(ID, "reg/me", "t")]
    assert mixin.pushed_digest("reg/me:t") == f"reg/me@{DIGEST}"
    assert mixin.pushed_digest("other") == ""


def test_refused_push(capsys: pytest.CaptureFixture[str]) -> None:
    """The error has the registry's message, and where to log in."""
    mixin = DockerWorkspaceMixin(docker_client=FakeClient([{"error": "denied\n"}]))
    with pytest.raises(BackendError, match=r"the push of `reg\.io/me:t` failed: denied") as caught:
        mixin.push_images({ID: ("reg.io/me", "t")})
    assert "docker login reg.io" in caught.value.hint


def test_push_events() -> None:
    """Each change of a layer's status is one line; an error has the registry's message."""
    out = io.StringIO()
    pushing = [{"id": "l1", "status": "Pushing"}] * 3 + [{"id": "l1", "status": "Pushed"}, {"status": "done"}, {}]
    print_push_events(pushing, stream=out)
    assert out.getvalue() == "l1: Pushing\nl1: Pushed\ndone\n"
    with pytest.raises(BackendError, match="the push failed: denied"):
        print_push_events([{"error": "denied"}], stream=out)


def test_push_events_on_a_terminal() -> None:
    """One line for all layers, with layers and megabytes, is removed at the end."""
    out = Terminal()
    clock = iter(range(100))
    display = Display(out, clock=lambda: float(next(clock)))
    events: Iterable[dict[str, Any]] = [
        {"status": "The push refers to repository [x]"},
        {"id": "1", "status": "Preparing", "progressDetail": {}},
        {"id": "2", "status": "Layer already exists"},
        {"id": "1", "status": "Pushing", "progressDetail": {"current": 500_000, "total": 4_000_000}},
        {"id": "1", "status": "Pushing", "progressDetail": {"current": 4_000_512, "total": 4_000_000}},
        {"id": "1", "status": "Pushed"},
    ]
    docker_build.show_push(events, display, "r.io/x:1")
    display.close()
    lines = [line.removesuffix("\x1b[K") for line in out.getvalue().split("\r")]
    assert lines == [
        "",
        "Pushing r.io/x:1: 0/1 layers",
        "Pushing r.io/x:1: 1/2 layers",
        "Pushing r.io/x:1: 1/2 layers, 488 KiB/3.8 MiB",
        "Pushing r.io/x:1: 1/2 layers, 3.8 MiB/3.8 MiB",
        "Pushing r.io/x:1: 2/2 layers, 3.8 MiB/3.8 MiB",
        "",
    ]


# -- what is shown ------------------------------------------------------------------------------------


def test_display_does_not_flicker() -> None:
    """The line changes at most ten times a second; control characters do not reach the terminal."""
    out = Terminal()
    times = iter([0.0, 0.05, 0.2])
    display = Display(out, clock=lambda: next(times))
    for text in ("one\x1b[2J\n", "two", "three"):
        display.doing(text)
    assert out.getvalue() == "\rone?[2J \x1b[K\rthree\x1b[K"


def test_lines_cannot_control_the_terminal() -> None:
    """Control characters in the output of a build, here a sequence that writes the clipboard, are replaced."""
    out = Terminal()
    Display(out).line("a\tb\x1b]52;c;eA==\x07")
    assert out.getvalue() == "a\tb?]52;c;eA==?\n"


def test_display_that_nobody_sees() -> None:
    """A closed terminal does not break a build."""

    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    display = Display(Closed())
    display.doing("x")
    display.line("y")
    display.close()


def test_transfer_never_sends_more_than_everything() -> None:
    """Sizes that arrive late or are too small do not cause wrong output."""
    out = Terminal()
    clock = iter(range(100))
    transfer = Transfer(Display(out, clock=lambda: float(next(clock))), "Pushing")
    transfer.layer("a", sent=10_000_000, size=5_000_000)
    assert out.getvalue() == "\rPushing: 0/1 layers, 4.8 MiB/4.8 MiB\x1b[K"


def test_options() -> None:
    """The builders' run options."""
    opts = DockerWorkspaceMixin().workspace_opts()
    assert {name for name, _ in opts} == {"image_repo", "quiet", "builder", "build_args", "platform"}


def test_an_engine_without_the_package(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an engine runs, the hint installs the package that speaks to it, and does not send for an engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/s")
    monkeypatch.setitem(sys.modules, "docker", None)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(f"{tmp_path}/s")
        engine.listen()
        with pytest.raises(MissingDependencyError, match="needs the Python package `docker`") as found:
            DockerWorkspaceMixin().build_workspaces(roles(source), {"builder": "auto"})
    assert found.value.hint.startswith("pip install ")
    assert "start" not in found.value.hint
