"""The watchdog of a Slurm job, whose script is run by bash with an ``srun`` that starts programs here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runner.sinks import Sink, http_sink
from tests.schedulers.slurm.test_job_functions import bash
from tests.schedulers.slurm.test_job_script import programs, run, sh
from torchx.errors import NotSupportedError
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.slurm import notices
from torchx.schedulers.slurm.answers import Job, facts_of, telling_files
from torchx.schedulers.slurm.events import parse_events
from torchx.schedulers.slurm.parse import JobRecord
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, AppState, Role
from torchx.specs.wishes.idle import IDLE
from torchx.specs.wishes.notices import NOTIFY, NOTIFY_ON, hang_event
from torchx.specs.wishes.retries import read_attempts
from torchx.specs.wishes.watchdog import WATCHDOG
from torchx.supervisor.layout import HANG_FILE, STACKS_FILE

__all__ = ["programs"]

WAITS = "echo up; exec tail -f /dev/null"  # silence begins when all but `exec` is done


def seen(folder: Path) -> str:
    return (folder / HANG_FILE).read_text()


def test_a_silent_job_is_ended_where_that_is_asked_for(programs: Path) -> None:
    """A step inspects each replica; the reason stays in the folder."""
    code, events, folder = run(programs, sh(WAITS, 2), watchdog="2s:cancel")
    assert (code, events.exit_code, events.silent, events.hung) == (1, 1, True, True)
    assert re.fullmatch(r"no output for \d+ s: all 2 ranks cannot be read: it runs `tail`, not Python", seen(folder)), (
        folder / "watchdog.log"
    ).read_text()
    sentence, *stacks = (folder / STACKS_FILE).read_text().splitlines()
    assert sentence == seen(folder)
    assert {"w/0", "w/1"} <= {line.partition("  pid ")[0].partition(" (")[0] for line in stacks}, stacks


def test_a_silent_job_goes_on_where_it_is_not(programs: Path) -> None:
    """It ends by itself after the finding, and has not failed."""
    script = f'until [ -e "${{TORCHX_PROGRESS%/*}}/{HANG_FILE}" ]; do /bin/sleep 0.1; done; echo on'
    code, events, folder = run(programs, sh(script), watchdog="2s")
    assert (code, events.silent, events.exit_code) == (0, False, 0)
    assert "no output for " in seen(folder)  # it may have heard that the job went on


def test_who_writes_or_makes_progress_is_left_alone(programs: Path) -> None:
    """Output of one replica suffices, and so do progress marks without output."""
    lines = "for i in 1 2 3 4 5 6 7; do echo $i; /bin/sleep 0.5; done"
    marks = 'for i in 1 2 3 4 5 6 7; do touch "$TORCHX_PROGRESS"; /bin/sleep 0.5; done'
    for script in (lines, marks):
        code, events, _ = run(programs, sh(script), watchdog="2s:cancel")
        assert (code, events.hung) == (0, False), script


def test_each_attempt_is_watched_and_the_policy_asked(programs: Path) -> None:
    """If Slurm does not requeue, the next attempt runs in place; the class of the cause is `timeout`."""
    code, events, folder = run(programs, sh(WAITS), watchdog="2s:retry", retry="timeout:1")
    attempts = read_attempts((folder / "attempts.jsonl").read_text().splitlines())
    assert (code, events.silent, [a.kind for a in attempts]) == (1, True, ["timeout", "timeout"])
    assert all(a.cause.startswith("no output for ") for a in attempts)
    assert [a.again for a in attempts] == [True, False]


def test_a_job_that_is_to_be_ended_is_not_started_again(programs: Path) -> None:
    """Neither a policy nor a number of retries restarts it."""
    _, events, folder = run(programs, sh(WAITS), watchdog="2s:cancel", retry="timeout:1")
    assert (events.silent, (folder / "attempts.jsonl").exists()) == (True, False)
    _, events, _ = run(programs, sh(WAITS, max_retries=2), watchdog="2s:cancel")
    assert (events.retries, events.starts) == (0, 2)  # with the one of before, in the same folder


def test_a_node_without_python_says_so(tmp_path: Path) -> None:
    """The job runs, and its page says that it is not watched."""
    assert bash(tmp_path, "PATH=/nowhere; python_of /no/python") == []
    lines = bash(tmp_path, "HOSTNAME=n7 watch=/no/python wish=10m; PATH=/nowhere; watch; echo ${watcher:-none}")
    assert lines == ["none"]
    assert seen(tmp_path) == "not watched: no Python 3.10 or newer on node n7\n"
    assert parse_events((tmp_path / "events").read_text()).hung


IDLES = """
: >"$TORCHX_STEPS"
while [ ! -e "$TORCHX_CHECKPOINT_NOW" ]; do
  echo '{"t": '$(date +%s.%N)', "cpu": 0.01, "gpu": []}' >>"${TORCHX_STEPS%/*}/metrics.jsonl"
  /bin/sleep 0.3
