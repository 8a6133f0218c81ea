"""Frames of SPDY, whole or cut, in whatever order they arrive: of the connection, of a process, and of a port."""

from __future__ import annotations

import json
import socket
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from torchx.errors import BackendError, TransientError
from torchx.schedulers.kit.inside import STDERR, STDOUT, Tty
from torchx.schedulers.kubernetes import inside
from torchx.schedulers.kubernetes.api.spdy import Spdy
from torchx.schedulers.kubernetes.inside import PodPort, PodProcess, is_running

OPEN, REPLY, RESET, SETTINGS, PING, GOAWAY = 0x80030001, 0x80030002, 0x80030003, 0x80030004, 0x80030006, 0x80030007
FIN = 1


def frame(head: int, data: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("!II", head, flags << 24 | len(data)) + data


class Server:
    """The other end of an upgraded connection, in place of the client of the API."""

    def __init__(self, status: int = 101) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.settimeout(60)
        self.status = status
        self.asked: list[Any] = []
        self.closed = 0
        self.connection = self

    @property
    def sock(self) -> socket.socket:
        return self.ours

    def upgraded(self, *asked: object) -> Server:
        self.asked.append(asked)
        return self

    def close(self) -> None:
        self.closed += 1
        self.ours.close()

    def received(self) -> list[tuple[int, int, bytes]]:
        """All frames that were sent until the end of the connection."""
        data = b""
        while piece := self.theirs.recv(1 << 16):
            data += piece
        found = []
        while data:
            head, rest = struct.unpack("!II", data[:8])
            size = rest & 0xFFFFFF
            found.append((head, rest >> 24, data[8 : 8 + size]))
            data = data[8 + size :]
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.ours.close()
    made.theirs.close()


def connect(server: Server, *streams: dict[str, str], **more: Any) -> Spdy:
    api: Any = server
    return Spdy(api, "/exec", "v4", streams, **more)


def test_streams_are_opened_by_their_headers(server: Server) -> None:
    """Numbered 1, 3, 5; nothing will be written to those that have ended."""
    kinds = ["error", "größe", "x" * 300]
    spdy = connect(
        server, *({"streamtype": kind, "n": str(i)} for i, kind in enumerate(kinds)), query={"a": 1}, ended=(3,)
    )
    ((path, query, headers),) = server.asked
    assert (path, query) == ("/exec", {"a": 1})
    assert headers == {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": "v4"}
    spdy.close()
    unpacker, found = zlib.decompressobj(), []
    for head, flags, data in server.received():
        number, of, priority = struct.unpack("!IIH", data[:10])
        block = unpacker.decompress(data[10:])
        (count,), block, words = struct.unpack("!I", block[:4]), block[4:], []
        while block:
            size = int.from_bytes(block[:4], "big")
            words.append(block[4 : 4 + size].decode())
            block = block[4 + size :]
        assert (head, of, priority, len(words)) == (OPEN, 0, 0, 2 * count)
        found.append((number, flags, words))
    assert found == [(2 * i + 1, FIN * (i == 1), ["streamtype", kind, "n", str(i)]) for i, kind in enumerate(kinds)]


def test_what_is_written(server: Server) -> None:
    """In pieces of 64 KiB; a stream is closed by its last frame."""
    spdy = connect(server)
    for size in (0, 1, 65_535, 65_536, 65_537):
        spdy.write(5, b"x" * size)
        spdy.end(3)
    spdy.close()
    sent = [(head, flags, len(data)) for head, flags, data in server.received()]
    end = (3, FIN, 0)
    assert sent == [end, (5, 0, 1), end, (5, 0, 65_535), end, (5, 0, 65_536), end, (5, 0, 65_536), (5, 0, 1), end]


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ([frame(5, b"a"), frame(7, b"b")], [(5, b"a", False), (7, b"b", False)]),
        ([frame(5, b"a", FIN)], [(5, b"a", True)]),
        ([frame(5, b"a", 2)], [(5, b"a", False)]),
        ([frame(5, b"", FIN), frame(7, b"")], [(5, b"", True), (7, b"", False)]),
        ([frame(REPLY, b"\0\0\0\5"), frame(PING, b"\0\0\0\1"), frame(SETTINGS), frame(5, b"a")], [(5, b"a", False)]),
        ([frame(GOAWAY, b"\0" * 8, FIN), frame(5, b"a")], [(5, b"a", False)]),
        ([frame(RESET, struct.pack("!II", 258, 1)), frame(5, b"a")], [(258, b"", True), (5, b"a", False)]),
        ([frame(5, b"x" * 70_000)], [(5, b"x" * 70_000, False)]),
        ([frame(0x7FFFFFFF, b"a")], [(0x7FFFFFFF, b"a", False)]),
        ([frame(5, b"a"), frame(5, b"bc")[:-1]], [(5, b"a", False)]),
        ([frame(5, b"a"), frame(5, b"bc")[:7]], [(5, b"a", False)]),
        ([frame(5, b"bc")[:8]], []),
        ([frame(5, b"")[:1]], []),
        ([], []),
    ],
)
def test_what_is_read(server: Server, sent: list[bytes], read: list[tuple[int, bytes, bool]]) -> None:
    """Data, whichever control frames come in between; a frame that is cut is the end of the connection."""
    spdy = connect(server)
    server.theirs.sendall(b"".join(sent))
    server.theirs.shutdown(socket.SHUT_WR)
    assert [spdy.read() for _ in range(len(read) + 2)] == [*read, (0, b"", True), (0, b"", True)]
    spdy.close()


