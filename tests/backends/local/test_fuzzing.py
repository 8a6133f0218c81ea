"""The coverage-guided fuzzer runs, and sees what is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.shell import ROOT

atheris = pytest.importorskip("atheris", reason="atheris is not installed: `make fuzz` installs it")


def _fuzz(folder: Path, runs: str, *options: str) -> tuple[int, str]:
    program = [sys.executable, "-m", "tests.fuzz.coverage_guided", "--runs", runs, "--kept", str(folder)]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [*program, *options], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=500
    )
    return done.returncode, done.stdout


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    """Some targets: many executions, and no promise broken."""
    code, said = _fuzz(tmp_path, "1000", "handle", "cfg", "state_file")
    assert (code, said.splitlines()[-1]) == (0, "0 of 3 targets are broken: none"), said
    for line in said.splitlines()[:-1]:
        name, count, *_ = line.split()
        assert int(count.replace(",", "")) >= 1000, line
        assert len(list((tmp_path / name).iterdir())) > 3, "nothing was learnt"


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    """A target that a certain word breaks is named, and the word is kept."""
    (tmp_path / "breakable.py").write_text(
        "def broken(data):\n    if data[:1] == b'x':\n        if data[1:2] == b'y':\n            raise KeyError('that')\n"
        "TARGETS = {'broken': broken, 'fine': len}\n"
        "def seeds():\n    return {'broken': [b'x'], 'fine': [b'x']}\n"
    )
    code, said = _fuzz(tmp_path, "100000", "--module", "breakable")
    assert (code, said.splitlines()[-1]) == (1, "1 of 2 targets are broken: broken"), said
    assert "KeyError: 'that'" in said
    (kept,) = (tmp_path / "broken").glob("broken-crash-*")
    assert kept.read_bytes().startswith(b"xy")
