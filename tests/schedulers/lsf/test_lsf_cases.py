"""Cases of LSF's facts in which one operand of a condition decides."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.lsf.test_lsf_attempts import app, ended, folder
from torchx.errors import BackendError, SpecError
from torchx.schedulers.batch import hangs as batch_hangs
from torchx.schedulers.lsf import attempts, hangs, inside
from torchx.schedulers.lsf.answers import Exit, facts_of, replica_facts
from torchx.schedulers.lsf.client import find_rank0_host
from torchx.schedulers.lsf.options import Opts
from torchx.schedulers.lsf.parse import FIELDS, FORMAT, Row, job_name, moment, rows, was_released
from torchx.schedulers.lsf.replicas import get_docker_command
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, AppState, Resource, Role

__all__ = ["folder"]


@pytest.mark.parametrize(
    ("times", "expected"),
    [((0, 0), (3.0, 8.0)), ((2.5, 9.5), (2.5, 9.5)), ((2.5, 0), (2.5, 8.0)), ((0, 7.5), (3.0, 8.0))],
)
def test_when_a_job_ran(times: tuple[float, float], expected: tuple[float, float]) -> None:
    """Its own record of the start has precedence; LSF's minutes may be later than its record of an end."""
    rows = [Row(str(k), "DONE", "j", 0, k, started=3.0 + k, ended=7.0 + k) for k in (0, 1)]
    facts = facts_of("j", rows, times=times)
    assert (facts.started, facts.ended) == expected


@pytest.mark.parametrize(
    ("rows", "released"),
    [
        ([("7", "PSUSP", 0, 0, ())], False),
        ([("7", "PEND", 0, 0, ())], True),
        ([("7", "EXIT", 0, 0, ())], False),
        ([("7", "EXIT", 0, 0, ("h",))], True),
        ([("7", "DONE", 0, 0, ())], True),
        ([("7", "PEND", 0, 1, ()), ("8", "PEND", 1, 0, ()), ("9", "PEND", 1, 1, ())], False),
        ([("7[3]", "PEND", 0, 5, ())], True),
        ([("7[3]", "PSUSP", 0, 5, ()), ("8", "PEND", 1, 1, ())], False),
        ([], False),
    ],
)
def test_is_the_submission_complete(rows: list[tuple[str, str, int, int, tuple[str, ...]]], released: bool) -> None:
    """The first replica shows it, or any array: the others wait for it anyway."""
    found = [Row(jobid, stat, "a", role, k, hosts=hosts) for jobid, stat, role, k, hosts in rows]
    assert was_released(found) is released


def test_a_long_role_in_the_name_of_a_job() -> None:
    """Forty characters of it are shown."""
    assert job_name("a-1", 2, "x" * 99, 7) == f"a-1.2-{'x' * 40}.7"


@pytest.mark.parametrize(("gpu", "asked"), [(0, False), (-1, False), (1, True)])
def test_devices_of_a_container(gpu: int, asked: bool) -> None:
    """Those that LSF has assigned, if GPUs are requested."""
    role = Role("r", "img", entrypoint="p", resource=Resource(1, gpu, 1))
    words = get_docker_command("a-1.0-r.0", role, Opts(docker=True))
    assert ("--gpus" in words) is asked


def test_what_is_shown_of_a_job_with_a_policy() -> None:
    """Not the parts that are the same in every job; a job without one does not have them."""
    lsf = LsfScheduler("s")
    assert "torchx_judged()" not in str(lsf.submit_dryrun(app(), {}))
    assert "decide()" not in lsf.submit_dryrun(AppDef("a", app().roles), {}).request.replicas()


