"""AppDefs survive the round trip through JSON, and can be masked."""

from __future__ import annotations

import copy
import json
import pathlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchx.errors import SpecError
from torchx.specs import (
    AppDef,
    BindMount,
    DeviceMount,
    Resource,
    RetryPolicy,
    Role,
    VolumeMount,
    Workspace,
)
from torchx.specs.serialize import (
    FORMAT_VERSION,
    appdef_from_dict,
    appdef_to_dict,
    masked,
    role_from_dict,
    role_to_dict,
)

_text = st.text(max_size=8)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=5,
)
_objects = st.dictionaries(_text, _json, max_size=3)
_strings = st.dictionaries(_text, _text, max_size=3)
_mounts = st.one_of(
    st.builds(BindMount, _text, _text, st.booleans()),
    st.builds(VolumeMount, _text, _text, st.booleans()),
    st.builds(DeviceMount, _text, _text, _text),
)
_resources = st.builds(
    Resource,
    cpu=st.integers(),
    gpu=st.integers(),
    memMB=st.integers(),
    capabilities=_objects,
    devices=st.dictionaries(_text, st.integers(), max_size=2),
    tags=_objects,
)
_roles = st.builds(
    Role,
    name=_text,
    image=_text,
    min_replicas=st.none() | st.integers(),
    entrypoint=_text,
    args=st.lists(_text, max_size=3),
    env=_strings,
    num_replicas=st.integers(),
    max_retries=st.integers(),
    retry_policy=st.sampled_from(RetryPolicy),
    resource=_resources,
    port_map=st.dictionaries(_text, st.integers(), max_size=2),
    metadata=_objects,
    mounts=st.lists(_mounts, max_size=3),
    workspace=st.none() | st.builds(Workspace, _strings),
    overrides=_objects,
)
_apps = st.builds(AppDef, name=_text, roles=st.lists(_roles, max_size=2), metadata=_strings)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_apps)
def test_round_trip(app: AppDef) -> None:
    """Every field of every role survives JSON text, and the types are the same."""
    before = copy.deepcopy(app)
    read = appdef_from_dict(json.loads(json.dumps(appdef_to_dict(app))))
    assert read == app == before
    assert repr(read) == repr(app)
    for role in app.roles:
        assert role_from_dict(role_to_dict(role)) == role


@settings(max_examples=60, deadline=None)
@given(_json)
def test_any_json_is_an_app_or_a_spec_error(data: Any) -> None:
    """Garbage never raises outside our tree."""
    with pytest.raises(SpecError):
        appdef_from_dict(data if data != {"name": ""} else [])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_app_is_an_app_or_a_spec_error(data: st.DataObject) -> None:
    """If any value of a valid file is replaced, it is read or raises SpecError."""
    whole = appdef_to_dict(
        AppDef("a", [Role("r", "i", mounts=[BindMount("a", "b")], workspace=Workspace({"a": "b"}))], {"k": "v"})
    )
    node: Any = whole
    while True:
        key = data.draw(st.sampled_from(sorted(node))) if isinstance(node, dict) else 0
        if isinstance(node[key], dict | list) and node[key] and data.draw(st.booleans()):
            node = node[key]
            continue
        node[key] = data.draw(_json)
        break
    try:
        appdef_from_dict(whole)
    except SpecError as e:
        assert str(e)


@pytest.mark.parametrize("data", [[], 1, None, "text"])
def test_data_that_is_no_app(data: Any) -> None:
    """Only an object describes a job."""
    with pytest.raises(SpecError, match="`app` is"):
        appdef_from_dict(data)


