"""Which `python` a job runs, with real virtual environments."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import torchx

PRINT = ("utils.python", "-c", "import sys; print(sys.executable)")


@pytest.fixture(scope="module")
def venvs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two virtual environments, in the first of which torchx is installed."""
    folders = [tmp_path_factory.mktemp("venvs") / name for name in ("own", "other")]
    for folder in folders:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    own = folders[0]
    site = Path(sysconfig.get_path("purelib", vars={"base": str(own), "platbase": str(own)}))
    (site / "torchx.pth").write_text(f"{Path(torchx.__file__).parents[1]}\n")
    script = own / "bin" / "torchx"
    script.write_text(f"#!{own}/bin/python\nfrom torchx.cli.main import main\nmain()\n")
    script.chmod(0o755)
    return folders


def _runs(program: Path | str, *options: str, **env: str) -> str:
    """The interpreter of a job that was launched like this."""
    clean = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")}
    run = [str(program), "run", "--wait", "--log", *options, *PRINT]
    done = subprocess.run(run, env={**clean, "PATH": os.defpath, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("python/0 ")).split()[-1]


def test_the_python_beside_torchx(venvs: list[Path], tmp_path: Path) -> None:
    """By its path; also with `prepend_cwd`."""
    own = venvs[0]
    assert _runs(own / "bin" / "torchx") == f"{own}/bin/python"
    assert _runs(own / "bin" / "torchx", "-cfg", "prepend_cwd=True") == f"{own}/bin/python"


def test_the_python_of_the_activated_environment(venvs: list[Path]) -> None:
    """Which is not that of torchx."""
    own, other = venvs
    path = f"{other}/bin:{os.defpath}"
    assert _runs(own / "bin" / "torchx", PATH=path, VIRTUAL_ENV=str(other)) == f"{other}/bin/python"


def test_the_python_on_the_path_of_those_who_have_torchx_as_a_tool(venvs: list[Path], tmp_path: Path) -> None:
    """A link on PATH leads to torchx: its own environment is nobody's business."""
    own, other = venvs
    (tmp_path / "torchx").symlink_to(own / "bin" / "torchx")
    assert _runs("torchx", PATH=f"{tmp_path}:{other}/bin:{os.defpath}") == f"{other}/bin/python"
