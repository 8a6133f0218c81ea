"""Virtual environments for what must not lie beside torchx's own packages, or is too large to be installed each time.

They lie below ``$TORCHX_BACKENDS`` (default ``/var/tmp/torchx-backends``) and are made once on a machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.docker.engine import BACKENDS, Unavailable, install, run

# What lies beside this interpreter comes last, so that the packages of the environment have the versions that they want.
_BESIDE = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"


def made(name: str, packages: list[str], *, beside: bool = False) -> Path:
    """An environment with these packages; ``bin/python`` lies in it.

    Args:
        beside: also with what this interpreter has, PyTorch among it; ``bin`` has our torchx and torchrun, too.

    Raises:
        Unavailable: they cannot be installed.
    """
    folder, stamp = BACKENDS / name, BACKENDS / name / "venv.stamp"
    state = " ".join([*packages, sys.version, _BESIDE if beside else ""])
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != state:
            stamp.unlink(missing_ok=True)  # if we are ended in the middle, it is made anew
            _make(folder / "venv", packages, beside)
            stamp.write_text(state)
    return folder / "venv"


def mlflow_and_s3() -> Path:
    """MLflow, an S3 server and its client, beside our torchx and PyTorch."""
    with _or_skip():
        # The extra names the boto3 that fits: without it pip tries one after the other.
        return made("trackers", ["mlflow>=3", "s3fs", "aiobotocore[boto3]", "moto[s3,server]"], beside=True)


def torchserve() -> Path:
    """TorchServe and its archiver, beside our PyTorch; and Java, for its front end is a Java program."""
    packages = ["torchserve==0.12.0", "torch-model-archiver==0.12.0", "packaging", "setuptools<81"]
    with _or_skip():
        install("java", "default-jre-headless")
        return made("components", packages, beside=True)


def py_spy() -> Path:
    """The program of that name, where no replica finds it by itself."""
    with _or_skip():
        return made("py-spy", ["py-spy>=0.4"]) / "bin" / "py-spy"


def trainers() -> Path:
    """Lightning and the Hugging Face Trainer, beside our torchx and PyTorch."""
    with _or_skip():
        return made("trainers", ["lightning==2.6.6", "transformers==5.23.0", "accelerate>=1.1"], beside=True)


@contextlib.contextmanager
def _or_skip() -> Iterator[None]:
    """For a fixture: the test is skipped without them, but not in continuous integration."""
    try:
        yield
    except Unavailable as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))


def _make(venv: Path, packages: list[str], beside: bool) -> None:
    run(sys.executable, "-m", "venv", "--clear", str(venv), timeout_s=900)
    if beside:  # pip does not install again what fits
        (site,) = venv.glob("lib/python*/site-packages")
        (site / "beside.pth").write_text(f"{_BESIDE}\n")
    pip = (f"{venv}/bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    # The one that comes with Python takes three times as long to choose versions.
    run(*pip, "--upgrade", "pip", timeout_s=900)
    run(*pip, *packages, timeout_s=900)
    if not beside:
        return
    for name, module in (("torchx", "torchx.cli.main"), ("torchrun", "torch.distributed.run")):
        script = venv / "bin" / name
        script.write_text(f"#!{venv}/bin/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n")
        script.chmod(0o755)
