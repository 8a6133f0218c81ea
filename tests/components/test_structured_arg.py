"""Arguments that are several values in one text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.components.structured_arg import JobSize, StructuredJArgument, StructuredNameArgument, program_name
from torchx.errors import SpecError


@pytest.mark.parametrize(
    ("name", "experiment", "run"),
    [
        ("/", "default-experiment", "train"),
        ("", "default-experiment", "train"),
        ("exp/", "exp", "train"),
        ("/run", "default-experiment", "run"),
        ("run", "default-experiment", "run"),
        ("exp/run", "exp", "run"),
    ],
)
def test_names(name: str, experiment: str, run: str) -> None:
    """What is left out is the default experiment and the name of the script."""
    found = StructuredNameArgument.parse_from(name, script="src/train.py")
    assert (found.experiment_name, found.run_name) == (experiment, run)


def test_names_of_modules_and_defaults() -> None:
    """A run is named after the module too, and the caller chooses the default experiment."""
    assert str(StructuredNameArgument.parse_from("/", m="pets.train", default_experiment_name="d")) == "d/train"


@pytest.mark.parametrize(
    ("name", "message"), [("a/b/c", "more than one `/`"), ("exp/", "has no run"), ("/", "has no run")]
)
def test_wrong_names(name: str, message: str) -> None:
    """A name that cannot be split, or has nothing to be made from, is an error."""
    with pytest.raises(SpecError, match=message):
        StructuredNameArgument.parse_from(name)


@pytest.mark.parametrize(
    ("j", "gpus", "expected"),
    [
        ("1x2", 0, (1, 1, 2, "1")),
        ("2x2", 8, (2, 2, 2, "2")),
        ("2:4x8", 0, (2, 4, 8, "2:4")),
        ("4", 8, (4, 4, 8, "4")),
        ("4", 0, (4, 4, 1, "4")),
        ("1:4", 2, (1, 4, 2, "1:4")),
        ("2:2x1", 0, (2, 2, 1, "2")),
        (" 2X3 ", 0, (2, 2, 3, "2")),
    ],
)
def test_sizes(j: str, gpus: int, expected: tuple[int, int, int, str]) -> None:
    """Nodes, workers on each, and what torchrun is told; without workers there is one for each GPU, or one."""
    size = JobSize.parse(j, gpus=gpus)
    assert (size.min_nnodes, size.max_nnodes, size.nproc_per_node, size.nnodes) == expected


@pytest.mark.parametrize(
    "j", ["", "x", "1x", "x2", "0x1", "1x0", "-1x2", "1x2x3", "a", "1:x2", ":2x1", "1.5x2", "²x1", "1 x 2"]
)
def test_malformed_sizes(j: str) -> None:
    """Anything else is one error that shows the form."""
    with pytest.raises(SpecError, match=r"\[min_nnodes:\]nnodes") as e:
        JobSize.parse(j)
    assert f"`-j {j}`" in str(e.value)


def test_sizes_the_wrong_way_round() -> None:
    """More nodes at least than at most: the hint turns them around."""
    with pytest.raises(SpecError, match="at least 4 and at most 2") as e:
        JobSize.parse("4:2x8")
    assert "`-j 2:4x8`" in e.value.hint


@settings(deadline=None)
@given(st.text())
def test_any_size_is_read_or_refused(j: str) -> None:
    """Whatever the text, a size or a SpecError."""
    try:
        size = JobSize.parse(j)
    except SpecError:
        return
    assert 1 <= size.min_nnodes <= size.max_nnodes
    assert size.nproc_per_node >= 1


def test_structured_j() -> None:
    """The named resource says how many workers a node has when `-j` does not."""
    assert StructuredJArgument.parse_from(h="gpu.large", j="2") == StructuredJArgument(2, 4)
    assert StructuredJArgument.parse_from(h="cpu.small", j="2") == StructuredJArgument(2, 1)
    assert str(StructuredJArgument.parse_from(h="gpu.small", j="2x8")) == "2x8"
    with pytest.raises(SpecError, match="elastic"):
        StructuredJArgument.parse_from(h="gpu.small", j="1:2x8")


@pytest.mark.parametrize(
    ("script", "m", "name"),
    [
        ("train.py", None, "train"),
        ("a/b.c.py", None, "b.c"),
        (None, "a.b.c", "c"),
        (None, "a.__main__", "a"),
        (None, None, ""),
    ],
)
def test_program_names(script: str | None, m: str | None, name: str) -> None:
    """A program is called after the last part of its path or module."""
    assert program_name(script, m) == name
