"""Hints name the packages of this distribution: on PyPI, `torchx` is another one."""

from __future__ import annotations

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest

import torchx
from torchx.errors import install_extra

ROOT = Path(torchx.__file__).parent.parent


def hints() -> list[str]:
    """Return the arguments of `install_extra` calls in the sources."""
    texts = [path.read_text() for path in (ROOT / "torchx").rglob("*.py")]
    calls = (
        node
        for text in texts
        if "install_extra(" in text  # the others are not worth reading
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install_extra"
    )
    return sorted({str(call.args[0].value) for call in calls if isinstance(call.args[0], ast.Constant)})


@pytest.mark.parametrize("extra", hints())
def test_hints_name_extras_that_exist(extra: str) -> None:
    """The hint lists the packages of the extra in pyproject.toml."""
    declared = re.search(rf"^{extra} = \[(.+)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared
    packages = [f"'{package}'" for package in re.findall(r'"(.+?)"', declared[1])]
    assert packages
    assert install_extra(extra).split() == ["pip", "install", *sorted(packages)]


def test_without_metadata_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources on PYTHONPATH have no metadata; the hint names the extra."""

    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert install_extra("aws") == "install the packages of torchx's extra `aws`"


def test_nobody_is_sent_to_the_other_torchx() -> None:
    """No text says `pip install torchx`, with or without an extra."""
    pages = [*(ROOT / "torchx").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    wrong = re.compile(r"""pip install (?:-\w+ )*['"]?torchx\b(?!-|(\[[\w,]+\])? @ )""")
    assert not [path for path in [*pages, ROOT / "README.md"] if wrong.search(path.read_text())]
