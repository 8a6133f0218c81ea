"""Statuses at the limits: just young enough, just long ago, only one replica, nothing known."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler, backend, echo_app
from torchx.errors import BackendError, HandleError, NotFoundError, SpecError
from torchx.runner import events
from torchx.runner.launch import pipeline, record
from torchx.runner.launch.checks import check
from torchx.runner.watching import answers, intents, listing
from torchx.runner.watching.answers import (
    EndedJobs,
    as_recorded,
    check_replica,
    definition,
    is_fresh,
    last_known,
    status_of,
)
from torchx.runs import NewRun, Run, RunQuery, default_registry
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs import (
    AppDef,
    AppState,
    AppStatus,
    AppStatusError,
    Resource,
    Role,
    RoleStatus,
    Workspace,
)
from torchx.testing import FakeClock
from torchx.util.datetime import ago

NOW = 1_800_000_000.0
DAY = 86400.0


@pytest.fixture(autouse=True)
def now(monkeypatch) -> FakeClock:
    """The time for all code that computes ages."""
    clock = FakeClock(NOW)
    monkeypatch.setattr(time, "time", clock.time)
    return clock


def _run(state: AppState = AppState.RUNNING, *, age_s: float = 0.0, **fields: Any) -> Run:
    run = Run(
        id=1, handle="memory://s/a-1", scheduler="memory", session="s", app_id="a-1", name="a", state=state, **fields
    )
    run.created_at = NOW - age_s
    return run


# -- one job -------------------------------------------------------------------------------------


@pytest.mark.parametrize("near", [True, False])
def test_a_status_has_all_of_the_answer(near) -> None:
    """A local job was submitted when it started; for a cluster, that needs the record."""
    roles = [RoleStatus("r", [])]
    found = DescribeAppResponse("a", AppState.RUNNING, 3, "msg", "{}", "http://ui", roles_statuses=roles)
    found.started_at, found.ended_at = 5.0, 6.0
    status = status_of(found, near=near)
    assert (status.state, status.num_restarts, status.msg, status.ui_url) == (AppState.RUNNING, 3, "msg", "http://ui")
    assert (status.structured_error_msg, status.roles) == ("{}", roles)
    assert (status.started_at, status.ended_at, status.created_at) == (5.0, 6.0, 5.0 if near else None)


@pytest.mark.parametrize(("age_s", "fresh"), [(0, True), (59.9, True), (60.0, False), (1e6, False)])
def test_how_young_a_job_is_that_a_scheduler_need_not_show(age_s, fresh) -> None:
    """For the first minute it is SUBMITTED; after that it is unknown."""
    assert is_fresh(_run(AppState.SUBMITTED, age_s=age_s)) is fresh
    status = last_known(_run(AppState.SUBMITTED, age_s=age_s))
    assert status is not None
    assert status.gone is not fresh
    assert status.state is (AppState.SUBMITTED if fresh else AppState.UNKNOWN)
    assert ("does not show the job yet" in status.msg) is fresh


@pytest.mark.parametrize("state", [AppState.PENDING, AppState.RUNNING, AppState.UNKNOWN])
def test_a_job_that_was_seen_and_is_gone(state) -> None:
    """If the scheduler has listed it before, it is gone, however young it is."""
    status = last_known(_run(state, updated_at=NOW - 3.0))
    assert status is not None
    assert (status.state, status.gone, status.as_of) == (AppState.UNKNOWN, True, NOW - 3.0)
    assert status.msg == f"`memory` no longer knows this job; it was last seen {state.name}"
    with pytest.raises(AppStatusError) as e:
        status.raise_for_status()
    assert e.value.exit_code == 7


def test_what_is_known_of_a_job_that_is_gone() -> None:
    """Nothing without a record; for a job that has ended, its state and message."""
    assert last_known(None) is None
    note = "as last seen; `memory` no longer knows this job"
    assert last_known(_run(AppState.FAILED)) == AppStatus(AppState.FAILED, msg=note)
    assert last_known(_run(AppState.FAILED, msg="exit code 1")) == AppStatus(
        AppState.FAILED, msg=f"exit code 1 ({note})"
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "just now"),
        (0.9, "just now"),
        (59.9, "59 s ago"),
        (72, "1 min ago"),
        (120, "2 min ago"),
        (719, "11 min ago"),
        (5400, "1 h ago"),
        (7200, "2 h ago"),
        (2 * DAY - 1, "1 d ago"),
        (2.9 * DAY, "2 d ago"),
        (31 * DAY, "31 d ago"),
    ],
)
def test_how_long_ago(seconds, said) -> None:
    """In the largest unit of durations; a clock that was set back gives no negative ages."""
    assert ago(0, now=seconds) == said


@pytest.mark.parametrize("state", [AppState.RUNNING, AppState.FAILED])
def test_a_scheduler_that_cannot_be_asked(state) -> None:
    """The last state, its time and the error; an end time only for a job that has ended."""
    error = BackendError("down")
    status = as_recorded(_run(state, updated_at=NOW - 150.0, ended_at=NOW - 200.0, msg="m"), error)
    assert status.msg == f"m (last seen {state.name} 2 min ago; `memory` cannot be queried: down)"
    assert (status.state, status.as_of, status.error) == (state, NOW - 150.0, error)
    assert status.ended_at == (NOW - 200.0 if state is AppState.FAILED else None)
    assert as_recorded(_run(state, updated_at=NOW), error).msg.startswith("last seen")
    with pytest.raises(BackendError) as e:
        as_recorded(None, error)
    assert e.value is error


def test_whose_definition_it_is() -> None:
    """The scheduler's roles with the recorded name; the scheduler's metadata before the recorded ones; or the record alone."""
    from torchx.specs.serialize import appdef_to_dict

    role = echo_app().roles[0]
    recorded = _run(app=appdef_to_dict(AppDef("mine", [role], metadata={"k": "record"})))
    found = DescribeAppResponse("a-1", AppState.RUNNING, roles=[role])
    answer = definition(found, recorded, "a-1")
    assert answer is not None and (answer.name, answer.metadata) == ("mine", {"k": "record"})
    found.metadata = {"k": "scheduler"}
    assert definition(found, recorded, "a-1").metadata == {"k": "scheduler"}
    assert definition(found, None, "a-1").name == "a-1"
    bare = DescribeAppResponse("a-1", AppState.RUNNING, metadata={"k": "v"})
    assert definition(bare, None, "a-1") == AppDef("a-1", metadata={"k": "v"})
    assert definition(bare, recorded, "a-1") == definition(None, recorded, "a-1") == recorded.appdef()
    assert definition(None, None, "a-1") is None
    assert definition(None, _run(), "a-1") is None


def test_replicas_that_there_are() -> None:
    """Existing replicas are accepted, and any if the scheduler does not list them; for others, the hint lists what exists."""
    check_replica([], "h", "any", 7)
    check_replica([("a", 0), ("b", 0), ("b", 1)], "h", "b", 1)
    for role, k, hint in [
        ("a", 1, "there is only replica 0"),
        ("b", 2, "there are 0 to 1"),
        ("zzz", 0, "its roles: a, b"),
    ]:
        with pytest.raises(NotFoundError) as e:
            check_replica([("a", 0), ("b", 0), ("b", 1)], "h", role, k)
        assert e.value.hint == hint


def test_statuses_that_are_kept(monkeypatch) -> None:
    """The oldest entries are dropped; storing one again, or one that cannot be checked, does not change the others."""
    assert answers.MAX_ENDED == 1000
    monkeypatch.setattr(answers, "MAX_ENDED", 2)
    kept, there = EndedJobs(), {"a", "b", "c"}
    for name in "aab":
        status = AppStatus(AppState.FAILED, msg=name, roles=[RoleStatus("r", [])])
        kept.keep(name, status, partial(there.__contains__, name))
    kept.keep("c", AppStatus(AppState.FAILED), None)
    assert kept.status("c") is None
    found = kept.status("b")
    assert found is not None and (found.msg, found.roles) == ("b", [RoleStatus("r", [])])
    there.discard("b")
    assert kept.status("b") is None
    there.add("b")
    assert kept.status("b") is None  # asked for again, for it may be another job


# -- submissions of which the answer was lost ----------------------------------------------------


def _intent(registry: Any, age_s: float, now: FakeClock) -> Run:
    now.now = NOW - age_s
    registry.begin(NewRun(scheduler="memory", session="test", name="a"))
    now.now = NOW
    [(run, _)] = registry.intents()
    return run


@pytest.mark.parametrize(
    ("answer", "elsewhere", "age_s", "left", "listed"),
    [
        ("a-7", True, 0, 0, 1),
        ("a-7", False, 99 * DAY, 0, 1),
        ("", False, 0, 0, 0),
        ("", True, 0, 1, 0),
        (None, False, 0, 1, 0),
        (None, False, 30 * DAY, 1, 0),
        (None, False, 30 * DAY + 1, 0, 0),
        (None, True, 30 * DAY + 1, 0, 0),
        ("", True, 30 * DAY + 1, 0, 0),
    ],
)
def test_what_becomes_of_an_intent(now, caplog, answer, elsewhere, age_s, left, listed) -> None:
    """A job is recorded; "no job" is believed only for submitters of this host; after 30 days the intent is dropped."""
    registry = default_registry()
    run = _intent(registry, age_s, now)
    intents._settle(registry, run, answer, lambda *_: pytest.fail("nobody has notices"), elsewhere=elsewhere)
    assert (len(registry.intents()), len(registry.list())) == (left, listed)
    assert len(caplog.messages) == (0 if left and elsewhere else 1)


@pytest.mark.parametrize(("age_s", "asked"), [(9.9, 0), (10.0, 1)])
def test_a_submitter_elsewhere_has_its_time(runner, monkeypatch, now, age_s, asked) -> None:
    """The scheduler is asked only after the longest time that a submission may take."""
    _intent(default_registry(), age_s, now)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("torchx.runs.submitter.is_elsewhere", lambda who: True)
    monkeypatch.setattr(MemoryScheduler, "submission_s", 10.0)
    monkeypatch.setattr(
        MemoryScheduler, "find_submission", lambda self, token, cfg, age_s: calls.append((token, age_s))
    )
    intents.settle_intents(default_registry(), runner._scheduler, 10.0)
    assert len(calls) == asked
    assert not asked or calls[0][1] == pytest.approx(age_s)


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize(("elsewhere", "left"), [(True, 1), (False, 0)])
def test_that_there_is_no_job_is_believed_of_this_host_alone(runner, monkeypatch, now, near, elsewhere, left) -> None:
    """A submitter on another host may still be about to submit, for local and remote schedulers."""
    _intent(default_registry(), 100.0, now)
    monkeypatch.setattr("torchx.runs.submitter.is_elsewhere", lambda who: elsewhere)
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda who: False)
    monkeypatch.setattr(MemoryScheduler, "submission_s", 10.0)
    monkeypatch.setattr(MemoryScheduler, "wait_hint", 0.05 if near else 1.0)
    monkeypatch.setattr(MemoryScheduler, "find_submission", lambda self, token, cfg, age_s: "")
    intents.settle_intents(default_registry(), runner._scheduler, 10.0)
    assert len(default_registry().intents()) == left


@pytest.mark.parametrize("elsewhere", [True, False])
@pytest.mark.parametrize(("age_s", "left"), [(5.0, 1), (30 * DAY - 1, 1), (30 * DAY + 1, 0)])
def test_a_scheduler_that_cannot_be_made_settles_nothing(now, monkeypatch, age_s, left, elsewhere) -> None:
    """Whatever error it raises, the intent remains for 30 days."""

    def broken(name: str, session: str) -> Any:
        raise ZeroDivisionError

    run = _intent(default_registry(), age_s, now)
    monkeypatch.setattr("torchx.runs.submitter.is_elsewhere", lambda who: elsewhere)
    monkeypatch.setattr("torchx.runs.submitter.may_be_alive", lambda who: False)
    assert intents._ask(run, broken) is None
    intents.settle_intents(default_registry(), broken, 10.0)
    assert len(default_registry().intents()) == left


def test_what_a_scheduler_is_asked_for(runner) -> None:
    """The token, or else the app id, with the recorded run options."""
    asked: list[Any] = []
    backend(runner, session="s").find_submission = lambda token, cfg, age_s: asked.append((token, cfg)) or "x"
    cfg: Any = {"queue": {"value": "gpu", "source": "code"}, "odd": "text"}
    assert intents._ask(_run(submission="token", cfg=cfg), runner._scheduler) == "x"
    assert intents._ask(_run(), runner._scheduler) == "x"
    assert asked == [("token", {"queue": "gpu"}), ("a-1", {})]


# -- lists ---------------------------------------------------------------------------------------


def test_what_is_news_of_a_run(now) -> None:
    """Another state or message; the end time is the scheduler's, or else that of the query."""
    run = _run(AppState.RUNNING, msg="m", updated_at=1.0)
    assert listing._update(run, DescribeAppResponse("a", AppState.RUNNING, msg="m")) is False
    assert run.updated_at == 1.0
    assert listing._update(run, DescribeAppResponse("a", AppState.RUNNING, msg="other"))
    assert (run.msg, run.updated_at, run.ended_at) == ("other", NOW, None)
    assert listing._update(run, DescribeAppResponse("a", AppState.SUCCEEDED, msg="other"))
    assert (run.state, run.ended_at) == (AppState.SUCCEEDED, NOW)
    ended = DescribeAppResponse("a", AppState.FAILED, msg="other")
    ended.ended_at = 7.0
    assert listing._update(run, ended) and run.ended_at == 7.0


