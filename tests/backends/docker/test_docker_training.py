"""Real training in containers: this machine's Python and PyTorch, mounted read-only."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.docker.conftest import watcher_gone
from tests.backends.shell import Shell

pytest.importorskip("torch")

TRAIN = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
x = torch.randn(64, 4) + dist.get_rank()
y = x.sum(1, keepdim=True)
for step in range(100):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    first = loss.item() if step == 0 else first
hosts = [None] * dist.get_world_size()
dist.all_gather_object(hosts, os.uname().nodename)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on {sorted(hosts)}: {loss.item() < first / 100}", flush=True)
dist.barrier()
dist.destroy_process_group()
if os.environ.get("FAIL") == os.environ["RANK"]:
    raise RuntimeError("on purpose, after training")
"""


def python_mounts() -> list[str]:
    """What the interpreter of the tests and its packages need of this machine."""
    folders = {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix), sys.prefix, sys.base_prefix}
    folders.discard("/usr")
    return [f"type=bind,src={folder},dst={folder},readonly" for folder in sorted(folders)]


@pytest.fixture
def train(docker_image: str, shell: Shell, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts the training on two nodes; returns the handle. It is deleted at the end."""
    started = []

    def train(**env: str) -> str:
        (tmp_path / "train.py").write_text(TRAIN)
        mounts = ",".join([f"type=bind,src={tmp_path},dst=/job,readonly", *python_mounts()])
        env["PATH"] = f"{os.path.dirname(sys.executable)}:/usr/bin:/bin"
        args = ["-s", "local_docker", "--workspace=", "dist.ddp", "-j", "2x1", "--image", docker_image]
        args += ["--cpu", "1", "--memMB", "2000", "--mounts", mounts, "--script", "/job/train.py"]
        started.append(shell.launch(*args, "--env", ",".join(f"{k}={v}" for k, v in env.items())))
        return started[-1]

    yield train
    for handle in started:
        shell.torchx("delete", handle)


@pytest.mark.timeout(600)
def test_two_nodes_train(train: Callable[..., str], shell: Shell, eventually: Callable[..., object]) -> None:
    """`dist.ddp -j 2x1` in two containers: they meet by host name, learn, and end."""
    handle = train()
    log = shell.torchx("log", "-f", handle, timeout_s=500)
    ranks = sorted(line.partition("rank ")[2] for line in log.splitlines() if "rank " in line)
    assert ranks == [f"{r} of 2 on ['train-0', 'train-1']: True" for r in (0, 1)], log
    eventually(lambda: "train: 2 SUCCEEDED" in shell.torchx("status", handle))


@pytest.mark.timeout(600)
def test_a_worker_that_fails_is_explained(
    train: Callable[..., str], shell: Shell, eventually: Callable[..., object]
) -> None:
    """The status has the traceback of the worker on the second node; the first, which waits for it in torchrun's exit
    barrier, is ended, and does not wait that out."""
    handle = train(FAIL="1")
    eventually(lambda: "state:    FAILED" in shell.torchx("status", handle, check=False), timeout_s=400, every_s=1)
    status = shell.torchx("status", handle, check=False)
    assert "train/1" in status
    assert "RuntimeError: on purpose, after training" in status
    assert "Traceback" in status
    # The barrier lasts five minutes.
    eventually(
        lambda: "1 CANCELLED, 1 FAILED" in shell.torchx("status", handle, check=False), timeout_s=120, every_s=0.5
    )
    assert "RuntimeError: on purpose, after training" in shell.torchx("status", handle, check=False)
    watcher_gone(handle.rpartition("/")[2])
