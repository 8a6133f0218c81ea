"""Jobs that torchx did not launch, on two in-memory clusters."""

from __future__ import annotations

import pytest

from torchx.errors import BackendError, HandleError, NotFoundError, NotSupportedError, SpecError
from torchx.runner import Runner
from torchx.runner.foreign import explain
from torchx.runs import NewRun, default_registry
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.foreign import ForeignJobs, Named
from torchx.specs import AppDef, AppState, ReplicaStatus, Resource, Role, RoleStatus
from torchx.specs.failures import Failure

from .memory_backend import MemoryScheduler


class Strangers(MemoryScheduler):
    """`strangers` holds jobs of others; `ended` lists those that were cancelled."""

    def __init__(self, session_name, *, strangers, ended, down=None, **params):
        super().__init__(session_name, **params)
        self.strangers, self.ended, self.down = strangers, ended, down

    def foreign(self):
        return View(self.session_name, strangers=self.strangers, ended=self.ended, down=self.down)


class View(ForeignJobs, Strangers):
    def find(self, reference):
        if self.down is not None:
            raise self.down
        return Named(reference) if reference in self.strangers else None

    def about(self, app_id):
        return {"name": "bert", "user": "ann", "command": "train --token abcdefgh"}

    def describe(self, app_id):
        state = self.strangers.get(app_id)
        if state is None:
            return None
        cause = Failure("no such frob", 3, role="job", replica=1, kind="error").to_structured_msg()
        replicas = [ReplicaStatus(k, state, "job", "n1", cause if k else "<NONE>") for k in range(2)]
        error = cause if state is AppState.FAILED else "<NONE>"
        return DescribeAppResponse(
            app_id, state, structured_error_msg=error, roles_statuses=[RoleStatus("job", replicas)]
        )

    def log_iter(self, app_id, role_name, k=0, *args, **kwargs):
        return [f"line {i} of {role_name}/{k}\n" for i in range(30)]

    def _cancel_existing(self, app_id):
        self.ended.append(app_id)

    _delete_existing = _cancel_existing


@pytest.fixture
def strangers():
    return {"one": {"4711": AppState.FAILED, "both": AppState.RUNNING}, "two": {"both": AppState.PENDING}}


@pytest.fixture
def ended():
    return []


@pytest.fixture
def down():
    """Why cluster `two` does not answer."""
    return []


