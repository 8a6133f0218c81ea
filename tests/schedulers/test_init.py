"""The table of schedulers: what is offered, when it is imported, and who may replace what."""

import subprocess
import sys
from typing import Any

import pytest

import torchx.schedulers as schedulers
from torchx.plugins import PluginError
from torchx.runner import Runner
from torchx.specs import UnknownSchedulerException
from torchx.testing import Site
from torchx.testing.fixtures import torchx_site_fixture  # noqa: F401  # pytest finds fixtures by name


def test_table_names() -> None:
    """The table has a row for each scheduler of the documents; local_cwd is the default."""
    assert set(schedulers.DEFAULT_SCHEDULER_MODULES) == {
        "aws_batch",
        "aws_sagemaker",
        "kubernetes",
        "kubernetes_mcad",
        "local_cwd",
        "local_docker",
        "lsf",
        "slurm",
    }
    assert schedulers.get_default_scheduler_name() == "local_cwd"
    assert next(iter(schedulers.get_scheduler_factories())) == "local_cwd"


def test_unknown_scheduler_suggests_the_nearest() -> None:
    """A typo gets the nearest scheduler."""
    factories = schedulers.get_scheduler_factories()
    with Runner() as runner, pytest.raises(UnknownSchedulerException) as e:
        runner.scheduler_run_opts("local_cdw")
    assert e.value.hint == "did you mean `local_cwd`?"
    with Runner("s", {"local_cwd": factories["local_cwd"]}) as runner, pytest.raises(UnknownSchedulerException) as e:
        runner.scheduler_run_opts("slurm")  # a built-in that this Runner does not have
    assert e.value.hint == "one of: local_cwd"


def test_parameters_of_any_name() -> None:
    """A factory gets all parameters of the Runner, whatever their names are."""
    got: dict[str, object] = {}

    def factory(session_name: str, **params: object) -> Any:
        got.update(params)
        return schedulers.get_scheduler_factories()["local_cwd"](session_name)

    params: dict[str, object] = {"session": 1, "factories": 2, "name": 3}
    with Runner("s", {"mine": factory}, scheduler_params=params) as runner:
        runner.scheduler_run_opts("mine")
    assert got == params


def test_every_offered_builtin_makes_its_scheduler() -> None:
    """Each offered built-in is made with a session name and knows it; unknown parameters are taken quietly."""
    factories = schedulers.get_scheduler_factories(group="no.such.group")
    assert {"local_cwd", "slurm", "lsf"} <= set(factories)
    for name, factory in factories.items():
        scheduler = factory("my_session", something_for_another_scheduler=1)
        try:
            assert isinstance(scheduler, schedulers.Scheduler), name
            assert scheduler.session_name == "my_session"
        finally:
            scheduler.close()


def test_modules_are_imported_when_called() -> None:
    """Listing the factories imports no scheduler."""
    code = (
        "import sys, torchx.schedulers as s; s.get_scheduler_factories();"
        "print([m for m in sys.modules if m.startswith('torchx.schedulers.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_plugin_replaces_a_builtin(torchx_site: Site) -> None:
    """A plugin may take a built-in's name; with skip_defaults only plugins are offered."""
    torchx_site.install(
        "mine",
        entry_points="[torchx.schedulers]\nlocal_cwd = mine_mod:create\nother = mine_mod:create\n",
        files={"mine_mod.py": "def create(session_name, **kwargs): return ('mine', session_name, kwargs)"},
    )
    made: Any = schedulers.get_scheduler_factories()["local_cwd"]("s", a=1)
    assert made == ("mine", "s", {"a": 1})
    assert {"local_cwd", "other"} <= set(schedulers.get_scheduler_factories(skip_defaults=True))
    assert "local_cwd" not in schedulers.get_scheduler_factories(group="another.group", skip_defaults=True)


def test_broken_plugin_fails_when_called_only(torchx_site: Site) -> None:
    """A broken scheduler plugin is offered, and its error comes when it is used, not before."""
    torchx_site.install("bad", entry_points="[torchx.schedulers]\nbad = no_such_module:create\n")
    factories = schedulers.get_scheduler_factories()
    assert "local_cwd" in factories
    with pytest.raises(PluginError, match="scheduler `bad` of package `bad` failed to load"):
        factories["bad"]("s")
