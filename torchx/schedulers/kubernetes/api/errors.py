"""Errors of the API server: which are transient, which are missing rights, and hints for them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from torchx.errors import BackendError, NotFoundError, TransientError

_T = TypeVar("_T")
_Other = TypeVar("_Other")

FORBIDDEN = 403
CONFLICT = 409
_PASSING = frozenset((429, 500, 502, 503, 504))


class MissingError(BackendError):
    """There is no such namespace or kind in the cluster, or no cluster is configured."""


class ApiError(BackendError):
    """The API server rejected a request with an HTTP status; ``retry_after`` is the header of this name."""

    def __init__(self, message: str, *, status: int, retry_after: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retry_after = retry_after


class BusyError(ApiError, TransientError):
    """The API server rejected a request for a transient reason."""


def unless_forbidden(ask: Callable[[], _T], otherwise: _Other) -> _T | _Other:
    """Return the result of ``ask``, or ``otherwise`` if the rights for it are missing."""
    try:
        return ask()
    except ApiError as e:
        if e.status != FORBIDDEN:
            raise
        return otherwise


def refusal(method: str, path: str, response: Any, *, known: bool) -> BackendError | NotFoundError:
    """Return the error of a response; if the request is ``known`` to have succeeded, a missing right or kind is
    transient.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
    """
    import urllib3

    try:
        text = response.read().decode("utf-8", "replace")
    except urllib3.exceptions.HTTPError:  # the connection broke; the HTTP status is left
        text = ""
    finally:
        response.release_conn()
    try:
        status = json.loads(text)
    except (ValueError, RecursionError):
        status = {}
    status = status if isinstance(status, dict) else {}
    message = str(status.get("message") or text.strip().partition("\n")[0][:500] or f"HTTP {response.status}")
    rights = response.status == 403 and re.search(r" cannot \w+ resource ", message)  # else an admission policy
    no_such_kind = response.status == 404 and "could not find the requested" in message
    if response.status == 404 and not (known and no_such_kind):
        return NotFoundError(f"Kubernetes has no `{path}`: {message}")
    hint = ""
    if response.status == 401:
        hint = "the credentials of kubeconfig are refused: log in again"
    elif rights:
        hint = "the cluster's administrator can grant it: `kubectl auth can-i --list` shows what you may do"
    passing = response.status in _PASSING or (known and (rights or no_such_kind))
    return (BusyError if passing else ApiError)(
        f"the Kubernetes API refused `{method} {path}`: {message}",
        status=response.status,
        retry_after=response.headers.get("Retry-After", ""),
        hint=hint,
    )
