"""`torchx watch`: a line for each change, for people, for pipes and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pexpect
import pytest

from .conftest import Call, end, spawn, state, until
from .test_json import load


def test_jobs_until_they_have_ended(torchx: Call, project: Path) -> None:
    """In a pipe, a line has time, handle, old state, new state and message; the watch ends with the last job."""
    torchx("run", "utils.sh", "--", "sleep 0.3; exit 3")
    torchx("run", "utils.echo")
    outcome = torchx("watch", "@sh", "@echo")
    lines = [line.split("\t") for line in outcome.out.splitlines()]
    assert (outcome.code, outcome.err, {len(line) for line in lines}) == (0, "", {5})
    ends = {line[1].rpartition("/")[2][:2]: line[3:] for line in lines}
    assert ends == {"sh": ["FAILED", "sh/0: exit code 3"], "ec": ["SUCCEEDED", ""]}
    for number, line in enumerate(lines):
        before = [other[3] for other in lines[:number] if other[1] == line[1]]
        assert line[2] in ("", *before), "the state before was seen before"


def test_for_programs(torchx: Call, project: Path) -> None:
    """Each line is a JSON document that matches its schema."""
    torchx("run", "utils.sh", "--", "sleep 0.3; exit 3")
    outcome = torchx("watch", "--json", "@last")
    documents: list[dict[str, Any]] = [json.loads(line) for line in outcome.out.splitlines()]
    for document in documents:
        jsonschema.validate(document, load("watch"))
    assert (documents[0]["was"], documents[-1]["state"], documents[-1]["msg"]) == (None, "FAILED", "sh/0: exit code 3")


def test_all_runs_in_a_terminal(torchx: Call, project: Path) -> None:
    """New runs appear with the time of day; Ctrl-C ends the watch and no job."""
    child = spawn(project, "watch")
    child.expect("watching all runs; Ctrl-C stops, the jobs continue")
    handle = torchx("run", "utils.sh", "sleep", "600").out.strip()
    child.expect(rf"\d\d:\d\d:\d\d.*{handle}.*RUNNING")
    child.sendintr()
    assert end(child) == 130
    assert state(torchx) == "RUNNING"
    torchx("cancel", "@last")


def test_wrong_usage(torchx: Call, project: Path) -> None:
    """`--mine` with named jobs, and an unknown job, are errors."""
    torchx("run", "--wait", "utils.echo")
    assert torchx("watch", "--mine", "@last").code == 2
    outcome = torchx("watch", "nobody")
    assert (outcome.code, "`nobody`" in outcome.err) == (3, True)


class Screen:
    """A terminal that supports only the sequences of `status -w`; others are an error."""

    def __init__(self) -> None:
        self.lines = [""]
        self.row = 0
        self.hidden = False
        self.at_start = True

    def feed(self, text: str) -> None:
        for part in re.split(r"(\x1b\[[?0-9;]*[A-Za-z]|[\r\n])", text):
            self.at_start = self.at_start or part in ("\r", "\n")
            if part == "\n":
                self.row += 1
                self.lines += [""] * (self.row == len(self.lines))
            elif part == "\x1b[J":
                del self.lines[self.row + 1 :]
                self.lines[self.row] = "" if self.at_start else self.lines[self.row]
            elif part.startswith("\x1b") and part.endswith("A"):
                self.row -= int(part[2:-1])
                assert self.row >= 0, "above the screen"
            elif part in ("\x1b[?25l", "\x1b[?25h"):
                self.hidden = part.endswith("l")
            elif part.startswith("\x1b"):
                assert part == "\x1b[K" or part.endswith("m"), repr(part)
            elif part.strip("\r\n"):
                self.lines[self.row] = part if self.at_start else self.lines[self.row] + part
                self.at_start = False


# -- status -w -------------------------------------------------------------------------------------


def test_a_live_page(torchx: Call, project: Path) -> None:
    """The page is rewritten in place, in one write; at the end it is printed once, and the cursor is visible."""
    torchx("run", "utils.sh", "--", "touch up; while [ ! -e go ]; do sleep 0.05; done; exit 3")
    child = spawn(project, "status", "-w", "--exit-code", "@last")
    child.expect(r"app: .*\r\n.*RUNNING.*live · Ctrl-C stops, the job continues\x1b\[0m\x1b\[K\x1b\[J")
    seen = child.before + child.after
    (project / "go").touch()
    child.expect(pexpect.EOF)
    seen += child.before
    child.wait()
    child.close()
    assert child.exitstatus == 1
    screen = Screen()
    screen.feed(seen)
    shown = [line for line in screen.lines if line]
    assert [line.split()[0] for line in shown].count("app:") == 1
    assert any(line.startswith("cause:    sh/0: exit code 3") for line in shown)
    assert not any("live" in line for line in shown)
    assert not screen.hidden


def test_ctrl_c_leaves_the_live_page(torchx: Call, project: Path) -> None:
    """The last page stays, the cursor is visible, and the job continues."""
    torchx("run", "utils.sh", "sleep", "600")
    until(lambda: state(torchx) == "RUNNING")
    child = spawn(project, "status", "-w", "@last")
    child.expect("live")
    child.sendintr()
    child.expect(pexpect.EOF)
    assert child.before.endswith("\x1b[?25h")
    child.wait()
    child.close()
    assert child.exitstatus == 130
    assert state(torchx) == "RUNNING"
    torchx("cancel", "@last")


def test_a_live_page_in_a_pipe(torchx: Call, project: Path) -> None:
    """Prints a line per change, then the page; with `--json` only the document at the end."""
    torchx("run", "utils.sh", "--", "sleep 0.3; exit 3")
    outcome = torchx("status", "-w", "@last")
    changes = [line for line in outcome.out.splitlines() if "\t" in line]
    assert (outcome.code, changes[-1].split("\t")[3:]) == (0, ["FAILED", "sh/0: exit code 3"])
    assert "state:    FAILED" in outcome.out
    assert "\x1b" not in outcome.out
    torchx("run", "utils.sh", "--", "sleep 0.3; exit 3")
    outcome = torchx("status", "-w", "--exit-code", "--json", "@last")
    assert (outcome.code, json.loads(outcome.out)["state"]) == (1, "FAILED")


def test_a_page_that_is_too_high(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is cut to the height of the terminal."""
    from torchx.cli import live_status

    monkeypatch.setattr(live_status, "_height", lambda: 6)
    monkeypatch.setenv("COLUMNS", "20")
    screen = Screen()
    with live_status._Screen() as live:
        for n in (20, 3, 6, 7):
            live.show("\n".join([f"{n} line {k} {'x' * 40}" for k in range(n - 1)] + ["foot"]))
            screen.feed(capsys.readouterr().out)
            assert len(screen.lines) == min(n, 6)
            assert (screen.lines[0], screen.lines[-1]) == (f"{n} line 0 {'x' * 30}"[:19] + "…", "foot")
    screen.feed(capsys.readouterr().out)
    assert screen.lines == [""]