@pytest.mark.parametrize(
    ("age_s", "near", "for_good", "state"),
    [
        (59.0, True, False, AppState.SUBMITTED),
        (60.0, True, True, AppState.UNKNOWN),
        (60.0, False, False, AppState.UNKNOWN),
        (30 * DAY, False, False, AppState.UNKNOWN),
        (30 * DAY + 1, False, True, AppState.UNKNOWN),
    ],
)
def test_when_a_run_is_lost(now, age_s, near, for_good, state) -> None:
    """A minute after the submission; finally for a local scheduler, and for any scheduler after 30 days."""
    run = _run(AppState.SUBMITTED, age_s=age_s)
    assert listing._is_lost(run, near=near) is for_good
    assert (run.state, bool(run.note)) == (state, state is AppState.UNKNOWN)


def test_which_runs_are_asked_for(runner, now, jobs) -> None:
    """Unfinished runs with a handle; each session separately, and local schedulers, too."""
    scheduler, other = backend(runner), backend(runner, session="other")
    found = [
        _run(), _run(AppState.FAILED), _run(),
        Run(id=2, handle="", scheduler="memory", session="test", app_id="", name="a", state=AppState.SUBMITTED),
        Run(id=3, handle="memory://other/b-1", scheduler="memory", session="other", app_id="b-1", name="b", state=AppState.RUNNING),
    ]  # fmt: skip
    found[0].session = found[1].session = "test"
    found[2].session, found[2].app_id = "test", "a-2"
    other.wait_hint = 0.05
    jobs["b-1"] = DescribeAppResponse("b-1", AppState.SUCCEEDED)
    listing.refresh(default_registry(), found, runner._scheduler, 10.0)
    assert scheduler.asked == [["a-1", "a-2"]]
    assert other.asked == [["b-1"]]
    assert found[4].state is AppState.SUCCEEDED


