"""What every backend that lets somebody into its replicas must do: inherit :class:`InsideContract`, and give it a place."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.backends.ssh.sshd import Link
from torchx.errors import EXIT_BACKEND, BackendError, NotFoundError
from torchx.runner.inside import entering
from torchx.runner.inside.copy import Copied, download, upload
from torchx.runner.inside.forward import Forwarding, forwarding
from torchx.schedulers.kit.inside import STDOUT, InsideProcess, Tty
from torchx.schedulers.kit.inside.run import Ran, run

ODD = ["", "a b", "it's", '"$HOME" `x` \\', "grüße 木", "a\nb", "-n", "*"]
EVERY_BYTE = bytes(range(256)) * 300
# Draws a red mark into the last column of the last line, and the size into the first line, whenever the size changes.
DRAWS = r"""
draw() {
  set -- $(stty size)
  printf '\033[2J\033[%d;%dH\033[31m#\033[0m\033[1;1H木 %d x %d' "$1" "$2" "$1" "$2"
}
trap draw WINCH
draw
while :; do sleep 0.05; done
"""
ECHO_SERVER = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    request_queue_size = 128
    daemon_threads = True
with Server(("127.0.0.1", 0), Echo) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
"""
CONNECTIONS = 50


class Place(NamedTuple):
    """A replica that runs until it is ended."""

    scheduler: Any
    app_id: str
    role: str
    end: Callable[[], object]
    """Ends the job, and returns when its end is known."""
    k: int = 0

    def open(self, *argv: str, tty: Tty | None = None) -> InsideProcess:
        return entering.enter(self.scheduler, self.app_id, (self.role, self.k), argv, tty)

    def start(self, argv: Sequence[str]) -> InsideProcess:
        return self.open(*argv)

    @property
    def archive(self) -> Any:
        """The backend's own way for files, if it has one."""
        return entering.archives(self.scheduler, self.app_id, (self.role, self.k))

    def forward(self, *ports: tuple[int, int]) -> Forwarding:
        find = functools.partial(entering.port_opener, self.scheduler, self.app_id, (self.role, self.k))
        return forwarding(self.start, find, ports)

    def run(self, *argv: str, stdin: bytes = b"") -> Ran:
        return run(self.open(*argv), stdin)


Copy = Callable[..., Copied]


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
        # dash may lose a SIGINT while it forks: the outer one has done so when the inner one speaks
        with place.open("sh", "-c", "sh -c 'echo ready; exec sleep 1000'; echo not ended") as process:
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

    @pytest.mark.parametrize("heard", [True, False])
    def test_what_is_closed_is_ended(self, place: Place, heard: bool) -> None:
        """Nobody is left behind in the replica, be it that nothing of it was read yet."""
        pid = b""
        with place.open("sh", "-c", "echo $$; echo $$ >closed.pid; exec sleep 12345") as process:
            if heard:
                read_until(process, rb"\d+\n")
            while not pid.endswith(b"\n"):
                pid = place.run("sh", "-c", "cat closed.pid 2>/dev/null").stdout
        look = f"tr '\\0' ' ' </proc/{pid.decode().strip()}/cmdline | grep '^sleep 12345'"
        while place.run("sh", "-c", look).exit_code == 0:
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

    def test_a_terminal_as_an_emulator_sees_it(self, place: Place) -> None:
        """What is drawn by the size of the terminal is where it belongs, and again when the size changes."""
        pyte = pytest.importorskip("pyte")
        screen = pyte.Screen(63, 17)
        stream = pyte.ByteStream(screen)
        with place.open("sh", "-c", DRAWS, tty=Tty(63, 17)) as process:
            for columns, rows in ((63, 17), (41, 9)):
                screen.resize(rows, columns)
                process.resize(columns, rows)
                while not screen.display[0].startswith(f"木 {rows} x {columns} "):
                    piece = process.read()
                    assert piece is not None
                    stream.feed(piece[1])
                corner = screen.buffer[rows - 1][columns - 1]
                assert (corner.data, corner.fg) == ("#", "red")

    def test_fifty_connections_at_once(self, place: Place) -> None:
        """Each has its own bytes, and its end: through one process in the replica, or by the backend's own way."""

        def ask(port: int) -> bool:
            data = os.urandom(300_000)
            with socket.create_connection(("127.0.0.1", port)) as connection:
                sending = threading.Thread(
                    target=lambda: (connection.sendall(data), connection.shutdown(socket.SHUT_WR))
                )
                sending.start()
                answer = b""
                while piece := connection.recv(1 << 16):
                    answer += piece
                sending.join()
            return answer == data

        def passing(forwarding: Forwarding) -> None:
            with contextlib.suppress(BackendError):  # the end of the test
                forwarding.run()

        with place.open("python3", "-c", ECHO_SERVER) as server:
            port = int(read_until(server, rb"\d+\n"))
            with place.forward((port, 0)) as made:
                threading.Thread(target=passing, args=(made,), daemon=True).start()
                with ThreadPoolExecutor(CONNECTIONS) as pool:
                    assert all(pool.map(ask, made.local_ports * CONNECTIONS))

    def test_files_both_ways(self, place: Place, tmp_path: Path) -> None:
        """A hundred megabytes, names as they come, links, empty folders; by the backend's own way where it has one."""
        ours = tmp_path / "ours"
        (ours / "sub" / "empty").mkdir(parents=True)
        (ours / "big").write_bytes(os.urandom(1 << 20) * 100)
        (ours / "sub" / "grüße  木 'x' \\n").write_text("x")
        (ours / "link").symlink_to("sub/grüße  木 'x' \\n")
        os.link(ours / "big", ours / "sub" / "also big")
        sent = Copied(3, 2 * (100 << 20) + 1, 0, [])
        assert upload(place.start, f"{ours}/", "files", archive=place.archive) == sent
        found = place.run("sh", "-c", "sha256sum files/big; stat -c %u files/big; id -u").stdout.split()
        assert found[0].decode() == hashlib.sha256((ours / "big").read_bytes()).hexdigest()
        assert found[2] == found[3]
        assert upload(place.start, f"{ours}/", "files", archive=place.archive) == Copied(0, 0, 3, [])
        assert download(place.start, "files", str(tmp_path / "theirs"), archive=place.archive) == sent
        assert download(place.start, "files/", str(tmp_path / "theirs"), archive=place.archive) == Copied(0, 0, 3, [])
        differs = subprocess.run(["diff", "-r", "--no-dereference", ours, tmp_path / "theirs"], check=False)
        assert differs.returncode == 0
        place.run("rm", "-r", "files")

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

    def test_it_ends_with_the_replica(self, place: Place) -> None:
        """Nothing that was started there is left when the job is over."""
        with place.open("sh", "-c", "echo ready; exec sleep 1000") as process:
            read_until(process, b"ready")
            place.end()
            rest_of(process)  # until it has ended: Slurm says something of its own
            with contextlib.suppress(BackendError):  # where nobody is left to say how it ended
                assert process.wait() != 0

    def test_a_replica_that_has_ended(self, place: Place) -> None:
        """Nobody gets in, and the error says how it is; exit code 3."""
        place.end()
        with pytest.raises(NotFoundError, match=f"{place.role}/0 of .* is not running: it is CANCELLED") as refused:
            place.run("true")
        assert refused.value.exit_code == 3