def test_a_frame_in_pieces(server: Server) -> None:
    """Wherever they are cut."""
    spdy = connect(server)
    data = frame(5, b"abc") + frame(7, b"", FIN)
    for cut in range(len(data)):
        server.theirs.sendall(data[:cut])
        sending = threading.Thread(target=server.theirs.sendall, args=(data[cut:],))
        sending.start()
        assert [spdy.read(), spdy.read()] == [(5, b"abc", False), (7, b"", True)]
        sending.join()
    spdy.close()


def test_silence_and_the_end(server: Server) -> None:
    """With a limit, silence counts as the end; closing wakes the thread that reads."""
    spdy = connect(server)
    spdy.settimeout(0.01)
    assert spdy.read() == (0, b"", True)
    spdy.close()
    assert server.closed == 1
    other = Server()
    spdy, found = connect(other), []
    reader = threading.Thread(target=lambda: found.append(spdy.read()))
    reader.start()
    spdy.close()
    reader.join()
    other.theirs.close()
    assert (found, spdy.read()) == ([(0, b"", True)], (0, b"", True))


def test_a_connection_that_is_never_made(server: Server) -> None:
    """Another status is an error that names it; a connection that is lost at once is transient."""
    server.status = 403
    with pytest.raises(BackendError, match=r"answers `/exec` with 403: a proxy on the way") as e:
        connect(server)
    assert server.closed == 1 and not isinstance(e.value, TransientError)
    lost = Server()
    lost.theirs.close()
    with pytest.raises(TransientError, match="was lost"):
        connect(lost, {"streamtype": "x" * 100})
    lost.close()


# -- a process and a port: what comes in which order ---------------------------------------------------------

Read = tuple[int, bytes, bool]
END: Read = (0, b"", True)


class Link:
    """A connection whose frames are given; what is done with it is written down."""

    def __init__(self, frames: Sequence[Read]) -> None:
        self.frames, self.calls = [*frames], list[Any]()
        self.streams: Sequence[Any] = ()
        self.more: dict[str, Any] = {}
        self.lost = False

    def __call__(self, api: object, path: str, protocol: str, streams: Sequence[Any], **more: Any) -> Link:
        self.calls.append(path)
        self.streams, self.more = streams, more
        return self

    def read(self) -> Read:
        return self.frames.pop(0) if self.frames else END

    def write(self, stream: int, data: bytes) -> None:
        if self.lost:
            raise ConnectionResetError
        self.calls.append((stream, data))

    def end(self, stream: int) -> None:
        self.calls.append(("end", stream))

    def settimeout(self, seconds: float) -> None:
        self.calls.append("patience")

    def close(self) -> None:
        self.calls.append("closed")


POD = {"metadata": {"namespace": "n", "name": "p"}, "spec": {"containers": [{"name": "side"}, {"name": "main"}]}}
STATUS, OUT, ERR = 1, 5, 7


