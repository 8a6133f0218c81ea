"""Sweeps on LSF without LSF: submissions, the tasks' scripts, and parsed answers."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.lsf.parse import FIELDS, Row, group_of, rows, was_released
from torchx.schedulers.lsf_scheduler import LsfScheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.secret import Secret
from torchx.specs.tasks import TaskList
from torchx.testing import FakeCommandRunner
from torchx.testing.commands import Call

VALUES = ["plain", "its $HOME", "a'b", 'q"uo`te', "a\nb", "", "ünï,%I {x}"]
TELL = "import json, os, sys; print(json.dumps([*sys.argv[1:], *(os.environ[n] for n in sys.argv[2:])]))"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def app(*args: str, **changes: Any) -> AppDef:
    fields: dict = {"image": "", "entrypoint": "sh", "args": list(args), "resource": Resource(1, 0, 64), **changes}
    return AppDef("sweep", [Role("r", **fields)])


def lsf(size: int) -> tuple[LsfScheduler, FakeCommandRunner]:
    fake = FakeCommandRunner()
    fake.on("bparams", "-l", stdout=f"\nMAX_JOB_ARRAY_SIZE = {size}\n" if size else "")
    fake.on("/bin/bash", stdout=lambda call: os.path.basename(os.path.dirname(call.argv[-1])))
    scheduler = LsfScheduler("test", commands=fake, sleep=lambda _: None)
    scheduler.fresh_s = 0
    return scheduler, fake


def submitted(
    scheduler: LsfScheduler, job: AppDef, values: list[str], width: int = 0, pack: int = 1
) -> tuple[str, Path]:
    """App id and folder of a sweep over the value `v`."""
    info = scheduler.submit_dryrun(job, {})
    tasks = TaskList(names=["v"], points=[(value,) for value in values], max_parallel=width, pack=pack)
    scheduler.check_tasks(info, tasks)
    app_id = scheduler.submit_tasks(info, tasks)
    folder = scheduler.folders(scheduler._here).of(app_id)
    assert folder is not None
    return app_id, Path(folder.path)


def bsubs(folder: Path) -> list[list[str]]:
    text = (folder / "submit.sh").read_text()
    assert subprocess.run(["bash", "-n", folder / "submit.sh"], check=False).returncode == 0
    return [shlex.split(line) for line in text.splitlines() if line.startswith("bsub ")]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1] if name in words else ""


def test_one_array(tmp_path: Path) -> None:
    """It is not on hold; LSF's report on each element is a separate file."""
    app_id, folder = submitted(lsf(0)[0], app("-c", "echo {v}"), ["1", "2", "3"], 2)
    (words,) = bsubs(folder)
    assert option(words, "-J") == f"{app_id}.0-r.0[1-3]%2"
    assert option(words, "-oo") == "$job/reports/0.0.%I"
    assert words[words.index("-oo") + 2 : -2] == ["$run 0 0"]
    assert not {"-H", "-w", "-r"} & set(words)
    assert "bresume" not in (folder / "submit.sh").read_text()


@pytest.mark.parametrize("width", [0, 2])
def test_several_arrays(width: int) -> None:
    """All are on hold until the last is submitted; with a limit, each waits for the previous one."""
    app_id, folder = submitted(lsf(3)[0], app("{v}"), list("abcdefgh"), width)
    found = bsubs(folder)
    limit = f"%{width}" if width else ""
    names = [f"{app_id}.0-r.{first}" for first in (0, 3, 6)]
    assert [option(words, "-J") for words in found] == [
        f"{n}[1-{k}]{limit}" for n, k in zip(names, (3, 3, 2), strict=True)
    ]
    waits = [f'ended("{name}")' if width else "" for name in names]
    assert [option(words, "-w") for words in found] == ["", *waits[:2]]
    assert all("-H" in words for words in found)
    assert f"bresume -g {group_of(app_id)} 0 || give_up" in (folder / "submit.sh").read_text()


