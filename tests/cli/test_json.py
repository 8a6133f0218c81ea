"""The JSON documents: each verb's fits its schema, and the page that describes them names every key."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import torchx.cli

from .conftest import HELLO, Call, runs

SCHEMAS = Path(torchx.cli.__file__).parent / "schemas"
DOCS = Path(__file__).parents[2] / "docs"


def load(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    return schema


def check(name: str, text: str) -> Any:
    """Validates ``text`` against its schema, and returns the document."""
    assert text.count("\n") == 1, "one document, on one line"
    document = json.loads(text)
    jsonschema.validate(document, load(name))
    return document


def test_a_launch(torchx: Call, project: Path) -> None:
    """`run --json` names the job; stdout has nothing else."""
    outcome = torchx("run", "--json", "utils.echo", "--msg", "hi")
    document = check("run", outcome.out)
    assert document["handle"] == f"local_cwd://torchx/{document['app_id']}"
    assert torchx("run", "--json", "--wait", "utils.echo").code == 0


def test_a_job_that_failed(torchx: Call, project: Path) -> None:
    """`run --wait --json` of a failed job prints its status and exits with 1; `status`, `list` and `describe` agree."""
    outcome = torchx("run", "--wait", "--json", "utils.sh", "--", "echo why >&2; exit 3")
    document = check("run-wait", outcome.out)
    assert outcome.code == 1
    assert (document["state"], document["cause"]["role"], document["cause"]["replica"]) == ("FAILED", "sh", 0)
    assert document["cause"]["error"]["exit_code"] == 3

    status = check("status", torchx("status", "@last", "--json").out)
    assert {key: status[key] for key in document} == document

    runs = check("list", torchx("list", "--json").out)
    assert [run["handle"] for run in runs["runs"]] == [document["handle"]]
    assert runs["runs"][0]["state"] == "FAILED"
    assert runs["more"] is False

    jobs = check("list-scheduler", torchx("list", "-s", "local_cwd", "--json").out)
    assert [(job["handle"], job["state"]) for job in jobs["jobs"]] == [(document["handle"], "FAILED")]

    described = check("describe", torchx("describe", "@last", "--json").out)
    assert described["run"]["handle"] == document["handle"]
    assert described["app"]["roles"][0]["name"] == "sh"

    lines = torchx("log", "@last", "--json").out.splitlines()
    assert [check("log", line + "\n") for line in lines] == [{"role": "sh", "replica": 0, "line": "why"}]


def test_what_is_free(torchx: Call) -> None:
    """`nodes --json` of this machine, with and without a size."""
    assert check("nodes", torchx("nodes", "--json").out)["pools"][0]["fitting"] == -1
    assert check("nodes", torchx("nodes", "--cpu", "1", "--json").out)["pools"][0]["usable"] == 1


def test_status_of_some_roles(torchx: Call, paper: Any) -> None:
    """With `--roles` the document has only these roles."""
    from torchx.specs import AppDef, AppState, Role

    paper.JOBS["two"] = AppDef("two", [Role("a", "img"), Role("b", "img")])
    paper.STATES["two"] = AppState.RUNNING
    document = check("status", torchx("status", "paper://torchx/two", "--roles", "b", "--json").out)
    assert [role["role"] for role in document["roles"]] == ["b"]
    assert document["created_at"] is None


def test_status_of_a_job_whose_scheduler_is_down(
    torchx: Call, paper: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows the last recorded state and the error; exit code 4 unless the state is final."""
    from torchx.errors import BackendError
    from torchx.specs import AppState

    def down(self: object, app_id: str) -> None:
        raise BackendError("nobody answers")

    def job(state: AppState) -> str:
        handle = torchx("run", "-s", "paper", "utils.echo").out.split()[-1]
        paper.STATES[handle.rpartition("/")[2]] = state
        torchx("status", handle)
        return handle

    going, over = job(AppState.RUNNING), job(AppState.FAILED)
    monkeypatch.setattr(paper.Paper, "describe", down)
    outcome = torchx("status", going, "--json")
    document = check("status", outcome.out)
    assert (outcome.code, document["state"], document["scheduler_error"]) == (4, "RUNNING", "nobody answers")
    assert document["as_of"] is not None
    page = torchx("status", going)
    assert page.code == 4
    assert "message:  last seen RUNNING" in page.out
    final = torchx("status", over, "--json")
    assert (final.code, check("status", final.out)["state"]) == (0, "FAILED")
    stranger = torchx("status", "paper://torchx/never-seen")
    assert (stranger.code, stranger.out) == (4, "")


def test_a_dryrun(torchx: Call, project: Path) -> None:
    """`run --dryrun --json` has the AppDef and each option with its source; nothing is launched."""
    outcome = torchx("run", "--dryrun", "--json", "-cfg", "prepend_cwd=true", "utils.echo", "--msg", "hi")
    document = check("run-dryrun", outcome.out)
    assert document["app"]["roles"][0]["args"] == ["hi"]
    assert document["cfg"]["prepend_cwd"] == {"value": True, "source": "-cfg"}
    assert document["cfg"]["log_dir"]["source"] == "default"
    assert runs(torchx) == []


def test_what_there_is(torchx: Call, install_plugin: Callable[..., None]) -> None:
    """`runopts`, `builtins` and `plugins` list what is installed."""
    rows = {"torchx.cli.cmds": ["hello = my_tool:Hello", "gone = my_tool:Gone"]}
    install_plugin("my_tool", rows, HELLO)
    assert "local_cwd" in check("runopts", torchx("runopts", "--json").out)["schedulers"]
    names = [c["name"] for c in check("builtins", torchx("builtins", "--json").out)["components"]]
    assert {"dist.ddp", "utils.echo"} <= set(names)
    found = {p["name"]: p["status"] for p in check("plugins", torchx("plugins", "--json").out)["plugins"]}
    assert (found["hello"], found["gone"]) == ("ok", "failed")


def test_the_page_explains_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/cli-json.md has each document with each key; a key without an explanation fails."""
    monkeypatch.syspath_prepend(str(DOCS))
    documents = importlib.import_module("_site.documents")
    sections = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", documents.page(), re.M | re.S))
    for path in SCHEMAS.glob("*.json"):
        shown = sections[documents.DOCUMENTS[path.stem]] + sections[documents.DOCUMENTS["status"]]
        missing = [key for key in _keys(load(path.stem).get("properties")) if not re.search(rf"[`.]{key}`", shown)]
        assert missing == [], path.stem
    with pytest.raises(ValueError, match=r"the key `new` of status\.json"):
        documents.meaning("status", "new")


def _keys(properties: Any) -> list[str]:
    return list(properties or {})
