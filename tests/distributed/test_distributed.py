"""The rank of a process: from torchrun's variables, from the process group, or without either."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from torchx import distributed
from torchx.errors import MissingDependencyError, SpecError


def test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a launcher is the only one of its job; nothing waits."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert (distributed.rank(), distributed.world_size(), distributed.local_rank()) == (0, 1, 0)
    assert distributed.is_rank0()
    assert distributed.is_local_rank0()
    went = []
    with distributed.on_rank0_first():
        went.append("all")
    with distributed.on_local_rank0_first():
        went.append("local")
    assert went == ["all", "local"]


def test_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process group, torchrun's variables are used; the error names an invalid one."""
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert (distributed.rank(), distributed.world_size(), distributed.local_rank()) == (5, 8, 1)
    assert not distributed.is_rank0()
    assert not distributed.is_local_rank0()
    monkeypatch.setenv("RANK", "five")
    with pytest.raises(SpecError, match="`RANK` is `five`"):
        distributed.rank()


def test_waiting_without_a_group_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """In a job of many processes, a missing `init_pg` means that nobody waits: there is a warning."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    with caplog.at_level(logging.WARNING), distributed.on_rank0_first():
        pass
    assert "call init_pg() first" in caplog.text


def test_the_backends() -> None:
    """`Backend` lists the backends of `init_pg`."""
    assert get_args(distributed.Backend) == ("nccl", "gloo", "auto")
    with pytest.raises(AttributeError, match="no attribute `Back`"):
        _ = distributed.Back


def test_light_to_import() -> None:
    """Ranks are available without importing PyTorch."""
    code = "import sys; from torchx import distributed as d; d.rank(); print({'torch', 'typing'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "set()\n"


def test_without_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError) as e:
        distributed.init_pg()
    assert e.value.hint == "pip install torch"


@pytest.fixture
def torch() -> Iterator[Any]:
    found = pytest.importorskip("torch")
    yield found
    if found.distributed.is_initialized():
        found.distributed.destroy_process_group()


def test_a_group_of_one(torch: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without torchrun there is a real group of this process only; a second call keeps it and warns about a difference."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert distributed.init_pg() == torch.device("cpu")
    assert (torch.distributed.get_backend(), torch.distributed.get_world_size()) == ("gloo", 1)
    total = torch.tensor([3.0])
    torch.distributed.all_reduce(total)
    assert total.item() == 3.0
    with distributed.on_rank0_first():
        pass
    assert distributed.init_pg() == distributed.local_device() == torch.device("cpu")
    assert caplog.text == ""
    distributed.init_pg("nccl")
    assert "there is a process group with the backend `gloo` already" in caplog.text


def test_two_processes_that_share_a_gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both choose Gloo. If the first one chose NCCL and the second one Gloo, they would wait for each other forever."""
    for name, value in {"is_available": True, "device_count": 1}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert distributed.init_pg() == torch.device("cpu")
    assert torch.distributed.get_backend() == "gloo"


def test_no_gpu(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requesting NCCL on a host with fewer GPUs than processes is one clear error, before anything starts."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert distributed.local_device() == torch.device("cpu")
    with pytest.raises(SpecError, match="no GPU for local rank 2: PyTorch sees 2 here"):
        distributed.init_pg("nccl")
    assert not torch.distributed.is_initialized()
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert distributed.local_cuda_device() == distributed.local_device() == torch.device("cuda:1")
