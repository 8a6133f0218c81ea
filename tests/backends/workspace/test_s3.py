"""A workspace may be in an object store: a real S3 client against a server on this machine.

s3fs wants a botocore of its own choice, so it gets an environment of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import torchx
from tests.backends import venvs

# Most of it is for the packages, which are installed once on a machine.
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter with s3fs and moto; made once on this machine."""
    return f"{venvs.mlflow_and_s3()}/bin/python"


@pytest.fixture(scope="module")
def answers(python: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("s3")
    # torchx alone, not what is installed beside it.
    (folder / "lib").mkdir()
    (folder / "lib" / "torchx").symlink_to(Path(torchx.__file__).parent)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PYTHON"))}
    env |= {"PYTHONPATH": str(folder / "lib"), "HOME": str(folder), "no_proxy": "*", "PYTHONDONTWRITEBYTECODE": "1"}
    program = str(Path(__file__).with_name("s3_program.py"))
    done = subprocess.run(
        [python, program, str(folder)], env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_is_walked_as_a_folder(answers: Any) -> None:
    """Keys are files, prefixes folders, an empty folder's own key is one; the ignore file is heeded; neighbours are not ours."""
    assert [tuple(kind) for kind in answers["kinds"]] == [
        (".torchxignore", "file"),
        ("big.bin", "file"),
        ("data", "directory"),
        ("data/keep", "file"),
        ("empty", "directory"),
        ("lib", "directory"),
        ("lib/a.py", "file"),
        ("odd name,='$(id)'", "file"),
        ("train.py", "file"),
    ]
    assert answers["a file"] == ["train.py"]
    assert answers["same hash again"] is True


def test_a_job_folder_is_made_of_it(answers: Any) -> None:
    """Together with a local project; a file of several parts arrives whole."""
    assert answers["job"] == [
        ".torchx-workspace",
        ".torchxignore",
        "big.bin",
        "data/keep",
        "lib/a.py",
        "odd name,='$(id)'",
        "third/l.py",
        "train.py",
    ]
    assert answers["big file is the same"] is True


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no such bucket", "s3://no-such-bucket/x"),
        ("no such prefix", "s3://code/nothing"),
        ("way out", "leads out of it"),
        ("server is gone", "s3://code/other"),
    ],
)
def test_what_cannot_be_read_is_refused(answers: Any, what: str, words: str) -> None:
    """One of our errors, which names the address; a key with `..` in it is never followed."""
    kind, text = answers[what]
    assert kind == "SpecError"
    assert words in text


def test_pods_fetch_their_code_by_a_signed_address(answers: Any) -> None:
    """A dry run sends nothing, a second job nothing more; what arrives is what was sent, in several parts."""
    found = answers["code of pods"]
    assert found["before"] == [] and found["keys"] == [f"pods/{found['hash'].replace(':', '-')}.tgz"]
    assert found["sent once"] and found["same"] and found["output"] == "fetched\n"
    kind, text = found["no such bucket"]
    assert kind == "BackendError" and "s3://no-such-bucket/x/sha256-" in text
