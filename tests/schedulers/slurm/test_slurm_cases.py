"""Cases of Slurm's facts in which one operand of a condition decides."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.slurm.answers import (
    Job,
    bare,
    explained,
    facts_of,
    pending_sentence,
    telling_files,
)
from torchx.schedulers.slurm.client import SlurmQueries
from torchx.schedulers.slurm.events import JobEvents, parse_events
from torchx.schedulers.slurm.options import SlurmOpts, early_warning
from torchx.schedulers.slurm.parse import JobRecord, settled
from torchx.specs import AppState, Resource, RetryPolicy, Role
from torchx.specs.wishes.retries import Attempt
from torchx.testing.commands import FakeCommandRunner

UP = "100 start 0 7\n101 up w/0 n1\n101 up w/1 n2\n"


def record(state: str = "RUNNING", **more: Any) -> JobRecord:
    return JobRecord(job_id="7", state=state, **more)


def job(events: str = UP, *records: JobRecord, role: Role | None = None, **more: Any) -> Job:
    """A job of two replicas; without records Slurm has forgotten it."""
    roles = [role or Role("w", "", num_replicas=2)]
    return Job(app_id="7", records=records, events=parse_events(events), roles=roles, **more)


@pytest.mark.parametrize(
    ("kind", "again", "state", "cause"),
    [
        pytest.param("timeout", False, "FAILED", "timeout", id="the last piece of a chain"),
        pytest.param("timeout", True, "FAILED", "", id="an attempt follows"),
        pytest.param("error", False, "FAILED", "", id="it failed"),
        pytest.param("timeout", False, "CANCELLED", "", id="it was cancelled"),
    ],
)
def test_the_record_of_the_last_attempt(kind: str, again: bool, state: str, cause: str) -> None:
    """Its script ends it ahead of Slurm's limit: for Slurm it has failed, and its step was cancelled."""
    made = job(f"{UP}105 down w/0 143\n", record(state), attempts=[Attempt(kind=kind, again=again)])
    assert (facts_of(made).kind, "time limit" in facts_of(made).reason) == (cause, bool(cause))


# -- the state of each replica -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "records", "states"),
    [
        ("", [record("PENDING")], "PENDING PENDING"),
        ("", [record("RUNNING")], "RUNNING RUNNING"),
        ("", [record("FAILED")], "CANCELLED CANCELLED"),
        ("", [], "UNKNOWN UNKNOWN"),
        (f"{UP}105 down w/0 0\n", [record()], "SUCCEEDED RUNNING"),
        (f"{UP}105 down w/0 3\n", [record()], "FAILED RUNNING"),
        (f"{UP}105 down w/0 143\n", [record()], "FAILED RUNNING"),
        (f"{UP}105 down w/0 143\n", [record(completing=True)], "CANCELLED RUNNING"),
        (f"{UP}105 down w/0 3\n", [record(completing=True)], "FAILED RUNNING"),
        (f"{UP}105 down w/0 143\n", [record("PENDING")], "PENDING PENDING"),
        (f"{UP}105 down w/0 0\n106 end 0\n", [record("COMPLETED", ended=106.0)], "SUCCEEDED SUCCEEDED"),
        (UP, [record("FAILED", ended=106.0)], "CANCELLED CANCELLED"),
        (UP, [record("FAILED", ended=106.0, completing=True)], "RUNNING RUNNING"),
        (UP, [record("COMPLETED", ended=106.0)], "SUCCEEDED SUCCEEDED"),
        (f"{UP}105 down w/0 0\n", [record("CANCELLED", ended=106.0)], "CANCELLED CANCELLED"),
        (f"{UP}104 down w/0 0\n", [record("CANCELLED", ended=106.0)], "SUCCEEDED CANCELLED"),
        (f"{UP}104 down w/0 3\n", [record("CANCELLED", ended=106.0)], "FAILED CANCELLED"),
        (f"{UP}104 down w/0 143\n", [record("CANCELLED", ended=106.0)], "CANCELLED CANCELLED"),
        (f"{UP}104 down w/0 3\n105 down w/1 143\n", [record("FAILED", ended=106.0)], "FAILED FAILED"),
        (f"{UP}104 down w/0 143\n", [record("NODE_FAIL", ended=106.0)], "FAILED CANCELLED"),
        ("100 start 0 7\n101 up w/0 n1\n101 absent w/1\n", [record()], "RUNNING PENDING"),
        ("100 start 0 7\n101 up w/0 n1\n101 absent w/1\n", [record("COMPLETED")], "SUCCEEDED CANCELLED"),
    ],
)
def test_states_of_replicas(events: str, records: list[JobRecord], states: str) -> None:
    """Each one's own end counts; what was ended with the job is cancelled, and waits where the job waits."""
    found = facts_of(job(events, *records)).roles[0].replicas
    assert " ".join(one.state.name for one in found) == states


