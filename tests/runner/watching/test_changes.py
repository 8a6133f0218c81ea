"""A Runner that makes thousands of requests notices each change of files and environment."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler, echo_app
from torchx import config
from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, Role


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Two folders, of which the first is the current one, and a home."""
    config._warned.clear()
    for name in ("here", "there", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def write(path, text):
    """Writes a config file as an editor does: a new file replaces the old one."""
    (path.parent / "new").write_text(text)
    (path.parent / "new").rename(path)


QUEUE = "[memory]\nqueue = {}\n"
CHANGES = {
    "a project file appears": lambda at, env: write(at / "here/.torchxconfig", QUEUE.format("new")),
    "a home file appears": lambda at, env: write(at / "home/.torchxconfig", QUEUE.format("new")),
    "a variable is set": lambda at, env: env.setenv("TORCHX_MEMORY_QUEUE", "new"),
    "another directory": lambda at, env: (
        write(at / "there/.torchxconfig", QUEUE.format("new")),
        env.chdir(at / "there"),
    ),
    "another home": lambda at, env: (
        write(at / "there/.torchxconfig", QUEUE.format("new")),
        env.setenv("HOME", str(at / "there")),
    ),
    "another file is named": lambda at, env: (
        write(at / "there/x.conf", QUEUE.format("new")),
        env.setenv("TORCHXCONFIG", str(at / "there/x.conf")),
    ),
}


def queue(runner):
    """The option as the scheduler gets it."""
    info = runner.dryrun(echo_app(), "memory")
    assert info._cfg["queue"] == info.submission.settings["queue"].value == info.request.cfg["queue"]
    return info._cfg["queue"]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_between_two_dry_runs(places, change):
    """It affects the next dry run, and no later one once it is reverted."""
    with Runner("s", {"memory": MemoryScheduler}) as runner:
        assert queue(runner) == "any"
        with pytest.MonkeyPatch.context() as env:
            change(places, env)
            assert [queue(runner), queue(runner)] == ["new", "new"]
        for folder in ("here", "home"):
            (places / folder / ".torchxconfig").unlink(missing_ok=True)
        assert queue(runner) == "any"


def test_a_file_that_is_edited(places):
    """In place or replaced, with another value, section or profile: each dry run uses its current contents."""
    path = places / "here/.torchxconfig"
    with Runner("s", {"memory": MemoryScheduler}) as runner, pytest.MonkeyPatch.context() as env:
        write(path, QUEUE.format("one"))
        assert queue(runner) == "one"
        path.write_text(QUEUE.format("three"))
        assert queue(runner) == "three"
        write(path, QUEUE.format("seven"))  # of the same size
        assert queue(runner) == "seven"
        write(path, QUEUE.format("seven") + "[memory@fast]\nqueue = express\n")
        env.setenv("TORCHX_PROFILE", "fast")
        assert queue(runner) == "express"
        env.delenv("TORCHX_PROFILE")
        assert queue(runner) == "seven"


def test_trackers_come_and_go(places):
    """The configured trackers are in the environment of the next job only."""

    def told():
        env = runner.dryrun(echo_app(), "memory")._app.roles[0].env
        return {name: value for name, value in env.items() if "TRACKER" in name}

    with Runner("s", {"memory": MemoryScheduler}) as runner:
        assert told() == {}
        write(places / "here/.torchxconfig", "[torchx:tracker]\nfsspec = a\n")
        assert told() == {"TORCHX_TRACKERS": "fsspec", "TORCHX_TRACKER_FSSPEC_CONFIG": "a"}
        write(places / "here/.torchxconfig", "[torchx:tracker]\nfsspec = a\n[tracker:fsspec]\nconfig = b\n")
        assert told()["TORCHX_TRACKER_FSSPEC_CONFIG"] == "b"
        (places / "here/.torchxconfig").unlink()
        assert told() == {}


def test_each_request_is_its_own(places):
    """Modifying a request, or a list in an option, changes neither the app nor the next dry run."""
    app = AppDef("a", [Role("w", "i", entrypoint="x", args=["1"], metadata={"k": {"l": [1]}})])
    with Runner("s", {"memory": MemoryScheduler}) as runner:
        first = runner.dryrun(app, "memory", {"tags": ["t"]})
        first._app.roles[0].args.append("2")
        first._app.roles[0].metadata["k"]["l"].append(2)
        first._app.roles[0].resource.tags["x"] = 1
        cfg: Any = first._cfg
        cfg["queue"] = "mine"
        first.submission.settings["priority"].value = 99
        second = runner.dryrun(app, "memory")
    assert (second._app.roles[0].args, second._app.roles[0].metadata) == (["1"], {"k": {"l": [1]}})
    assert second._app.roles[0].resource.tags == {}
    assert (second._cfg["queue"], second._cfg["priority"], second._cfg["tags"]) == ("any", 1, None)


def test_where_a_local_job_goes(places, monkeypatch):
    """The current directory and `TORCHX_HOME` are evaluated each time; ids are never reused."""
    app = AppDef("a", [Role("w", "", entrypoint="true")])
    with get_runner() as runner:
        first = runner.dryrun(app, "local_cwd").request
        monkeypatch.chdir(places / "there")
        monkeypatch.setenv("TORCHX_HOME", str(places / "elsewhere"))
        second = runner.dryrun(app, "local_cwd").request
        monkeypatch.delenv("TORCHX_HOME")
        third = runner.dryrun(app, "local_cwd").request
    assert [r.role_params["w"][0].cwd for r in (first, second)] == [str(places / "here"), str(places / "there")]
    assert second.log_dir.startswith(str(places / "elsewhere/local/torchx/a-"))
    assert third.log_dir.startswith(os.path.expanduser("~/.torchx/local/torchx/a-"))
    assert len({r.app_id for r in (first, second, third)}) == 3