def process(monkeypatch: pytest.MonkeyPatch, frames: Sequence[Read], tty: Tty | None = None) -> tuple[PodProcess, Link]:
    link = Link(frames)
    monkeypatch.setattr(inside, "Spdy", link)
    api: Any = SimpleNamespace(websockets=False)
    return PodProcess(api, POD, ["x"], tty), link


def failed(*causes: Any, **more: Any) -> bytes:
    return json.dumps({"status": "Failure", "details": {"causes": [*causes]}, **more}).encode()


CODE = {"reason": "ExitCode", "message": "7"}
LOST = "the connection to the cluster was lost"


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (b'{"status": "Success"}', 0),
        (failed(CODE), 7),
        (failed({"reason": "Other", "message": "9"}, CODE, {**CODE, "message": "8"}), 7),
        (failed({"reason": "Other", "message": "9"}, message="no such shell"), "no such shell"),
        (failed(message="no such shell"), "no such shell"),
        (failed(message=""), LOST),
        (failed(), LOST),
        (failed({"reason": "ExitCode"}, message="x"), LOST),
        (failed({"reason": "ExitCode", "message": "x"}, message="x"), LOST),
        (failed(None), LOST),
        (b'{"status": "Failure", "details": null, "message": "why"}', "why"),
        (b'{"status": "Failure", "details": {"causes": null}, "message": "why"}', "why"),
        (b"[]", LOST),
        (b"7", LOST),
        (b"{", LOST),
        (b"", LOST),
        (b"[" * 5000, LOST),
    ],
)
def test_the_final_status(monkeypatch: pytest.MonkeyPatch, status: bytes, code: int | str) -> None:
    """Its exit code, or why there is none."""
    made, _ = process(monkeypatch, [(STATUS, status[:5], False), (STATUS, status[5:], True)])
    assert made.read() is None
    if isinstance(code, int):
        assert made.wait() == code
    else:
        with pytest.raises(BackendError, match=f"is unknown: {code}"):
            made.wait()


OK: Read = (STATUS, b'{"status": "Success"}', True)
BOTH = [(STDOUT, b"a"), (STDERR, b"b")]


@pytest.mark.parametrize(
    ("frames", "read", "left"),
    [
        ([(OUT, b"a", False), (ERR, b"b", False), OK], BOTH, 0),
        ([(OUT, b"a", True), (ERR, b"b", True), OK], BOTH, 0),
        ([(OUT, b"", True), (OUT, b"a", False), (ERR, b"", True), (3, b"", True), (ERR, b"b", False), OK], BOTH, 0),
        ([(OUT, b"a", False), (STATUS, b"{", False), (ERR, b"b", False), (STATUS, b'"status": "Success"}', True)], BOTH, 0),
        ([(3, b"x", True), (9, b"x", True), (OUT, b"a", False), (ERR, b"b", False), OK], BOTH, 0),
        ([(OUT, b"a", False), OK, (ERR, b"b", False)], BOTH[:1], 1),
        ([OK, (OUT, b"a", False)], [], 1),
    ],
)  # fmt: skip
def test_output_until_the_status(
    monkeypatch: pytest.MonkeyPatch, frames: list[Read], read: list[tuple[int, bytes]], left: int
) -> None:
    """The end of a stream, or one that nobody knows, is not the end; nothing is read after it."""
    made, link = process(monkeypatch, frames)
    assert [*iter(made.read, None)] == read
    assert made.read() is None
    assert (made.wait(), len(link.frames)) == (0, left)


@pytest.mark.parametrize("frames", [[], [(OUT, b"", True)], [(STATUS, b'{"status": "Success"}', False)]])
def test_a_connection_that_ends_without_the_status(monkeypatch: pytest.MonkeyPatch, frames: list[Read]) -> None:
    """A status that is whole counts nevertheless."""
    made, _ = process(monkeypatch, [*frames, END])
    assert made.read() is None
    if frames and frames[0][0] == STATUS:
        assert made.wait() == 0
    else:
        with pytest.raises(BackendError, match=LOST):
            made.wait()


