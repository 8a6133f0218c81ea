"""What each function of ``retries.sh`` and ``watchdog.sh`` does in each case; LSF's commands are stand-ins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.schedulers.lsf.steps import Ended, lines, steps

POLICY = """
python=p back= timed= start=$PWD
decide() { echo "decide $* in $folder" >>asked; [ -z "$(type -t meanwhile)" ] || meanwhile; echo "${says-again}"; }
"""
SUBMIT = """
echo "submitted in $PWD as $(cat $(dirname $0)/attempt)"
echo "with ${TORCHELASTIC_ERROR_FILE-}${TORCHX_RANK0_HOST-}${TORCHX_RANK0_PORT-}${TORCHX_CHECKPOINT_NOW-}${TORCHX_PROGRESS-}."
"""


def policy(folder: Path, text: str) -> Ended:
    """Runs these words in a job with a policy for retries by cause."""
    (folder / "asked").unlink(missing_ok=True)
    return steps(folder, f"{POLICY}\n{text}", "retries.sh")


# -- the beginning of an attempt ---------------------------------------------------------------------

SHOW = 'echo "$attempt $suffix $TORCHX_CHECKPOINT_NOW $TORCHX_PROGRESS"'


def test_an_attempt_begins(tmp_path: Path) -> None:
    """Its number is part of names; the program may mark checkpoints; what ended the one before is forgotten."""
    (tmp_path / "attempt").write_text("2\n")
    (tmp_path / "r" / "0").mkdir(parents=True)
    (tmp_path / "r" / "0" / "due").touch()
    shown = 'ls() { [ "$1" != "$job" ] || : >listed; }'
    found = policy(tmp_path, f"{shown}; torchx_begin 2; {SHOW}; env | grep -c ^TORCHX_[CP]; echo $start")
    assert found.out == [f"2 .2 {tmp_path}/checkpoint {tmp_path}/progress", "2", str(tmp_path)]
    assert not (tmp_path / "r" / "0" / "due").exists()
    assert (tmp_path / "listed").exists()  # NFS shows the number of another host's attempt


@pytest.mark.parametrize(("now", "code"), [("2", 0), ("1", 0), ("3", 0)])
def test_an_attempt_that_is_over(now: str, code: int, tmp_path: Path) -> None:
    """LSF requeued it while the next one was submitted: it ends quietly."""
    (tmp_path / "attempt").write_text(f"{now}\n")
    found = policy(tmp_path, "torchx_begin 2; echo on")
    assert (found.code, found.out) == (code, ["on"] if now == "2" else [])


def test_an_attempt_that_lsf_has_requeued(tmp_path: Path) -> None:
    """It ran before, on a host that may be to blame: the policy decides."""
    (tmp_path / "run.0.7").write_text("h9\n")
    fails = 'torchx_failed() { echo "failed $code $killed $back"; exit 1; }; killed=1'
    assert policy(tmp_path, f"{fails}; torchx_begin 0; echo on").out == ["failed 1 0 h9"]
    (tmp_path / "run.0.7").rename(tmp_path / "run.1.7")
    assert policy(tmp_path, f"{fails}; torchx_begin 0; echo on $code").out == ["on 0"]


# -- the time limit ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "marks"),
    [
        ("kill -URG $$", "1 new"),
        ("echo old >checkpoint; kill -URG $$", "1 old"),
        ("kill -URG $$; rm checkpoint; kill -URG $$", "1 none"),
        (":", " none"),
    ],
)
def test_the_time_limit_is_near(given: str, marks: str, tmp_path: Path) -> None:
    """The ranks are asked for a checkpoint, once, and by one replica."""
    shown = (
        'echo "$near $(if [ -s checkpoint ]; then echo old; elif [ -e checkpoint ]; then echo new; else echo none; fi)"'
    )
    found = policy(tmp_path, f"near=1; torchx_watch; {given}; {shown}")
    assert (found.out, found.err) == ([marks], "")


@pytest.mark.parametrize(
    ("near", "progress", "checkpoint", "ended"),
    [("1", 200, 100, True), ("1", 100, 200, False), ("", 200, 100, False), ("1", 0, 100, False)],
    ids=["marked", "marked before", "the limit is far", "no mark"],
)
def test_who_has_its_checkpoint_is_ended(
    near: str, progress: int, checkpoint: int, ended: bool, tmp_path: Path
) -> None:
    """After the ranks have marked progress since they were asked; once."""
    for name, age in (("progress", progress), ("checkpoint", checkpoint)):
        if age:
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (age, age))
    (tmp_path / "r" / "0").mkdir(parents=True)
    (tmp_path / "r" / "0" / "pid").write_text("55\n")
    found = policy(tmp_path, f"near={near}; kill() {{ echo kill $*; }}; torchx_due; torchx_due; echo $?")
    assert found.out == (["kill 55", "0"] if ended else ["0"])
    assert (tmp_path / "r" / "0" / "due").exists() is ended


# -- the decision ------------------------------------------------------------------------------------

JUDGE = "torchx_judged; echo $?"


def files(folder: Path) -> None:
    """A job with another replica, whose submission script reports what it is given."""
    (folder / "jobs").write_text("7,a.0-r.0\n8,a.0-r.1\n9,b.0-r.0\n")
    (folder / "submit.sh").write_text(SUBMIT)
    for name in ("over/0.1/x", "checkpoint", "secrets.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_the_next_attempt_is_submitted(tmp_path: Path) -> None:
    """From where the job was submitted, and without its variables; the others of the old one are ended after that."""
    files(tmp_path)
    (tmp_path / "there").mkdir()
    leaves = "export TORCHELASTIC_ERROR_FILE=a TORCHX_RANK0_HOST=b TORCHX_RANK0_PORT=c TORCHX_CHECKPOINT_NOW=d TORCHX_PROGRESS=e"
    found = policy(tmp_path, f"start=$PWD/there k=3; {leaves}; {JUDGE}")
    assert (found.code, found.out, found.err) == (0, ["0"], "")
    assert lines(tmp_path / "asked") == [f"decide failed 0 3 in {tmp_path}"]
    assert lines(tmp_path / "retry.log") == [f"submitted in {tmp_path}/there as 1", "with ."]
    assert found.said[-1] == "bkill 8"
    assert len(found.said) == 2
    assert lines(tmp_path / "restarts") == ["0 3"]
    assert (tmp_path / "attempt").read_text() == "1\n"
    assert [(tmp_path / name).exists() for name in ("over", "checkpoint", "attempt.new")] == [False] * 3
    assert (tmp_path / "secrets.sh").exists()
    assert (tmp_path / "lost.0.0" / "3").is_dir()


def test_nobody_else_is_there(tmp_path: Path) -> None:
    """LSF is not told to kill nothing."""
    files(tmp_path)
    (tmp_path / "jobs").write_text("7,a.0-r.0\n")
    assert [line.split()[0] for line in policy(tmp_path, JUDGE).said] == ["bjobs"]


def test_a_submission_that_lsf_rejects(tmp_path: Path) -> None:
    """The reason is in the log of the replica; nobody needs the secrets any more."""
    files(tmp_path)
    (tmp_path / "submit.sh").write_text("echo first; echo no such queue >&2; exit 255\n")
    found = policy(tmp_path, JUDGE)
    assert (found.out, found.said[-1]) == (["0"], "bkill 8")
    assert lines(tmp_path / "r" / "0" / "stderr.log") == ["torchx: LSF did not take the next attempt: no such queue"]
    assert not (tmp_path / "secrets.sh").exists()


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("", "failed 0 0"),
        ("killed=1", "killed 0 0"),
        ("timed=1 killed=1", "timeout 0 0"),
        ("timed=1", "timeout 0 0"),
        (": >$dir/due", "timeout 0 0"),
        ("back=h9", "requeued 0 0 h9"),
        ("back=h9 killed=1", "requeued 0 0 h9"),
        ("killed=1; : >silent", "failed 0 0"),
        ("timed=1; : >silent", "failed 0 0"),
    ],
)
def test_how_the_attempt_ended(given: str, asked: str, tmp_path: Path) -> None:
    """The policy hears what the script knows; silence is a failure, whatever ended it."""
    files(tmp_path)
    found = policy(tmp_path, f"{given}\n{JUDGE}")
    assert lines(tmp_path / "asked") == [f"decide {asked} in {tmp_path}"]
    assert found.out == ["0"]
    assert not (tmp_path / "silent").exists()


@pytest.mark.parametrize(
    ("given", "out"),
    [
        ("says=end", ["1"]),
        ("says=", ["1"]),
        ("says=stopped code=3", []),
        (": >cancelled", ["1"]),
        ("meanwhile() { kill -TERM $$; }", ["1"]),
        ("meanwhile() { kill -INT $$; }", ["1"]),
        ("meanwhile() { : >cancelled; }", ["1"]),
    ],
    ids=[
        "end",
        "no verdict",
        "stopped",
        "cancelled",
        "killed meanwhile",
        "interrupted meanwhile",
        "cancelled meanwhile",
    ],
)
def test_no_attempt_follows(given: str, out: list[str], tmp_path: Path) -> None:
    """The policy says so, or the user has cancelled the job; after a requeue it may decide once more."""
    files(tmp_path)
    found = policy(tmp_path, f"{given}\n{JUDGE}")
    assert (found.out, found.code) == (out, 0 if out else 3)
    assert found.said == []
    assert not (tmp_path / "retry.log").exists()
    assert not (tmp_path / "attempt").exists()
    assert (tmp_path / "checkpoint").exists()
    assert (tmp_path / "restart.0").exists() is bool(out)


@pytest.mark.parametrize(
    ("late", "group"),
    [(": >$job/cancelled", True), ("kill -TERM $PPID", True), ("kill -INT $PPID", True), (":", False)],
)
def test_cancelled_while_it_is_submitted(late: str, group: bool, tmp_path: Path) -> None:
    """The new attempt is killed, too."""
    files(tmp_path)
    (tmp_path / "submit.sh").write_text(f"job=$(dirname $0)\n{late.replace('$PPID', '$(cat $job/me)')}\n")
    found = policy(tmp_path, f"echo $$ >me; {JUDGE}")
    assert found.out == ["0"]
    assert [line for line in found.said if line.startswith("bkill")] == [*["bkill -g /torchx_a 0"] * group, "bkill 8"]


def test_who_was_killed_before_is_no_cancellation(tmp_path: Path) -> None:
    """LSF killed it, for its memory for example: the next attempt goes on."""
    files(tmp_path)
    found = policy(tmp_path, f"killed=1; {JUDGE}")
    assert [line for line in found.said if line.startswith("bkill")] == ["bkill 8"]


def test_an_attempt_that_another_one_followed(tmp_path: Path) -> None:
    """It is as good as restarted, and counts no more."""
    (tmp_path / "attempt").write_text("1\n")
    assert policy(tmp_path, JUDGE).out == ["0"]
    assert not (tmp_path / "lost.0.0").exists()


def test_a_replica_that_can_be_spared_is_not_judged(tmp_path: Path) -> None:
    """The next one is."""
    files(tmp_path)
    assert policy(tmp_path, f"spare=1; {JUDGE}").out == ["1"]
    assert not (tmp_path / "asked").exists()
    assert policy(tmp_path, f"spare=1 k=1; {JUDGE}").out == ["0"]
    assert lines(tmp_path / "asked") == [f"decide failed 0 1 in {tmp_path}"]


@pytest.mark.parametrize(
    ("meanwhile", "good", "pauses"),
    [("echo 1 >attempt", "0", 3), (": >ended.0", "1", 3), (":", "1", 600)],
    ids=["another attempt", "the end", "nothing"],
)
def test_another_replica_decides(meanwhile: str, good: str, pauses: int, tmp_path: Path) -> None:
    """This one waits for what comes of it, five minutes at most."""
    files(tmp_path)
    (tmp_path / "restart.0").mkdir()
    found = policy(tmp_path, f"ls() {{ :; }}; paused() {{ ((++n != 3)) || {meanwhile}; }}; {JUDGE}")
    assert (found.out, found.pauses, found.said) == ([good], ["0.5"] * pauses, [])
    assert not (tmp_path / "asked").exists()


# -- the watchdog ------------------------------------------------------------------------------------

WATCH = """
wish=10m watcher= told=0 dir=$job/r/0
start_watch() { echo "$LSB_JOBID watches in $PWD for $folder: <$*> ${TORCHELASTIC_ERROR_FILE-}" >&3; watcher=1; }
exec 3>&1
"""


def watched(folder: Path, text: str) -> Ended:
    """Runs these words in a job with a watchdog."""
    return steps(folder, f"{WATCH}\n{text}", "watchdog.sh")


def test_who_is_up_says_where(tmp_path: Path) -> None:
    """And in which attempt; the process of an earlier one is not its own."""
    (tmp_path / "r" / "0").mkdir(parents=True)
    (tmp_path / "r" / "0" / "pid").write_text("55\n")
    found = watched(
        tmp_path, 'watcher=1 told=5 attempt=2; torchx_up; echo "$told$watcher"; env | grep ^TORCHX_PROGRESS'
    )
    assert found.out == ["0", f"TORCHX_PROGRESS={tmp_path}/progress"]
    assert (tmp_path / "r" / "0" / "up").read_text() == "2 h1\n"
    assert not (tmp_path / "r" / "0" / "pid").exists()


def test_one_watches_in_the_folder_of_the_job(tmp_path: Path) -> None:
    """It does not look like a process of the replica; a second look starts nothing."""
    found = watched(
        tmp_path, "export TORCHELASTIC_ERROR_FILE=x; cd /; torchx_look_out; torchx_look_out; cat $job/watching"
    )
    assert found.out == [f"7 watches in {tmp_path} for {tmp_path}: <> ", "7"]
    assert watched(tmp_path, "LSB_JOBID=8; torchx_look_out; echo $?$watcher").out == ["0"]
    assert watched(tmp_path, "torchx_look_out").out == [f"7 watches in {tmp_path} for {tmp_path}: <> "]


def test_a_watchdog_that_cannot_start(tmp_path: Path) -> None:
    """It is tried once."""
    fails = "start_watch() { echo tried >&3; return 1; }"
    assert watched(tmp_path, f"{fails}; torchx_look_out; torchx_look_out; echo $watcher").out == ["tried", "none"]
    assert watched(tmp_path, "job=/nowhere; torchx_look_out 2>/dev/null; echo $?$watcher").out == ["0"]


def test_silence_ends_the_program(tmp_path: Path) -> None:
    """Of whoever watches: at once, and with force after half a minute."""
    (tmp_path / "r" / "0").mkdir(parents=True)
    looks = "kill() { echo $told $*; }; watcher=1; for ((i = 0; i < 32; i++)); do torchx_look_out; done"
    assert watched(tmp_path, looks).out == []
    (tmp_path / "silent").touch()
    assert watched(tmp_path, looks).out == []  # there is no program yet
    (tmp_path / "r" / "0" / "pid").write_text("55\n")
    assert watched(tmp_path, looks).out == ["1 55", "31 -KILL 55", "32 -KILL 55"]


@pytest.mark.parametrize(
    ("given", "code", "up", "watching"),
    [
        ("code=0", "0", True, False),
        ("code=3", "3", False, False),
        ("code=3 attempt=1", "3", True, False),
        ("code=3 LSB_JOBID=8", "3", False, True),
        ("code=0; : >silent", "143", True, False),
        ("code=3; : >silent", "3", False, False),
        ("code=0 suffix=.1; echo 7 >watching.1", "0", True, True),
    ],
)
def test_what_an_ended_replica_leaves(given: str, code: str, up: bool, watching: bool, tmp_path: Path) -> None:
    """Who failed is no longer up, in its own attempt; its watchdog is free; silence is never a success."""
    (tmp_path / "r" / "0").mkdir(parents=True)
    (tmp_path / "r" / "0" / "up").write_text("0 h1\n")
    (tmp_path / "watching").write_text("7\n")
    found = watched(tmp_path, f"{given}\ntorchx_looked; echo $code")
    assert (found.out, found.err) == ([code], "")
    assert (tmp_path / "r" / "0" / "up").exists() is up
    assert (tmp_path / "watching").exists() is watching
    assert not (tmp_path / "watching.1").exists()


def test_a_replica_that_never_was_up(tmp_path: Path) -> None:
    """Nothing is reported about files that do not exist."""
    found = watched(tmp_path, "code=3; torchx_looked; echo $code")
    assert (found.out, found.err) == (["3"], "")
