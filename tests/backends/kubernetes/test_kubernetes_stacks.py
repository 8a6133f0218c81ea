"""`torchx stacks` in a pod, without any right beyond the container's own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends import venvs
from tests.backends.distributed.rounds import each_is_named, look, wait_for
from tests.backends.docker.test_docker_training import python_mounts
from tests.backends.shell import ROOT, Shell

pytest.importorskip("torch")

HANGS = ROOT / "tests" / "backends" / "distributed" / "hangs.py"
ROUNDS = int(os.environ.get("HANG_ROUNDS", "6"))
PATH = f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"
MISMATCH = r"waits in broadcast( #\d+)? at hangs\.py:\d+"  # a busy machine may give no numbers of calls
Launch = Callable[..., str]


@pytest.fixture
def launch(torchx: Any, shell: Shell, eventually: Callable[..., object]) -> Iterator[Launch]:
    """Submits to the test's namespace; returns the handle of the job, which is cancelled in the end."""
    shell.env.update({name: value for name, value in os.environ.items() if name.startswith(("KUBE", "TORCHX_"))})
    made: list[str] = []

    def submit(*words: str) -> str:
        made.append(torchx("run", *words).stdout.split()[-1])
        return made[-1]

    yield submit
    for handle in made:
        torchx("cancel", handle)
        eventually(lambda h=handle: "CANCELLED" in torchx("status", h, code=None).stdout, every_s=0.5)


@pytest.mark.timeout(600)
def test_the_right_rank_is_named(
    launch: Launch, shell: Shell, image: str, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """A rank that is stopped, has no data, sleeps, is slow, or is in another collective: nobody else is ever blamed."""
    out = tmp_path / "out"
    out.mkdir()
    mounts = [f"type=bind,src={out},dst=/out", f"type=bind,src={ROOT},dst={ROOT},readonly", *python_mounts()]
    env = {"PATH": PATH, "PYTHONPATH": str(ROOT), "OUT": "/out", "OMP_NUM_THREADS": "1"}
    words = ["dist.ddp", "-j", "1x4", "--image", image, "--cpu", "1", "--memMB", "3000", "--mounts", ",".join(mounts)]
    words += ["--env", ",".join(f"{k}={v}" for k, v in env.items()), "--script", str(HANGS)]
    handle = launch(*words, "--", os.environ.get("HANG_SEED", "3"), str(ROUNDS))

    def go_on(said: dict[str, Any]) -> None:
        shell.torchx("exec", handle, "--", "sh", "-c", f"kill -CONT {said['pid']}")

    each_is_named(shell, handle, out, ROUNDS - 1, go_on)
    who = wait_for(shell, handle, out / f"round-{ROUNDS - 1}")["who"]

    def is_told() -> bool:
        named, document = look(shell, handle)
        print(document["sentence"])
        assert named in ([], [who])
        return bool(named) and re.fullmatch(MISMATCH, document["ranks"][who]["doing"]) is not None

    eventually(is_told, timeout_s=60, every_s=0.5)


def test_py_spy_of_the_laptop_is_sent_into_the_pod(
    launch: Launch, shell: Shell, image: str, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """It needs nothing of the program."""
    (tmp_path / "nap.py").write_text("import time\n\ndef nap():\n    time.sleep(600)\n\nnap()\n")
    mounts = [f"type=bind,src={tmp_path},dst=/out,readonly", *python_mounts()]
    words = ["utils.sh", "--image", image, "--env", f"PATH={PATH}", "--mounts", ",".join(mounts), "--"]
    handle = launch(*words, "exec", "python3", "/out/nap.py")
    eventually(lambda: "RUNNING" in shell.torchx("status", handle), timeout_s=120, every_s=0.5)
    spy = Shell(tmp_path, {**shell.env, "PATH": f"{venvs.py_spy().parent}:{shell.env['PATH']}"})

    def doing() -> list[tuple[str, str]]:
        ranks = json.loads(spy.torchx("stacks", handle, "--json"))["ranks"]
        return [(rank["read_by"], rank["doing"]) for rank in ranks]

    eventually(lambda: doing() == [("py-spy", "is in nap.py:4")], timeout_s=60, every_s=0.5)
