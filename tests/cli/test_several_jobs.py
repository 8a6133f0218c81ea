"""Verbs on several jobs: `wait`, `cancel --all`, `delete`, `status`; which run is meant, and what the exit code says."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from torchx.errors import EXIT_NOT_ENDED, EXIT_TIMEOUT, NotFoundError, NotSupportedError
from torchx.specs import AppState

from .conftest import Call, end, spawn, state, until


def launch(torchx: Call, paper: Any, state: AppState, *words: str) -> str:
    """Launches a job in that state on paper, and returns its app id."""
    handle = torchx("run", "-s", "paper", *(words or ("utils.echo",))).out.strip()
    app_id = handle.rpartition("/")[2]
    paper.STATES[app_id] = state
    return app_id


# -- which run is meant ----------------------------------------------------------------------------


def test_references(torchx: Call, project: Path) -> None:
    """`@last~1` is the run before the newest, `@NAME` the newest of that name; others are errors."""
    torchx("run", "--wait", "utils.echo", "--msg", "one")
    torchx("run", "--wait", "utils.echo", "--msg", "two")
    torchx("run", "--wait", "utils.sh", "echo", "three")
    assert [
        torchx("log", "--no-prefix", job).out for job in ("@last", "@last~1", "@last~2", "@echo", "@echo~1/echo/0")
    ] == ["three\n", "two\n", "one\n", "two\n", "one\n"]
    for job in ("@last~3", "@nobody", "@sh~1", "@last~x", "@~1"):
        outcome = torchx("status", job)
        assert (outcome.code, "`@NAME` the newest" in outcome.hint()) == (3, True)


# -- wait ------------------------------------------------------------------------------------------


def test_wait_for_all(torchx: Call, project: Path) -> None:
    """Each job is printed when it ends; the exit code is 1 if one has failed."""
    torchx("run", "utils.sh", "--", "sleep 0.2; exit 3")
    torchx("run", "utils.echo")
    outcome = torchx("wait", "@sh", "@echo")
    states = {line.split("\t")[0].rpartition("/")[2][:2]: line.split("\t")[1] for line in outcome.out.splitlines()}
    assert (outcome.code, states) == (1, {"ec": "SUCCEEDED", "sh": "FAILED"})
    assert "exit code 3" in outcome.out
    assert torchx("wait", "@echo").code == 0
    document = json.loads(torchx("wait", "@echo", "@sh", "--json").out)
    assert [job["state"] for job in document["jobs"]] == ["SUCCEEDED", "FAILED"]


def test_wait_for_any(torchx: Call, project: Path) -> None:
    """`--any` returns when the first job ends, with its result; the others continue."""
    torchx("run", "utils.sh", "--", "sleep 600")
    torchx("run", "utils.sh", "--", "sleep 0.2; exit 3")
    outcome = torchx("wait", "--any", "@sh~1", "@sh")
    assert (outcome.code, outcome.out.count("\n")) == (1, 1)
    assert state(torchx, "@sh~1") == "RUNNING"
    torchx("cancel", "@sh~1")


@pytest.mark.parametrize("jobs", [["@sh"], ["@sh", "@echo"]], ids=["one", "several"])
def test_the_time_is_up(torchx: Call, project: Path, jobs: list[str]) -> None:
    """A timeout exits with 124, as timeout(1) does; ended jobs are printed, the others continue."""
    torchx("run", "--wait", "utils.echo")
    torchx("run", "utils.sh", "--", "sleep 600")
    until(lambda: state(torchx) == "RUNNING")
    outcome = torchx("wait", "--timeout", "0.3", *jobs)
    assert (outcome.code, outcome.out.count("SUCCEEDED")) == (EXIT_TIMEOUT, len(jobs) - 1)
    assert state(torchx) == "RUNNING"
    torchx("cancel", "@last")


@pytest.mark.parametrize(("text", "code"), [("1m", 0), ("0.5", 0), ("soon", 2), ("-1", 2)])
def test_how_long(torchx: Call, project: Path, text: str, code: int) -> None:
    """`--timeout` takes seconds, or a time span with a unit."""
    torchx("run", "--wait", "utils.echo")
    assert torchx("wait", f"--timeout={text}", "@last").code == code


def test_wait_in_a_terminal(torchx: Call, project: Path) -> None:
    """A line shows how many jobs have ended; Ctrl-C does not affect the jobs."""
    torchx("run", "--wait", "utils.echo")
    torchx("run", "utils.sh", "sleep", "600")
    until(lambda: state(torchx) == "RUNNING")
    child = spawn(project, "wait", "@last", "@echo")
    child.expect("SUCCEEDED")
    child.expect("1 of 2 ended · .* · Ctrl-C stops waiting, the jobs continue")
    child.sendintr()
    assert end(child) == 130
    assert state(torchx) == "RUNNING"
    torchx("cancel", "@last")


def test_an_interrupted_wait_in_a_pipe(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where stderr is no terminal, nothing is written to it that steers one."""

    def wait(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    torchx("run", "--wait", "utils.echo")
    monkeypatch.setattr("torchx.runner.Runner.wait", wait)
    assert torchx("wait", "@last") == (130, "", "")


# -- cancel and delete -----------------------------------------------------------------------------


def test_cancel_all(torchx: Call, paper: Any, project: Path) -> None:
    """Cancels my active runs, by name and state; without a terminal there is no question."""
    ended = launch(torchx, paper, AppState.SUCCEEDED)
    running = launch(torchx, paper, AppState.RUNNING)
    pending = launch(torchx, paper, AppState.PENDING, "utils.touch", "--file", "x")
    assert torchx("cancel", "--state", "failed").err == "no matching run is active\n"
    assert torchx("cancel", "--name", "to*").code == 0
    assert [pending] == paper.CANCELLED
    paper.STATES[pending] = AppState.PENDING
    assert torchx("cancel", "--all", "--state", "pending").code == 0
    assert [pending] * 2 == paper.CANCELLED
    assert torchx("cancel", "--all").code == 0
    assert (paper.CANCELLED, paper.STATES[ended]) == ([pending, pending, running], AppState.SUCCEEDED)
    assert torchx("cancel", "--all", "@last").code == 2


@pytest.mark.parametrize(("answer", "after"), [("y", "CANCELLED"), ("", "RUNNING")], ids=["yes", "no"])
def test_cancel_all_asks_in_a_terminal(torchx: Call, project: Path, answer: str, after: str) -> None:
    """The question lists the jobs; Enter means no."""
    for _ in range(2):
        torchx("run", "utils.sh", "sleep", "600")
        until(lambda: state(torchx) == "RUNNING")
    child = spawn(project, "cancel", "--all")
    child.expect("local_cwd://torchx/sh-.* RUNNING, launched")
    child.expect("cancel these 2 jobs")
    child.sendline(answer)
    assert end(child) == 0
    if after == "CANCELLED":
        assert torchx("wait", "--timeout", "60", "@last", "@last~1").code == 1
    assert [state(torchx, job) for job in ("@last", "@last~1")] == [after] * 2
    torchx("cancel", "--all")


def test_a_running_job_is_not_deleted(torchx: Call, paper: Any, project: Path) -> None:
    """Deleting a running job needs --force."""
    app_id = launch(torchx, paper, AppState.RUNNING)
    refused = torchx("delete", "@last")
    assert (refused.code, "is RUNNING" in refused.err, "--force" in refused.hint()) == (2, True, True)
    assert app_id in paper.JOBS
    paper.STATES[app_id] = AppState.FAILED
    assert torchx("delete", app_id).code == 0
    other = launch(torchx, paper, AppState.RUNNING)
    assert torchx("delete", "--force", other).code == 0
    assert paper.JOBS == {}


# -- exit codes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (AppState.SUCCEEDED, 0),
        (AppState.FAILED, 1),
        (AppState.CANCELLED, 1),
        (AppState.RUNNING, EXIT_NOT_ENDED),
        (AppState.PENDING, EXIT_NOT_ENDED),
    ],
    ids=str,
)
def test_the_exit_code_of_a_job(torchx: Call, paper: Any, project: Path, how: AppState, code: int) -> None:
    """`--exit-code` of `status` and `log` returns the result of the job; without it the exit code is 0."""
    launch(torchx, paper, how)
    for verb in ("status", "log"):
        assert torchx(verb, "@last").code == 0
        assert torchx(verb, "--exit-code", "@last").code == code


