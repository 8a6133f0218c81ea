"""`torchx top`: driven by Textual's pilot with real local jobs, and in a terminal as people have it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual")
pytest.importorskip("pyte")

import pexpect
from textual.pilot import Pilot
from textual.widgets import Input, Log, Static

from tests.ui.terminal import PATIENCE_S, Terminal, shell_and_back
from torchx.runner import Runner, get_runner
from torchx.runs import NewRun, default_registry
from torchx.settings import torchx_home
from torchx.specs.api import AppState
from torchx.specs.tasks import TaskTable
from torchx.ui.top.app import Ask, Help, Top
from torchx.ui.top.page import Page
from torchx.ui.top.rows import Rows

Drive = Callable[[Pilot[None], Top], Awaitable[None]]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.chdir(tmp_path)
    with get_runner() as runner:
        yield runner


def drive(runner: Runner, work: Drive, size: tuple[int, int] = (110, 32)) -> None:
    """Runs ``work`` against the screen."""

    async def go() -> None:
        app = Top(runner)
        async with app.run_test(size=size) as pilot:
            await work(pilot, app)

    asyncio.run(go())


async def until(pilot: Pilot[None], condition: Callable[[], Any]) -> Any:
    """Waits until ``condition`` is true, and returns its value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, seen(pilot.app)
        await pilot.pause(0.1)
    return value


def seen(app: Any) -> str:
    """Returns the text of the screen on top."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


def sh(runner: Runner, script: str, replicas: int = 1) -> str:
    return runner.run_component(
        "utils.sh", ["--num_replicas", str(replicas), "--", script], "local_cwd", workspace=None
    )


NOBODYS = 60_000_000
"""Of jobs that Slurm does not know."""


def on_record(count: int, state: AppState = AppState.SUCCEEDED, msg: str = "", *, first: int = 0) -> None:
    registry = default_registry()
    for i in range(first, first + count):
        handle = f"slurm://torchx/{NOBODYS + i}"
        run = registry.begin(NewRun(scheduler="slurm", session="torchx", name=f"train-{i}", handle=handle))
        registry.submitted(run, handle)
        registry.saw(handle, state, msg=msg, ended_at=time.time())


# -- the list --------------------------------------------------------------------------------------


def test_runs_come_and_change(runner: Runner) -> None:
    """A new job appears, and its end; the cause is shown below the list."""

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "no runs on record" in seen(app))
        handle = sh(runner, "until test -e go; do sleep 0.05; done; echo why >&2; exit 3")
        await until(pilot, lambda: re.search(r"● running +sh-\w+ +local_cwd", seen(app)))
        assert "1 running" in seen(app) and handle in seen(app)
        Path("go").touch()
        await until(pilot, lambda: re.search(r"✗ failed +sh-\w+ +local_cwd", seen(app)))
        await until(pilot, lambda: "1 failed" in seen(app) and "running" not in seen(app))
        assert "sh/0: exit code 3" in seen(app).splitlines()[-3]

    drive(runner, work)


def test_the_chosen_run_stays_chosen(runner: Runner) -> None:
    """New runs above it, and a filter, do not change the choice."""
    on_record(50)

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "train-49" in seen(app))
        await pilot.press("j", "j", "down", "k")
        assert app._chosen == f"slurm://torchx/{NOBODYS + 47}"
        on_record_one("new")
        await until(pilot, lambda: "new" in seen(app))
        assert app._chosen == f"slurm://torchx/{NOBODYS + 47}"
        assert app.query_one("#runs", Rows).cursor == 3
        await pilot.press("G")
        assert app._chosen == f"slurm://torchx/{NOBODYS}" and "train-0 " in seen(app)
        await pilot.press("g")
        assert app._chosen == "slurm://torchx/new"

    def on_record_one(name: str) -> None:
        run = default_registry().begin(
            NewRun(scheduler="slurm", session="torchx", name=name, handle=f"slurm://torchx/{name}")
        )
        default_registry().submitted(run, f"slurm://torchx/{name}")
        default_registry().saw(f"slurm://torchx/{name}", AppState.SUCCEEDED, ended_at=time.time())

    drive(runner, work)


def test_search_and_states(runner: Runner) -> None:
    """The search filters while typing, Enter keeps it, `f` selects states, Esc shows all runs."""
    on_record(30)
    on_record(1, AppState.FAILED, "out of memory", first=30)

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "train-30" in seen(app))
        await pilot.press("slash", *"memory")
        assert [row["name"] for row in app.runs.shown] == ["train-30"]
        await until(pilot, lambda: "1 failed" in seen(app) and "succeeded" not in seen(app).splitlines()[0])
        await pilot.press("enter", "escape")
        assert (len(app.runs.shown), app.query_one("#search", Input).display) == (31, False)
        while app.runs.group != "failed":
            await pilot.press("f")
        assert [row["state"] for row in app.runs.shown] == ["FAILED"]
        await pilot.press("F", "F")
        assert app.runs.shown == [] and "Esc shows all" in seen(app)
        await pilot.press("escape")
        assert len(app.runs.shown) == 31

    drive(runner, work)


def test_a_scheduler_that_cannot_be_asked(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line says so, also after the list was filtered."""
    monkeypatch.setattr("torchx.runner.watching.changes.Watch.problems", lambda self: {"slurm": "it is away"})
    on_record(1)

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "slurm cannot be asked: it is away" in seen(app))
        await pilot.press("f")
        assert "slurm cannot be asked: it is away" in seen(app)

    drive(runner, work)


