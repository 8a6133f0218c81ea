"""Records behave as the dataclasses of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from torchx.util.records import dataclass, field, is_record, own_annotations, record_fields


@dataclass
class Point:
    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list)
    label: str = field(default="p", repr=False, compare=False)
    kind: ClassVar[str] = "point"


@dataclasses.dataclass
class RealPoint:
    x: int
    y: int = 0
    tags: list[str] = dataclasses.field(default_factory=list)
    label: str = dataclasses.field(default="p", repr=False, compare=False)
    kind: ClassVar[str] = "point"


@dataclass(frozen=True)
class Frozen:
    x: int
    y: str = "a"


@dataclass(kw_only=True)
class KwOnly:
    x: int = 1
    y: int


def _pair(text: str) -> tuple[Any, Any]:
    """Evaluate an expression for the record and for the real dataclass."""
    return eval(text, {"P": Point}), eval(text, {"P": RealPoint})


@pytest.mark.parametrize(
    "text",
    [
        "P(1) == P(1)",
        "P(1) == P(2)",
        "P(1, label='a') == P(1, label='b')",
        "P(1).__eq__((1, 0))",
        "(P(1, 2, ['t']).x, P(1, 2, ['t']).y, P(1, 2, ['t']).tags, P(1).label)",
        "P.y, P.label, P.kind",
        "hasattr(P, 'x'), hasattr(P, 'tags')",
        "P.__hash__",
        "P.__match_args__",
        "P(float('nan')) == P(1)",
    ],
)
def test_a_record_does_as_the_real_dataclass(text: str) -> None:
    """Equality, attributes, defaults, hash and match arguments are those of dataclasses."""
    ours, real = _pair(text)
    assert ours == real or ours is real


def test_repr_is_the_same_but_for_the_name() -> None:
    """`repr` has the fields in order, without those with repr=False."""
    assert repr(Point(1, 2, ["t"])) == repr(RealPoint(1, 2, ["t"])).replace("RealPoint", "Point")


def test_repr_of_a_cycle_ends() -> None:
    """The repr of an object that contains itself has an ellipsis."""
    p = Point(1)
    p.tags.append(p)  # type: ignore[arg-type]
    assert repr(p) == "Point(x=1, y=0, tags=[...])"


def test_nan_equals_itself_inside_a_record() -> None:
    """Fields are compared like tuples: the same object equals itself (as in dataclasses up to Python 3.12)."""
    nan = float("nan")
    assert Point(nan) == Point(nan)
    if sys.version_info < (3, 13):
        assert RealPoint(nan) == RealPoint(nan)  # type: ignore[arg-type]


def test_fields_are_those_of_dataclasses() -> None:
    """`dataclasses.fields` returns name, type, default, factory, repr and compare."""
    for ours, real in zip(dataclasses.fields(Point), dataclasses.fields(RealPoint), strict=True):
        for attribute in (
            "name",
            "type",
            "default",
            "default_factory",
            "repr",
            "compare",
            "kw_only",
            "init",
        ):
            assert getattr(ours, attribute) == getattr(real, attribute), (ours.name, attribute)


def test_the_functions_of_dataclasses_take_records() -> None:
    """`asdict`, `astuple`, `replace` and `is_dataclass` work, on the class and on instances."""
    p = Point(1, tags=["a"])
    assert dataclasses.is_dataclass(Point)
    assert dataclasses.is_dataclass(p)
    assert dataclasses.asdict(p) == {"x": 1, "y": 0, "tags": ["a"], "label": "p"}
    assert dataclasses.astuple(p) == (1, 0, ["a"], "p")
    assert dataclasses.replace(p, y=5) == Point(1, 5, ["a"])
    assert p.__replace__(y=5) == Point(1, 5, ["a"])  # what copy.replace calls


@pytest.mark.parametrize("args", [(), (1, 2, [], "l", "too many")], ids=["too few", "too many"])
def test_wrong_arguments_are_refused_in_the_same_words(args: tuple[Any, ...]) -> None:
    """Wrong arguments raise TypeError with the message of an ordinary function."""
    with pytest.raises(TypeError) as ours:
        Point(*args)
    with pytest.raises(TypeError) as real:
        RealPoint(*args)
    assert str(ours.value) == str(real.value).replace("RealPoint", "Point")


def test_signature_of_class_and_init() -> None:
    """`inspect.signature` shows the fields with their defaults, also before the first instance."""

    @dataclass
    class Fresh:
        a: int
        b: str = "x"

    assert str(inspect.signature(Fresh)) == "(a: 'int', b: 'str' = 'x') -> None"
    assert list(inspect.signature(Fresh.__init__).parameters) == ["self", "a", "b"]
    assert inspect.isfunction(Fresh.__init__)
    assert Fresh.__init__.__qualname__.endswith("Fresh.__init__")


def test_pickle_and_copies() -> None:
    """Records survive pickle of every protocol, copy and deepcopy."""
    p = Point(1, 2, ["a"])
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(p, protocol)) == p
        assert pickle.loads(pickle.dumps(Frozen(3), protocol)) == Frozen(3)
    deep = copy.deepcopy(p)
    assert deep == p
    assert deep.tags is not p.tags
    assert copy.copy(p).tags is p.tags


def test_factories_make_a_new_value_each_time() -> None:
    """Two instances never share the value of a default_factory."""
    assert Point(1).tags is not Point(1).tags


def test_structural_match() -> None:
    """`match` binds positional patterns in order of the fields."""
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("no match")


def test_frozen_refuses_and_hashes() -> None:
    """Assignment and deletion raise FrozenInstanceError; equal objects have equal hashes."""
    f = Frozen(1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del f.x
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.other = 2  # type: ignore[attr-defined]
    assert len({Frozen(1), Frozen(1), Frozen(2)}) == 2


def test_a_plain_subclass_of_a_frozen_record_may_have_attributes_of_its_own() -> None:
    """In a plain subclass only the fields are protected, as in dataclasses."""

    class Sub(Frozen):
        def __init__(self) -> None:
            super().__init__(1)
            self.extra = 5
            del self.extra
            self.extra = 6

    s = Sub()
    assert s.extra == 6
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        del s.x


def test_kw_only() -> None:
    """Keyword-only fields may follow fields with defaults, and reject positional arguments."""
    assert KwOnly(y=2) == KwOnly(x=1, y=2)
    with pytest.raises(TypeError):
        KwOnly(1, 2)
    assert KwOnly.__match_args__ == ()
    assert all(f.kw_only for f in dataclasses.fields(KwOnly))


def test_record_of_record() -> None:
    """Fields of the base come first; a redefined field keeps its place and takes the new default."""

    @dataclass
    class Sub(Point):
        z: int = 9
        y: int = 7

    assert repr(Sub(1)) == f"{Sub.__qualname__}(x=1, y=7, tags=[], z=9)"
    assert Sub(1) != Point(1, 7)
    assert [f.name for f in dataclasses.fields(Sub)] == ["x", "y", "tags", "label", "z"]


def test_real_dataclass_of_record_and_record_of_real_dataclass() -> None:
    """Records and dataclasses inherit from each other."""

    @dataclasses.dataclass
    class Real(Point):
        z: int = 9

    @dataclass
    class Record(RealPoint):
        z: int = 9

    for cls in (Real, Record):
        assert [f.name for f in dataclasses.fields(cls)] == ["x", "y", "tags", "label", "z"]
        made = cls(1, z=3)
        assert (made.x, made.y, made.tags, made.label, made.z) == (1, 0, [], "p", 3)
        assert dataclasses.replace(made, x=2).x == 2
    assert not is_record(Real)
    assert is_record(Record)


def test_frozen_real_dataclass_of_frozen_record() -> None:
    """The subclass is frozen, including the fields of its base."""

    @dataclasses.dataclass(frozen=True)
    class Sub(Frozen):
        z: int = 1

    s = Sub(1)
    for name in ("x", "z"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(s, name, 5)


def test_own_methods_are_kept() -> None:
    """`__init__`, `__repr__`, `__eq__`, `__hash__` of the class body are kept, and `__post_init__` is called."""

    @dataclass
    class Own:
        a: int

        def __init__(self, twice: int) -> None:
            self.a = twice // 2

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 7

    @dataclass
    class Post:
        a: int

        def __post_init__(self) -> None:
            self.a += 1

    assert (Own(4).a, repr(Own(4)), hash(Own(4))) == (2, "own", 7)
    assert Own(4) == Own(5)
    assert Post(1).a == 2


def test_super_init_reaches_the_lazy_one() -> None:
    """A subclass with its own `__init__` may call the base's before any instance of the base exists."""

    @dataclass
    class Base:
        a: int
        b: int = 2

    class Sub(Base):
        def __init__(self) -> None:
            super().__init__(1)

    assert (Sub().a, Sub().b) == (1, 2)


