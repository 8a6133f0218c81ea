"""A login that needs a person: one question on their terminal, and none for what comes after."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.ssh.sshd import Keys, Sshd, make_key

pexpect = pytest.importorskip("pexpect")

PROGRAM = """\
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
print("answer:", SSHCommandRunner("asks").run(["echo", "hello"]).stdout)
"""


@pytest.fixture
def asks(login: Sshd, keys: Keys, tmp_path: Path) -> Sshd:
    """A login node that takes only a key with a passphrase, and no agent has it."""
    key = tmp_path / "locked"
    make_key(key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(key)], check=True)
    with keys.authorized.open("a") as f:
        f.write(Path(f"{key}.pub").read_text())
    keys.host("asks", login.port, f"IdentityFile {key}", "IdentitiesOnly yes")
    return login


def test_one_question_for_many_commands(asks: Sshd, tmp_path: Path) -> None:
    """The first program asks on its terminal; the second, a new process, and one without a terminal, ask nothing."""
    argv = [sys.executable, "-c", PROGRAM]
    first = pexpect.spawn(argv[0], argv[1:], env=dict(os.environ), timeout=200, encoding="utf-8")
    first.expect("Enter passphrase for key")
    first.sendline("open sesame")
    first.expect("answer: hello")
    first.expect(pexpect.EOF)
    first.wait()
    first.close()
    assert first.exitstatus == 0
    second = pexpect.spawn(argv[0], argv[1:], env=dict(os.environ), timeout=200, encoding="utf-8")
    second.expect(pexpect.EOF)
    second.wait()
    second.close()
    assert "passphrase" not in second.before and "answer: hello" in second.before
    third = subprocess.run(argv, capture_output=True, text=True, check=True, start_new_session=True)
    assert "answer: hello" in third.stdout
    assert asks.logins() == 1


def test_a_wrong_answer(asks: Sshd) -> None:
    """Ends with our own error, not with a hang."""
    child = pexpect.spawn(sys.executable, ["-c", PROGRAM], env=dict(os.environ), timeout=200, encoding="utf-8")
    for _ in range(3):
        child.expect("Enter passphrase for key")
        child.sendline("wrong")
    child.expect("cannot log in to `asks`: it refuses our keys")
    assert "Permission denied" not in child.before
    child.expect(pexpect.EOF)
    child.wait()
    child.close()


def test_nobody_is_there(asks: Sshd) -> None:
    """Without a terminal nothing is asked and the hint says what to do."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=200,
    )
    assert done.returncode == 1
    assert "cannot log in to `asks`: it refuses our keys" in done.stderr
