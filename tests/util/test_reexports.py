"""Names that programs import from a module that does not define them are those of the module that does."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from torchx.util.reexports import _HOMES, _REEXPORTS


@pytest.mark.parametrize("module", _REEXPORTS)
def test_the_same_objects(module: str) -> None:
    """What is imported from there is what its own module defines."""
    homes = {name: home for home, names in _HOMES.items() for name in names.split()}
    there = importlib.import_module(module)
    for name in _REEXPORTS[module].split():
        assert getattr(there, name) is getattr(importlib.import_module(homes[name]), name), name


def test_each_name_has_one_home() -> None:
    """A name that two modules define could be either of them."""
    names = [name for names in _HOMES.values() for name in names.split()]
    assert len(names) == len(set(names))


def test_misspelled() -> None:
    """Other names are missing, as in any module."""
    with pytest.raises(ImportError, match="AppDeff"):
        exec("from torchx.schedulers.api import AppDeff")
    assert not hasattr(importlib.import_module("torchx.runner.api"), "Role")


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    """The contract of schedulers does not import workspaces; whoever asks it for their class does."""
    code = (
        "import sys, torchx.schedulers.api as api; assert 'torchx.workspace.api' not in sys.modules;"
        "api.WorkspaceMixin; assert 'torchx.workspace.api' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
