"""What every backend that lets somebody into its replicas must do: inherit :class:`InsideContract`, and give it a place."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from torchx.errors import NotFoundError
from torchx.runner import inside
from torchx.schedulers.inside import STDOUT, InsideProcess, Tty

ODD = ["", "a b", "it's", '"$HOME" `x` \\', "grüße 木", "a\nb", "-n", "*"]
EVERY_BYTE = bytes(range(256)) * 300


class Place(NamedTuple):
    """A replica that runs until it is ended."""

    scheduler: Any
    app_id: str
    role: str
    end: Callable[[], object]
    """Ends the job, and returns when its end is known."""
    k: int = 0

    def open(self, *argv: str, tty: Tty | None = None) -> InsideProcess:
        return inside.enter(self.scheduler, self.app_id, (self.role, self.k), argv, tty)

    def run(self, *argv: str, stdin: bytes = b"") -> inside.Ran:
        return inside.run(self.open(*argv), stdin)


def read_until(process: InsideProcess, pattern: bytes, seen: bytes = b"") -> bytes:
    """The output up to what matches, and what came along with it."""
    while not re.search(pattern, seen):
        piece = process.read()
        assert piece is not None, f"it has ended: {seen!r}"
        seen += piece[1]
    return seen


def rest_of(process: InsideProcess) -> bytes:
    seen = b""
    while (piece := process.read()) is not None:
        seen += piece[1]
    return seen


class InsideContract:
    """The fixture ``place`` is the backend's."""

    def test_exit_code_output_and_arguments_are_the_commands(self, place: Place) -> None:
        """Each stream by itself, the arguments as they were given, whatever is in them."""
        script = 'printf "%s|" "$@"; echo err >&2; exit 7'
        assert place.run("sh", "-c", script, "sh", *ODD) == (7, ("|".join(ODD) + "|").encode(), b"err\n")
        assert place.run("true").exit_code == 0
        assert place.run("no-such-program").exit_code == 127

    def test_it_is_where_the_replica_is(self, place: Place) -> None:
        """Folder and environment are the replica's."""
        done = place.run("sh", "-c", 'echo "$GREETING"; test -e "$MARK_FILE" && echo there')
        assert done.stdout.decode().split("\n") == ["hello, 世界", "there", ""]

    def test_signals(self, place: Place) -> None:
        """What ends it by a signal shows as 128 and the number; a signal that is sent arrives, at its children too."""
        assert place.run("sh", "-c", "kill -9 $$").exit_code == 137
        with place.open("sh", "-c", 'trap "echo got; exit 5" TERM; echo ready; while :; do sleep 0.1; done') as process:
            read_until(process, b"ready")
            process.send_signal(signal.SIGTERM)
            assert b"got" in rest_of(process)
            assert process.wait() == 5
        with place.open("sh", "-c", "echo ready; sleep 1000; echo not ended") as process:
            read_until(process, b"ready")
            process.send_signal(signal.SIGINT)
            assert b"not ended" not in rest_of(process)
            assert process.wait() == 130

    def test_stdin_is_bytes_and_has_an_end(self, place: Place) -> None:
        """Nothing is changed on the way; without input there is an end at once; who reads none need not."""
        assert place.run("cat", stdin=EVERY_BYTE).stdout == EVERY_BYTE
        assert place.run("wc", "-c").stdout.split() == [b"0"]
        assert place.run("true", stdin=EVERY_BYTE * 10).exit_code == 0
        with place.open("true") as process:  # its stdin stays open
            assert rest_of(process) == b""
            assert process.wait() == 0

    def test_what_is_closed_is_ended(self, place: Place) -> None:
        """Nobody is left behind in the replica."""
        with place.open("sh", "-c", "echo $$; exec sleep 12345") as process:
            pid = read_until(process, rb"\d+\n").split()[0].decode()
        while place.run("sh", "-c", f"tr '\\0' ' ' </proc/{pid}/cmdline | grep '^sleep 12345'").exit_code == 0:
            pass

    def test_a_terminal(self, place: Place) -> None:
        """It has its size, is told when that changes, knows its name, and Ctrl-C is a signal."""
        with place.open("sh", tty=Tty(101, 37, "screen-256color")) as process:
            process.write(
                b"PS1=; PS2=; stty -echo; echo begin; stty size; echo $TERM; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo tty\n"
            )
            read_until(process, rb"begin\r\n37 101\r\nscreen-256color\r\ntty\r\n")
            process.resize(60, 20)
            process.write("until [ \"$(stty size)\" = '20 60' ]; do sleep 0.05; done; echo grüße 木\n".encode())
            read_until(process, "grüße 木\r\n".encode())
            process.write(b"sh -c 'echo sleeping; exec sleep 1000'\n")  # it says so when the terminal is its own
            read_until(process, b"sleeping\r\n")
            process.write(b"\x03")
            process.write(b"echo code=$?; exit 4\n")
            read_until(process, b"code=130")
            rest_of(process)
            assert process.wait() == 4

    def test_a_hundred_megabytes_both_ways(self, place: Place) -> None:
        """Every byte arrives, in order, while both directions are busy."""
        block, blocks = os.urandom(1 << 20), 100
        sent, received = hashlib.sha256(), hashlib.sha256()

        def feed(process: InsideProcess) -> None:
            for number in range(blocks):
                data = number.to_bytes(4, "big") + block
                sent.update(data)
                process.write(data)
            process.close_stdin()

        with place.open("cat") as process:
            feeding = threading.Thread(target=feed, args=(process,))
            feeding.start()
            while (piece := process.read()) is not None:
                assert piece[0] == STDOUT
                received.update(piece[1])
            feeding.join()
            assert process.wait() == 0
        assert received.hexdigest() == sent.hexdigest()

    def test_a_replica_that_has_ended(self, place: Place) -> None:
        """Nobody gets in, and the error says how it is; exit code 3."""
        place.end()
        with pytest.raises(NotFoundError, match=f"{place.role}/0 of .* does not run: it is CANCELLED") as refused:
            place.run("true")
        assert refused.value.exit_code == 3
