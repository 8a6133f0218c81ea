"""Entries for `~/.ssh/config`: one line each for any handle, and the user's own keys."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchx.errors import ConfigError
from torchx.runner.inside import ssh
from torchx.runner.inside.ssh import entry, host_names, public_keys


def test_the_command_arrives_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through ssh's own expansion and a shell, with the special characters of both."""
    program = tmp_path / "py'thon"
    program.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s|" "$word"; done\n')
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "a b%h"))
    text = entry("x://s/a%b", ("r $x", 3), name="n", user="me", keys='ssh-ed25519 AAAA it\'s "me" $HOME\nssh-rsa B `x`')
    (line,) = [line for line in text.splitlines() if "ProxyCommand" in line]
    shell = line.replace("  ProxyCommand ", "").replace("%%", "%")
    words = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True).stdout.split("|")
    assert words[2:7] == ["exec", "x://s/a%b/r $x/3", "--", "sh", "-c"]
    assert words[-2:] == ['ssh-ed25519 AAAA it\'s "me" $HOME\nssh-rsa B `x`', ""]
    assert "%" not in line.replace("%%", "")


def test_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From files, each once, without certificates and what cannot be read; the hint says how to create a key."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(ConfigError) as refused:
        public_keys(str(tmp_path))
    assert "ssh-keygen" in refused.value.hint
    (tmp_path / "a.pub").write_text("one\n\n")
    (tmp_path / "b.pub").write_text("one\ntwo\n")
    (tmp_path / "a-cert.pub").write_text("three\n")
    (tmp_path / "c.pub").symlink_to(tmp_path / "gone")
    (tmp_path / "d.pub").mkdir()
    (tmp_path / "e.pub").write_bytes(b"four caf\xe9\n")
    assert public_keys(str(tmp_path)) == "one\ntwo\nfour caf\ufffd"


@pytest.mark.parametrize(("code", "keys"), [(0, "of the agent\none"), (1, "one")])
def test_keys_of_an_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, keys: str) -> None:
    """They come first; the agent's message that it has none is not a key."""
    program = tmp_path / "ssh-add"
    program.write_text(f"#!/bin/sh\necho of the agent; exit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "a.pub").write_text("one\n")
    assert public_keys(str(tmp_path)) == keys


@pytest.mark.parametrize(
    ("app_id", "replicas", "names"),
    [
        ("a-1", [("w", 0)], ["torchx-a-1-0"]),
        ("a-1", [("w", 0), ("w", 1)], ["torchx-a-1-0", "torchx-a-1-1"]),
        ("ns:a", [("w", 0), ("b c", 0)], ["torchx-ns-a-w-0", "torchx-ns-a-b-c-0"]),
        ("ü.b_c", [], []),
    ],
)
def test_names_of_hosts(app_id: str, replicas: list[tuple[str, int]], names: list[str]) -> None:
    """They contain the role if there are several, and only characters that ssh takes literally."""
    assert host_names(app_id, replicas) == dict(zip(replicas, names, strict=True))


@pytest.mark.parametrize(("sshd", "code"), [("", 0), ("kill -HUP 0; sleep 600", 129), ("kill -TERM 0; sleep 600", 143)])
def test_a_hangup_while_the_folder_is_removed(tmp_path: Path, sshd: str, code: int) -> None:
    """`ssh` sends SIGHUP to all processes of a login that may be ending by itself: its keys are removed nevertheless."""
    programs, temporary = tmp_path / "bin", tmp_path / "tmp"
    programs.mkdir()
    temporary.mkdir()
    hangup = 'kill -HUP 0; PATH=/usr/bin:/bin exec rm "$@"'
    for name, script in {"sshd": sshd, "ssh-keygen": "", "id": "echo 1000", "rm": hangup}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    words = ["sh", str(Path(ssh.__file__).with_name("sshd.sh")), "ssh-ed25519 AAAA"]
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(temporary)}
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, start_new_session=True, check=False)
    assert (done.returncode, [*temporary.iterdir()]) == (code, [])
