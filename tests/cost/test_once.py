"""What a dry run does once, however many parts of the house need it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from torchx.cli.main import main
from torchx.specs import serialize
from torchx.specs.options.runopts import runopts

OPTIONS = {
    "local_cwd": "prepend_cwd=True",
    "slurm": "partition=debug",
    "lsf": "lsf_queue=normal",
    "kubernetes": "namespace=n",
    "kubernetes_mcad": "namespace=n",
    "local_docker": "privileged=False",
    "aws_batch": "queue=q",
    "aws_sagemaker": "role=arn:aws:iam::123456789012:role/r,instance_type=ml.m5.large,output_path=s3://bucket",
}
DEFINED = {"kubernetes", "kubernetes_mcad"}
"""Whose requests hold the definition of the job."""


def watch(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, calls: Counter[str]) -> None:
    original = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, watched)


@pytest.mark.parametrize("as_json", [False, True], ids=["for people", "as JSON"])
@pytest.mark.parametrize("scheduler", OPTIONS)
def test_dryrun(scheduler: str, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Options are resolved once. The definition is serialised where a request or a reader needs it, once for each."""
    calls: Counter[str] = Counter()
    watch(monkeypatch, runopts, "resolve", calls)
    watch(monkeypatch, serialize, "appdef_to_dict", calls)
    argv = ["run", "-s", scheduler, "--workspace=", "-cfg", OPTIONS[scheduler], "--dryrun"]
    main([*argv, *(["--json"] if as_json else []), "utils.echo", "--image", "me:1", "--msg", "hello"])
    assert "hello" in capsys.readouterr().out
    assert calls["resolve"] == 1
    assert calls["appdef_to_dict"] == (scheduler in DEFINED) + as_json
