"""What the test of `serve.torchserve` needs installed: TorchServe and Java, beside the PyTorch that is there."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

STATE = Path(os.environ.get("TORCHX_BACKENDS", "/var/tmp/torchx-backends")) / "components"
PACKAGES = ["torchserve==0.12.0", "torch-model-archiver==0.12.0", "packaging", "setuptools<81"]
# What lies beside this interpreter comes last: its PyTorch, and what PyTorch needs.
BESIDE = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
STAMP = " ".join([*PACKAGES, sys.version, BESIDE])


def torchserve() -> Path:
    """A virtual environment, made once on this machine: its `bin` has python, torchserve and torch-model-archiver."""
    _install_java()
    STATE.mkdir(parents=True, exist_ok=True)
    venv, stamp = STATE / "venv", STATE / "venv.stamp"
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != STAMP:
            _make(venv)
            stamp.write_text(STAMP)
    return venv


def _install_java() -> None:
    """TorchServe's front end is a Java program."""
    if shutil.which("java"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("TorchServe needs Java, and only root of a Debian machine can install it here")
    for argv in (
        ["apt-get", "update"],
        ["apt-get", "install", "-y", "--no-install-recommends", "default-jre-headless"],
    ):
        env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Java cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


def _make(venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True, capture_output=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"TorchServe cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(f"{BESIDE}\n")
