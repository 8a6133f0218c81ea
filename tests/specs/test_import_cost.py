"""Modules that `import torchx.specs` may import. Unlike times, they do not depend on the machine's speed."""

from __future__ import annotations

import os
import subprocess
import sys

import torchx

# The rest of the standard library that may come along is what `enum` itself imports.
_OURS = {
    "torchx",
    "torchx.errors",
    "torchx.specs",
    "torchx.specs.api",
    "torchx.specs.cases",
    "torchx.specs.options",
    "torchx.specs.options.cfg_literals",
    "torchx.specs.copies",
    "torchx.specs.handles",
    "torchx.specs.macros",
    "torchx.specs.mounts",
    "torchx.specs.ready",
    "torchx.specs.options.runopts",
    "torchx.specs.states",
    "torchx.specs.status",
    "torchx.specs.workspaces",
    "torchx.util",
    "torchx.util.any",
    "torchx.util.records",
    "torchx.util.reexports",
    "torchx.util.strings",
    "torchx.version",
}


def _modules_after(code: str) -> set[str]:
    """Return the modules that the code imports in addition to `import enum, collections.abc`."""
    root = os.path.dirname(torchx.__path__[0])
    script = (
        "import sys, enum, collections.abc, __future__\n"
        f"before = set(sys.modules); sys.path.insert(0, {root!r})\n"
        f"{code}\n"
        "print(*sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_of_specs() -> None:
    """It imports only light modules of torchx, and nothing of the standard library beyond `enum`."""
    assert _modules_after("import torchx.specs") == _OURS


def test_describing_a_job_imports_nothing_more() -> None:
    """Creating and copying an AppDef, substituting macros and resolving options import nothing."""
    code = (
        "from torchx.specs import *\n"
        "from torchx.specs.copies import copy_data\n"
        "app = AppDef('a', [Role('r', 'i', args=[macros.app_id], mounts=[BindMount('/a', '/b')], resource=Resource(1, 0, 1))])\n"
    ).replace(
        "import *", "import AppDef, Role, Resource, macros, BindMount, runopts, parse_app_handle, parse_mounts"
    ) + (
        "role = macros.Values('i', 'a', '0', 'R').apply(copy_data(app).roles[0])\n"
        "opts = runopts(); opts.add('x', type_=int, help='', default=1); opts.resolve({})\n"
        "parse_app_handle('a://b/c'); parse_mounts(['type=bind,src=/a,dst=/b']); repr(app); app == app"
    )
    assert _modules_after(code) == _OURS


def test_lazy_names_import_only_what_they_need() -> None:
    """A named resource imports the tables and the plugin lookup; run option literals import nothing more."""
    assert _modules_after("from torchx.specs import runopts\nrunopts().cfg_from_str('a=b')") == _OURS
    handle = _modules_after("from torchx.specs import make_app_handle")
    assert handle == _OURS
    by_value = _modules_after("from torchx.specs import resource\nresource(cpu=1)")
    heavy = {"dataclasses", "inspect", "typing", "json", "pathlib", "importlib.metadata", "torchx.plugins"}
    assert not by_value & heavy
