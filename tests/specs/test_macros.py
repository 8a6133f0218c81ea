"""Macros: five names are substituted, everything else is left to the shell."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from torchx.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount, Workspace, macros

VALUES = macros.Values(img_root="/img", app_id="job_1", replica_id="3", rank0_env="HOST0", base_img_root="/base")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        (macros.img_root, "/img"),
        (macros.base_img_root, "/base"),
        (f"{macros.app_id}-{macros.replica_id}", "job_1-3"),
        (f"${{{macros.rank0_env}}}:29500", "${HOST0}:29500"),
        (f"$${macros.app_id}", "$$job_1"),
        ("$$ $HOME ${HOME} ${", "$$ $HOME ${HOME} ${"),
        ("${app_id", "${app_id"),
        ("$app_id", "$app_id"),
        ("${ app_id }", "${ app_id }"),
        ("${app_id}}", "job_1}"),
        ("${${app_id}}", "${job_1}"),
        ("${x${app_id}", "${xjob_1"),
        ("100% $5 {} {app_id}", "100% $5 {} {app_id}"),
    ],
)
def test_substitute(text: str, expected: str) -> None:
    """Only `${name}` with one of the five names is substituted."""
    assert VALUES.substitute(text) == expected


def test_a_replaced_value_is_not_searched_again() -> None:
    """An app id that looks like a macro is not substituted."""
    values = macros.Values(img_root="${app_id}", app_id="${replica_id}", replica_id="1", rank0_env="R")
    assert values.substitute("${img_root} ${app_id}") == "${app_id} ${replica_id}"


def test_base_img_root_is_img_root_when_not_given() -> None:
    """Schedulers with one image root need to give it only once."""
    assert macros.Values("/img", "a", "0", "R").substitute(macros.base_img_root) == "/img"


@given(st.text(alphabet="${}ab_ id"))
def test_text_without_a_macro_never_changes(text: str) -> None:
    """Any text of dollars and braces without macro or escape is unchanged."""
    assume("$${" not in text)
    assert VALUES.substitute(text) == text


@given(st.lists(st.sampled_from(["${app_id}", "${replica_id}", "${", "}", "$", "x", "${nope}"])))
def test_concatenation(parts: list[str]) -> None:
    """Each complete macro in a text is substituted, and nothing else."""
    text = "".join(parts)
    assume("$${" not in text)
    expected = text.replace("${app_id}", "job_1").replace("${replica_id}", "3")
    assert VALUES.substitute(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$${app_id}", "${app_id}"),
        ("$$${app_id}", "$$job_1"),
        ("$$$${app_id}", "$${app_id}"),
        ("$${${app_id}:=x}", "${job_1:=x}"),
        ("${app_id}$${HOME}", "job_1${HOME}"),
        ("$$", "$$"),
        ("$$HOME", "$$HOME"),
    ],
)
def test_a_doubled_dollar_escapes_a_brace(text: str, expected: str) -> None:
    """`$${` becomes `${` for the shell; other doubled dollars, such as the shell's process id, are kept."""
    assert VALUES.substitute(text) == expected


def test_a_value_that_ends_in_a_dollar_escapes_nothing() -> None:
    """A dollar at the end of a substituted value does not escape the next macro."""
    values = macros.Values(img_root="a$", app_id="b", replica_id="1", rank0_env="R")
    assert values.substitute("${img_root}${app_id}") == "a$b"


def test_apply_replaces_in_all_documented_places() -> None:
    """Macros in args, env, nested metadata, mounts and entrypoint are substituted; the old role is unchanged."""
    role = Role(
        "r",
        "img",
        entrypoint="${img_root}/bin",
        args=["--id", macros.app_id],
        env={"R": macros.replica_id, "${app_id}": "key"},
        metadata={"a": [macros.app_id, {"b": (macros.replica_id, 1)}], "n": 1},
        mounts=[
            BindMount("/out/${app_id}", "${img_root}/out"),
            VolumeMount("vol-${replica_id}", "/v", read_only=True),
            DeviceMount("/dev/${replica_id}", "/dev/x", permissions="r"),
        ],
        resource=Resource(1, 0, 2),
        port_map={"p": 1},
        workspace=Workspace({"/s": ""}),
    )
    before = dataclasses.asdict(role)
    new = VALUES.apply(role)
    assert new == Role(
        "r",
        "img",
        entrypoint="/img/bin",
        args=["--id", "job_1"],
        env={"R": "3", "${app_id}": "key"},
        metadata={"a": ["job_1", {"b": ("3", 1)}], "n": 1},
        mounts=[
            BindMount("/out/job_1", "/img/out"),
            VolumeMount("vol-3", "/v", read_only=True),
            DeviceMount("/dev/3", "/dev/x", permissions="r"),
        ],
        resource=Resource(1, 0, 2),
        port_map={"p": 1},
        workspace=Workspace({"/s": ""}),
    )
    new.args.append("x")
    new.env["x"] = "y"
    new.metadata["x"] = 1
    new.mounts.clear()
    new.port_map.clear()
    assert dataclasses.asdict(role) == before


def test_apply_keeps_the_class_of_the_role() -> None:
    """The role of each replica has the same subclass, with its pre_proc hook."""

    class MyRole(Role):
        pass

    assert type(VALUES.apply(MyRole("r", "img"))) is MyRole
    assert AppDef("a", [VALUES.apply(MyRole("r", "img"))]).roles[0].name == "r"


def test_arguments_that_are_no_strings_pass_through() -> None:
    """Numbers in args and env are unchanged; the scheduler renders them."""
    numbers: Any = {"args": ["a", 5], "env": {"A": 1}}
    new = VALUES.apply(Role("r", "img", **numbers))
    assert {"args": new.args, "env": new.env} == numbers
