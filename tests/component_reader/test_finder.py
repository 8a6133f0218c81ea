"""Finding components by name."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from torchx import plugins
from torchx.component_reader.builders import materialize_appdef
from torchx.component_reader.finder import (
    BUILTINS,
    ComponentNotFoundException,
    ComponentValidationException,
    CustomComponentsFinder,
    ModuleComponentsFinder,
    component_names,
    get_builtin_source,
    get_component,
    get_components,
    is_namespace_package,
    is_package,
    module_relname,
)
from torchx.errors import SpecError
from torchx.plugins import register

COMPONENT = """
from __future__ import annotations
from torchx.specs import AppDef, Role

def {name}(msg: str = "hi") -> AppDef:
    '''Says it.'''
    return AppDef("{name}", [Role("r", image="i", args=[msg])])
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Creates files on `sys.path`; modules imported from there are removed afterwards."""
    root = tmp_path / "site"
    root.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(root))

    def make(files: dict[str, str], entry_points: str = "") -> Path:
        if entry_points:
            files = {**files, "plug-1.0.dist-info/entry_points.txt": entry_points}
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        importlib.invalidate_caches()
        plugins.refresh()
        return root

    yield make
    for name in set(sys.modules) - before:
        if str(root) in str(getattr(sys.modules[name], "__file__", "")) or name.startswith(
            ("my_pkg", "torchx_plugins")
        ):
            del sys.modules[name]
    plugins.refresh()


def args_of(name: str, *words: str) -> list[str]:
    return materialize_appdef(get_component(name).fn, list(words)).roles[0].args


# built-ins


def test_a_builtin() -> None:
    """A built-in has a name, a description and a function."""
    found = get_component("utils.echo")
    assert (found.name, found.fn_name, found.description) == ("utils.echo", "echo", "Print a message.")
    assert found.validation_errors == []
    assert found.fn().name == "echo"


def test_the_list_of_builtins_is_true() -> None:
    """The listed names are those of the components in the modules, and all have descriptions."""
    listed = {f"{m}.{fn}" for m, fns in BUILTINS.items() for fn in fns}
    found = get_components()
    assert {n for n, c in found.items() if c.fn.__module__.startswith("torchx.components.")} >= listed
    assert {n for n in found if n.partition(".")[0] in BUILTINS} == listed
    assert set(component_names()) >= listed
    for component in found.values():
        assert component.validation_errors == []
        assert component.description


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dist.dpp", "did you mean `dist.ddp`?"),
        ("ddp", "did you mean `dist.ddp`?"),
        ("utils.ecoh", "did you mean `utils.echo`?"),
        ("util.sh", "did you mean `utils.sh`?"),
        ("dist.parse_nnodes", ""),
        ("dist._args_join", ""),
        ("dist.no.such", ""),
        ("component_test_base.ComponentTestCase", ""),
        ("zzzzzz", "`torchx builtins` lists them"),
        ("", ""),
        ("../x", ""),
        ("train.py", "name a function of the file: `train.py:function`"),
        ("train.py:", "name a function of the file: `train.py:function`"),
        ("dist", "it is a module, with: dist.ddp, dist.spmd, dist.torchrun"),
        (":", ""),
    ],
)
def test_unknown_names(name: str, hint: str) -> None:
    """An unknown name raises an error with the nearest name; a helper function is not a component."""
    with pytest.raises(ComponentNotFoundException, match="no component") as e:
        get_component(name)
    assert hint in e.value.hint
    assert isinstance(e.value, SpecError)


def test_the_source_of_a_builtin_stands_alone(tmp_path: Path) -> None:
    """The printed source can be run as a component file."""
    for name in ("utils.sh", "utils.touch", "dist.ddp", "dist.torchrun"):
        file = tmp_path / "copied.py"
        file.write_text(get_builtin_source(name))
        fn = name.rpartition(".")[2]
        words = {"sh": ["ls", "-l"], "touch": ["--file", "x"]}.get(fn, ["--script", "x.py"])
        copied = materialize_appdef(get_component(f"{file}:{fn}").fn, words)
        assert copied == materialize_appdef(get_component(name).fn, words)


# files


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths, absolute paths and paths below the home directory work."""
    (tmp_path / "comp.py").write_text(COMPONENT.format(name="say"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("comp.py", "./comp.py", str(tmp_path / "comp.py"), "~/comp.py"):
        found = get_component(f"{path}:say")
        assert (found.name, found.fn_name, found.description) == (f"{path}:say", "say", "Says it.")
    assert args_of("comp.py:say", "--msg", "x") == ["x"]


def test_a_file_is_read_again_when_it_changed(tmp_path: Path) -> None:
    """A running program reloads an edited file, and does not import an unchanged file twice."""
    file = tmp_path / "comp.py"
    file.write_text(COMPONENT.format(name="say"))
    first = get_component(f"{file}:say").fn
    assert get_component(f"{file}:say").fn is first
    file.write_text(COMPONENT.format(name="say").replace('"hi"', '"hello there"'))
    assert args_of(f"{file}:say") == ["hello there"]


def test_imports_of_a_file(tmp_path: Path) -> None:
    """A file can import siblings, also lazily and relatively in a package; sys.path is restored."""
    pkg = tmp_path / "proj_pkg"
    pkg.mkdir()
    (pkg / "__init__.py").write_text("")
    (pkg / "deep_sibling.py").write_text("WORD = 'deep'")
    (tmp_path / "flat_sibling_a.py").write_text("WORD = 'top'")
    (tmp_path / "flat_sibling_b.py").write_text("WORD = 'inside'")
    body = COMPONENT.format(name="say").replace("[msg]", "words()")
    (tmp_path / "comp.py").write_text(
        body + "import flat_sibling_a\ndef words():\n    import flat_sibling_b\n"
        "    return [flat_sibling_a.WORD, flat_sibling_b.WORD]\n"
    )
    (pkg / "comp.py").write_text(
        body
        + "from .deep_sibling import WORD\nimport proj_pkg.deep_sibling as same\ndef words(): return [WORD, same.WORD]\n"
    )
    before = list(sys.path)
    try:
        assert args_of(f"{tmp_path}/comp.py:say") == ["top", "inside"]
        assert args_of(f"{pkg}/comp.py:say") == ["deep", "deep"]
        assert sys.path == before
    finally:
        for name in ("flat_sibling_a", "flat_sibling_b", "proj_pkg", "proj_pkg.deep_sibling", "proj_pkg.comp"):
            sys.modules.pop(name, None)


def test_dataclasses_and_decorators_in_a_file(tmp_path: Path) -> None:
    """A decorated component, one re-exported from elsewhere, and one in a class are found."""
    (tmp_path / "comp.py").write_text(
        COMPONENT.format(name="inner")
        + """
import dataclasses, functools
from torchx.components.utils import echo as greet

@dataclasses.dataclass
class Config:
    word: str = "configured"

def twice(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        app = fn(*args, **kwargs)
        app.roles *= 2
        return app
    return wrapper

@twice
def say(msg: str = Config().word) -> AppDef:
    return inner(msg)

class Group:
    @staticmethod
    def member(msg: str) -> AppDef:
        return inner(msg)
"""
    )
    assert len(materialize_appdef(get_component(f"{tmp_path}/comp.py:say").fn, []).roles) == 2
    assert args_of(f"{tmp_path}/comp.py:greet", "--msg", "x") == ["x"]
    assert args_of(f"{tmp_path}/comp.py:Group.member", "--msg", "y") == ["y"]


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("def say(:\n", r"comp.py` has a mistake: SyntaxError: .* at .*comp.py:1(?m:$)", ""),
        (
            "x = 1\n1 / 0\n",
            r"raised while it was imported: ZeroDivisionError: division by zero at .*comp.py:2(?m:$)",
            "",
        ),
        ("import json\njson.loads('{')\n", r"JSONDecodeError: .* at .*comp.py:2(?m:$)", ""),
        (
            "import no_such_module_x\n",
            r"No module named 'no_such_module_x' at .*comp.py:1(?m:$)",
            "install `no_such_module_x`",
        ),
        ("import sys\nsys.exit(3)\n", r"SystemExit: 3 at .*comp.py:2(?m:$)", ""),
        ("open('/no/such/file')\n", r"FileNotFoundError: .* at .*comp.py:1(?m:$)", ""),
        ("x = '\0'", r"comp.py` ", ""),
        ("def say(a) -> 'AppDef': ...\n", r"cannot be used: .*comp.py:1: argument `a` of `say`: it has no type", ""),
        ("def say(a: int): ...\n", r"cannot be used: .*comp.py:1: `say` has no return type", ""),
        (
            "def say(a) -> str: ...\n",
            r"cannot be used: .*comp.py:1: argument `a` .* \(and 1 more\)",
            "return type `str`",
        ),
        ("from functools import partial\nsay = partial(print, 1)\n", "cannot be used", ""),
        ("from functools import partial\nsay = partial(dict, a=1)\n", "cannot be used: .* cannot be read: no sig", ""),
    ],
)
def test_broken_files(tmp_path: Path, source: str, message: str, hint: str) -> None:
    """Each error is one line with the file and line of its cause."""
    (tmp_path / "comp.py").write_text(source)
    with pytest.raises(ComponentValidationException, match=message) as e:
        get_component(f"{tmp_path}/comp.py:say")
    assert "\n" not in str(e.value)
    assert hint in e.value.hint


