"""scripts/resolve: which extras are tried together, and what counts as a failure."""

from __future__ import annotations

import runpy
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

TOP = Path(__file__).resolve().parents[2]
resolve = SimpleNamespace(**runpy.run_path(str(TOP / "scripts" / "resolve")))


def test_each_extra_each_pair_and_all() -> None:
    """As pyproject.toml has them, less those that developers alone install."""
    text = (TOP / "pyproject.toml").read_text(encoding="utf-8")
    extras = resolve.extras_of(text)
    assert set(extras) == set(metadata("torchx").get_all("Provides-Extra"))
    tried = resolve.combinations(extras)
    users = set(extras) - {"docs", "dev", "ci", "all"}
    assert {e for one in tried for e in one} == users | {"all"}
    assert len(tried) == len(users) + len(users) * (len(users) - 1) // 2 + 1
    assert ("kubernetes", "aws") in tried and ("all",) in tried


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("pass", ""),
        (
            "import sys; print('ERROR: ResolutionImpossible', file=sys.stderr); sys.exit(1)",
            "ERROR: ResolutionImpossible",
        ),
        ("import sys; sys.exit(2)", "?"),
        ("input()", "still at it after 0.5 s"),
    ],
    ids=["resolves", "impossible", "silent", "hangs"],
)
def test_what_counts_as_a_failure(monkeypatch, code: str, problem: str) -> None:
    """The installer's last line, or that it did not come to an end."""
    real = subprocess.run
    kept = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    monkeypatch.setattr(subprocess, "run", lambda *args, **kw: real(*args, **{**kw, "stdin": kept.stdout}))
    limit = 0.5 if "input" in code else 60.0
    seconds, busy, said = resolve.attempt([sys.executable, "-c", code], ("a", "b"), limit)
    assert said == problem
    assert seconds >= 0 and busy >= 0
    kept.communicate(b"\n")
