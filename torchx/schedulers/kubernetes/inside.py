"""Processes inside a pod, with ``pods/exec``, and connections to its ports, with ``pods/portforward``.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence

from torchx.errors import BackendError, TorchXError
from torchx.schedulers.kit.inside import STDERR, STDOUT, Duplex, Tty
from torchx.schedulers.kit.inside.marks import MarkedProcess, kill_words
from torchx.schedulers.kubernetes.api.channels import V4, V5, Channels, is_refusal
from torchx.schedulers.kubernetes.api.spdy import Spdy
from torchx.schedulers.kubernetes.client import KubeApi, path_to
from torchx.schedulers.kubernetes.names import Object
from torchx.schedulers.kubernetes.pods.facts import main_container, read_pod
from torchx.specs.api import AppState

_FORWARD = "portforward.k8s.io"
_STATUS, _STDIN, _OUT, _ERR_OR_SIZE = 1, 3, 5, 7
_ERROR, _DATA = 1, 3


def is_running(pods: Sequence[Object]) -> bool:
    """Whether the newest pod of a replica is running; the oldest one comes first."""
    return bool(pods) and read_pod(pods[-1]).facts.state is AppState.RUNNING


class PodProcess(MarkedProcess):
    """One exec in the role's container of a running pod."""

    def __init__(self, api: KubeApi, pod: Object, argv: Sequence[str], tty: Tty | None) -> None:
        super().__init__(tty)
        self._api = api
        self._path = f"{path_to('Pod', pod)}/exec"
        self._container = str(main_container(pod["spec"]["containers"]).get("name") or "")
        self._status = b""
        self._why = "the connection to the cluster was lost"
        self._link = self._exec(self._mark.words(argv), tty=self._tty)

    def _exec(self, words: list[str], *, tty: bool) -> Spdy | Channels:
        """Start a process by a websocket if one is accepted that can end its stdin; a terminal needs no such end."""
        on = {"stdin": "true", "stdout": "true", "stderr": str(not tty).lower(), "tty": str(tty).lower()}
        query = {"container": self._container, **on, "command": words}
        streams = [{"streamtype": kind} for kind in ("error", "stdin", "stdout", "resize" if tty else "stderr")]
        why = ""
        if self._api.websockets:
            try:
                return Channels(self._api, self._path, (V5, V4) if tty else (V5,), streams, query=query)
            except TorchXError as e:
                if not is_refusal(e):
                    raise
                self._api.websockets, why = False, f"; by a websocket: {e}" if e.hint else ""
        try:
            return Spdy(self._api, self._path, V4, streams, query=query)
        except BackendError as e:
            e.message += why
            raise

    def write(self, data: bytes) -> None:
        self._send(_STDIN, data)

    def _send(self, stream: int, data: bytes) -> None:
        try:
            self._link.write(stream, data)
        except OSError as e:
            raise BrokenPipeError("its stdin is closed") from e

    def _end_stdin(self) -> None:
        self._link.end(_STDIN)

    def _piece(self) -> tuple[int, bytes] | None:
        while self._mark.code is None:
            stream, data, ended = self._link.read()
            if stream in (_OUT, _ERR_OR_SIZE) and data:
                return STDOUT if stream == _OUT else STDERR, data
            if stream == _STATUS:
                self._status += data
            if ended and stream in (_STATUS, 0):
                self._mark.code = self._code()
                break
        return None

    def _code(self) -> int | None:
        """Return the exit code in the final status of an exec; None if it has none, then ``_why`` is the reason."""
        try:
            status = json.loads(self._status)
            if status.get("status") == "Success":
                return 0
            causes = (status.get("details") or {}).get("causes") or ()
            codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        self._why = str(status.get("message") or self._why)
        return codes[0] if codes else None

    def resize(self, columns: int, rows: int) -> None:
        self._send(_ERR_OR_SIZE, json.dumps({"Width": columns, "Height": rows}).encode())

    def _signal(self, who: str, number: int | None) -> None:
        other = self._exec(kill_words(who, number), tty=False)
        while other.read()[0]:  # until it has ended
            pass
        other.close()

    def wait(self) -> int:
        if self._mark.code is None:
            raise BackendError(
                f"the exit code of the command is unknown: {self._why}", hint="it may still run inside the replica"
            )
        return self._mark.code


def port_opener(api: KubeApi, pod: Object) -> Callable[[int], PodPort] | None:
    """Return a function that connects to a port of a running pod;
    None if the cluster rejects this or the node is lost.
    """
    path = f"{path_to('Pod', pod)}/portforward"
    try:
        Spdy(api, path, _FORWARD, ()).close()
    except BackendError:
        return None
    return functools.partial(PodPort, api, path)


class PodPort(Duplex):
    """One connection, with a stream for data and one for errors.

    It has its own SPDY session, because a slow stream blocks all others of its session.
    """

    def __init__(self, api: KubeApi, path: str, port: int) -> None:
        streams = [{"streamtype": kind, "port": str(port), "requestid": "0"} for kind in ("error", "data")]
        self._spdy = Spdy(api, path, _FORWARD, streams, ended=(_ERROR,))
        self._said: bytes | None = b""
        self._over = False

    def write(self, data: bytes) -> None:
        self._spdy.write(_DATA, data)

    def close_stdin(self) -> None:
        self._spdy.end(_DATA)

    def read(self) -> tuple[int, bytes] | None:
        while not self._over:
            stream, data, ended = self._spdy.read()
            self._over = ended and stream != _ERROR
            if stream == _DATA and data:
                self._said = None
                return STDOUT, data
            if stream == _ERROR and self._said is not None:
                self._said += data
        said, self._said = self._said, None
        refused = b"connection refused" in (said or b"").lower()
        return (STDERR, b"Connection refused" if refused else said.strip()) if said else None

    def close(self) -> None:
        self._spdy.close()
