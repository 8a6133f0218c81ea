"""Imports of optional modules and attributes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchx.util.modules import import_attr, load_module


def test_a_module_and_an_attribute() -> None:
    """`a.b` is a module, `a.b:f` its attribute; the result is None if it does not exist."""
    assert load_module("os.path") is sys.modules["os.path"]
    assert callable(load_module("os.path:join"))
    assert load_module("os.path:no_such") is None
    assert load_module("no_such_module.below:f") is None


def test_a_missing_module_gives_the_default() -> None:
    """A missing module returns the default; a missing attribute raises AttributeError."""
    assert import_attr("no_such_module", "x", default=3) == 3
    assert import_attr("os", "sep", default="") == "/"
    with pytest.raises(AttributeError):
        import_attr("os", "no_such", default=None)


def test_a_module_that_misses_another_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the module itself may be missing; a failing import inside it raises."""
    (tmp_path / "broken_one.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        load_module("broken_one")
