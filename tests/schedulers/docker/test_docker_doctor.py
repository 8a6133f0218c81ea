"""`torchx doctor -s local_docker` and `run --check`: findings for answers of an engine."""

from __future__ import annotations

from typing import Any

import docker.errors
import pytest
import requests.exceptions

from torchx.errors import BackendError, NotFoundError
from torchx.schedulers.docker import doctor
from torchx.schedulers.docker_scheduler import create_scheduler
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.specs import AppDef, Resource, Role
from torchx.workspace.images.registry import Registry

from .fake_docker import FakeDocker

INFO = {"ServerVersion": "28.0", "OperatingSystem": "Debian", "NCPU": 4, "Architecture": "x86_64", "DockerRootDir": "/", "Runtimes": {"runc": {}}}  # fmt: skip


class Engine(FakeDocker):
    """An engine with this information."""

    def __init__(self, error: Exception | None = None, **more: Any) -> None:
        super().__init__()
        self.error, self.about = error, {**INFO, **more}

    def info(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return self.about


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine runs on this machine, without GPUs, and registries are empty."""

    def manifest(self: Registry, image: Any) -> Any:
        raise NotFoundError(f"registry `{self.host}` has no image `{image}`")

    monkeypatch.setattr(Registry, "manifest", manifest)
    monkeypatch.setattr(doctor.os.path, "exists", lambda path: False)  # type: ignore[attr-defined]  # the module's own
    monkeypatch.delenv("DOCKER_HOST", raising=False)


def ask(engine: Engine, role: Role | None = None) -> dict[str, Finding]:
    scheduler = create_scheduler("s", docker_client=engine)
    info = scheduler.submit_dryrun(AppDef("a", [role]), {}) if role is not None else None
    return {f.what: f for check in scheduler.diagnose({}, info) for f in check.findings()}


def role(image: str = "img", **resource: Any) -> Role:
    return Role("r", image, entrypoint="sh", resource=Resource(**{"cpu": 1, "gpu": 0, "memMB": 100, **resource}))


def test_an_engine() -> None:
    """Version and disk; GPUs are uncertain until a job requests them."""
    found = ask(Engine())
    assert {what: f.verdict for what, f in found.items()} == {
        "engine": GOOD,
        "disk": found["disk"].verdict,
        "GPUs": UNKNOWN,
    }
    assert "free in `/`" in found["disk"].said
    assert found["engine"].said == "28.0 on Debian, 4 CPUs"
    assert ask(Engine(Runtimes={"nvidia": {}}))["GPUs"].verdict == GOOD


@pytest.mark.parametrize("more", [{"OperatingSystem": "Docker Desktop"}, {"DockerRootDir": "/not/here"}])
def test_a_disk_that_is_not_seen(more: dict[str, Any]) -> None:
    """The disk of another machine."""
    assert ask(Engine(**more))["disk"].verdict == UNKNOWN


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certain for a socket of this machine, but not for a network address."""

    class Down(FakeDocker):
        def info(self) -> None:
            raise BackendError("no Docker engine answers at `/var/run/docker.sock`")

    (found,) = [f for f in ask(Down()).values() if f.what == "engine"]  # type: ignore[arg-type]  # it is asked for its info alone
    assert (found.verdict, "systemctl start docker" in found.fix) == (BAD, True)
    for error in (requests.exceptions.ConnectionError("refused"), requests.exceptions.ReadTimeout()):
        silent = Engine(error)
        silent.faults["inspect_image"] = [error]
        assert {f.verdict for f in ask(silent, role("elsewhere")).values()} == {UNKNOWN}


@pytest.mark.parametrize(
    ("resource", "verdict", "fix"),
    [({"cpu": 5}, BAD, "`--cpu 4`"), ({"cpu": 4}, GOOD, ""), ({"gpu": 1}, BAD, "`--gpu 0`"), ({}, GOOD, "")],
)
def test_sizes(resource: dict[str, Any], verdict: str, fix: str) -> None:
    """What the engine would reject at the start."""
    found = ask(Engine(), role(**resource))["size of role `r`"]
    assert (found.verdict, fix in found.fix) == (verdict, True)


@pytest.mark.parametrize(
    "more", [{"Runtimes": {"nvidia": {}}}, {"CDISpecDirs": ["/etc/cdi"]}, {"OperatingSystem": "Docker Desktop"}]
)
def test_gpus_that_may_be_there(more: dict[str, Any]) -> None:
    """No false alarm."""
    assert ask(Engine(**more), role(gpu=1))["size of role `r`"].verdict == GOOD


def test_images() -> None:
    """A local image needs no registry; one that does not exist is bad; a failing engine is a doubt."""
    assert ask(Engine(), role())["image of role `r`"].verdict == GOOD
    gone = ask(Engine(), role("imgg"))["image of role `r`"]
    assert (gone.verdict, "--image" in gone.fix) == (BAD, True)
    broken = Engine()
    broken.faults["inspect_image"] = [docker.errors.APIError("server error")]
    assert ask(broken, role())["image of role `r`"].verdict == UNKNOWN