@pytest.mark.parametrize(("count", "arrays"), [(1000, ["[1-1000]"]), (1001, ["[1-1000]", "[1-1]"])])
def test_a_site_that_sets_no_limit(count: int, arrays: list[str]) -> None:
    """LSF's own is a thousand elements for an array."""
    _, folder = submitted(lsf(0)[0], app("{v}"), [str(k) for k in range(count)])
    assert [option(words, "-J").partition("[")[2] for words in bsubs(folder)] == [one[1:] for one in arrays]


def test_values_arrive(tmp_path: Path) -> None:
    """Any values arrive in words and variables of the command; all tasks share one file of values."""
    names = ["V", "TORCHX_TASK", "TORCHX_RANK0_HOST"]
    job = app("-c", TELL, "<{v}>", *names, entrypoint=sys.executable, env={"V": "={v}={{v}}"})
    _, folder = submitted(lsf(4)[0], job, VALUES)
    env = {**os.environ, "LSB_JOBID": "7", "LSB_MCPU_HOSTS": "host1 1"}
    for k, value in enumerate(VALUES):
        element = {**env, "LSB_JOBINDEX": str(k % 4 + 1)}
        words = ["bash", str(folder / "replicas.sh"), "0", str(k // 4 * 4)]
        done = subprocess.run(words, env=element, cwd=tmp_path, capture_output=True, text=True, check=False)
        written = (folder / "r" / str(k) / "stdout.log").read_text()
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(written) == [f"<{value}>", *names, f"={value}={{v}}", str(k), "localhost"]
    ends = [line.split()[:3] for line in (folder / "ends.host1").read_text().splitlines()]
    assert ends == [[str(k), "0", "0"] for k in range(len(VALUES))]
    assert not [name for name in os.listdir(folder / "r" / "0") if name.startswith("run")]


def test_a_task_without_its_values_fails(tmp_path: Path) -> None:
    """It reports that and runs nothing; other tasks continue."""
    _, folder = submitted(lsf(0)[0], app("-c", "echo ran"), ["1", "2"])
    (folder / "values").write_text("v_0=1\n")
    env = {**os.environ, "LSB_JOBID": "7", "LSB_JOBINDEX": "2", "LSB_MCPU_HOSTS": "h 1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", str(folder / "replicas.sh"), "0", "0"], env=env, cwd=tmp_path, check=False)
    assert done.returncode == 78
    assert "values of task 1 cannot be read" in (folder / "r" / "1" / "stderr.log").read_text()
    assert (folder / "r" / "1" / "stdout.log").read_text() == ""


@pytest.mark.parametrize(
    ("job", "cfg", "why"),
    [
        (app("x", num_replicas=2), {}, "2 replicas"),
        (app("x", max_retries=1), {}, "cannot have retries"),
        (app("x", env={"T": Secret("env:HOME")}), {}, "no secrets: `T`"),
        (app("x", env={"UID": "5"}), {}, "not allow `UID`"),
        (app("x", image="img"), {"docker": True}, "containers"),
    ],
)
def test_what_is_no_element_of_an_array(job: AppDef, cfg: dict, why: str) -> None:
    """It is rejected, so that the caller runs single jobs."""
    scheduler, _ = lsf(0)
    with pytest.raises(NotSupportedError, match=why):
        scheduler.check_tasks(scheduler.submit_dryrun(job, cfg), TaskList(names=["v"], points=[("1",)]))


# -- answers -----------------------------------------------------------------------------------------


def answer(lines: list[dict[str, str]]) -> str:
    told = ["|".join(line.get(name, "-") for name in FIELDS) for line in lines]
    return "\n".join(["|".join(FIELDS).upper(), *told, ""])


def element(app_id: str, k: int, first: int = 0, **fields: str) -> dict[str, str]:
    name = f"{app_id}.0-r.{first}"
    known = {"jobid": str(7 + first), "stat": "PEND", "job_group": group_of(app_id), "job_name": name, **fields}
    return {"jobindex": str(k - first + 1), **known}


@pytest.mark.parametrize(
    "shown",
    [
        {"jobindex": "3"},
        {"jobindex": "3", "job_name": "a-1.0-r.1000[3]"},
        {"jobindex": "-", "job_name": "a-1.0-r.1000[3]"},
        {"jobindex": "-", "jobid": "9[3]"},
        {"jobindex": "3", "jobid": "9[3]", "job_name": "a-1.0-r.1000[3]"},
    ],
)
def test_an_element_is_a_replica(shown: dict[str, str]) -> None:
    """Wherever a site shows the index; an array is named after its first task."""
    known = {"jobid": "9", "stat": "RUN", "job_group": "/torchx_a-1", "job_name": "a-1.0-r.1000"}
    (row,) = rows(answer([{**known, **shown}]))
    assert (row.app_id, row.k, row.jobid) == ("a-1", 1002, "9[3]")


def test_jobs_have_no_index() -> None:
    """An index of 0 is none."""
    (row,) = rows(
        answer([{"jobid": "9", "stat": "RUN", "job_group": "/torchx_a-1", "job_name": "a-1.0-r.4", "jobindex": "0"}])
    )
    assert (row.k, row.jobid) == (4, "9")


@pytest.mark.parametrize(
    ("stats", "complete"),
    [("PSUSP PSUSP", False), ("", False), ("PEND PSUSP", True), ("EXIT RUN", True), ("EXIT", False)],
)
def test_whether_all_arrays_are_there(stats: str, complete: bool) -> None:
    """They are released together: one array that is not on hold shows it."""
    hosts = {"RUN": ("h",)}
    found = [Row(f"{k}[1]", stat, "a", 0, k, hosts=hosts.get(stat, ())) for k, stat in enumerate(stats.split())]
    assert was_released(found) is complete


def test_what_became_of_tasks(tmp_path: Path) -> None:
    """One query; a task has its own cause, and its own reason while pending."""
    scheduler, fake = lsf(3)
    app_id, folder = submitted(scheduler, app("{v}"), list("abcde"), 2)
    (folder / "ends.h1").write_text("0 0 0 1700000000\n1 9 0 1700000009\nbroken\n")
    (folder / "r" / "1").mkdir(parents=True)
    (folder / "r" / "1" / "stderr.log").write_text("out of luck\n")
    lines = [
        element(app_id, 0, stat="DONE"),
        element(app_id, 1, stat="EXIT", exit_code="9"),
        element(app_id, 2, stat="EXIT", exit_code="130", exit_reason="TERM_OWNER: job killed by owner"),
        element(app_id, 3, 3, stat="UNKWN"),
        element(app_id, 4, 3, pend_reason="The job array has reached its running element limit;"),
    ]
    fake.on("bjobs", stdout=answer(lines))
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [s.name for s in found.tasks.states] == ["SUCCEEDED", "FAILED", "CANCELLED", "RUNNING", "PENDING"]
    assert (found.tasks.exit_codes, found.tasks.max_parallel) == ([0, 9, None, None, None], 2)
    assert found.tasks.ended[:2] == [1700000000, 1700000009]
    assert [call.argv[0] for call in fake.calls[2:]] == ["bjobs"]
    assert [(job.app_id, job.state) for job in scheduler.list()] == [(app_id, AppState.RUNNING)]
    some = scheduler.describe_tasks(app_id, [1, 4])
    assert some is not None
    assert [one.app_id for one in some] == [f"{app_id}/1", f"{app_id}/4"]
    assert "exit code 9: out of luck" in some[0].msg
    assert some[1].msg == "the sweep has reached its limit of running tasks"
    with pytest.raises(NotFoundError, match="no task `5`"):
        scheduler.describe_tasks(app_id, [5])
    fake.on("bkill", stdout="Job <10[2]> is being terminated")
    scheduler.cancel_task(app_id, 4)
    assert fake.calls[-1].argv == ["bkill", "10[2]"]


def test_lsf_has_forgotten_them() -> None:
    """The tasks' records count; for killed tasks and those without a record, LSF's reports."""
    scheduler, fake = lsf(2)
    app_id, folder = submitted(scheduler, app("{v}"), list("abcde"))
    (folder / "reports").mkdir()
    (folder / "submitted").write_text(str(int(time.time() - 7200)))
    (folder / "ends.h1").write_text("0 0 0 1700000000\n3 143 1 1700000005\n")
    (folder / "ends.h2").write_text("1 9 0 1700000009\n")
    (folder / "reports" / "0.2.1").write_text(
        "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.\n"
    )
    (folder / "reports" / "0.2.2").write_text("TERM_OWNER: job killed by owner.\nExited with exit code 143.\n")
    fake.on("bjobs", returncode=255, stderr="Job group </torchx_x>: No matching job found")
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    assert [s.name for s in found.tasks.states] == ["SUCCEEDED", "FAILED", "FAILED", "CANCELLED", "CANCELLED"]
    assert found.state is AppState.FAILED
    some = scheduler.describe_tasks(app_id, [2])
    assert some is not None
    assert "more memory than it asked for" in some[0].msg


def test_an_element_runs_several_tasks(tmp_path: Path) -> None:
    """Each has its own log and end; one that ended in an earlier run of the element, or was taken out, does not run."""
    _, folder = submitted(lsf(2)[0], app("-c", "echo {v}; sleep 60 & test {v} != d"), list("abcdefgh"), 0, 3)
    assert [option(words, "-J").partition("[")[2] for words in bsubs(folder)] == ["1-2]", "1-1]"]
    (folder / "ends.h0").write_text("4 9 0 1\n3 143 1 1\n")
    (folder / "skipped.7").touch()
    for index, first, code in (("1", "0", 0), ("2", "0", 1), ("1", "2", 0)):
        env = {**os.environ, "LSB_JOBID": "7", "LSB_JOBINDEX": index, "LSB_MCPU_HOSTS": "h1 1"}
        words = ["bash", str(folder / "replicas.sh"), "0", first]
        done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=20)
        assert (done.returncode, done.stderr) == (code, "")
    ends = [" ".join(line.split()[:3]) for line in (folder / "ends.h1").read_text().splitlines()]
    assert ends == ["0 0 0", "1 0 0", "2 0 0", "3 1 0", "5 0 0", "6 0 0", "7 143 1"]
    assert [(folder / "r" / str(k) / "stdout.log").read_text() for k in (0, 3, 6)] == ["a\n", "d\n", "g\n"]
    assert not (folder / "r" / "4").exists()


