"""Errors of a Docker engine, of its client and of the way to it, as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from torchx.errors import BackendError, TorchXError, TransientError
from torchx.schedulers.docker.reasons import meaning_of
from torchx.util.any import Any


@contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Within it, errors of the engine, of its client and of the way to it are ours.

    Args:
        doing: what fails then, as the beginning of a sentence.
    """
    try:
        yield
    except TorchXError:
        raise
    except Exception as e:
        translated = translate(e, doing)
        if translated is None:
            raise
        raise translated from e


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
            f"{doing}: the Docker engine no longer answers: {_innermost(error)}",
            hint="is it running? `docker version` shows it; `DOCKER_HOST` names its address",
        )
    return None


def explanation(error: Any) -> str:
    """What the engine itself says, in one line."""
    said = getattr(error, "explanation", None) or str(error)
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return " ".join(text.split())


def is_missing(error: BaseException) -> bool:
    """Whether the engine says that what was asked for does not exist."""
    return getattr(getattr(error, "response", None), "status_code", None) == 404


def is_conflict(error: Exception) -> bool:
    """Whether the engine says that there is one of that name already."""
    said = explanation(error).lower()
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code == 409 or "is already in use" in said or "already exists" in said


def _innermost(error: BaseException) -> str:
    """The words of the system in an error that the layers of HTTP have wrapped."""
    text = str(error)
    found = re.search(r"\w*Error\(\d+, '([^']+)'\)", text)
    return found[1] if found else text