def test_ten_thousand_runs(runner: Runner) -> None:
    """A key redraws only visible lines."""
    drawn: list[int] = []

    async def work(pilot: Pilot[None], app: Top) -> None:
        await pilot.pause()

        cells = app.runs.cells

        def draw(i: int) -> Any:
            drawn.append(i)
            return cells(i)

        rows = [{**ROW, "handle": f"slurm://torchx/{i}", "order": i} for i in range(10_000)]
        app.runs.update(rows)
        app._show()
        table = app.query_one("#runs", Rows)
        app.runs.cells = draw  # type: ignore[method-assign]
        for key in ("j", "pagedown", "G", "k", "g"):
            drawn.clear()
            await pilot.press(key)
            await pilot.pause()
            assert 0 < len(drawn) <= 4 * app.size.height, key
            assert table.cursor in drawn, key
        assert "10,000 succeeded" in seen(app) or app.runs.counts()["succeeded"] == 10_000

    drive(runner, work)


ROW = {
    **{"name": "train", "app_id": "train-x", "scheduler": "slurm", "state": "SUCCEEDED", "msg": ""},
    **{"created": 1.0, "ended": 2.0, "tasks": ""},
}


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_width(runner: Runner, width: int) -> None:
    """From 60 columns on, state, name and keys are visible, and no line is too long."""
    on_record(3, AppState.FAILED, "out of memory \x1b[31m" + "x" * 300)

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: re.search(r"✗ failed +train-2", seen(app)))
        assert all(len(line) <= width for line in seen(app).splitlines())
        await until(pilot, lambda: "search" in seen(app).splitlines()[-1])
        assert "\x1b" not in seen(app)
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help) and "this help" in seen(app)
        await pilot.press("escape")
        assert not isinstance(app.screen, Help)

    drive(runner, work, (width, 24))


@pytest.mark.parametrize(
    ("width", "columns", "outcome"),
    [
        (80, "RUN LAUNCHED OUTCOME", "out of memory: it used"),
        (90, "RUN LAUNCHED TOOK OUTCOME", "out of memory: it used"),
        (150, "RUN SCHEDULER LAUNCHED TOOK OUTCOME", "ddp/0 on n1: exit code 9: out of memory: it used"),
    ],
)
def test_the_outcome_has_a_column_at_every_width(runner: Runner, width: int, columns: str, outcome: str) -> None:
    """Other columns give way to it; rows have ids; the foot has the whole cause, handle and times of the chosen run."""
    cause = "ddp/0 on n1: exit code 9: out of memory: it used 1058 MiB of the 1024 MiB it had asked for"
    on_record(2, AppState.FAILED, cause)

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: f"slurm://torchx/{NOBODYS + 1}  launched" in seen(app).splitlines()[-4])
        lines = seen(app).splitlines()
        assert lines[1].split() == ["STATE", *columns.split()]
        assert re.search(rf"✗ failed +train-0 {NOBODYS} .*{re.escape(outcome)}", lines[3])
        assert ", took " in lines[-4]
        assert cause in " ".join(" ".join(lines[-3:-1]).split())

    drive(runner, work, (width, 24))


# -- a run -----------------------------------------------------------------------------------------


