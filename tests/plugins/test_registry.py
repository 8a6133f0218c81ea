"""Registries of built-ins and plugins: precedence, failures, and isolation of broken plugins."""

import logging
import os

import pytest

from torchx import plugins
from torchx.errors import NotFoundError, TorchXError
from torchx.plugins import PluginError, Registry
from torchx.testing import Site, site
from torchx.testing.fixtures import torchx_site_fixture  # noqa: F401  # pytest finds fixtures by name

GROUP = "torchx.tracker"
BUILTINS = {"cwd": "os:getcwd", "sep": "os:sep"}


def test_builtin_rows_come_first_and_load_on_demand(torchx_site: Site) -> None:
    """Built-ins precede plugins, and unused ones are never imported."""
    torchx_site.install("p", entry_points=f"[{GROUP}]\nmine = p_mod:f\n", files={"p_mod.py": "f = 42"})
    registry: Registry[object] = Registry(GROUP, {**BUILTINS, "never": "no_such_module:f"})
    assert registry.names()[:3] == ["cwd", "sep", "never"]
    assert "mine" in registry
    assert "other" not in registry
    assert registry.get("cwd") is os.getcwd
    assert registry.get("mine") == 42


def test_plugin_takes_a_builtin_name_and_is_reported(torchx_site: Site) -> None:
    """A plugin with the name of a built-in wins, and the report shows what it replaces."""
    torchx_site.install("p", entry_points=f"[{GROUP}]\ncwd = p_mod:f\n", files={"p_mod.py": "f = 'plugin'"})
    registry: Registry[object] = Registry(GROUP, BUILTINS)
    assert registry.get("cwd") == "plugin"
    (info,) = [i for i in plugins.report() if i.name == "cwd"]
    assert (info.status, info.replaces, info.dist, info.kind) == ("ok", "built-in", "p", "tracker")


def test_two_plugins_one_name(tmp_path: os.PathLike[str]) -> None:
    """The first distribution on sys.path wins; the other is reported as shadowed, with the winner."""
    a, b = os.path.join(tmp_path, "a"), os.path.join(tmp_path, "b")
    os.makedirs(a)
    os.makedirs(b)
    with site(b) as second, site(a) as first:
        first.install("one", entry_points=f"[{GROUP}]\nx = os:sep\n")
        second.install("two", entry_points=f"[{GROUP}]\nx = os:getcwd\n")
        assert plugins.load(GROUP, "x") == os.sep
        statuses = {i.dist: (i.status, i.error) for i in plugins.report() if i.name == "x"}
        assert statuses == {"one": ("ok", ""), "two": ("shadowed", "`x` is taken by one")}


BROKEN = {
    "missing dependency": ("import no_such_dependency", "ModuleNotFoundError", "no_such_dependency"),
    "syntax error": ("def f(:", "SyntaxError", ""),
    "raises": ("raise RuntimeError('boom')", "RuntimeError: boom", ""),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3", ""),
    "no such attribute": ("g = 1", "AttributeError", ""),
}


@pytest.mark.parametrize(("source", "reason", "hint"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_plugin(
    torchx_site: Site, source: str, reason: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Loading a broken plugin raises a clear error; other plugins, the group and the report still work."""
    torchx_site.install(
        "bad-pkg",
        entry_points=f"[{GROUP}]\nbad = bad_mod:f\ngood = os:sep\n",
        files={"bad_mod.py": source},
    )
    registry: Registry[object] = Registry(GROUP)
    with pytest.raises(PluginError) as caught:
        registry.get("bad")
    assert isinstance(caught.value, TorchXError)
    assert isinstance(caught.value, ImportError)
    message = str(caught.value)
    assert "tracker `bad` of package `bad_pkg` failed to load" in message
    assert reason in message
    assert "\n" not in message
    assert hint in caught.value.hint
    assert "torchx plugins" in caught.value.hint
    assert caught.value.failure.where.endswith("bad_pkg-1.0.dist-info")

    assert registry.get("good") == os.sep
    with caplog.at_level(logging.WARNING, "torchx.plugins"):
        plugins.registry._warned.clear()
        group = plugins.load_group(GROUP)
        plugins.load_group(GROUP)
    assert group is not None
    assert "good" in group
    assert "bad" not in group
    assert len([r for r in caplog.records if "`bad`" in r.getMessage()]) == 1
    statuses = {i.name: i for i in plugins.report()}
    assert statuses["bad"].status == "failed"
    assert reason.partition(":")[0] in statuses["bad"].error
    assert statuses["good"].status == "ok"


def test_unknown_name_suggests_the_nearest(torchx_site: Site) -> None:
    """The hint has the nearest name for a typo, and otherwise all names."""
    registry: Registry[object] = Registry(GROUP, {"fsspec_like": "os:sep"})
    with pytest.raises(NotFoundError, match="no tracker `fspec_like`") as caught:
        registry.get("fspec_like")
    assert "did you mean `fsspec_like`" in caught.value.hint
    with pytest.raises(NotFoundError) as caught:
        registry.get("qqq")
    assert "fsspec_like" in caught.value.hint


def test_load_group_default() -> None:
    """A group without plugins returns the default."""
    assert plugins.load_group("no.such.group") is None
    assert plugins.load_group("no.such.group", default={"a": 1}) == {"a": 1}


def test_load_group_of_only_broken_plugins(torchx_site: Site) -> None:
    """A group whose plugins all fail is empty, and does not return the default."""
    torchx_site.install("p", entry_points="[my.group]\nbad = no_such_mod:f\n")
    assert plugins.load_group("my.group", default={"d": 1}) == {}
