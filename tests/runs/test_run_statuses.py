"""Recorded statuses: complete, without secrets, of the newest run of a handle."""

from __future__ import annotations

import json

import pytest

from torchx.runs import NewRun, RunRegistry
from torchx.runs import registry as registry_module
from torchx.runs.statuses import MAX_REPLICAS, from_text, to_text
from torchx.specs.api import NONE, AppState, AppStatus, ReplicaStatus, RoleStatus
from torchx.specs.tasks import TaskTable
from torchx.specs.wishes.retries import Attempt

HANDLE = "slurm://s/7"
WHY = json.dumps({"message": {"message": "cannot connect to postgres://me:hunter2@db/x", "errorCode": 1}})


def status(**more):
    replica = ReplicaStatus(1, AppState.FAILED, "trainer", "n1", WHY, "10.0.0.1", 5.0, 6.5)
    roles = [RoleStatus("trainer", [ReplicaStatus(0, AppState.RUNNING, "trainer", ""), replica])]
    more = {"msg": "trainer/1: exit code 1", "num_restarts": 2, "ui_url": "http://x/7", "started_at": 4.0, **more}
    return AppStatus(AppState.FAILED, roles=roles, attempts=[Attempt(kind="oom", hosts=["n2"])], **more)


def test_nothing_is_lost():
    """A status survives a round trip."""
    plain = status()
    plain.roles[0].replicas[1].structured_error_msg = NONE
    assert from_text(to_text(plain)) == plain


def test_no_secret_is_written():
    """Secrets in the message, the error and the attempts are masked, and the text can still be parsed."""
    found = status(msg="train --hf-token abc", structured_error_msg=WHY)
    found.attempts[0].cause = "ConnectionError: https://me:hunter2@hub"
    text = to_text(found)
    assert "hunter2" not in text and "abc" not in text
    read = from_text(text)
    assert read.msg == "train --hf-token ********"
    assert json.loads(read.roles[0].replicas[1].structured_error_msg)["message"]["errorCode"] == 1
    assert read.attempts[0].cause == "ConnectionError: https://me:********@hub"


def test_what_is_not_kept():
    """Statuses of sweeps, and of jobs with very many replicas."""
    tasks = TaskTable(states=[AppState.PENDING], exit_codes=[None], ended=[0.0])
    assert to_text(status(tasks=tasks)) is None
    many = [ReplicaStatus(k, AppState.RUNNING, "r", "") for k in range(MAX_REPLICAS + 1)]
    assert to_text(AppStatus(AppState.RUNNING, roles=[RoleStatus("r", many)])) is None
    assert to_text(AppStatus(AppState.RUNNING, roles=[RoleStatus("r", many[1:])])) is not None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"state": "NOVEL"}', '{"state": "FAILED", "roles": [[]]}'])
def test_what_cannot_be_read(text):
    """Text of another version is ignored: the scheduler is queried."""
    assert from_text(text) is None


@pytest.mark.parametrize("columns", [["FAILED", 1], ["FAILED", 1, "n1", "", "", None, None, "novel"]])
def test_replicas_with_other_columns(columns):
    """A version that records fewer or more of a replica is another version: none of it is guessed."""
    data = json.loads(to_text(status()))
    data["roles"][0][1][1] = columns
    assert from_text(json.dumps(data)) is None


def test_statuses_of_the_newest_runs_are_kept(tmp_path, monkeypatch):
    """Older ones go with the next that is written, so that the file does not grow for ever."""
    monkeypatch.setattr(registry_module, "_STATUSES", 2)
    registry = RunRegistry(str(tmp_path / "runs.db"))
    handles = [f"slurm://s/{k}" for k in range(4)]
    for handle in handles:
        registry.submitted(registry.begin(NewRun(scheduler="slurm", session="s", name="x")), handle)
        registry.saw_many([], {handle: to_text(status())})
    assert [registry.status(handle) is not None for handle in handles] == [False, False, True, True]
    registry.close()


def test_the_newest_run_of_a_handle(tmp_path):
    """A reused handle means the newest run; forgetting a run removes its status."""
    registry = RunRegistry(str(tmp_path / "runs.db"))
    for _ in "12":
        registry.submitted(registry.begin(NewRun(scheduler="slurm", session="s", name="x")), HANDLE)
        assert registry.status(HANDLE) is None
        registry.saw_many([], {HANDLE: to_text(status())})
        assert registry.status(HANDLE).msg == "trainer/1: exit code 1"
    registry.saw_many([], {HANDLE: to_text(status(msg="later")), "slurm://s/nobody": to_text(status())})
    assert registry.status(HANDLE).msg == "later"
    assert registry.status("slurm://s/nobody") is None
    registry.forget(HANDLE)
    assert registry.status(HANDLE) is None
    registry.close()
