"""Run options as fields of dataclasses and records, with all kinds of annotations."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from typing import Any, Dict, List, Optional  # noqa: UP035 - both styles

import pytest

from torchx.errors import ConfigError
from torchx.specs.options.structured_opts import StructuredOpts
from torchx.util import records


@dataclasses.dataclass
class Opts(StructuredOpts):
    cluster: str
    """Cluster to submit to."""

    partition: str | None = None
    """Partition,
    on two lines."""

    priority: int = 5
    ratio: Optional[float] = None
    "A ratio."
    quiet: bool = False
    ulimits: list[str] | None = None
    tags: Dict[str, str] = dataclasses.field(default_factory=dict)  # noqa: UP006 - both styles
    names: Optional[List[str]] = None  # noqa: UP006 - both styles


@records.dataclass
class RecordOpts(StructuredOpts):
    cluster: str
    """Cluster to submit to."""

    tags: dict[str, str] = records.field(default_factory=dict)
    ratio: float | None = None


@dataclasses.dataclass
class SubOpts(Opts):
    extra: int = 1
    """Something more."""


class PlainSub(Opts):
    pass


def test_as_runopts() -> None:
    """Each option has type, default, required and help of its field."""
    opts = dict(Opts.as_runopts())
    assert {n: o.opt_type for n, o in opts.items()} == {
        "cluster": str,
        "partition": str,
        "priority": int,
        "ratio": float,
        "quiet": bool,
        "ulimits": list[str],
        "tags": dict[str, str],
        "names": list[str],
    }
    assert {n: o.default for n, o in opts.items() if o.default is not None} == {
        "priority": 5,
        "quiet": False,
        "tags": {},
    }
    assert [n for n, o in opts.items() if o.is_required] == ["cluster"]
    assert (opts["cluster"].help, opts["partition"].help) == ("Cluster to submit to.", "Partition, on two lines.")
    assert (opts["ratio"].help, opts["priority"].help) == ("A ratio.", "")


def test_from_cfg() -> None:
    """Values come from the cfg, or from the defaults if missing or None; unknown keys are ignored."""
    opts = Opts.from_cfg({"cluster": "c", "priority": 1, "partition": None, "other": 5, "tags": {"a": "b"}})
    assert opts == Opts("c", priority=1, tags={"a": "b"})
    assert opts.tags == {"a": "b"}


def test_from_cfg_names_what_is_missing() -> None:
    """A required option without value raises ConfigError."""
    with pytest.raises(ConfigError, match="`cluster`"):
        Opts.from_cfg({"priority": 1})


def test_an_instance_reads_like_a_mapping() -> None:
    """`get`, `[]` and `in` work for the fields only."""
    opts = Opts("c")
    assert (opts.get("cluster"), opts["priority"], "quiet" in opts) == ("c", 5, True)
    assert opts.get("as_runopts") is None
    assert opts.get("nope", "x") == "x"
    with pytest.raises(KeyError):
        opts["nope"]
    assert Opts.from_cfg(typing.cast(typing.Any, opts)) == opts


@pytest.mark.parametrize("cls", [SubOpts, PlainSub], ids=["dataclass", "plain"])
def test_subclasses_inherit_fields_and_help(cls: type[Opts]) -> None:
    """A subclass inherits the options of its base."""
    opts = dict(cls.as_runopts())
    assert opts["cluster"].help == "Cluster to submit to."
    assert isinstance(cls.from_cfg({"cluster": "x"}), cls)
    assert ("extra" in opts) is (cls is SubOpts)
    assert cls is PlainSub or opts["extra"].help == "Something more."


def test_a_real_dataclass_below_a_record() -> None:
    """A dataclass below a record has the options of both."""

    @dataclasses.dataclass
    class Below(RecordOpts):
        more: int = 2
        """More."""

    opts = dict(Below.as_runopts())
    assert set(opts) == {"cluster", "tags", "ratio", "more"}
    assert (opts["cluster"].help, opts["more"].help) == ("Cluster to submit to.", "More.")


def test_records() -> None:
    """Records work like dataclasses."""
    opts = dict(RecordOpts.as_runopts())
    assert (opts["cluster"].is_required, opts["tags"].default, opts["ratio"].opt_type) == (True, {}, float)
    made = RecordOpts.from_cfg({"cluster": "x"})
    assert (made.cluster, made.tags, made.ratio) == ("x", {}, None)
    assert RecordOpts.get_docstrings() == {"cluster": "Cluster to submit to."}


def test_the_default_of_a_factory_is_not_shared() -> None:
    """Two resolved configurations do not share a dict."""
    opts = RecordOpts.as_runopts()
    first = opts.resolve({"cluster": "x"})["tags"]
    assert isinstance(first, dict)
    first["a"] = "b"
    assert opts.resolve({"cluster": "x"})["tags"] == {}


def test_a_class_inside_a_function_has_help() -> None:
    """The help of local classes is found; of two with the same name, that of the one with the same fields."""

    def make(first: bool) -> type[StructuredOpts]:
        if first:

            @dataclasses.dataclass
            class Local(StructuredOpts):
                a: int = 1
                """The first."""

            return Local

        @dataclasses.dataclass
        class Local(StructuredOpts):  # type: ignore[no-redef]
            b: int = 1
            """The second."""

        return Local

    assert make(True).get_docstrings() == {"a": "The first."}
    assert make(False).get_docstrings() == {"b": "The second."}


class Batch:
    """A scheduler with the class of its options inside."""

    @dataclasses.dataclass
    class Opts(StructuredOpts):
        """Its options."""

        queue: str = ""
        """Queue of the batch system."""


class Cloud:
    """Another one, with an option of the same name."""

    @dataclasses.dataclass
    class Opts(StructuredOpts):
        """Its options."""

        queue: str = ""
        """Queue of the cloud."""


def test_classes_of_the_same_name_in_two_classes_have_their_own_help() -> None:
    """Options classes inside two schedulers of one file each have their help, even with the same fields."""
    assert Batch.Opts.get_docstrings() == {"queue": "Queue of the batch system."}
    assert Cloud.Opts.get_docstrings() == {"queue": "Queue of the cloud."}


def test_without_source_there_is_no_help_and_all_else_works() -> None:
    """A class created by `exec`, as in a REPL, has no help."""
    module = types.ModuleType("torchx_test_no_source")
    sys.modules[module.__name__] = module
    try:
        exec(
            "from dataclasses import dataclass\n"
            "from torchx.specs.options.structured_opts import StructuredOpts\n"
            "@dataclass\n"
            "class Made(StructuredOpts):\n"
            "    a: 'int | None' = None\n"
            '    """Never seen."""\n',
            vars(module),
        )
        opts = dict(module.Made.as_runopts())
    finally:
        del sys.modules[module.__name__]
    assert (opts["a"].opt_type, opts["a"].help) == (int, "")


def test_a_class_without_decorator_is_an_error_that_says_so() -> None:
    """A missing decorator raises ConfigError."""

    class Forgot(StructuredOpts):
        a: int = 1

    with pytest.raises(ConfigError, match="`Forgot`") as e:
        Forgot.as_runopts()
    assert "@dataclass" in e.value.hint


@pytest.mark.parametrize("annotation", ["set[str]", "NoSuchType", "int | str", "list[int] | None"])
def test_types_that_no_option_can_have(annotation: str) -> None:
    """An unsupported type raises ConfigError with the name of the field."""
    cls: Any = dataclasses.dataclass(
        type("Bad", (StructuredOpts,), {"__annotations__": {"field": annotation}, "__module__": __name__})
    )
    with pytest.raises(ConfigError, match="`field`"):
        cls.as_runopts()


def test_evaluated_annotations() -> None:
    """Annotations may be evaluated, without `from __future__ import annotations`."""
    annotations = {"a": int | None, "b": Optional[List[str]], "c": "int"}  # noqa: UP006 - both styles
    namespace = {"__annotations__": annotations, "a": None, "b": None, "c": 1, "__module__": __name__}
    live: Any = dataclasses.dataclass(type("Live", (StructuredOpts,), namespace))
    opts = dict(live.as_runopts())
    assert (opts["a"].opt_type, opts["b"].opt_type, opts["c"].opt_type) == (int, list[str], int)
