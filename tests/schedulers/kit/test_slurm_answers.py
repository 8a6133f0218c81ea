"""Slurm's answers, of several releases and of none."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.errors import ParseError
from torchx.schedulers.kit.slurm.answers import (
    SACCT_FIELDS,
    SEPARATOR,
    JobRecord,
    parse_sacct,
    parse_squeue,
    parse_squeue_json,
    split_id,
)
from torchx.schedulers.kit.slurm.commands import NO_SUCH_JOB, parse_version
from torchx.schedulers.kit.slurm.events import JobEvents, parse_events
from torchx.schedulers.kit.slurm.reasons import SLURM_STATES, app_state, reason_sentence
from torchx.schedulers.kit.slurm.status import pending_sentence
from torchx.specs import AppState
from torchx.testing.commands import Recordings

RECORDED = Recordings(str(Path(__file__).parents[2] / "recorded"))
IDS = json.loads(RECORDED.read("slurm", "22.05", "ids.json"))
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


def of(records: list[JobRecord], name: str) -> list[JobRecord]:
    return [record for record in records if record.job_id == IDS[name]]


def check(records: list[JobRecord], *, nodes: bool = True) -> None:
    """What every release must tell of the recorded jobs."""
    states = {name: {app_state(r.state) for r in of(records, name)} for name in EXPECTED}
    assert states == {name: {state} for name, state in EXPECTED.items()}
    assert sorted(r.component for r in of(records, "het")) == [0, 1]
    assert sorted(r.job_id for r in records if r.job_id.startswith(f"{IDS['array']}_")) == [
        f"{IDS['array']}_{task}" for task in (1, 2, 3)
    ]
    assert {r.name for r in records if r.job_id.startswith(f"{IDS['array']}_")} == {"not ours | 7"}
    assert [r.exit_code for r in of(records, "failed")] == [3]
    assert [r.reason for r in of(records, "held")] == ["JobHeldUser"]
    assert of(records, "running")[0].nodes == "n[1-2]"
    assert 0 < (of(records, "done")[0].started or 0) <= (of(records, "done")[0].ended or 0)
    assert of(records, "done")[0].folder.endswith("/slurm/" + of(records, "done")[0].name)


@pytest.mark.parametrize("version", [v for v in VERSIONS if v != "20.11"])
def test_json_of_each_release(version: str) -> None:
    """State as string and as list, numbers plain and as objects, nodes in both nestings, arrays, components."""
    check(parse_squeue_json(RECORDED.read("slurm", version, "squeue.json")))


@pytest.mark.parametrize("version", ["20.11", "22.05"])
def test_plain_answers(version: str) -> None:
    """Those tell the same."""
    check(parse_squeue(RECORDED.read("slurm", version, "squeue.txt")))


def test_plain_and_json_agree() -> None:
    """Of one and the same moment, on a real cluster, in all that is used of both."""
    wanted = ("job_id", "component", "state", "reason", "name", "folder", "nodes", "submitted", "restarts", "exit_code")

    def facts(records: list[JobRecord]) -> list[tuple[object, ...]]:
        return sorted((tuple(getattr(r, f) for f in wanted) for r in records), key=str)

    plain = parse_squeue(RECORDED.read("slurm", "22.05", "squeue.txt"))
    assert facts(plain) == facts(parse_squeue_json(RECORDED.read("slurm", "22.05", "squeue.json")))


def test_accounting() -> None:
    """Jobs and steps, with exit codes, signals and memory."""
    jobs = parse_sacct(RECORDED.read("slurm", "22.05", "sacct.txt"))
    assert {app_state(r.state) for r in of(jobs, "cancelled")} == {AppState.CANCELLED}
    assert [r.exit_code for r in of(jobs, "failed")] == [3]
    steps = [r for r in parse_sacct(RECORDED.read("slurm", "22.05", "sacct-steps.txt")) if r.step]
    (killed,) = [r for r in of(steps, "killed") if r.step == "0"]
    assert (killed.exit_code, killed.signal) == (None, 9)
    assert any(r.max_rss > 1 << 20 for r in of(steps, "cancelled"))


def test_unknown_jobs() -> None:
    """The words by which Slurm says that it knows none of the jobs."""
    assert NO_SUCH_JOB.search(RECORDED.read("slurm", "22.05", "squeue-unknown.stderr"))


@pytest.mark.parametrize("version", VERSIONS)
def test_versions(version: str) -> None:
    """Major and minor."""
    assert parse_version(RECORDED.read("slurm", version, "version.txt")) == tuple(map(int, version.split(".")))


@pytest.mark.parametrize("reason", RECORDED.read("slurm", "22.05", "reasons.txt").split())
def test_every_reason_has_a_sentence(reason: str) -> None:
    """Each that Slurm can print, those of limits included."""
    sentence = reason_sentence(reason)
    assert sentence
    assert "`" not in sentence.replace("`scontrol release`", "")
    assert reason not in sentence


def test_a_reason_that_nobody_knows() -> None:
    """It is passed on as it is."""
    assert reason_sentence("FluxCapacitor") == "Slurm's reason is `FluxCapacitor`"
    assert reason_sentence("None") == ""
    sentence = reason_sentence(
        "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
    )
    assert sentence == "the nodes that could run it are down, drained or kept for jobs of higher priority"


def test_waiting_is_explained_with_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence, Slurm's word, and when."""
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
    """A base state, what stands behind it, and lists."""
    assert app_state(states) is expected  # type: ignore[arg-type]  # what JSON gives


def test_every_state_of_the_interface_is_there() -> None:
    """The names that programs look up."""
    names = (
        "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED RUNNING REQUEUED"
        " RESIZING REVOKED SUSPENDED TIMEOUT"
    )
    assert set(names.split()) <= SLURM_STATES.keys()


# -- garbage -----------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = (
    "job_id job_state het_job_id het_job_offset array_job_id array_task_id exit_code job_resources nodes start_time"
    " restart_cnt name"
)


@given(st.text())
def test_garbage_is_a_parse_error(text: str) -> None:
    """Any text is read, or raises ParseError with the text in it."""
    for parse in (parse_squeue, parse_sacct, parse_squeue_json):
        try:
            parse(text)
        except ParseError as e:
            assert e.text == text


@given(st.dictionaries(st.sampled_from(FIELDS.split()), json_values, max_size=8))
@settings(max_examples=300)
def test_json_of_any_shape(job: dict) -> None:
    """Fields of the wrong type are read, or raise ParseError."""
    with contextlib.suppress(ParseError):
        for record in parse_squeue_json(json.dumps({"jobs": [job]})):
            assert isinstance(app_state(record.state), AppState)


@given(st.lists(st.text(st.characters(exclude_characters=f"\n{SEPARATOR}"), max_size=12), min_size=13, max_size=13))
def test_rows_of_any_words(cells: list[str]) -> None:
    """A row with the right number of fields is a record, whatever is in them."""
    assert len(SACCT_FIELDS) == 13
    text = SEPARATOR.join(["7", *cells[1:]])
    (record,) = parse_sacct(text)
    assert record.job_id == "7"


@given(st.text())
def test_ids_and_events_of_any_text(text: str) -> None:
    """Never an error."""
    assert len(split_id(text)) == 3
    parse_events(text)
    parse_events(f"5 start 0 7\n{text}\n6 down a/0 {text}")
    reason_sentence(text)
