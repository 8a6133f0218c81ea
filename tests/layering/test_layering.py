"""Who may import whom, what may be imported when, and that nothing goes in circles. The rooms are drawn in design.md."""

from __future__ import annotations

import ast
import importlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import pytest

import torchx
from tests.trees import walk

ROOT = os.path.dirname(torchx.__file__)

ROOMS = {
    "torchx": 0,
    "torchx.errors": 0,
    "torchx.settings": 0,
    "torchx.version": 0,
    "torchx.util": 0,
    "torchx.plugins": 1,
    "torchx.specs": 2,
    "torchx.render": 2,
    "torchx.component_reader": 3,
    "torchx.workspace": 3,
    "torchx.tracker": 3,
    "torchx.runs": 3,
    "torchx.schedulers.api": 4,
    "torchx.schedulers.ids": 4,
    "torchx.schedulers.devices": 4,
    "torchx.schedulers.streams": 4,
    "torchx.schedulers.kit": 4,
    "torchx.schedulers.batch": 5,
    "torchx.schedulers": 6,
    "torchx.components": 7,
    "torchx.config": 8,
    "torchx.pipelines": 0,
    "torchx.runner": 8,
    "torchx.compat": 9,
    "torchx.cli": 9,
    "torchx.notebook": 9,
    "torchx.ui": 9,
    "torchx.mcp": 9,
    "torchx.__main__": 9,
}
# One folder a backend, and the doors that lead into it.
BACKENDS = {
    "aws": ("aws_batch_scheduler", "aws_sagemaker_scheduler"),
    "docker": ("docker_scheduler",),
    "kubernetes": ("kubernetes_scheduler", "kubernetes_mcad_scheduler"),
    "local": ("local_scheduler",),
    "lsf": ("lsf_scheduler",),
    "slurm": ("slurm_scheduler",),
}
SHARED = (
    "api",
    "batch",
    "devices",
    "ids",
    "kit",
    "streams",
)
"""What a backend's folder may import of ``torchx.schedulers`` beside itself."""
IN_JOB = ("torchx.runtime", "torchx.distributed", "torchx.apps")
STANDALONE = ("torchx.supervisor",)
TESTING = "torchx.testing"
APART = ("torchx.ui", "torchx.mcp")
"""Faces in a process of their own: nobody imports them but the function that starts them, so they import what they need."""

LATE = (
    *("torchx.schedulers.batch", "torchx.schedulers.slurm", "torchx.schedulers.lsf", "torchx.schedulers.docker"),
    *("torchx.schedulers.kubernetes", "torchx.schedulers.kubernetes_scheduler"),
    *("torchx.schedulers.kubernetes_mcad_scheduler", "torchx.schedulers.aws"),
    *("torchx.schedulers.aws_sagemaker_scheduler", "torchx.workspace.images", "torchx.workspace.oci"),
    *("torchx.tracker.backend", "torchx.tracker.bounded", "torchx.tracker.configs", "torchx.tracker.mlflow"),
    *("torchx.tracker.mlflow_runs", "torchx.tracker.mlflow_tags", "torchx.tracker.values"),
    *("torchx.component_reader.copy", "torchx.component_reader.help", "torchx.component_reader.linter"),
    *("torchx.compat", "torchx.render.html_pages", "torchx.schedulers.kubernetes.overlays", "torchx.util.field_docs"),
    *("torchx.util.modules", "torchx.runner.watching.aio", "torchx.runner.capsule", "torchx.runner.inside.copy"),
    *(
        "torchx.runner.inside.forward",
        "torchx.runner.watching.metrics",
        "torchx.runner.notices.plans",
        "torchx.runner.watching.poller",
    ),
    *("torchx.runner.jobs.paced", "torchx.runner.inside.ssh", "torchx.runs.asides", "torchx.runs.statuses"),
)
"""Entered when somebody asks a cluster, a cloud, a registry or a tracker, beside whose answer the standard library is
quick, or wants what cannot be done without it: there it is imported where anybody looks for it, at the head."""

# Not at module level in rooms 0 to 9, but in those that are entered late: each is paid for by every command.
SLOW = {
    "argparse",
    "ast",
    "asyncio",
    "concurrent",
    "configparser",
    "dataclasses",
    "datetime",
    "importlib.metadata",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "shutil",
    "sqlite3",
    "subprocess",
    "tempfile",
    "threading",
}

