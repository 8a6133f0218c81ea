"""`torchx stacks`: the sentence first, then the stacks, and the same as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Call
from .test_cmd_run import _until
from .test_json import check

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

PROGRAM = """\
import os, time, torchx.distributed
def load_shard():
    open("up-" + os.environ["RANK"], "w").close()
    time.sleep(600)
load_shard()
"""


@pytest.fixture
def job(torchx: Call, project: Path) -> Iterator[str]:
    """A job of two replicas, each a rank."""
    (project / "train.py").write_text(PROGRAM)
    script = f"RANK=$TORCHX_LOCAL_REPLICA WORLD_SIZE=2 exec {sys.executable} train.py"
    torchx("run", "-d", "utils.sh", "--num_replicas", "2", "--", script)
    _until(lambda: len([*project.glob("up-*")]) == 2)
    yield "@last"
    torchx("cancel", "@last")
    torchx("wait", "@last")


def test_the_answer_is_the_first_line(torchx: Call, job: str) -> None:
    """Below it are the ranks that do the same, and the user's own lines."""
    lines = torchx("stacks", job).out.splitlines()
    assert lines[:2] == ["all 2 ranks are in train.py:4", ""]
    assert [line.split("  pid ")[0] for line in lines[2:4]] == ["sh/0 rank 0", "sh/1 rank 1"]
    assert lines[4:] == [
        "    is in train.py:4",
        "      train.py:4  load_shard        time.sleep(600)",
        "      train.py:5  <module>          load_shard()",
    ]
    assert torchx("stacks", f"{job}/sh/1").out.startswith("sh/1 rank 1 is in train.py:4\n")


def test_as_json(torchx: Call, job: str) -> None:
    """With whole paths."""
    document = check("stacks", torchx("stacks", job, "--json").out)
    assert document["sentence"] == "all 2 ranks are in train.py:4"
    assert [(r["rank"], r["replica"], r["suspect"], r["read_by"]) for r in document["ranks"]] == [
        (0, 0, False, "faulthandler"),
        (1, 1, False, "faulthandler"),
    ]
    assert document["ranks"][0]["frames"][0]["function"] == "load_shard"


def test_where_nothing_runs(torchx: Call, project: Path) -> None:
    """A job that has ended cannot be looked into: exit code 3 and a sentence."""
    torchx("run", "--wait", "utils.echo")
    done = torchx("stacks", "@last")
    assert (done.code, done.out) == (3, "")
    assert "does not run: it is SUCCEEDED" in done.err
