"""Translates errors of a Docker engine, of its client and of the connection to ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torchx.errors import BackendError, MissingDependencyError, ParseError, TorchXError, TransientError, install_extra

NO_PROGRAM = "its entrypoint is not a program of its image"

# Message of the engine (Docker 20.10 to 28, Podman 4 and 5) -> meaning and hint.
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
            NO_PROGRAM,
            "check the entrypoint and the image: a program of this machine is not in it; `-cfg keep_entrypoint=True`"
            " passes all of the command to the image's own ENTRYPOINT",
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


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Translate errors of the engine, of its client and of the connection to ours, which begin with ``doing``."""
    try:
        yield
    except TorchXError:
        raise
    except ImportError as e:
        said = "this needs the package `docker`, which is not installed"
        raise MissingDependencyError(said, hint=install_extra("docker")) from e
    except Exception as e:
        translated = translate(e, doing)
        if translated is None:
            raise
        raise translated from e


def translate(error: Exception, doing: str) -> TorchXError | None:
    """Return our error for one of the client, beginning with ``doing``; None for any other error."""
    import docker.errors
    import requests.exceptions
    import urllib3.exceptions  # raised while a stream is read

    if isinstance(error, docker.errors.APIError):
        message = explanation(error)
        meaning, hint = meaning_of(message)
        text = f"{doing}: {meaning}: {message}" if meaning else f"{doing}: {message}"
        return BackendError(text, hint=hint)
    if isinstance(error, docker.errors.DockerException):
        return BackendError(f"{doing}: {error}")
    if isinstance(error, (requests.exceptions.ReadTimeout, urllib3.exceptions.ReadTimeoutError)):
        return TransientError(f"{doing}: the engine did not answer in time", hint="is it overloaded? try again")
    if isinstance(error, (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError)):
        return TransientError(
            f"{doing}: the Docker engine no longer answers: {_innermost(error)}",
            hint="is it running? `docker version` shows it; `DOCKER_HOST` names its address",
        )
    if isinstance(error, (AttributeError, LookupError, RuntimeError, TypeError, ValueError)) and _is_of_client(error):
        return ParseError(f"{doing}: the engine's answer cannot be read: {error}")
    return None


def _is_of_client(error: BaseException) -> bool:
    """Return whether the client raised it, which expects that an answer has the documented shape."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and str(at.tb_frame.f_globals.get("__name__")).partition(".")[0] in ("docker", "json")


def objects(told: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the events of an engine; raise ParseError for what is not an object."""
    for event in told:
        if not isinstance(event, dict):
            raise ParseError(f"the engine sent the event `{event}`, which is not an object")
        yield event


def explanation(error: Any) -> str:
    """Return the engine's own message, in one line."""
    message = getattr(error, "explanation", None) or str(error)
    text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    return " ".join(text.split())


def is_missing(error: BaseException) -> bool:
    """Return whether the engine reports that the object does not exist."""
    return getattr(getattr(error, "response", None), "status_code", None) == 404


def is_conflict(error: Exception) -> bool:
    """Return whether the engine reports that the name is in use."""
    message = explanation(error).lower()
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code == 409 or "is already in use" in message or "already exists" in message


def _innermost(error: BaseException) -> str:
    """Return the system's message in an error that the HTTP libraries have wrapped."""
    text = str(error)
    found = re.search(r"\w*Error\(\d+, '([^']+)'\)", text)
    return found[1] if found else text


def meaning_of(message: str) -> tuple[str, str]:
    """Return the meaning of an engine's message, and a hint; empty strings if it needs no explanation.

    >>> meaning_of("Bind for 0.0.0.0:80 failed: port is already allocated")[0]
    "a port that it publishes is in use on the engine's machine"
    >>> meaning_of("something else")
    ('', '')
    """
    return next(((meaning, hint) for pattern, meaning, hint in _MEANINGS if pattern.search(message)), ("", ""))
