"""``torchx why`` and ``torchx adopt``: jobs that torchx did not launch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.test_json import check

STRANGERS = '''
"""A scheduler on paper that knows a job of somebody else."""
from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.kit.foreign import ForeignJobs, Named
from torchx.specs import AppState, ReplicaStatus, RoleStatus
from torchx.specs.failures import Failure

ENDED = []

class Paper(Scheduler):
    def _submit_dryrun(self, app, cfg): raise NotImplementedError
    def schedule(self, info): raise NotImplementedError
    def describe(self, app_id): return None
    def list(self, cfg=None): return []
    def _cancel_existing(self, app_id): ENDED.append(app_id)
    def foreign(self): return View("strangers", self.session_name)

class View(ForeignJobs, Paper):
    def find(self, reference):
        return Named(reference) if reference == "x4711" else None
    def about(self, app_id):
        return {"name": "my train", "user": "ann", "command": "train.sbatch --token abcdefgh"}
    def describe(self, app_id):
        if app_id != "x4711":
            return None
        failure = Failure("no such frob", 3, role="job", replica=0, kind="error", host="n1")
        role = RoleStatus("job", [ReplicaStatus(0, AppState.FAILED, "job", "n1", failure.to_structured_msg())])
        return DescribeAppResponse(app_id, AppState.FAILED, msg="job/0 on n1: exit code 3: no such frob",
            structured_error_msg=failure.to_structured_msg(), roles_statuses=[role], started_at=100.0, ended_at=160.0)
    def log_iter(self, app_id, role_name, k=0, *args, **kwargs):
        return ["epoch 1\\n", "no such \\x1b[31mfrob\\n"]

def create_scheduler(session_name, **kwargs):
    return Paper("strangers", session_name)
'''


@pytest.fixture(autouse=True)
def strangers(install_plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this scheduler knows jobs of that number; a Slurm on this machine might too."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    install_plugin("strangers", {"torchx.schedulers": ["strangers = strangers:create_scheduler"]}, STRANGERS)


def test_the_page(torchx: Call) -> None:
    """The page shows job, state, cause and end of the log, with secrets masked and control sequences escaped."""
    page = torchx("why", "x4711").out
    for line in ("app:", "strangers://foreign/x4711", "name:", "my train", "job/0 on n1: exit code 3: no such frob"):
        assert line in page
    assert "train.sbatch --token ********" in page
    assert ", after 1 min" in page
    assert "job/0, the end of its log:\n  epoch 1\n" in page
    assert "\x1b" not in page
    assert torchx("list").out.count("x4711") == 0


def test_json(torchx: Call) -> None:
    """The document matches its schema."""
    found = check("why", torchx("why", "x4711", "--json").out)
    assert (found["foreign"], found["on_record"], found["state"]) == (True, False, "FAILED")
    assert found["cause"]["class"] == "error"
    assert found["log"]["lines"][0] == "epoch 1"
    assert "abcdefgh" not in str(found)
    assert check("why", torchx("why", "-n", "0", "x4711", "--json").out)["log"] is None


def test_refusals(torchx: Call) -> None:
    """Each error has a hint."""
    nobody = torchx("why", "nobody")
    assert (nobody.code, nobody.error_lines()[0]) == (
        3,
        "torchx: error: no job is called `nobody`, neither on record nor where torchx can look",
    )
    assert torchx("why", "-n", "-1", "x4711").code == 2
    assert torchx("why", "-s", "no-such", "x4711").code == 3
    assert torchx("adopt", "x4711", "--name", "a b").code == 2


def test_adopted(torchx: Call) -> None:
    """All verbs accept the job; `cancel` and `delete` need `--force`; `--undo` removes it from the record."""
    assert torchx("adopt", "x4711", "--name", "bert").out == "strangers://foreign/x4711\n"
    page = torchx("status", "@bert").out
    assert "adopted:" in page
    assert "exit code 3" in page
    assert "launched:" not in page
    assert torchx("log", "@bert").out.startswith("job/0 epoch 1\n")
    assert torchx("wait", "@bert").code == 1
    assert torchx("status", "@last").code == 3
    for verb in ("cancel", "delete"):
        refused = torchx(verb, "@bert")
        assert refused.code != 0
        assert "--force" in refused.hint()
    strangers = importlib.import_module("strangers")
    assert strangers.ENDED == []
    assert torchx("adopt", "--undo", "@bert").out == "strangers://foreign/x4711\n"
    assert torchx("status", "@bert").code == 3
    assert torchx("cancel", "--force", "strangers://foreign/x4711").code == 0
    assert strangers.ENDED == ["x4711"]


def test_why_explains_which_signature_decided(torchx: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row, its line and its class; without the option, nothing of it."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    torchx("run", "--wait", "utils.sh", "echo ssh: connect to host n2 port 22: No route to host >&2; exit 255")
    page = torchx("why", "@last", "--explain").out
    assert "class:    node" in page
    assert "decided:  `connect to host` (node, line; OpenSSH)" in page
    (match,) = check("why", torchx("why", "@last", "--explain", "--json").out)["signatures"]
    assert (match["class"], match["decided"], match["of"]) == ("node", True, "OpenSSH")
    assert "signatures" not in check("why", torchx("why", "@last", "--json").out)
    assert "decided" not in torchx("why", "@last").out
    assert "by the exit code or signal: exit code 3: no such frob" in torchx("why", "x4711", "--explain").out
