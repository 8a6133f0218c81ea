"""The verbs that show and end jobs: list, status, describe, cancel, delete, runopts, builtins, configure, plugins."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchx.cli import cmd_list, render
from torchx.cli.cmd_list import HANDLE_HEADER, NAME_HEADER, STATUS_HEADER
from torchx.cli.cmd_status import parse_list_arg
from torchx.specs import AppDef, AppState, Role
from torchx.specs.failures import Failure
from torchx.util.datetime import duration
from torchx.util.term import iso

from .conftest import HELLO, Call


class Tty(io.StringIO):
    """A terminal to write to."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def jobs(torchx: Call, project: Path, paper: Any) -> dict[str, str]:
    """Three runs on record, oldest first, as name to handle."""
    handles = {}
    for name, state in (("sh", AppState.FAILED), ("echo", AppState.RUNNING), ("touch", AppState.SUCCEEDED)):
        argv = {"sh": ["--", "ls"], "echo": [], "touch": ["--file", "x"]}[name]
        handle = torchx("run", "-s", "paper", f"utils.{name}", *argv).out.strip()
        paper.STATES[handle.rpartition("/")[2]] = state
        handles[name] = handle
    return handles


def rows(text: str) -> list[list[str]]:
    """Returns the cells of a table printed to a pipe, without the headers."""
    return [line.split("\t") for line in text.splitlines()[1:]]