@pytest.mark.parametrize(("tty", "last"), [(None, "stderr"), (Tty(), "resize")], ids=["plain", "tty"])
def test_the_streams_of_a_process(monkeypatch: pytest.MonkeyPatch, tty: Tty | None, last: str) -> None:
    """Input and sizes go to their own; whoever has ended takes no more of them."""
    made, link = process(monkeypatch, [], tty)
    assert [stream["streamtype"] for stream in link.streams] == ["error", "stdin", "stdout", last]
    query = link.more["query"]
    assert (query["container"], query["stdin"], query["stdout"]) == ("main", "true", "true")
    assert (query["stderr"], query["tty"]) == (("false", "true") if tty else ("true", "false"))
    made.write(b"in")
    made.resize(100, 30)
    made.close_stdin()
    end = [] if tty else [("end", 3)]
    path = "/api/v1/namespaces/n/pods/p/exec"
    assert link.calls == [path, (3, b"in"), (7, b'{"Width": 100, "Height": 30}'), *end]
    link.lost = True
    for act in (lambda: made.write(b"x"), lambda: made.resize(1, 1)):
        with pytest.raises(BrokenPipeError):
            act()


def test_a_signal_is_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal, and waited for; then its connection is closed."""
    made, link = process(monkeypatch, [], Tty())
    made._mark.who = "42"
    other = Link([(OUT, b"", False), (STATUS, b"", True), END, (OUT, b"late", False)])
    monkeypatch.setattr(inside, "Spdy", other)
    made.send_signal(10)
    assert (other.more["query"]["tty"], other.calls[-1], len(other.frames)) == ("false", "closed", 1)
    assert "42" in other.more["query"]["command"][-1]
    assert link.calls[-1] != "closed"


DATA, ERROR = 3, 1
OVER: Read = (DATA, b"", True)


@pytest.mark.parametrize(
    ("frames", "read"),
    [
        ([(DATA, b"a", False), (DATA, b"b", True)], [(STDOUT, b"a"), (STDOUT, b"b")]),
        ([(DATA, b"", False), (DATA, b"a", False), OVER], [(STDOUT, b"a")]),
        ([(ERROR, b"", True), (DATA, b"a", False), OVER], [(STDOUT, b"a")]),
        ([(ERROR, b"no such pod\n", True), OVER], [(STDERR, b"no such pod")]),
        ([(ERROR, b"CONNECTION ", False), (ERROR, b"refused: x", True), OVER], [(STDERR, b"Connection refused")]),
        ([(DATA, b"a", False), (ERROR, b"reset", True), OVER], [(STDOUT, b"a")]),
        ([(ERROR, b"lost", False), (DATA, b"a", False), OVER], [(STDOUT, b"a")]),
        ([(ERROR, b"lost", False), END], [(STDERR, b"lost")]),
        ([(5, b"x", False), (DATA, b"a", False), OVER], [(STDOUT, b"a")]),
        ([(5, b"x", True)], []),
        ([OVER, (DATA, b"late", False)], []),
        ([END], []),
    ],
)
def test_a_connection_to_a_port(
    monkeypatch: pytest.MonkeyPatch, frames: list[Read], read: list[tuple[int, bytes]]
) -> None:
    """An error is the reason only if no data came before the end; it ends with its data, not with its errors."""
    link = Link(frames)
    monkeypatch.setattr(inside, "Spdy", link)
    api: Any = None
    port = PodPort(api, "/p", 80)
    assert [*iter(port.read, None)] == read
    assert port.read() is None
    port.write(b"x")
    port.close_stdin()
    port.close()
    assert link.calls == ["/p", (3, b"x"), ("end", 3), "closed"]
    assert [*link.streams] == [{"streamtype": kind, "port": "80", "requestid": "0"} for kind in ("error", "data")]
    assert link.more == {"ended": (1,)}


def pod(phase: str) -> dict[str, Any]:
    state = {"running": {}} if phase == "Running" else {"terminated": {"exitCode": 0}}
    return {
        "metadata": {"name": "p"},
        "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": state}]},
    }


@pytest.mark.parametrize(
    ("phases", "running"),
    [
        ([], False),
        (["Running"], True),
        (["Succeeded"], False),
        (["Failed", "Running"], True),
        (["Running", "Failed"], False),
        (["Failed", "Failed", "Running"], True),
        (["Running", "Running", "Failed"], False),
    ],
)
def test_the_newest_pod_counts(phases: list[str], running: bool) -> None:
    """The others are those of attempts before."""
    assert is_running([pod(phase) for phase in phases]) is running
