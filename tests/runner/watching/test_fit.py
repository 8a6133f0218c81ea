"""What a job used against what it asked for: options that would do, on the page, on record, and in a rerun."""

from __future__ import annotations

import json

import pytest

from torchx.runner.watching import fit, metrics
from torchx.runs import NewRun, RunQuery, RunRegistry
from torchx.schedulers.kit.metrics import AttemptUsage, Gpu, ReplicaMetrics, Sample
from torchx.specs import AppDef, AppState, AppStatus, Resource, Role
from torchx.specs.fit import RoleUsage
from torchx.specs.serialize import appdef_to_dict

GIB = 1 << 30


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"memory_asked": 64 * GIB, "memory": 9 * GIB}, {"mem": "12G"}),
        ({"memory_asked": 12 * GIB, "memory": 9 * GIB}, {}),
        ({"memory_asked": GIB, "memory": 20 << 20}, {"mem": "256M"}),
        ({"memory_asked": GIB, "memory": 2 * GIB}, {}),
        ({"memory": 9 * GIB}, {}),
        ({"cpus_asked": 8, "cpus": 1.0}, {"cpu": "2"}),
        ({"cpus_asked": 1, "cpus": 0.0}, {}),
        ({"cpus_asked": 8, "cpus": None}, {}),
        ({"limit_s": 86400, "seconds": 3600}, {"timeout": "100m"}),
        ({"limit_s": 7200, "seconds": 5400}, {}),
        ({"limit_s": 86400, "seconds": None}, {}),
    ],
)
def test_options_that_would_do(given, options):
    assert RoleUsage(role="w", **given).enough() == options


@pytest.mark.parametrize("peak", [1 << 20, 300 << 20, 3 * GIB, 4 * GIB, 77 * GIB])
def test_the_memory_has_a_margin(peak):
    text = RoleUsage(role="w", memory_asked=1 << 50, memory=peak).enough()["mem"]
    assert int(text[:-1]) << {"M": 20, "G": 30}[text[-1]] >= 1.3 * peak


APP = AppDef("a", [Role("w", "img", num_replicas=2, resource=Resource(cpu=8, gpu=4, memMB=64 << 10))])
USED = [
    ReplicaMetrics("w", 0, 8, 64 * GIB, attempts=[AttemptUsage(0, 1.0, 3 * GIB, 10.0, 3600.0, 5 * GIB)]),
    ReplicaMetrics("w", 1, 8, 64 * GIB, attempts=[AttemptUsage(0, 2.0, 9 * GIB, 30.0, 3600.0, 7 * GIB)]),
]


@pytest.fixture
def registry(tmp_path):
    found = RunRegistry(str(tmp_path / "runs.db"))
    yield found
    found.close()


def run_of(registry, app_id, state, used):
    handle = f"slurm://torchx/{app_id}"
    run_id = registry.begin(
        NewRun(scheduler="slurm", session="torchx", name=app_id, handle=handle, app=appdef_to_dict(APP))
    )
    registry.submitted(run_id, handle)
    registry.saw(handle, state)
    rows = [[m.role, m.replica, m.cpus, m.memory_limit, [[*vars(a).values()] for a in m.summary()]] for m in used]
    if rows:
        registry.tag(handle, {metrics.TAG: json.dumps(rows)})
    return registry.get(handle)


def test_the_largest_replica_counts(registry):
    [usage] = fit.compare(run_of(registry, "a", AppState.SUCCEEDED, USED), USED, None, None)
    assert (usage.memory, usage.cpus, usage.gpu, usage.gpu_memory) == (9 * GIB, 2.0, 20.0, 7 * GIB)
    assert usage.enough() == {"mem": "12G", "cpu": "4"}
    page = AppStatus(AppState.SUCCEEDED, usage=[usage]).format()
    assert "used:     9 GiB of 64 GiB memory, 2.0 of 8 CPUs, GPUs 20 % busy; `--mem 12G --cpu 4` would do" in page


