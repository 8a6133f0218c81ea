"""`torchx sweep`: what is launched, how its tasks are found, and what is refused before anything is submitted."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import jsonschema
import pytest

import torchx.cli
from torchx.runs import default_registry
from torchx.settings import torchx_home

from .conftest import Call, end, runs, spawn

SCHEMAS = Path(torchx.cli.__file__).parent / "schemas"
TASK = "echo lr={lr} seed={seed}; test {seed} != 1 || exit 7"
GRID = ("--grid", "lr=1e-4,3e-4", "--grid", "seed=0..1")


def launch(torchx: Call, *argv: str) -> str:
    """Runs a sweep to its end, and returns its app id."""
    outcome = torchx("sweep", *argv)
    assert outcome.code == 0, outcome.err
    torchx("wait", "@last")
    return outcome.out.strip().rpartition("/")[2]


def test_a_sweep(torchx: Call, project: Path) -> None:
    """The sweep is one run on record, with four tasks and a page that groups failures by cause."""
    app_id = launch(torchx, *GRID, "utils.sh", TASK)
    assert [(run["app_id"], run["state"]) for run in runs(torchx)] == [(app_id, "FAILED")]
    page = torchx("status", app_id).out
    assert "4 of 4 ended · 2 succeeded · 2 failed" in page
    assert "2  error      exit code 7: lr=1e-4 seed=1\n" in page
    assert "task 1 (lr=1e-4, seed=1), 3 (lr=3e-4, seed=1)\n" in page
    assert torchx("log", f"{app_id}/2").out == "sh/2 lr=3e-4 seed=0\n"
    assert torchx("log", app_id).out.count("\n") == 4


def test_a_task_is_a_job(torchx: Call, project: Path) -> None:
    """`status`, `wait` and `log` accept `SWEEP/3`, `@last/3` and the handle; an unknown task is an error."""
    app_id = launch(torchx, *GRID, "utils.sh", TASK)
    for reference in (f"{app_id}/3", "@last/3", f"local_cwd://torchx/{app_id}/3"):
        status = json.loads(torchx("status", reference, "--json").out)
        assert (status["state"], status["cause"]["error"]["exit_code"]) == ("FAILED", 7)
        assert status["app_id"] == f"{app_id}/3"
    assert "\nvalues:   lr=3e-4, seed=1\n" in torchx("status", "@last/3").out
    assert torchx("wait", f"{app_id}/3").code == 1
    assert torchx("wait", f"{app_id}/0").code == 0
    missing = torchx("status", f"{app_id}/4")
    assert (missing.code, missing.hint()) == (3, "it has tasks 0 to 3")


def test_what_it_says_to_programs(torchx: Call, project: Path) -> None:
    """`sweep --json` and `status --json` match their schemas."""
    document = json.loads(torchx("sweep", "--json", *GRID, "utils.sh", TASK).out)
    jsonschema.validate(document, json.loads((SCHEMAS / "sweep.json").read_text()))
    torchx("wait", "@last")
    status = json.loads(torchx("status", "@last", "--json").out)
    jsonschema.validate(status, json.loads((SCHEMAS / "status.json").read_text()))
    assert status["tasks"]["counts"] == {"SUCCEEDED": 2, "FAILED": 2}
    assert status["tasks"]["failures"] == [{"class": "error", "cause": "exit code 7: lr=1e-4 seed=1", "tasks": [1, 3]}]


@pytest.mark.parametrize(
    "word", ["{x} {y}", "x{y}", "{x} '{y}'"], ids=["quoted by the component", "not", "by the user"]
)
def test_a_placeholder_without_values(torchx: Call, project: Path, word: str) -> None:
    """It is an error that lists the names, also within quotes of a shell command; nothing is submitted."""
    outcome = torchx("sweep", "--grid", "x=1,2", "utils.sh", "echo", word)
    assert outcome.code == 2
    assert "`{y}` in `echo" in outcome.err and "is not the name of a value of the sweep" in outcome.err
    assert outcome.hint() == "the names: x; write `{{y}}` for the text `{y}`"
    assert not runs(torchx)


@pytest.mark.parametrize("verb", [["watch"], ["status", "-w"]], ids=["watch", "status"])
def test_a_line_for_each_change_of_a_task(torchx: Call, project: Path, verb: list[str]) -> None:
    """Each task's last line is its end, even if it ended before the watch began; `status` then prints the page."""
    gate = "until [ -e go ]; do sleep 0.02; done; exit {n}"
    outcome = torchx("sweep", "--max-parallel", "2", "--grid", "n=0..2", "utils.sh", gate)
    handle = outcome.out.strip()
    torchx("run", "utils.sh", "sleep 0.5; touch go")
    lines = [json.loads(line) for line in torchx(*verb, "--json", handle).out.splitlines()]
    if verb[0] == "status":
        assert lines.pop()["tasks"]["counts"] == {"SUCCEEDED": 1, "FAILED": 2}
    tasks = [line for line in lines if line["handle"] != handle]
    for line in lines:
        jsonschema.validate(line, json.loads((SCHEMAS / "watch.json").read_text()))
    assert {line["handle"]: (line["state"], line["msg"]) for line in tasks} == {
        f"{handle}/0": ("SUCCEEDED", None),
        f"{handle}/1": ("FAILED", "exit code 1"),
        f"{handle}/2": ("FAILED", "exit code 2"),
    }
    for k, line in enumerate(tasks):
        before = [other["state"] for other in tasks[:k] if other["handle"] == line["handle"]]
        assert line["was"] in ({None, "PENDING"} if not before else {before[-1]})


