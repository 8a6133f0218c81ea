"""All verbs on all backends, in an environment without any extra: what is missing is said, and how to install it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import without_extras
from torchx.cli.commands import VERBS
from torchx.errors import install_extra
from torchx.schedulers import DEFAULT_SCHEDULER_MODULES

ASKS: dict[str, str] = {
    "adopt": "adopt {raw} -s {backend}",
    "cancel": "cancel {job}",
    "cp": "cp {job}/main/0:x x",
    "delete": "delete --force {job}",
    "describe": "describe {job}",
    "exec": "exec {job} -- true",
    "forward": "forward {job} 8080",
    "list": "list -s {backend}",
    "log": "log {job}",
    "metrics": "metrics {job}",
    "nodes": "nodes -s {backend} {options}",
    "run": "run -s {backend} --workspace= {options} -d utils.echo --image img:1",
    "shell": "shell {job}",
    "simulate": "simulate kill {job}",
    "stacks": "stacks {job}",
    "status": "status {job}",
    "sweep": "sweep -s {backend} --workspace= {options} --grid msg=a,b utils.echo --image img:1",
    "wait": "wait {job}",
    "why": "why {job}",
}
"""Verbs that ask a backend, with a command line for each."""
LOCAL = {
    "builtins": "builtins",
    "completion": "completion bash",
    "configure": "configure -s {backend}",
    "diff": "diff @last @last",
    "doctor": "doctor -s {backend}",
    "export": "export -o out {job}",
    "fetch": "fetch {job}",
    "init": "init",
    "mcp": "mcp",
    "plugins": "plugins",
    "report": "report {job} -o report.tgz",
    "rerun": "rerun {job}",
    "runopts": "runopts {backend}",
    "ssh-config": "ssh-config {job}",
    "top": "top",
    "tracker": "tracker",
    "ui": "ui",
    "usage": "usage",
}
"""Verbs that need not ask one."""
ENDLESS = {"watch", "__complete", "__archive"}
NEEDS = {"kubernetes": "kubernetes", "kubernetes_mcad": "kubernetes", "aws_batch": "aws", "aws_sagemaker": "aws"}
"""Backend -> extra without which it can do nothing. `local_docker` and the batch systems run without packages."""
APP_IDS = {"aws_batch": "q:x-1", "aws_sagemaker": "x"}
NATIVE = {"aws_batch": "12345678-1234-1234-1234-123456789012"}
CFG = {"aws_batch": "queue=q", "aws_sagemaker": "role=r,instance_type=ml.m5.large"}


ARRAYS = {"kubernetes", "aws_batch"}
"""Those that are asked by ``sweep`` itself; for the others a process in the background submits the tasks."""
CANNOT = 5
"""The exit code of a verb that a backend does not have, whatever is installed."""


def walk(lines: list[str], folder: Path) -> list[tuple[str, int, str]]:
    env = {**os.environ, "TORCHX_HOME": str(folder / "home"), "KUBECONFIG": str(folder / "none")}
    env["PATH"] = str(folder / "none")  # no programs of a scheduler either
    env.update({"AWS_DEFAULT_REGION": "us-east-1", "DOCKER_HOST": f"unix://{folder}/none"})
    text = json.dumps([line.split() for line in lines])
    done = subprocess.run(
        [sys.executable, without_extras.__file__],
        input=text, capture_output=True, text=True, env=env, cwd=folder, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return [(line, code, said) for line, (code, said) in zip(lines, found, strict=True)]


def test_every_verb_is_walked() -> None:
    """A new one needs a command line here."""
    assert ASKS.keys() | LOCAL.keys() | ENDLESS == VERBS.keys()


@pytest.mark.parametrize("backend", sorted(DEFAULT_SCHEDULER_MODULES))
def test_no_extra_is_a_missing_package_not_a_bug(backend: str, tmp_path: Path) -> None:
    """Exit code 6 and the line of pip, where a verb needs the package; never a traceback."""
    app_id = APP_IDS.get(backend, "x-1")
    given = {"backend": backend, "job": f"{backend}://torchx/{app_id}", "raw": NATIVE.get(backend, app_id)}
    given["options"] = f"-cfg {CFG[backend]}" if backend in CFG else ""
    lines = {verb: line.format(**given) for verb, line in {**ASKS, **LOCAL}.items()}
    if backend not in ARRAYS:
        del lines["sweep"]
    found = dict(zip(lines, walk([*lines.values()], tmp_path), strict=True))
    bugs = {line: said for line, _, said in found.values() if "bug in torchx" in said or "Traceback" in said}
    assert bugs == {}
    if backend in NEEDS:
        wrong = {
            line: (code, said)
            for verb, (line, code, said) in found.items()
            if verb in ASKS and (code, install_extra(NEEDS[backend]) in said) != (6, True) and code != CANNOT
        }
        assert wrong == {}
    for verb in ("ui", "mcp"):
        assert (found[verb][1], install_extra(verb) in found[verb][2]) == (6, True), found[verb]
