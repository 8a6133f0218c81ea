"""A process inside a pod, by ``pods/exec`` over a websocket.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/. The first byte of a message is
its channel.
"""

from __future__ import annotations

from torchx.errors import BackendError
from torchx.schedulers.inside import STDERR, STDOUT, InsideProcess
from torchx.schedulers.inside.marks import Mark, frame, kill_words
from torchx.schedulers.kubernetes.client import KubeApi, path_of
from torchx.schedulers.kubernetes.pod_answers import main_container, read_pod
from torchx.specs.api import AppState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torchx.schedulers.inside import Tty

    _Object = dict[str, Any]

_STDIN, _STATUS, _RESIZE = 0, 3, 4
_MESSAGE = 1 << 15
_START_S = 10.0


def runs(pods: Sequence[_Object]) -> bool:
    """Whether the newest pod of a replica runs.

    Args:
        pods: of the replica, oldest first.
    """
    return bool(pods) and read_pod(pods[-1]).facts.state is AppState.RUNNING


def enter(api: KubeApi, pods: Sequence[_Object], argv: Sequence[str], tty: Tty | None) -> InsideProcess:
    """Starts ``argv`` in the newest pod of a replica, which runs, in the container of the role."""
    metadata = pods[-1]["metadata"]
    path = f"{path_of('Pod', metadata['namespace'], metadata['name'])}/exec"
    container = str(main_container(pods[-1]["spec"]["containers"]).get("name") or "")
    return PodProcess(api, path, container, argv, tty)


class PodProcess(InsideProcess):
    """One exec in a container. Its stdin is sent in pieces with their lengths: the protocol cannot announce its end."""

    def __init__(self, api: KubeApi, path: str, container: str, argv: Sequence[str], tty: Tty | None) -> None:
        self._mark = Mark(tty)
        self._tty = tty is not None
        self._code: int | None = None
        self._over = False
        self._why = "the connection to the cluster was lost"
        self._path, self._container, self._api = path, container, api
        words = self._mark.words(argv, framed=tty is None)
        self._socket = self._exec(words, stdin=True, tty=self._tty)

    def _exec(self, words: list[str], *, stdin: bool, tty: bool) -> Any:
        flags = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
        query = [("container", self._container), *((name, str(on).lower()) for name, on in flags.items())]
        return self._api.websocket(self._path, [*query, *(("command", word) for word in words)])

    def write(self, data: bytes) -> None:
        self._send(data if self._tty or not data else frame(data))

    def close_stdin(self) -> None:
        if not self._tty:
            try:
                self._send(frame(b""))
            except BrokenPipeError:
                return  # it has ended

    def _send(self, data: bytes, channel: int = _STDIN) -> None:
        import websocket

        try:
            for begin in range(0, len(data), _MESSAGE):
                self._socket.send_binary(bytes([channel]) + data[begin : begin + _MESSAGE])
        except (OSError, websocket.WebSocketException) as e:
            raise BrokenPipeError("its stdin is closed") from e

    def read(self) -> tuple[int, bytes] | None:
        return self._mark.read(self._piece)

    def _piece(self) -> tuple[int, bytes] | None:
        while not self._over:
            channel, data = self._message()
            if channel == _STATUS:
                self._code = self._code_in(data)
            elif channel in (STDOUT, STDERR):
                return channel, data
        return None

    def _message(self) -> tuple[int, bytes]:
        """The next message with its channel; -1 at the end."""
        import websocket

        try:
            opcode, data = self._socket.recv_data()
        except (OSError, websocket.WebSocketException):
            opcode, data = websocket.ABNF.OPCODE_CLOSE, b""
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            self._over = True
            return -1, b""
        return (data[0], data[1:]) if data else (-1, b"")

    def _code_in(self, data: bytes) -> int | None:
        """The exit code in the status that ends an exec; None, and why, where there is none."""
        import json

        try:
            status = json.loads(data)
            if status.get("status") == "Success":
                return 0
            causes = (status.get("details") or {}).get("causes") or ()
            codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        self._why = str(status.get("message") or self._why)
        return codes[0] if codes else None

    def resize(self, columns: int, rows: int) -> None:
        import json

        self._send(json.dumps({"Width": columns, "Height": rows}).encode(), _RESIZE)

    def send_signal(self, number: int) -> None:
        self._mark.once_known(lambda who: self._kill(who, number))

    def _kill(self, who: str, number: int) -> None:
        other = self._exec(kill_words(who, number), stdin=False, tty=False)
        try:
            while other.recv_data()[0] != 8:  # until it has ended
                pass
        finally:
            other.shutdown()

    def wait(self) -> int:
        if self._code is None:
            raise BackendError(
                f"it is not known how the command ended: {self._why}", hint="it may go on inside the replica"
            )
        return self._code

    def close(self) -> None:
        import signal

        if not self._over:
            self._socket.settimeout(_START_S)
            self._mark.seek(self._piece)
        goes_on = self._code is None and bool(self._mark.who)
        self._code = 128 + signal.SIGHUP if goes_on else self._code
        for number in (signal.SIGHUP, signal.SIGTERM) if goes_on else ():
            self.send_signal(number)
        self._socket.shutdown()
