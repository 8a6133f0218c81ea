"""Creates boto3 clients on first use, and calls them with errors translated to ours.

boto3 resolves region, profile, credentials and endpoints from the environment, ``~/.aws`` and the machine's role:
https://docs.aws.amazon.com/boto3/latest/guide/configuration.html
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchx.errors import MissingDependencyError, install_extra
from torchx.schedulers.aws.errors import AwsError, ThrottledError, aws_errors, is_missing
from torchx.version import __version__

_OPTIONS = ("aws_region", "aws_profile", "aws_endpoint_url")
_ATTEMPTS = 8
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)


class Clients:
    """Clients of one account and region.

    Args:
        given: clients to use instead of new ones, by service.
        options: of the scheduler: ``aws_region``, ``aws_profile``, ``aws_endpoint_url`` override boto3's configuration.
    """

    def __init__(
        self, given: Mapping[str, Any | None] | None = None, options: Mapping[str, object] | None = None
    ) -> None:
        self._given = {service: client for service, client in (given or {}).items() if client is not None}
        found = {name: str(value) for name in _OPTIONS if (value := (options or {}).get(name))}
        self._options = {"region_name": found.get("aws_region"), "profile_name": found.get("aws_profile")}
        self._endpoint_url = found.get("aws_endpoint_url")
        self._session: Any = None
        self._lock = allocate_lock()
        self._made: dict[tuple[str, bool, str | None], Any] = {}

    @property
    def profile(self) -> str:
        """The profile of ``aws_profile``; empty: that of the environment."""
        return self._options["profile_name"] or ""

    def client(self, service: str, *, retries: bool = True, region: str | None = None) -> Any:
        """Return the client of a service. Without ``retries`` boto3 repeats no call: for those that must not run twice.

        ``region`` overrides the session's region.
        """
        if service in self._given:
            return self._given[service]
        key = (service, retries, region)
        with self._lock:  # a boto3 session is not thread-safe
            if key not in self._made:
                self._made[key] = self._make(service, retries=retries, region=region)
            return self._made[key]

    def _make(self, service: str, *, retries: bool, region: str | None) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise MissingDependencyError(
                "this needs the package `boto3`, which is not installed", hint=install_extra("aws")
            ) from None
        policy: dict[str, object] = {"mode": "adaptive", "total_max_attempts": _ATTEMPTS}
        if not retries:
            policy = {"mode": "standard", "total_max_attempts": 1}
        with aws_errors(f"AWS {service} cannot be reached"):
            if self._session is None:
                self._session = boto3.session.Session(**self._options)
            config = Config(retries=policy, user_agent_extra=f"torchx/{__version__}")
            return self._session.client(service, region_name=region, endpoint_url=self._endpoint_url, config=config)

    def close(self) -> None:
        """Close the clients that were created here."""
        for client in self._made.values():
            client.close()
        self._made.clear()


def call(client: Any, operation: str, doing: str, **params: object) -> dict[str, Any]:
    """Call a method of a boto3 client; ``doing``, what failed, begins the message of the TorchXError."""
    with aws_errors(doing):
        answer: dict[str, Any] = getattr(client, operation)(**params)
    return answer


def call_if_there(client: Any, operation: str, doing: str, **params: object) -> dict[str, Any] | None:
    """Like :func:`call`; None if AWS reports that a named resource does not exist."""
    try:
        return call(client, operation, doing, **params)
    except AwsError as e:
        if is_missing(e):
            return None
        raise


def call_once(
    client: Any, operation: str, doing: str, *, sleep: Callable[[float], None] = time.sleep, **params: object
) -> dict[str, Any]:
    """Return a call that must not be executed twice: it is retried only if AWS has throttled it."""
    for pause_s in _PAUSES_S:
        try:
            return call(client, operation, doing, **params)
        except ThrottledError:
            sleep(pause_s)
    return call(client, operation, doing, **params)


def pages(client: Any, operation: str, doing: str, key: str, **params: object) -> Iterator[dict[str, Any]]:
    """Items of all pages of an answer, where they have this key. A page whose token refers to itself is the last."""
    token = None
    token_name = "NextToken" if key[:1].isupper() else "nextToken"
    while True:
        answer = call(client, operation, doing, **params, **({token_name: token} if token else {}))
        yield from answer.get(key) or ()
        if not answer.get(token_name) or answer[token_name] == token:
            return
        token = answer[token_name]