def test_data_that_is_nested_too_deeply() -> None:
    """Copying or writing it later would exceed the recursion limit, so it is rejected when it is read."""
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"a": deep}
    role = {"name": "r", "image": "i", "metadata": deep}
    with pytest.raises(SpecError, match="app is nested more than 100 levels deep"):
        appdef_from_dict({"name": "a", "roles": [role]})
    with pytest.raises(SpecError, match="role is nested more than 100 levels deep"):
        role_from_dict(role)


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        ({"version": FORMAT_VERSION + 1}, "of format `2`", "newer torchx"),
        ({"version": "1"}, "`app.version` is `'1'`, and int is expected", ""),
        ({"name": None}, "`app.name` is `None`, and str is expected", ""),
        ({"role": []}, "unknown key `role`", "did you mean `roles`?"),
        ({"roles": [{"name": "r"}]}, "`roles[0]` has no `image`", ""),
        ({"roles": [{"name": "r", "image": "i", "num_replicas": True}]}, "`roles[0].num_replicas` is `True`", ""),
        (
            {"roles": [{"name": "r", "image": "i", "retry_policy": "X"}]},
            "`roles[0].retry_policy` is `X`",
            "APPLICATION",
        ),
        (
            {"roles": [{"name": "r", "image": "i", "mounts": [{"type": "x"}]}]},
            "`roles[0].mounts[0].type` is `x`",
            "bind",
        ),
        ({"roles": [{"name": "r", "image": "i", "resource": {"cpu": 1}}]}, "`roles[0].resource` has no `memMB`", ""),
        ({"roles": [{"name": "r", "image": "i", "workspace": {"projects": {"a": 1}}}]}, "maps `'a'` to `1`", ""),
    ],
)
def test_errors_name_the_place(change: dict[str, Any], message: str, hint: str) -> None:
    """The error has the path and the invalid value, and may have a hint."""
    with pytest.raises(SpecError) as e:
        appdef_from_dict({"version": 1, "name": "a", **change})
    assert message in str(e.value)
    assert hint in e.value.hint


def test_missing_keys_have_the_defaults() -> None:
    """Missing keys get the defaults, for files written by hand."""
    assert appdef_from_dict({"name": "a", "roles": [{"name": "r", "image": "i"}]}) == AppDef("a", [Role("r", "i")])


@pytest.mark.parametrize(
    ("role", "path"),
    [
        (Role("r", "i", overrides={"image": print}), "roles[0].overrides.image"),
        (Role("r", "i", metadata={"a": [1, {"b c": {1}}]}), "roles[0].metadata.a[1]['b c']"),
        (Role("r", "i", metadata={"a": (1, 2)}), "roles[0].metadata.a"),
        (Role("r", "i", metadata={"a": float("nan")}), "roles[0].metadata.a"),
        (Role("r", "i", metadata={"a": {1: 2}}), "roles[0].metadata.a"),
        (Role("r", "i", resource=Resource(1, 0, 1, tags={"t": object()})), "roles[0].resource.tags.t"),
        (Role("r", pathlib.Path("i")), "roles[0].image"),  # type: ignore[arg-type]
        (Role("r", "i", mounts=["x", 5]), "roles[0].mounts[0]"),  # type: ignore[list-item]
        (Role("r", "i", mounts=[BindMount(pathlib.Path("/a"), "b")]), "roles[0].mounts[0].src_path"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_json_cannot_hold_is_named_or_given_to_the_fallback(role: Role, path: str) -> None:
    """Without a fallback the error has the path; with one, the other values are kept."""
    app = AppDef("a", [role])
    with pytest.raises(SpecError) as e:
        appdef_to_dict(app)
    assert f"`{path}`" in str(e.value)
    made = json.loads(json.dumps(appdef_to_dict(app, fallback=repr)))
    assert made["roles"][0]["name"] == "r"


def test_masked_shows_no_credentials_and_leaves_the_original_alone() -> None:
    """env, args and metadata are masked in a copy, by name and in URLs, at any depth."""
    app = AppDef(
        "a",
        [
            Role(
                "r",
                "i",
                args=["--api-key", "hunter2", "--url=postgres://me:hunter2@h/db"],
                env={"HF_TOKEN": "hunter2", "EPOCHS": "3"},
                metadata={"k8s": [{"password": "hunter2", "n": 1}]},
            )
        ],
        {"db_password": "hunter2"},
    )
    before = copy.deepcopy(app)
    shown = masked(app)
    assert "hunter2" not in repr(shown)
    assert shown.roles[0].env["EPOCHS"] == "3"
    assert shown.roles[0].metadata["k8s"][0]["n"] == 1
    assert app == before
