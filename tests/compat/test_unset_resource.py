"""The first AppDef of the documents, whose role is given no resource, runs everywhere and is killed nowhere."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from torchx.runner import get_runner
from torchx.specs import NULL_RESOURCE, AppDef, Resource, Role
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict

OPTIONS: dict[str, dict[str, Any]] = {
    "local_cwd": {},
    "slurm": {"partition": "debug"},
    "lsf": {},
    "kubernetes": {"queue": "default"},
    "kubernetes_mcad": {},
    "aws_batch": {"queue": "q"},
    "aws_sagemaker": {"role": "r", "instance_type": "ml.m5.large"},
}


def app(**role: Any) -> AppDef:
    return AppDef("echo", [Role("echo", "/tmp", entrypoint="/bin/echo", args=["hello world"], **role)])


def rendered(scheduler: str, job: AppDef, monkeypatch: pytest.MonkeyPatch) -> str:
    """What would be submitted, from a folder without settings."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with get_runner() as runner:
        return str(runner.dryrun(job, scheduler, OPTIONS[scheduler]))


def test_documented() -> None:
    """It is one CPU and 128 MiB; programs that ask whether a role was given a resource learn that it was not."""
    resource = Role("r", "i").resource
    assert (resource.cpu, resource.gpu, resource.memMB) == (1, 0, 128)
    assert resource == Resource(cpu=1, memMB=128)
    assert Resource(cpu=1, memMB=128) == resource
    assert resource == NULL_RESOURCE
    assert resource != Resource(cpu=2, memMB=128)
    assert resource.is_unset
    assert not Resource(cpu=1, memMB=128).is_unset


def test_copies_stay_unset() -> None:
    """Whatever carries a role on its way to a scheduler does not make a limit of it; whoever says more has said it."""
    role = Role("r", "i")
    for copied in (
        copy.deepcopy(role),
        pickle.loads(pickle.dumps(role)),
        appdef_from_dict(appdef_to_dict(AppDef("a", [role]))).roles[0],
        Role("r", "i", resource=Resource.copy(role.resource, spot=True)),
    ):
        assert copied.resource.is_unset
    assert not dataclasses.replace(role.resource, memMB=4096).is_unset
    role.resource.memMB = 64
    assert not role.resource.is_unset
    assert role.resource != NULL_RESOURCE


@pytest.mark.parametrize("scheduler", OPTIONS)
def test_accepted(scheduler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every scheduler takes it; a role whose job asks for the same in so many words is another thing."""
    monkeypatch.chdir(tmp_path)
    assert "hello world" in rendered(scheduler, app(), monkeypatch)


@pytest.mark.parametrize(("scheduler", "limit"), [("slurm", "mem=128"), ("lsf", "128MB")])
def test_left_to_the_site(scheduler: str, limit: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Slurm and LSF have defaults of their own."""
    monkeypatch.chdir(tmp_path)
    assert limit not in rendered(scheduler, app(), monkeypatch)
    assert limit in rendered(scheduler, app(resource=Resource(cpu=1, memMB=128)), monkeypatch)


@pytest.mark.parametrize("scheduler", ["kubernetes", "kubernetes_mcad"])
def test_a_request_and_no_limit(scheduler: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pod is placed by what it asks for, and may use more."""
    monkeypatch.chdir(tmp_path)
    text = rendered(scheduler, app(), monkeypatch)
    assert "limits: {}" in text
    assert "memory: 128M" in text
    assert "limits: {}" not in rendered(scheduler, app(resource=Resource(cpu=1, memMB=128)), monkeypatch)


def test_enough_on_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """AWS Batch must be told, and what it is told is a limit: room for a Python program."""
    monkeypatch.chdir(tmp_path)
    text = rendered("aws_batch", app(), monkeypatch)
    assert "'1024'" in text
    assert "'128'" not in text


def test_without_limits_on_docker() -> None:
    """A container may use what the machine has."""
    from torchx.schedulers.docker.request import _render_resource

    assert _render_resource(Role("r", "i").resource).keys() == {"shm_size"}
    assert "mem_limit" in _render_resource(Resource(cpu=1, memMB=128))
