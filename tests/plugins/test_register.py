"""Decorated functions are plugins, in modules of `torchx_plugins.*` and in any imported module."""

import os
import subprocess
import sys

import pytest

from torchx import plugins
from torchx.errors import NotFoundError
from torchx.plugins import discovery, register
from torchx.testing import Site, site
from torchx.testing.fixtures import torchx_site_fixture  # noqa: F401  # pytest finds fixtures by name


def test_namespace_package_is_found(torchx_site: Site) -> None:
    """A module below torchx_plugins.schedulers needs no entry point."""
    where = torchx_site.write(
        "torchx_plugins/schedulers/lab.py",
        """
        from torchx.plugins import register

        @register.scheduler("lab")
        def create(session_name, **kwargs):
            return session_name
        """,
    )
    assert "lab" in plugins.names("torchx.schedulers")
    assert plugins.load("torchx.schedulers", "lab")("s") == "s"
    (info,) = [i for i in plugins.report() if i.name == "lab"]
    assert (info.status, info.where, info.value) == ("ok", where, "torchx_plugins.schedulers.lab:create")


def test_a_single_file(torchx_site: Site) -> None:
    """The plugins of a kind may also be in one file in place of the folder."""
    text = "from torchx.plugins import register\n@register.named_resource\ndef lab_gpu(): return 1\n"
    torchx_site.write("torchx_plugins/named_resources.py", text)
    assert "lab_gpu" in plugins.names("torchx.named_resources")


def test_two_folders_share_the_namespace(tmp_path: os.PathLike[str]) -> None:
    """Two packages may both contain modules of torchx_plugins.components."""
    text = "from torchx.plugins import register\n@register.component\ndef train(): ...\n"
    a, b = os.path.join(tmp_path, "a"), os.path.join(tmp_path, "b")
    os.makedirs(a)
    os.makedirs(b)
    with site(a) as first, site(b) as second:
        first.write("torchx_plugins/components/vision.py", text)
        second.write("torchx_plugins/components/audio/__init__.py", text)
        assert {"vision.train", "audio.train"} <= set(plugins.names("torchx.components"))


@pytest.mark.parametrize("group", list(discovery.KINDS), ids=list(discovery.KINDS.values()))
def test_every_kind_has_its_decorator(group: str) -> None:
    """Each kind has a decorator, which returns the object unchanged and registers it under the given name."""
    decorator = getattr(register, discovery.KINDS[group])

    def f() -> None: ...

    try:
        assert decorator("given")(f) is f
        assert plugins.load(group, "given") is f
    finally:
        register.forget(group, "given")
    assert "given" not in plugins.names(group)


def test_default_names() -> None:
    """The default name is that of the function; for a component, `<module>.<function>`."""

    def my_thing() -> None: ...

    register.tracker(my_thing)
    register.component()(my_thing)
    try:
        assert plugins.load("torchx.tracker", "my_thing") is my_thing
        assert plugins.load("torchx.components", "test_register.my_thing") is my_thing
    finally:
        register.forget("torchx.tracker", "my_thing")
        register.forget("torchx.components", "test_register.my_thing")


def test_broken_module_is_reported_and_disturbs_nobody(torchx_site: Site) -> None:
    """A module that cannot be imported is in the report, and in the hint for an unknown name."""
    torchx_site.write("torchx_plugins/trackers/broken.py", "import no_such_dependency")
    torchx_site.write(
        "torchx_plugins/trackers/fine.py",
        "from torchx.plugins import register\n@register.tracker('fine')\ndef f(c): return c\n",
    )
    assert "fine" in plugins.names("torchx.tracker")
    (info,) = [i for i in plugins.report() if i.status == "failed"]
    assert info.name == "torchx_plugins.trackers.broken"
    assert "no_such_dependency" in info.error
    with pytest.raises(NotFoundError) as caught:
        plugins.load("torchx.tracker", "of_broken")
    assert "torchx_plugins.trackers.broken" in caught.value.hint


def test_broken_namespace_package(torchx_site: Site) -> None:
    """A torchx_plugins package that raises is reported too."""
    torchx_site.write("torchx_plugins/commands/__init__.py", "raise RuntimeError('boom')")
    assert "torchx_plugins.commands" not in plugins.names("torchx.cli.cmds")
    assert [i.error for i in plugins.report() if i.name == "torchx_plugins.commands"] == ["RuntimeError: boom"]


def test_decorator_wins_over_entry_point(torchx_site: Site) -> None:
    """Of a decorated function and an entry point with the same name, the function wins, and the other is reported."""
    torchx_site.install("p", entry_points="[torchx.tracker]\nx = os:sep\n")
    register.tracker("x")(test_default_names)
    try:
        assert plugins.load("torchx.tracker", "x") is test_default_names
        assert [i.status for i in plugins.report() if i.name == "x"] == ["ok", "shadowed"]
    finally:
        register.forget("torchx.tracker", "x")


def test_one_kind_does_not_import_the_others(torchx_site: Site) -> None:
    """Listing trackers imports no scheduler module."""
    torchx_site.write("torchx_plugins/schedulers/heavy.py", "1 / 0")
    torchx_site.write("torchx_plugins/trackers/light.py", "")
    plugins.names("torchx.tracker")
    assert "torchx_plugins.trackers.light" in sys.modules
    assert not [i for i in plugins.report() if i.kind == "tracker" and i.status == "failed"]
    code = "from torchx import plugins; import sys; plugins.names('torchx.tracker'); print('torchx_plugins.schedulers' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": torchx_site.folder}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
