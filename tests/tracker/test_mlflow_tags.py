"""Names and values encoded for MLflow, and decoded again."""

from __future__ import annotations

import enum
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import ConfigError, MissingDependencyError
from torchx.tracker import mlflow_tags as tags
from torchx.tracker.values import plain


@given(st.text(min_size=1))
def test_any_name(name: str) -> None:
    """Any name is encoded to one that MLflow accepts, and decoded again."""
    safe = tags.safe(name)
    assert re.fullmatch(r"[A-Za-z0-9_. /-]+", safe)
    assert posixpath.normpath(safe) == safe
    assert not safe.startswith(("/", ".."))
    assert safe != "."
    assert tags.unsafe(safe) == name


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_names_stay_two(a: str, b: str) -> None:
    """Different names have different encodings."""
    assert (tags.safe(a) == tags.safe(b)) == (a == b)


def test_decoded() -> None:
    """Only tags with the prefix count; an edited one is returned unchanged."""
    found = {"torchx.metadata.a": "1", "torchx.metadata.b": "edited", "other": "2"}
    assert dict(tags.decoded(found, tags.METADATA)) == {"a": 1, "b": "edited"}


@pytest.mark.parametrize(("name", "value"), [("x", "y" * 5000), ("", 1), ("n" * 300, 1)])
def test_what_mlflow_does_not_keep(name: str, value: object) -> None:
    """A long value is an error before anything is sent: a truncated value would be wrong."""
    with pytest.raises(ValueError, match=f"`{name[:50]}`"):
        tags.encode(name, value)


def test_flat() -> None:
    """Leaves of dictionaries, lists and data classes have their path as the name; values are cut at MLflow's limit."""

    @dataclass
    class Optim:
        lr: float = 0.1
        betas: tuple[float, float] = (0.9, 0.99)
        extra: dict[str, Any] = field(default_factory=dict)

    found = tags.flat({"optim": Optim(), "long": "x" * 600, "none": None}, "cfg")
    assert found == {
        "cfg.optim.lr": "0.1",
        "cfg.optim.betas.0": "0.9",
        "cfg.optim.betas.1": "0.99",
        "cfg.optim.extra": "{}",
        "cfg.long": "x" * 500,
        "cfg.none": "None",
    }
    assert tags.flat(3, "") == {}


def test_plain_values() -> None:
    """Subclasses become their base type, objects strings; a recursive structure ends."""

    class Level(enum.IntEnum):
        HIGH = 3

    class Vector:
        def item(self) -> float:
            raise ValueError("only one element tensors can be converted to Python scalars")

        def __str__(self) -> str:
            return "vector"

    endless: list[Any] = []
    endless.append(endless)
    assert plain({"level": Level.HIGH, "vector": Vector()}) == {"level": 3, "vector": "vector"}
    assert type(plain(Level.HIGH)) is int
    assert isinstance(plain(endless), list)


def test_without_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, and where."""
    import sys

    from torchx.tracker.mlflow import MLflowTracker, create_tracker

    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependencyError, match="needs the package `mlflow`") as e:
        create_tracker("http://127.0.0.1:1")
    assert "mlflow-skinny is enough" in e.value.hint
    with pytest.raises(ConfigError, match="has no setting `experiment`"):
        create_tracker('{"experiment": "x"}')
    with pytest.raises(ConfigError, match="has no tracking URI"):
        create_tracker(None)
    assert MLflowTracker.default_experiment_name() == "torchx"
    monkeypatch.setenv("TORCHX_JOB_ID", "slurm://nightly/train-1")
    assert MLflowTracker.default_experiment_name() == "nightly"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert MLflowTracker.default_experiment_name() == "mine"