@pytest.mark.parametrize("how", ["task", "element"])
def test_what_ends_a_task_of_several(how: str, tmp_path: Path) -> None:
    """Its cancellation ends all its processes, and the next one runs; bkill ends the element."""
    _, folder = submitted(
        lsf(0)[0], app("-c", "test {v} = b || { sh -c 'echo up; sleep 60'; echo no; }"), ["a", "b"], 0, 2
    )
    env = {**os.environ, "LSB_JOBID": "7", "LSB_JOBINDEX": "1", "LSB_MCPU_HOSTS": "h1 1"}
    with subprocess.Popen(["bash", str(folder / "replicas.sh"), "0", "0"], env=env, start_new_session=True) as process:
        while not (log := folder / "r" / "0" / "stdout.log").exists() or not log.read_text():
            time.sleep(0.02)
        (folder / "skipped.0").touch() if how == "task" else os.killpg(process.pid, signal.SIGTERM)
        assert process.wait(20) == 143
    ends = [line.split()[:3] for line in (folder / "ends.h1").read_text().splitlines()]
    assert ends == [["0", "143", "1"], *([["1", "0", "0"]] if how == "task" else [])]
    assert (log.read_text(), log.with_name("stderr.log").read_text()) == ("up\n", "")


def test_what_became_of_tasks_that_share_an_element() -> None:
    """The first without an end runs, the others wait; those of an element that LSF ended have its cause."""
    scheduler, fake = lsf(2)
    app_id, folder = submitted(scheduler, app("{v}"), list("abcdefghij"), 0, 3)
    (folder / "ends.h1").write_text("0 5 0 1700000000\n1 143 1 1700000005\n3 0 0 1700000005\n4 137 1 1700000009\n")
    lines = [
        element(app_id, 0, stat="RUN", exec_host="h1"),
        element(app_id, 1, stat="EXIT", exit_code="137", exit_reason="TERM_MEMLIMIT: killed", exec_host="h1"),
        element(app_id, 2, 2),
        element(app_id, 3, 2),
    ]
    fake.on("bjobs", stdout=lambda _: answer(lines))
    scheduler.cancel_task(app_id, 1)
    scheduler.cancel_task(app_id, 3)  # has ended
    scheduler.cancel_task(app_id, 7)
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    names = [
        "FAILED",
        "CANCELLED",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "FAILED",
        "PENDING",
        "CANCELLED",
        *["PENDING"] * 2,
    ]
    assert [s.name for s in found.tasks.states] == names
    assert sorted(os.path.basename(p) for p in folder.glob("skipped.*")) == ["skipped.1", "skipped.7"]
    some = scheduler.describe_tasks(app_id, [0, 4, 5])
    assert some is not None
    assert ["exit code 5" in some[0].msg, *("more memory" in one.msg for one in some[1:])] == [True] * 3
    (folder / "submitted").write_text(str(int(time.time() - 7200)))
    (folder / "reports").mkdir()
    (folder / "reports" / "0.0.2").write_text("TERM_MEMLIMIT: job killed after reaching.\nExited with exit code 137.\n")
    lines.clear()  # LSF has forgotten them
    found = scheduler.describe(app_id)
    assert found is not None
    assert found.tasks is not None
    names = ["FAILED", "CANCELLED", "CANCELLED", "SUCCEEDED", "FAILED", "FAILED", *["CANCELLED"] * 4]
    assert [s.name for s in found.tasks.states] == names


