"""Talking to a Docker engine: its errors as ours, streams, networks, calls side by side.

The engine's API: https://docs.docker.com/reference/api/engine/. Podman's service answers the same calls.
"""

from __future__ import annotations

import re
import time

from torchx.errors import BackendError, NotFoundError, NotSupportedError, TorchXError, TransientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Any, TypeVar

    T = TypeVar("T")
    R = TypeVar("R")

_AT_ONCE = 8
_CONNECT_S = 60.0

# What the engine says (Docker 20.10 to 28, Podman 4 and 5) -> what it means, and what to do about it.
_MEANINGS: tuple[tuple[re.Pattern[str], str, str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), meaning, hint)
    for pattern, meaning, hint in (
        (
            r"could not select device driver|nvidia-container|unresolvable CDI devices|"
            r"setting up CDI devices|failed to inject CDI|no CDI devices|unknown device",
            "the engine cannot give it the GPUs that it asks for",
            "install the NVIDIA container toolkit on the engine's machine, ask for fewer GPUs, or run with `gpu=0`",
        ),
        (
            r"Range of CPUs is from",
            "it asks for more CPUs than the engine's machine has",
            "ask for fewer: `--cpu`, or another `-h <named resource>`",
        ),
        (
            r"Minimum memory limit",
            "it asks for less memory than the engine can limit",
            "ask for more: `--memMB`, or another `-h <named resource>`",
        ),
        (
            r"port is already allocated|address already in use",
            "a port that it publishes is in use on the engine's machine",
            "end what uses it (`docker ps`), or choose another port in the role's `port_map`",
        ),
        (
            r"bind source path does not exist|statfs .*: no such file",
            "what it mounts does not exist on the engine's machine",
            "check the `src` of its mounts",
        ),
        (
            r"error gathering device information|not a device node|stat /dev/",
            "a device that it mounts does not exist on the engine's machine",
            "check the `src` of its mounts",
        ),
        (
            r"executable file not found|stat .*: no such file or directory|exec: .*(no such file|permission denied)",
            "its entrypoint is no program of its image",
            "check the entrypoint and the image: a program of this machine is not in it",
        ),
        (
            r"no such image|pull access denied|manifest unknown|manifest for .* not found|repository .* not found",
            "there is no such image",
            "check its name; for one of a private registry, `docker login` first",
        ),
        (
            r"non-overlapping IPv4 address pool|pools have been fully subnetted|could not find free subnet",
            "the engine has no address range left for the job's network",
            "delete old jobs (`torchx delete`), or `docker network prune`",
        ),
        (
            r"no such host|dial tcp|TLS handshake|i/o timeout|connection refused|server misbehaving",
            "its registry does not answer",
            "is its registry reachable from the engine's machine? `docker images` shows what is there already",
        ),
        (r"no space left on device", "the engine's disk is full", "`docker system df` shows what fills it"),
    )
)


class engine_errors:  # noqa: N801  # it reads as what it is: `with engine_errors(...)`
    """Within it, errors of the engine, of its client and of the way to it are ours.

    Args:
        doing: what fails then, as the beginning of a sentence.
    """

    def __init__(self, doing: str) -> None:
        self.doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, TorchXError):
            translated = translate(error, self.doing)
            if translated is not None:
                raise translated from error


def translate(error: Exception, doing: str) -> TorchXError | None:
    """Our error for one of the client's; None for one that is not the client's.

    Args:
        doing: what failed, as the beginning of a sentence.
    """
    import docker.errors
    import requests.exceptions
    import urllib3.exceptions  # of what is read as a stream

    if isinstance(error, docker.errors.APIError):
        said = explanation(error)
        meaning, hint = meaning_of(said)
        text = f"{doing}: {meaning}: {said}" if meaning else f"{doing}: {said}"
        return BackendError(text, hint=hint)
    if isinstance(error, docker.errors.DockerException):
        return BackendError(f"{doing}: {error}")
    if isinstance(error, (requests.exceptions.ReadTimeout, urllib3.exceptions.ReadTimeoutError)):
        return TransientError(f"{doing}: the engine did not answer in time", hint="is it overloaded? try again")
    if isinstance(error, (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError)):
        return TransientError(
            f"{doing}: the Docker engine does not answer any more: {_innermost(error)}",
            hint="is it running? `docker version` shows it; `DOCKER_HOST` says where it is looked for",
        )
    return None


def meaning_of(said: str) -> tuple[str, str]:
    """What an answer of the engine means, and what to do; empty texts when it speaks for itself.

    >>> meaning_of("Bind for 0.0.0.0:80 failed: port is already allocated")[0]
    "a port that it publishes is in use on the engine's machine"
    >>> meaning_of("something else")
    ('', '')
    """
    return next(((meaning, hint) for pattern, meaning, hint in _MEANINGS if pattern.search(said)), ("", ""))


def explanation(error: Any) -> str:
    """What the engine itself says, in one line."""
    said = getattr(error, "explanation", None) or str(error)
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return " ".join(text.split())


def is_missing(error: Exception) -> bool:
    """Whether the engine says that what was asked for does not exist."""
    return getattr(getattr(error, "response", None), "status_code", None) == 404


