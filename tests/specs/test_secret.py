"""`specs.Secret`: references in job definitions."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from torchx import specs
from torchx.errors import SpecError
from torchx.specs import AppDef, Role, Secret, macros
from torchx.specs.copies import copy_data
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict, masked

REFERENCES = [
    "HF_TOKEN",
    "env:HF_TOKEN",
    "cmd:pass show wandb | head -1",
    "file:~/.k",
    "k8s:hf/token",
    "aws-sm:arn:aws:x",
]


def app(**env: str) -> AppDef:
    """Return a job of one role with this environment."""
    return AppDef("a", [Role("r", "img", entrypoint="e", env=env)])


@pytest.mark.parametrize("reference", REFERENCES)
def test_it_stays_what_it_is(reference: str) -> None:
    """JSON, copies, pickle, macros and masking preserve the reference and its type."""
    given = app(KEY=Secret(reference), PLAIN=reference)
    values = macros.Values(img_root="", app_id="1", replica_id="0", rank0_env="")
    for found in (
        appdef_from_dict(json.loads(json.dumps(appdef_to_dict(given)))),
        copy_data(given),
        copy.deepcopy(given),
        pickle.loads(pickle.dumps(given)),
        masked(given),
        AppDef("a", [values.apply(given.roles[0])]),
    ):
        env = found.roles[0].env
        assert type(env["KEY"]) is Secret, env
        assert env["KEY"] == reference
        assert type(env["PLAIN"]) is str
        assert env["PLAIN"] == reference


def test_json_says_that_it_is_one() -> None:
    """In JSON a Secret is an object, which no text can be confused with."""
    assert appdef_to_dict(app(KEY=Secret("env:K")))["roles"][0]["env"] == {"KEY": {"secret": "env:K"}}
    with pytest.raises(SpecError, match="unknown key `secrets`"):
        appdef_from_dict(
            {"name": "a", "roles": [{"name": "r", "image": "", "env": {"K": {"secret": "X", "secrets": 1}}}]}
        )


def test_kind_and_place() -> None:
    """`kind` is the text before the first colon, `place` the text after it."""
    assert (Secret("cmd:a:b").kind, Secret("cmd:a:b").place) == ("cmd", "a:b")
    assert (Secret("HF_TOKEN").kind, Secret("HF_TOKEN").place) == ("", "HF_TOKEN")
    assert repr(specs.Secret("env:X")) == "Secret('env:X')"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hf token",
        "hunter2:x",
        "cmd:",
        "cmd: ",
        "file:a\0b",
        "k8s:name",
        "k8s:/key",
        "k8s:name/",
        "aws-sm:name",
        "é",
    ],
)
def test_what_is_no_reference(text: str) -> None:
    """The error does not show the text, which may be the secret value."""
    with pytest.raises(SpecError) as e:
        Secret(text)
    assert "env:NAME" in e.value.hint or "name" in e.value.hint or "arn" in e.value.hint
    assert "hunter2" not in str(e.value)
