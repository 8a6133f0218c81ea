"""The verbs of a Docker engine, as a job needs them: pull, create, start, stop, remove, wait."""

from __future__ import annotations

import sys
import time

from torchx.errors import BackendError
from torchx.schedulers.docker.containers import LABEL_APP_ID
from torchx.schedulers.docker.deaf import is_deaf
from torchx.schedulers.docker.engine import (
    ends,
    explanation,
    is_conflict,
    is_missing,
    meaning_of,
    pause,
    side_by_side,
    translate,
)
from torchx.schedulers.docker.marks import Mark, join
from torchx.specs.api import is_terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from torchx.schedulers.docker.containers import Container, Job
    from torchx.schedulers.docker.request import DockerContainer

_LAG_S = 30.0  # an engine tells of an end, takes the container off its network, and lists it as ended only then
_PAUSE_S = 0.2
_REMOVALS = 6
_STOP_S = 60.0
_STOPPED = (204, 304, 404)


def pull(client: Any, image: str) -> str:
    """The digest of an image, which is pulled if the engine does not have it.

    Returns:
        ``name@sha256:...`` where a registry has it, else its id.

    Raises:
        BackendError: there is no such image, or its registry does not answer.
    """
    import docker.errors

    try:
        return _digest(client.api.inspect_image(image))
    except docker.errors.APIError as e:
        if not is_missing(e):
            raise
    if image.startswith("sha256:"):
        raise BackendError(
            f"image `{image}` is not on the engine's machine",
            hint="it was built there once, and removed since; or on another machine, from which it was not pushed",
        )
    sys.stderr.write(f"pulling image {image}\n")
    try:
        client.images.pull(image)
        return _digest(client.api.inspect_image(image))
    except docker.errors.APIError as e:
        said = explanation(e)
        meaning, hint = meaning_of(said)
        raise BackendError(
            f"image `{image}` is not on the engine's machine and cannot be pulled: {said}",
            hint=hint if meaning else "`docker images` shows what is there",
        ) from e


def create(client: Any, container: DockerContainer) -> Any:
    """The engine's container; that of an attempt whose answer was lost is taken."""
    import docker.errors

    name = container.kwargs.get("name")
    try:
        made = client.containers.create(container.image, container.command, **container.kwargs)
    except docker.errors.APIError as e:
        if name and is_conflict(e):
            found = client.containers.get(name)
            labels: Any = container.kwargs.get("labels") or {}
            if (found.labels or {}).get(LABEL_APP_ID) == labels.get(LABEL_APP_ID):
                return found
        raise translate(e, f"container `{name}` could not be made") or e from e
    if container.kwargs.get("device_requests") and not (made.attrs.get("HostConfig") or {}).get("DeviceRequests"):
        import logging

        logging.getLogger("torchx").warning("`%s` asks for GPUs, and the engine does not say that it gets them", name)
    return made


def start(made: tuple[Any, DockerContainer]) -> None:
    """Starts a container that was created."""
    import docker.errors

    created, container = made
    try:
        created.start()
    except docker.errors.APIError as e:
        raise translate(e, f"container `{container.kwargs.get('name')}` could not be started") or e from e


def stop_all(client: Any, environ: Mapping[str, str] | None, which: list[Container], grace_s: int) -> None:
    """Ends containers, all at the same time, and marks them as cancelled first. They are kept.

    Args:
        environ: says where the engine is; None: only the client knows, and it stops a few at a time.
        grace_s: seconds between SIGTERM and SIGKILL.
    """
    side_by_side(lambda container: _mark_cancelled(client, container), which)
    graces = dict(side_by_side(lambda container: (container.id, _grace(client, container, grace_s)), which))
    left = which
    if environ is not None and len(which) > 1:
        from torchx.schedulers.docker.wire import Wire, target

        targets = [target(f"/containers/{c.id}/stop", {"t": graces[c.id]}) for c in which]
        answers = Wire(environ).post(targets, timeout_s=grace_s + _STOP_S)
        left = [c for c, answer in zip(which, answers, strict=True) if answer not in _STOPPED]
    side_by_side(lambda container: _stop(client, container, graces[container.id]), left)


def _grace(client: Any, container: Container, grace_s: int) -> int:
    import docker.errors

    try:
        return 0 if is_deaf(client.api.inspect_container(container.id)) else grace_s
    except docker.errors.APIError:  # it was removed
        return grace_s


def _mark_cancelled(client: Any, container: Container) -> None:
    import docker.errors

    mark = Mark(container.mark.app, container.mark.role, container.mark.due, cancelled=True)
    if mark == container.mark:
        return
    try:
        client.api.rename(container.id, join(container.name, mark))
    except docker.errors.APIError as e:
        if not is_missing(e) and "same name" not in explanation(e) and not is_conflict(e):  # of another who cancels it
            raise


def _stop(client: Any, container: Container, grace_s: int) -> None:
    import docker.errors

    try:
        client.api.stop(container.id, timeout=grace_s)
    except docker.errors.APIError as e:
        if not is_missing(e):
            raise


def remove(client: Any, container_id: str) -> None:
    """Removes a container, running or not, and its anonymous volumes; quiet when it is gone."""
    import docker.errors

    for attempt in range(_REMOVALS):
        try:
            client.api.remove_container(container_id, force=True, v=True)
            return
        except docker.errors.APIError as e:
            said = explanation(e)
            if is_missing(e) or "already in progress" in said:
                return
            # The engine has stumbled over what else it did with the container just now, as when the warden ends it.
            if attempt == _REMOVALS - 1 or "unable to remove" not in said:
                raise
        pause(attempt)


def wait_for_end(client: Any, app_id: str, timeout_s: float, ask: Callable[[], Job | None]) -> None:
    """Sleeps until all containers of a job have ended, one has failed, or the time is over.

    Args:
        ask: what the engine lists of the job.
    """
    began = time.time()
    deadline = time.monotonic() + timeout_s
    job = ask()
    live = {c.id for c in job.containers if not is_terminal(c.state)} if job else set()
    if not live:
        return
    labels = [f"{LABEL_APP_ID}={app_id}"]
    try:
        for event in ends(client, labels, since=began - _LAG_S, until=None, read_s=max(timeout_s, 0.01)):
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
    time.sleep(max(min(deadline - time.monotonic(), 1.0), 0.0))  # the engine has closed the stream: do not ask at once


def _digest(image: dict[str, Any]) -> str:
    known = image.get("RepoDigests") or [image.get("Id")]
    return str(known[0] or "")