# importer, imported -> why the arrow may point up
EXCEPTIONS = {
    ("torchx.components.component_test_base", "torchx.component_reader.linter"): "checks components, for users",
    ("torchx.components.component_test_base", "torchx.runner"): "a unittest base that runs components, for users",
    ("torchx.components.component_test_base", "torchx.runner.api"): "a unittest base that runs components, for users",
    ("torchx.components.utils", "torchx.schedulers.slurm.scripts.sbatch"): "reads a batch script of the user",
    ("torchx.specs.workspaces", "torchx.workspace.copies"): "`merge_into` is promised; one way to copy",
}

SLOW_EXCEPTIONS = {
    ("torchx.components.component_test_base", "shutil"): "a unittest base, imported by tests only",
    ("torchx.components.component_test_base", "tempfile"): "a unittest base, imported by tests only",
    ("torchx.cli.log_records", "logging"): "its handler, set up when a verb begins",
    ("torchx.schedulers.kit.check_node", "shutil"): "a program of its own, which runs on nodes",
    ("torchx.schedulers.kit.check_node", "subprocess"): "a program of its own, which runs on nodes",
    ("torchx.schedulers.kit.stage_node", "shutil"): "a program of its own, which runs on nodes",
    ("torchx.runner.inside.relay", "threading"): "a program of its own, imported where ports are forwarded",
}


class Import(NamedTuple):
    """One imported module, and how the import stands in the file."""

    module: str
    line: int
    top: bool
    typing_only: bool


def files() -> Iterator[tuple[str, str]]:
    for folder, _, names in sorted(os.walk(ROOT)):
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                parts = os.path.relpath(path, os.path.dirname(ROOT)).removesuffix(".py").split(os.sep)
                yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(files())


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