def test_following_with_an_exit_code(torchx: Call, project: Path) -> None:
    """`log -f --exit-code` ends with the job, and with its result."""
    torchx("run", "utils.sh", "--", "sleep 0.3; echo last words; exit 3")
    outcome = torchx("log", "-f", "--exit-code", "@last")
    assert (outcome.code, outcome.out) == (1, "sh/0 last words\n")


def test_status_of_several(torchx: Call, paper: Any, project: Path) -> None:
    """A page per job, or one document; an unknown job does not hide the others."""
    first = launch(torchx, paper, AppState.SUCCEEDED)
    second = launch(torchx, paper, AppState.FAILED)
    page = torchx("status", first, second)
    assert (page.code, page.out.count("app:  ")) == (0, 2)
    document = json.loads(torchx("status", "--json", first, second, first).out)
    assert [(job["app_id"], job["state"]) for job in document["jobs"]] == [(first, "SUCCEEDED"), (second, "FAILED")]
    mixed = torchx("status", "nobody", second)
    assert (mixed.code, "called `nobody`" in mixed.err, second in mixed.out) == (3, True, True)
    assert torchx("status", "--exit-code", first, second).code == 1


# -- what the log shows ----------------------------------------------------------------------------


def test_one_rank(torchx: Call, paper: Any, project: Path) -> None:
    """`--rank` selects lines that torchrun prefixed with the rank; `--regex` filters them further."""
    app_id = launch(torchx, paper, AppState.SUCCEEDED)
    lines = ["[3]:loss 1\n", "[13]:loss 2\n", "[default3]:Loss 3\n", "no rank [3]:loss\n", "[3]:done\n"]
    paper.OUTPUT[app_id, "echo", 0] = lines
    shown = torchx("log", "--no-prefix", "--rank", "3", app_id).out
    assert shown == "[3]:loss 1\n[default3]:Loss 3\n[3]:done\n"
    assert (
        torchx("log", "--no-prefix", "--rank", "3", "--regex", "(?i)loss", app_id).out
        == "[3]:loss 1\n[default3]:Loss 3\n"
    )
    assert torchx("log", "--no-prefix", "--rank", "3", "--regex", "ne$", app_id).out == "[3]:done\n"
    assert torchx("log", "--no-prefix", "--rank", "3", "--regex", "(?x) do ne # the end", app_id).out == "[3]:done\n"
    assert torchx("log", "--rank", "x", app_id).code == 2