def test_the_page_of_a_run(runner: Runner) -> None:
    """Shows cause, replicas with metrics, and the log of all or of one; Esc returns to the list."""
    script = 'echo "I am $TORCHX_LOCAL_REPLICA"; until test -e go; do sleep 0.05; done; exit $TORCHX_LOCAL_REPLICA'
    Path(".torchxconfig").write_text("[metrics]\nevery = 0\n")  # what it uses is what this test says
    handle = sh(runner, script, replicas=2)
    folder = Path(torchx_home("local"), "torchx", handle.rpartition("/")[2])
    sample = '{"t":%d.0,"a":0,"cpu":1.5,"mem":%d,"gpu":[[97,1,2]]}\n'

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "running" in seen(app))
        lines = ['{"memory_limit":8589934592,"cpus":2}\n', sample % (1, 1 << 30), sample % (2, 3 << 30)]
        (folder / "sh" / "1" / "metrics.jsonl").write_text("".join(lines))
        await pilot.press("enter")
        await until(pilot, lambda: re.search(r"sh/1 +● running +1\.5 of 2 +██.* 3 GiB .*3 GiB +8 GiB +97 %", seen(app)))
        await until(pilot, lambda: "sh/0 I am 0" in seen(app) and "sh/1 I am 1" in seen(app))
        await pilot.press("j", "enter")
        await until(pilot, lambda: "Log of sh/1" in seen(app) and re.search(r"│ I am 1", seen(app)))
        assert "I am 0" not in seen(app)
        Path("go").touch()
        await until(pilot, lambda: re.search(r"sh/1 +✗ failed", seen(app)))
        await until(pilot, lambda: "sh/1: exit code 1" in seen(app))
        await pilot.press("t")
        assert "Timeline" in seen(app)
        assert re.search(r"sh/0 +━+ .*\n│ sh/1 +━+ ", seen(app))  # one succeeded, the other failed
        await pilot.press("t", "l")
        assert "Replicas" not in seen(app) and "Log of sh/1" in seen(app)
        await pilot.press("l", "a")
        await until(pilot, lambda: "I am 0" in seen(app))
        await pilot.press("escape")
        assert not isinstance(app.screen, Page)

    drive(runner, work)


def test_a_log_is_shown_as_text(runner: Runner) -> None:
    """Logs are neither parsed as markup nor sent to the terminal as escape sequences."""
    sh(runner, r"printf 'a [b]bold[/b] \033[2J\033]0;title\007 \033[31mred\033[0m end\n'")

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "succeeded" in seen(app))
        await pilot.press("enter")
        await until(pilot, lambda: "end" in "".join(app.screen.query_one("#log", Log).lines))
        text = "".join(app.screen.query_one("#log", Log).lines)
        assert text == "a [b]bold[/b]  red end"

    drive(runner, work)


