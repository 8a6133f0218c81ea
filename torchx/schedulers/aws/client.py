"""Clients of AWS services, made when they are first needed; calls whose failures are errors of ours.

Region, profile, credentials and endpoints are those that boto3 finds: environment, ``~/.aws``, the machine's role.
https://docs.aws.amazon.com/boto3/latest/guide/configuration.html
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchx.errors import MissingDependencyError, install_extra
from torchx.schedulers.aws.errors import ThrottledError, translate
from torchx.version import __version__

_OPTIONS = ("region", "profile", "endpoint_url")
_ATTEMPTS = 8
_PAUSES_S = (0.5, 1.0, 2.0, 4.0)


class Clients:
    """Clients of one account and region.

    Args:
        given: clients to use instead of new ones, by service.
        region, profile, endpoint_url: instead of what boto3 finds.
    """

    def __init__(
        self,
        given: Mapping[str, Any | None] | None = None,
        *,
        region: str | None = None,
        profile: str | None = None,
        endpoint_url: str | None = None,
    ) -> None:
        self._given = {service: client for service, client in (given or {}).items() if client is not None}
        self._options = {"region_name": region, "profile_name": profile}
        self._endpoint_url = endpoint_url
        self._session: Any = None
        self._lock = allocate_lock()
        self._made: dict[tuple[str, bool, str | None], Any] = {}

    @staticmethod
    def of(options: Mapping[str, object], given: Mapping[str, Any | None]) -> Clients:
        """With ``aws_region``, ``aws_profile`` and ``aws_endpoint_url`` out of the options of a scheduler."""
        found = {name: str(options[f"aws_{name}"]) for name in _OPTIONS if options.get(f"aws_{name}")}
        return Clients(given, **found)

    def client(self, service: str, *, retries: bool = True, region: str | None = None) -> Any:
        """The client of a service.

        Args:
            retries: whether it tries again by itself. Not for calls that must not be carried out twice.
            region: another one than the session's.
        """
        if service in self._given:
            return self._given[service]
        key = (service, retries, region)
        with self._lock:  # a session of boto3 is not made for several threads
            if key not in self._made:
                self._made[key] = self._make(service, retries=retries, region=region)
            return self._made[key]

    def _make(self, service: str, *, retries: bool, region: str | None) -> Any:
        doing = f"AWS {service} cannot be reached"
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
        try:
            if self._session is None:
                self._session = boto3.session.Session(**self._options)
            config = Config(retries=policy, user_agent_extra=f"torchx/{__version__}")
            return self._session.client(service, region_name=region, endpoint_url=self._endpoint_url, config=config)
        except Exception as e:
            error = translate(e, doing)
            if error is None:
                raise
            raise error from None

    def close(self) -> None:
        """Ends the connections of the clients that were made here."""
        for client in self._made.values():
            client.close()
        self._made.clear()


def call(client: Any, operation: str, doing: str, **params: object) -> dict[str, Any]:
    """One call.

    Args:
        operation: as the client's method is called.
        doing: what could not be done, for the message of an error.

    Raises:
        TorchXError: AWS refused, failed or did not answer.
    """
    try:
        answer: dict[str, Any] = getattr(client, operation)(**params)
    except Exception as e:
        error = translate(e, doing)
        if error is None:
            raise
        raise error from None
    return answer


def call_once(
    client: Any, operation: str, doing: str, *, sleep: Callable[[float], None] = time.sleep, **params: object
) -> dict[str, Any]:
    """A call that must not be carried out twice: it is tried again only after AWS has refused it as one too many."""
    for pause_s in _PAUSES_S:
        try:
            return call(client, operation, doing, **params)
        except ThrottledError:
            sleep(pause_s)
    return call(client, operation, doing, **params)


def pages(client: Any, operation: str, doing: str, key: str, **params: object) -> Iterator[dict[str, Any]]:
    """Items of all pages of an answer; a page that names itself as the next one is the last.

    Args:
        key: where the items are in the answer.
    """
    token = None
    token_name = "NextToken" if key[:1].isupper() else "nextToken"
    while True:
        answer = call(client, operation, doing, **params, **({token_name: token} if token else {}))
        yield from answer.get(key) or ()
        if not answer.get(token_name) or answer[token_name] == token:
            return
        token = answer[token_name]
