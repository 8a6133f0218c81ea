"""Cases of commands and logins over SSH in which one operand of a condition decides."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedulers.batch.fake_ssh import FakeSsh
from tests.schedulers.batch.test_ssh import fake, runner
from torchx.errors import BackendError, CommandError, ConfigError, TransientError
from torchx.schedulers.batch.ssh import master as ssh_master
from torchx.schedulers.batch.ssh import runner as ssh_runner
from torchx.schedulers.batch.ssh.errors import ConnectionLostError, LoginError, login_error
from torchx.schedulers.batch.ssh.master import Master
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner, _word_of
from torchx.schedulers.batch.ssh.script import Answer

__all__ = ["fake", "runner"]


def answer(code: int | None, out: str = "", err: str = "", noise: str = "", *, began: bool = False) -> Answer:
    return Answer(code, out.encode(), err.encode(), noise, began)


# -- commands ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "word"),
    [
        ("", '"${TORCHX_HOME:-$HOME/.torchx}"'),
        ("/scratch/me", "/scratch/me"),
        ("~/jobs", '"$HOME"/jobs'),
        ("~", '"$HOME"/.'),
        ("jobs", '"$HOME"/jobs'),
        ("~/my jobs", "\"$HOME\"/'my jobs'"),
    ],
)
def test_the_folder_over_there(folder: str, word: str) -> None:
    """Relative ones start at the home folder."""
    assert _word_of(folder) == word


def test_a_program_with_a_path_is_not_looked_for(runner: SSHCommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only names are, in the login shell's PATH."""
    scripts: list[str] = []
    monkeypatch.setattr(runner, "script", lambda script, **_: scripts.append(script) or answer(0))
    runner.run(["/bin/true", "x"])
    runner.run(["sinfo", "x"])
    assert scripts[0] == "/bin/true x"
    assert "command -v sinfo" in scripts[1] and scripts[1].endswith("sinfo x")


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        (answer(0, "done 3\nout\n", "err"), None, "3 out\n err"),
        (answer(0, "done 0\n"), None, "0  "),
        (answer(0, "done x\n"), CommandError, "`sub` was not started on `me@login`: it said nothing"),
        (answer(0, "unknown\n"), TransientError, "has not answered within 120 s"),
        (answer(0, "short\n"), CommandError, "its input was cut short"),
        (answer(1, "", "mkdir: no space\n"), CommandError, "was not started on `me@login`: mkdir: no space"),
        (answer(0, "done 127\n", "sub: not found"), CommandError, "`sub` is not installed on `me@login`"),
        (answer(0, "done 127\n", "line 3"), None, "127  line 3"),
    ],
)
def test_what_a_submission_answers(
    said: Answer, error: type[Exception] | None, text: str, runner: SSHCommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own answer, or a clear word on whether it was started."""
    monkeypatch.setattr(runner, "script", lambda *_, **__: said)
    if error is None:
        done = runner.run_once(["sub"], token="t")
        assert f"{done.returncode} {done.stdout} {done.stderr}" == text
    else:
        with pytest.raises(error, match=text):
            runner.run_once(["sub"], token="t")


def test_how_long_a_submission_may_take(runner: SSHCommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script over there waits as long as is wished; the connection half a minute longer."""
    seen: list[tuple[str, Any]] = []
    monkeypatch.setattr(runner, "script", lambda script, **more: seen.append((script, more)) or answer(0, "done 0\n"))
    runner.run_once(["sub"], token="t", timeout=1.5, stdin="ünï")
    runner.run_once(["sub"], token="t")
    assert [more["timeout"] for _, more in seen] == [31.5, 150.0]
    assert "ticks=15\n" in seen[0][0] and "ticks=1200\n" in seen[1][0]
    assert "-ne 5 ]" in seen[0][0] and "-mtime +14 " in seen[0][0]
    assert seen[0][1]["patience"] == 60.0


@pytest.mark.parametrize(
    ("noise", "code", "began", "error", "text"),
    [
        ("Session open refused by peer", 255, False, TransientError, "accepts no further session"),
        ("Control socket connect(/x): No such file or directory", 255, False, BackendError, "cannot log in"),
        ("bash: bad rc file", 1, False, CommandError, "does not run commands: bash: bad rc file"),
        ("", 1, False, CommandError, "does not run commands: exit code 1"),
        ("", 1, True, ConnectionLostError, "was lost during `x`"),
        ("", 255, False, ConnectionLostError, "was lost during `x`"),
        ("Connection to login closed.", 255, True, ConnectionLostError, "was lost during `x`"),
    ],
)
def test_why_a_session_ended(
    noise: str, code: int, began: bool, error: type[Exception], text: str, runner: SSHCommandRunner
) -> None:
    """By what ssh said, its code, and whether the command has surely started."""
    found = runner.lost(noise, code, "`x`", began=began)
    assert isinstance(found, error)
    assert text in str(found)
    assert isinstance(found, ConnectionLostError) is (error is ConnectionLostError)


REFUSED = answer(None, noise="Session open refused by peer")
NO_MASTER = answer(None, noise="Control socket connect(/x): No such file")


@pytest.mark.parametrize(
    ("answers", "logins", "slept", "text"),
    [
        ([REFUSED] * 3 + [answer(0)], 0, [0.1, 0.2, 0.4], ""),
        ([REFUSED] * 9, 0, [0.1, 0.2, 0.4, 0.8, 1.6, 2.0], "accepts no further session"),
        ([NO_MASTER] * 2 + [answer(0)], 2, [], ""),
        ([NO_MASTER] * 3, 2, [], "cannot log in"),
        ([NO_MASTER, REFUSED, answer(3)], 1, [0.1], ""),
        ([answer(None, began=True)], 0, [], "was lost"),
    ],
)
def test_what_cannot_have_started_is_started_again(
    answers: list[Answer],
    logins: int,
    slept: list[float],
    text: str,
    runner: SSHCommandRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the login node has no room, for some time; and after two more logins."""
    now, left, seen, logged = [0.0], list(answers), [], []

    def sleep(seconds: float) -> None:
        seen.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(ssh_runner, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(ssh_runner, "BUSY_S", 5.0)
    monkeypatch.setattr(runner, "_session", lambda *_: (left.pop(0), 255))
    runner.master = SimpleNamespace(ensure=lambda: None, login=lambda: logged.append(1))  # type: ignore[assignment]  # a stand-in
    if text:
        with pytest.raises(BackendError, match=text):
            runner._attempt("x", b"", 60.0, "`x`")
    else:
        assert runner._attempt("x", b"", 60.0, "`x`").returncode == answers[-1].returncode
    assert (len(logged), seen) == (logins, slept)


@pytest.mark.parametrize(
    ("probe", "alive"), [(answer(0), True), (REFUSED, True), (answer(1), False), (answer(None), False), (None, False)]
)
def test_is_only_the_command_slow(
    probe: Answer | None, alive: bool, runner: SSHCommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the connection answers at all; a dead one is abandoned."""

    def session(*_: object) -> tuple[Answer, int]:
        if probe is None:
            raise TransientError("late")
        return probe, 0

    abandoned: list[int] = []
    monkeypatch.setattr(runner, "_session", session)
    runner.master = SimpleNamespace(abandon=lambda: abandoned.append(1))  # type: ignore[assignment]  # a stand-in
    late = runner._late(2.0, "`x`")
    assert isinstance(late, ConnectionLostError) is not alive
    assert abandoned == [1] * (not alive)
    assert type(runner._late(2.0, "true")) is TransientError  # the probe itself


@pytest.mark.parametrize(
    ("was_up", "patience", "tries"), [(False, 60.0, 1), (True, 0.0, 1), (True, 0.24, 1), (True, 0.8, 3)]
)
def test_how_long_a_lost_connection_is_tried(
    was_up: bool, patience: float, tries: int, runner: SSHCommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at all, if the login node was never reached."""
    now, made = [100.0], []

    def attempt(*_: object) -> Answer:
        made.append(1)
        raise login_error("x", "ssh: connect to host x: Connection refused")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(ssh_runner, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(runner, "_attempt", attempt)
    runner._was_up = was_up
    with pytest.raises(BackendError):
        runner.script("x", patience=patience)
    assert len(made) == tries


def test_a_connection_that_comes_back(
    runner: SSHCommandRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says so, however often it is tried; a connection that was lost had been there."""
    left: list[Exception | None] = [ConnectionLostError("lost"), ConnectionLostError("lost"), None]

    def attempt(*_: object) -> Answer:
        if error := left.pop(0):
            raise error
        return answer(0)

    monkeypatch.setattr(runner, "_attempt", attempt)
    with caplog.at_level(logging.WARNING, "torchx.ssh"):
        assert runner.script("x", patience=9.0).returncode == 0
    assert caplog.messages == ["the connection to `me@login` was lost, trying again"]


def test_the_words_of_a_session(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """A terminal is asked for, and then there is one stream and one mark."""
    words, first, mark = runner.session(["sh", "-c", "x"], tty=True)
    assert (words[:2], first) == (["ssh", "-tt"], b"")
    plain, _, _ = runner.session(["sh", "-c", "x"], tty=False)
    assert "-tt" not in plain
    assert (words[-1].count(mark.rstrip(":")), plain[-1].count(mark.rstrip(":"))) == (1, 2)
    assert fake.calls() == ["config", "login"]


# -- the login ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("", ["ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3"]),
        ("connecttimeout none\nserveraliveinterval 0\n", ["ConnectTimeout=10", "ServerAliveInterval=15"]),
        ("connecttimeout 5\n", ["ServerAliveInterval=15"]),
        ("serveraliveinterval 60\n", ["ConnectTimeout=10"]),
        ("connecttimeout 5\nserveraliveinterval 60\n", []),
    ],
)
def test_only_what_the_user_has_not_set(config: str, options: list[str], fake: FakeSsh) -> None:
    """Time limits of the user are kept; the connection is kept for half an hour."""
    fake.config(config)
    found = [word for word in Master("login")._start_options() if "=" in word]
    assert [word for word in found if word.startswith(("Connect", "Server"))][: len(options)] == options
    assert not [word for word in found if word.startswith("Connect")] or "connecttimeout 5" not in config
    assert not [word for word in found if word.startswith("Server")] or "interval 60" not in config
    assert "ControlPersist=1800" in found


@pytest.mark.parametrize(
    ("master", "persist", "path", "shared"),
    [
        ("auto", "600", "HERE/cm", True),
        ("yes", "yes", "HERE/cm", True),
        ("true", "600", "HERE/cm", True),
        ("no", "600", "HERE/cm", False),
        ("auto", "no", "HERE/cm", False),
        ("auto", "false", "HERE/cm", False),
        ("auto", "600", "HERE/%C", False),
        ("auto", "600", "HERE/none/cm", False),
        ("auto", "600", "none", False),
    ],
)
def test_a_connection_that_the_user_shares(
    master: str, persist: str, path: str, shared: bool, fake: FakeSsh, tmp_path: Path
) -> None:
    """If it is kept, and its socket can be found."""
    fake.config(
        f"controlmaster {master}\ncontrolpersist {persist}\ncontrolpath {path.replace('HERE', str(tmp_path))}\n"
    )
    made = Master("login")
    assert (made.socket == f"{tmp_path}/cm") is shared
    assert made._is_users() is shared
    assert ("-S" in made.session()) is not shared
    assert ("-M" in made._start_options()) is not shared


def test_a_login_of_another_process(fake: FakeSsh) -> None:
    """It is used; a socket that is left of a dead one is removed first, unless it is the user's."""
    master = Master("login")
    Path(master.socket).touch()
    master.login()
    assert fake.calls() == ["config", "check"]
    assert master.is_up()
    master.abandon()
    assert not master.is_up()
    assert fake.calls()[-1] == "stop"  # without a socket nobody is asked


def test_a_stale_socket(fake: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens to it: it is removed before the login, which makes another one."""
    master = Master("login")
    Path(master.socket).write_text("stale")
    monkeypatch.setattr(master, "_control", lambda _: False)
    master.login()
    assert Path(master.socket).read_text() == ""
    monkeypatch.setattr(master, "_is_users", lambda: True)
    monkeypatch.setattr(master, "_start", lambda **_: (0, ""))
    Path(master.socket).write_text("the user's")
    master.login()
    assert Path(master.socket).read_text() == "the user's"


@pytest.mark.parametrize(
    ("said", "terminal", "asked"),
    [
        ("Permission denied (publickey).", True, [True, False]),
        ("Host key verification failed.", True, [True, False]),
        ("No ED25519 host key is known for login", True, [True, False]),
        ("Permission denied (publickey).", False, [True]),
        ("Connection refused", True, [True]),
        ("", True, [True]),
    ],
)
def test_who_is_asked(
    said: str, terminal: bool, asked: list[bool], fake: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person, if there is one, and the answer would help."""
    master, seen = Master("login"), []

    def start(*, batch: bool) -> tuple[int, str]:
        seen.append(batch)
        return (255, said) if batch or "fails" in said else (0, "")

    monkeypatch.setattr(master, "_start", start)
    monkeypatch.setattr(ssh_master, "_has_terminal", lambda: terminal)
    if asked[-1]:
        with pytest.raises(BackendError) as no:
            master.login()
        is_hint = "log in once from a terminal" in no.value.hint
        assert is_hint is (isinstance(no.value, LoginError) and not terminal)
    else:
        master.login()
    assert seen == asked


def test_threads_ask_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the main thread does, if there is a terminal."""
    monkeypatch.setattr(ssh_master, "_TERMINAL", str(tmp_path / "tty"))
    assert not ssh_master._has_terminal()
    (tmp_path / "tty").touch()
    assert ssh_master._has_terminal()
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(ssh_master._has_terminal()))
    thread.start()
    thread.join()
    assert found == [False]


def test_somebody_else_logs_in_for_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error that passes; the lock is free afterwards."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += 60.0

    held = ssh_master._lock(str(tmp_path / "lock"), "login")
    monkeypatch.setattr(ssh_master, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    with pytest.raises(TransientError, match="has been logging in to `login` for 180 s"):
        ssh_master._lock(str(tmp_path / "lock"), "login")
    assert now[0] == 240.0
    os.close(held)
    os.close(ssh_master._lock(str(tmp_path / "lock"), "login"))


def test_ssh_that_hangs_or_is_missing(fake: FakeSsh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Late is as good as unreachable; missing is said."""

    def late(*words: object, **more: Any) -> None:
        raise subprocess.TimeoutExpired("ssh", more["timeout"])

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", late)
        assert ssh_master._ssh(["x"], 1.0) == (255, "", "timed out")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="`ssh` is not installed"):
        ssh_master._ssh(["x"], 1.0)


def test_all_connections_are_closed(fake: FakeSsh) -> None:
    """Those of this machine and home, with their locks; others stay."""
    master = Master("login")
    folder = Path(master.socket).parent  # where paths are long, all homes of this user share it, other tests, too
    other = folder / f"other-{os.getpid()}"
    master.ensure()
    other.touch()
    assert (folder / f"{Path(master.socket).name}.lock").exists()
    ssh_master.end_all()
    assert [path.name for path in folder.iterdir() if path.name.startswith((ssh_master._prefix(), other.name))] == [
        other.name
    ]
    other.unlink()
    assert fake.calls()[-1] == "exit"
    assert fake.calls().count("exit") == 1


def test_messages_are_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the locale of the user is; nothing else is changed."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert ssh_master.c_locale() == {**os.environ, "LC_ALL": "C"}


def test_a_home_in_which_no_folder_can_be_made(fake: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the folder."""
    monkeypatch.setenv("TORCHX_HOME", "/proc/x")
    with pytest.raises(ConfigError, match="folder `/proc/x/ssh` for SSH connections cannot be made"):
        ssh_master._socket_folder()
    monkeypatch.undo()
