"""Requests for checkpoints, and reports of progress."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torchx.distributed import checkpoints


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that requests a checkpoint; it does not exist yet."""
    path = tmp_path / "checkpoint"
    monkeypatch.setenv("TORCHX_CHECKPOINT_NOW", str(path))
    monkeypatch.setattr(checkpoints, "_requests", None)
    monkeypatch.setattr(checkpoints, "_CHECK_S", -1.0)
    return path


def test_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a job with a policy nothing happens."""
    monkeypatch.delenv("TORCHX_CHECKPOINT_NOW", raising=False)
    assert not checkpoints.should_checkpoint()


def test_each_request_is_answered_once(asked: Path) -> None:
    """True when the file has appeared, and again when it has changed; never twice for one request."""
    assert not checkpoints.should_checkpoint()
    asked.touch()
    assert [checkpoints.should_checkpoint() for _ in range(3)] == [True, False, False]
    os.utime(asked, (2e9, 2e9))
    assert [checkpoints.should_checkpoint() for _ in range(2)] == [True, False]


def test_progress_leaves_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is touched at most once a second; a missing folder is no error."""
    mark = tmp_path / "progress"
    monkeypatch.setenv("TORCHX_PROGRESS", str(mark))
    monkeypatch.setattr(checkpoints, "_marked", float("-inf"))
    checkpoints.progress()
    assert mark.exists()
    mark.unlink()
    checkpoints.progress()
    assert not mark.exists()
    monkeypatch.setenv("TORCHX_PROGRESS", str(tmp_path / "no" / "folder"))
    monkeypatch.setattr(checkpoints, "_marked", float("-inf"))
    checkpoints.progress()


def test_all_ranks_agree_on_the_step(tmp_path: Path) -> None:
    """Only rank 1 sees the request, in step 3: all three write their checkpoint in the same step."""
    pytest.importorskip("torch")
    code = """
        import os, sys
        from torchx import distributed
        from torchx.distributed import checkpoints
        checkpoints._CHECK_S = -1.0
        rank = int(os.environ["RANK"])
        os.environ["TORCHX_CHECKPOINT_NOW"] = os.environ["HERE"] + f"/checkpoint.{rank}"
        distributed.init_pg("gloo")
        steps = []
        for step in range(8):
            if rank == 1 and step == 3:
                open(os.environ["TORCHX_CHECKPOINT_NOW"], "w").close()
            if distributed.should_checkpoint():
                steps.append(step)
        open(os.environ["HERE"] + f"/steps.{rank}", "w").write(repr(steps))
        import torch.distributed
        torch.distributed.destroy_process_group()  # without it, a thread of Gloo may abort the process at its exit
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "--no-python"]
    env = {**os.environ, "HERE": str(tmp_path)}
    subprocess.run([*command, sys.executable, "-c", textwrap.dedent(code)], env=env, check=True, timeout=300)
    assert [(tmp_path / f"steps.{rank}").read_text() for rank in range(3)] == ["[4]"] * 3


def test_steps_go_to_the_file_of_the_replica(tmp_path: Path) -> None:
    """Each rank has a slot; the last step is there although the program ends at once; a call costs microseconds."""
    from torchx.schedulers.kit.pace import parse_file

    code = """
        import time
        from torchx import distributed
        distributed.progress(0, 20_000)
        began = time.perf_counter()
        for step in range(20_000):
            distributed.progress(step + 1, total=20_000, loss=0.5)
        print((time.perf_counter() - began) / 20_000)
    """
    env = {**os.environ, "TORCHX_JOB_ID": "local_cwd://s/a", "TORCHX_STEPS": str(tmp_path / "steps"), "LOCAL_RANK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**env, "RANK": "1", "WORLD_SIZE": "2"},
        check=True,
        capture_output=True,
        text=True,
    )
    (one,) = parse_file("w", 0, (tmp_path / "steps").read_bytes())
    assert (one.rank, one.world, one.total, one.points[-1][1], one.metrics) == (1, 2, 20_000, 20_000, {"loss": 0.5})
    assert float(done.stdout) < 20e-6


def test_steps_without_a_file_are_lines(tmp_path: Path) -> None:
    """Outside of a job nothing happens; in one without a file, the last step is a line on stdout."""
    code = "from torchx import distributed; [distributed.progress(n, 9) for n in range(10)]"
    for env, lines in (({}, 0), ({"TORCHX_JOB_ID": "kubernetes://s/a"}, 1)):
        known = {k: v for k, v in os.environ.items() if k not in ("TORCHX_JOB_ID", "TORCHX_STEPS")}
        done = subprocess.run([sys.executable, "-c", code], env={**known, **env}, check=True, capture_output=True)
        assert done.stdout.count(b"::torchx progress step=9 total=9") == lines
        assert not done.stderr


@pytest.mark.parametrize(
    ("given", "step"),
    [
        pytest.param("7, float('inf')", 7, id="an endless training, as Lightning reports it"),
        pytest.param("'7', 'many'", 7, id="text"),
        pytest.param("7.0, None, loss=10**400", 7, id="a metric beyond all numbers"),
        pytest.param("float('nan'), 9", None, id="no step"),
        pytest.param("10**400, 9", None, id="a step beyond all numbers"),
        pytest.param("[7], 9", None, id="a list"),
    ],
)
def test_odd_reports(given: str, step: int | None) -> None:
    """They leave no traceback in the output of the job."""
    code = f"from torchx import distributed; distributed.progress({given})"
    env = {**os.environ, "TORCHX_JOB_ID": "kubernetes://s/a"}
    env.pop("TORCHX_STEPS", None)
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True)
    assert done.stdout.startswith(b"" if step is None else b"::torchx progress step=%d t=" % step) and not done.stderr
    assert bool(done.stdout) == (step is not None)
