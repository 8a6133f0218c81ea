"""Every name of the public interface is there, takes the parameters it took, and has the value it had."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
from typing import Any

import pytest

from torchx.plugins import discovery
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES, get_scheduler_factories

HERE = os.path.dirname(__file__)
LINE = re.compile(r"(?P<path>[\w.]+)(?:\((?P<params>.*)\)| = (?P<value>.+)| keys (?P<keys>.+))?$")
MISSING = object()


def sections(name: str) -> dict[str, list[str]]:
    """Heading -> lines of a data file."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        for line in f.read().splitlines():
            if line.startswith("["):
                lines = found.setdefault(line[1:-1], [])
            elif line and not line.startswith("#"):
                lines.append(line)
    return found


def later() -> set[str]:
    """Modules that a later part of the work brings: they may be missing."""
    with open(os.path.join(HERE, "exports.txt"), encoding="utf-8") as f:
        return set(re.findall(r"^\[(.*)\]$", f.read().partition("# later")[2], re.MULTILINE))


EXPORTS = sections("exports.txt")
LATER = later()


def is_built(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None  # a folder without files is a namespace package


def complaint(module: Any, line: str) -> str:
    """What is wrong with one line of the list; empty when it holds."""
    match = LINE.match(line)
    assert match, f"not a line of the list: {line}"
    found: Any = module
    for part in match["path"].split("."):
        found = getattr(found, part, MISSING)
        if found is MISSING:
            return f"`{match['path']}` is missing"
    if match["value"] is not None:
        value = getattr(found, "value", found)
        expected = ast.literal_eval(match["value"])
        return "" if value == expected else f"`{match['path']}` is {value!r}, not {expected!r}"
    if match["keys"] is not None:
        missing = {k.strip() for k in match["keys"].split(",")} - {str(getattr(k, "value", k)) for k in found}
        return f"`{match['path']}` has no {sorted(missing)}" if missing else ""
    return wrong_parameters(match["path"], found, match["params"]) if match["params"] is not None else ""


def wrong_parameters(path: str, found: Any, listed: str) -> str:
    """Parameters keep their names, their order, and may be given by position where they could; new ones are optional."""
    expected = [p for p in listed.split(", ") if p]
    if isinstance(inspect.getattr_static(found, "__call__", None), property) or not callable(found):
        return f"`{path}` cannot be called"
    actual = list(inspect.signature(found).parameters.values())
    if "." in path and actual and actual[0].name == "self":
        actual = actual[1:]
    open_end = {p.kind: p for p in actual if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_anything = len(open_end) == 2 and len(actual) == 2
    positional = True
    for i, name in enumerate(expected):
        if name.startswith("**"):
            if inspect.Parameter.VAR_KEYWORD not in open_end:
                return f"`{path}` takes no `{name}`"
        elif name.startswith("*"):
            positional = False
            if name != "*" and inspect.Parameter.VAR_POSITIONAL not in open_end:
                return f"`{path}` takes no `{name}`"
        elif not takes_anything:
            p = next((p for p in actual if p.name == name), None)
            if p is None:
                return f"`{path}` has no parameter `{name}`"
            if positional and (p.kind is p.KEYWORD_ONLY or actual.index(p) != i):
                return f"`{path}` does not take `{name}` as positional argument number {i + 1}"
    names = {e.lstrip("*") for e in expected}
    needed = [p.name for p in actual if p.default is p.empty and p.kind not in open_end and p.name not in names]
    return f"`{path}` needs the new {needed}" if needed else ""


@pytest.mark.parametrize("name", EXPORTS)
def test_exports(name: str) -> None:
    """Each listed name of the module is there as listed."""
    if name in LATER and not is_built(name):
        pytest.skip("a later part of the work")
    module = importlib.import_module(name)
    assert [c for c in (complaint(module, line) for line in EXPORTS[name]) if c] == []


def test_the_list_is_not_empty() -> None:
    """The list was read: it names what everybody imports."""
    assert len(EXPORTS) > 50
    assert "AppDef(name, roles, metadata)" in EXPORTS["torchx.specs.api"]
    assert "AppDef" in EXPORTS["torchx.specs"]


@pytest.mark.parametrize(
    ("source", "line", "wrong"),
    [
        ("def f(a, b=1): ...", "f(a, b)", False),
        ("def f(a, b=1, c=2): ...", "f(a, b)", False),
        ("def f(a, b=1, *, c): ...", "f(a, b)", True),
        ("def f(a, *, b=1): ...", "f(a, b)", True),
        ("def f(b, a): ...", "f(a, b)", True),
        ("def f(*args, b=1): ...", "f(*args, b)", False),
        ("def f(a): ...", "f(a, **kwargs)", True),
        ("def f(*args, **kwargs): ...", "f(a, b)", False),
        ("class C:\n def m(self, a): ...", "C.m(a)", False),
        ("class C:\n def m(self, a): ...", "C.m(b)", True),
        ("X = 1", "X = 1", False),
        ("X = 1", "X = 2", True),
        ("X = {'a': 1}", "X keys a", False),
        ("X = {'a': 1}", "X keys a, b", True),
        ("", "X", True),
    ],
)
def test_this_test_can_fail(source: str, line: str, wrong: bool) -> None:
    """The comparison finds what would break a caller, and allows what would not."""
    import types

    module = types.ModuleType("probe")
    exec(source, module.__dict__)
    assert bool(complaint(module, line)) is wrong


TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list[str]": list[str], "dict[str, str]": dict[str, str]}


@pytest.mark.parametrize("name", sections("runopts.txt"))
def test_run_options(name: str) -> None:
    """Each documented run option is there with its type and default; a new one is optional."""
    if not is_built(DEFAULT_SCHEDULER_MODULES[name]):
        pytest.skip("a later part of the work")
    scheduler = get_scheduler_factories(group="no.such.group")[name]("s")
    opts = dict(iter(scheduler.run_opts()))
    listed = set()
    wrong = []
    for line in sections("runopts.txt")[name]:
        if line.startswith("backend = "):
            assert scheduler.backend == line.removeprefix("backend = ")
            continue
        key, _, rest = line.partition(": ")
        type_name, _, default = rest.partition(" = ")
        opt = opts.get(key.removesuffix("!"))
        listed.add(key.removesuffix("!"))
        expected = (TYPES[type_name], ast.literal_eval(default) if default else None, key.endswith("!"))
        if opt is None or (opt.opt_type, opt.default, opt.is_required) != expected:
            wrong.append(f"{line}: {opt}")
    wrong += [f"{n} is new and required" for n, o in opts.items() if o.is_required and n not in listed]
    scheduler.close()
    assert wrong == []


def test_entry_point_groups() -> None:
    """The groups that plugins register in keep their names."""
    assert set(discovery.KINDS) == {
        "torchx.cli.cmds",
        "torchx.components",
        "torchx.failures",
        "torchx.named_resources",
        "torchx.schedulers",
        "torchx.tracker",
    }