def test_times_of_lines(torchx: Call, paper: Any, project: Path) -> None:
    """Times are in UTC, before each line or as a key of `--json`; not every scheduler supports them."""
    torchx("run", "--wait", "utils.sh", "--", "echo one; echo two")
    stamp = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    assert re.fullmatch(rf"sh/0 {stamp} one\nsh/0 {stamp} two\n", torchx("log", "--timestamps", "@last").out)
    assert re.fullmatch(f"{stamp} two\n", torchx("log", "--timestamps", "--no-prefix", "--tail", "1", "@last").out)
    (line,) = torchx("log", "--timestamps", "--regex", "^two", "--json", "@last").out.splitlines()
    document = json.loads(line)
    assert (document["line"], bool(re.fullmatch(stamp, document["time"]))) == ("two", True)
    refused = torchx("log", "--timestamps", launch(torchx, paper, AppState.SUCCEEDED))
    assert (refused.code, refused.out) == (NotSupportedError.exit_code, "")
    assert "`paper` does not record when lines were written" in refused.err


def test_the_attempt_before(torchx: Call, paper: Any, project: Path) -> None:
    """`--previous` shows the attempt before the restart; it is an error without one, and with `-f`."""
    script = r"echo try \$(cat n 2>/dev/null); echo x >>n; [ \$(wc -l <n) -gt 2 ]".replace("\\", "")
    torchx("run", "--wait", "utils.sh", "--max_retries", "3", "--", script)
    assert torchx("log", "@last").out == "sh/0 try\nsh/0 try x\nsh/0 try x x\n"
    assert torchx("log", "--previous", "@last").out == "sh/0 try x\n"
    assert torchx("log", "--previous", "-f", "@last").code == 2
    torchx("run", "--wait", "utils.echo")
    once = torchx("log", "--previous", "@last")
    assert (once.code, once.out) == (NotFoundError.exit_code, "")
    assert "not started again" in once.err
    refused = torchx("log", "--previous", launch(torchx, paper, AppState.SUCCEEDED))
    assert refused.code == NotSupportedError.exit_code
    assert "`paper` does not keep the output of earlier attempts separately" in refused.err


def test_the_attempt_before_of_some_replicas(torchx: Call, project: Path) -> None:
    """Replicas without a restart are omitted."""
    (project / "two.py").write_text(
        "import torchx.specs as specs\n"
        "def two() -> specs.AppDef:\n"
        "    script = '[ $0 = 0 ] && exit; echo $0; [ -e once ] && exit; : >once; exit 1'\n"
        "    return specs.AppDef('two', [specs.Role('w', '', entrypoint='sh', args=['-c', script, '${replica_id}'],\n"
        "        num_replicas=2, max_retries=1, retry_policy=specs.RetryPolicy.REPLICA)])\n"
    )
    assert torchx("run", "--wait", "two.py:two").code == 0
    assert torchx("log", "--previous", "@last").out == "w/1 1\n"


def test_bars_in_a_pipe(torchx: Call, project: Path) -> None:
    """A progress bar becomes one line with its last state; without prefix the bytes are unchanged."""
    torchx("run", "--wait", "utils.sh", "--", r"printf 'go\n\r 0%%\r50%%\r100%%\nend\n'")
    assert torchx("log", "@last").out == "sh/0 go\nsh/0 100%\nsh/0 end\n"
    assert torchx("log", "--no-prefix", "@last").out == "go\n\r 0%\r50%\r100%\nend\n"