@pytest.mark.parametrize(
    ("ends", "records", "stopped"),
    [
        ("104 down w/0 3\n105 down w/1 143\n", [record("FAILED")], [False, True]),
        ("105 down w/0 3\n105 down w/1 143\n", [record("FAILED")], [False, False]),
        ("104 down w/0 143\n", [record("FAILED")], [False, True]),
        ("104 down w/0 143\n", [record("TIMEOUT")], [True, True]),
        ("104 down w/0 3\n", [record("TIMEOUT")], [False, True]),
        ("104 down w/0 3\n", [record("PREEMPTED")], [True, True]),
        ("104 down w/0 3\n", [record("NODE_FAIL")], [True, True]),
        ("104 down w/0 0\n", [record("NODE_FAIL")], [False, True]),
        ("104 down w/0 3\n104 silent\n", [record("FAILED")], [True, True]),
        ("104 down w/0 143\n", [record("RUNNING", completing=True)], [True, False]),
        ("104 down w/0 143\n", [record("RUNNING")], [False, False]),
        ("104 down w/0 3\n105 down w/1 4\n", [record("FAILED")], [False, False]),
    ],
)
def test_who_was_stopped(ends: str, records: list[JobRecord], stopped: list[bool]) -> None:
    """By a signal after another one's failure, or with the whole job: its exit code is not its own."""
    found = facts_of(job(UP + ends, *records)).roles[0].replicas
    assert [one.stopped for one in found] == stopped
    assert all(one.exit_code is None for one in found if one.stopped)


@pytest.mark.parametrize(
    ("code", "exit_code", "word"),
    [(3, 3, ""), (128, 128, ""), (137, None, "SIGKILL"), (139, None, "SIGSEGV"), (0, 0, "")],
)
def test_codes_and_signals(code: int, exit_code: int | None, word: str) -> None:
    """Codes above 128 are signals."""
    one = facts_of(job(f"{UP}104 down w/0 {code}\n", record("FAILED"))).roles[0].replicas[0]
    assert (one.exit_code, one.signal, one.host, one.ended) == (exit_code, word, "n1", 104.0)


@pytest.mark.parametrize(
    ("policy", "retries", "events", "restarts"),
    [
        (RetryPolicy.REPLICA, 1, "", True),
        (RetryPolicy.REPLICA, 1, "105 again w/0\n", False),
        (RetryPolicy.REPLICA, 2, "105 again w/0\n106 again w/1\n", True),
        (RetryPolicy.ROLE, 2, "105 again w/0\n", True),
        (RetryPolicy.ROLE, 2, "105 again w/0\n106 again w/1\n", False),
        (RetryPolicy.APPLICATION, 1, "", True),
        (RetryPolicy.APPLICATION, 0, "", False),
    ],
)
def test_whether_a_failure_is_made_good(policy: RetryPolicy, retries: int, events: str, restarts: bool) -> None:
    """While there are retries left, and only in a job that runs."""
    role = Role("w", "", num_replicas=2, retry_policy=policy, max_retries=retries)
    assert facts_of(job(UP + events, record(), role=role)).roles[0].restarts is restarts
    assert not facts_of(job(UP + events, record("COMPLETED"), role=role)).roles[0].restarts
    if policy is RetryPolicy.APPLICATION:
        role.min_replicas = 1
        assert not facts_of(job(UP + events, record(), role=role)).roles[0].restarts


# -- the job -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "records", "times"),
    [
        (UP, [record(started=90.0)], (100.0, None)),
        ("", [record(started=90.0)], (90.0, None)),
        (UP, [record("PENDING", started=900.0)], (None, None)),
        (f"{UP}105 end 0\n", [record("COMPLETED", started=90.0, ended=110.0)], (100.0, 110.0)),
        (f"{UP}105 end 0\n", [record("COMPLETED", started=90.0)], (100.0, 105.0)),
        (f"{UP}105 end 0\n", [], (100.0, 105.0)),
        ("", [], (None, None)),
    ],
)
def test_when_a_job_ran(events: str, records: list[JobRecord], times: tuple[float | None, float | None]) -> None:
    """Its own start, and Slurm's end; a job that waits has neither, although Slurm reports an estimate."""
    facts = facts_of(job(events, *records))
    assert (facts.started or None, facts.ended) == times