@pytest.mark.parametrize("default", [[], {}, set()], ids=["list", "dict", "set"])
def test_mutable_defaults_are_refused(default: Any) -> None:
    """A mutable default raises ValueError with the alternative, as in dataclasses."""
    with pytest.raises(ValueError, match="default_factory"):
        dataclass(type("C", (), {"__annotations__": {"a": Any}, "a": default}))


def test_an_unhashable_record_is_a_mutable_default_too() -> None:
    """A shared record as default would be shared by all instances."""
    with pytest.raises(ValueError, match="default_factory"):
        dataclass(type("C", (), {"__annotations__": {"a": Any}, "a": Point(1)}))


def test_record_fields_and_own_annotations() -> None:
    """The replacements of `dataclasses.fields` and `inspect.get_annotations` return the same information."""
    assert record_fields(Point) == [
        ("x", "int", None, False),
        ("y", "int", 0, True),
        ("tags", "list[str]", [], True),
        ("label", "str", "p", True),
    ]

    class Sub(Point):
        pass

    assert own_annotations(Sub) == {}
    assert not is_record(Sub)


def test_making_and_using_records_imports_nothing() -> None:
    """Defining, creating, printing and comparing records imports neither `dataclasses` nor `inspect`."""
    code = (
        "import sys\n"
        "from torchx.util.records import dataclass, field\n"
        "@dataclass(frozen=True)\n"
        "class P:\n"
        "    x: int\n"
        "    y: list = field(default_factory=list)\n"
        "assert P(1) == P(1) and repr(P(1)) == 'P(x=1, y=[])'\n"
        "print([m for m in ('dataclasses', 'inspect', 'typing') if m in sys.modules])\n"
    )
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": _root()}
    )
    assert found.stdout == "[]\n", found.stderr


def _root() -> str:
    import torchx

    return torchx.__path__[0].rpartition("/")[0]


def test_ctrl_c_while_a_record_is_made_can_be_handled(tmp_path: Path) -> None:
    """A program that catches KeyboardInterrupt determines its exit code, also with `python -m`: SIGINT does not kill it."""
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from torchx.util.records import dataclass\n"
        "def interrupted(frame, event, arg):\n"
        "    if event == 'call' and frame.f_code.co_filename.startswith('<'):\n"
        "        sys.setprofile(None)\n"
        "        raise KeyboardInterrupt\n"
        "sys.setprofile(interrupted)\n"
        "try:\n"
        "    @dataclass\n"
        "    class Record:\n"
        "        x: int = 1\n"
        "    Record()\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(130)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-m", "program"], env=env, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")