def test_a_bar_on_a_terminal(project: Path) -> None:
    """A progress bar is shown while it is drawn, and is one line in the end."""
    (project / "bar.sh").write_text(
        "printf '\\r 10%%' >&2; until [ -e seen ]; do sleep 0.05; done; printf '\\r 90%%\\n' >&2; echo end\n"
    )
    child = spawn(project, "run", "utils.sh", "sh", f"{project}/bar.sh")
    child.expect(r"\r\S*sh/0\S* +10%")
    (project / "seen").touch()
    child.expect(r"\r\S*sh/0\S* +90%\S*\r\n\S*sh/0\S* end")
    child.expect(pexpect.EOF)


@pytest.mark.parametrize(("text", "mib"), [("4G", 4096), ("512M", 512), ("1.5GiB", 1536), ("2048", 2048)])
def test_memory_with_a_unit(torchx: Call, project: Path, text: str, mib: int) -> None:
    """`--memMB 4G` is 4096 MiB."""
    document = json.loads(torchx("run", "--dryrun", "--json", "utils.python", "--memMB", text, "-c", "1").out)
    assert document["app"]["roles"][0]["resource"]["memMB"] == mib
    assert torchx("run", "--dryrun", "utils.python", "--memMB", "4X", "-c", "1").code == 2


def test_cancelling_says_when_the_job_is_killed(torchx: Call, project: Path) -> None:
    """After Ctrl-C a line counts down the grace period."""
    stubborn = "trap '' TERM; touch up; while [ ! -e go ]; do sleep 0.05; done"
    child = spawn(project, "run", "--wait", "-cfg", "cancel_grace_s=600", "utils.sh", "--", stubborn)
    child.expect("Ctrl-C cancels")
    child.sendintr()
    child.expect("\r\033\\[K.*cancelling the job")
    child.expect("RUNNING.* cancelling, SIGKILL in (59\\d|600) s")
    (project / "go").touch()
    child.expect("CANCELLED|SUCCEEDED")
    assert end(child) == 130


def test_a_warning_while_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages have their own line."""
    from torchx.cli.failures import note, progress, warn

    progress("RUNNING 3 s")
    warn("the engine is away")
    progress("RUNNING 4 s")
    note("and back")
    note("for good")
    clear = "\r\033[K"
    assert capsys.readouterr().err == (
        f"{clear}RUNNING 3 s{clear}torchx: warning: the engine is away\n{clear}RUNNING 4 s{clear}and back\nfor good\n"
    )


def test_an_interrupt_while_progress_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line is cleared although Ctrl-C came as soon as it was on the screen."""
    from torchx.cli.failures import progress

    class Interrupted(io.StringIO):
        def flush(self) -> None:
            if self.getvalue().endswith("3 s"):
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", err := Interrupted())
    with pytest.raises(KeyboardInterrupt):
        progress("RUNNING 3 s")
    progress("")
    assert err.getvalue() == "\r\033[KRUNNING 3 s\r\033[K"


def test_an_interrupt_before_progress_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `^C` on the terminal is cleared; a message alone clears nothing that others wrote."""
    from torchx.cli.failures import note, progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", err := Terminal("^C"))
    err.read()
    progress("")
    note("cancelling the job")
    assert err.getvalue() == "^C\r\033[Kcancelling the job\n"


@pytest.mark.parametrize("verb", [["status"], ["log"], ["log", "--tail", "1"], ["describe"], ["metrics"], ["wait"]])
def test_without_a_job_it_is_the_newest_run(torchx: Call, project: Path, verb: list[str]) -> None:
    """Verbs that only show something take `@last` when no job is named, and say which that is."""
    assert torchx(*verb).code == 3
    handle = torchx("run", "--wait", "utils.echo", "--msg", "hi").out.strip()
    found = torchx(*verb)
    assert (found.code, found.err.splitlines()[0]) == (0, f"@last is {handle}")
    assert found.out == torchx(*verb, "@last").out


def test_a_job_that_is_being_cancelled_says_so(torchx: Call, project: Path) -> None:
    """While its processes may still end by themselves, its status says when they are killed."""
    handle = torchx(
        "run", "-cfg", "cancel_grace_s=600", "utils.sh", "trap '' TERM; echo up $$; while sleep 0.1; do :; done"
    ).out
    until(lambda: torchx("log", handle.strip()).out.startswith("sh/0 up "))
    try:
        assert torchx("cancel", "@last").code == 0
        until(lambda: "cancelling, SIGKILL in " in torchx("status").out)
        assert re.search(r"cancelling, SIGKILL in (600|59\d) s", torchx("status").out)
        assert json.loads(torchx("status", "--json").out)["state"] == "RUNNING"
    finally:  # nothing else ends it for ten minutes
        os.kill(int(torchx("log", handle.strip()).out.split()[-1]), signal.SIGKILL)
    until(lambda: torchx("status").out.count("CANCELLED"))
