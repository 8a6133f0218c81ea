"""A program as others have written it, subclasses and all, works as it stands: see ``dropin/``.

Here it runs beside this checkout, without an engine and a cluster; ``tests/backends/compat`` installs it from its wheel
and lets it run jobs on Docker and Slurm.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DROPIN = Path(__file__).with_name("dropin")
PARTS = ("names", "calls", "local", "docker", "slurm")


def entry_points() -> str:
    """The registration in the program's pyproject, as an installer writes it."""
    text = (DROPIN / "pyproject.toml").read_text()
    lines = text.partition('[project.entry-points."torchx.schedulers"]\n')[2].partition("\n\n")[0]
    return "[torchx.schedulers]\n" + lines.replace('"', "") + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_program(part: str, tmp_path: Path) -> None:
    """Each of its checks passes, and no warning is raised on the way."""
    if part == "docker":
        pytest.importorskip("docker")
    info = tmp_path / "site" / "acme_dropin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-dropin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points())
    (tmp_path / "work").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "acme_dropin", part],
        env={**os.environ, "PYTHONPATH": f"{DROPIN}{os.pathsep}{info.parent}"},
        cwd=tmp_path / "work",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert outcomes, "the part has no checks"
    wrong = {name: said for name, said in outcomes.items() if said != "ok"}
    assert not wrong, "\n".join(wrong.values())


def test_every_part_runs() -> None:
    """No module with checks is forgotten."""
    found = {path.stem for path in (DROPIN / "acme_dropin").glob("*.py") if "\ndef check_" in path.read_text()}
    assert found == set(PARTS)


def test_it_overrides_what_programs_override() -> None:
    """The subclasses, and the methods in them, that the list of names speaks of."""
    overridden: dict[str, set[str]] = {}
    for path in (DROPIN / "acme_dropin").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                for base in node.bases:
                    name = base.value if isinstance(base, ast.Subscript) else base
                    overridden.setdefault(getattr(name, "id", ""), set()).update(methods)
    assert overridden["Runner"] >= {"dryrun", "run", "schedule"}
    assert overridden["LocalScheduler"] >= {"__init__", "_submit_dryrun", "describe", "log_iter", "schedule"}
    assert overridden["LogIterator"] >= {"__init__", "_check_finished"}
    assert overridden["SlurmScheduler"] >= {"_initialize_tunnel", "_submit_dryrun", "schedule", "describe"}
    assert overridden["DockerScheduler"] >= {"_submit_dryrun", "schedule", "describe", "log_iter"}
    assert overridden["Scheduler"] >= {"_submit_dryrun", "schedule", "describe", "list", "_cancel_existing"}