@pytest.mark.parametrize("value", [5, []])
def test_a_plugin_that_is_no_component(value: object) -> None:
    """A plugin that is neither a module nor a function is named in the error."""
    register.component("odd.number")(value)
    try:
        with pytest.raises(ComponentValidationException, match=r"`odd\.number` is neither a module nor a function"):
            get_component("odd.number")
    finally:
        register.forget("torchx.components", "odd.number")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("comp.py:sya", "has no function `sya`", "did you mean `say`?"),
        ("comp.py:zzz", "has no function `zzz`", "it has: say"),
        ("comp.py:say.x.y", "has no function", ""),
        ("com.py:say", "`com.py` does not exist", "did you mean `comp.py`?"),
        ("nowhere/comp.py:say", "does not exist", "there is no directory `nowhere`"),
        (".:say", "does not exist", ""),
    ],
)
def test_missing_files_and_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str, hint: str
) -> None:
    """The hint suggests the nearest file, or function in the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "comp.py").write_text("def say() -> 'AppDef': ...\n")
    with pytest.raises(ComponentNotFoundException, match=message) as e:
        get_component(name)
    assert hint in e.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    """The error reports a file without read permission."""
    file = tmp_path / "comp.py"
    file.write_text("")
    file.chmod(0)
    with pytest.raises(ComponentValidationException, match="cannot be read: Permission denied"):
        get_component(f"{file}:say")


# plugins


def test_an_entry_point_with_modules(site: Callable[..., Path]) -> None:
    """`myco = my_pkg.components` provides the public functions of the package and of the modules below it."""
    site(
        {
            "my_pkg/__init__.py": "",
            "my_pkg/components/__init__.py": COMPONENT.format(name="top"),
            "my_pkg/components/train.py": COMPONENT.format(name="run")
            + "def _private() -> AppDef: ...\ndef helper() -> str: ...\n",
            "my_pkg/components/deep/__init__.py": "",
            "my_pkg/components/deep/er.py": COMPONENT.format(name="run"),
            "my_pkg/components/_hidden.py": COMPONENT.format(name="run"),
        },
        "[torchx.components]\nmyco = my_pkg.components\n",
    )
    assert args_of("myco.top") == args_of("myco.train.run") == args_of("myco.deep.er.run") == ["hi"]
    listed = {n for n in get_components() if n.startswith("myco.")}
    assert listed == {"myco.top", "myco.train.run", "myco.deep.er.run"}
    for name in ("myco.train._private", "myco._hidden.run", "myco.train.helper", "myco.nothing.run"):
        with pytest.raises(ComponentNotFoundException):
            get_component(name)
    with pytest.raises(ComponentNotFoundException) as e:
        get_component("myco.train.rnu")
    assert e.value.hint == "did you mean `myco.train.run`?"


def test_an_entry_point_without_a_name_of_its_own(site: Callable[..., Path]) -> None:
    """An entry point whose name begins with `_` adds no prefix; several can be installed."""
    site(
        {
            "my_pkg_a.py": COMPONENT.format(name="one"),
            "my_pkg_b/__init__.py": "",
            "my_pkg_b/sub.py": COMPONENT.format(name="two"),
        },
        "[torchx.components]\n_0 = my_pkg_a\n_1 = my_pkg_b\n",
    )
    assert args_of("one") == args_of("sub.two") == ["hi"]
    assert {"one", "sub.two"} <= set(get_components())


def test_a_plugin_takes_the_name_of_a_builtin(site: Callable[..., Path]) -> None:
    """Functions of the plugin take precedence; built-in ones that it lacks remain available."""
    site({"my_pkg_dist.py": COMPONENT.format(name="ddp")}, "[torchx.components]\ndist = my_pkg_dist\n")
    assert args_of("dist.ddp") == ["hi"]
    assert get_component("dist.spmd").fn.__module__ == "torchx.components.dist"
    assert get_components()["dist.ddp"].fn.__module__ == "my_pkg_dist"


def test_the_name_of_an_entry_point_alone(site: Callable[..., Path]) -> None:
    """A module is not a component; the hint lists the components in it."""
    site({"my_pkg_m.py": COMPONENT.format(name="say")}, "[torchx.components]\nmine = my_pkg_m\n")
    with pytest.raises(ComponentNotFoundException, match="`mine`") as e:
        get_component("mine")
    assert e.value.hint == "it is a module, with: mine.say"


def test_an_entry_point_that_is_a_function(site: Callable[..., Path]) -> None:
    """An entry point may name a function."""
    site({"my_pkg_fn.py": COMPONENT.format(name="say")}, "[torchx.components]\nspeak = my_pkg_fn:say\n")
    assert args_of("speak") == ["hi"]
    assert "speak" in get_components()


def test_broken_plugins_break_nothing_else(site: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    """A broken plugin raises an error when it is requested, causes a warning in lists, and is ignored otherwise."""
    site(
        {
            "my_pkg_bad.py": "1 / 0\n",
            "my_pkg_half/__init__.py": "",
            "my_pkg_half/bad.py": "1 / 0\n",
            "my_pkg_half/ok.py": COMPONENT.format(name="run"),
        },
        "[torchx.components]\nbad = my_pkg_bad\n_bad = my_pkg_bad\nhalf = my_pkg_half\ngone = no_such_module_y\n",
    )
    assert get_component("utils.echo").fn_name == "echo"
    with pytest.raises(ImportError, match=r"`bad`.*ZeroDivisionError"):
        get_component("bad.run")
    with pytest.raises(ImportError, match="no_such_module_y"):
        get_component("gone.run")
    with pytest.raises(ComponentValidationException, match=r"my_pkg_half.bad.*division by zero at .*bad.py:1"):
        get_component("half.bad.run")
    with caplog.at_level(logging.WARNING, "torchx"):
        listed = get_components()
    assert {"half.ok.run", "utils.echo"} <= set(listed)
    assert "my_pkg_half.bad" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_decorated_functions_of_the_namespace_package(site: Callable[..., Path]) -> None:
    """A module below `torchx_plugins.components` needs no entry point."""
    site(
        {
            "torchx_plugins/components/vision.py": COMPONENT.format(name="train").replace(
                "def train", "from torchx.plugins import register\n@register.component('vision.train')\ndef train"
            )
        }
    )
    try:
        assert args_of("vision.train", "--msg", "x") == ["x"]
        assert "vision.train" in get_components()
        with pytest.raises(ComponentNotFoundException) as e:
            get_component("vision.trian")
        assert e.value.hint == "did you mean `vision.train`?"
    finally:
        register.forget(plugins.COMPONENTS, "vision.train")


def test_a_plugin_function_is_checked(site: Callable[..., Path]) -> None:
    """An invalid function of a plugin is listed with its errors, and raises when it is requested."""
    site(
        {"my_pkg_w.py": "from torchx.specs import AppDef\ndef say(a) -> AppDef: ...\n"},
        "[torchx.components]\nw = my_pkg_w\n",
    )
    (error,) = get_components()["w.say"].validation_errors
    assert "my_pkg_w.py:2: argument `a`" in error
    with pytest.raises(ComponentValidationException, match=r"my_pkg_w.py:2"):
        get_component("w.say")


# finders and helpers


def test_finders(tmp_path: Path) -> None:
    """Programs can use the finders directly."""
    names = {c.name for c in ModuleComponentsFinder("torchx.components.dist", "x").find(None)}
    assert names == {"x.ddp", "x.spmd", "x.torchrun"}
    import torchx.components.dist as dist

    assert {c.name for c in ModuleComponentsFinder(dist, "").find(None)} == {"ddp", "spmd", "torchrun"}
    (tmp_path / "c.py").write_text("def say(a) -> 'AppDef': ...")
    (found,) = CustomComponentsFinder(str(tmp_path / "c.py"), "say").find(None)
    assert len(found.validation_errors) == 1


def test_module_helpers() -> None:
    """Packages and namespace packages are recognized, and relative names of modules computed."""
    import torchx.specs
    import torchx.specs.api

    assert is_package(torchx.specs)
    assert not is_package(torchx.specs.api)
    assert not is_namespace_package(torchx.specs)
    namespace = ModuleType("ns")
    namespace.__path__ = []
    assert is_namespace_package(namespace)
    assert module_relname(torchx.specs.api, relative_to=torchx.specs) == "api"
    assert module_relname(torchx.specs, relative_to=torchx.specs) == ""
    with pytest.raises(ValueError, match="not a module below"):
        module_relname(torchx.specs, relative_to=torchx.specs.api)


def test_a_component_that_raises_is_blamed_in_its_file(tmp_path: Path) -> None:
    """The reported line is the innermost one in the component's file, even if another file raised."""
    (tmp_path / "comp.py").write_text(
        "import json\nfrom torchx.specs import AppDef\ndef read():\n    return json.loads('{')\n"
        "def say() -> AppDef:\n    return read()\n"
    )
    with pytest.raises(SpecError, match=rf"raised JSONDecodeError: .* at {tmp_path}/comp.py:4(?m:$)"):
        materialize_appdef(get_component(f"{tmp_path}/comp.py:say").fn, [])


