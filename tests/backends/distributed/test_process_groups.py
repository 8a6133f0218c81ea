"""Real Gloo process groups: four processes under two torchrun agents, launched as a user does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.shell import Shell

pytest.importorskip("torch")


def test_two_by_two(shell: Shell, tmp_path: Path) -> None:
    """Each rank knows its place before and after `init_pg`; they talk; the first goes first, in the job and on each host."""
    program = str(Path(__file__).with_name("program.py").relative_to(shell.cwd))
    shell.torchx(
        "run", "-s", "local_cwd", "--wait", "dist.ddp", "-j", "2x2", "--script", program, "--env", f"OUT={tmp_path}"
    )
    seen = {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)}
    for rank, saw in seen.items():
        assert saw["before"] == saw["after"] == [rank, 4, rank % 2]
        assert (saw["device"], saw["backend"], saw["sum"]) == ("cpu", "gloo", 6.0)
        assert saw["rank 0 first"] == (rank != 0)
        assert saw["local rank 0 first"] == (rank % 2 != 0)
        assert saw["failure"] == ("rank 0 fails" if rank == 0 else "went on")
