"""Slurm's answers, from several releases and generated."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import rows
from torchx.errors import ParseError
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.slurm.answers import Job, bare, facts_of, pending_sentence
from torchx.schedulers.slurm.client import NO_SUCH_JOB, parse_version
from torchx.schedulers.slurm.events import JobEvents, parse_events
from torchx.schedulers.slurm.parse import (
    SACCT_FIELDS,
    SEPARATOR,
    JobRecord,
    parse_sacct,
    parse_squeue,
    split_id,
)
from torchx.schedulers.slurm.reasons import SLURM_STATES, app_state, reason_sentence
from torchx.specs import AppState, Role
from torchx.testing.commands import Recordings

RECORDED = Recordings(str(Path(__file__).parents[2] / "recorded"))
VERSIONS = [v for v in RECORDED.versions("slurm") if v != "README.md"]
EXPECTED = {
    "done": AppState.SUCCEEDED,
    "failed": AppState.FAILED,
    "killed": AppState.FAILED,
    "running": AppState.RUNNING,
    "held": AppState.PENDING,
    "begin": AppState.PENDING,
    "het": AppState.RUNNING,
    "cancelled": AppState.CANCELLED,
    "arraywait": AppState.PENDING,
}
LATER = {
    "timeout": AppState.FAILED,
    "lost": AppState.FAILED,
    "memory": AppState.FAILED,
    "requeued": AppState.PENDING,
}
"""What the recordings that came after 22.05 have besides."""


class Recorded:
    """Records of one release, by the names of its jobs."""

    def __init__(self, version: str, records: list[JobRecord]) -> None:
        self.ids: dict[str, str] = json.loads(RECORDED.read("slurm", version, "ids.json"))
        self.records = records

    def of(self, name: str) -> list[JobRecord]:
        return [record for record in self.records if record.job_id == self.ids[name]]

    def check(self) -> None:
        """Facts about the recorded jobs that are the same in every release."""
        expected = {**EXPECTED, **{name: state for name, state in LATER.items() if name in self.ids}}
        states = {name: {app_state(r.state) for r in self.of(name)} for name in expected}
        assert states == {name: {state} for name, state in expected.items()}
        assert sorted(r.component for r in self.of("het")) == [0, 1]
        array = self.ids["array"]
        tasks = [r for r in self.records if r.job_id.startswith(f"{array}_")]
        assert sorted(r.job_id for r in tasks) == [f"{array}_{task}" for task in (1, 2, 3)]
        assert {r.name for r in tasks} == {"not ours | 7"}
        assert [r.exit_code for r in self.of("failed")] == [3]
        assert [r.reason for r in self.of("held")] == ["JobHeldUser"]
        assert re.fullmatch(r"n\[\d[-,]\d\]", self.of("running")[0].nodes)
        (done,) = self.of("done")
        assert 0 < (done.started or 0) <= (done.ended or 0)
        assert done.folder.endswith(f"/slurm/{done.name}")
        assert [(r.exit_code, r.signal) for r in self.of("killed")] == [(137, 0)]
        if "lost" in self.ids:
            assert [(r.state, r.reason) for r in self.of("lost")] == [("NODE_FAIL", "NodeDown")]
            assert [(r.state, r.reason) for r in self.of("timeout")] == [("TIMEOUT", "TimeLimit")]
            assert [(r.reason, r.restarts) for r in self.of("requeued")] == [("BeginTime", 1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_plain_answers(version: str) -> None:
    """All releases report the same facts."""
    Recorded(version, parse_squeue(RECORDED.read("slurm", version, "squeue.txt"))).check()


@pytest.mark.parametrize("version", VERSIONS)
def test_accounting(version: str) -> None:
    """Jobs and steps, with exit codes, signals and memory."""
    jobs = Recorded(version, parse_sacct(RECORDED.read("slurm", version, "sacct.txt")))
    # Of those that wait it has not always heard.
    states = {name: {app_state(r.state) for r in jobs.of(name)} for name in EXPECTED}
    assert {name for name, found in states.items() if not found} <= {"held", "begin", "arraywait"}
    assert all(found <= {EXPECTED[name]} for name, found in states.items())
    assert [r.exit_code for r in jobs.of("failed")] == [3]
    steps = Recorded(version, parse_sacct(RECORDED.read("slurm", version, "sacct-steps.txt")))
    (killed,) = [r for r in steps.of("killed") if r.step == "0"]
    assert (killed.exit_code, killed.signal) == (None, 9)
    if version != "25.11":  # which gathered nothing on the test cluster
        assert any(r.max_rss > 1 << 20 for r in steps.of("cancelled") if r.step)


@pytest.mark.parametrize("version", VERSIONS)
def test_unknown_jobs(version: str) -> None:
    """The message by which Slurm reports that it knows none of the jobs."""
    assert NO_SUCH_JOB.search(RECORDED.read("slurm", version, "squeue-unknown.stderr"))


@pytest.mark.parametrize("version", VERSIONS)
def test_versions(version: str) -> None:
    """Major and minor."""
    assert parse_version(RECORDED.read("slurm", version, "version.txt")) == tuple(map(int, version.split(".")))


REASONS = sorted(
    {reason for path in Path(RECORDED.folder, "slurm").glob("*/reasons.txt") for reason in path.read_text().split()}
)


@rows("reason", REASONS)
def test_every_reason_has_a_sentence(reason: str) -> None:
    """Each reason of any release has one, including limits."""
    sentence = reason_sentence(reason)
    assert sentence
    assert "`" not in sentence.replace("`scontrol release`", "")
    assert reason not in sentence


def test_a_reason_that_nobody_knows() -> None:
    """It is passed on unchanged."""
    assert reason_sentence("FluxCapacitor") == "Slurm's reason is `FluxCapacitor`"
    assert reason_sentence("None") == ""
    sentence = reason_sentence(
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    )
    assert sentence == "the nodes that could run it are down, drained or reserved for jobs of higher priority"


def test_waiting_is_explained_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, Slurm's reason, and the expected start."""
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    record = JobRecord(job_id="7", state="PENDING", reason="Resources", started=1_000_000 + 1800)
    told = pending_sentence([record], JobEvents(), now=1_000_000)
    assert told.endswith("(Resources); expected to start in about 30 min, at 14:16")
    retry = pending_sentence([record], JobEvents(retries=1, retrying=True), most_retries=3, now=2_000_000)
    assert retry.startswith("starts again after a failure, retry 1 of 3; ")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("CANCELLED by 1000", AppState.CANCELLED),
        (["COMPLETED", "COMPLETING"], AppState.SUCCEEDED),
        (["COMPLETING"], AppState.RUNNING),
        (["RUNNING", "CONFIGURING"], AppState.PENDING),
        (["NODE_FAIL", "REQUEUED"], AppState.PENDING),
        ([], AppState.UNKNOWN),
        ("", AppState.UNKNOWN),
        ("running", AppState.RUNNING),
    ],
)
def test_states_with_flags(states: object, expected: AppState) -> None:
    """A base state, suffixes, and lists."""
    assert app_state(states) is expected  # type: ignore[arg-type]  # what JSON gives


