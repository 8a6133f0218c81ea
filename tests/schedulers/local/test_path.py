"""Which Python a local job finds: the one beside torchx, unless another one is meant."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torchx.schedulers.local.path import program_path


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """This process runs in a virtual environment with torchx in it; its folder of programs."""
    folder = tmp_path / "venv" / "bin"
    folder.mkdir(parents=True)
    (folder / "torchx").write_text("")
    (folder / "torchx").chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    return str(folder)


def _linked(tmp_path: Path, target: str) -> str:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "torchx").symlink_to(target)
    return str(tmp_path / "links")


def test_the_environment_that_torchx_was_called_in_comes_first(venv: str) -> None:
    """Nobody has activated anything: what is beside torchx is meant. Conda's base is active in every shell."""
    assert program_path({"PATH": "/bin:/usr/bin"}) == f"{venv}:/bin:/usr/bin"
    assert program_path({"PATH": "/bin", "CONDA_PREFIX": "/conda", "CONDA_DEFAULT_ENV": "base"}) == f"{venv}:/bin"
    assert program_path({"PATH": "/bin", "VIRTUAL_ENV": os.path.dirname(venv)}) == f"{venv}:/bin"
    assert program_path({}) == f"{venv}:{os.defpath}"


def test_where_it_stands_already_it_stays(venv: str) -> None:
    """The order of PATH is the user's."""
    assert program_path({"PATH": f"/bin:{venv}:/usr/bin"}) == f"/bin:{venv}:/usr/bin"


@pytest.mark.parametrize("active", [{"VIRTUAL_ENV": "/mine"}, {"CONDA_PREFIX": "/c/mine", "CONDA_DEFAULT_ENV": "mine"}])
def test_an_activated_environment_is_meant(venv: str, active: dict[str, str]) -> None:
    """Even if torchx was called in another one."""
    assert program_path({"PATH": "/mine/bin:/bin", **active}) == f"/mine/bin:/bin:{venv}"


def test_a_tool_that_path_leads_to_is_not_meant(venv: str, tmp_path: Path) -> None:
    """pipx and the like keep torchx in an environment without anything else."""
    path = f"{_linked(tmp_path, f'{venv}/torchx')}:/bin"
    assert program_path({"PATH": path}) == f"{path}:{venv}"


def test_a_link_to_another_torchx_says_nothing(venv: str, tmp_path: Path) -> None:
    """It is not the one that was called."""
    other = tmp_path / "other"
    other.write_text("")
    other.chmod(0o755)
    path = f"{_linked(tmp_path, str(other))}:/bin"
    assert program_path({"PATH": path}) == f"{venv}:{path}"


def test_a_plain_python(venv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the system is no environment; one that is embedded has no programs at all."""
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert program_path({"PATH": "/bin"}) == f"/bin:{venv}"
    monkeypatch.setattr(sys, "executable", "")
    assert program_path({"PATH": "/bin"}) == "/bin"


def test_conda(venv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of conda is one, too."""
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    Path(sys.prefix, "conda-meta").mkdir()
    assert program_path({"PATH": "/bin"}) == f"{venv}:/bin"
