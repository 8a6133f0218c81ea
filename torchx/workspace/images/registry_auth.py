"""Credentials of registries: ``~/.docker/config.json``, its credential helpers, and access tokens."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from torchx.errors import BackendError, ConfigError
from torchx.util.records import dataclass, field
from torchx.workspace.images.names import DOCKER_HUB

# Docker's key for its own registry.
_DOCKER_HUB_KEY = "https://index.docker.io/v1/"
_HELPER_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_HELPER_TIMEOUT_S = 60
# https://github.com/docker/docker-credential-helpers/blob/master/credentials/error.go
_NOT_THERE = ("credentials not found", "no credentials", "not found in native keychain")
_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


@dataclass(frozen=True)
class Credentials:
    """A user name and password, or an identity token to exchange for access tokens."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.username or self.identity_token)

    def basic(self) -> str:
        """Return the value of the ``Authorization`` header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


@dataclass(frozen=True)
class Challenge:
    """The challenge in a registry's ``WWW-Authenticate`` header.

    >>> Challenge.parse('Bearer realm="https://auth.x/token",service="x",scope="repository:a:pull,push"').parameters
    {'realm': 'https://auth.x/token', 'service': 'x', 'scope': 'repository:a:pull,push'}
    """

    scheme: str
    parameters: dict[str, str]

    @staticmethod
    def parse(header: str) -> Challenge:
        """Parse the header; without a challenge the scheme is empty."""
        scheme, _, rest = header.strip().partition(" ")
        found = {m[1].lower(): m[3] or (m[2] or "").replace('\\"', '"') for m in _PARAMETER.finditer(rest)}
        return Challenge(scheme.lower(), found)


PROVIDERS: dict[str, Callable[[str], Credentials | None]] = {}
"""By name, functions that :func:`find_credentials` calls if the login files have no entry: for registries of clouds."""


def find_credentials(registry: str) -> Credentials:
    """Return the credentials for a registry from the user's login files; empty credentials if there are none.

    Searches, in this order, ``$DOCKER_CONFIG`` or ``~/.docker/config.json`` with its ``credHelpers``, ``credsStore``
    and ``auths``; then Podman's ``$REGISTRY_AUTH_FILE`` or ``auth.json``.

    Raises:
        ConfigError: a file is not JSON, or its entry cannot be read.
        BackendError: a credential helper fails.
    """
    found: Credentials | None
    for path in _login_files():
        found = _in_file(path, registry)
        if found:
            return found
    for provider in PROVIDERS.values():
        found = provider(registry)
        if found:
            return found
    return Credentials()


def _login_files() -> list[str]:
    home = os.path.expanduser("~")
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return [
        os.path.join(os.environ.get("DOCKER_CONFIG") or os.path.join(home, ".docker"), "config.json"),
        os.environ.get("REGISTRY_AUTH_FILE") or (os.path.join(runtime, "containers", "auth.json") if runtime else ""),
        os.path.join(home, ".config", "containers", "auth.json"),
    ]


def _in_file(path: str, registry: str) -> Credentials:
    config = _read(path)
    helper = _under_name(config.get("credHelpers"), registry) or config.get("credsStore") or ""
    if helper:
        found = _ask_helper(str(helper), registry, path)
        if found:
            return found
    entry = _under_name(config.get("auths"), registry)
    return _entry(entry, registry, path) if isinstance(entry, dict) else Credentials()


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as f:
            config = json.load(f)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as e:
        raise ConfigError(
            f"the login file `{path}` cannot be read: {e}", hint="repair it, or log in again: `docker login`"
        ) from e
    return config if isinstance(config, dict) else {}


def names_of(registry: str) -> list[str]:
    """Return the names that login files may use for a registry.

    >>> names_of("ghcr.io")
    ['ghcr.io', 'https://ghcr.io', 'http://ghcr.io']
    """
    names = [registry, f"https://{registry}", f"http://{registry}"]
    return [_DOCKER_HUB_KEY, *names, "index.docker.io"] if registry == DOCKER_HUB else names


def _under_name(table: object, registry: str) -> object:
    if not isinstance(table, dict):
        return None
    # Some tools write a path or a slash after the host: `https://host/v1/`.
    plain = {key.removesuffix("/").removesuffix("/v1").removesuffix("/v2"): value for key, value in table.items()}
    for name in names_of(registry):
        if name in table:
            return table[name]
        if name in plain:
            return plain[name]
    return None


def _entry(entry: dict[str, Any], registry: str, path: str) -> Credentials:
    if entry.get("identitytoken"):
        return Credentials(identity_token=str(entry["identitytoken"]))
    if not entry.get("auth"):
        return Credentials(str(entry.get("username") or ""), str(entry.get("password") or ""))
    try:
        username, colon, password = base64.b64decode(entry["auth"]).decode().partition(":")
    except ValueError:
        colon = ""
    if not colon:
        raise ConfigError(
            f"the login of `{registry}` in `{path}` is damaged", hint=f"log in again: `docker login {registry}`"
        )
    return Credentials(username, password.rstrip("\0"))


def _ask_helper(helper: str, registry: str, path: str) -> Credentials:
    if not _HELPER_NAME.fullmatch(helper):
        raise ConfigError(f"`{helper}` in `{path}` is not the name of a credential helper")
    program = f"docker-credential-{helper}"
    server = _DOCKER_HUB_KEY if registry == DOCKER_HUB else registry
    try:
        done = subprocess.run(
            [program, "get"], input=server, capture_output=True, text=True, timeout=_HELPER_TIMEOUT_S, check=False
        )
    except FileNotFoundError as e:
        raise BackendError(
            f"the credential helper `{program}` of `{path}` is not installed", hint="install it, or remove the entry"
        ) from e
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BackendError(f"the credential helper `{program}` failed for `{registry}`: {e}") from e
    output = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        if any(words in output.lower() for words in _NOT_THERE):
            return Credentials()
        reason = output.splitlines()[-1] if output else "no reason given"
        raise BackendError(
            f"the credential helper `{program}` failed for `{registry}`: {reason}",
            hint=f"try `echo {registry} | {program} get`",
        )
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise BackendError(f"the credential helper `{program}` returned no credentials for `{registry}`") from e
    return Credentials(identity_token=secret) if username == "<token>" else Credentials(username, secret)


def token_request(
    challenge: Challenge, scopes: tuple[str, ...], credentials: Credentials
) -> tuple[str, str, Mapping[str, str], bytes | None]:
    """Return the request for a token: method, URL, headers, body.

    See https://distribution.github.io/distribution/spec/auth/token/ and its page on OAuth.
    """
    realm, service = challenge.parameters.get("realm", ""), challenge.parameters.get("service", "")
    if credentials.identity_token:
        form = {
            "grant_type": "refresh_token",
            "service": service,
            "client_id": "torchx",
            "scope": " ".join(scopes),
            "refresh_token": credentials.identity_token,
        }
        return "POST", realm, {"Content-Type": "application/x-www-form-urlencoded"}, urlencode(form).encode()
    query = ([("service", service)] if service else []) + [("scope", scope) for scope in scopes]
    headers = {"Authorization": credentials.basic()} if credentials else {}
    return "GET", realm + ("&" if "?" in realm else "?") + urlencode(query), headers, None
