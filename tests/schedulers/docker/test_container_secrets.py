"""Secrets of containers without an engine: the request, and the files written into it."""

from __future__ import annotations

import io
import tarfile
from types import SimpleNamespace

import docker.errors
import pytest

from torchx.errors import BackendError
from torchx.schedulers.docker import client, secrets
from torchx.schedulers.docker_scheduler import create_scheduler
from torchx.specs.api import AppDef, Role
from torchx.specs.secret import Secret

ENV = {"BY": Secret("env:MINE"), "HF_TOKEN": "it's $HOME", "PLAIN": "seen"}


class Container:
    """A container that was created, from an image with or without a shell."""

    name = "job-r-0"

    def __init__(self, *, has_shell: bool = True) -> None:
        self.has_shell = has_shell
        self.files: dict[str, tuple[str, int]] = {}

    def get_archive(self, path):
        if not self.has_shell:
            raise docker.errors.NotFound("no such file", response=SimpleNamespace(status_code=404))
        return SimpleNamespace(close=lambda: None), {}

    def put_archive(self, path, data):
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                self.files[path + member.name] = (tar.extractfile(member).read().decode(), member.mode)
        return True


def requested(**role):
    """The request of a container."""
    app = AppDef("job", [Role("r", "img", entrypoint="python", args=["t.py"], env=ENV, **role)])
    return create_scheduler("s").submit_dryrun(app, {}).request.containers[0]


def test_no_value_is_in_the_configuration():
    """Neither by reference nor by value; a dry run shows the references."""
    container = requested()
    assert container.secret == {"BY": "env:MINE", "HF_TOKEN": "it's $HOME"}
    environment = container.kwargs["environment"]
    assert environment["PLAIN"] == "seen"
    assert environment.keys().isdisjoint(container.secret)
    assert "BY=env:MINE" in str(container)
    assert "it's" not in f"{container}{container!r}"


@pytest.mark.parametrize("retries", [0, 1])
def test_a_shell_reads_them_and_becomes_the_program(retries):
    """It empties the file first, unless the container may be restarted."""
    made = Container()
    words = []
    engine = SimpleNamespace(
        containers=SimpleNamespace(create=lambda image, command, **_: (words.extend(command), made)[1])
    )
    container = requested(max_retries=retries)
    assert client.create(engine, container, {"BY": "a", "HF_TOKEN": "it's $HOME"}) is made
    assert words[3:] == ["torchx", "python", "t.py"]
    assert (f": >/{secrets.FILE};" in words[2]) is (retries == 0)
    text, mode = made.files[f"/{secrets.FILE}"]
    assert text == "export BY=a\nexport HF_TOKEN='it'\\''s $HOME'\n"
    assert mode == 0o666


def test_an_image_without_a_shell():
    """The error is raised before the container is started, and contains no value."""
    with pytest.raises(BackendError, match="its image has no `/bin/sh`") as e:
        secrets.put(Container(has_shell=False), {"HF_TOKEN": "sesame-open"})
    assert e.value.hint == "use an image with a shell, or do not pass it secrets: HF_TOKEN"


@pytest.mark.parametrize(("args", "words"), [([], ["serve", "--all"]), (["/data"], ["serve", "/data"])])
def test_the_program_of_the_image_gets_them_too(args, words):
    """Its ENTRYPOINT, and CMD without arguments, are looked up, because the shell has to start them."""
    app = AppDef("job", [Role("r", "img", entrypoint="", args=args, env=ENV)])
    container = create_scheduler("s").submit_dryrun(app, {}).request.containers[0]
    made: dict = {}
    image = SimpleNamespace(attrs={"Config": {"Entrypoint": ["serve"], "Cmd": ["--all"]}})

    def create(image, command, **kwargs):
        made.update(kwargs, command=command)
        return Container()

    engine = SimpleNamespace(images=SimpleNamespace(get=lambda name: image), containers=SimpleNamespace(create=create))
    client.create(engine, container, {"BY": "x"})
    assert made["entrypoint"] == [""]
    assert made["command"][-len(words) :] == words