def test_a_host_with_free_slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LSF is asked on this machine; a failure of its command is an error."""
    bhosts = tmp_path / "bhosts"
    bhosts.write_text("#!/bin/sh\necho 'HOST_NAME STATUS JL/U MAX NJOBS RUN'; echo 'h1 ok - 4 1 1'; exit $BAD\n")
    bhosts.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("BAD", "0")
    assert find_rank0_host(Role("r", "")) == "h1"
    monkeypatch.setenv("BAD", "1")
    with pytest.raises(BackendError):
        find_rank0_host(Role("r", ""))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 0 17", Exit(3, False, 17.0)),
        ("0 1 17", Exit(0, True, 17.0)),
        ("3 1 0", Exit(3, True, 0.0)),
        ("3 0", None),
        ("3", None),
        ("x 0 17", None),
        ("3 0 x", None),
        ("", None),
    ],
)
def test_the_record_of_an_end(text: str, expected: Exit | None) -> None:
    """A code, whether it was killed, and the time; half of it is nothing."""
    assert Exit.parse(text) == expected


DEPENDS = "Job dependency condition not satisfied"


@pytest.mark.parametrize(
    ("first", "others", "shown"),
    [
        (("PEND", "Not enough slots"), ("PEND", DEPENDS), [True, False]),
        (("PEND", DEPENDS), ("PEND", DEPENDS), [True, True]),
        (("RUN", ""), ("PEND", DEPENDS), [False, True]),
        (("PEND", "Not enough slots"), ("PEND", "Not enough slots"), [True, True]),
    ],
)
def test_why_replicas_wait(first: tuple[str, str], others: tuple[str, str], shown: list[bool]) -> None:
    """Those that wait for replica 0 say so only if it does not say itself what it waits for."""
    rows = [Row(str(k), stat, "j", 0, k, pend_reason=reason) for k, (stat, reason) in enumerate((first, others))]
    assert [bool(one.reason) for one in facts_of("j", rows).replicas()] == shown
    assert replica_facts("r", rows[1]).reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Nov 21 20:57", (2026, 11, 21, 20, 57, 0)),
        ("Nov 21 20:57:31", (2026, 11, 21, 20, 57, 31)),
        ("Nov 21 20:57 2024", (2024, 11, 21, 20, 57, 0)),
        ("Sat Nov 21 20:57:31 2020", (2020, 11, 21, 20, 57, 31)),
        ("Dec 14 00:00", (2026, 12, 14, 0, 0, 0)),
        ("Dec 14 00:01", (2025, 12, 14, 0, 1, 0)),
        ("Feb 29 12:00", (2024, 2, 29, 12, 0, 0)),
    ],
)
def test_years_that_lsf_does_not_show(text: str, expected: tuple[int, int, int, int, int, int]) -> None:
    """It is the most recent one, up to two weeks ahead."""
    now = time.mktime((2026, 11, 30, 0, 0, 0, 0, 0, -1))
    assert moment(text, now) == time.mktime((*expected, 0, 0, -1))


def test_what_lsf_is_asked_for() -> None:
    """Each field, with a delimiter that is named."""
    assert FORMAT.split("delimiter=") == [f"{' '.join(FIELDS)} ", "'\x1f'"]


@pytest.mark.parametrize(("here", "entered"), [("h1 4", ["", "h2"]), ("h2 4 h1 4", ["h1", ""]), ("", ["h1", "h2"])])
def test_stacks_are_read_on_the_hosts(
    here: str, entered: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through ssh, except on this one."""
    hosts: list[str] = []

    def look(_: object, found: dict[tuple[str, int], str], enter: Any) -> None:
        for who in found:
            enter(["true"], *who)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LSB_MCPU_HOSTS", here)
    monkeypatch.setenv("LSB_JOBID", "7")
    monkeypatch.setattr(hangs, "_hosts", lambda: {("r", 0): "h1", ("r", 1): "h2", ("r", 2): "h3"})
    monkeypatch.setattr(batch_hangs, "stacks_of", look)
    monkeypatch.setattr(inside, "OnHost", lambda _, host, *__, **___: hosts.append(host))
    os.makedirs(tmp_path / "r" / "2")
    (tmp_path / "r" / "2" / "exit").write_text("0 0 1")  # it has ended
    hangs._stacks()
    assert hosts == entered


def test_a_name_that_was_used_twice() -> None:
    """The job that was submitted last counts, in whichever order LSF shows them."""
    known = {"job_name": "a-1.0-r.0", "job_group": "/torchx_a-1"}
    both = [{**known, "jobid": "9", "stat": "EXIT"}, {**known, "jobid": "10", "stat": "RUN"}]
    for shown in (both, both[::-1]):
        lines = ["|".join(one.get(name, "-") for name in FIELDS) for one in shown]
        (row,) = rows("\n".join(["|".join(FIELDS).upper(), *lines, ""]))
        assert (row.jobid, row.stat) == ("10", "RUN")