@pytest.mark.parametrize(
    ("events", "records", "restarts"),
    [
        (UP, [record()], 0),
        (UP, [record(restarts=2)], 2),
        (UP + UP, [record(restarts=0)], 1),
        (UP, [record("PENDING")], 1),
        ("", [record("PENDING")], 0),
        (f"{UP}105 again w/0\n", [record(restarts=1)], 2),
        ("", [], 0),
    ],
)
def test_how_often_it_was_restarted(events: str, records: list[JobRecord], restarts: int) -> None:
    """By Slurm's counter or its own, whichever is more; and parts of it."""
    assert facts_of(job(events, *records)).restarts == restarts


@pytest.mark.parametrize(
    ("events", "state"),
    [("", "UNKNOWN"), (f"{UP}9 end 0\n", "SUCCEEDED"), (f"{UP}9 end 3\n", "FAILED"), (UP, "UNKNOWN")],
)
def test_a_job_that_slurm_has_forgotten(events: str, state: str) -> None:
    """What it recorded itself is its state."""
    assert facts_of(job(events)).state.name == state
    assert facts_of(bare("7", [record("FAILED")])).state is AppState.FAILED


@pytest.mark.parametrize(
    ("events", "records", "texts", "reason"),
    [
        ("", [], {}, "Slurm no longer knows this job, and it never started"),
        (UP, [], {}, "Slurm no longer knows this job, and it did not record how it ended"),
        ("", [record("ODD")], {}, "Slurm says `ODD`, which this version of torchx does not know"),
        (f"{UP}104 down w/0 3\n", [record("FAILED", exit_code=3)], {}, ""),
        (UP, [record("FAILED", exit_code=3)], {}, "the batch script failed: exit code 3"),
        (UP, [record("FAILED", exit_code=3, reason="NonZeroExitCode")], {}, "the batch script failed: exit code 3"),
        (UP, [record("FAILED", signal=9, exit_code=3)], {}, "the batch script failed: killed by SIGKILL"),
        (UP, [record("FAILED", signal=199)], {}, "the batch script failed: killed by 199"),
        (UP, [record("FAILED")], {"slurm.log": "one\nno such file\n"}, "the batch script failed: no such file"),
        (UP, [record("COMPLETED")], {}, ""),
        (UP, [record("RUNNING")], {}, ""),
        (f"{UP}104 silent\n", [record("FAILED")], {}, "it was silent for longer than its watchdog allows"),
        (f"{UP}104 silent\n", [record("FAILED")], {"watchdog.txt": "no output for 1 min\n"}, "no output for 1 min"),
    ],
)
def test_why_a_job_is_in_its_state(events: str, records: list[JobRecord], texts: dict[str, str], reason: str) -> None:
    """The sentence for each case; none where a replica has failed, whose own reason counts."""
    assert facts_of(job(events, *records, texts=texts)).reason == reason


@pytest.mark.parametrize(
    ("nodes", "texts", "end"),
    [
        ("n[1-2]", {}, "; its nodes: n[1-2]"),
        ("", {}, ""),
        ("n[1-2]", {"w/0/srun.log": "srun: error: Node failure on n2\n"}, ": n2"),
    ],
)
def test_which_node_failed(nodes: str, texts: dict[str, str], end: str) -> None:
    """As the steps say; else it is one of the job's."""
    for state, has in (("NODE_FAIL", True), ("BOOT_FAIL", True), ("TIMEOUT", False)):
        reason = facts_of(job(UP, record(state, nodes=nodes), texts=texts)).reason
        bare_reason = facts_of(job(UP, record(state))).reason
        assert reason == (bare_reason + end if has else bare_reason)


@pytest.mark.parametrize(
    ("events", "records", "names"),
    [
        (UP, [record()], []),
        (f"{UP}104 hang\n", [record()], ["watchdog.txt"]),
        (UP, [record("FAILED")], ["slurm.log"]),
        (f"{UP}104 hang\n", [record("FAILED")], ["watchdog.txt", "slurm.log"]),
        (f"{UP}104 silent\n", [record("FAILED")], ["watchdog.txt"]),
        (f"{UP}104 down w/0 3\n", [record("FAILED")], []),
        (UP, [record("TIMEOUT")], []),
        (UP, [record("NODE_FAIL")], ["w/0/srun.log", "w/1/srun.log"]),
        (f"{UP}104 down w/0 0\n", [record("BOOT_FAIL")], ["w/1/srun.log"]),
        ("100 start 0 7\n101 absent w/0\n", [record("NODE_FAIL")], []),
    ],
)
def test_which_files_may_tell(events: str, records: list[JobRecord], names: list[str]) -> None:
    """Those that explain the state, and no others: each is read over the network."""
    assert telling_files(job(events, *records)) == names


