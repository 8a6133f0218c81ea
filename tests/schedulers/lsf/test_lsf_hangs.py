"""The watchdog of an LSF job: which replica's script watches, which replicas run, and the status of a silent job."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.verdict import judge
from torchx.schedulers.lsf import hangs, replicas
from torchx.schedulers.lsf.answers import Exit, facts_of
from torchx.schedulers.lsf.parse import Row
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, AppState, RetryPolicy, Role
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.wishes.watchdog import WATCHDOG
from torchx.supervisor.layout import HANG_FILE

PROGRAM = read_script(replicas.__file__, "watchdog.sh")
STUB = 'start_watch() { echo "$LSB_JOBID watches in $PWD" >&3; watcher=1; }; exec 3>&1'


def bash(folder: Path, text: str) -> list[str]:
    """The lines that these words print in a job's folder; the watching script reports itself."""
    given = f"{PROGRAM}\n{STUB}\njob={folder} dir={folder}/r/0 suffix= attempt=0 code=0 watcher=\n{text}"
    done = subprocess.run(["bash", "-c", given], cwd="/", capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def up(folder: Path, path: str, text: str) -> None:
    (folder / path).mkdir(parents=True, exist_ok=True)
    (folder / path / "up").write_text(text)


def test_one_replica_watches_and_then_another(tmp_path: Path) -> None:
    """A second script takes over when the first has ended; a requeued one continues."""
    up(tmp_path, "r/0", "0 h\n")
    said = bash(
        tmp_path,
        "LSB_JOBID=7; torchx_look_out; torchx_look_out; LSB_JOBID=8 watcher=; torchx_look_out;"
        "LSB_JOBID=7; torchx_look_out; LSB_JOBID=8; torchx_looked; watcher=; torchx_look_out;"
        "LSB_JOBID=7 watcher=; torchx_looked; LSB_JOBID=8; torchx_look_out",
    )
    assert said == [f"{number} watches in {tmp_path}" for number in (7, 7, 8)]


def test_who_watches_ends_its_program(tmp_path: Path) -> None:
    """It gets SIGTERM once, as soon as it exists, and SIGKILL half a minute later."""
    up(tmp_path, "r/0", "0 h\n")
    kill = 'kill() { [ "$1" = 0 ] || echo "$told: $*"; }; LSB_JOBID=7; torchx_up; torchx_look_out'
    looks = "for ((i = 0; i < 32; i++)); do torchx_look_out; done"
    assert bash(tmp_path, f"{kill}; : >$job/silent; {looks}; echo 55 >$dir/pid; {looks}") == [
        f"7 watches in {tmp_path}",
        "1: 55",
        "31: -KILL 55",
        "32: -KILL 55",
    ]
    assert bash(tmp_path, f"{kill}; rm $job/silent; echo 55 >$dir/pid; {looks}") == [f"7 watches in {tmp_path}"]


@pytest.mark.parametrize(
    ("attempt", "code", "stays"),
    [("0", 0, True), ("0", 3, False), ("1", 3, True)],
    ids=["ended-well", "failed", "of-the-next-attempt"],
)
def test_who_has_failed_is_not_up(tmp_path: Path, attempt: str, code: int, stays: bool) -> None:
    """It may be restarted, and its file may already belong to the next attempt."""
    up(tmp_path, "r/0", f"{attempt} h\n")
    bash(tmp_path, f"LSB_JOBID=7 code={code}; torchx_looked")
    assert (tmp_path / "r" / "0" / "up").exists() is stays


def test_a_success_that_comes_of_the_word_is_none(tmp_path: Path) -> None:
    """A program that exits with 0 because of SIGTERM has not succeeded."""
    up(tmp_path, "r/0", "0 h\n")
    (tmp_path / "silent").write_text("cancel\n")
    assert bash(tmp_path, "LSB_JOBID=7; torchx_looked; echo $code") == ["143"]


def test_who_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas of the current attempt of the job, or of a role that restarts by itself. Elastic roles need their
    minimum.
    """
    monkeypatch.chdir(tmp_path)
    hangs._roles.cache_clear()
    roles = [
        Role("a", "", num_replicas=2, min_replicas=1),
        Role("b", "", num_replicas=1, retry_policy=RetryPolicy.ROLE),
    ]
    (tmp_path / "job.json").write_text(json.dumps({"app": appdef_to_dict(AppDef("j", roles))}))
    assert not hangs._complete()
    up(tmp_path, "a/1", "0 h1\n")
    up(tmp_path, "b/0", "0 h2\n")
    assert (hangs._complete(), hangs._hosts()) == (True, {("a", 1): "h1", ("b", 0): "h2"})
    (tmp_path / "b" / "attempt").write_text("1\n")
    assert (hangs._complete(), hangs._hosts()) == (False, {("a", 1): "h1"})
    up(tmp_path, "b/0", "1 h3\n")
    assert hangs._complete()
    (tmp_path / "attempt").write_text("1\n")
    assert hangs._hosts() == {("b", 0): "h3"}
    hangs._roles.cache_clear()


def test_what_the_page_says() -> None:
    """The finding while it runs; after the watchdog ended it, the finding is the reason, whatever replicas reported."""
    roles = [Role("r", "", num_replicas=2)]
    text = "no output for 1 min: x"
    going = judge(facts_of("j", [Row("1", "RUN", "j", 0, k) for k in (0, 1)], roles=roles, hang=text))
    assert (going.state, going.cause) == (AppState.RUNNING, None)
    rows = [Row("1", "EXIT", "j", 0, 0, exit_code="3"), Row("2", "DONE", "j", 0, 1)]
    exits = {(0, 0): Exit(3, False, 5.0)}
    ended = judge(facts_of("j", rows, roles=roles, exits=exits, hang=text, silent=True))
    assert (ended.state, ended.cause and ended.cause.kind) == (AppState.FAILED, "timeout")
    assert ended.sentence.startswith(text)


def test_what_a_job_without_a_watchdog_has_of_it() -> None:
    """Its script has no part for it, and there is no program."""

    def texts(**metadata: str) -> dict[str, str]:
        scheduler = LsfScheduler("s")
        info = scheduler.submit_dryrun(AppDef("j", [Role("r", "", entrypoint="true")], metadata=metadata), {})
        return dict(scheduler._submission(info, scheduler._here).files)

    assert "start_watch >" not in texts()["replicas.sh"]
    assert "retry.pyz" not in texts()
    watched = texts(**{WATCHDOG: "10m"})
    assert "start_watch >" in watched["replicas.sh"]
    assert {"retry.pyz", "retry.json"} & {*watched} == {"retry.pyz"}
    assert HANG_FILE in watched["replicas.sh"]