def test_every_state_of_the_interface_is_there() -> None:
    """The names that programs look up."""
    names = (
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED RUNNING REQUEUED"
        " RESIZING REVOKED SUSPENDED TIMEOUT"
    )
    assert set(names.split()) <= SLURM_STATES.keys()


# -- garbage -----------------------------------------------------------------------------------------


@given(st.text())
def test_garbage_is_a_parse_error(text: str) -> None:
    """Any text is parsed, or raises ParseError with the text."""
    for parse in (parse_squeue, parse_sacct):
        try:
            parse(text)
        except ParseError as e:
            assert e.text == text


@given(st.lists(st.text(st.characters(exclude_characters=f"\n{SEPARATOR}"), max_size=12), min_size=13, max_size=13))
def test_rows_of_any_words(cells: list[str]) -> None:
    """A row with the right number of fields is a record, whatever it contains."""
    assert len(SACCT_FIELDS) == 13
    text = SEPARATOR.join(["7", *cells[1:]])
    (record,) = parse_sacct(text)
    assert record.job_id == "7"


@given(st.text())
def test_ids_and_events_of_any_text(text: str) -> None:
    """They never raise."""
    assert len(split_id(text)) == 3
    parse_events(text)
    parse_events(f"5 start 0 7\n{text}\n6 down a/0 {text}")
    reason_sentence(text)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (
            JobRecord(job_id="7", state="CANCELLED", user="ann", cancelled_by="0", started=5.0),
            "it was cancelled by root",
        ),
        (JobRecord(job_id="7", state="CANCELLED", user="root", cancelled_by="0", started=5.0), ""),
        (JobRecord(job_id="7", state="CANCELLED", user="ann", cancelled_by="4294967294"), ""),
        (
            JobRecord(job_id="7", state="CANCELLED", user="ann", cancelled_by="0", reason="DependencyNeverSatisfied"),
            "the job that it waited for did not end as required: it never started",
        ),
    ],
    ids=["by another", "by its owner", "by somebody unknown", "in vain"],
)
def test_who_cancelled_it(record: JobRecord, sentence: str) -> None:
    """If it was not the owner; accounting knows."""
    assert facts_of(bare("7", [record])).reason == sentence
    (row,) = parse_sacct(SEPARATOR.join(["7", "CANCELLED by 0", *[""] * 8, "ann", "/", "n"]) + "\n")
    assert (row.state, row.cancelled_by, row.user) == ("CANCELLED", "0", "ann")


def test_a_job_that_is_held() -> None:
    """By what; no start is predicted, as it waits for a person. Slurm writes its reason with blanks or underscores."""
    for reason in ("job requeued in held state", "job_requeued_in_held_state", "JobHeldAdmin", "JobHoldMaxRequeue"):
        said = pending_sentence([JobRecord(job_id="7", reason=reason, started=60.0)], JobEvents(), now=0)
        assert "held" in said or "holds" in said
        assert said.endswith(f"({reason})")


def test_a_victim_that_handled_the_signal() -> None:
    """It was stopped, because another replica failed; its own exit code is none of its choice."""
    roles = [Role("w", "", entrypoint="x", num_replicas=2)]
    events = "1 start 0 7\n1 up w/0 a\n1 up w/1 b\n4 down w/0 1\n5 down w/1 1 stopped\n5 end 1 over\n"
    failed = JobRecord(job_id="7", state="FAILED", exit_code=1, ended=5.0)
    job = Job(app_id="7", records=[failed], events=parse_events(events), roles=roles)
    states = {replica.id: replica.state.name for replica in describe(facts_of(job)).roles_statuses[0].replicas}
    assert states == {0: "FAILED", 1: "CANCELLED"}
