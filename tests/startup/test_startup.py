"""What each command imports: the list of modules, kept as data, is the guard against a slow start.

A module that is not on the list fails the test. When it has to be there, ``UPDATE_STARTUP_LIST=1 pytest tests/startup``
writes the list anew, and the change is looked at in review.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

HERE = os.path.dirname(__file__)
LIST = os.path.join(HERE, "modules.txt")

PROBE = """
import sys
before = set(sys.modules)
import atexit, os
def report():
    os.write(int(os.environ["PROBE_FD"]), "\\n".join(sorted(set(sys.modules) - before)).encode())
atexit.register(report)
"""
IMPORT = "import {}"
COMMAND = "sys.argv[0] = 'torchx'; from torchx.cli.main import main; main({!r})"

CASES = {
    "import torchx": IMPORT.format("torchx"),
    "import torchx.specs": IMPORT.format("torchx.specs"),
    "import torchx.specs; AppDef": "from torchx.specs import AppDef, Role, Resource, macros, resource; AppDef('a', [Role('r', 'i')])",
    "import torchx.tracker": IMPORT.format("torchx.tracker"),
    "import torchx.runner": IMPORT.format("torchx.runner"),
    "torchx --version": COMMAND.format(["--version"]),
    "torchx --help": COMMAND.format(["--help"]),
    "torchx run --dryrun utils.echo": COMMAND.format(["run", "-s", "local_cwd", "--dryrun", "utils.echo"]),
    "torchx status": COMMAND.format(["status", "@last"]),
    "torchx list": COMMAND.format(["list"]),
    "torchx log": COMMAND.format(["log", "@last"]),
}
NEVER = {
    "torch",
    "numpy",
    "fsspec",
    "yaml",
    "docker",
    "kubernetes",
    "boto3",
    "rich",
    "asyncio",
    "importlib.metadata",
    "typing_extensions",
    "docstring_parser",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A home with one finished run."""
    folder = str(tmp_path_factory.mktemp("startup"))
    argv = [sys.executable, "-m", "torchx", "run", "-s", "local_cwd", "--wait", "utils.echo", "--msg", "hello"]
    done = subprocess.run(argv, env=environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def environment(home: str, **more: str) -> dict[str, str]:
    return {**os.environ, "HOME": home, "TORCHX_HOME": os.path.join(home, ".torchx"), **more}


def modules(code: str, home: str) -> set[str]:
    """The modules that a fresh interpreter has imported after running the code, less what it starts with."""
    read, write = os.pipe()
    done = subprocess.Popen(
        [sys.executable, "-c", PROBE + code],
        env=environment(home, PROBE_FD=str(write)),
        pass_fds=[write],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=home,
    )
    os.close(write)
    _, stderr = done.communicate()
    with os.fdopen(read) as f:
        found = f.read().split()
    assert done.returncode == 0, stderr.decode()
    return {named(module) for module in found} - {"atexit", "io"}  # the probe's; what Python starts with up to 3.13


def named(module: str) -> str:
    """The name on the list: of the standard library packages only, whose parts differ between versions of Python."""
    top = module.partition(".")[0]
    if module in NEVER or top not in sys.stdlib_module_names:
        return module
    return "re" if top.startswith("sre_") else top


def listed() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    names: set[str] = set()
    if os.path.exists(LIST):
        with open(LIST, encoding="utf-8") as f:
            for line in f.read().splitlines():
                if line.startswith("["):
                    names = found.setdefault(line[1:-1], set())
                elif line and not line.startswith("#"):
                    names.add(line)
    return found


def write(lists: dict[str, set[str]]) -> None:
    with open(LIST, "w", encoding="utf-8") as f:
        f.write(
            "# What each command imports beyond a bare interpreter; written by UPDATE_STARTUP_LIST=1 pytest tests/startup\n"
        )
        for case in CASES:
            f.write(f"\n[{case}]\n" + "".join(f"{name}\n" for name in sorted(lists.get(case, ()))))


@pytest.mark.parametrize("case", CASES)
def test_modules(case: str, home: str) -> None:
    """A command imports what is on its list, and nothing else. Private modules differ between versions of Python."""
    found = modules(CASES[case], home)
    if os.environ.get("UPDATE_STARTUP_LIST"):
        write({**listed(), case: {m for m in found if not m.startswith("_")}})
    assert found & NEVER == set()
    new = {m for m in found - listed()[case] if not m.startswith("_")}
    assert new == set(), f"new at start-up: {sorted(new)}"


@pytest.mark.parametrize("verb", ["status", "log"])
def test_a_handle_needs_no_record(verb: str, home: str) -> None:
    """What a local job's own files tell is not asked of the run registry, and its request is not read."""
    (handle,) = os.listdir(os.path.join(home, ".torchx", "local", "torchx"))
    found = modules(COMMAND.format([verb, f"local_cwd://torchx/{handle}"]), home)
    assert found & {"sqlite3", "json", "datetime", "torchx.runs", "torchx.specs.serialize"} == set()


def test_the_probe_sees_an_import(home: str) -> None:
    """The probe tells an import from none: a test that cannot fail proves nothing."""
    assert "json" in modules("import json", home)
    assert "json" not in modules("import torchx", home)
    assert modules("pass", home) == set()


def test_bare_import_is_almost_nothing(home: Any) -> None:
    """`import torchx` brings the package, its version, and no more."""
    assert {m for m in modules("import torchx", home) if not m.startswith("_")} == {"torchx", "torchx.version"}
