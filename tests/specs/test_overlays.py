"""Overlays: changes of a user to the request of a scheduler."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.schedulers.kubernetes.overlays import (
    DEL,
    JOIN,
    PUT,
    apply_overlay,
    get_overlay,
    pod_overlay,
    set_overlay,
    validate_overlay,
)
from torchx.specs import AppDef, Role


@pytest.mark.parametrize(
    ("base", "overlay", "expected"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}),
        ({"a": [1]}, {"a": [2]}, {"a": [1, 2]}),
        ({"a": [1]}, {"a": 5}, {"a": 5}),
        ({"a": [1]}, {PUT("a"): [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {PUT("a"): {"c": 2}}, {"a": {"c": 2}}),
        ({"a": 1, "b": 2}, {DEL("a"): None, DEL("zzz"): None}, {"b": 2}),
        ({"a": {"b": 1, "c": 2}}, {"a": {DEL("b"): None}}, {"a": {"c": 2}}),
        ({}, {"a": {PUT("b"): [1], DEL("c"): None}}, {"a": {"b": [1]}}),
        ({}, {"a": [{PUT("b"): 1}]}, {"a": [{"b": 1}]}),
        (
            {"c": [{"name": "x", "env": [1]}, {"name": "y"}]},
            {JOIN("c", on="name"): [{"name": "x", "env": [2]}, {"name": "z"}]},
            {"c": [{"name": "x", "env": [1, 2]}, {"name": "y"}, {"name": "z"}]},
        ),
        ({}, {JOIN("c", on="name"): [{"name": "z"}]}, {"c": [{"name": "z"}]}),
    ],
)
def test_apply(base: dict[str, Any], overlay: dict[str, Any], expected: dict[str, Any]) -> None:
    """Dicts are merged, lists appended, other values replaced, operators applied; the overlay is unchanged."""
    before = copy.deepcopy(overlay)
    apply_overlay(base, overlay)
    assert base == expected
    assert overlay == before


def test_nothing_is_shared() -> None:
    """Changing the request later does not change the overlay."""
    overlay: dict[str, Any] = {"a": {"b": [1]}, PUT("c"): [{"d": 1}], JOIN("e", on="n"): [{"n": 1, "l": [1]}]}
    before = copy.deepcopy(overlay)
    base: dict[str, Any] = {}
    apply_overlay(base, overlay)
    base["a"]["b"].append(2)
    base["c"][0]["d"] = 2
    base["e"][0]["l"].append(2)
    assert overlay == before


@pytest.mark.parametrize(
    ("base", "overlay"),
    [
        ({"a": [1]}, {"a": {"b": 1}}),
        ({"a": 5}, {JOIN("a", on="n"): [{"n": 1}]}),
        ({}, {JOIN("a", on="n"): [{"m": 1}]}),
        ({}, {JOIN("a", on="n"): "x"}),
        ({}, {"!join(a": []}),
    ],
)
def test_apply_refuses(base: dict[str, Any], overlay: dict[str, Any]) -> None:
    """An overlay that does not fit the request raises SpecError."""
    with pytest.raises(SpecError):
        apply_overlay(base, overlay)


@pytest.mark.parametrize("target", [Role("r", "i"), AppDef("a")], ids=["role", "app"])
def test_set_and_get(target: AppDef | Role) -> None:
    """Each namespace and kind has its own overlay; get returns a copy, and the metadata remain JSON."""
    target = copy.deepcopy(target)
    assert get_overlay(target, "kubernetes", "pod") == {}
    set_overlay(target, "kubernetes", "pod", {"spec": {PUT("x"): [1]}})
    set_overlay(target, "kubernetes", "job", {"a": 1})
    set_overlay(target, "slurm", "pod", {"b": 1})
    got = get_overlay(target, "kubernetes", "pod")
    assert got == {"spec": {PUT("x"): [1]}}
    got["spec"]["y"] = 1
    assert get_overlay(target, "kubernetes", "pod") == {"spec": {PUT("x"): [1]}}
    assert get_overlay(target, "kubernetes", "job") == {"a": 1}
    assert get_overlay(target, "slurm", "pod") == {"b": 1}
    json.dumps(target.metadata)
    if isinstance(target, AppDef):
        assert all(isinstance(v, str) for v in target.metadata.values())


def test_metadata_that_hold_something_else() -> None:
    """A namespace or overlay of the wrong type raises an error that names it."""
    with pytest.raises(SpecError, match="k8s"):
        set_overlay(Role("r", "i", metadata={"k8s": "text"}), "k8s", "pod", {})
    for role in (Role("r", "i", metadata={"k8s": "text"}), Role("r", "i", metadata={"k8s": {"pod": [1]}})):
        with pytest.raises(SpecError, match=r"k8s\.pod"):
            get_overlay(role, "k8s", "pod")
    for text in ("{", "[1]"):
        with pytest.raises(SpecError, match=r"k8s\.pod"):
            get_overlay(AppDef("a", metadata={"k8s.pod": text}), "k8s", "pod")


@pytest.mark.parametrize(
    ("overlay", "kwargs", "message"),
    [
        ([], {}, "not a dict"),
        ({1: 2}, {}, "`1`"),
        ({"a": {"b": object()}}, {}, "`a.b`"),
        ({"metadata": {"name": "x"}}, {"blocklist": ["metadata.name"]}, "`metadata.name`"),
        ({"metadata": {DEL("name"): None}}, {"blocklist": ["metadata.name"]}, "`metadata.name`"),
        ({PUT("metadata"): {"name": "x"}}, {"blocklist": ["metadata.name"]}, "`metadata.name`"),
        ({"a": [{"image": 1}]}, {"forbidden_keys": {"image"}}, "`image`"),
        ({JOIN("a", on="n"): [{}]}, {}, "has no `n`"),
        ({"!join(": 1}, {}, "malformed"),
    ],
)
def test_validate_refuses(overlay: Any, kwargs: dict[str, Any], message: str) -> None:
    """The error names the path; the suggestion is the hint."""
    with pytest.raises(SpecError) as e:
        validate_overlay(overlay, suggestion="do otherwise", **kwargs)
    assert message in str(e.value)
    if kwargs:
        assert e.value.hint == "do otherwise"


def test_validate_accepts() -> None:
    """Paths and keys similar to forbidden ones are allowed."""
    overlay = {"metadata": {"labels": {"name": "x"}}, "names": [1, "a", None, 1.5, True]}
    validate_overlay(overlay, blocklist=["metadata.name"], forbidden_keys={"image"})


@pytest.mark.parametrize("target", [Role("r", "i"), AppDef("a")], ids=["role", "app"])
@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        ({"spec": {"a": 1}}, {"spec": {"b": 2}}, {"spec": {"a": 1, "b": 2}}),
        ({"l": [1]}, {"l": [2]}, {"l": [1, 2]}),
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": {"x": 1}}, {PUT("a"): {"y": 1}}, {PUT("a"): {"y": 1}}),
        ({PUT("a"): {"y": 1}}, {"a": {"x": 1}}, {"a": {"x": 1}}),
        ({PUT("a"): [1]}, {DEL("a"): None}, {DEL("a"): None}),
        ({DEL("a"): None}, {PUT("a"): [1]}, {PUT("a"): [1]}),
        ({DEL("a"): None}, {JOIN("a", on="n"): [{"n": 1}]}, {JOIN("a", on="n"): [{"n": 1}]}),
        (
            {JOIN("a", on="n"): [{"n": 1, "x": 1}]},
            {JOIN("a", on="n"): [{"n": 1, "v": 2}]},
            {JOIN("a", on="n"): [{"n": 1, "x": 1}, {"n": 1, "v": 2}]},
        ),
    ],
)
def test_a_second_overlay_adds(target: Any, one: Any, two: Any, both: Any) -> None:
    """Two overlays are merged; of several operators for one field the last one counts."""
    target = copy.deepcopy(target)
    set_overlay(target, "kubernetes", "pod", one)
    set_overlay(target, "kubernetes", "pod", two)
    assert get_overlay(target, "kubernetes", "pod") == both
    added = copy.deepcopy(one)
    apply_overlay(added, two, _resolve=False)
    assert added == both


def test_metadata_may_name_a_file(tmp_path: Path) -> None:
    """A YAML or JSON file may replace a namespace or an overlay."""
    pytest.importorskip("yaml")
    flat, nested, json_file = tmp_path / "flat.yaml", tmp_path / "nested.yaml", tmp_path / "o.json"
    flat.write_text("spec:\n  x: 1\n")
    nested.write_text("pod:\n  spec:\n    x: 1\njob: {}\n")
    json_file.write_text('{"spec": {"x": 1}}')
    for metadata in (
        {"kubernetes": f"file://{flat}"},
        {"kubernetes": str(nested)},
        {"kubernetes": {"pod": str(json_file)}},
    ):
        assert get_overlay(Role("r", "i", metadata=metadata), "kubernetes", "pod") == {"spec": {"x": 1}}
    with pytest.raises(SpecError, match="cannot be read"):
        get_overlay(Role("r", "i", metadata={"kubernetes": f"file://{tmp_path}/none.yaml"}), "kubernetes", "pod")


SPEC = {"spec": {"nodeSelector": {"pool": "gpu"}, "volumes": ({"name": "v"},)}}
AS_POD = {"spec": {"nodeSelector": {"pool": "gpu"}, PUT("volumes"): [{"name": "v"}]}}
YAML = "V1Pod:\n  spec:\n    nodeSelector: {pool: gpu}\n    volumes: !!python/tuple\n    - name: v\n"


@pytest.mark.parametrize(
    "metadata",
    [
        {"kubernetes": SPEC},
        {"kubernetes": {"apiVersion": "v1", "kind": "Pod", **SPEC}},
        {"kubernetes": {"V1Pod": SPEC}},
        {"kubernetes": {"pod": SPEC}},
        {
            "kubernetes": {
                "pod": {"V1Pod": {"spec": {"nodeSelector": {"pool": "gpu"}}}},
                "spec": {"volumes": SPEC["spec"]["volumes"]},
            }
        },
        {"kubernetes": "file://FOLDER/o.yaml"},
        {"kubernetes": "memory://o.yaml"},
        {"kubernetes": {"V1Pod": "FOLDER/o.yaml"}},
    ],
)
@pytest.mark.parametrize("of_app", [False, True])
def test_all_forms_of_a_pod_overlay(metadata: dict[str, Any], of_app: bool, tmp_path: Path) -> None:
    """A pod, with or without its kind around it, as dict or file; of a role or an app; tuples replace a list."""
    import fsspec

    (tmp_path / "o.yaml").write_text(YAML)
    fsspec.filesystem("memory").pipe("o.yaml", YAML.encode())
    given = eval(repr(metadata).replace("FOLDER", str(tmp_path)))
    target = AppDef("a", metadata=given) if of_app else Role("r", "img", metadata=given)
    assert pod_overlay(target) == AS_POD
    before = copy.deepcopy(target)
    for kind in ("pod", "V1Pod"):
        other = AppDef("a") if of_app else Role("r", "img")
        set_overlay(other, "kubernetes", kind, SPEC)
        assert pod_overlay(other) == AS_POD
    assert target == before


@pytest.mark.parametrize(
    "found",
    [{"tolerations": []}, {"V1Job": {}}, {5: 1}, {"kind": "Job"}, {"pod": {"status": {}}}, ["spec"], 5, "nowhere.yaml"],
)
def test_what_is_not_understood_is_no_pod_overlay(found: Any) -> None:
    """It is an error that names it, not a field of the pod, and not silence."""
    for target in (Role("r", "img", metadata={"kubernetes": found}), AppDef("a", metadata={"kubernetes": found})):
        with pytest.raises(SpecError, match=r"metadata `kubernetes` of `[ar]`"):
            pod_overlay(target)
