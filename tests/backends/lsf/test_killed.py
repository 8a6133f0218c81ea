"""torchx is killed while it submits: what LSF has taken is found, and what is incomplete is taken away."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from tests.backends.lsf.lookalike.config import Config
from tests.backends.shell import Shell

from .conftest import command, eventually

TORCHX = "$(ps -o ppid= -p $PPID)"
SCRIPT = "$PPID"


def killed(mine: Shell, cluster: Config, folder: Path, program: str, at: int, *victims: str) -> None:
    """A submission of three replicas; once a program was run for the `at`-th time, the victims are killed."""
    tools = folder / "tools"
    tools.mkdir()
    script = tools / program
    script.write_text(
        f'#!/bin/bash\n{cluster.bindir}/{program} "$@"\ncode=$?\necho x >>{folder}/calls\n'
        f"[ $(wc -l <{folder}/calls) = {at} ] && kill -9 {' '.join(victims)}\nexit $code\n"
    )
    script.chmod(0o755)
    faulty = Shell(mine.cwd, {**mine.env, "PATH": f"{tools}:{mine.env['PATH']}"})
    process = faulty.start("run", "-s", "lsf", "utils.sh", "--num_replicas", "3", "--", "echo it ran")
    process.communicate(timeout=300)
    assert process.returncode == -9


def both(mine: Shell, *args: str) -> tuple[str, str]:
    """What a verb says, and what it says on stderr."""
    process = mine.start(*args)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


@pytest.mark.usefixtures("scheduler")
def test_all_of_it(lsf_shell: Shell, cluster: Config, tmp_path: Path) -> None:
    """LSF has taken the job, and nobody heard: the next list shows it, and all verbs know it."""
    killed(lsf_shell, cluster, tmp_path, "bresume", 1, TORCHX)
    listed, told = both(lsf_shell, "list")
    [handle] = re.findall(r"lsf://torchx/\S+", listed)
    assert f"led to `{handle}`, which is on record now" in told
    eventually(lambda: "state:    SUCCEEDED" in lsf_shell.torchx("status", "@last"))  # the job, not a replica
    assert lsf_shell.torchx("log", "--no-prefix", "@last") == "it ran\n" * 3
    lsf_shell.torchx("delete", handle)
    assert [p.name for p in (tmp_path / "home" / "lsf").iterdir()] == ["ids"]


@pytest.mark.usefixtures("scheduler")
@pytest.mark.parametrize(
    ("victims", "left"),
    [((TORCHX,), 0), ((TORCHX, SCRIPT), 2)],
    ids=["the script gives up", "the script is killed, too"],
)
def test_half_of_it(lsf_shell: Shell, cluster: Config, tmp_path: Path, victims: tuple[str, ...], left: int) -> None:
    """Nothing runs. What is on hold is ended once it is certain that nobody goes on with it, and not before."""
    killed(lsf_shell, cluster, tmp_path, "bsub", 2, *victims)
    eventually(lambda: len(command("bjobs", "-noheader").splitlines()) == left)
    listed, told = both(lsf_shell, "list")
    assert "lsf://" not in listed
    assert "is not known yet" in told
    assert len(command("bjobs", "-noheader").splitlines()) == left
    with sqlite3.connect(tmp_path / "home" / "runs.db") as db:
        db.execute("UPDATE runs SET created_at = created_at - 130")
    db.close()
    assert "led to no job" in both(lsf_shell, "list")[1]
    eventually(lambda: not command("bjobs", "-noheader"))
    assert not list((tmp_path / "home" / "lsf").glob("*/sh/*/stdout.log"))