@pytest.mark.parametrize(("limit", "ids"), [(None, ["e-3", "e-1"]), (1, ["e-3"]), (0, []), (-1, [])])
def test_a_filter_by_state_and_a_limit(runner, jobs, limit, ids) -> None:
    """The newest runs that are in one of the states after the refresh."""
    registry = default_registry()
    for number in (1, 2, 3):
        run_id = registry.begin(NewRun(scheduler="memory", session="test", name="e"))
        registry.submitted(run_id, f"memory://test/e-{number}")
        jobs[f"e-{number}"] = DescribeAppResponse(f"e-{number}", AppState.FAILED if number % 2 else AppState.RUNNING)
    query = RunQuery(states=[AppState.FAILED], limit=limit, scheduler="memory", name="e", since=NOW, mine=True)
    assert [run.app_id for run in runner.runs(query)] == ids
    for other in (RunQuery(states=[AppState.FAILED], scheduler="x"), RunQuery(states=[AppState.FAILED], since=NOW + 1)):
        assert runner.runs(other) == []


# -- an app on its way ---------------------------------------------------------------------------


def _app(**fields: Any) -> AppDef:
    return AppDef("a", [Role(**{"name": "r", "image": "i", "entrypoint": "x", **fields})])


@pytest.mark.parametrize(
    "fields",
    [
        {"num_replicas": 1},
        {"num_replicas": 3, "min_replicas": 1},
        {"num_replicas": 3, "min_replicas": 3},
        {"min_replicas": None},
    ],
)
def test_numbers_that_are_just_right(fields) -> None:
    """One replica, a minimum of one, a minimum of all."""
    check(_app(**fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"num_replicas": 3, "min_replicas": 0}, "min_replicas=0"),
        ({"num_replicas": 3, "min_replicas": 4}, "min_replicas=4"),
        ({"args": ["a", 1]}, "an argument, `1`, is of type int"),
        ({"env": {"A": None}}, "environment variable `A`"),
    ],
)
def test_numbers_that_are_just_wrong(fields, said) -> None:
    """Each is named."""
    with pytest.raises(SpecError) as e:
        check(_app(**fields))
    assert said in e.value.message