def test_a_component_in_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pkg.module:fn` is imported from the current directory, with its relative imports, also when it is called."""
    package = tmp_path / "modpack" / "sub"
    package.mkdir(parents=True)
    (tmp_path / "modpack" / "names.py").write_text("ROLE = 'named'\n")
    (package / "comp.py").write_text(
        "from torchx.specs import AppDef, Role\nfrom ..names import ROLE\n"
        "def go(x: int = 1) -> AppDef:\n    import modpack.names\n"
        "    return AppDef('go', [Role(ROLE, image='', entrypoint='echo', args=[str(x)])])\n"
    )
    (package / "broken.py").write_text("import no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(tmp_path))])
    before = [*sys.path]
    app = materialize_appdef(get_component("modpack.sub.comp:go").fn, ["--x", "2"])
    assert (app.roles[0].name, app.roles[0].args) == ("named", ["2"])
    for name in ("modpack.sub.nope:go", "modpack_nope:go"):
        with pytest.raises(ComponentNotFoundException, match="neither a component file nor a module"):
            get_component(name)
    with pytest.raises(ComponentValidationException, match="no_such_thing"):
        get_component("modpack.sub.broken:go")
    with pytest.raises(ComponentNotFoundException, match="has no function `gone`"):
        get_component("modpack.sub.comp:gone")
    assert sys.path == before


@pytest.mark.parametrize("name", ["C", "obj", "part", "wrapped"])
def test_a_class_is_no_component(tmp_path: Path, name: str) -> None:
    """Nor is an object of one, whatever wraps it: the refusal names the file and says what to write."""
    (tmp_path / "c.py").write_text(
        "import functools\nfrom torchx.specs import AppDef\n"
        "class C:\n    def __call__(self, x: int = 1) -> AppDef: ...\n"
        "obj = C()\npart = functools.partial(obj, x=3)\n"
        "@functools.wraps(obj)\ndef wrapped(*a, **k): return obj(*a, **k)\n"
    )
    with pytest.raises(ComponentValidationException, match=rf"{tmp_path}/c\.py: .*not a function: write `def"):
        get_component(f"{tmp_path}/c.py:{name}")
