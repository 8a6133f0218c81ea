"""torchx is killed while it submits: the job is found all the same, or it is told that there is none."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.shell import Shell
from tests.backends.slurm.conftest import Job, command, ended
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppState

Eventually = Callable[..., object]


@pytest.fixture
def mine(shell: Shell, tmp_path: Path) -> Shell:
    """A shell with a record of its own, in which the next `sbatch` may kill who calls it."""
    tools = tmp_path / "tools"
    tools.mkdir()
    script = tools / "sbatch"
    script.write_text(
        f"#!/bin/sh\nif [ -e {tmp_path}/before ]; then kill -9 $PPID; exit 1; fi\n"
        f'/usr/bin/sbatch "$@"\nif [ -e {tmp_path}/after ]; then kill -9 $PPID; fi\n'
    )
    script.chmod(0o755)
    env = {**shell.env, "TORCHX_HOME": str(tmp_path / "home"), "PATH": f"{tools}:{shell.env['PATH']}"}
    return Shell(shell.cwd, env)


def killed(mine: Shell, tmp_path: Path, moment: str, *args: str) -> None:
    """A submission that is killed `before` or `after` Slurm gets to know of it."""
    (tmp_path / moment).touch()
    process = mine.start("run", "-s", "slurm", *args)
    out, err = process.communicate(timeout=300)
    (tmp_path / moment).unlink()
    assert (process.returncode, out) == (-9, ""), err


def both(mine: Shell, *args: str) -> tuple[str, str]:
    """What a verb says, and what it says on stderr."""
    process = mine.start(*args)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out, err


def test_killed_between_the_answer_and_the_record(mine: Shell, tmp_path: Path, eventually: Eventually) -> None:
    """The next list shows the job and says why it was not there; all verbs know it from then on, and its options."""
    killed(mine, tmp_path, "after", "-cfg", "comment=kept", "utils.sh", "--", "echo it ran")
    listed, told = both(mine, "list")
    [handle] = re.findall(r"slurm://torchx/\d+", listed)
    assert f"led to `{handle}`, which is on record now: the submitting process died" in told
    eventually(lambda: "SUCCEEDED" in mine.torchx("status", "@last"), timeout_s=180, every_s=0.3)
    assert mine.torchx("log", "--no-prefix", "@last") == "it ran\n"
    described = mine.torchx("describe", "--json", handle)
    assert re.search(r'"comment": \{\s*"value": "kept"', described)
    assert both(mine, "list")[1] == ""
    mine.torchx("delete", handle)
    assert [p.name for p in (tmp_path / "home" / "slurm").iterdir()] == ["ids"]


def test_a_short_name_settles_it_too(mine: Shell, tmp_path: Path) -> None:
    """`@last` right after the kill is the job that was submitted last."""
    first = mine.launch("-s", "slurm", "utils.echo")
    killed(mine, tmp_path, "after", "utils.sh", "sleep", "60")
    page = mine.torchx("status", "@last")
    handle = re.search(r"slurm://torchx/\d+", page)[0]
    assert handle != first
    mine.torchx("cancel", "@last")
    assert command("squeue", "-h", "-o", "%T", "--states=all", f"--jobs={handle.rpartition('/')[2]}") != "RUNNING\n"


def test_killed_before_slurm_was_asked(mine: Shell, tmp_path: Path) -> None:
    """No run shows. At first that is not certain, for the command may be under way; two minutes later it is, and is said."""
    killed(mine, tmp_path, "before", "utils.echo")
    listed, told = both(mine, "list")
    assert "slurm://" not in listed
    assert "is not known yet" in told
    with sqlite3.connect(tmp_path / "home" / "runs.db") as db:
        db.execute("UPDATE runs SET created_at = created_at - 130")
    db.close()
    listed, told = both(mine, "list")
    assert "slurm://" not in listed
    assert "led to no job: the submitting process died" in told
    assert both(mine, "list")[1] == ""


def test_a_job_that_slurm_has_forgotten(
    scheduler: SlurmScheduler, submit: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Who looks days later finds the job by accounting; where there is none, by what it wrote into its folder."""
    app_id = submit("true", name="forgotten")
    assert ended(scheduler, app_id).state is AppState.SUCCEEDED
    folder = scheduler.folders(scheduler._here).of(app_id).path
    intent = f"{Path(folder).name} {folder}"
    monkeypatch.setattr(scheduler, "_find_submitted", lambda site, token: None)  # as after MinJobAge
    slurm = scheduler._slurm(scheduler._here)
    days = 3 * 86400.0
    eventually(lambda: slurm.named(Path(folder).name, days), timeout_s=180)  # accounting hears of it some seconds later
    with monkeypatch.context() as patch:
        patch.setattr("torchx.schedulers.slurm_scheduler.job_id_in", lambda folder: "")
        assert scheduler.find_submission(intent, {}, age_s=days) == app_id
    monkeypatch.setattr(slurm, "named", lambda name, age_s: "")
    assert scheduler.find_submission(intent, {}, age_s=days) == app_id
    nobody = f"no-such-token {tmp_path}/no"
    assert scheduler.find_submission(nobody, {}, age_s=days) == ""
    assert scheduler.find_submission(nobody, {}, age_s=1.0) is None
