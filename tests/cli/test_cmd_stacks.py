"""`torchx stacks`: the sentence first, then the stacks, and the same as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Call, state, until
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
    until(lambda: len([*project.glob("up-*")]) == 2)
    until(lambda: state(torchx) == "RUNNING")
    yield "@last"
    torchx("cancel", "@last")
    torchx("wait", "@last")


def test_the_answer_is_the_first_line(torchx: Call, job: str) -> None:
    """The summary comes first, then groups of ranks with the user's own frames."""
    lines = torchx("stacks", job).out.splitlines()
    assert lines[:2] == ["all 2 ranks are in train.py:4", ""]
    assert [line.split("  pid ")[0] for line in lines[2:4]] == ["sh/0 rank 0", "sh/1 rank 1"]
    assert lines[4:] == [
        "    are in train.py:4",
        "      train.py:4  load_shard        time.sleep(600)",
        "      train.py:5  <module>          load_shard()",
    ]
    assert torchx("stacks", f"{job}/sh/1").out.startswith("sh/1 rank 1 is in train.py:4\n")


def test_as_json(torchx: Call, job: str) -> None:
    """The document has full paths."""
    document = check("stacks", torchx("stacks", job, "--json").out)
    assert document["sentence"] == "all 2 ranks are in train.py:4"
    assert [(r["rank"], r["replica"], r["suspect"]) for r in document["ranks"]] == [(0, 0, False), (1, 1, False)]
    assert {r["read_by"] for r in document["ranks"]} <= {"faulthandler", "py-spy"}  # a developer may have py-spy
    assert document["ranks"][0]["frames"][0]["function"] == "load_shard"


def test_where_nothing_runs(torchx: Call, project: Path) -> None:
    """An ended job is an error with exit code 3."""
    torchx("run", "--wait", "utils.echo")
    done = torchx("stacks", "@last")
    assert (done.code, done.out) == (3, "")
    assert "is not running: it is SUCCEEDED" in done.err


def test_a_silent_job_is_looked_into(torchx: Call, project: Path) -> None:
    """The status reports the hang, in text and JSON; a hook is called once."""
    (project / "train.py").write_text(PROGRAM)
    hook = project / "hook.sh"
    hook.write_text(f'#!/bin/sh\necho "$TORCHX_NOTICE_EVENT" >>{project}/heard; cat >>{project}/heard\n')
    hook.chmod(0o755)
    torchx(
        *("run", "-d", "--watchdog", "2s", "--notify", f"exec:{hook}", "--notify-on", "hang", "utils.sh", "--"),
        f"RANK=0 exec {sys.executable} train.py",
    )
    heard = project / "heard"
    until(lambda: heard.exists() and "roles:" in heard.read_text())
    shown = torchx("status", "@last").out
    torchx("cancel", "@last")
    torchx("wait", "@last")
    line = next(line for line in shown.splitlines() if line.startswith("silent:"))
    assert line.startswith("silent:   no output for ")
    assert line.endswith(" s: sh/0 rank 0 is in train.py:4")
    assert line in heard.read_text()
    assert heard.read_text().splitlines().count("hang") == 1
    assert check("status", torchx("status", "@last", "--json").out)["hang"].endswith("is in train.py:4")


def test_a_notice_of_hangs_needs_a_watchdog(torchx: Call, project: Path) -> None:
    """`--notify-on hang` without a watchdog causes a warning."""
    argv = ["run", "--dryrun", "--notify", "exec:/bin/true", "--notify-on", "hang"]
    assert "`--watchdog 10m`" in torchx(*argv, "utils.echo").err
    assert "watchdog" not in torchx(*argv, "--watchdog", "10m", "utils.echo").err


def test_a_silent_job_is_ended_when_that_is_asked_for(torchx: Call, project: Path) -> None:
    """With `:cancel` the job fails, and the cause is what its rank was doing."""
    (project / "train.py").write_text(PROGRAM)
    script = f'touch "$TORCHX_PROGRESS"; RANK=0 exec {sys.executable} train.py'
    assert torchx("run", "--wait", "--watchdog", "2s:cancel", "utils.sh", "--", script).code == 1
    document = check("status", torchx("status", "@last", "--json").out)
    assert (document["cause"]["class"], document["msg"][:14]) == ("timeout", "no output for ")
    assert "is in train.py:4" in document["msg"]
    folder = Path(document["ui_url"].removeprefix("file://"))
    assert (folder / "progress").exists()
    torchx("delete", "@last")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--watchdog", "10m:retry"], "needs a policy for retries"),
        (["--watchdog", "soon"], "`soon` of the watchdog is not a length of time"),
        (
            ["-s", "aws_batch", "-cfg", "queue=q", "--watchdog", "10m"],
            "`aws_batch` cannot watch whether a job is silent\nhint: omit `--watchdog`; `torchx stacks JOB` shows",
        ),
        (["-s", "kubernetes", "--watchdog", "10m"], "`kubernetes` cannot watch whether a job is silent"),
        (
            ["-s", "kubernetes", "--idle", "30m"],
            "it reports what a job uses now, and nothing samples that while nobody looks",
        ),
        (["-s", "lsf", "--idle", "30m"], "`lsf` cannot detect idle jobs\nhint"),
    ],
)
def test_what_cannot_be_watched_is_refused(torchx: Call, project: Path, argv: list[str], said: str) -> None:
    """The error comes before anything is submitted."""
    done = torchx("run", "--dryrun", *argv, "utils.echo")
    assert done.code != 0
    assert said in done.err
