"""Probes whether a replica of a local job is ready: a port, an answer over HTTP, a line of output, or a file."""

from __future__ import annotations

import os
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from torchx.supervisor.layout import OrderRequest, ReplicaRequest

_SOONEST_S, _LATEST_S = 0.05, 0.5
_CONNECT_S = 0.05  # this machine accepts at once, or not at all
_ANSWER_S = 10.0  # for which one answer is awaited
_MOST = 1 << 16  # of a line, or of an answer's head
_WORDS = 1 << 12
_MOST_SAID = 120

_CLASSES = {
    **{"alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "upper": "A-Z", "lower": "a-z", "xdigit": "0-9A-Fa-f"},
    **{"space": r"\s", "blank": " \\t", "punct": r"!-/:-@\[-`{-~", "cntrl": r"\x00-\x1f\x7f"},
    **{"print": r"\x20-\x7e", "graph": r"\x21-\x7e"},
}


def to_python(pattern: str) -> str:
    r"""Return a regular expression in the syntax of ``grep -E`` in that of Python.

    >>> to_python("step [0-9]+[[:space:]]+of [^[:alnum:]_]")
    'step [0-9]+[\\s]+of [^a-zA-Z0-9_]'
    """
    for name, characters in _CLASSES.items():
        pattern = pattern.replace(f"[:{name}:]", characters)
    return pattern


class Probe:
    """The probe of one start of a replica; make it before its program starts.

    Args:
        cwd: the working directory of the replica, and ``k`` its number within its role.
        now: by the monotonic clock.
        latest_s: the longest pause between two looks.
        logs: the files with its output.
        addresses: of its host; one of them has to answer.

    Attributes:
        due: when to call :meth:`look`.
        deadline: when the replica is late.
        seen: what the last look saw.
    """

    def __init__(
        self,
        order: OrderRequest,
        cwd: str,
        k: int,
        now: float,
        latest_s: float,
        *,
        logs: Sequence[str] = (),
        addresses: Sequence[str] = ("127.0.0.1", "::1"),
    ) -> None:
        self._kind, self._what = order["probe"], order["what"]
        self._port = order["ports"][k] if order["ports"] else 0
        self._latest_s = max(_LATEST_S, latest_s)
        self._pause = _SOONEST_S
        self._addresses = addresses
        self._socket: socket.socket | None = None
        self._answer, self._answer_by = b"", 0.0
        self._file = os.path.join(cwd, self._what)
        self._logs = {path: _size(path) for path in logs}
        self._tails = dict.fromkeys(self._logs, b"")
        self.due = now + _SOONEST_S
        self.deadline = now + order["within_s"]
        self.seen = ""

    def look(self, now: float) -> bool:
        """Whether the replica is ready."""
        self.due = now + self._pause
        self._pause = min(self._pause * 1.2, self._latest_s)
        try:
            looks = {"tcp": self._accepts, "http": self._answers, "log": self._says, "file": self._has_file}
            return looks[self._kind](now)
        except OSError as e:
            self.close()
            self.seen = e.strerror or str(e)
            return False

    def look_at_end(self, now: float) -> bool:
        """Whether a replica that has ended was ready, although no look has seen it."""
        return self._kind in ("log", "file") and self.look(now)

    def close(self) -> None:
        """Drop an unfinished answer."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._answer = None, b""

    def _accepts(self, _: float) -> bool:
        self._connect().close()
        return True

    def _connect(self) -> socket.socket:
        import socket

        problem: OSError | None = None
        for address in self._addresses:
            try:
                return socket.create_connection((address, self._port), _CONNECT_S)
            except OSError as e:
                problem = problem or e
        raise problem or OSError(f"port {self._port} cannot be reached")

    def _answers(self, now: float) -> bool:
        if self._socket is None:
            self._socket, self._answer_by = self._connect(), now + _ANSWER_S
            head = f"GET {self._what} HTTP/1.0\r\nHost: localhost:{self._port}\r\nConnection: close\r\n\r\n"
            self._socket.sendall(head.encode())
            self._socket.settimeout(_CONNECT_S)  # most answer at once
        data = b"?"
        try:
            while data and b"\n" not in self._answer and len(self._answer) < _MOST:
                data = self._socket.recv(_WORDS)
                self._answer += data
        except (BlockingIOError, TimeoutError):
            self._socket.setblocking(False)
            if now < self._answer_by:
                self.seen = "no answer yet"
                return False
        words = self._answer.split(None, 2)
        self.close()
        if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
            self.seen = "no answer" if not words else "an answer that is not HTTP"
            return False
        self.seen = f"status {int(words[1])}"
        return 200 <= int(words[1]) < 400

    def _has_file(self, _: float) -> bool:
        self.seen = "" if os.path.exists(self._file) else "it does not exist"
        return not self.seen

    def _says(self, _: float) -> bool:
        for path, start in self._logs.items():
            with suppress(FileNotFoundError), open(path, "rb") as f:
                f.seek(start)
                while data := f.read(1 << 20):
                    *lines, last = (self._tails[path] + data).split(b"\n")
                    self._logs[path], self._tails[path] = f.tell(), last[-_MOST:]
                    if self._matches(*lines, last):
                        return True
        self.seen = "no line of its output matches"
        return False

    def _matches(self, *lines: bytes) -> bool:
        import re

        wanted = re.compile(to_python(self._what))
        return any(wanted.search(line.decode("utf-8", "replace").rstrip("\r\n")) for line in lines)


def sentence(text: str, seen: str = "", said: str = "") -> str:
    """Return why a job cannot go on: the beginning of the sentence, what the last probe saw, and the last words."""
    return f"{text}{f': {seen}' if seen else ''}{f'; its last words: {said}' if said else ''}"


def last_words(replica: ReplicaRequest) -> str:
    """Return the last line of a replica's stderr, else of its stdout; empty if it wrote nothing."""
    for path in (replica["stderr"], replica["stdout"]):
        with suppress(OSError), open(path, "rb") as f:
            f.seek(max(0, _size(path) - _WORDS))
            if said := last_line(f.read().split(b"\n")):
                return said
    return ""


def last_line(lines: Sequence[bytes]) -> str:
    """Return the last of some lines that says something, shortened."""
    said = next((line.strip() for line in reversed(lines) if line.strip()), b"").decode("utf-8", "replace")
    return said if len(said) <= _MOST_SAID else f"{said[:_MOST_SAID]}…"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