@pytest.mark.parametrize(
    ("events", "records", "killed"),
    [
        (f"{UP}104 down w/0 137\n", [record("FAILED")], True),
        (f"{UP}104 down w/0 143\n", [record("FAILED")], False),
        (UP, [record("FAILED", signal=9)], True),
        (UP, [record("FAILED", signal=15)], False),
    ],
)
def test_who_may_have_run_out_of_memory(events: str, records: list[JobRecord], killed: bool) -> None:
    """Whoever SIGKILL ended."""
    assert job(events, *records).was_killed is killed


MIB = 1 << 20


@pytest.mark.parametrize(
    ("steps", "asked", "reason"),
    [
        ([record("OUT_OF_MEMORY", max_rss=30 * MIB)], 100, "out of memory: a step used 30 MiB"),
        ([record("OUT_OF_MEMORY")], 100, "out of memory"),
        (
            [record("FAILED", max_rss=96 * MIB)],
            100,
            "probably out of memory: a step used 96 MiB, and 100 MiB were asked for",
        ),
        ([record("FAILED", max_rss=95 * MIB)], 100, ""),
        ([record("FAILED", max_rss=96 * MIB)], 0, ""),
        ([record("FAILED", max_rss=96 * MIB)], -1, ""),
        ([], 100, ""),
    ],
)
def test_memory_of_steps(steps: list[JobRecord], asked: int, reason: str) -> None:
    """Slurm's word, or a use close to what was asked for."""
    role = Role("w", "", num_replicas=2, resource=Resource(1, 0, asked))
    found = facts_of(job(f"{UP}104 down w/0 137\n105 down w/1 143\n", record("FAILED"), role=role, steps=steps))
    assert [one.reason for one in found.roles[0].replicas] == [reason, ""]


@pytest.mark.parametrize(
    ("said", "word", "stderr", "reason"),
    [
        ("srun: error: n1: task 0: Out Of Memory\nslurmstepd: error: oom_kill event", "SIGKILL", "x", "out of memory"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "", "x", "out of memory"),
        ("srun: error: no such partition", "", "", "no such partition"),
        ("srun: error: no such partition", "", "its own words", ""),
        ("srun: error: no such partition", "", " \n", "no such partition"),
        ("srun: error: n1: task 0: Exited with exit code 3", "", "", ""),
        ("srun: error: n1: task 0: Killed\nsrun: error: second", "", "", "second"),
        ("", "", "", ""),
    ],
)
def test_what_slurm_says_of_a_step(said: str, word: str, stderr: str, reason: str) -> None:
    """Memory always counts; anything else only if the program itself left nothing."""
    assert explained(Evidence(said=said, stderr=stderr), signal=word).reason == reason


# -- pending -----------------------------------------------------------------------------------------

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("events", "given", "retries", "sentence"),
    [
        ("", {}, 0, "Slurm has not looked at it yet"),
        ("", {"reason": "None"}, 0, "Slurm has not looked at it yet"),
        ("", {"reason": "Priority"}, 0, "jobs of higher priority go first (Priority)"),
        (f"{UP}104 retry 1\n", {"reason": "BeginTime"}, 0, "starts again after a failure, retry 1"),
        (f"{UP}104 retry 1\n", {"reason": "BeginTime"}, 3, "starts again after a failure, retry 1 of 3"),
        (f"{UP}104 retry 1\n", {}, 0, "starts again after a failure, retry 1"),
        (
            f"{UP}104 retry 1\n",
            {"reason": "Priority"},
            0,
            "starts again after a failure, retry 1; jobs of higher priority go first (Priority)",
        ),
        ("", {"started": NOW}, 0, "Slurm has not looked at it yet"),
        ("", {"started": NOW + 1e9}, 0, "Slurm has not looked at it yet"),
    ],
)
def test_why_a_job_waits(events: str, given: dict[str, Any], retries: int, sentence: str) -> None:
    """Slurm's reason in words; of one that starts again, which retry that is."""
    found = pending_sentence([record("PENDING", **given)], parse_events(events), most_retries=retries, now=NOW)
    assert found == sentence


