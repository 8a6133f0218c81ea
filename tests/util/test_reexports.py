"""Re-exported names are the same objects as in the defining module."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from torchx.util.reexports import _HOMES

MODULES = [
    "torchx.cli.cmd_configure",
    "torchx.cli.cmd_describe",
    "torchx.cli.cmd_list",
    "torchx.cli.cmd_log",
    "torchx.cli.cmd_run",
    "torchx.cli.cmd_runopts",
    "torchx.cli.cmd_status",
    "torchx.cli.cmd_tracker",
    "torchx.component_reader.builders",
    "torchx.component_reader.finder",
    "torchx.component_reader.linter",
    "torchx.components.component_test_base",
    "torchx.config",
    "torchx.runner.api",
    "torchx.runner.events",
    "torchx.schedulers",
    "torchx.schedulers.api",
    "torchx.schedulers.aws_batch_scheduler",
    "torchx.schedulers.aws_sagemaker_scheduler",
    "torchx.schedulers.docker_scheduler",
    "torchx.schedulers.kubernetes_mcad_scheduler",
    "torchx.schedulers.kubernetes_scheduler",
    "torchx.schedulers.local_scheduler",
    "torchx.schedulers.lsf_scheduler",
    "torchx.schedulers.slurm_scheduler",
    "torchx.workspace.api",
    "torchx.workspace.dir_workspace",
    "torchx.workspace.docker_workspace",
]
"""Modules that re-export names for programs of earlier versions."""


@pytest.mark.parametrize("module", MODULES)
def test_the_same_objects(module: str) -> None:
    """A re-export is the object of the defining module; a name of its own, such as `validate`, stays its own."""
    there = importlib.import_module(module)
    for home, names in _HOMES.items():
        for name in names.split():
            found = getattr(there, name)
            assert found is getattr(importlib.import_module(home), name) or found.__module__ == module, name


def test_the_components_are_not_re_exports() -> None:
    """`dist` gives its one old name and no other function, which would pass for a component."""
    dist = importlib.import_module("torchx.components.dist")
    assert dist.StructuredJArgument is importlib.import_module("torchx.components.structured_arg").StructuredJArgument
    assert not hasattr(dist, "materialize_appdef")


def test_each_name_has_one_home() -> None:
    """Each name has one defining module."""
    names = [name for names in _HOMES.values() for name in names.split()]
    assert len(names) == len(set(names))


def test_misspelled() -> None:
    """Other names raise AttributeError."""
    with pytest.raises(ImportError, match="AppDeff"):
        exec("from torchx.schedulers.api import AppDeff")
    assert not hasattr(importlib.import_module("torchx.runner.api"), "Roles")


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    """Importing torchx.schedulers.api does not import workspaces; accessing their class does."""
    code = (
        "import sys, torchx.schedulers.api as api; assert 'torchx.workspace.api' not in sys.modules;"
        "api.WorkspaceMixin; assert 'torchx.workspace.api' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
