"""Mounts and their string form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import SpecError
from torchx.specs import BindMount, DeviceMount, MountType, VolumeMount
from torchx.specs.mounts import format_mount, parse_mounts

_text = st.text(min_size=1)
_permissions = st.sampled_from(["r", "w", "m", "rw", "rwm", "mr"])
_mounts = st.one_of(
    st.builds(BindMount, _text, _text, st.booleans()),
    st.builds(VolumeMount, _text, _text, st.booleans()),
    st.builds(DeviceMount, _text, _text, _permissions),
)


@given(st.lists(_mounts))
def test_parse_is_the_inverse_of_format(mounts: list[BindMount | VolumeMount | DeviceMount]) -> None:
    """Any mounts, also with commas, equals signs, backslashes and spaces, survive the round trip."""
    assert parse_mounts([format_mount(m) for m in mounts]) == mounts
    assert parse_mounts([",".join(format_mount(m) for m in mounts)]) == mounts


@given(st.lists(st.text(alphabet="type=bind,src/dst\\ readonlyvm", max_size=30), max_size=4))
def test_garbage_is_a_spec_error(opts: list[str]) -> None:
    """The parser raises no other exception."""
    try:
        parse_mounts(opts)
    except SpecError as e:
        assert str(e)


@pytest.mark.parametrize(
    ("opts", "expected"),
    [
        ([], []),
        (["type=bind", "src=/a", "dst=/b"], [BindMount("/a", "/b")]),
        (["type=bind", "src=/a", "dst=/b", "readonly"], [BindMount("/a", "/b", read_only=True)]),
        (["type=bind,source=/a,target=/b,ro=false"], [BindMount("/a", "/b")]),
        (["type=volume,src=v,destination=/b,readonly=true"], [VolumeMount("v", "/b", read_only=True)]),
        (["type=device,src=/dev/fuse"], [DeviceMount("/dev/fuse", "/dev/fuse", "rwm")]),
        (["type=device,src=/dev/a,dst=/dev/b,permissions=rw"], [DeviceMount("/dev/a", "/dev/b", "rw")]),
        (["type=device,src=/dev/a,perm=r"], [DeviceMount("/dev/a", "/dev/a", "r")]),
        (
            ["type=bind", "src=/a", "dst=/b", "type=volume", "src=v", "dst=/c"],
            [BindMount("/a", "/b"), VolumeMount("v", "/c")],
        ),
        (["type=bind,src=/a=b,dst=/c"], [BindMount("/a=b", "/c")]),
        (["type=bind,src=/a\\,b,dst=/c"], [BindMount("/a,b", "/c")]),
        (["type=bind,src=C:\\data,dst=/c"], [BindMount("C:\\data", "/c")]),
    ],
)
def test_parse(opts: list[str], expected: list[object]) -> None:
    """All spellings of `docker run --mount` are accepted, split at commas or not."""
    assert parse_mounts(opts) == expected


@pytest.mark.parametrize(
    ("opts", "message", "hint"),
    [
        (["src=/a"], "`src=/a` comes before any `type=`", "type=bind"),
        (["type=bnd,src=/a,dst=/b"], "mount type `bnd`", "did you mean `bind`?"),
        (["type=tmpfs"], "mount type `tmpfs`", "one of: bind, volume, device"),
        (["type=bind,dst=/b"], "has no `src`", "src="),
        (["type=bind,src=/a"], "has no `dst`", "dst="),
        (["type=bind,src=,dst=/b"], "has no `src`", "src="),
        (["type=bind,src=/a,dst=/b,src=/c"], "`src=/c` is given twice", "type="),
        (["type=bind,sorce=/a,dst=/b"], "`sorce=/a` is not known", "did you mean `source`?"),
        (["type=bind,src"], "`src` has no value", "src="),
        (["type=bind,src=/a,dst=/b,readonly=maybe"], "`readonly=maybe`", "readonly"),
        (["type=bind,src=/a,dst=/b,perm=r"], "bind mount takes no `perm`", "type=bind"),
        (["type=device,src=/a,readonly"], "device mount takes no `readonly`", "type=bind"),
        (["type=device,src=/a,perm=rx"], "`rx`", "perm=rw"),
        (["type=device,src=/a,perm="], "``", "perm=rw"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_errors_name_the_piece(opts: list[str], message: str, hint: str) -> None:
    """The error is one line with the invalid piece, and has a hint."""
    with pytest.raises(SpecError) as e:
        parse_mounts(opts)
    assert message in str(e.value)
    assert hint in e.value.hint


def test_mount_types() -> None:
    """MountType has the names that follow `type=`."""
    assert {t.value for t in MountType} == {"bind", "volume", "device"}
