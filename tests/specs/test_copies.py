"""Deep copies: the same as `copy.deepcopy` makes, nothing shared with the original."""

from __future__ import annotations

import copy
import dataclasses
import enum
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.specs import AppDef, BindMount, Resource, RetryPolicy, Role
from torchx.specs.copies import copy_data

TEXT = st.text(max_size=5)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3) | st.tuples(inner, inner) | st.sets(TEXT)
    ),
    max_leaves=12,
)
ROLES = st.builds(
    Role,
    name=TEXT,
    image=TEXT,
    args=st.lists(TEXT, max_size=3),
    env=st.dictionaries(TEXT, TEXT, max_size=3),
    retry_policy=st.sampled_from(RetryPolicy),
    resource=st.builds(Resource, st.integers(), st.integers(), st.integers(), st.dictionaries(TEXT, PLAIN, max_size=2)),
    metadata=st.dictionaries(TEXT, PLAIN, max_size=3),
    mounts=st.lists(st.builds(BindMount, TEXT, TEXT, st.booleans()), max_size=2),
)
APPS = st.builds(AppDef, TEXT, st.lists(ROLES, max_size=3), st.dictionaries(TEXT, TEXT, max_size=2))


class Hold:
    """A class of a user."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hold) and self.inner == other.inner

    __hash__ = None


class Flag(enum.Enum):
    """An enumeration whose value could be changed."""

    A = [1]  # noqa: RUF012  # that is the point


class Own(Role):
    """A role with its own `__deepcopy__`."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        return Own("copied", self.image)


@dataclasses.dataclass
class RealRole(Role):
    """A role that is a dataclass of the standard library."""

    extra: list[int] = dataclasses.field(default_factory=list)


def mutables(value: Any) -> dict[int, Any]:
    """All mutable objects inside a value, by identity."""
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list | tuple):
        inner = list(value)
    elif hasattr(value, "__dict__") and not isinstance(value, enum.Enum | type):
        inner = list(vars(value).values())
    else:
        return {id(value): value} if isinstance(value, set) else {}
    found = {} if isinstance(value, tuple) else {id(value): value}
    for item in inner:
        found.update(mutables(item))
    return found


@given(value=PLAIN | APPS)
def test_a_copy_is_equal_and_shares_nothing(value: Any) -> None:
    """The copy equals that of `copy.deepcopy`, with the same types, and shares no mutable object with the original."""
    duplicate = copy_data(value)
    assert duplicate == value == copy.deepcopy(value)
    assert type(duplicate) is type(value)
    assert not mutables(duplicate).keys() & mutables(value).keys()


@pytest.mark.parametrize(
    "value", [Hold([1]), {"a": Hold({"b": [2]})}, RealRole("r", "i", extra=[1], metadata={"k": Hold([3])})]
)
def test_objects_of_others(value: Any) -> None:
    """`copy.deepcopy` copies unknown classes, and the class is preserved."""
    duplicate = copy_data(value)
    assert duplicate == value
    assert type(duplicate) is type(value)
    assert not mutables(duplicate).keys() & mutables(value).keys()


def test_a_class_that_copies_itself() -> None:
    """Its `__deepcopy__` takes precedence, also inside an app and at the second copy."""
    for _ in range(2):
        assert copy_data(AppDef("a", [Own("mine", "i")])).roles[0].name == "copied"


def test_members_of_an_enumeration_stay_themselves() -> None:
    """Enum members are not copied, whatever their value, also after their class is cached."""
    for _ in range(2):
        assert copy_data([Flag.A, RetryPolicy.ROLE]) == [Flag.A, RetryPolicy.ROLE]
        assert copy_data({"f": Flag.A})["f"] is Flag.A


def test_overrides_are_not_copied_deeply() -> None:
    """Overrides may hold values that cannot be copied; only the dict is new."""
    lock = threading.Lock()
    role = Role("r", "i", overrides={"image": lock})
    duplicate = copy_data(role)
    assert duplicate.overrides == {"image": lock}
    assert duplicate.overrides is not role.overrides