class CutContract:
    """The fixture ``far`` is a place behind the fixture ``link``."""

    def test_a_command_whose_link_is_cut(self, far: Place, link: Link) -> None:
        """How it ended is not known, which is no exit code of it; the error says what may be, and the next command works."""
        with far.open("sh", "-c", "echo ready; exec sleep 1000") as process:
            read_until(process, b"ready")
            link.cut()
            assert rest_of(process) == b""
            with pytest.raises(BackendError, match=r"connection to .* was lost") as lost:
                process.wait()
        assert (lost.value.exit_code, bool(lost.value.hint)) == (EXIT_BACKEND, True)
        assert far.run("echo", "again").stdout == b"again\n"

    @pytest.mark.parametrize("own", [True, False], ids=["own way", "a process"])
    def test_files_whose_link_is_cut(self, far: Place, link: Link, tmp_path: Path, own: bool) -> None:
        """What has come stays; the same call goes on with the rest."""
        ours = tmp_path / "ours"
        ours.mkdir()
        for number in range(8):
            (ours / str(number)).write_bytes(os.urandom(4 << 20))
        archive = far.archive if own else None
        ways: list[tuple[Copy, str, str]] = [
            (upload, f"{ours}/", "files"),
            (download, "files/", str(tmp_path / "theirs")),
        ]
        for copy, source, target in ways:
            link.cut_after(18 << 20)
            try:
                done = copy(far.start, source, target, archive=archive)
            except BackendError as e:
                assert "the same command resumes the copy" in e.hint, e
                done = copy(far.start, source, target, archive=archive)
                assert 0 < done.skipped < 8
            assert link._cut_at is None
            assert done.files + done.skipped == 8
        assert all((tmp_path / "theirs" / p.name).read_bytes() == p.read_bytes() for p in ours.iterdir())

    def test_connections_whose_link_is_cut(self, far: Place, link: Link) -> None:
        """They end, and so does forwarding, with a sentence."""
        with far.open("python3", "-c", ECHO_SERVER) as server:
            port = int(read_until(server, rb"\d+\n"))
            with far.forward((port, 0)) as made, ThreadPoolExecutor(1) as pool:
                passing = pool.submit(made.run)
                with socket.create_connection(("127.0.0.1", made.local_ports[0])) as connection:
                    connection.sendall(b"hello")
                    assert connection.recv(5) == b"hello"
                    link.cut()
                    with contextlib.suppress(ConnectionResetError):
                        assert connection.recv(1) == b""
                with pytest.raises(BackendError, match=r"has ended|was lost") as lost:
                    passing.result(60)
                assert lost.value.hint
