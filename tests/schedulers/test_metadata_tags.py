"""Metadata of an app as tags and labels, which cost reports and access rules read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role

ARN = "arn:aws:iam::123456789012:role/r"
CFG: dict[str, dict[str, Any]] = {
    "aws_batch": {"queue": "q"},
    "aws_sagemaker": {"role": ARN, "instance_type": "ml.m5.large"},
    "kubernetes": {},
    "kubernetes_mcad": {},
    "local_docker": {},
}


def request(scheduler: str, metadata: dict[str, str], **cfg: Any) -> Any:
    """The request of a job with this metadata."""
    role = Role("w", image="train:1", entrypoint="echo", args=["x"], resource=Resource(cpu=2, gpu=0, memMB=2000))
    with get_runner() as runner:
        return runner.dryrun(AppDef("a", [role], metadata=metadata), scheduler, {**CFG[scheduler], **cfg}).request


def marks(scheduler: str, metadata: dict[str, str], **cfg: Any) -> dict[str, str]:
    """The tags or labels of that job."""
    made = request(scheduler, metadata, **cfg)
    if scheduler == "aws_batch":
        assert made.overrides["tags"] == made.job_def["tags"]
        return dict(made.overrides["tags"])
    if scheduler == "aws_sagemaker":
        return {tag["Key"]: tag["Value"] for tag in made.job_def["Tags"]}
    if scheduler == "local_docker":
        return dict(made.containers[0].kwargs["labels"])
    text = json.dumps(made.resource, default=str)
    return {key: value for key, value in metadata.items() if f'"{key}": "{value}"' in text}


@pytest.mark.parametrize("scheduler", CFG)
def test_metadata_are_on_the_job(scheduler: str) -> None:
    """Each has them where the backend keeps such notes; what is meant for torchx is not among them."""
    found = marks(
        scheduler,
        {"team": "nlp", "cost-centre": "42", "torchx/after": ""}
        if "aws" not in scheduler
        else {"team": "t x", "cost-centre": "42"},
    )
    assert found["cost-centre"] == "42" and "team" in found and "torchx/after" not in found


def test_a_secret_is_no_label() -> None:
    """Everybody who may see the job can read them."""
    assert "hunter2" not in str(request("local_docker", {"api_key": "hunter2"}))
    assert "hunter2" not in json.dumps(request("kubernetes", {"api_key": "hunter2"}).resource)


@pytest.mark.parametrize("scheduler", ["aws_batch", "aws_sagemaker"])
@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"aws:x": "1"}, "prefix `aws:`"),
        ({"AWS:x": "1"}, "prefix `aws:`"),
        ({"": "1"}, "key is empty"),
        ({"k" * 129: "1"}, "129 characters, at most 128"),
        ({"k": "v" * 257}, "257 characters, at most 256"),
        ({"k": "{}"}, "contains `{`"),
        ({"a;b": "1"}, "contains `;`"),
        ({f"k{i}": "v" for i in range(50)}, "tags, and AWS allows 50"),
    ],
)
def test_what_aws_would_refuse_as_a_tag(scheduler: str, metadata: dict[str, str], why: str) -> None:
    """The rules hold for metadata and for the option `tags` alike."""
    with pytest.raises(SpecError, match=why):
        request(scheduler, metadata)
    with pytest.raises(SpecError, match=why):
        request(scheduler, {}, tags=metadata)


@pytest.mark.parametrize("scheduler", ["aws_batch", "aws_sagemaker"])
def test_longest_tags_are_taken(scheduler: str) -> None:
    """The option wins over metadata, torchx's own over both."""
    most = {"k" * 128: "v" * 256, "torchx.pytorch.org/version": "1", "b": "x"}
    found = marks(scheduler, most, tags={"b": "y"})
    assert found["k" * 128] == "v" * 256 and found["b"] == "y" and found["torchx.pytorch.org/version"] != "1"
