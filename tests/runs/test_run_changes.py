"""Each change of a run adds a row, whichever process writes it; readers remember the last number they have seen."""

from __future__ import annotations

import os

from torchx.runs import RunRegistry
from torchx.specs import AppState

from .run_rows import add


def seen(registry: RunRegistry, after: int = 0, **more: bool) -> list[tuple[str, AppState | None, AppState, str]]:
    found = registry.changes(after, until=registry.last_change(), **more)
    assert [change.seq for change in found] == sorted({change.seq for change in found})
    return [(change.handle.rpartition("/")[2], change.was, change.state, change.msg) for change in found]


def test_a_row_for_each_change(registry):
    """The submission, each new state and each new message; the same state again is not a change."""
    handle = add(registry, "a")
    registry.saw(handle, AppState.PENDING, msg="Priority")
    registry.saw(handle, AppState.PENDING, msg="Priority")
    registry.saw(handle, AppState.PENDING, msg="Resources")
    registry.saw(handle, AppState.FAILED, msg="exit code 3")
    assert seen(registry) == [
        ("a", None, AppState.SUBMITTED, ""),
        ("a", AppState.SUBMITTED, AppState.PENDING, "Priority"),
        ("a", AppState.PENDING, AppState.PENDING, "Resources"),
        ("a", AppState.PENDING, AppState.FAILED, "exit code 3"),
    ]
    assert [change[3] for change in seen(registry, after=2)] == ["Resources", "exit code 3"]


def test_before_the_first_run(registry):
    """The number is 0, and reading it creates no file."""
    assert registry.last_change() == 0
    assert not os.path.exists(registry.path)


def test_a_submission_that_failed_is_no_change(registry):
    """Neither is a submission without an answer."""
    from torchx.runs import NewRun

    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
    registry.abandoned(run_id, "refused")
    assert (registry.last_change(), seen(registry)) == (0, [])


def test_a_run_that_its_scheduler_has_lost(registry):
    """This is a change to UNKNOWN."""
    handle = add(registry, "a", state=AppState.RUNNING)
    before = registry.last_change()
    registry.lost([handle])
    assert seen(registry, after=before) == [("a", AppState.RUNNING, AppState.UNKNOWN, "")]


def test_numbers_grow_after_a_run_was_forgotten(registry):
    """Numbers are not reused, so that readers miss no change."""
    add(registry, "a", state=AppState.RUNNING)
    last = registry.last_change()
    registry.forget("local_cwd://torchx/a")
    assert seen(registry) == []
    add(registry, "b")
    assert [change[0] for change in seen(registry, after=last)] == ["b"]


def test_mine(registry, monkeypatch):
    """If several users share the registry, each can select the changes of own runs."""
    from torchx.runs import registry as module

    add(registry, "a")
    monkeypatch.setattr(module, "user_name", lambda: "somebody")
    add(registry, "b")
    assert [change[0] for change in seen(registry)] == ["a", "b"]
    assert [change[0] for change in seen(registry, mine=True)] == ["b"]


def test_unfinished(registry):
    """The number of unfinished runs of each scheduler."""
    add(registry, "a", state=AppState.RUNNING)
    add(registry, "b", state=AppState.SUCCEEDED)
    add(registry, "c", scheduler="slurm")
    add(registry, "d", scheduler="slurm", state=AppState.PENDING)
    assert registry.unfinished() == {"local_cwd": 1, "slurm": 2}


def test_old_changes_go(registry):
    """The newest 100,000 are kept."""
    handle = add(registry, "a")
    store = registry.store()
    store.execute("UPDATE sqlite_sequence SET seq = 150000 WHERE name = 'changes'")
    registry.saw(handle, AppState.RUNNING)
    assert [change[2] for change in seen(registry)] == [AppState.RUNNING]