def test_what_a_run_before_left_in_the_environment(runner) -> None:
    """Digest and hash of another run are removed."""
    from torchx.settings import ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH

    app = _app(env={ENV_IMAGE_DIGEST: "1", ENV_WORKSPACE_HASH: "2", "MINE": "3"})
    new = pipeline.prepare(app, None, "memory", backend(runner))
    assert new.roles[0].env == {"MINE": "3"}
    assert len(app.roles[0].env) == 3


@pytest.mark.parametrize(
    ("workspace", "warned"), [(".", False), ("file://.", False), ("/elsewhere", True), ({"/a": "", ".": ""}, True)]
)
def test_a_workspace_that_nobody_builds(runner, tmp_path, monkeypatch, caplog, workspace, warned) -> None:
    """The warning appears only if the workspace is not the current directory, which the job sees anyway."""
    monkeypatch.chdir(tmp_path)
    given = Workspace(workspace) if isinstance(workspace, dict) else workspace.replace("file://.", f"file://{tmp_path}")
    new = pipeline.prepare(_app(), given, "memory", backend(runner))
    assert bool(caplog.messages) is warned
    assert not new.roles[0].workspace


@pytest.mark.parametrize(
    ("resource", "enforced", "warned"),
    [
        (Resource(cpu=2, gpu=8, memMB=1024), True, True),
        (Resource(cpu=2, gpu=8, memMB=1024), False, False),
        (Resource(cpu=64, gpu=8, memMB=262144), True, False),
        (Resource(cpu=2, gpu=0, memMB=1024), True, False),
        (Resource(cpu=-1, gpu=-1, memMB=-1), True, False),
    ],
    ids=["defaults with GPUs", "nobody enforces it", "enough", "no GPU", "unset"],
)
def test_gpus_with_little_memory(runner, caplog, monkeypatch, resource, enforced, warned) -> None:
    """The default memory of a component is for jobs without GPUs; the warning suggests a value."""
    scheduler = backend(runner)
    monkeypatch.setattr(scheduler, "capabilities", Capabilities(resources=enforced))
    pipeline.prepare(_app(resource=resource), None, "memory", scheduler)
    assert [("--cpu 64 --memMB 262144" in text) for text in caplog.messages] == [True] * warned