@pytest.mark.parametrize(
    ("seconds", "about"),
    [
        (1, "1 min"),
        (89, "1 min"),
        (91, "2 min"),
        (89.4 * 60, "89 min"),
        (90 * 60, "2 h"),
        (2879 * 60, "48 h"),
        (2880 * 60, "2 days"),
    ],
)
def test_when_it_may_start(seconds: float, about: str) -> None:
    """In minutes, hours or days, and the time of day, with the date if it is another day."""
    found = pending_sentence([record("PENDING", started=NOW + seconds)], JobEvents(), now=NOW)
    assert f"expected to start in about {about}, at " in found
    if seconds < 2 or seconds > 86400:
        assert len(found.rpartition(" at ")[2]) == (len("22:13") if seconds < 2 else len("2023-11-16 22:13"))


# -- records and options -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "more", "end", "shown"),
    [
        ("COMPLETING", {}, record("CANCELLED"), "CANCELLED"),
        ("COMPLETING", {}, record("RUNNING"), "COMPLETING"),
        ("RUNNING", {}, record("CANCELLED"), "RUNNING"),
        ("COMPLETING", {"restarts": 1}, record("PREEMPTED"), "COMPLETING"),
        ("COMPLETING", {"restarts": 1, "ended": 9.0}, record("PREEMPTED"), "PREEMPTED"),
        ("COMPLETING", {"restarts": 1}, record("FAILED"), "FAILED"),
        ("COMPLETING", {"component": 1}, record("CANCELLED"), "COMPLETING"),
    ],
)
def test_a_component_that_is_completing(state: str, more: dict[str, Any], end: JobRecord, shown: str) -> None:
    """Accounting knows how it ended, unless Slurm puts it back."""
    (found,) = settled([record(state, **more)], [end])
    assert found.state == shown


def test_the_end_of_a_component() -> None:
    """Accounting's time, code and signal; its own time, if there is none."""
    (one,) = settled([record("COMPLETING", ended=5.0)], [record("FAILED", ended=9.0, exit_code=3, signal=4)])
    assert (one.ended, one.exit_code, one.signal) == (9.0, 3, 4)
    (one,) = settled([record("COMPLETING", ended=5.0)], [record("FAILED")])
    assert one.ended == 5.0


@pytest.mark.parametrize(
    ("given", "early"),
    [
        ({}, 120),
        ({"signal": "USR1@300"}, 300),
        ({"signal": "USR1"}, 120),
        ({"signal": "USR1", "time": "2:00"}, 90),
        ({"time": "2:39"}, 119),
        ({"time": "2:40"}, 120),
        ({"time": "10:00"}, 120),
    ],
)
def test_how_early_the_script_is_warned(given: dict[str, Any], early: int) -> None:
    """As the user wishes; else two minutes, or less before a short limit."""
    assert early_warning(SlurmOpts(**given)) == early


@pytest.mark.parametrize(
    ("sizes", "none"),
    [("1", True), ("0", True), ("1+", True), ("64000", False), ("", False), ("64000\n1", True), ("10", False)],
)
def test_nodes_without_memory(sizes: str, none: bool) -> None:
    """Slurm reports 1 MiB for them."""
    fake = FakeCommandRunner()
    fake.on("sinfo", stdout=f"{sizes}\n")
    queries = SlurmQueries(lambda argv, **_: fake.run(argv))
    assert queries.knows_no_memory(["b", "a"]) is none
    assert fake.argvs("sinfo")[-1][-2:] == ["--partition=a", "--partition=b"]


@pytest.mark.parametrize(
    ("answer", "found"),
    [("9\n10\n", "9"), ("10\n9\n", "9"), ("", ""), ("x\n", ""), ("Welcome\n9\nx\n", "9")],
    ids=["two", "newest first", "none", "odd", "a wrapper"],
)
def test_a_job_that_accounting_knows_by_its_name(answer: str, found: str) -> None:
    """The first of that name, submitted since then: the clocks may differ by an hour."""
    fake = FakeCommandRunner()
    fake.on("sacct", stdout=answer)
    queries = SlurmQueries(lambda argv, **_: fake.run(argv))
    assert queries.named("a-1", 7200.0) == found
    assert "--starttime=now-4hours" in fake.argvs("sacct")[0]
    broken = FakeCommandRunner()
    broken.on("sacct", stdout="9\n", returncode=1)
    assert SlurmQueries(lambda argv, **_: broken.run(argv)).named("a-1", 0.0) == ""
