"""Reruns of jobs whose code is built into an image: the image, the code, and the record."""

from __future__ import annotations

import os
import threading

import pytest

from tests.runner.memory_backend import MemoryScheduler, echo_app
from torchx.errors import NotFoundError
from torchx.runner import Runner
from torchx.runner.capsule import code
from torchx.runner.capsule.differences import compare
from torchx.runner.capsule.rerun import NOW, THEN, Plan, Rerun
from torchx.runs import default_registry
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs.images import set_image_digest, set_workspace_hash
from torchx.workspace import WorkspaceMixin


class Building(WorkspaceMixin, MemoryScheduler):
    """Builds an image onto that of the role; the next build is called `n`."""

    capabilities = Capabilities(workspaces=True)
    n = 1

    def caching_build_workspace_and_update_role(self, role, cfg, build_cache):
        if role.workspace:
            role.image = f"{role.image}+{Building.n}"
            set_image_digest(role, f"sha256:{str(Building.n) * 64}")
            set_workspace_hash(role, f"sha256:c{Building.n}")


@pytest.fixture
def runner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Building, "n", 1)
    with Runner("test", {"memory": Building, "other": Building}) as found:
        yield found


def launched(runner, workspace="/src"):
    return runner.recorded(runner.run(echo_app(), "memory", workspace=workspace))


def again(runner, run, **wish):
    return runner.recorded(runner.rerun(run.handle, Rerun(**wish)))


def test_an_option_that_has_no_default(tmp_path, monkeypatch):
    """It is taken from the record if no config file sets it; a given value overrides it."""

    class Queued(MemoryScheduler):
        def _run_opts(self):
            opts = super()._run_opts()
            opts.add("queue", type_=str, default=None, required=True, help="where it waits")
            return opts

    monkeypatch.chdir(tmp_path)
    with Runner("test", {"memory": Queued}) as runner:
        run = runner.recorded(runner.run(echo_app(), "memory", {"queue": "q"}))
        new = again(runner, run)
        assert new.cfg["queue"] == run.cfg["queue"] == {"value": "q", "source": "code"}
        assert again(runner, new, cfg={"queue": "other"}).cfg["queue"]["value"] == "other"


def test_the_code_of_now_goes_onto_the_image_below(runner):
    """Current code is built onto the base image: the built image may contain files that were deleted since."""
    run = launched(runner)
    base = run.tags["image.echo"]
    assert run.image == f"{base}+1"
    Building.n = 2
    new = again(runner, run, code=NOW)
    assert (new.image, new.image_digests["echo"], new.workspace_hashes["echo"]) == (
        f"{base}+2",
        f"sha256:{'2' * 64}",
        "sha256:c2",
    )
    assert again(runner, new).image == f"{base}+2", "of a rerun, too"


def test_the_code_of_then_is_the_image_by_its_digest(runner):
    """Nothing is built; the recorded digest and hash are those of the run, so that a comparison finds no difference."""
    run = launched(runner)
    Building.n = 2
    new = again(runner, run, code=THEN)
    assert new.image == f"sha256:{'1' * 64}"
    assert (new.image_digests, new.workspace_hashes) == (run.image_digests, run.workspace_hashes)
    assert new.tags["rerun_of"] == run.handle
    assert compare(run, new).rows == []
    once_more = again(runner, new, code=THEN)
    assert (once_more.image, once_more.workspace_hashes) == (new.image, run.workspace_hashes)
    assert again(runner, once_more, code=NOW).image == f"{run.tags['image.echo']}+2", "and there is a way back"


def test_elsewhere_the_digest_of_an_engine_means_nothing(runner):
    """On another scheduler, the old code must come from git, and there is no repository here."""
    run = launched(runner)
    with pytest.raises(NotFoundError, match="not launched in a git repository"):
        runner.rerun(run.handle, Rerun(code=THEN, scheduler="other"))
    assert again(runner, run, scheduler="other").scheduler == "other"


def test_elsewhere_the_code_of_then_goes_onto_the_image_below(runner, tmp_path, monkeypatch):
    """The image that was built then may not be there: its base is used, and the code comes from a checkout."""
    (tmp_path / "src").mkdir()
    run = launched(runner, workspace=f"file://{tmp_path}/src")
    then = tmp_path / "then"
    monkeypatch.setattr(code, "checkout", lambda run, cwd: (str(then), str(tmp_path), []))
    plan = runner.rerun_plan(run.handle, Rerun(code=THEN, scheduler="other"))
    (role,) = plan.app.roles
    assert role.image == run.tags["image.echo"] != run.image
    assert [*role.workspace.projects] == [f"file://{then}/src"]
    assert (plan.cwd, plan.tags["checkout"], plan.tags["worktree"]) == (str(then), str(then), str(tmp_path))
    assert plan.hashes == {}, "that of the code is not known before it is built in"


def test_a_run_of_before(runner):
    """If the base image is not on record, the error says so, and the hint says how to provide it."""
    run = launched(runner)
    store = default_registry().store()
    store.execute("UPDATE specs SET tags = '{}' WHERE run_id = ?", (run.id,))
    with pytest.raises(NotFoundError, match="the base image of role `echo` is not on record") as error:
        runner.rerun(run.handle)
    assert "--set roles.echo.image=" in error.value.hint


def test_a_parent_run_stays(runner):
    """A rerun keeps its parent run; the run that it repeats is recorded in addition."""
    handle = runner.run(echo_app(), "memory", parent_run_id="experiment")
    new = again(runner, again(runner, runner.recorded(handle)))
    assert new.parent_run_id == "experiment"


def test_code_in_an_image_outlives_the_folder_that_it_came_from(runner, tmp_path, monkeypatch):
    """The job is launched from the current directory."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    run = launched(runner)
    monkeypatch.chdir(tmp_path)
    gone.rmdir()
    with pytest.raises(NotFoundError, match="is gone"):
        again(runner, run, code=NOW)
    assert again(runner, run, code=THEN).cwd == str(tmp_path)


def test_two_at_once(tmp_path):
    """Each thread is in the folder of its own run, and the process is where it was afterwards."""
    before, found = os.getcwd(), []
    entered, left = threading.Event(), threading.Event()
    for name in "ab":
        (tmp_path / name).mkdir()

    def surroundings(name):
        return Plan(run=None, app=None, scheduler="memory", cfg={}, cwd=str(tmp_path / name)).surroundings()

    def second():
        entered.wait()
        with surroundings("b"):
            found.append(os.getcwd())
            left.wait(0.2)  # without a lock, the first would leave in between
            found.append(os.getcwd())

    thread = threading.Thread(target=second)
    thread.start()
    with surroundings("a"):
        entered.set()
        thread.join(0.1)
        assert os.getcwd() == str(tmp_path / "a")
    left.set()
    thread.join()
    assert (found, os.getcwd()) == ([str(tmp_path / "b")] * 2, before)