@pytest.fixture
def runner(strangers, ended, down, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def factory(name):
        def make(session_name, **params):
            return Strangers(
                session_name, strangers=strangers[name], ended=ended, down=down[0] if down and name == "two" else None
            )

        return make

    def plain(session_name, **params):
        return MemoryScheduler(session_name, **params)

    with Runner("test", {"one": factory("one"), "two": factory("two"), "plain": plain}) as made:
        yield made


@pytest.mark.parametrize("reference", ["4711", "one://4711", "one://foreign/4711"])
def test_why(runner, reference):
    """Without `-s`, all schedulers are queried; the log is that of the replica that caused the failure."""
    found = runner.why(reference, lines=2)
    assert found.handle == "one://foreign/4711"
    assert found.status.state is AppState.FAILED
    assert (found.role, found.replica, found.lines) == ("job", 1, ["line 28 of job/1\n", "line 29 of job/1\n"])
    assert (found.about["user"], found.on_record) == ("ann", False)
    assert runner.runs() == []


def test_of_two_jobs_of_a_name_none_is_taken(runner):
    """The error lists both; `-s` selects one."""
    with pytest.raises(HandleError, match="one://foreign/both, two://foreign/both"):
        runner.why("both")
    found = runner.why("both", "two")
    assert (found.handle, found.status.state, found.replica) == ("two://foreign/both", AppState.PENDING, None)


def test_a_name_on_record_goes_before(runner, strangers):
    """But a mere prefix does not: `47` on a cluster is not `4711` on record."""
    handle = runner.run(AppDef("both", [Role("r", "img", entrypoint="x", resource=Resource(1, 0, 1))]), "plain")
    assert runner.why("both").handle == handle
    strangers["one"]["bot"] = AppState.RUNNING
    assert runner.why("bot").handle == "one://foreign/bot"
    assert runner.why("bo").handle == handle
    assert runner.why("@last").handle == handle


def test_nobody_knows_it(runner, down):
    """The hint lists the schedulers that could not be queried; if one was given with `-s`, its error is raised."""
    down.append(BackendError("two is down"))
    with pytest.raises(NotFoundError) as error:
        runner.why("nobody")
    assert error.value.hint == "two: two is down"
    with pytest.raises(BackendError, match="two is down"):
        runner.why("nobody", "two")
    with pytest.raises(NotSupportedError, match="finds only jobs that torchx launched"):
        runner.why("nobody", "plain")


def test_a_bug_of_a_scheduler(runner, down):
    """Whatever a scheduler raises, the others are asked, and the error is told as what it is, not as a late answer."""
    down.append(KeyError("namespace"))
    assert runner.why("4711").handle == "one://foreign/4711"
    with pytest.raises(NotFoundError) as error:
        runner.why("9999")
    assert error.value.hint == "two: KeyError: 'namespace'"


def test_adopt(runner, strangers, ended):
    """The job is on record by its name, and is watched; `@last` still means the newest job that torchx launched."""
    launched = runner.run(AppDef("mine", [Role("r", "img", entrypoint="x", resource=Resource(1, 0, 1))]), "plain")
    handle = runner.adopt("4711", name="bert")
    assert handle == "one://foreign/4711"
    assert (runner.resolve("@bert"), runner.resolve("@last")) == (handle, launched)
    (run,) = [run for run in runner.runs() if run.handle == handle]
    assert (run.name, run.state) == ("bert", AppState.FAILED)
    assert runner.recorded(handle).app["metadata"]["command"] == "train --token ********"
    assert runner.status("@bert").state is AppState.FAILED
    assert [change.state for change in runner.watch("@bert")] == [AppState.FAILED]
    with pytest.raises(SpecError, match="is on record"):
        runner.adopt("4711")
    with pytest.raises(SpecError, match="is on record"):
        runner.adopt("@last")
    assert ended == []


def test_an_adopted_job_is_left_alone(runner, strangers, ended):
    """It is not cancelled or deleted without `force`."""
    strangers["one"]["both"] = AppState.RUNNING
    handle = runner.adopt("both", "one")
    for end in (runner.cancel, runner.delete):
        with pytest.raises(NotSupportedError, match="did not launch"):
            end(handle)
    with pytest.raises(NotSupportedError):
        runner.simulate(handle, "kill")
    assert (ended, runner.resolve(handle)) == ([], handle)
    runner.cancel(handle, force=True)
    runner.delete(handle, force=True)
    assert (ended, runner.recorded(handle)) == (["both", "both"], None)


def test_a_job_that_is_not_on_record_is_left_alone_too(runner, ended):
    """Its handle can be queried, but it cannot be cancelled."""
    with pytest.raises(NotSupportedError):
        runner.cancel("one://foreign/both")
    assert ended == []


def test_disown(runner, ended):
    """An adopted job is removed from the record; a job that torchx launched is not."""
    handle = runner.adopt("4711")
    assert runner.disown("@bert") == handle
    assert runner.runs() == []
    launched = runner.run(AppDef("mine", [Role("r", "img", entrypoint="x", resource=Resource(1, 0, 1))]), "plain")
    with pytest.raises(SpecError):
        runner.disown(launched)
    assert ended == []


def test_nothing_is_submitted_by_a_view(runner):
    """Its session is for handles only."""
    view = runner._scheduler("one", "foreign")
    with pytest.raises(NotSupportedError):
        view.submit_dryrun(AppDef("a", []), {})
    assert view.list() == []


@pytest.mark.parametrize(
    ("found", "handle"),
    [
        ("one://me/both", "one://me/both"),
        ("one:///echo-1", "one://mine/echo-1"),
        ("two:///echo-1", "two://torchx/echo-1"),
        ("one:///echo", "one://torchx/echo"),
        ("one:///other", "one://torchx/other"),
    ],
    ids=["of a session", "on record", "of another scheduler", "a beginning of its id", "not on record"],
)
def test_the_handle_of_a_job_of_ours(found, handle):
    """The recorded one, if scheduler and id are the same; it is never that of another job."""
    registry = default_registry()
    registry.submitted(registry.begin(NewRun(scheduler="one", session="mine", name="echo")), "one://mine/echo-1")
    assert explain._handle_of(found, registry) == handle
