"""The list of what the gate runs of the tests with real parts is whole: each folder is on it, each line is a test."""

from __future__ import annotations

import ast

import pytest

from tests.backends import parts, smoke

LISTED = smoke.listed()
FOLDERS = sorted(path.parent.name for path in smoke.FOLDER.glob("*/__init__.py") if any(path.parent.glob("test_*.py")))
NOT_IN_THE_GATE: dict[str, str] = {
    "clients": "its programs take 2.5 GB and minutes to install",
    "ui": "a browser takes 400 MB and a minute to install; `tests/ui` asks the server without one",
}
"""Folder to the reason why the gate runs none of its tests."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_is_in_the_gate(folder: str) -> None:
    """A change that breaks a backend altogether does not pass the gate."""
    in_gate = [test for test in LISTED if test.startswith(f"{folder}/")]
    assert bool(in_gate) != bool(NOT_IN_THE_GATE.get(folder)), "either its tests, or the reason why there are none"


@pytest.mark.parametrize("test", LISTED)
def test_each_line_is_a_test(test: str) -> None:
    """A test that was renamed or removed does not leave the gate in silence."""
    file, *names = test.partition("[")[0].split("::")
    scope: list[ast.stmt] = ast.parse((smoke.FOLDER / file).read_text()).body
    module = scope
    for name in names:
        found = [node for node in scope if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name]
        assert found, f"{file} has no {name}"
        scope = found[0].body
        if isinstance(found[0], ast.ClassDef):
            scope = [*scope, *(node for base in found[0].bases for node in _body(base, module))]


def _body(base: ast.expr, module: list[ast.stmt]) -> list[ast.stmt]:
    """What a class of `tests.backends`, from which one of this module inherits its tests, has."""
    assert isinstance(base, ast.Name)
    for node in module:
        if isinstance(node, ast.ImportFrom) and base.id in [alias.name for alias in node.names] and node.module:
            path = smoke.FOLDER.parents[1] / f"{node.module.replace('.', '/')}.py"
            found = ast.parse(path.read_text()).body if node.module.startswith("tests.") else []
            return next((one.body for one in found if isinstance(one, ast.ClassDef) and one.name == base.id), [])
    return []


def test_nothing_is_listed_twice() -> None:
    """One line for each test."""
    assert len(LISTED) == len(set(LISTED))


def test_parameters_are_told_apart() -> None:
    """A line without a parameter stands for all of them, one with a parameter for this one."""
    tests = frozenset({"a/test_a.py::one", "a/test_a.py::two[x]"})
    given = ["one", "one[x]", "one[y]", "two[x]", "two[y]", "two", "three"]
    assert [n for n in given if smoke.is_listed(f"tests/backends/a/test_a.py::{n}", tests)] == [
        "one",
        "one[x]",
        "one[y]",
        "two[x]",
    ]


def test_what_a_folder_shares_is_known() -> None:
    """Each folder is known to the script that starts what its tests share, and nothing else is."""
    assert sorted(parts.FOLDERS) == FOLDERS
    assert list(parts.FOLDERS)[-1] == "kubernetes", (
        "scripts/real leaves it out where it is not built, or builds it meanwhile"
    )
    assert {part for needed in parts.FOLDERS.values() for part in needed} <= set(parts.PARTS)