def test_the_live_page(torchx: Call, project: Path) -> None:
    """The live page shows a bar, progress, pace and time left, and finally the causes."""
    gate = project / "gate"
    script = f"[ {{n}} -lt 4 ] || while [ ! -e {gate} ]; do sleep 0.05; done; test {{n}} != 3"
    torchx("sweep", "--max-parallel", "2", "--grid", "n=0..9", "utils.sh", script)
    child = spawn(project, "status", "-w", "@last")
    child.expect(r"progress: .*━.* \d+ %")
    child.expect(r"4 of 10 ended")
    child.expect(r"pace: .*(/s|/min), about .* left, at most 2 at a time")
    gate.touch()
    child.expect(r"10 of 10 ended")
    child.expect(r"1  error +exit code 1\s+task 3 \(n=3\)")
    end(child)


def test_cancel(torchx: Call, project: Path) -> None:
    """Cancelling works for a task and for the whole sweep, including tasks that have not started."""
    assert torchx("sweep", "--max-parallel", "1", "--grid", "t=0..9", "utils.sh", "sleep 100{t}").code == 0
    assert torchx("cancel", "@last/9").code == 0
    assert torchx("wait", "@last/9").code == 1
    assert json.loads(torchx("status", "@last/9", "--json").out)["state"] == "CANCELLED"
    assert torchx("cancel", "@last").code == 0
    assert torchx("wait", "@last").code == 1
    assert json.loads(torchx("status", "@last", "--json").out)["tasks"]["counts"] == {"CANCELLED": 10}


