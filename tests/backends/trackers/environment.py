"""What the tests of trackers need installed: MLflow, an S3 server and its client, beside the torchx that is tested."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

STATE = Path(os.environ.get("TORCHX_BACKENDS", "/var/tmp/torchx-backends")) / "trackers"
# The extra names the boto3 that fits: without it pip tries one after the other.
PACKAGES = ["mlflow>=3", "s3fs", "aiobotocore[boto3]", "moto[s3,server]"]
# What lies beside this interpreter comes last, so that MLflow has the versions that it wants.
BESIDE = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
STAMP = " ".join([*PACKAGES, sys.version, BESIDE])
SCRIPT = "#!{python}\nimport sys\nfrom {module} import main\nsys.exit(main())\n"


def prepared() -> Path:
    """A virtual environment, made once on this machine: its `bin` has python, mlflow, torchx and torchrun."""
    STATE.mkdir(parents=True, exist_ok=True)
    venv, stamp = STATE / "venv", STATE / "venv.stamp"
    with (STATE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != STAMP:
            _make(venv)
            stamp.write_text(STAMP)
    return venv


def _make(venv: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True, capture_output=True)
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"MLflow and moto cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "beside.pth").write_text(f"{BESIDE}\n")
    for name, module in (("torchx", "torchx.cli.main"), ("torchrun", "torch.distributed.run")):
        script = venv / "bin" / name
        script.write_text(SCRIPT.format(python=python, module=module))
        script.chmod(0o755)
