"""Commands over a real OpenSSH server: they arrive as they are, once, and every failure has its name."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends.ssh.conftest import Endless, Serve, cut_when
from tests.backends.ssh.sshd import Keys, Link, Sshd, is_alive, make_key
from torchx.errors import CommandError, ConfigError, TorchXError, TransientError
from torchx.schedulers.batch.ssh.errors import ConnectionLostError, LoginError, UnreachableError
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner

HOSTILE = [
    "it's",
    'say "x"',
    "$HOME",
    "`id`",
    "$(touch /tmp/never)",
    "a;b|c&d>e<f",
    "back\\slash\\",
    "!bang!!",
    "new\nline",
    "tab\tand  spaces ",
    "*?[a]{b,c}~",
    "-n",
    "--",
    "",
    "ünïcödé 日本",
    "%s%n\\0101",
    "#no comment",
    "\x01\x1b[31m",
]


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash", "/usr/bin/tcsh", "/usr/bin/fish"])
def test_arguments_arrive_as_they_are(shell: str, serve: Serve) -> None:
    """Whatever the login shell is, and whatever an argument holds."""
    serve("login", f'ForceCommand exec {shell} -c "$SSH_ORIGINAL_COMMAND"')
    done = SSHCommandRunner("login").run(["printf", r"[%s]\n", *HOSTILE])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(f"[{word}]\n" for word in HOSTILE)


def test_a_long_command_arrives(runner: SSHCommandRunner) -> None:
    """Longer than one argument may be on the other side, with input of its own."""
    words = [f"'{'x' * 999}" for _ in range(300)]
    assert runner.run(["printf", "%s", *words]).stdout == "".join(words)
    assert runner.run(["sh", "-c", 'cat; printf %s "$#"', "sh", *words], stdin="in\n").stdout == "in\n300"


def test_output_is_the_commands_alone(serve: Serve, there: Path) -> None:
    """What login scripts print is not part of it, on neither stream; nor is what comes after."""
    serve(
        "login", "ForceCommand echo Welcome; echo 'stty: no tty' >&2; sh -c \"$SSH_ORIGINAL_COMMAND\"; echo bye; exit 9"
    )
    done = SSHCommandRunner("login").run(["sh", "-c", "printf out; printf err >&2; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "out", "err")


@pytest.mark.parametrize(("script", "code"), [("exit 255", 255), ("exit 1", 1), ("kill -9 $$", 137), ("kill $$", 143)])
def test_exit_codes_are_the_commands_own(script: str, code: int, runner: SSHCommandRunner) -> None:
    """255, too, which is what ssh itself ends with when it fails."""
    assert runner.run(["sh", "-c", script]).returncode == code


def test_all_commands_share_one_login(runner: SSHCommandRunner, login: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """From threads, and from another runner, as in another process; more at once than sshd allows sessions."""
    monkeypatch.setattr("torchx.schedulers.batch.ssh.runner.BUSY_S", 120)
    results: list[str] = []

    def work(i: int) -> None:
        results.append(SSHCommandRunner("login").run(["sh", "-c", f"sleep 0.2; echo {i}"]).stdout)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(f"{i}\n" for i in range(14))
    assert login.logins() == 1


def test_the_users_own_multiplexing_is_used(login: Sshd, keys: Keys, tmp_path: Path) -> None:
    """Who keeps connections by ~/.ssh/config has logged in already."""
    control = tmp_path / "cm"
    keys.host("mine", login.port, "ControlMaster auto", f"ControlPath {control}", "ControlPersist 60")
    subprocess.run(["ssh", "mine", "true"], check=True, stderr=subprocess.DEVNULL)
    assert SSHCommandRunner("mine").run(["echo", "x"]).stdout == "x\n"
    assert login.logins() == 1
    subprocess.run(["ssh", "-O", "exit", "mine"], check=True, capture_output=True)
    assert SSHCommandRunner("mine").run(["echo", "y"]).stdout == "y\n"
    assert login.logins() == 2
    subprocess.run(["ssh", "-O", "exit", "mine"], check=True, capture_output=True)


def test_a_program_that_only_login_shells_find(serve: Serve, there: Path) -> None:
    """Sites put their scheduler into PATH in a profile, which sshd does not read."""
    serve()
    tools = there / "tools"
    tools.mkdir()
    (tools / "squeue-x").write_text('#!/bin/sh\necho jobs "$@"\n')
    (tools / "squeue-x").chmod(0o755)
    (there / ".profile").write_text(f"echo hello from the profile\nPATH={tools}:$PATH\n")
    assert SSHCommandRunner("login").run(["squeue-x", "a b"]).stdout == "jobs a b\n"


def test_a_program_that_is_not_there(runner: SSHCommandRunner) -> None:
    """It is said where, and what must be done."""
    with pytest.raises(CommandError, match="`sbatch-x` is not installed on `login`, or not on PATH there") as caught:
        runner.run(["sbatch-x"])
    assert caught.value.returncode == 127
    assert "bashrc" in caught.value.hint


def test_a_command_that_says_not_found_itself(runner: SSHCommandRunner) -> None:
    """127 of a script of the user's is no missing program."""
    assert runner.run(["sh", "-c", "exit 127"]).returncode == 127


