"""Commands over SSH: how they run, which are retried, and the errors of their failures."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.schedulers.batch.fake_ssh import FakeSsh
from torchx.errors import CommandError, ConfigError, TransientError
from torchx.schedulers.batch.ssh import master as ssh_master
from torchx.schedulers.batch.ssh.errors import ConnectionLostError, LoginError, UnreachableError
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
from torchx.schedulers.batch.ssh.script import Answer


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSsh]:
    made = FakeSsh(tmp_path / "fake")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("HOME", str(made.there))
    monkeypatch.setattr(time, "sleep", lambda s: None)
    yield made
    ssh_master.end_all()


@pytest.fixture
def runner(fake: FakeSsh) -> SSHCommandRunner:
    return SSHCommandRunner("me@login")


# -- commands --------------------------------------------------------------------------------------


def test_a_command_and_its_answer(runner: SSHCommandRunner) -> None:
    """Output, exit code and input are those of the command alone, in the C locale."""
    done = runner.run(["sh", "-c", "cat; echo err >&2; echo $LC_ALL; exit 255"], stdin="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (255, "in\nC\n", "err\n")
    assert done.argv[0] == "sh"


def test_one_login_for_all(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """The configuration is read once, there is one login, and each command is one session."""
    for _ in range(3):
        runner.run(["true"])
    assert fake.calls() == ["config", "login", "run", "run", "run"]
    SSHCommandRunner("me@login").run(["true"])
    assert fake.calls()[5:] == ["config", "run"]


def test_a_nul_is_refused_before_anything_runs(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """No system could pass it on."""
    with pytest.raises(CommandError, match="NUL"):
        runner.run(["echo", "a\0b"])
    assert fake.calls() == []


def test_a_missing_program(runner: SSHCommandRunner) -> None:
    """The error names the login node, and has the exit code of a shell."""
    with pytest.raises(CommandError, match="`no-such-program` is not installed on `me@login`") as caught:
        runner.run(["no-such-program"])
    assert caught.value.returncode == 127


def test_a_program_of_the_login_shell(runner: SSHCommandRunner, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that only the profile puts into PATH are found."""
    tool = fake.there / "tools" / "sinfo-x"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    (fake.there / ".profile").write_text(f"echo noise; PATH={tool.parent}:$PATH; export PATH\n")
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert runner.run(["sinfo-x"]).stdout == "found\n"