# -- what is written down ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app_id", "handle"),
    [("a-1", "memory://test/a-1"), ("ns:a-1", "memory://test/ns:a-1"), ("", "")],
    ids=["known", "with a namespace", "unknown"],
)
def test_a_handle_that_is_known_before(runner, monkeypatch, app_id, handle) -> None:
    """If the scheduler knows the app id of a request; else the handle is empty."""

    def schedule(info: Any) -> str:
        ((run, _),) = default_registry().intents()
        assert run.handle == handle
        return "a-1"

    monkeypatch.setattr(backend(runner), "expected_id", lambda info: app_id)
    monkeypatch.setattr(backend(runner), "schedule", schedule)
    assert runner.run(echo_app(), "memory") == "memory://test/a-1"


def test_a_handle_that_cannot_be_parsed(runner, monkeypatch) -> None:
    """Nothing is submitted."""
    monkeypatch.setattr(backend(runner), "expected_id", lambda info: "a 1")
    monkeypatch.setattr(backend(runner), "schedule", pytest.fail)
    with pytest.raises(HandleError):
        runner.run(echo_app(), "memory")


def test_secrets_in_options(now) -> None:
    """Masked by the option's name at any depth, and by the look of a text in lists; empty values are kept."""
    cfg: Any = {
        "api_key": "", "token": "t", "plain": 3, "none": None,
        "nested": {"password": "p", "user": "u"}, "list": ["HF_TOKEN=abc", "x"], "text": "HF_TOKEN=abc",
    }  # fmt: skip
    shown = {key: found["value"] for key, found in record.masked_settings(None, cfg).items()}
    assert shown["api_key"] == "" and shown["plain"] == 3 and shown["none"] is None
    assert shown["token"] == "********"
    assert shown["nested"] == {"password": "********", "user": "u"}
    assert shown["list"] == ["HF_TOKEN=********", "x"] and shown["text"] == "HF_TOKEN=********"


def test_news_are_recorded(runner) -> None:
    """A new state or message, and the end with its time."""
    handle = runner.run(echo_app(), "memory")
    for answer in (
        DescribeAppResponse("echo-1", AppState.RUNNING),
        DescribeAppResponse("echo-1", AppState.RUNNING, msg="x"),
        DescribeAppResponse("echo-1", AppState.FAILED, msg="y", ended_at=5.0),
    ):
        backend(runner).describe = lambda app_id, answer=answer: answer
        runner.status(handle)
        run = default_registry().get(handle)
        assert (run.state, run.msg, run.ended_at) == (answer.state, answers.message_of(answer), answer.ended_at)


def test_an_event_of_which_nobody_hears_costs_nothing(monkeypatch) -> None:
    """The job is not even looked up."""
    monkeypatch.setenv("TORCHX_INTERNAL_SESSION_ID", "me")
    event = events.log_event("status")
    event.on = False
    event.name_job("not a handle")
    event.on = True
    event.name_job("m://s/a-1")
    assert (event._torchx_event.scheduler, event._torchx_event.app_id) == ("m", "a-1")
