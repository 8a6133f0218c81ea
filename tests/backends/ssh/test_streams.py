"""Commands on a login node with their streams, over the connection that is there."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from tests.backends.inside import EVERY_BYTE, ODD, read_until, rest_of
from tests.backends.ssh.sshd import Link, Sshd
from torchx.schedulers.batch.sites import site_of
from torchx.schedulers.batch.ssh.errors import ConnectionLostError
from torchx.schedulers.kit.inside import InsideProcess, Tty
from torchx.schedulers.kit.inside.run import run


def start(*argv: str, tty: Tty | None = None, target: str = "login") -> InsideProcess:
    return site_of({"ssh": target}).spawn(list(argv), tty)


@pytest.mark.usefixtures("runner")
def test_streams_are_the_commands(login: Sshd, there: Path) -> None:
    """Whatever login scripts say; many at once, by one login."""
    (there / ".bashrc").write_text("echo welcome; echo hm >&2\n")
    done = run(start("sh", "-c", 'printf "%s|" "$@"; cat; echo err >&2; exit 7', "sh", *ODD), EVERY_BYTE)
    assert done == (7, "|".join([*ODD, ""]).encode() + EVERY_BYTE, b"err\n")
    many = [start("sh", "-c", f"read line; echo {n}-$line") for n in range(8)]
    for n, process in enumerate(many):
        assert run(process, b"x\n").stdout == b"%d-x\n" % n
    assert login.logins() == 1


@pytest.mark.usefixtures("login")
def test_more_sessions_than_the_login_node_takes(login: Sshd) -> None:
    """sshd takes ten on one connection: the others come when there is room."""
    first = [start("cat") for _ in range(10)]
    late: list[bytes] = []
    waiting = threading.Thread(target=lambda: late.append(run(start("cat"), b"late").stdout))
    waiting.start()
    for process in first:
        assert run(process, b"x").stdout == b"x"
    waiting.join(60)
    assert late == [b"late"]


@pytest.mark.usefixtures("login")
def test_a_terminal() -> None:
    """Its size, its changes, Ctrl-C."""
    with start("sh", tty=Tty(101, 37)) as process:
        process.write(b"PS1=; stty -echo; echo begin; stty size\n")
        read_until(process, rb"begin\r\n37 101\r\n")
        process.resize(60, 20)
        process.write(b"until [ \"$(stty size)\" = '20 60' ]; do sleep 0.05; done; echo resized\n")
        read_until(process, b"resized\r\n")
        process.write(b"sh -c 'echo sleeping; exec sleep 1000'\n")
        read_until(process, b"sleeping\r\n")
        process.write(b"\x03")
        process.write(b"echo code=$?; exit 4\n")
        read_until(process, b"code=130")
        rest_of(process)
        assert process.wait() == 4


@pytest.mark.usefixtures("login")
def test_many_bytes_both_ways() -> None:
    """Every one, in order."""
    data = os.urandom(1 << 20) * 50
    assert hashlib.sha256(run(start("cat"), data).stdout).digest() == hashlib.sha256(data).digest()


def test_a_link_that_is_cut(link: Link) -> None:
    """It is said, and the next command has a connection of its own."""
    with start("sh", "-c", "echo begun; exec cat", target="far") as process:
        read_until(process, b"begun")
        link.cut()
        assert rest_of(process) == b""
        with pytest.raises(ConnectionLostError, match="the connection to `far` was lost during `sh`"):
            process.wait()
    assert run(start("echo", "again", target="far")).stdout == b"again\n"