done
echo asked; : >"$TORCHX_PROGRESS"
exec tail -f /dev/null"""


@pytest.mark.parametrize("action", ["cancel", "checkpoint"])
def test_an_idle_job_is_ended(programs: Path, action: str) -> None:
    """It is not started again, whatever the policy; it has been asked for a checkpoint if that is wished."""
    code, events, folder = run(programs, sh(IDLES), retry="timeout:1", wishes={IDLE: f"2s:{action}"})
    assert (code, events.exit_code, events.silent, events.retries) == (1, 1, True, 0)
    assert re.fullmatch(r"idle for \d s: at most 0.01 processors in use, as sampled on 1 replica", seen(folder))
    assert ((folder / "w/0/stdout.log").read_text() == "asked\n") is (action == "checkpoint")
    assert not (folder / "attempts.jsonl").exists()


def test_a_job_that_has_not_begun_is_not_idle(programs: Path) -> None:
    """It does nothing for longer than it may."""
    code, events, _ = run(programs, sh("/bin/sleep 4"), retry="timeout:1", wishes={IDLE: "2s:cancel"})
    assert (code, events.hung) == (0, False)


def test_a_job_that_ends_already_is_not_ended_for_silence(tmp_path: Path) -> None:
    """The finding is recorded nevertheless."""
    assert bash(tmp_path, "stopping=1 alive=1 hung=; hang retry; echo ${hung:-no}") == ["no"]
    assert not parse_events((tmp_path / "events").read_text()).silent


def told(
    programs: Path, hooks: Sink, wish: str, on: str, script: str, retry: str = ""
) -> tuple[list[str], dict[str, str]]:
    """Events and states of which a job has told, and what whoever watches learns of that."""
    folder = programs.parent / "job"
    folder.mkdir(exist_ok=True)
    channels = {"webhook": {"url": f"http://127.0.0.1:{hooks.port}/x"}}
    plan = {"name": "job", "on": on.split(","), "channels": channels, "sent": {}}
    (folder / "notices.json").write_text(notices.content(plan, "s"))
    run(programs, sh(script), watchdog=wish, wishes={NOTIFY: "webhook", NOTIFY_ON: on}, retry=retry)
    assert not (folder / "notices.json").exists()
    return [f"{d['event']} {d['state']}" for d in hooks.got], notices.taken(JobFolder(LocalFiles(), str(folder))) or {}


def test_each_alarm_is_told_once(programs: Path) -> None:
    """The node sends it and records that, so that nothing else sends it. The job may end meanwhile."""
    until = f'{{ until grep -qs "$1" "${{TORCHX_PROGRESS%/*}}/{HANG_FILE}"; do /bin/sleep 0.2; done; }}'
    # Waits for the sender: one that has not read its plan when the job ends sends nothing.
    count = f'$(grep -c ^hang "${{TORCHX_PROGRESS%/*}}/{notices.SENT_FILE}")'
    sent = f'sends() {{ until [ "{count}" = $1 ]; do /bin/sleep 0.2; done; }}'
    twice = f"hears() {until}; {sent}; for i in 1 2; do hears ^no; sends $i; echo $i; hears ^it; done"
    with http_sink() as hooks:
        said, taken = told(programs, hooks, "2s", "hang", twice)
        assert said == ["hang RUNNING"] * 2
        assert taken == {f"{hang_event(seen_by(hooks, n))}/webhook": "" for n in range(2)}
        assert all("no output for " in document["text"] for document in hooks.got)


@pytest.mark.parametrize(
    ("wish", "on", "retry", "answers", "expected"),
    [
        ("2s:cancel", "hang,fail", "", [503], ["hang RUNNING", "end FAILED"]),
        ("2s:retry", "hang", "timeout:1", [], ["hang RUNNING"] * 2),
        ("2s:cancel", "end", "", [], ["end FAILED"]),
    ],
)
def test_alarms_of_a_job_that_is_ended(
    programs: Path, wish: str, on: str, retry: str, answers: list[int], expected: list[str]
) -> None:
    """The job's end does not lose an alarm that has to be sent again; each attempt has its own."""
    with http_sink() as hooks:
        hooks.answers = answers
        said, _ = told(programs, hooks, wish, on, WAITS, retry=retry)
    assert said == expected


def seen_by(hooks: Sink, number: int) -> str:
    """The sentence of a notice."""
    return next(line for line in hooks.got[number]["text"].splitlines() if "silent:" in line).partition(":")[2].strip()


def job(notes: str, state: str) -> Job:
    events = parse_events(f"5 start 0 7\n5 up w/0 n1\n{notes}")
    record = JobRecord(job_id="7", state=state, folder="/f", exit_code=1)
    role = Role("w", "", num_replicas=1)
    return Job(app_id="7", records=[record], events=events, roles=[role], texts={HANG_FILE: "no output for 1 min: x\n"})


def test_what_the_page_says() -> None:
    """The finding while it runs; after the watchdog ended it, the finding is the reason, whatever replicas reported."""
    going = facts_of(job("9 hang\n", "RUNNING"))
    assert (going.hang, going.reason, going.kind) == ("no output for 1 min: x", "", "")
    ended = facts_of(job("9 hang\n9 silent\n9 hang\n9 down w/0 143\n9 end 1 over\n", "FAILED"))
    assert (ended.hang, ended.reason, ended.kind) == ("no output for 1 min: x", "no output for 1 min: x", "timeout")
    assert ended.state is AppState.FAILED
    assert ended.roles[0].replicas[0].stopped
    assert telling_files(job("9 hang\n9 silent\n", "FAILED")) == [HANG_FILE]


def test_the_next_attempt_is_not_silent_any_more() -> None:
    """The finding stays on the page."""
    facts = facts_of(job("9 hang\n9 silent\n12 start 1 7\n12 up w/0 n1\n13 down w/0 3\n", "FAILED"))
    assert (facts.kind, facts.reason, facts.hang) == ("", "", "no output for 1 min: x")


def test_batch_scripts_of_others_are_not_watched() -> None:
    """They have no watchdog."""
    script = {"file": "a.sbatch", "text": "#!/bin/bash\ntrue\n"}
    app = AppDef(
        "a", [Role("a", "", args=["a.sbatch"], metadata={"torchx/sbatch": script})], metadata={WATCHDOG: "10m"}
    )
    with pytest.raises(NotSupportedError, match="batch script"):
        SlurmScheduler("s").submit_dryrun(app, {})
