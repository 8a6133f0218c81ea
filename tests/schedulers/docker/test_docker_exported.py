"""The script of an exported job, with a program in the place of `docker` that records its calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchx.schedulers.docker import export

DOCKER = """#!/bin/bash
echo "$*" >>"$CALLS"
case "$*" in
*" up "*) [[ $MODE != up ]] ;;
ps*) printf 'c1\\nc2\\n' ;;
"wait c1") [[ $MODE == ok ]] && echo 0 || echo 3 ;;
"wait c2") echo 0 ;;
inspect*Running*) echo falsefalse ;;
inspect*) echo "host-${*: -1}" ;;
logs*) [[ $MODE != logs ]] ;;
esac
"""


@pytest.mark.parametrize(
    ("mode", "code"),
    [("ok", 0), ("fails", 3), ("up", 1), ("logs", 3)],
    ids=["succeeds", "fails", "a service does not start", "no log can be read"],
)
def test_nothing_is_left_running(tmp_path: Path, mode: str, code: int) -> None:
    """Whatever happens, all services are stopped and removed in the end, and the exit code is the first failure's."""
    docker, calls = tmp_path / "docker", tmp_path / "calls"
    docker.write_text(DOCKER)
    docker.chmod(0o700)
    machinery = Path(export.__file__).with_name("export.sh")
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail; here={tmp_path}; project=p; . {machinery}"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(calls), "MODE": mode},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    asked = [line.split("compose.yaml ")[1] for line in calls.read_text().splitlines() if "compose.yaml" in line]
    assert (asked[0], asked[-1]) == ("up --detach", "down")
    assert ("stop --timeout 10" in asked) is (code == 3)
