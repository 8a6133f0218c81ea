"""What lies in examples/ is what its README says, and runs."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from torchx.runner import get_runner

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "ddp_digits"


def test_digits_are_the_stated_file() -> None:
    """The data is byte for byte what the README names: 1,797 images of 64 pixels from 0 to 16, all ten classes."""
    packed = (DIGITS / "digits.csv.gz").read_bytes()
    assert hashlib.sha256(packed).hexdigest() in (DIGITS / "README.md").read_text()
    rows = [[int(value) for value in row] for row in csv.reader(gzip.decompress(packed).decode().splitlines())]
    assert len(rows) == 1797
    assert {len(row) for row in rows} == {65}
    assert {pixel for row in rows for pixel in row[:64]} == set(range(17))
    assert sorted(Counter(row[64] for row in rows)) == list(range(10))


@pytest.mark.parametrize("name", ["digits.py:digits", "pipeline.py:pipeline", "serve_and_run.py:serve_and_run"])
def test_components_make_a_request(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each component of the examples passes validation and can be submitted as a dryrun."""
    monkeypatch.chdir(ROOT)
    with get_runner("examples") as runner:
        info = runner.dryrun_component(f"examples/components/{name}", [], scheduler="local_cwd")
    assert name.partition(":")[2].replace("_", "-") in str(info)


def test_launch_from_python() -> None:
    """The Python example launches a job of two roles, prints both clients' lines and the state it ended in."""
    env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "examples/launch.py"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("launched local_cwd://")
    assert lines[1:] == ["good morning from client 0", "good morning from client 1", "ended as SUCCEEDED"]