@pytest.mark.parametrize("state", [AppState.FAILED, AppState.RUNNING, AppState.CANCELLED])
def test_a_job_that_has_not_succeeded_gets_no_advice(state):
    usage = RoleUsage(role="w", memory_asked=64 * GIB, memory=GIB)
    page = AppStatus(state, usage=[usage]).format()
    assert "used:     1 GiB of 64 GiB memory\n" in page + "\n"


def test_what_is_recorded_is_read_by_this_and_the_older_torchx(registry):
    """A record of an older torchx lacks the memory of GPUs."""
    run = run_of(registry, "a", AppState.SUCCEEDED, USED)
    assert metrics.on_record(run) == USED
    run.tags[metrics.TAG] = '[["w", 0, 8, 9, [[0, 1.0, 5, null, 60.0]]]]'
    assert metrics.on_record(run)[0].attempts == [AttemptUsage(0, 1.0, 5, None, 60.0)]


def test_peak_of_gpu_memory():
    samples = [Sample(t, 1.0, 5, [Gpu(50.0, used, 80), Gpu(50.0, used, 80)]) for t, used in ((0.0, 10), (9.0, 30))]
    assert ReplicaMetrics("w", 0, samples=[*samples]).summary()[0].gpu_memory == 60


def test_the_most_wasteful_come_first(registry, monkeypatch, caplog):
    small = [ReplicaMetrics("w", 0, 8, 64 * GIB, attempts=[AttemptUsage(0, 8.0, 64 * GIB, 99.0, 3600.0)])]
    run_of(registry, "little", AppState.FAILED, small)
    run_of(registry, "much", AppState.SUCCEEDED, USED)
    run_of(registry, "unknown", AppState.SUCCEEDED, [])
    run_of(registry, "live", AppState.RUNNING, USED)
    much, little = fit.wasteful(registry, RunQuery())
    assert (much.run.name, much.options) == ("much", "--mem 12G --cpu 4")
    assert (much.gpu_hours, much.cpu_hours, much.gib_hours) == pytest.approx((3.6 + 2.8, 7 + 6, 61 + 55))
    assert (little.run.name, little.options) == ("little", "")
    assert little.gpu_hours == pytest.approx(0.04)
    assert not caplog.text
    monkeypatch.setattr(fit, "_MOST", 2)
    fit.wasteful(registry, RunQuery())
    assert "only the newest 2 runs of these are compared" in caplog.text


def test_what_was_seen_by_those_who_looked():
    """Of a scheduler that reports only the current use: the peak, and the average over the time between looks."""

    def look(at, cpu, memory, kept=()):
        return metrics._with_seen("k8s://a/b", kept, [ReplicaMetrics("w", 0, 8, 9, samples=[Sample(at, cpu, memory)])])

    first = look(100.0, 4.0, 5)
    second = look(110.0, 1.0, 7, first)
    third = look(140.0, 3.0, 6, second)
    assert [one.attempts for (one,) in (first, second, third)] == [
        [AttemptUsage(0, 4.0, 5, None, 0.0)],
        [AttemptUsage(0, 1.0, 7, None, 10.0)],
        [AttemptUsage(0, 2.5, 7, None, 40.0)],
    ]
    assert look(140.0, 3.0, 6, third) == [], "the same sample again"
    assert look(9000.0, 3.0, 6, third)[0].attempts[0].seconds == 340.0, "nothing is known of the hours between"


def test_a_role_that_asked_for_nothing(registry):
    """The estimates of a role without resources are not compared with what it used, and are not unused."""
    app = AppDef("a", [Role("w", "img")])
    handle = "slurm://torchx/bare"
    new = NewRun(scheduler="slurm", session="torchx", name="bare", handle=handle, app=appdef_to_dict(app))
    registry.submitted(registry.begin(new), handle)
    registry.saw(handle, AppState.SUCCEEDED)
    registry.tag(handle, {metrics.TAG: json.dumps([["w", 0, 8, None, [[0, 0.1, 20 << 20, None, 3600.0, None]]]])})
    run = registry.get(handle)
    [usage] = fit.compare(run, metrics.on_record(run), None, None)
    assert (usage.memory_asked, usage.cpus_asked, str(usage), usage.enough()) == (None, None, "", {})
    assert fit.wasteful(registry, RunQuery()) == []