def is_conflict(error: Exception) -> bool:
    """Whether the engine says that there is one of that name already."""
    said = explanation(error).lower()
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code == 409 or "is already in use" in said or "already exists" in said


# -- streams ------------------------------------------------------------------------------------------


class Stream:
    """An answer of the engine that goes on; close it. The next byte is waited for ``read_s`` seconds at most."""

    def __init__(self, client: Any, path: str, params: dict[str, object], *, read_s: float | None) -> None:
        api = client.api
        url = f"{api.base_url}/v{api.api_version}{path}"
        self._response = api.get(url, params=params, stream=True, timeout=(_CONNECT_S, read_s))
        if self._response.status_code >= 400:
            said = _message(self._response)
            missing = self._response.status_code == 404
            self._response.close()
            if "does not support reading" in said:
                raise NotSupportedError(
                    f"logs cannot be read: {said}", hint="use the engine's logging driver `json-file` or `local`"
                )
            raise (NotFoundError if missing else BackendError)(f"the engine refused: {said}")
        self._raw = self._response.raw

    def read(self, n: int) -> bytes:
        """The next ``n`` bytes; fewer at the end."""
        parts = []
        while n > 0 and (part := self._raw.read(n)):
            parts.append(part)
            n -= len(part)
        return b"".join(parts)

    def readline(self) -> bytes:
        """The next line; empty at the end."""
        parts = []
        while byte := self._raw.read(1):
            parts.append(byte)
            if byte == b"\n":
                break
        return b"".join(parts)

    def close(self) -> None:
        """Lets go of the connection."""
        self._response.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ends(client: Any, labels: list[str], *, since: float, until: float | None, read_s: float) -> Iterator[Any]:
    """Events of containers that have ended: ``id``, ``time`` (seconds), ``timeNano``, ``Actor.Attributes.exitCode``.

    The engine remembers few events (Docker: the last 256), and none of before its start.

    Args:
        labels: of the containers, ``name=value``.
        since: Unix time.
        until: Unix time in the past; None: go on until nothing comes for ``read_s`` seconds, which raises TimeoutError.
    """
    import json

    filters = {"type": ["container"], "event": ["die", "died"], "label": labels}
    params: dict[str, object] = {"filters": json.dumps(filters), "since": f"{since:.9f}"}
    if until is not None:
        params["until"] = f"{until:.9f}"
    try:
        with Stream(client, "/events", params, read_s=read_s) as stream:
            while line := stream.readline():
                if line.strip():
                    yield json.loads(line)
    except Exception as e:
        if "timed out" in str(e).lower():
            raise TimeoutError from e
        raise


# -- networks -----------------------------------------------------------------------------------------


def make_network(client: Any, name: str, labels: dict[str, str], *, busy: Callable[[], set[str]]) -> None:
    """Creates a bridge network; networks of jobs that have ended are removed when the engine has no room for it.

    An engine has room for about thirty networks, and containers of ended jobs are kept for their logs.

    Args:
        busy: names of the networks that must stay.
    """
    import docker.errors

    for attempt in (1, 2):
        try:
            client.networks.create(name, driver="bridge", labels=labels, check_duplicate=True)
            return
        except docker.errors.APIError as e:
            if is_conflict(e) and "pool" not in explanation(e).lower():
                return  # of an attempt whose answer was lost
            if attempt == 2 or not remove_networks(client, [*labels][:1], keep=busy()):
                raise


def remove_networks(client: Any, labels: list[str], *, keep: set[str]) -> int:
    """Removes the networks that carry the labels and that no running container uses; returns how many."""
    import docker.errors

    removed = 0
    for network in client.api.networks(filters={"label": labels}):
        if network["Name"] not in keep:
            try:
                client.api.remove_network(network["Id"])
                removed += 1
            except docker.errors.APIError:
                continue  # in use, or somebody else was quicker
    return removed


# -- side by side -------------------------------------------------------------------------------------


def side_by_side(call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """The results of ``call`` for each item, in order, a few at a time.

    All calls are over when it returns or raises, so that what they made can be removed. After a failure no further
    call is begun; the first failure is raised.
    """
    todo = list(items)
    if len(todo) <= 1:
        return [call(item) for item in todo]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_AT_ONCE, len(todo))) as pool:
        futures = [pool.submit(call, item) for item in todo]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def patiently(call: Callable[[], T], for_s: float = 15.0) -> T:
    """The result of ``call``, which is repeated while the engine does not answer, as when it is being restarted."""
    import requests.exceptions

    deadline = time.monotonic() + for_s
    attempt = 0
    while True:
        try:
            return call()
        except requests.exceptions.ConnectionError:
            if time.monotonic() > deadline:
                raise
        pause(attempt)
        attempt += 1


def pause(attempt: int) -> None:
    """Sleeps a little, and longer at each attempt: 0.1 s to 1 s."""
    time.sleep(min(0.1 * 1.5**attempt, 1.0))


def _message(response: Any) -> str:
    try:
        return str(response.json()["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


def _innermost(error: BaseException) -> str:
    """The words of the system in an error that the layers of HTTP have wrapped."""
    text = str(error)
    found = re.search(r"\w*Error\(\d+, '([^']+)'\)", text)
    return found[1] if found else text
