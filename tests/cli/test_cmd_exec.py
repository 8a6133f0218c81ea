"""`torchx exec` and `torchx shell`: which replica is meant, and whose exit code, streams and signals they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from torchx.runner import get_runner

from .conftest import Call, end, spawn, state, until


@pytest.fixture
def job(torchx: Call, project: Path) -> Iterator[str]:
    """A job of three replicas that run until the end of the test."""
    torchx("run", "-d", "utils.sh", "--num_replicas", "3", "--", "touch up-$TORCHX_LOCAL_REPLICA; exec sleep 600")
    until(lambda: len([*project.glob("up-*")]) == 3)
    until(lambda: state(torchx) == "RUNNING")
    yield "@last"
    torchx("cancel", "@last")
    torchx("wait", "@last")


def run(project: Path, *argv: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    """Runs ``torchx exec`` in a process of its own, because it bypasses Python's streams."""
    done = subprocess.run(
        [sys.executable, "-m", "torchx", "exec", *argv], cwd=project, input=stdin, capture_output=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


REPLICA = ("sh", "-c", "echo $TORCHX_LOCAL_REPLICA; exit $TORCHX_LOCAL_REPLICA")


def test_the_streams_and_the_exit_code_are_the_commands(job: str, project: Path) -> None:
    """All three streams pass arbitrary bytes."""
    script = "cat; printf '\\377' >&2; exit 9"
    assert run(project, job, "--", "sh", "-c", script, stdin=b"\0\xfe") == (9, b"\0\xfe", b"\xff")
    assert run(project, "-n", job, "cat", stdin=b"unread") == (0, b"", b"")


@pytest.mark.parametrize(("suffix", "replica"), [("", 0), ("/sh", 0), ("/sh/2", 2)])
def test_which_replica(job: str, project: Path, suffix: str, replica: int) -> None:
    """The default is the first replica."""
    assert run(project, job + suffix, "--", *REPLICA) == (replica, b"%d\n" % replica, b"")


def test_the_first_replica_is_that_of_the_runner_too(job: str, project: Path) -> None:
    """``Runner.exec`` defaults to the first replica of the first role."""
    with get_runner() as runner:
        assert [runner.exec(job, REPLICA).stdout, runner.exec(job, REPLICA, k=2).stdout] == [b"0\n", b"2\n"]
        assert runner.exec(job, ["cat"], stdin=b"text").stdout == b"text"


def test_all_replicas(job: str, project: Path) -> None:
    """Each line after the name of its replica, the worst exit code, those that failed by name; options of ours may stand
    between the job and the dashes."""
    code, out, err = run(project, job, "--all", "--", *REPLICA)
    assert (code, sorted(out.splitlines())) == (2, [b"sh/0 0", b"sh/1 1", b"sh/2 2"])
    assert err == b"2 of 3 failed: sh/1 (exit code 1), sh/2 (exit code 2)\n"
    code, out, err = run(project, "--all", f"{job}/sh/0,2", "printf", "no newline")
    assert (code, sorted(out.splitlines()), err) == (0, [b"sh/0 no newline", b"sh/2 no newline"], b"")


def test_ctrl_c_reaches_all_replicas(job: str, project: Path) -> None:
    """One Ctrl-C interrupts the command in every replica, as it does in one."""
    argv = [sys.executable, "-m", "torchx", "exec", "--all", job, "--", "sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen(argv, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert {process.stdout.readline() for _ in range(3)} == {b"sh/0 ready\n", b"sh/1 ready\n", b"sh/2 ready\n"}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert err == b"3 of 3 failed: " + b", ".join(b"sh/%d (exit code 130)" % k for k in range(3)) + b"\n"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["@last"], "no command is given"),
        (["@last", "--"], "no command is given"),
        (["@last", "-x", "ls"], "`-x` is not a command"),
        (["--all", "-t", "@last", "--", "ls"], "exclude each other"),
        (["@last/sh/0,1", "--", "ls"], "names several replicas"),
        ([], "no job is given"),
    ],
)
def test_wrong_usage(torchx: Call, project: Path, argv: list[str], said: str) -> None:
    """The error says what is wrong, and the hint what to write."""
    torchx("run", "--wait", "utils.sh", "--num_replicas", "2", "true")
    outcome = torchx("exec", *argv)
    assert (outcome.code, said in outcome.err, bool(outcome.hint())) == (2, True, True)


