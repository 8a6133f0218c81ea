"""Virtual environments for what must not lie beside torchx's own packages, or is too large to be installed each time.

They lie below ``$TORCHX_BACKENDS`` (default ``/var/tmp/torchx-backends``) and are made once on a machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

BACKENDS = Path(os.environ.get("TORCHX_BACKENDS", "/var/tmp/torchx-backends"))
# What lies beside this interpreter comes last, so that the packages of the environment have the versions that they want.
_BESIDE = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"


class Unavailable(Exception):
    """The packages cannot be installed on this machine; the text says why."""


def made(name: str, packages: list[str], *, beside: bool = False) -> Path:
    """An environment with these packages; ``bin/python`` lies in it.

    Args:
        beside: also with what this interpreter has: torchx, PyTorch.

    Raises:
        Unavailable: they cannot be installed.
    """
    folder, stamp = BACKENDS / name, BACKENDS / name / "venv.stamp"
    state = " ".join([*packages, sys.version, _BESIDE if beside else ""])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != state:
            _make(folder / "venv", packages, beside)
            stamp.write_text(state)
    return folder / "venv"


def wanted(name: str, packages: list[str], *, beside: bool = False) -> Path:
    """:func:`made` for a fixture: the test is skipped without them, but not in continuous integration."""
    try:
        return made(name, packages, beside=beside)
    except Unavailable as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))


def mlflow_and_s3() -> Path:
    """MLflow, an S3 server and its client, beside our torchx and PyTorch; ``bin`` has torchx and torchrun, too."""
    # The extra names the boto3 that fits: without it pip tries one after the other.
    venv = wanted("trackers", ["mlflow>=3", "s3fs", "aiobotocore[boto3]", "moto[s3,server]"], beside=True)
    for name, module in (("torchx", "torchx.cli.main"), ("torchrun", "torch.distributed.run")):
        script, new = venv / "bin" / name, venv / "bin" / f".{name}.{os.getpid()}"
        new.write_text(f"#!{venv}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        new.chmod(0o755)
        new.replace(script)
    return venv


def torchserve() -> Path:
    """TorchServe and its archiver, beside our PyTorch. TorchServe's front end is a Java program: Java is there, too."""
    _install_java()
    packages = ["torchserve==0.12.0", "torch-model-archiver==0.12.0", "packaging", "setuptools<81"]
    return wanted("components", packages, beside=True)


def _install_java() -> None:
    if shutil.which("java"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip("TorchServe needs Java, and only root of a Debian machine can install it here")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "--no-install-recommends", "default-jre-headless"]
    for argv in (["apt-get", "update"], install):
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Java cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


def _make(venv: Path, packages: list[str], beside: bool) -> None:
    _run(sys.executable, "-m", "venv", "--clear", venv)
    pip = (venv / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*pip, "--upgrade", "pip")  # the one that comes with Python takes three times as long to choose versions
    _run(*pip, *packages)
    if beside:
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "beside.pth").write_text(f"{_BESIDE}\n")


def _run(*argv: str | Path) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise Unavailable(f"`{' '.join(map(str, argv))}` failed: {last}")
