"""Standalone sources of components contain exactly the imports that they use."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchx.component_reader.copy import standalone_source
from torchx.component_reader.finder import get_builtin_source
from torchx.errors import SpecError

MODULE = '''
from __future__ import annotations

import json
import os.path
import shlex as words
from math import floor, pi as circle

from torchx.specs import AppDef, Role

LIMIT = 3


def helper(n):
    return floor(n)


def comp(n: int = 1) -> AppDef:
    """Says something."""
    args = [words.quote(os.path.join("a", str(helper(n)))), str(circle), str(LIMIT)]
    return AppDef("c", [Role("r", "i", entrypoint="x", args=args)])
'''


def _module(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path.write_text(MODULE)
    monkeypatch.syspath_prepend(str(path.parent))
    module = __import__(path.stem)
    monkeypatch.setitem(sys.modules, path.stem, module)
    return module


def test_a_copy_has_what_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source has the imports that it uses; other names of its file are imported from there."""
    module = _module(tmp_path / "copied_component.py", monkeypatch)
    source = standalone_source(module.comp)
    head, _, body = source.partition("\n\n\n")
    assert head.splitlines() == [
        "from __future__ import annotations",
        "",
        "import os.path",
        "import shlex as words",
        "from math import pi as circle",
        "from torchx.specs import AppDef, Role",
        "from copied_component import LIMIT, helper",
    ]
    assert body.startswith("def comp(") and source.endswith("\n") and not source.endswith("\n\n")
    names: dict[str, object] = {}
    exec(compile(source, "copy.py", "exec"), names)
    assert names["comp"](2) == module.comp(2)  # type: ignore[operator]  # a function


@pytest.mark.parametrize("name", ["utils.echo", "dist.ddp", "utils.sh", "serve.torchserve"])
def test_a_copy_of_a_builtin_runs_by_itself(name: str) -> None:
    """The standalone file defines every name that it uses."""
    names: dict[str, object] = {}
    source = get_builtin_source(name)
    exec(compile(source, "copy.py", "exec"), names)
    assert callable(names[name.rpartition(".")[2]])
    assert "from torchx" in source or "import torchx" in source


def test_no_source_is_at_hand() -> None:
    """A generated function without source raises SpecError."""
    made: dict[str, object] = {}
    exec("def comp(): ...", made)
    with pytest.raises(SpecError, match="the source of component `comp` is not available"):
        standalone_source(made["comp"])  # type: ignore[arg-type]  # a function