def test_retry_of_those_that_failed(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new sweep has the values of the failed tasks, also in their environment; it is an error if all succeeded."""
    fails_once = "echo {n} $VALUE; test {n} = 0 -o -e {n} || { touch {n}; exit 1; }"
    first = launch(torchx, "--grid", "n=0..2", "utils.sh", "--env", "VALUE=v{n}", fails_once)
    outcome = torchx("sweep", "--retry-failed", first)
    assert outcome.code == 0, outcome.err
    second = outcome.out.strip().rpartition("/")[2]
    assert torchx("wait", second).code == 0
    assert torchx("log", second).out == "sh/0 1 v1\nsh/1 2 v2\n"
    refused = torchx("sweep", "--retry-failed", second)
    assert (refused.code, refused.error_lines()) == (
        3,
        [f"torchx: error: no task of `local_cwd://torchx/{second}` has failed"],
    )


@pytest.mark.parametrize(("recorded", "given", "packed"), [(3, [], 3), (3, ["--pack", "1"], 1), (None, [], 1)])
def test_retry_packs_as_the_sweep_did(
    recorded: int | None, given: list[str], packed: int, torchx: Call, project: Path
) -> None:
    """Unless `--pack` is given again; an earlier version did not record it. Here, no task shares an element."""
    app_id = launch(torchx, "--grid", "n=0..2", "utils.sh", "exit {n}")
    assert torchx("wait", app_id).code == 1
    tag = [["n"], 0] if recorded is None else [["n"], 0, recorded]
    with closing(sqlite3.connect(torchx_home("runs.db"))) as db, db:
        db.execute("UPDATE specs SET tags = json_set(tags, '$.sweep', ?)", (json.dumps(tag),))
    retried = torchx("sweep", "--retry-failed", app_id, *given)
    assert ("runs each task by itself" in retried.err) == (packed > 1)
    assert torchx("sweep", "--retry-failed", app_id, "--pack", "0").error_lines() == [
        "torchx: error: `--pack 0` leaves no task in an element"
    ]


def test_retry_of_a_sweep_that_its_scheduler_has_forgotten(torchx: Call, project: Path) -> None:
    """The error says why: nobody knows which tasks failed."""
    app_id = launch(torchx, "--grid", "n=0..2", "utils.sh", "exit {n}")
    shutil.rmtree(torchx_home("local"))
    refused = torchx("sweep", "--retry-failed", app_id)
    (line,) = refused.error_lines()
    assert (refused.code, "are not known" in line, "no longer knows this job" in line) == (3, True, True)


def test_values_arrive_exactly(torchx: Call, project: Path) -> None:
    """Commas, quotes, blanks, braces, newlines, Unicode and shell syntax reach the task unchanged."""
    values = ["a,b", "x \"y\" 'z'", "$HOME `id` $(id)", "{lr} {{lr}}", "two\nlines", "größe 日本", "-x", "", "a\\b"]
    Path("p.jsonl").write_text("".join(json.dumps({"v": v}) + "\n" for v in values))
    Path("show.py").write_text("import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['TORCHX_TASK']]))")
    app_id = launch(torchx, "--from", "p.jsonl", "utils.python", "--script", "show.py", "--", "{v}", "{{v}}")
    for k, value in enumerate(values):
        assert json.loads(torchx("log", "--no-prefix", f"{app_id}/{k}").out) == [[value, "{v}"], str(k)], value


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--grid", "lr=1", "utils.sh", "echo {seed}"], "`{seed}` in `"),
        (["utils.sh", "echo"], "the sweep has no tasks"),
        (["--grid", "lr=1", "--max-parallel", "0", "utils.sh", "echo"], "`--max-parallel 0`"),
        (["--grid", "lr=0..9999999", "utils.sh", "echo"], "10,000,000 tasks"),
        (["--grid", "api_token=a,b", "utils.sh", "echo"], "the name of a credential"),
        (["--grid", "lr=1", "-s", "nosuch", "utils.sh", "echo"], "`nosuch`"),
        (["--grid", "lr=1", "--pack", "0", "utils.sh", "echo"], "`--pack 0`"),
        (["--grid", "lr=1", "--pack", "2", "--dryrun", "utils.sh", "{lr}"], "`local_cwd` runs each task by itself"),
        (["--retry-failed", "@last", "--grid", "lr=1"], "`--retry-failed` takes"),
        (["--from", "nul.jsonl", "utils.echo", "--msg", "{v}"], "'a\\x00b' of `v`, of task 1, cannot be passed"),
        (["--grid", "v=1,it's", "dist.ddp", "-j", "1x1", "-m", "x", "--", "{v}"], "`it's` of `v` contains a `'`"),
    ],
    ids=[
        "placeholder",
        "no values",
        "no room",
        "too many",
        "credential",
        "scheduler",
        "pack",
        "packs",
        "both",
        "nul",
        "quote",
    ],
)
def test_what_is_refused(torchx: Call, project: Path, argv: list[str], said: str) -> None:
    """Each mistake is one line, before anything is submitted."""
    Path("nul.jsonl").write_text('{"v": "a"}\n{"v": "a\\u0000b"}\n')
    outcome = torchx("sweep", *argv)
    assert outcome.code != 0
    assert said in "\n".join(outcome.error_lines())
    assert not default_registry().list()


def test_a_dry_run(torchx: Call, project: Path) -> None:
    """The dry run shows the request with its placeholders and the number of tasks, and submits nothing."""
    outcome = torchx("sweep", "--dryrun", *GRID, "utils.sh", TASK)
    assert outcome.code == 0
    assert "lr={lr} seed={seed}" in outcome.out
    assert "4 tasks; the first: lr=1e-4, seed=0; the last: lr=3e-4, seed=1" in outcome.err
    assert not default_registry().list()


def test_delete(torchx: Call, project: Path) -> None:
    """Deleting removes the sweep's files and rows; a single task cannot be deleted."""
    app_id = launch(torchx, *GRID, "utils.sh", TASK)
    run = default_registry().find(app_id)
    assert torchx("delete", f"{app_id}/1").code != 0
    assert torchx("delete", app_id).code == 0
    assert not os.path.exists(torchx_home("local", "torchx", app_id))
    tasks = default_registry().tasks(run)
    assert tasks is not None
    assert not tasks.points


def test_after_another_job(torchx: Call, project: Path) -> None:
    """No scheduler delays a sweep; with `--after wait` the command waits, but not in a dry run."""
    torchx("run", "utils.sh", "exit 3")
    argv = ("--after", "@last:fail", *GRID, "utils.sh", TASK)
    refused = torchx("sweep", *argv)
    assert (refused.code, refused.hint()) == (5, "`--after wait` as well: then this command waits for it")
    assert torchx("sweep", "--dryrun", "--after", "wait", *argv).code == 0
    outcome = torchx("sweep", "--after", "wait", *argv)
    assert outcome.code == 0
    assert "Waiting for local_cwd://" in outcome.err
    assert len(runs(torchx)) == 2