def test_list_without_a_terminal(torchx: Call, jobs: dict[str, str]) -> None:
    """Runs are listed newest first, separated by tabs, with their current states."""
    out = torchx("list").out
    assert out.splitlines()[0].split("\t")[:3] == [HANDLE_HEADER, NAME_HEADER, STATUS_HEADER]
    assert [row[:3] for row in rows(out)] == [
        [jobs["touch"], "touch", "SUCCEEDED"],
        [jobs["echo"], "echo", "RUNNING"],
        [jobs["sh"], "sh", "FAILED"],
    ]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--state", "failed"], ["sh"]),
        (["--state", "FAILED,running"], ["echo", "sh"]),
        (["--name", "echo"], ["echo"]),
        (["--name", "*h*"], ["touch", "echo", "sh"]),
        (["--limit", "1"], ["touch"]),
        (["--limit", "0"], ["touch", "echo", "sh"]),
        (["--all"], ["touch", "echo", "sh"]),
        (["--limit", "1", "--all"], ["touch", "echo", "sh"]),
        (["--state", "failed,running", "--limit", "1"], ["echo"]),
        (["--since", "1h"], ["touch", "echo", "sh"]),
        (["--since", "2099-01-01"], []),
        (["--mine"], ["touch", "echo", "sh"]),
        (["-s", "paper", "--state", "running"], ["echo"]),
        (["-s", "paper", "-cfg", "queue=x", "--name", "s*"], ["sh"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("-") else None,
)
def test_list_filters(torchx: Call, jobs: dict[str, str], options: list[str], names: list[str]) -> None:
    """Each filter selects runs; `-s` asks the scheduler."""
    outcome = torchx("list", *options)
    assert outcome.code == 0
    assert [row[1] for row in rows(outcome.out)] == names


def test_list_of_one_scheduler(torchx: Call, jobs: dict[str, str], paper: Any) -> None:
    """`-s` lists all jobs of the scheduler, whoever launched them."""
    paper.JOBS["stranger"] = AppDef("stranger", [])
    paper.STATES["stranger"] = AppState.PENDING
    found = {row[0]: row[2] for row in rows(torchx("list", "-s", "paper").out)}
    assert found["paper://torchx/stranger"] == "PENDING"
    assert set(jobs.values()) < set(found)


@pytest.mark.parametrize(
    ("options", "shown", "limit"),
    [
        ([], 2, 2),
        (["--mine"], 2, 2),
        (["--limit", "1"], 1, 1),
        (["--limit", "3"], 3, 3),
        (["--all"], 3, None),
        (["--limit", "0"], 3, None),
        (["--state", "failed,running,succeeded"], 3, None),
        (["--name", "*h*"], 3, None),
        (["--since", "1h"], 3, None),
        (["--since", "1h", "--limit", "2"], 2, 2),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else None,
)
def test_list_is_short_unless_told_otherwise(
    torchx: Call, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch, options: list[str], shown: int, limit: Any
) -> None:
    """Lists the newest few, or all that a filter selects. The document has the limit, and whether there are more."""
    monkeypatch.setattr(cmd_list, "_DEFAULT_LIMIT", 2)
    document = json.loads(torchx("list", "--json", *options).out)
    assert [run["name"] for run in document["runs"]] == ["touch", "echo", "sh"][:shown]
    assert (document["more"], document["limit"]) == (shown < 3, limit)
    outcome = torchx("list", *options)
    assert [row[1] for row in rows(outcome.out)] == ["touch", "echo", "sh"][:shown]
    asked_for = "--limit" in options or shown == 3
    assert ("only the newest 2 runs are shown: --all" in outcome.err) is not asked_for


def test_list_of_a_scheduler_is_whole(torchx: Call, jobs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`-s` has no default limit, because programs rely on that."""
    monkeypatch.setattr(cmd_list, "_DEFAULT_LIMIT", 1)
    outcome = torchx("list", "-s", "paper")
    assert len(rows(outcome.out)) == 3
    assert outcome.err == ""


@pytest.mark.parametrize(("columns", "fits"), [(200, True), (60, False)], ids=["wide", "narrow"])
def test_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, fits: bool) -> None:
    """Columns are aligned; on a narrow terminal columns are cut, but never a handle."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", out := Tty())
    handle, name = "local_cwd://torchx/echo-bcdfgh", "a-rather-long-name-of-a-job"
    render.table(["HANDLE", "NAME", "STATE"], [[handle, name, "FAILED"], ["x", "y", "RUNNING"]], shrink=[1])
    header, first, second = out.getvalue().splitlines()
    assert handle in first
    assert (name in first) == fits
    assert first.index("FAILED") == second.index("RUNNING") == header.index("STATE")
    assert max(map(len, (header, first, second))) <= columns


def test_a_table_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that ends after the first line, as `head -1` does, breaks no pipe, also with PYTHONUNBUFFERED=1."""
    writes: list[str] = []
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    monkeypatch.setattr(out, "write", writes.append, raising=False)
    render.table(["N", "S"], [["a", "FAILED"]])
    assert writes == ["N\tS\na\tFAILED\n"]


def test_table_has_colors_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """States are coloured without breaking the alignment; control sequences are escaped."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out := Tty())
    render.table(["N", "S"], [["a\x1b[2J", "FAILED"], ["b", "RUNNING"]], state_column=1)
    assert "\x1b[31mFAILED\x1b[0m" in out.getvalue()
    assert "\x1b[2J" not in out.getvalue()


def test_list_on_a_narrow_terminal(torchx: Call, project: Path, paper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """App ids replace handles if lines would wrap."""
    handle = torchx("run", "-s", "paper", "utils.echo").out.strip()
    for module in ("torchx.cli.cmd_list", "torchx.cli.render"):
        monkeypatch.setattr(f"{module}.is_tty", lambda stream: True)
    for columns, shown in ((100, handle), (58, handle.rpartition("/")[2])):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = torchx("list").out.splitlines()
        assert lines[1].split()[0] == shown
        assert max(map(len, lines)) <= columns


def test_status_page(torchx: Call, jobs: dict[str, str], paper: Any) -> None:
    """Shows state, cause, replicas by role, and launch time; exit code 0 although the job failed."""
    app_id = jobs["sh"].rpartition("/")[2]
    paper.ERRORS[app_id] = Failure("RuntimeError: boom", exit_code=1, timestamp=1.0).to_structured_msg()
    outcome = torchx("status", app_id)
    assert outcome.code == 0
    page = outcome.out
    assert page.splitlines()[0] == f"app:      {jobs['sh']}"
    assert "launched: " in page
    for part in ("FAILED", "RuntimeError: boom", "sh: 1 FAILED"):
        assert part in page


def test_status_folds_many_replicas(torchx: Call, paper: Any) -> None:
    """A thousand replicas are one line."""
    paper.JOBS["big"] = AppDef("big", [Role("worker", "img", num_replicas=1000)])
    paper.STATES["big"] = AppState.RUNNING
    page = torchx("status", "paper://torchx/big").out
    assert "1000 RUNNING" in page
    assert page.count("\n") < 20


def test_status_of_some_roles(torchx: Call, paper: Any) -> None:
    """`--roles` selects roles."""
    paper.JOBS["two"] = AppDef("two", [Role("reader", "img"), Role("trainer", "img")])
    paper.STATES["two"] = AppState.RUNNING
    page = torchx("status", "--roles", "reader", "paper://torchx/two").out
    assert "reader" in page
    assert "trainer" not in page
    assert (parse_list_arg("a,b"), parse_list_arg(" a , "), parse_list_arg("")) == (["a", "b"], ["a"], None)


def test_status_of_a_job_that_its_scheduler_forgot(torchx: Call, jobs: dict[str, str], paper: Any) -> None:
    """The recorded state is shown."""
    torchx("status", jobs["touch"])
    paper.JOBS.clear()
    outcome = torchx("status", jobs["touch"])
    assert outcome.code == 0
    assert "SUCCEEDED" in outcome.out


def test_short_references(torchx: Call, jobs: dict[str, str]) -> None:
    """`@last`, an app id and a prefix of one work."""
    for reference in ("@last", jobs["touch"].rpartition("/")[2], "tou"):
        assert torchx("status", reference).out.splitlines()[0] == f"app:      {jobs['touch']}"


def test_describe_page(torchx: Call, jobs: dict[str, str]) -> None:
    """Shows roles, command, options with their source, and who launched the job where."""
    page = torchx("describe", jobs["sh"]).out
    for part in ("app sh", "role sh", "ls", "options of paper", "queue", "main", "(default)", "launched:", "in:"):
        assert part in page


def test_cancel_and_delete(torchx: Call, jobs: dict[str, str], paper: Any) -> None:
    """Works for several jobs; repeating it is not an error; an unknown job does not stop the others."""
    assert torchx("cancel", jobs["echo"], jobs["echo"]) == (0, "", "")
    assert torchx("cancel", jobs["echo"]).code == 0
    assert torchx("list", "--name", "echo").out.count("CANCELLED") == 1
    outcome = torchx("cancel", "no-such-job", "@last")
    assert outcome.code == 3
    assert "`no-such-job`" in outcome.err
    assert jobs["touch"].rpartition("/")[2] in paper.CANCELLED
    assert torchx("delete", jobs["echo"], "@last").code == 0
    assert [row[0] for row in rows(torchx("list").out)] == [jobs["sh"]]
    assert torchx("delete", jobs["echo"]).code == 3


def test_runopts(torchx: Call, paper: Any) -> None:
    """Lists options with type and default, of all schedulers or of one."""
    one = torchx("runopts", "paper").out
    assert "queue=QUEUE (str, main)" in one
    assert "local_cwd" not in one
    both = torchx("runopts").out
    assert "paper:" in both
    assert "local_cwd:" in both


def test_runopts_of_a_broken_scheduler(torchx: Call, install_plugin: Callable[..., None]) -> None:
    """A scheduler that cannot be loaded is a warning, or an error if it is named."""
    install_plugin("bad_sched", {"torchx.schedulers": ["bad = bad_sched:create"]}, "raise ValueError('boom')\n")
    outcome = torchx("runopts")
    assert outcome.code == 0
    assert "local_cwd:" in outcome.out
    assert "`bad`" in outcome.err
    assert torchx("runopts", "bad").code == 6


def test_builtins(torchx: Call, project: Path) -> None:
    """Lists names with their first sentence; `--print` writes a file that works as a component."""
    listed = {line.partition("\t")[0]: line.partition("\t")[2] for line in torchx("builtins").out.splitlines()}
    assert {"dist.ddp", "utils.echo"} <= set(listed)
    assert all(listed.values())
    (project / "copy.py").write_text(torchx("builtins", "--print", "utils.echo").out)
    assert torchx("run", "--wait", "copy.py:echo", "--msg", "hi").code == 0


def test_configure(torchx: Call, project: Path) -> None:
    """The written file is valid; `--print` writes none, `--force` replaces one."""
    assert "[local_cwd]" in torchx("configure", "--print", "--all").out
    assert list(project.iterdir()) == []
    assert torchx("configure", "--all").out == f"{project / '.torchxconfig'}\n"
    text = (project / ".torchxconfig").read_text()
    assert "prepend_cwd = False" in text
    (project / ".torchxconfig").write_text("old\n")
    assert torchx("configure", "--all", "--force", "-s", "local_cwd").code == 0
    assert "[local_cwd]" in (project / ".torchxconfig").read_text()
    assert torchx("run", "--dryrun", "utils.echo").code == 0


def test_plugins(torchx: Call, install_plugin: Callable[..., None]) -> None:
    """Lists plugins, their packages, and why one failed."""
    rows_of = {"torchx.cli.cmds": ["hello = my_tool:Hello", "gone = my_tool:Gone"]}
    install_plugin("my_tool", rows_of, HELLO)
    found = {row[1]: row for row in rows(torchx("plugins").out)}
    assert found["hello"][:4] == ["command", "hello", "ok", "my_tool 1.2"]
    assert found["gone"][2] == "failed"
    assert "Gone" in found["gone"][5]


def test_plugins_on_a_terminal(torchx: Call, install_plugin: Callable[..., None], monkeypatch: Any) -> None:
    """On a narrow terminal, the reason of a failure is complete, with the location of the plugin."""
    install_plugin(
        "my_tool", {"torchx.named_resources": ["gone = my_tool"]}, f"raise RuntimeError('{'no ' * 40}server')"
    )
    monkeypatch.setattr("torchx.cli.cmd_plugins.is_tty", lambda stream: True)
    monkeypatch.setattr("torchx.cli.render.is_tty", lambda stream: True)
    monkeypatch.setenv("COLUMNS", "60")
    out = torchx("plugins").out
    reason = next(line for line in out.splitlines() if line.startswith("named resource gone: "))
    assert f"RuntimeError: {'no ' * 40}server (" in reason
    assert "my_tool-1.2.dist-info" in reason


def test_a_broken_scheduler_does_not_break_configure(
    torchx: Call, install_plugin: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """A scheduler that cannot be loaded is a warning, or an error if it is named."""
    install_plugin("bad_pkg", {"torchx.schedulers": ["bad = bad_pkg:create"]}, "1 / 0")
    outcome = torchx("configure", "--all", "--print")
    assert outcome.code == 0
    assert "[local_cwd]" in outcome.out
    assert "[bad]" not in outcome.out
    assert "scheduler `bad`" in caplog.text
    assert torchx("configure", "--print", "-s", "bad").code == 6


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0.0 s"),
        (0.04, "0.0 s"),
        (9.99, "10.0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (86400 * 2, "2 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    """A duration is shown in its largest units; a negative one is 0."""
    assert duration(seconds) == text


def test_times_are_utc() -> None:
    """Programs get UTC, rounded to the millisecond."""
    assert iso(1795248000.9996) == "2026-11-21T08:00:01.000Z"
    assert iso(None) is None


def test_json_of_odd_bytes() -> None:
    """Bytes that are not UTF-8 are escaped; other text stays readable."""
    assert render.document({"a": "é"}) == '{"a": "é"}'
    assert json.loads(render.document({"a": "\udcff"})) == {"a": "\udcff"}
    render.document({"a": "\udcff"}).encode()