def test_ten_thousand_tasks_are_ten_commands_and_one_question() -> None:
    """Processing takes less than three seconds, even on a busy machine."""
    scheduler, fake = lsf(1000)
    app_id, folder = submitted(scheduler, app("{v}"), list(map(str, range(10_000))), 50)
    assert len(bsubs(folder)) == 10
    assert fake.calls[1].timeout is not None
    assert fake.calls[1].timeout < 120
    lines = [
        element(app_id, k, k // 1000 * 1000, stat="DONE" if k % 2 else "RUN", start_time="Nov 21 20:57")
        for k in range(10_000)
    ]
    fake.on("bjobs", stdout=answer(lines))
    began = time.process_time()
    found = scheduler.describe(app_id)
    took = time.process_time() - began
    print(f"{took:.3f} s")
    assert found is not None
    assert found.tasks is not None
    assert found.tasks.counts() == {AppState.RUNNING: 5000, AppState.SUCCEEDED: 5000}
    assert sum(call.argv[0] == "bjobs" for call in fake.calls) == 1
    assert took < 3


def test_a_submission_in_doubt(home: Path) -> None:
    """The wait covers its submitting commands, not one for each task."""
    scheduler, fake = lsf(1000)
    app_id, folder = submitted(scheduler, app("{v}"), list(map(str, range(5000))))
    held = answer([element(app_id, 0, stat="PSUSP")])
    fake.on("bjobs", stdout=held)
    fake.on("bkill", stdout="")
    found = scheduler.find_submission(f"{app_id} {folder}", {}, age_s=10)
    assert found is None
    assert scheduler.find_submission(f"{app_id} {folder}", {}, age_s=300) == ""
    assert Call(["bkill", "-g", group_of(app_id), "0"]).argv in [call.argv for call in fake.calls]