def test_a_finding_is_left_for_the_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the job is to be ended, with what follows; otherwise nothing is."""
    monkeypatch.chdir(tmp_path)
    hangs._news(None, "")
    assert not list(tmp_path.iterdir())
    hangs._news(None, "retry")
    assert [path.name for path in tmp_path.iterdir()] == ["silent"]
    assert (tmp_path / "silent").read_text() == "retry\n"


@pytest.mark.parametrize(
    ("up", "attempt", "hosts"),
    [
        ("0 h1", "", {("r", 0): "h1"}),
        ("1 h1", "", {}),
        ("1 h1", "1", {("r", 0): "h1"}),
        ("0 h1", "1", {}),
        ("", "", {}),
    ],
)
def test_who_runs_in_this_attempt(
    up: str, attempt: str, hosts: dict[tuple[str, int], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt has no file yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hangs, "_roles", lambda: [Role("r", "", num_replicas=2)])
    (tmp_path / "r" / "0").mkdir(parents=True)
    for name, text in (("r/0/up", up), ("attempt", attempt)):
        if text:
            (tmp_path / name).write_text(f"{text}\n")
    assert hangs._hosts() == hosts
    assert hangs._folders() == ["r/0", "r/1"]


# -- attempts ----------------------------------------------------------------------------------------


def test_the_first_of_two_failures_is_the_cause(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LSF still reports the other replica as running, but its own record says that it failed before."""
    rows = [Row(str(k), "RUN", "a-x1", 0, k, hosts=(f"n{k}",)) for k in (0, 1)]
    monkeypatch.setattr(attempts, "bjobs", lambda *_: rows)
    (folder / "r%2fx" / "1" / "exit").write_text("4 0 1000\n")
    found = ended(folder)
    assert found
    assert found.cause == "r/x/1 on n1: exit code 4"
    assert found.hosts == ["n1"]


def test_a_failure_on_an_unknown_host(folder: Path) -> None:
    """No host is to blame."""
    found = ended(folder)
    assert found
    assert found.hosts == []


@pytest.mark.parametrize(
    ("how", "answer", "host", "kind", "blamed"),
    [
        ("requeued", ["HOST_NAME STATUS", "n3 unavail -"], "n3", "node", "n3"),
        ("requeued", ["HOST_NAME STATUS", "n3"], "n3", "preempted", "n3"),
        ("timeout", [], "n3", "timeout", "n0"),
        ("killed", ["100 M|100 M"], "n3", "oom", "n0"),
        ("killed", ["98 M|100 M"], "n3", "oom", "n0"),
        ("killed", ["97 M|100 M"], "n3", "", ""),
        ("killed", ["0 M|0 M"], "n3", "", ""),
    ],
)
def test_what_lsf_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, answer: list[str], host: str, kind: str, blamed: str
) -> None:
    """A lost host is the one of before, as the replica may already be elsewhere; otherwise it is where it runs."""
    rows = [Row(str(k), "RUN", "a-x1", 0, k, hosts=(f"n{k}",)) for k in (0, 1)]
    monkeypatch.setattr(attempts, "bjobs", lambda *_: rows)
    monkeypatch.setattr(attempts, "output_lines", lambda *_: answer)
    found = ended(folder, how, host=host)
    assert (found.kind if found else "", "".join(found.hosts) if found else "") == (kind, blamed)


def test_a_replica_that_lsf_ended_is_shown_as_that(folder: Path) -> None:
    """No code of its own is kept, and it is not taken for one that was stopped because of another."""
    rows = [Row("1", "EXIT", "a", 0, 0, exit_code="137", hosts=("n1",)), Row("2", "RUN", "a", 0, 1, hosts=("n2",))]
    facts = attempts._with_ends(facts_of("a", rows), (0, 0), "oom", "n9")
    one, other = facts.roles[0].replicas
    assert (one.state, one.kind, one.exit_code, one.signal, one.host) == (AppState.FAILED, "oom", None, "", "n1")
    assert one.ended and not one.stopped
    assert one.reason
    assert (other.state, other.host) == (AppState.RUNNING, "n2")
    assert (facts.state, facts.unattended) == (AppState.FAILED, True)


def test_how_many_hosts_there_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of `bhosts` for each, below its header."""
    seen: list[int] = []
    monkeypatch.setattr(attempts, "output_lines", lambda *_: ["HOST_NAME STATUS", "n1 ok", "n2 ok"])
    monkeypatch.setattr(attempts, "put_down", lambda *_, hosts: seen.append(hosts))
    ended(folder)
    assert seen == [2]


def test_lsf_does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of the replicas is enough."""

    def fails(*_: object) -> list[Row]:
        raise SpecError("no")

    monkeypatch.setattr(attempts, "bjobs", fails)
    found = ended(folder)
    assert found
    assert found.cause.startswith("r/x/0")