@cache
def imports(module: str) -> tuple[Import, ...]:
    """All imports of a file; ``from package import submodule`` counts as the submodule."""
    with open(MODULES[module], encoding="utf-8") as f:
        tree = ast.parse(f.read())
    found: list[Import] = []

    def visit(node: ast.AST, *, top: bool, typing_only: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(a.name, node.lineno, top, typing_only) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module if MODULES[module].endswith("__init__.py") else module.rpartition(".")[0]
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            name = ".".join(p for p in (base, node.module) if p)
            for a in node.names:
                sub = f"{name}.{a.name}"
                is_slow_submodule = sub in SLOW
                found.append(
                    Import(sub if sub in MODULES or is_slow_submodule else name, node.lineno, top, typing_only)
                )
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            for child in node.body:
                visit(child, top=top, typing_only=True)
            for child in node.orelse:
                visit(child, top=top, typing_only=typing_only)
        else:
            deeper = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for part in ast.iter_child_nodes(node):
                if not isinstance(part, ast.expr):  # there is no import in those
                    visit(part, top=top and not deeper, typing_only=typing_only)

    visit(tree, top=True, typing_only=False)
    return tuple(found)


DOOR = re.compile(
    r'''"""A door to :mod:`(?P<there>[\w.]+)`, which lived here; see "Doors" in design.md."""

import sys

from (?P=there) import \*  # noqa: F403  # so that type checkers see the names

sys.modules\[__name__\] = sys.modules\["(?P=there)"\]
'''
)


@cache
def door_to(module: str) -> str | None:
    """The module that a door opens on; None for a module of its own."""
    with open(MODULES[module], encoding="utf-8") as f:
        text = f.read()
    found = DOOR.fullmatch(text)
    assert found or "sys.modules[__name__]" not in text, f"`{module}` is a door of another make"
    return found["there"] if found else None


def room(module: str) -> int | None:
    """The room of a module by its longest known prefix; None for code in jobs, the supervisor and the kit."""
    if module.startswith((*IN_JOB, *STANDALONE, TESTING)):
        return None
    parts = module.split(".")
    for n in range(len(parts), 1, -1):
        found = ROOMS.get(".".join(parts[:n]))
        if found is not None:
            return found
    return ROOMS["torchx"] if module == "torchx" else None


def is_torchx(module: str) -> bool:
    return module == "torchx" or module.startswith("torchx.")


def known(module: str) -> bool:
    return module.startswith((*IN_JOB, *STANDALONE, TESTING)) or room(module) is not None


def test_every_module_has_a_room() -> None:
    """A new package is put into a room, here and in design.md."""
    assert [m for m in MODULES if not known(m)] == []


def test_every_module_can_be_imported() -> None:
    """Without the packages that it needs when it is used."""
    for module in MODULES:
        if not module.endswith("__main__"):
            importlib.import_module(module)


def test_lower_never_imports_higher() -> None:
    """No import, at any depth, points from a lower room to a higher one. Names for annotations may come from anywhere."""
    wrong = []
    for module in MODULES:
        here = room(module)
        for i in imports(module):
            there = room(i.module) if is_torchx(i.module) else None
            if here is None or there is None or i.typing_only or (module, i.module) in EXCEPTIONS:
                continue
            if door_to(module) is not None:
                continue
            if there > here:
                wrong.append(f"{module}:{i.line} (room {here}) imports {i.module} (room {there})")
    assert wrong == []


DOORS = [m for m in MODULES if door_to(m) is not None]


@pytest.mark.parametrize("door", DOORS)
def test_a_door_is_the_module_that_it_opens_on(door: str) -> None:
    """Programs that import, or patch, a name where it once lived reach the one that the product uses."""
    there = door_to(door)
    assert there is not None
    assert importlib.import_module(door) is importlib.import_module(there)
    package, _, name = door.rpartition(".")
    assert getattr(importlib.import_module(package), name) is sys.modules[there]


def test_old_names_are_for_others() -> None:
    """Nothing of ours imports what is kept for programs of others, but doors and what is there itself."""
    wrong = [
        f"{m}:{i.line} imports {i.module}"
        for m in MODULES
        if not m.startswith("torchx.compat") and door_to(m) is None
        for i in imports(m)
        if i.module.startswith("torchx.compat")
    ]
    assert wrong == []


def test_doors_are_for_others() -> None:
    """Nothing of ours goes through a door."""
    wrong = [f"{m}:{i.line} imports {i.module}" for m in MODULES for i in imports(m) if i.module in DOORS]
    assert wrong == []


def test_a_backend_imports_what_is_shared_and_itself() -> None:
    """A backend's folder imports the contract, ``kit``, ``batch`` and its own files; its door opens on it alone."""
    wrong = []
    for folder, doors in BACKENDS.items():
        own = f"torchx.schedulers.{folder}"
        allowed = (own, *(f"torchx.schedulers.{name}" for name in SHARED))
        members = [m for m in MODULES if m == own or m.startswith(f"{own}.")]
        assert members, folder
        for m in (*members, *(f"torchx.schedulers.{door}" for door in doors)):
            wrong += [
                f"{m}:{i.line} imports {i.module}"
                for i in imports(m)
                if i.module.startswith("torchx.schedulers.")
                and not any(i.module == a or i.module.startswith(f"{a}.") for a in allowed)
            ]
    assert wrong == []


def test_components_are_functions_of_specs() -> None:
    """Components import nothing of torchx but specs, what is below, and each other."""
    wrong = [
        f"{m}:{i.line} imports {i.module}"
        for m in MODULES
        if m.startswith("torchx.components")
        for i in imports(m)
        if is_torchx(i.module) and (m, i.module) not in EXCEPTIONS and not i.typing_only
        if not (i.module.startswith("torchx.components") or (room(i.module) is not None and room(i.module) <= 2))
    ]
    assert wrong == []


def test_code_in_jobs_imports_no_launcher() -> None:
    """What runs inside a job imports room 0, the tracker's interface and other in-job code only."""
    wrong = [
        f"{m}:{i.line} imports {i.module}"
        for m in MODULES
        if m.startswith(IN_JOB)
        for i in imports(m)
        if is_torchx(i.module) and not i.typing_only
        if not (i.module.startswith((*IN_JOB, "torchx.tracker")) or room(i.module) == 0)
    ]
    assert wrong == []


def test_the_supervisor_stands_alone() -> None:
    """The launcher and supervisor of local jobs import the standard library and each other's files only."""
    wrong = [
        f"{m}:{i.line} imports {i.module}"
        for m in MODULES
        if m.startswith(STANDALONE)
        for i in imports(m)
        if (is_torchx(i.module) and not i.module.startswith(STANDALONE)) or is_third_party(i.module)
    ]
    assert wrong == []


def test_product_code_never_imports_the_kit() -> None:
    """Nothing but the kit imports torchx.testing."""
    wrong = [
        f"{m}:{i.line}"
        for m in MODULES
        if not m.startswith(TESTING)
        for i in imports(m)
        if i.module.startswith(TESTING)
    ]
    assert wrong == []


def circles(*, with_annotations: bool) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (strongly connected components)."""
    graph = {m: set() if door_to(m) else targets(m, with_annotations=with_annotations) for m in MODULES}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        path.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
            if target in path:
                low[module] = min(low[module], low[target])
        if low[module] == index[module]:
            at = path.index(module)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def targets(module: str, *, with_annotations: bool) -> set[str]:
    found = {i.module for i in imports(module) if with_annotations or not i.typing_only}
    return {m for m in found if m in MODULES} - {module}


def folder_of(module: str) -> str:
    return os.path.dirname(MODULES[module])


def test_no_import_cycle() -> None:
    """Imports form no circle, those in functions included, nor one of a package and its own modules."""
    assert circles(with_annotations=False) == []


LARGE = {
    "torchx.component_reader.finder": "specs.api names types of the config and of pages",
    "torchx.schedulers.docker.answers": "the client names the request",
    "torchx.specs.workspaces": "`merge_into` is promised; one way to copy",
}
"""Circles of annotations that are too large, by their first module: to be cut."""


def test_circles_of_annotations_are_small() -> None:
    """With the imports for annotations, a circle has at most four files, all of one folder."""
    large = [
        circle
        for circle in circles(with_annotations=True)
        if len(circle) > 4 or len({folder_of(m) for m in circle}) > 1
    ]
    assert sorted(circle[0] for circle in large) == sorted(LARGE)


SUITES = ("ground", "jobs", "notices", "launch", "watching", "inside", "sweeps", "capsule", "doctor", "foreign", "show")
"""The suites of ``torchx/runner``, lowest first: a module imports modules of its own suite and of lower ones."""
OUTSIDE = {"torchx.runner.events": 0, "torchx.runner.events.api": 0, "torchx.runner.events.handlers": 0}
TOP = ("torchx.runner", "torchx.runner.api", "torchx.runner.config", "torchx.runner.notices.__main__")
"""What stands on all suites: the Runner, its package, and a program."""


def suite(module: str) -> int:
    if module in TOP:
        return len(SUITES)
    return OUTSIDE[module] if module in OUTSIDE else SUITES.index(module.split(".")[2])


def test_suites_of_the_runner_import_lower_ones() -> None:
    """Also for annotations: whoever reads a suite need not know the ones above it."""
    wrong = [
        f"{m}:{i.line} imports {i.module}"
        for m in MODULES
        if m.startswith("torchx.runner")
        for i in imports(m)
        if i.module in MODULES and i.module.startswith("torchx.runner") and suite(i.module) > suite(m)
    ]
    assert wrong == []


def is_third_party(module: str) -> bool:
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and top != "torchx" and top != "__future__"


def test_third_party_packages_are_imported_in_functions() -> None:
    """No third-party package is imported at module level, nor without need; the kit may import pytest."""
    wrong = [
        f"{m}:{i.line} imports {i.module}"
        for m in MODULES
        if not m.startswith((TESTING, *APART))
        for i in imports(m)
        if i.top and not i.typing_only and is_third_party(i.module)
    ]
    assert wrong == []


def test_what_stands_apart_is_imported_by_nobody() -> None:
    """A face with packages of its own is imported when it starts, in a function."""
    wrong = [
        f"{m}:{i.line}"
        for m in MODULES
        if not m.startswith(APART)
        for i in imports(m)
        if i.top and i.module.startswith(APART)
    ]
    assert wrong == []


def test_slow_modules_are_imported_in_functions() -> None:
    """In rooms 0 to 9 no slow standard module is imported at module level; the command line may import argparse."""
    wrong = []
    for module in MODULES:
        here = room(module)
        if here is None or module.startswith(APART) or is_late(module):
            continue
        for i in imports(module):
            slow = i.module in SLOW or i.module.partition(".")[0] in SLOW
            allowed = (here == 9 and i.module == "argparse") or (module, i.module) in SLOW_EXCEPTIONS
            if slow and i.top and not i.typing_only and not allowed:
                wrong.append(f"{module}:{i.line} imports {i.module}")
    assert wrong == []


def is_late(module: str) -> bool:
    if module.endswith(".verbs") or module == "torchx.runner.capsule":  # the Runner is made of them
        return False
    return module in LATE or module.startswith(tuple(f"{late}." for late in LATE))


def test_what_is_entered_late_is_in_no_start_up() -> None:
    """No command of the list in ``tests/startup`` enters a room whose modules import what they like."""
    with open(os.path.join(os.path.dirname(ROOT), "tests", "startup", "modules.txt"), encoding="utf-8") as file:
        assert [module for module in file.read().splitlines() if is_late(module)] == []
    assert [late for late in LATE if late not in MODULES] == []


def walk_if(word: str, path: str) -> Iterator[ast.AST]:
    """All nodes of a file that has the word; none of another."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    return walk(ast.parse(text)) if word in text else iter(())


def is_vars(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars"


def test_git_is_called_in_two_modules() -> None:
    """Both use the environment of ``torchx.util.git.isolate``, in which a repository cannot make git execute anything."""
    calls = re.compile(r"""["']git["']|["'\s;|(]git (?:-|status|diff|log|rev-parse|config|add|show|clone|apply)""")
    found = set()
    for module, path in MODULES.items():
        with open(path, encoding="utf-8") as file:
            code = re.sub(r"``[^`]*``|`[^`]*`|#.*", "", file.read())
        if calls.search(code):
            found.add(module)
    assert found == {"torchx.util.git", "torchx.runner.capsule.code"}
    scripts = [os.path.join(folder, name) for folder, _, names in os.walk(ROOT) for name in names if name[-3:] == ".sh"]
    for script in scripts:
        with open(script, encoding="utf-8") as file:
            assert not re.search(r"\bgit\b", file.read()), script


def test_nothing_is_smuggled() -> None:
    """Nobody puts an attribute onto an object past its class, or takes it from there: what an object has is declared."""
    wrong = []
    for module, path in MODULES.items():
        for node in walk_if("vars(", path):
            by_key = isinstance(node, ast.Subscript) and is_vars(node.value)
            changing = ("get", "pop", "setdefault", "update")
            by_method = isinstance(node, ast.Attribute) and node.attr in changing and is_vars(node.value)
            if by_key or by_method:
                wrong.append(f"{module}:{node.lineno}")  # type: ignore[attr-defined]  # both are expressions
    assert wrong == []


def test_files_and_functions_stay_small() -> None:
    """Files stay under 500 lines, functions do not exceed 60, their docstring (a component's help) not counted."""
    wrong = []
    for module, path in MODULES.items():
        with open(path, encoding="utf-8") as f:
            text = f.read()
        if text.count("\n") >= 500:
            wrong.append(f"{module} has {text.count(chr(10))} lines")
        for node in walk(ast.parse(text)) if text.count("\n") > 60 else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                first = node.body[0]
                documented = ast.get_docstring(node) is not None and first.end_lineno is not None
                docstring = first.end_lineno - first.lineno + 1 if documented else 0
                lines = node.end_lineno - node.lineno + 1 - docstring
                if lines > 60:
                    wrong.append(f"{module}:{node.lineno} `{node.name}` has {lines} lines")
    assert wrong == []


def test_files_of_ours_have_a_mode() -> None:
    """What writes into our folders says who may read it: with ``umask 000``, `open` creates files for everybody.

    Except for files that users ask for, kernel files, and what runs in a user's own program.
    """
    theirs = ("torchx.cli", "torchx.apps", "torchx.testing", "torchx.notebook", "torchx.distributed")
    wrong = []
    for module, path in MODULES.items():
        for node in walk_if("open(", path):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"):
                continue
            name, mode = (ast.unparse(argument) for argument in [*node.args, ast.Constant("r")][:2])
            is_fd = name.endswith(("fd", "new")) or name.startswith("os.open(") or name == "_TERMINAL"
            if set(mode) & set("wax") and not is_fd and not any(k.arg == "opener" for k in node.keywords):
                wrong.append(f"{module}:{node.lineno} opens {name}")
    assert [line for line in wrong if not line.startswith(theirs)] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import json", [("json", True, False)]),
        ("def f():\n import json", [("json", False, False)]),
        ("if TYPE_CHECKING:\n import json\nelse:\n import ast", [("json", True, True), ("ast", True, False)]),
        ("from importlib import metadata", [("importlib.metadata", True, False)]),
        ("from torchx import errors", [("torchx.errors", True, False)]),
        ("from torchx.errors import SpecError", [("torchx.errors", True, False)]),
        ("from . import errors", [("torchx.errors", True, False)]),
        ("class C:\n import json", [("json", True, False)]),
        ("try:\n import json\nexcept ImportError: ...", [("json", True, False)]),
    ],
    ids=lambda v: v.replace("\n", "|") if isinstance(v, str) else "",
)
def test_this_test_reads_imports_right(
    source: str, expected: list[tuple[str, bool, bool]], tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader tells module level, functions and annotations apart, and resolves submodules."""
    path = os.path.join(tmp_path, "m.py")
    with open(path, "w") as f:
        f.write(source)
    monkeypatch.setitem(MODULES, "torchx.probe", path)
    imports.cache_clear()
    try:
        assert [(i.module, i.top, i.typing_only) for i in imports("torchx.probe")] == expected
    finally:
        imports.cache_clear()