def test_where_there_is_nothing_to_enter(torchx: Call, project: Path, paper: object) -> None:
    """An ended replica, an unknown one, and a scheduler without exec are errors."""
    torchx("run", "--wait", "utils.sh", "true")
    ended = torchx("exec", "@last", "--", "true")
    assert (ended.code, "sh/0 of" in ended.err, "it is SUCCEEDED" in ended.err) == (3, True, True)
    assert torchx("exec", "@last/sh/4", "--", "true").code == 3
    torchx("run", "-s", "paper", "utils.echo")
    refused = torchx("shell", "@last")
    assert (refused.code, "scheduler `paper` cannot" in refused.err) == (5, True)


def test_ctrl_c_is_the_commands(job: str, project: Path) -> None:
    """Ctrl-C interrupts the command; the third one disconnects from a command that ignores it."""
    script = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.1; done"
    child = spawn(project, "exec", job, "--", "sh", "-c", script)
    child.expect("ready")
    child.sendintr()
    child.expect("interrupted")
    assert end(child) == 5
    child = spawn(project, "exec", job, "--", "sh", "-c", "trap 'echo no' INT; echo ready; while :; do sleep 0.1; done")
    child.expect("ready")
    for _ in range(2):
        child.sendintr()
        child.expect("no\r\n")
    child.sendintr()
    assert end(child) == 130


LATE = """
import os, signal, sys, threading
from torchx.cli.attach import attach
from torchx.schedulers.kit.inside.spawned import SpawnedProcess

def interrupt():
    reading.wait()
    os.kill(os.getpid(), signal.SIGINT)

reading = threading.Event()
threading.Thread(target=interrupt, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # so the other thread gets it, and no call of this one ends
child = "import signal, time; signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); time.sleep(20)"
process = SpawnedProcess([sys.executable, "-c", child])
read, process.read = process.read, lambda: reading.set() or read()
raise SystemExit(attach(process, stdin=False, tty=False))
"""


def test_a_signal_that_interrupts_no_call(project: Path) -> None:
    """Python handles signals between two calls, so one that arrives just before a blocking call waits for its end."""
    done = subprocess.run([sys.executable, "-c", LATE], cwd=project, check=False, capture_output=True)
    assert done.returncode == 128 + signal.SIGINT, done.stderr


def test_a_shell(job: str, project: Path) -> None:
    """Window size, resizing, Ctrl-C, Ctrl-Z and early input work; the terminal is restored afterwards."""
    child = pexpect.spawn(
        "sh",
        ["-c", f"{sys.executable} -m torchx shell {job}; echo code=$?; stty -a | tr ' ' '\\n' | grep -x icanon"],
        cwd=str(project),
        env={**os.environ, "SHELL": "/bin/bash"},
        encoding="utf-8",
        timeout=60,
        dimensions=(33, 99),
    )
    child.sendline("PS1='in> '; stty size")
    child.expect("33 99\r\n")
    child.setwinsize(20, 50)
    child.sendline("until [ \"$(stty size)\" = '20 50' ]; do sleep 0.05; done; echo as-$((40 + 2))")
    child.expect("as-42\r\n")
    child.sendline("sh -c 'echo sl\"\"eeping; exec sleep 600'")
    child.expect("sleeping\r\n")
    child.send("\x03")
    child.expect("in> ")  # what follows a Ctrl-C at once, the terminal may drop with it
    child.sendline("echo code=$?")
    child.expect("code=130\r\n")
    child.sendline("sh -c 'echo sl\"\"eeping; exec sed -u s/asleep/awake/'")
    child.expect("sleeping\r\n")
    child.send("\x1a")
    child.expect("Stopped")
    child.expect("in> ")
    child.sendline("fg")
    child.sendline("asleep")  # whether it is echoed depends on who has the terminal just then
    child.expect("awake\r\n")
    child.send("\x03")
    child.expect("in> ")
    child.sendline("exit 6")
    child.expect("code=6")
    child.expect("icanon")