def test_too_late(runner: SSHCommandRunner, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow command times out; the connection, which works, is kept."""
    monkeypatch.setattr("torchx.schedulers.batch.ssh.runner._PROBE_S", 120)
    runner.run(["true"])
    end = fake.there / "end"
    with pytest.raises(TransientError, match=r"`sh` did not end within 0\.2 s") as caught:
        runner.run(["sh", "-c", f"until [ -e {end} ]; do sleep 0.05; done"], timeout=0.2)
    end.touch()  # it has gone on over there
    assert not isinstance(caught.value, ConnectionLostError)
    assert os.path.exists(runner.master.socket)


def test_without_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error names `ssh`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CommandError, match="`ssh` is not installed"):
        SSHCommandRunner("login").run(["true"])


# -- what is tried again ---------------------------------------------------------------------------


def test_a_command_that_may_have_run_is_not_run_again(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """A connection lost before or after the command looks the same, so the caller decides."""
    counter = fake.there / "ran"
    runner.run(["true"])
    for when, ran in (("before", 0), ("after", 1)):
        fake.loses(when)
        with pytest.raises(ConnectionLostError, match="the connection to `me@login` was lost during `sh`"):
            runner.run(["sh", "-c", f"echo x >> {counter}"])
        assert (counter.read_text() if counter.exists() else "") == "x\n" * ran
    assert runner.run(["echo", "again"]).stdout == "again\n"


def test_an_answer_without_its_end_is_none(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """An incomplete answer does not count, even if ssh exits with 0."""
    fake.loses("within")
    with pytest.raises(ConnectionLostError):
        runner.run(["printf", "x%.0s", *map(str, range(1000))])
    fake.loses("within")
    assert runner.script("printf %2000s x", patience=60).stdout == b" " * 1999 + b"x"


def test_a_command_that_cannot_have_run_is_run_again(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """With too many sessions, or a master that is gone, nothing was started."""
    fake.refuses(3)
    assert runner.run(["echo", "x"]).stdout == "x\n"
    os.truncate(runner.master.socket, 0)
    os.rename(runner.master.socket, f"{runner.master.socket}.gone")
    assert runner.run(["echo", "y"]).stdout == "y\n"
    os.unlink(f"{runner.master.socket}.gone")
    assert fake.calls().count("login") == 2


def test_sessions_that_are_always_refused(
    runner: SSHCommandRunner, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a timeout the error gives the reason."""
    monkeypatch.setattr("torchx.schedulers.batch.ssh.runner.BUSY_S", 0.2)
    fake.refuses(10_000)
    with pytest.raises(TransientError, match="accepts no further session") as caught:
        runner.run(["echo", "x"])
    assert "MaxSessions" in caught.value.hint


def test_patience(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """An idempotent script survives lost connections and failed logins; a node that was never reached is not retried."""
    fake.login_fails("ssh: connect to host login port 22: Connection refused")
    with pytest.raises(UnreachableError):
        runner.script("echo x", patience=60)
    assert runner.script("echo x", patience=60).stdout == b"x\n"
    fake.loses("after", 2)
    fake.login_fails("ssh: connect to host login port 22: No route to host", "Connection reset by peer")
    assert runner.script("echo y", patience=60).stdout == b"y\n"


def test_patience_does_not_help_against_a_refusal(runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """A rejected key is not retried."""
    runner.script("true")
    fake.loses("before")
    fake.login_fails(*["me@login: Permission denied (publickey)."] * 5)
    with pytest.raises(LoginError):
        runner.script("true", patience=60)
    assert fake.calls().count("login") == 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_once_and_only_once(when: str, runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """Whenever the connection is lost, the command runs once, and its only answer is returned."""
    runner.run(["true"])
    fake.loses(when, 2)
    command = ["sh", "-c", f"cat; echo x >> {fake.there}/ran; echo job 7; exit 3"]
    for _ in range(2):
        done = runner.run_once(command, token="job-1", stdin="in\n")
        assert (done.returncode, done.stdout) == (3, "in\njob 7\n")
    assert (fake.there / "ran").read_text() == "x\n"


def test_the_shell_of_a_lost_connection_takes_nothing_away(tmp_path: Path) -> None:
    """It may notice the loss late, while the next one reads the same input."""

    class Twice(SSHCommandRunner):
        def script(self, script: str, *, stdin: Any = b"", **_: Any) -> Answer:
            pipe = subprocess.PIPE
            lost, next_ = (
                subprocess.Popen(["sh", "-c", script], stdin=pipe, stdout=pipe, stderr=pipe) for _ in range(2)
            )
            for shell, sent in ((lost, stdin[:2]), (next_, stdin)):
                assert shell.stdin is not None
                shell.stdin.write(sent)
                shell.stdin.flush()
            assert lost.communicate()[0] == b"short\n"
            out, err = next_.communicate()
            return Answer(0, out, err, "", began=True)

    done = Twice("me@login", str(tmp_path)).run_once(["cat"], token="t", stdin="in\n", timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "in\n", "")


def test_a_submission_without_a_way_back(
    runner: SSHCommandRunner, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that the outcome is unknown, and what to check; the answer can be fetched later."""
    monkeypatch.setattr("torchx.schedulers.batch.ssh.runner.ONCE_PATIENCE_S", 0.2)
    runner.run(["true"])
    fake.loses("after")
    fake.login_fails(*["ssh: connect to host login port 22: No route to host"] * 3)
    with pytest.raises(
        TransientError, match="whether `sh` was run is not known: the connection to `me@login` was lost"
    ) as caught:
        runner.run_once(["sh", "-c", "echo job 7"], token="t")
    assert "torchx list" in caught.value.hint
    fake.login_fails()
    assert runner.run_once(["sh", "-c", "echo another"], token="t").stdout == "job 7\n"


@pytest.mark.parametrize("token", ["", "a/b", "../x", "a b", "x" * 300])
def test_tokens_that_are_no_names(token: str, runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """Tokens become names of folders."""
    with pytest.raises(CommandError, match="cannot name a submission"):
        runner.run_once(["true"], token=token)
    assert fake.calls() == []


# -- the connection --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["", "-oProxyCommand=x", "a b", "a;b", "a\nb", "$(x)", "a'b", "a|b"])
def test_targets_that_are_none(target: str) -> None:
    """Options and shell code are not accepted as hosts."""
    with pytest.raises(ConfigError, match="is not an SSH target"):
        SSHCommandRunner(target)


@pytest.mark.parametrize("target", ["login", "me@login.example.org", "ssh://me@[::1]:2222", "my_cluster-1", "10.0.0.1"])
def test_targets(target: str) -> None:
    """Hosts, users, aliases and addresses are accepted."""
    assert SSHCommandRunner(target).target == target


def test_the_socket_is_short_and_private(runner: SSHCommandRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path is limited to 104 characters, however long the path of the home folder is."""
    monkeypatch.setenv("TORCHX_HOME", "/tmp/" + "x" * 120)
    socket = SSHCommandRunner("login").master.socket
    assert len(socket) + 18 < 104
    folder = os.path.dirname(socket)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700


def test_a_folder_that_others_can_enter(fake: FakeSsh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is rejected, because nobody else may use the connection."""
    home = Path(f"/tmp/tx{os.getpid()}")
    monkeypatch.setenv("TORCHX_HOME", str(home))
    (home / "ssh").mkdir(parents=True)
    (home / "ssh").chmod(0o755)
    try:
        with pytest.raises(ConfigError, match="accessible to other users"):
            SSHCommandRunner("login").run(["true"])
    finally:
        monkeypatch.undo()
        (home / "ssh").rmdir()
        home.rmdir()


def test_the_users_own_connection(fake: FakeSsh, tmp_path: Path) -> None:
    """A connection from ~/.ssh/config is used without a second login, and its options are not overridden."""
    mine = tmp_path / "cm-login"
    fake.config(f"controlmaster auto\ncontrolpath {mine}\ncontrolpersist 600\nserveraliveinterval 60\n")
    master = SSHCommandRunner("login").master
    assert master.socket == str(mine)
    assert "-S" not in master.session()
    assert not any(option.startswith(("ControlPersist", "ServerAlive")) for option in master._start_options())


@pytest.mark.parametrize(
    "config",
    [
        "controlmaster false\ncontrolpath none\n",
        "controlmaster auto\ncontrolpath /x/%C\ncontrolpersist 600\n",
        "controlmaster auto\ncontrolpath /tmp/cm\ncontrolpersist no\n",
        "controlmaster false\ncontrolpath /tmp/cm\ncontrolpersist 600\n",
        "controlmaster auto\ncontrolpath /x/cm\ncontrolpersist 600\n",
    ],
    ids=["none", "not expanded", "not kept", "not shared", "no folder"],
)
def test_our_own_connection(config: str, fake: FakeSsh) -> None:
    """Otherwise torchx uses its own socket, and sets only options that the user has not set."""
    fake.config(config)
    master = SSHCommandRunner("login").master
    assert not master.socket.startswith(("/x", "/tmp/cm"))
    options = master._start_options()
    assert "ServerAliveInterval=15" in options and "ConnectTimeout=10" in options


# -- people ----------------------------------------------------------------------------------------


def test_a_person_is_asked_once(
    runner: SSHCommandRunner, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If keys are not enough and there is a terminal, ssh may prompt; later commands use the connection."""
    monkeypatch.setattr(ssh_master, "_TERMINAL", str(tmp_path / "tty"))
    (tmp_path / "tty").touch()
    fake.login_fails("me@login: Permission denied (publickey,keyboard-interactive).")
    runner.run(["true"])
    runner.run(["true"])
    assert fake.calls().count("login") == 2  # without questions, and with them


def test_nobody_is_asked_without_a_terminal(
    runner: SSHCommandRunner, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The hint says what to do."""
    monkeypatch.setattr(ssh_master, "_TERMINAL", str(tmp_path / "no-tty"))
    fake.login_fails("me@login: Permission denied (publickey,keyboard-interactive).")
    with pytest.raises(LoginError) as caught:
        runner.run(["true"])
    assert "log in once from a terminal" in caught.value.hint
    assert fake.calls().count("login") == 1
