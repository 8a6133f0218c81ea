"""The calls to a Docker engine that a job needs: containers, networks, images, streams.

The engine's API: https://docs.docker.com/reference/api/engine/. Podman's service answers the same calls.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from torchx.errors import BackendError, NotFoundError, NotSupportedError
from torchx.schedulers.docker import secrets
from torchx.schedulers.docker.containers import LABEL_APP_ID, Container, Job, Mark, join_name
from torchx.schedulers.docker.plain_http import EngineHttp, target
from torchx.schedulers.docker.sigterm import sigterm_is_lost
from torchx.schedulers.kit.timed_lines import split_stamp
from torchx.specs.api import is_terminal
from torchx.util.foreign import loads, reading
from torchx.util.notices import logger
from torchx.util.records import replace
from torchx.workspace.images.engine_errors import explanation, is_conflict, is_missing, meaning_of, objects, translate

if TYPE_CHECKING:
    from torchx.schedulers.docker.request import DockerContainer

    T = TypeVar("T")
    R = TypeVar("R")

_AT_ONCE = 8
_CONNECT_S = 60.0
_LAG_S = 30.0  # an engine reports an exit, disconnects the container from its network, and only then lists it as exited
_PAUSE_S = 0.2
_REMOVALS = 6
_STOP_S = 60.0
_SUBMISSION_S = 60.0  # between a job's network and its first container
_STOPPED = (204, 304, 404)


# -- containers and images ------------------------------------------------------------------------------


def pull(client: Any, image: str) -> str:
    """Pull an image unless the engine has it. Returns ``name@sha256:...``, or its id if no registry has it."""
    import docker.errors

    try:
        return _digest(client.api.inspect_image(image))
    except docker.errors.APIError as e:
        if not is_missing(e):
            raise
    if image.startswith("sha256:"):
        raise BackendError(
            f"image `{image}` is not on the engine's machine",
            hint="it was removed, or was built on another machine and not pushed",
        )
    sys.stderr.write(f"pulling image {image}\n")
    cause = None
    try:
        # `client.images.pull` ignores an error after the beginning, and then finds no image.
        told = client.api.pull(image, stream=True, decode=True)
        message = next((str(event["error"]) for event in objects(told) if event.get("error")), "")
        if not message:
            return _digest(client.api.inspect_image(image))
    except docker.errors.APIError as e:
        message, cause = explanation(e), e
    meaning, hint = meaning_of(message)
    raise BackendError(
        f"image `{image}` is not on the engine's machine and cannot be pulled: {message}",
        hint=hint if meaning else "`docker images` lists the local images",
    ) from cause


def create(client: Any, container: DockerContainer, secret: dict[str, str] | None = None) -> Any:
    """Create a container, with the values of its secrets. After a lost answer it returns the existing container."""
    import docker.errors

    name = container.kwargs.get("name")
    words, given = container.command, container.kwargs
    if secret:
        if given["entrypoint"] is None:
            config = client.images.get(container.image).attrs.get("Config") or {}
            words = [*(config.get("Entrypoint") or ()), *(words or config.get("Cmd") or ())]
        words, given = secrets.command(words, may_restart=container.may_restart), {**given, "entrypoint": [""]}
    try:
        made = client.containers.create(container.image, words, **given)
    except docker.errors.APIError as e:
        made = client.containers.get(name) if name and is_conflict(e) else None
        labels: Any = container.kwargs.get("labels") or {}
        if made is None or (made.labels or {}).get(LABEL_APP_ID) != labels.get(LABEL_APP_ID):
            raise translate(e, f"container `{name}` could not be made") or e from e
    if container.kwargs.get("device_requests") and not (made.attrs.get("HostConfig") or {}).get("DeviceRequests"):
        logger("torchx").warning("`%s` asks for GPUs, but the engine does not report any for it", name)
    if secret:
        secrets.put(made, secret)
    return made


def start(made: tuple[Any, DockerContainer]) -> None:
    """Start a container that :func:`create` has returned."""
    import docker.errors

    created, container = made
    try:
        created.start()
    except docker.errors.APIError as e:
        raise translate(e, f"container `{container.kwargs.get('name')}` could not be started") or e from e


def stop_all(
    client: Any, environ: Mapping[str, str] | None, which: list[Container], grace_s: int, **mark: bool
) -> None:
    """Mark containers and stop them, all at the same time; a few at a time if ``environ`` is None."""
    graces = dict(side_by_side(lambda c: (c.id, _mark(client, c, replace(c.mark, **mark), grace_s)), which))
    left = which
    if environ is not None and len(which) > 1:
        targets = [target(f"/containers/{c.id}/stop", {"t": graces[c.id]}) for c in which]
        answers = EngineHttp(environ).post(targets, timeout_s=grace_s + _STOP_S)
        left = [c for c, answer in zip(which, answers, strict=True) if answer not in _STOPPED]

    def stop(container: Container) -> None:
        try:
            client.api.stop(container.id, timeout=graces[container.id])
        except Exception as e:
            if not is_missing(e):
                raise

    side_by_side(stop, left)


def _mark(client: Any, container: Container, mark: Mark, grace_s: int) -> int:
    """Return the grace period in seconds: 0 if SIGTERM would be lost."""
    import docker.errors

    try:
        if mark != container.mark:
            client.api.rename(container.id, join_name(container.name, mark))
    except docker.errors.APIError as e:
        if not is_missing(e) and "same name" not in explanation(e) and not is_conflict(e):  # a concurrent cancel
            raise
    try:
        return 0 if sigterm_is_lost(client.api.inspect_container(container.id)) else grace_s
    except docker.errors.APIError:  # it was removed
        return grace_s


def remove(client: Any, container_id: str) -> None:
    """Remove a container, running or not, and its anonymous volumes; does nothing if it does not exist."""
    for attempt in range(_REMOVALS):
        try:
            client.api.remove_container(container_id, force=True, v=True)
            return
        except Exception as e:
            message = explanation(e)
            if is_missing(e) or "already in progress" in message:
                return
            # The removal raced with another operation of the engine, such as a stop by the watcher: retry.
            if attempt == _REMOVALS - 1 or "unable to remove" not in message:
                raise
        pause(attempt)


def wait_for_end(client: Any, app_id: str, timeout_s: float, ask: Callable[[], Job | None]) -> None:
    """Sleeps until all containers of the job that ``ask`` returns have ended, one has failed, or the time is over."""
    began = time.time()
    deadline = time.monotonic() + timeout_s
    job = ask()
    live = {c.id for c in job.containers if not is_terminal(c.state)} if job else set()
    if not live:
        return
    of = {"label": [f"{LABEL_APP_ID}={app_id}"]}
    try:
        for event in events(client, ["die", "died"], of, since=began - _LAG_S, read_s=max(timeout_s, 0.01)):
            actor = event.get("Actor") or {}
            ended = str(actor.get("ID") or event.get("id"))
            failed = ended in live and (actor.get("Attributes") or {}).get("exitCode") != "0"
            live.discard(ended)
            if failed or not live or time.monotonic() >= deadline:
                if float(event.get("time") or 0) < began:
                    time.sleep(_PAUSE_S)
                return
    except TimeoutError:
        return
    time.sleep(max(min(deadline - time.monotonic(), 1.0), 0.0))  # the engine closed the stream: back off before a retry


def _digest(image: dict[str, Any]) -> str:
    known = image.get("RepoDigests") or [image.get("Id")]
    return str(known[0] or "")


# -- streams ------------------------------------------------------------------------------------------


def stream(client: Any, path: str, params: dict[str, object], *, read_s: float | None) -> Any:
    """Open a streamed response of the engine, which the caller closes; a read times out after ``read_s`` seconds."""
    api = client.api
    url = f"{api.base_url}/v{api.api_version}{path}"
    response = api.get(url, params=params, stream=True, timeout=(_CONNECT_S, read_s))
    if response.status_code < 400:
        return response.raw
    message = _message(response)
    response.close()
    if "does not support reading" in message:
        raise NotSupportedError(
            f"logs cannot be read: {message}", hint="use the engine's logging driver `json-file` or `local`"
        )
    raise (NotFoundError if response.status_code == 404 else BackendError)(f"the engine refused: {message}")


def events(
    client: Any, kinds: list[str], of: dict[str, list[str]], *, since: float, until: float | None = None, read_s: float
) -> Iterator[Any]:
    """Events of containers: ``id``, ``status``, ``time`` (seconds), ``timeNano``, ``Actor.Attributes.exitCode``.

    The engine keeps only recent events (Docker: the last 256), and none from before its start. ``kinds`` are ``die``
    (Podman: ``died``), ``start``, ``oom``, ...; ``of`` selects containers by ``label`` or ``container`` (the id);
    ``since`` and ``until`` are Unix times. Without ``until``, it follows until no event arrives for ``read_s`` seconds,
    and then raises TimeoutError.
    """
    filters = {"type": ["container"], "event": kinds, **of}
    params: dict[str, object] = {"filters": json.dumps(filters), "since": f"{since:.9f}"}
    if until is not None:
        params["until"] = f"{until:.9f}"
    try:
        with closing(stream(client, "/events", params, read_s=read_s)) as found:
            while line := found.readline():
                if line.strip():
                    with reading("an event of the engine"):
                        event = dict(loads(line))
                        dict((event.get("Actor") or {}).get("Attributes") or {})
                    yield event
    except Exception as e:
        if "timed out" in str(e).lower():
            raise TimeoutError from e
        raise


def changes(client: Any) -> Iterator[str]:
    """App ids of torchx containers that start, exit or are removed; TimeoutError after ten minutes without any."""
    kinds = ["start", "die", "died", "destroy", "remove", "rename", "oom"]
    for event in events(client, kinds, {"label": [LABEL_APP_ID]}, since=time.time() - _LAG_S, read_s=600.0):
        yield str(((event.get("Actor") or {}).get("Attributes") or {}).get(LABEL_APP_ID) or "")


# -- networks -----------------------------------------------------------------------------------------


def make_network(client: Any, name: str, labels: dict[str, str], *, busy: Callable[[set[str]], set[str]]) -> None:
    """Create a bridge network. If the engine has no address range left, removes those not in ``busy()`` and retries.

    An engine has address ranges for about thirty networks, and ended jobs keep theirs until they are deleted. ``busy``
    gets the names of networks that were just created, and returns those in use.
    """
    import docker.errors

    for attempt in (1, 2):
        try:
            client.networks.create(name, driver="bridge", labels=labels, check_duplicate=True)
            return
        except docker.errors.APIError as e:
            why = explanation(e).lower()
            if is_conflict(e) and "pool" not in why:
                return  # an earlier request created it, and its answer was lost
            # Podman lists the interfaces of the machine, and one of them may vanish meanwhile.
            passing = "no such network interface" in why
            if attempt == 2 or not (passing or remove_networks(client, [*labels][:1], busy=busy)):
                raise


def remove_networks(client: Any, labels: list[str], *, busy: Callable[[set[str]], set[str]] | None = None) -> int:
    """Remove the networks with these labels that no running container uses; return their number."""
    import docker.errors

    removed = 0
    networks = client.api.networks(filters={"label": labels})
    since = (time.time() - _SUBMISSION_S) * 1e9
    with reading("the engine's list of networks"):
        ids = {n["Name"]: n["Id"] for n in networks}
        fresh = {n["Name"] for n in networks if split_stamp(str(n.get("Created") or "").encode())[0] > since}
    keep = busy(fresh) if busy else set()
    for name, network_id in ids.items():
        if name not in keep:
            try:
                client.api.remove_network(network_id)
                removed += 1
            except docker.errors.APIError:
                continue  # in use, or already removed
    return removed


# -- side by side -------------------------------------------------------------------------------------


def side_by_side(call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return the results of ``call`` for each item, in order, with up to eight calls in parallel.

    All calls have finished when it returns or raises, so that the caller can clean up what they created. After a
    failure it starts no further call, and raises the first failure.
    """
    todo = list(items)
    if len(todo) <= 1:
        return [call(item) for item in todo]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_AT_ONCE, len(todo))) as pool:
        return list(pool.map(call, todo))


def patiently(call: Callable[[], T], for_s: float = 15.0) -> T:
    """Return the result of ``call``, retried for ``for_s`` seconds while the engine does not answer,
    as during a restart.
    """
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
    """Sleeps 0.1 s at attempt 0, and longer at each later one, up to 1 s."""
    time.sleep(min(0.1 * 1.5**attempt, 1.0))


def _message(response: Any) -> str:
    try:
        return str(response.json()["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"
