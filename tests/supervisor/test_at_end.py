"""The program that says whether a job is started again: what it is given, and how long it may take."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.supervisor.forks import in_fork, role, started, state, until_dead
from torchx.supervisor import at_end
from torchx.supervisor.at_end import may_start_again, parts
from torchx.supervisor.layout import AT_END_FILE


def test_it_speaks_by_its_exit_code_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """It has its variables and nothing to read, and whatever it prints is not the job's."""
    script = 'read line && exit 1; echo out; echo error >&2; test "$A" = b'
    assert may_start_again(["/bin/sh", "-c", script], {"A": "b"})
    assert not may_start_again(["/bin/sh", "-c", script], {"A": "c"})
    assert capfd.readouterr() == ("", "")


def test_one_that_is_not_there_is_killed_or_never_ends_says_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a job that is over already nobody waits for it for long."""
    assert not may_start_again(["/no/such/program"], {})
    assert not may_start_again(["/bin/sh", "-c", "kill -9 $$"], {})
    monkeypatch.setattr(at_end, "_PATIENCE_S", 0.1)
    began = time.monotonic()
    assert not may_start_again(["/bin/sleep", "600"], {})
    assert 0.1 <= time.monotonic() - began < 60


def test_one_that_was_killed_runs_again(tmp_path: Path) -> None:
    """By an operator or for want of memory: that says nothing of the job. What it said itself counts at once."""
    often = f"echo >>{tmp_path}/runs; test $(wc -l <{tmp_path}/runs) -ge"
    assert may_start_again(["/bin/sh", "-c", f"{often} 3 || kill -9 $$"], {"PATH": os.environ["PATH"]})
    (tmp_path / "runs").unlink()
    assert not may_start_again(["/bin/sh", "-c", f"{often} 2 || exit 1"], {"PATH": os.environ["PATH"]})


def test_what_it_reads_of_the_job_is_written_by_then(tmp_path: Path) -> None:
    """Which replica has failed, and how, stands in the file of the job's state."""
    job = str(tmp_path / "job")

    def steps() -> None:
        supervisor = started(job, role("exit 7", retries=1, policy="ROLE"))
        supervisor._again = ["/bin/sh", "-c", f"cp -r '{job}' '{tmp_path}/seen'; exit 1"]
        until_dead(supervisor.replicas[0].line.pid)
        supervisor._reap(1000.0)
        supervisor._settle(set(), 1000.0)

    in_fork(steps)
    [replica] = state(str(tmp_path / "seen")).replicas
    assert (replica.state, replica.exit) == ("FAILED", 7)


# -- programs whose words are in a file ----------------------------------------------------------------


def _words(script: str, **env: str) -> bytes:
    variables = [f"{name}={value}" for name, value in {"PATH": os.environ["PATH"], **env}.items()]
    return "\0".join(["/bin/sh", "-c", script, "", *variables, ""]).encode()


def test_how_a_program_is_written_down() -> None:
    """Arguments, an empty string, variables; a value may contain an equals sign, and there may be no variables."""
    assert parts(b"/bin/echo\0x\0\0A=1\0B=2=3\0") == ([b"/bin/echo", b"x"], {b"A": b"1", b"B": b"2=3"})
    assert parts(b"/bin/true\0\0") == ([b"/bin/true"], {})


@pytest.mark.parametrize("alarm", ["", "12345"])
def test_the_program_at_the_end(tmp_path: Path, alarm: str) -> None:
    """It has its own variables, the alarm, a session, and the signals of a new process; nothing that it prints is seen."""

    def steps() -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        script = f"read line; echo x; echo x >&2; grep SigIgn /proc/self/status > '{tmp_path}/signals'"
        script += (
            f"; echo \"[$A][$TORCHX_ALARM]\" $(readlink /proc/$$/fd/0 /proc/$$/fd/1 /proc/$$/fd/2) > '{tmp_path}/said'"
        )
        (tmp_path / AT_END_FILE).write_bytes(_words(script, A="b c"))
        pid = at_end.start(str(tmp_path), alarm)
        assert os.getsid(pid) == pid
        assert os.waitpid(pid, 0) == (pid, 0)

    in_fork(steps)
    assert (tmp_path / "said").read_text() == f"[b c][{alarm}] /dev/null /dev/null /dev/null\n"
    ignored = int((tmp_path / "signals").read_text().split()[1], 16)
    assert not any(ignored & 1 << number - 1 for number in (1, 2, 3, 13, 15))


@pytest.mark.parametrize("words", [b"", b"garbage", b"/no/such\0\0", b"/bin/true\0\0A\0", b"\0\0"])
def test_a_program_that_cannot_be_started(tmp_path: Path, words: bytes) -> None:
    """0 instead of a pid; the job has ended all the same."""
    assert at_end.start(str(tmp_path)) == 0
    (tmp_path / AT_END_FILE).write_bytes(words)
    assert at_end.start(str(tmp_path)) == 0


def test_a_process_that_becomes_the_program(tmp_path: Path) -> None:
    """It has the program's variables alone, and dies of the signals that it ignored before."""

    def steps() -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        os.environ["B"] = "secret"
        at_end.become(
            _words(f"echo \"[$A][$B]\" > '{tmp_path}/said'; grep SigIgn /proc/self/status > '{tmp_path}/s'", A="b")
        )

    in_fork(steps)
    assert (tmp_path / "said").read_text() == "[b][]\n"
    ignored = int((tmp_path / "s").read_text().split()[1], 16)
    assert not any(ignored & 1 << number - 1 for number in (1, 2, 3, 13, 15))
