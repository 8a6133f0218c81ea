"""Arguments with several values in one text."""

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
    """The defaults are the default experiment and the name of the script."""
    found = StructuredNameArgument.parse_from(name, script="src/train.py")
    assert (found.experiment_name, found.run_name) == (experiment, run)


def test_names_of_modules_and_defaults() -> None:
    """The run may also be named after the module, and the caller chooses the default experiment."""
    assert str(StructuredNameArgument.parse_from("/", m="pets.train", default_experiment_name="d")) == "d/train"


@pytest.mark.parametrize(
    ("name", "message"), [("a/b/c", "more than one `/`"), ("exp/", "has no run"), ("/", "has no run")]
)
def test_wrong_names(name: str, message: str) -> None:
    """A name with several slashes, or without a run, raises an error."""
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
    """The size has nodes, workers per node and the value for torchrun; the default is a worker per GPU, or one."""
    size = JobSize.parse(j, gpus=gpus)
    assert (size.min_nnodes, size.max_nnodes, size.nproc_per_node, size.nnodes) == expected


@pytest.mark.parametrize(
    "j", ["", "x", "1x", "x2", "0x1", "1x0", "-1x2", "1x2x3", "a", "1:x2", ":2x1", "1.5x2", "²x1", "1 x 2"]
)
def test_malformed_sizes(j: str) -> None:
    """Other texts raise an error that shows the syntax."""
    with pytest.raises(SpecError, match=r"\[min_nnodes:\]nnodes") as e:
        JobSize.parse(j)
    assert f"`-j {j}`" in str(e.value)


def test_sizes_the_wrong_way_round() -> None:
    """If the minimum exceeds the maximum, the hint swaps them."""
    with pytest.raises(SpecError, match="at least 4 and at most 2") as e:
        JobSize.parse("4:2x8")
    assert "`-j 2:4x8`" in e.value.hint


@settings(deadline=None)
@given(st.text())
def test_any_size_is_read_or_refused(j: str) -> None:
    """Any text gives a size or a SpecError."""
    try:
        size = JobSize.parse(j)
    except SpecError:
        return
    assert 1 <= size.min_nnodes <= size.max_nnodes
    assert size.nproc_per_node >= 1


def test_structured_j() -> None:
    """The default number of workers is the number of GPUs of the named resource."""
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
    """A program is named after the last part of its path or module."""
    assert program_name(script, m) == name
