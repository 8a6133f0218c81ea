"""The run registry: writing, lookup and failures."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.errors import HandleError, NotFoundError
from torchx.runs import NewRun, Run, RunQuery, RunRegistry
from torchx.specs import AppDef, AppState, Role
from torchx.specs.serialize import appdef_to_dict

from .run_rows import add, ids


def test_everything_that_was_written_is_read_back(registry):
    """A run has each of its fields, and those that the registry adds."""
    app = AppDef("train", [Role("trainer", image="img", entrypoint="python", args=["-m", "x"], env={"A": "ü"})])
    cfg: dict[str, dict[str, Any]] = {
        "log_dir": {"value": None, "source": "default"},
        "nodes": {"value": ["a", "b"], "source": "-cfg"},
    }
    new = NewRun(
        scheduler="slurm",
        session="me",
        name="train",
        app=appdef_to_dict(app),
        cfg=cfg,
        argv=["torchx", "run"],
        cwd="/src",
        image="img",
        workspace="/src",
        parent_run_id="p",
        tags={"k": "v"},
    )
    run_id = registry.begin(new)
    registry.submitted(run_id, "slurm://me/42")
    registry.amend(run_id, git_commit="a" * 40, git_dirty=True)
    run = registry.get("slurm://me/42")
    assert run is not None
    assert (run.id, run.handle, run.scheduler, run.session, run.app_id) == (
        run_id,
        "slurm://me/42",
        "slurm",
        "me",
        "42",
    )
    assert (run.name, run.state, run.is_terminal()) == ("train", AppState.SUBMITTED, False)
    assert (run.cfg, run.argv, run.cwd, run.image, run.workspace) == (cfg, ["torchx", "run"], "/src", "img", "/src")
    assert (run.parent_run_id, run.tags, run.git_commit, run.git_dirty) == ("p", {"k": "v"}, "a" * 40, True)
    assert run.appdef() == app
    assert run.host == os.uname().nodename
    assert run.user


def test_a_run_as_json_has_the_same_keys_as_the_record():
    """`to_json` returns only JSON types, the state by name."""
    import json

    run = Run(id=1, handle="x://s/a", scheduler="x", session="s", app_id="a", name="a", state=AppState.FAILED)
    found = run.to_json()
    assert json.loads(json.dumps(found))["state"] == "FAILED"
    assert found.keys() == vars(run).keys() - {"tasks"}, "which the registry returns separately"
    assert run.appdef() is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({}, ["d", "c", "b", "a"], id="all-newest-first"),
        pytest.param({"limit": 2}, ["d", "c"], id="limit"),
        pytest.param({"limit": 0}, [], id="limit-zero"),
        pytest.param({"scheduler": "slurm"}, ["c"], id="scheduler"),
        pytest.param({"name": "train*"}, ["b", "a"], id="name-pattern"),
        pytest.param({"name": "eval"}, ["c"], id="name"),
        pytest.param({"states": [AppState.FAILED]}, ["b"], id="state"),
        pytest.param({"states": [AppState.FAILED, AppState.SUCCEEDED]}, ["c", "b"], id="states"),
        pytest.param({"states": []}, [], id="no-state"),
        pytest.param({"since": 4e9}, [], id="since-later"),
        pytest.param({"since": 1.0}, ["d", "c", "b", "a"], id="since"),
        pytest.param({"mine": True}, ["d", "c", "b", "a"], id="mine"),
        pytest.param({"name": "train*", "states": [AppState.FAILED]}, ["b"], id="both"),
    ],
)
def test_list_filters(registry, query, expected):
    """Each filter selects the matching runs, newest first."""
    add(registry, "a", name="train-1")
    add(registry, "b", name="train-2", state=AppState.FAILED)
    add(registry, "c", scheduler="slurm", name="eval", state=AppState.SUCCEEDED)
    add(registry, "d", name="other")
    assert ids(registry.list(RunQuery(**query))) == expected


def test_runs_of_another_user_are_not_mine(registry, monkeypatch):
    """`mine` selects runs by user; without it, a shared home lists those of all users."""
    add(registry, "mine")
    monkeypatch.setattr("torchx.runs.registry.user_name", lambda: "somebody-else")
    add(registry, "theirs")
    assert ids(registry.list(RunQuery(mine=True))) == ["theirs"]
    assert ids(registry.list()) == ["theirs", "mine"]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        pytest.param("local_cwd://torchx/echo-abc", "local_cwd://torchx/echo-abc", id="handle"),
        pytest.param("echo-abc", "local_cwd://torchx/echo-abc", id="app-id"),
        pytest.param("echo-a", "local_cwd://torchx/echo-abc", id="prefix"),
        pytest.param("t", "slurm://torchx/train-1", id="one-letter"),
        pytest.param("slurm://", "slurm://torchx/train-1", id="handle-prefix"),
        pytest.param("@last", "slurm://torchx/train-1", id="last"),
        pytest.param("echo", "local_cwd://torchx/echo", id="exact-before-prefix"),
    ],
)
def test_find_by_reference(registry, reference, expected):
    """A handle, an app id, an unambiguous prefix and `@last` resolve; an exact id is never ambiguous."""
    for app_id in ("echo", "echo-abc", "echo-xyz"):
        add(registry, app_id)
    add(registry, "train-1", scheduler="slurm")
    assert registry.find(reference).handle == expected


def test_an_ambiguous_reference_names_the_candidates(registry):
    """An ambiguous prefix is an error that lists the candidates."""
    add(registry, "echo-1")
    add(registry, "echo-2")
    with pytest.raises(HandleError) as e:
        registry.find("echo-")
    assert "local_cwd://torchx/echo-1" in e.value.message
    assert "local_cwd://torchx/echo-2" in e.value.message


@pytest.mark.parametrize(
    "reference", ["", "ecko-1", "@first", "x://y/z", "%", "ECHO-1", "\0", "'; DROP TABLE runs; --"]
)
def test_a_reference_that_means_nothing(registry, reference):
    """Any unknown reference is a NotFoundError with a hint."""
    add(registry, "echo-1")
    with pytest.raises(NotFoundError) as e:
        registry.find(reference)
    assert e.value.hint
    assert ids(registry.list()) == ["echo-1"]


def test_a_typo_suggests_the_nearest(registry):
    """The hint names the nearest run."""
    add(registry, "echo-1")
    with pytest.raises(NotFoundError) as e:
        registry.find("ecko-1")
    assert "echo-1" in e.value.hint


def test_an_empty_registry_finds_nothing_and_makes_no_file(registry):
    """Reading creates no file in the home directory."""
    with pytest.raises(NotFoundError, match="no run on record"):
        registry.find("@last")
    assert registry.list() == []
    assert registry.get("x://y/z") is None
    registry.forget("x://y/z")
    assert not os.path.exists(registry.path)


@given(app_id=st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_any_app_id_is_found_again(app_id):
    """Any app id, and each unambiguous prefix of it, resolve to the handle."""
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        registry = RunRegistry(f"{home}/runs.db")
        handle = add(registry, app_id)
        assert registry.get(handle).app_id == app_id
        assert registry.find(handle).handle == handle
        if "://" not in app_id and not app_id.startswith("@"):
            assert registry.find(app_id).handle == handle
            assert registry.find(app_id[:1]).handle == handle
        registry.close()


def test_a_reused_handle_means_the_newest_run(registry):
    """Clusters may restart their job numbers at 1: a handle means its newest run."""
    handle = add(registry, "1", scheduler="slurm", state=AppState.SUCCEEDED)
    assert add(registry, "1", scheduler="slurm") == handle
    assert registry.get(handle).state is AppState.SUBMITTED
    registry.saw(handle, AppState.FAILED)
    assert [run.state for run in registry.list()] == [AppState.FAILED, AppState.SUCCEEDED]


def test_the_end_is_written_once(registry):
    """`saw` records the end with the first terminal state; the same state again changes nothing."""
    handle = add(registry, "a", state=AppState.RUNNING)
    assert registry.get(handle).ended_at is None
    registry.saw(handle, AppState.FAILED, msg="exit code 1", ended_at=123.0)
    first = registry.get(handle)
    registry.saw(handle, AppState.FAILED, msg="exit code 1")
    assert registry.get(handle) == first
    assert (first.state, first.msg, first.ended_at, first.is_terminal()) == (
        AppState.FAILED,
        "exit code 1",
        123.0,
        True,
    )
    assert registry.list(unfinished=True) == []


def test_forget_removes_the_run(registry):
    """A forgotten run is neither listed nor found, and other runs are kept."""
    handle, other = add(registry, "a"), add(registry, "b")
    registry.forget(handle)
    assert registry.get(handle) is None
    assert [run.handle for run in registry.list()] == [other]


# -- submissions that do not go through ------------------------------------------------------------


def test_an_intent_is_no_run_until_it_is_submitted(registry):
    """An unanswered submission is not listed; its intent names the submitting process."""
    registry.begin(NewRun(scheduler="local_cwd", session="torchx", name="a", handle="local_cwd://torchx/a-1"))
    assert registry.list() == []
    [(run, submitter)] = registry.intents()
    assert run.handle == "local_cwd://torchx/a-1"
    assert str(os.getpid()) in submitter.split("|")


def test_an_abandoned_submission_never_shows(registry):
    """A failed submission is neither listed, nor found, nor an intent."""
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a", handle="x://s/a-1"))
    registry.abandoned(run_id, "refused")
    assert registry.list() == []
    assert registry.intents() == []
    assert registry.get("x://s/a-1") is None
    with pytest.raises(NotFoundError):
        registry.find("a-1")


def test_a_run_whose_row_was_lost_is_written_at_the_answer(registry):
    """If the file is replaced during a submission, the run is written to the new one."""
    run_id = registry.begin(NewRun(scheduler="x", session="s", name="a"))
    os.unlink(registry.path)
    registry.submitted(run_id, "x://s/a-1")
    assert registry.find("@last").handle == "x://s/a-1"


def test_secrets_in_what_a_scheduler_says_are_not_written(registry):
    """Secrets in the message of a state, which may quote the job's output, are masked."""
    handle = add(registry, "a-1")
    registry.saw(handle, AppState.FAILED, msg="exit code 1: ValueError: HF_TOKEN=s3cret")
    assert registry.get(handle).msg == "exit code 1: ValueError: HF_TOKEN=********"
    registry.close()
    with open(registry.path, "rb") as f:
        assert b"s3cret" not in f.read()
