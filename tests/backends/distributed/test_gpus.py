"""Real NCCL jobs on a real GPU that hang or fail: which rank is named, and what is said of it.

They need one GPU, which their ranks share. Seen on an NVIDIA H200 with PyTorch 2.11.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.backends.distributed.rounds import said_in_the_end
from tests.backends.distributed.test_hangs import launch, launched
from tests.backends.shell import Shell
from torchx.compat.cuda import has_cuda_devices

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (has_cuda_devices() and torch.cuda.is_available()), reason="this machine has no GPU"
)

IS_LATE = r"waits in item for all_reduce #\d+ at gpus\.py:\d+, which its GPU has not begun"
WAITS = {
    "item": r"wait in item for all_reduce #\d+",
    "compare": r"wait in synchronize for all_reduce #\d+",
    "synchronize": r"wait in synchronize for all_reduce #\d+",
    "clip": r"wait in synchronize for all_reduce #\d+",
    "kernel": r"wait in item for all_reduce #\d+",
}
CAUSES = {
    "memory": ("gpu_oom", 2, r"torch\.OutOfMemoryError: CUDA out of memory\. Tried to allocate 4096\.00 GiB"),
    "assertion": (
        "error",
        2,
        r"Assertion `.*index out of bounds.*` failed\n-> .*CUDA error: device-side assert triggered",
    ),
    "data": ("error", 2, r"ValueError: bad batch"),
    "shared": ("error", None, r"Duplicate GPU detected : rank \d and rank \d both on CUDA device"),
}


@pytest.mark.parametrize("kind", WAITS)
def test_who_does_not_come_to_a_collective_is_named(shell: Shell, tmp_path: Path, kind: str) -> None:
    """The calls of NCCL return at once: the others wait wherever they need the result, and use a processor there."""
    odd = IS_LATE if kind == "kernel" else r"is in gpus\.py:\d+"
    expected = rf"3 of 4 ranks {WAITS[kind]} at gpus\.py:\d+; gpus/0 rank 2 {odd}"
    with launched(shell, tmp_path, kind, ranks=4, program="gpus.py"):
        assert said_in_the_end(shell, "@last", expected) == [2]


@pytest.mark.parametrize("kind", CAUSES)
def test_the_rank_that_failed_is_the_cause(shell: Shell, tmp_path: Path, kind: str) -> None:
    """Though the others fail too, and first where a signal of torchrun ends them."""
    launch(shell, tmp_path, kind, ranks=3, program="gpus.py")
    shell.torchx("wait", "@last", check=False)
    cause = json.loads(shell.torchx("status", "@last", "--json"))["cause"]
    name, rank, words = CAUSES[kind]
    assert (cause["class"], rank if rank is None else cause["rank"]) == (name, rank), cause
    assert re.search(words, cause["error"]["message"]), cause
    assert "CUDA_LAUNCH_BLOCKING" not in cause["error"]["message"]


@pytest.mark.skipif(torch.cuda.device_count() != 1, reason="this machine has more than one GPU")
def test_processes_that_share_a_gpu_agree_on_gloo(shell: Shell, tmp_path: Path) -> None:
    """Of two processes on a host of one GPU, only the first one has a GPU, and yet both choose the same backend."""
    program = str(Path(__file__).with_name("program.py").relative_to(shell.cwd))
    shell.torchx(
        "run", "-s", "local_cwd", "--wait", "dist.ddp", "-j", "1x2", "--script", program, "--env", f"OUT={tmp_path}"
    )
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [(saw["device"], saw["backend"], saw["sum"]) for saw in seen] == [("cpu", "gloo", 1.0)] * 2


def test_the_samples_have_the_gpu(shell: Shell, tmp_path: Path) -> None:
    """Its use and its memory, as nvidia-smi reports them."""
    (tmp_path / "work.py").write_text(
        "import time, torch\nx = torch.ones(1 << 28, device='cuda')\nend = time.time() + 25\n"
        "while time.time() < end:\n    x.mul_(1.0)\n    torch.cuda.synchronize()\n"
    )
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 2s\n")
    shell.cwd = tmp_path
    shell.torchx("run", "-s", "local_cwd", "--wait", "utils.python", "--script", "work.py")
    [replica] = json.loads(shell.torchx("metrics", "@last", "--json"))["replicas"]
    gpus = [sample["gpus"][0] for sample in replica["samples"]]
    assert max(gpu["percent"] for gpu in gpus) > 50
    assert max(gpu["memory"] for gpu in gpus) >= 1 << 30
    total = torch.cuda.get_device_properties(0).total_memory
    assert all(abs(gpu["memory_total"] / total - 1) < 0.02 for gpu in gpus)
