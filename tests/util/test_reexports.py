"""Re-exported names are the same objects as in the defining module."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from torchx.util.reexports import _HOMES, _REEXPORTS


@pytest.mark.parametrize("module", _REEXPORTS)
def test_the_same_objects(module: str) -> None:
    """A re-export is the object of the defining module."""
    homes = {name: home for home, names in _HOMES.items() for name in names.split()}
    there = importlib.import_module(module)
    for name in _REEXPORTS[module].split():
        assert getattr(there, name) is getattr(importlib.import_module(homes[name]), name), name


def test_each_name_has_one_home() -> None:
    """Each name has one defining module."""
    names = [name for names in _HOMES.values() for name in names.split()]
    assert len(names) == len(set(names))


def test_misspelled() -> None:
    """Other names raise AttributeError."""
    with pytest.raises(ImportError, match="AppDeff"):
        exec("from torchx.schedulers.api import AppDeff")
    assert not hasattr(importlib.import_module("torchx.runner.api"), "Role")


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    """Importing torchx.schedulers.api does not import workspaces; accessing their class does."""
    code = (
        "import sys, torchx.schedulers.api as api; assert 'torchx.workspace.api' not in sys.modules;"
        "api.WorkspaceMixin; assert 'torchx.workspace.api' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
