"""Who is measured: this checkout as a user installs it, and the published peers, each in a venv of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PEERS = {"torchx 0.7.0": "torchx==0.7.0", "torchx-nightly 2026.3.4": "torchx-nightly==2026.3.4"}
OURS = "ours"


@dataclass(frozen=True)
class Contestant:
    """An installed torchx. ``problem`` says why there is none to measure."""

    name: str
    venv: str
    problem: str = ""

    @property
    def python(self) -> str:
        return os.path.join(self.venv, "bin", "python")

    @property
    def torchx(self) -> str:
        return os.path.join(self.venv, "bin", "torchx")


def prepare(peers: bool) -> list[Contestant]:
    """Ours first. A peer that cannot be installed is in the list, with its problem."""
    ready = [_ours()]
    if peers:
        ready += [_peer(name, requirement) for name, requirement in PEERS.items()]
    return ready


def _ours() -> Contestant:
    """A regular install of this checkout, made anew: an editable one would not measure what users get."""
    venv = os.path.join(ROOT, ".cache", "bench")
    _make_venv(venv)
    _pip(venv, "install", "--quiet", f"{ROOT}[docker,kubernetes,top]")  # of what rows use
    return Contestant(OURS, venv)


def _peer(name: str, requirement: str) -> Contestant:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    tag = f"py{sys.version_info[0]}{sys.version_info[1]}"
    venv = os.path.join(cache, "torchx-ci", f"{requirement.replace('==', '-')}-{tag}")
    contestant = Contestant(name, venv)
    if os.path.exists(contestant.torchx):
        return contestant
    try:
        _make_venv(venv)
        _pip(venv, "install", "--quiet", requirement)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(venv, ignore_errors=True)
        lines = (error.stderr or "").strip().splitlines() or [str(error)]
        return Contestant(name, venv, problem=f"could not be installed: {lines[-1]}")
    return contestant


def _make_venv(venv: str) -> None:
    if not os.path.exists(os.path.join(venv, "bin", "pip")):
        _run([sys.executable, "-m", "venv", "--clear", venv])


def _pip(venv: str, *args: str) -> None:
    _run([os.path.join(venv, "bin", "python"), "-m", "pip", "--disable-pip-version-check", *args])


def _run(argv: list[str]) -> None:
    subprocess.run(argv, check=True, capture_output=True, text=True)
