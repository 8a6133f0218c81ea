"""Commands on a login node with their streams: separation from noise, retries, and lost connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.schedulers.batch.fake_ssh import FakeSsh
from torchx.errors import TransientError
from torchx.schedulers.batch.sites import site_of
from torchx.schedulers.batch.ssh import master as ssh_master
from torchx.schedulers.batch.ssh.errors import ConnectionLostError
from torchx.schedulers.kit.inside import InsideProcess, Tty
from torchx.schedulers.kit.inside.run import run

ODD = ["", "a b", "it's", '"$HOME" `x` \\', "grüße 木", "a\nb", "-n", "*", "!"]
EVERY_BYTE = bytes(range(256)) * 1000


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSsh]:
    made = FakeSsh(tmp_path / "fake")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("HOME", str(made.there))
    monkeypatch.setattr(time, "sleep", lambda s: None)
    yield made
    ssh_master.end_all()


def start(*argv: str, tty: Tty | None = None) -> InsideProcess:
    return site_of({"ssh": "me@login"}).spawn(list(argv), tty)


@pytest.mark.usefixtures("fake")
def test_streams_arguments_and_exit_code_are_the_commands() -> None:
    """Output of login scripts is discarded, and every byte of the command is kept."""
    script = 'printf "%s|" "$@"; cat; echo err >&2; exit 7'
    done = run(start("sh", "-c", script, "sh", *ODD), EVERY_BYTE)
    assert done == (7, "|".join([*ODD, ""]).encode() + EVERY_BYTE, b"err\n")


@pytest.mark.usefixtures("fake")
def test_a_line_too_long_for_ssh() -> None:
    """It is sent by stdin, before the command's own input."""
    done = run(start("sh", "-c", 'printf %s "$1" | wc -c; cat', "sh", "木" * 40_000), b"in")
    assert (done.exit_code, done.stdout.split()) == (0, [b"120000", b"in"])


@pytest.mark.usefixtures("fake")
def test_a_terminal() -> None:
    """It has the right size and no output of login scripts."""
    with start("sh", "-c", "stty size; exit 3", tty=Tty(99, 33)) as process:
        seen = b""
        while (piece := process.read()) is not None:
            seen += piece[1]
        assert (seen, process.wait()) == (b"33 99\r\n", 3)


def test_what_was_not_started_is_started_again(fake: FakeSsh) -> None:
    """The limit of sessions may be reached, or the master may be gone."""
    fake.refuses(3)
    assert run(start("cat"), b"in").stdout == b"in"
    fake.loses("master")
    assert run(start("cat"), b"in").stdout == b"in"


def test_a_login_node_that_never_has_room(fake: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says that nothing was started."""
    monkeypatch.setattr("torchx.schedulers.batch.ssh.inside.BUSY_S", -1.0)
    fake.refuses(1)
    with pytest.raises(TransientError, match=r"accepts no further session .* `cat` was not started"):
        start("cat")


@pytest.mark.usefixtures("fake")
def test_a_connection_that_is_lost() -> None:
    """It is an error, not an exit code of the command."""
    with start("sh", "-c", "echo begun; exit 255") as process:  # as ssh ends then
        assert process.read() == (1, b"begun\n")
        assert process.read() is None
        with pytest.raises(ConnectionLostError, match="connection to `me@login` was lost during `sh`"):
            process.wait()
