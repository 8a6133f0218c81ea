"""Logs in to Amazon ECR, the image registry of an AWS account.

A login is a token that is valid for 12 hours; it is kept in memory only.
https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_GetAuthorizationToken.html
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

from torchx.schedulers.aws.client import Clients, call
from torchx.schedulers.aws.errors import AwsError
from torchx.workspace.images.engine_errors import engine_errors
from torchx.workspace.images.registry_auth import Credentials

_REUSE_S = 11 * 3600.0
_HOST = r"(?P<account>\d{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.aws)"


def region_of(registry: str) -> str:
    """Return the region of an ECR registry; empty for any other registry.

    >>> region_of("123456789012.dkr.ecr.eu-west-1.amazonaws.com"), region_of("ghcr.io")
    ('eu-west-1', '')
    """
    found = re.fullmatch(_HOST, registry)
    return found["region"] if found else ""


class EcrLogins:
    """Logins by registry, cached for most of the time that they are valid."""

    def __init__(self, clients: Clients, *, clock: Callable[[], float] = time.time) -> None:
        self._clients = clients
        self._clock = clock
        self._known: dict[str, tuple[float, Credentials]] = {}  # registry -> when it was requested, login

    def credentials(self, registry: str) -> Credentials | None:
        """Return the login of an ECR registry; None for any other registry. Raises TorchXError if AWS refuses it."""
        region = region_of(registry)
        if not region:
            return None
        if registry not in self._known or self._clock() > self._known[registry][0] + _REUSE_S:
            client = self._clients.client("ecr", region=region)
            answer = call(client, "get_authorization_token", f"there is no login for `{registry}`")
            token = base64.b64decode(answer["authorizationData"][0]["authorizationToken"])
            user, _, password = token.decode().partition(":")
            self._known[registry] = (self._clock(), Credentials(user, password))
        return self._known[registry][1]

    def prepare(self, pushes: Iterable[tuple[str, str]], engine: Any | None, *, create: bool) -> None:
        """Prepare the repositories of a push (each with its tag); ``create``: creates missing ones.

        ``engine`` is the Docker client that pushes, which is logged in; None: no engine pushes.
        """
        for repository in dict.fromkeys(repository for repository, _ in pushes):
            registry, _, name = repository.partition("/")
            login = self.credentials(registry)
            if login is None:
                continue
            if create:
                self._create(registry, name)
            if engine is not None:
                with engine_errors(f"the Docker engine could not log in to `{registry}`"):
                    # Affects this client only: unlike `docker login`, it writes no file.
                    engine.login(username=login.username, password=login.password, registry=registry, reauth=True)

    def _create(self, registry: str, name: str) -> None:
        doing = f"repository `{name}` could not be created"
        try:
            client = self._clients.client("ecr", region=region_of(registry))
            call(client, "create_repository", doing, repositoryName=name)
        except AwsError as e:
            if e.code != "RepositoryAlreadyExistsException":
                raise
