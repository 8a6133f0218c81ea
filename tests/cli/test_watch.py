"""`torchx watch`: a line for each change, for people, for pipes and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pexpect

from .conftest import Call
from .test_cmd_run import spawn
from .test_json import load


def test_jobs_until_they_have_ended(torchx: Call, project: Path) -> None:
    """In a pipe: time, handle, state before, state now, why, between tabs; the last line is the last job's end."""
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
    """A JSON document on each line, as the page describes it."""
    torchx("run", "utils.sh", "--", "sleep 0.3; exit 3")
    outcome = torchx("watch", "--json", "@last")
    documents: list[dict[str, Any]] = [json.loads(line) for line in outcome.out.splitlines()]
    for document in documents:
        jsonschema.validate(document, load("watch"))
    assert (documents[0]["was"], documents[-1]["state"], documents[-1]["msg"]) == (None, "FAILED", "sh/0: exit code 3")


def test_all_runs_in_a_terminal(torchx: Call, project: Path) -> None:
    """Runs that come are seen, with a clock; Ctrl-C ends the watch and no job."""
    child = spawn(project, "watch")
    child.expect("changes of all runs, as they are seen; Ctrl-C ends this, the jobs go on")
    handle = torchx("run", "utils.sh", "sleep", "600").out.strip()
    child.expect(rf"\d\d:\d\d:\d\d.*{handle}.*RUNNING")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    assert child.exitstatus == 130
    assert json.loads(torchx("status", "@last", "--json").out)["state"] == "RUNNING"
    torchx("cancel", "@last")


def test_wrong_usage(torchx: Call, project: Path) -> None:
    """Named jobs are not chosen among; a job that is not there is named."""
    torchx("run", "--wait", "utils.echo")
    assert torchx("watch", "--mine", "@last").code == 2
    outcome = torchx("watch", "nobody")
    assert (outcome.code, "`nobody`" in outcome.err) == (3, True)