def test_a_run_that_its_scheduler_forgot(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says so."""
    on_record(1, AppState.FAILED, "out of memory")
    for name, script in {
        "squeue": "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        "sacct": "",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "train-0" in seen(app))
        await pilot.press("enter")
        await until(pilot, lambda: str(app.screen.query_one("#cause", Static).render()))
        assert f"slurm://torchx/{NOBODYS}" in seen(app)

    drive(runner, work)


# -- a sweep ---------------------------------------------------------------------------------------


def sweep(script: str, values: str, *options: str, at_once: int = 1) -> str:
    """Launches a sweep, one task at a time by default, and returns its handle."""
    argv = ["sweep", "-s", "local_cwd", "--max-parallel", str(at_once), "--grid", f"n={values}"]
    argv += ["utils.sh", *options, "--", script]
    done = subprocess.run([sys.executable, "-m", "torchx", *argv], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("width", [80, 140])
def test_a_sweep(runner: Runner, width: int) -> None:
    """The list shows its progress; the page lists failed tasks first, and Enter opens one as a job."""
    script = "echo I am {n}; test {n} != v3 || exit 7; until test -e go || test {n} != v4; do sleep 0.05; done"
    handle = sweep(script, "v0,v1,v2,v3,v4,v5")

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: re.search(r"● running +sh-.* 4/6 done, 1 failed", seen(app)))
        await pilot.press("enter")
        await until(pilot, lambda: "exit code 7" in seen(app))
        tasks = [line[2:] for line in seen(app).splitlines() if re.match(r"│ +\d ", line)]
        assert re.match(r" *3 +✗ failed +7 +(just now|\d+ s ago) +n=v3 +I am v3", tasks[0])
        assert [int(line.split()[0]) for line in tasks] == [3, 4, 5, 0, 1, 2]
        assert "4/6 done, 1 failed, 1 running" in seen(app)
        await pilot.press("enter")
        await until(pilot, lambda: re.search(r"│ I am v3", seen(app)) and "exit code 7" in seen(app))
        await pilot.press("enter")
        await until(pilot, lambda: "Log of sh/3" in seen(app) and re.search(r"│ I am v3", seen(app)))
        assert f"{handle}/3" in seen(app)
        await pilot.press("r")
        await until(pilot, lambda: any("retried with their sweep" in note.message for note in app._notifications))
        await pilot.press("escape", "j")
        Path("go").touch()
        await until(pilot, lambda: "6/6 done, 1 failed" in seen(app))
        page = app.screen
        assert isinstance(page, Page) and page.chosen() == f"{handle}/4"
        await pilot.press("escape")
        await until(pilot, lambda: re.search(r"✗ failed +sh-.* 6/6 done, 1 failed", seen(app)))

    drive(runner, work, (width, 24))


def test_the_replicas_of_a_task(runner: Runner) -> None:
    """The logs of replicas work as for a job."""
    sweep("echo {n} is ${replica_id}", "a,b", "--num_replicas", "2")

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "2/2 done" in seen(app))
        await pilot.press("enter")
        await until(pilot, lambda: re.search(r"1 +✓ succeeded", seen(app)))
        await pilot.press("j", "enter")
        await until(pilot, lambda: "b is 0" in seen(app) and "b is 1" in seen(app))
        await pilot.press("j", "enter")
        await until(pilot, lambda: "Log of sh/1" in seen(app) and re.search(r"│ b is 1", seen(app)))
        assert "b is 0" not in seen(app)

    drive(runner, work)


def test_a_task_is_cancelled(runner: Runner) -> None:
    """The question names the task; the other tasks continue."""
    handle = sweep("sleep 600", "0,1")

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "running" in seen(app))
        await pilot.press("enter")
        await until(pilot, lambda: re.search(r"0 +● running", seen(app)))
        await pilot.press("enter")
        await until(pilot, lambda: re.search(r"sh/\d +● running", seen(app)))
        await pilot.press("c")
        assert "/0?" in seen(app)
        await pilot.press("y", "escape")
        await until(pilot, lambda: re.search(r"1 +● running", seen(app)))
        assert re.search(r"0 +⊘ cancelled", seen(app))
        runner.cancel(handle)

    drive(runner, work)


def test_ten_thousand_tasks(runner: Runner) -> None:
    """A key redraws only visible lines, paging works, and the chosen task stays chosen."""
    states = [AppState.FAILED if k % 1000 == 999 else AppState.SUCCEEDED for k in range(10_000)]
    table = TaskTable(states=states, exit_codes=[int(s is AppState.FAILED) for s in states], ended=[1.0] * 10_000)
    drawn: list[int] = []

    async def work(pilot: Pilot[None], app: Top) -> None:
        page = Page(sh(runner, "true"), sweep=True)
        page._refresh_status = lambda: asyncio.sleep(0)  # type: ignore[method-assign]  # its tasks are those of this test
        app.push_screen(page)
        await until(pilot, lambda: app.screen is page and page.is_mounted)
        assert page.tasks is not None
        page.show(page.tasks, table)
        rows = page.query_one("#parts", Rows)
        cells = page.tasks.cells

        def draw(i: int) -> Any:
            drawn.append(i)
            return cells(i)

        page.tasks.cells = draw  # type: ignore[method-assign]
        assert page.tasks.order[:11] == [*range(999, 10_000, 1000), 0]
        for key in ("j", "pagedown", "pagedown", "G", "k", "g"):
            drawn.clear()
            before = rows.cursor
            await pilot.press(key)
            await pilot.pause()
            assert 0 < len(drawn) <= 4 * app.size.height, key
            assert rows.cursor in drawn, key
            assert key != "pagedown" or 20 < rows.cursor - before < app.size.height
        await pilot.press("j")
        states[0] = AppState.FAILED
        page.show(page.tasks, TaskTable(states=states, exit_codes=table.exit_codes, ended=table.ended))
        assert (rows.cursor, page.chosen()) == (2, f"{page.handle}/1999")
        assert "10,000/10,000 done, 11 failed" in page.tasks.about()

    drive(runner, work)


# -- what is done from there -----------------------------------------------------------------------


def test_cancel_asks(runner: Runner) -> None:
    """`y` cancels the job, `n` does not; for an ended job there is no question."""
    handle = sh(runner, "sleep 600")

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "running" in seen(app))
        await pilot.press("c")
        assert isinstance(app.screen, Ask) and "Cancel sh-" in seen(app)
        await pilot.press("x", "n")
        assert not isinstance(app.screen, Ask)
        status = runner.status(handle)
        assert status is not None and str(status.state) == "RUNNING"
        await pilot.press("c", "y")
        await until(pilot, lambda: re.search(r"⊘ cancelled +sh", seen(app)))
        await pilot.press("c")
        assert not isinstance(app.screen, Ask)

    drive(runner, work)


def test_rerun_asks(runner: Runner) -> None:
    """`y` launches the run again, and the list shows it."""
    runner.wait(sh(runner, "exit 3"))

    async def work(pilot: Pilot[None], app: Top) -> None:
        await until(pilot, lambda: "1 failed" in seen(app))
        await pilot.press("enter", "r")
        assert "Launch sh again" in seen(app)
        await pilot.press("y", "escape")
        await until(pilot, lambda: "2 failed" in seen(app))
        assert len({row["handle"] for row in app.runs.shown}) == 2

    drive(runner, work)


# -- in a terminal ---------------------------------------------------------------------------------


def test_in_a_terminal(runner: Runner, tmp_path: Path) -> None:
    """Keys, a shell inside the job, and exit code 0 at the end; the job continues."""
    handle = sh(runner, "sleep 600")
    terminal = Terminal()
    terminal.until(r"● running +sh-")
    terminal.press("s")
    terminal.until(r"[$#] ")
    terminal.press("echo in $TORCHX_LOCAL_REPLICA > seen")
    terminal.until("echo in")
    terminal.press("; exit\r")
    terminal.until("echo in", gone=True)
    terminal.until(r"● running +sh-")
    assert (tmp_path / "seen").read_text() == "in 0\n"
    terminal.press("\r")
    terminal.until("Replicas")
    terminal.press("q")
    terminal.until("LAUNCHED")
    terminal.press("q")
    assert terminal.end() == 0
    status = runner.status(handle)
    assert status is not None and str(status.state) == "RUNNING"
    runner.cancel(handle)


def test_a_shell_in_a_replica(runner: Runner) -> None:
    """Opens a shell in the chosen replica; Ctrl-C goes to the shell, and the screen adapts to a new size."""
    handle = sh(runner, "sleep 600", replicas=2)
    terminal = Terminal()
    terminal.until(r"● running +sh-")
    terminal.press("\r")
    terminal.until(r"sh/1 +● running")
    terminal.press("j")
    shell_and_back(terminal, "sh/1 +● running", "test $TORCHX_LOCAL_REPLICA = 1")
    terminal.press("qq")
    assert terminal.end() == 0
    runner.cancel(handle)


def test_a_shell_in_a_task(runner: Runner) -> None:
    """Opens a shell in a task, from the list of tasks and from its page."""
    handle = sweep("sleep 600 # {n}", "0,1,2", at_once=3)
    terminal = Terminal()
    terminal.until(r"● running +sh-")
    terminal.press("\r")
    terminal.until(r"1 +● running")
    terminal.press("j")
    shell_and_back(terminal, "1 +● running", "test $TORCHX_TASK = 1")
    terminal.press("\r")
    terminal.until("sh/1 +● running")
    shell_and_back(terminal, "sh/1 +● running", "test $TORCHX_TASK = 1")
    terminal.press("qqq")
    assert terminal.end() == 0
    runner.cancel(handle)


def test_ctrl_c_quits(runner: Runner) -> None:
    """From the list, a search, a question, or a run, with exit code 0."""
    runner.wait(sh(runner, "exit 0"), wait_interval=0.05)
    for keys, shows in (("", "sh-"), ("/", "words in name"), ("?", "this help"), ("\r", "Replicas|Log")):
        terminal = Terminal()
        terminal.until("sh-")
        terminal.press(keys)
        terminal.until(shows)
        terminal.press("\x03")
        assert terminal.end() == 0


def _top(**env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchx", "top"], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def test_without_a_terminal() -> None:
    """In a pipe the error suggests other verbs."""
    done = _top()
    assert (done.returncode, "needs a terminal" in done.stderr, "torchx watch" in done.stderr) == (2, True, True)


def test_without_textual(tmp_path: Path) -> None:
    """The error names the missing package and how to install it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['textual'] = None\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "TERM": "xterm"}
    child = pexpect.spawn(sys.executable, ["-m", "torchx", "top"], env=env, encoding="utf-8", timeout=PATIENCE_S)
    said = child.read()
    child.wait()
    assert (child.exitstatus, "`textual`" in said, "pip install" in said) == (6, True, True)
    assert "Traceback" not in said


def test_nobody_else_imports_it() -> None:
    """Only `torchx top` imports Textual."""
    code = "import sys, json, torchx.runner, torchx.cli.main, torchx.cli.cmd_ui; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"textual", "rich", "torchx.ui.top.app"} & set(json.loads(done.stdout))
