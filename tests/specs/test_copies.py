"""Deep copies: the same as `copy.deepcopy` makes, nothing shared with the original, and copies put off until somebody looks."""

from __future__ import annotations

import copy
import dataclasses
import enum
import pickle
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.specs import AppDef, AppState, AppStatus, BindMount, ReplicaStatus, Resource, RetryPolicy, Role, RoleStatus
from torchx.specs.copies import CopiedOnLook, copy_data
from torchx.specs.status import STATUS_ROLES

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
    """Something of the user's own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hold) and self.inner == other.inner

    __hash__ = None


class Flag(enum.Enum):
    """An enumeration whose value could be changed."""

    A = [1]  # noqa: RUF012  # that is the point


class Own(Role):
    """A role that says itself how it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Own:
        return Own("copied", self.image)


@dataclasses.dataclass
class RealRole(Role):
    """A role by the standard library's decorator."""

    extra: list[int] = dataclasses.field(default_factory=list)


def mutables(value: Any) -> dict[int, Any]:
    """Every object within, that could be changed, by its identity."""
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
    """What `copy.deepcopy` would give, of the same types, and no dict, list or object in it is the original's."""
    duplicate = copy_data(value)
    assert duplicate == value == copy.deepcopy(value)
    assert type(duplicate) is type(value)
    assert not mutables(duplicate).keys() & mutables(value).keys()


@pytest.mark.parametrize(
    "value", [Hold([1]), {"a": Hold({"b": [2]})}, RealRole("r", "i", extra=[1], metadata={"k": Hold([3])})]
)
def test_objects_of_others(value: Any) -> None:
    """What we do not know is left to `copy.deepcopy`; a class of its own stays the class."""
    duplicate = copy_data(value)
    assert duplicate == value
    assert type(duplicate) is type(value)
    assert not mutables(duplicate).keys() & mutables(value).keys()


def test_a_class_that_copies_itself() -> None:
    """Its word goes before ours, in an app as by itself, the second time as the first."""
    for _ in range(2):
        assert copy_data(AppDef("a", [Own("mine", "i")])).roles[0].name == "copied"


def test_members_of_an_enumeration_stay_themselves() -> None:
    """There is one of each, whatever its value; also once its class has been met."""
    for _ in range(2):
        assert copy_data([Flag.A, RetryPolicy.ROLE]) == [Flag.A, RetryPolicy.ROLE]
        assert copy_data({"f": Flag.A})["f"] is Flag.A


def test_overrides_are_not_copied_deeply() -> None:
    """They may hold what cannot be copied; the dict itself is new."""
    lock = threading.Lock()
    role = Role("r", "i", overrides={"image": lock})
    duplicate = copy_data(role)
    assert duplicate.overrides == {"image": lock}
    assert duplicate.overrides is not role.overrides


# -- copied on look --------------------------------------------------------------------------------


def lent() -> tuple[AppStatus, list[RoleStatus]]:
    """A status, and the roles that it shares."""
    shared = [RoleStatus("w", [ReplicaStatus(0, AppState.FAILED, "w", "h", "{}")])]
    status = AppStatus(AppState.FAILED, msg="m")
    STATUS_ROLES.lend(status, shared)
    return status, shared


def expected() -> AppStatus:
    return AppStatus(AppState.FAILED, msg="m", roles=lent()[1])


@pytest.mark.parametrize(
    "look",
    [
        lambda status: status,
        copy.copy,
        copy.deepcopy,
        lambda status: pickle.loads(pickle.dumps(status)),
        dataclasses.replace,
        lambda status: AppStatus(**{**dataclasses.asdict(status), "roles": status.roles}),
    ],
    ids=["as it is", "copy", "deepcopy", "pickle", "replace", "asdict"],
)
def test_a_status_that_shares_its_roles_is_like_any_other(look: Any) -> None:
    """It is equal to, prints and converts as one that has its own, in both directions."""
    status = look(lent()[0])
    assert status == expected()
    assert expected() == look(lent()[0])
    for show in (repr, str, AppStatus.to_json, dataclasses.asdict):
        assert show(look(lent()[0])) == show(expected())


def test_who_looks_may_change_what_is_seen() -> None:
    """The others' value stays; the same copy is seen again."""
    status, shared = lent()
    status.roles[0].replicas[0].state = AppState.RUNNING
    status.roles.append(RoleStatus("x", []))
    assert [len(status.roles), status.roles[0].replicas[0].state] == [2, AppState.RUNNING]
    assert shared == lent()[1]
    assert STATUS_ROLES.lent(status) is None


def test_a_value_of_ones_own_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assigning does what it says, before and after a look."""
    status, shared = lent()
    status.roles = []
    assert status.roles == []
    STATUS_ROLES.lend(status, shared)
    assert status.roles == shared
    assert not hasattr(AppStatus, "roles")
    with pytest.raises(AttributeError, match="`AppStatus` has no attribute `roles`"):
        AppStatus.__new__(AppStatus).roles  # the look is the test


def test_two_threads_that_look_at_once_see_one_copy() -> None:
    """The copy may be made twice, and one of them is everybody's."""
    start, found = threading.Barrier(8), []

    class Slow(list):
        def __deepcopy__(self, memo: dict[int, Any]) -> list[int]:
            start.wait(300)
            return [1]

    field = CopiedOnLook("value")

    class Record:
        value = field

    record = Record()
    field.lend(record, Slow())
    threads = [threading.Thread(target=lambda: found.append(record.value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(found) == 8
    assert len({id(value) for value in found}) == 1