def test_a_slow_command_does_not_cost_the_connection(
    runner: SSHCommandRunner, login: Sshd, endless: Endless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up in time, and the others go on over the same login."""
    monkeypatch.setattr("torchx.schedulers.batch.ssh.runner._PROBE_S", 120)
    with pytest.raises(TransientError, match="`sh` did not end within 1 s on `login`") as caught:
        runner.run(["sh", "-c", endless.script], timeout=1)
    assert not isinstance(caught.value, ConnectionLostError)
    assert runner.run(["echo", "x"]).stdout == "x\n"
    assert login.logins() == 1


# -- the connection breaks -------------------------------------------------------------------------


def test_a_cut_while_a_command_runs(runner: SSHCommandRunner, login: Sshd, endless: Endless) -> None:
    """It is known for what it is at once, and the next command has a new connection."""
    lost = "the connection to `login` was lost during `sh`"
    with cut_when(login, endless.began), pytest.raises(ConnectionLostError, match=lost):
        runner.run(["sh", "-c", endless.script], timeout=900)
    assert runner.run(["echo", "x"]).stdout == "x\n"
    assert login.logins() == 2


def test_a_cut_between_commands(runner: SSHCommandRunner, login: Sshd, eventually: Callable[..., object]) -> None:
    """Nobody notices, once ssh has."""
    runner.run(["true"])
    assert login.cut() == 1
    eventually(lambda: not runner.master.is_up())
    assert runner.run(["echo", "x"]).stdout == "x\n"


def test_a_master_that_was_killed(runner: SSHCommandRunner, eventually: Callable[..., object]) -> None:
    """Its socket lies there and nobody listens: it is replaced."""
    runner.run(["true"])
    said = subprocess.run(
        ["ssh", "-S", runner.master.socket, "-O", "check", "x"], capture_output=True, text=True, check=True
    ).stderr
    master = int(said.partition("pid=")[2].partition(")")[0])
    os.kill(master, signal.SIGKILL)
    eventually(lambda: not is_alive(master))
    assert os.path.exists(runner.master.socket)
    assert runner.run(["echo", "x"]).stdout == "x\n"


def test_a_link_that_goes_silent(link: Link, keys: Keys) -> None:
    """No reset, no answer: the command ends all the same, and when the network is back so are we."""
    keys.prefer("far", "ServerAliveInterval 5", "ServerAliveCountMax 4")
    runner = SSHCommandRunner("far")
    assert runner.run(["echo", "x"]).stdout == "x\n"
    link.stall()
    keys.prefer("far", "ConnectTimeout 3")
    with pytest.raises(TransientError) as caught:
        runner.run(["echo", "y"], timeout=900)
    assert "did not end" not in str(caught.value)
    with pytest.raises(UnreachableError, match="cannot log in to `far`: it does not answer"):
        runner.run(["echo", "y"], timeout=900)
    keys.prefer("far", "ConnectTimeout 60")
    link.flow()
    link.cut()
    assert runner.run(["echo", "z"]).stdout == "z\n"


def test_a_script_that_may_run_twice_outlives_a_cut(runner: SSHCommandRunner, login: Sshd, endless: Endless) -> None:
    """With patience, a lost connection is made anew and the script is run again."""
    with cut_when(login, endless.began):
        answer = runner.script(f"if [ -e {endless.began} ]; then echo done; exit; fi; {endless.script}", patience=120)
    assert answer.stdout == b"done\n"
    assert login.logins() == 2


# -- there is no connection ------------------------------------------------------------------------


def _refused(target: str) -> TorchXError:
    with pytest.raises((TransientError, LoginError, ConfigError, CommandError)) as caught:
        SSHCommandRunner(target).run(["true"])
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_host_that_is_not_known(login: Sshd, keys: Keys) -> None:
    """Nothing is put on record behind the user's back."""
    keys.known_hosts.write_text("")
    error = _refused("login")
    assert str(error) == "cannot log in to `login`: its host key is not known here"
    assert "ssh login" in error.hint
    assert keys.known_hosts.read_text() == ""


def test_a_host_with_another_key(login: Sshd, keys: Keys, tmp_path: Path) -> None:
    """It may be somebody else: nobody logs in there."""
    make_key(tmp_path / "other")
    public = (tmp_path / "other.pub").read_text().split()
    keys.known_hosts.write_text(f"[127.0.0.1]:{login.port} {public[0]} {public[1]}\n")
    error = _refused("login")
    assert str(error) == "cannot log in to `login`: its host key is not the one that is on record"
    assert "ssh-keygen -R" in error.hint


def test_a_key_that_is_refused(login: Sshd, keys: Keys, tmp_path: Path) -> None:
    """Without a terminal nothing is asked, and the hint says how to log in."""
    make_key(tmp_path / "wrong")
    keys.host("wrong", login.port, f"IdentityFile {tmp_path / 'wrong'}", "IdentitiesOnly yes")
    error = _refused("wrong")
    assert str(error) == "cannot log in to `wrong`: it refuses our keys"
    assert "ssh-add" in error.hint


def test_a_host_that_is_down(keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there; a name that nobody has; a target that would be an option."""
    with socket.socket() as taken:  # bound, so that nobody else comes to listen there
        taken.bind(("127.0.0.1", 0))
        keys.host("down", taken.getsockname()[1])
        error = _refused("down")
    assert str(error) == "cannot log in to `down`: nothing listens there (connection refused)"
    monkeypatch.setenv("RES_OPTIONS", "timeout:5 attempts:1")  # where no name server answers, be told so soon
    error = _refused("no-such-host.invalid")
    assert str(error) == "cannot log in to `no-such-host.invalid`: there is no host of that name"
    error = _refused("-oProxyCommand=touch /tmp/x")
    assert "is not an SSH target" in str(error)


def test_a_host_that_says_nothing(link: Link, keys: Keys) -> None:
    """It takes the connection and is silent: bounded by ssh's own time-out."""
    keys.prefer("far", "ConnectTimeout 3")
    link.stall()
    error = _refused("far")
    assert str(error) == "cannot log in to `far`: it does not answer"


def test_a_configuration_with_a_mistake(login: Sshd, keys: Keys) -> None:
    """The line is shown."""
    keys.host("odd", login.port, "NoSuchOption yes")
    error = _refused("odd")
    assert "ssh cannot read its configuration" in str(error)
    assert "nosuchoption" in str(error)


def test_a_login_shell_that_runs_nothing(serve: Serve) -> None:
    """As of an account that may not log in."""
    serve("closed", "ForceCommand echo This account is not available.; exit 1")
    error = _refused("closed")
    assert "the login shell of `closed` does not run commands" in str(error)


# -- the user's configuration decides --------------------------------------------------------------


def test_a_jump_host(serve: Serve, keys: Keys) -> None:
    """ProxyJump of ~/.ssh/config; each host is logged in to once."""
    gate = serve("gate")
    inner = serve("inner", host=False)
    keys.host("cluster", inner.port, "ProxyJump gate")
    # the jump is an ssh of its own, that must find the same configuration
    runner = SSHCommandRunner("cluster")
    assert runner.run(["echo", "x"]).stdout == "x\n"
    assert runner.run(["echo", "y"]).stdout == "y\n"
    assert (gate.logins(), inner.logins()) == (1, 1)


def test_options_that_would_be_in_the_way(login: Sshd, keys: Keys) -> None:
    """A RemoteCommand, a terminal and forwardings are for people who log in by hand."""
    taken = login.port
    keys.host("busy", login.port, "RemoteCommand tmux attach", "RequestTTY yes", f"LocalForward {taken} 127.0.0.1:1")
    assert SSHCommandRunner("busy").run(["echo", "x"]).stdout == "x\n"


def test_targets_with_user_and_port(login: Sshd, keys: Keys) -> None:
    """``user@host`` and ``ssh://user@host:port``."""
    with keys.config.open("a") as f:
        f.write(f"Host 127.0.0.1\n  IdentityFile {keys.key}\n  UserKnownHostsFile {keys.known_hosts}\n")
    assert SSHCommandRunner("root@login").run(["echo", "x"]).stdout == "x\n"
    assert SSHCommandRunner(f"ssh://root@127.0.0.1:{login.port}").run(["echo", "x"]).stdout == "x\n"
