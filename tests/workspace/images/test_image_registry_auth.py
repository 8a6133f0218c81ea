"""Sources of logins, and requests for tokens."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from torchx.errors import BackendError, ConfigError
from torchx.workspace.images.registry_auth import Challenge, Credentials, find_credentials, token_request


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def basic(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def log_in(home: Path, config: object) -> Path:
    path = home / ".docker" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("ghcr.io", "ghcr.io"),
        ("ghcr.io", "https://ghcr.io"),
        ("ghcr.io", "https://ghcr.io/v2/"),
        ("localhost:5000", "localhost:5000"),
        ("docker.io", "https://index.docker.io/v1/"),
        ("docker.io", "docker.io"),
    ],
)
def test_login_by_any_of_its_names(host: str, key: str, home: Path) -> None:
    """Tools write the same registry in different ways; the password may contain a colon."""
    log_in(home, {"auths": {key: basic("me", "a:b"), "else.io": basic("other", "x")}})
    assert find_credentials(host) == Credentials("me", "a:b")


def test_nobody_is_logged_in(home: Path) -> None:
    """A missing or empty file, or another host, gives no credentials and no error."""
    assert not find_credentials("ghcr.io")
    for config in ("{}", "[]", '{"auths": null}', '{"auths": {"ghcr.io": {}, "x.ghcr.io": {"auth": "eDp5"}}}'):
        log_in(home, config)
        assert not find_credentials("ghcr.io")


def test_order_of_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCKER_CONFIG replaces the home; Podman's file is used if Docker's has no entry."""
    (home / ".config/containers").mkdir(parents=True)
    (home / ".config/containers/auth.json").write_text(json.dumps({"auths": {"a.io": basic("podman", "1")}}))
    log_in(home, {"auths": {"b.io": basic("docker", "2")}})
    assert find_credentials("a.io").username == "podman"
    assert find_credentials("b.io").username == "docker"
    monkeypatch.setenv("DOCKER_CONFIG", str(home / "elsewhere"))
    assert not find_credentials("b.io")


def test_password_is_not_shown(home: Path) -> None:
    """Passwords appear in no traceback and no log."""
    log_in(home, {"auths": {"a.io": basic("me", "hunter2")}})
    found = find_credentials("a.io")
    assert "hunter2" not in f"{found!r} {found}"
    assert found.basic() == "Basic bWU6aHVudGVyMg=="


@pytest.mark.parametrize("auth", ["not base64!", base64.b64encode(b"no colon").decode(), "/w=="])
def test_damaged_entry(auth: str, home: Path) -> None:
    """A damaged entry is reported with its file, without its content."""
    path = log_in(home, {"auths": {"a.io": {"auth": auth}}})
    with pytest.raises(ConfigError, match=f"the login of `a.io` in `{path}` is damaged") as caught:
        find_credentials("a.io")
    assert auth not in str(caught.value)


def test_damaged_file(home: Path) -> None:
    """A file that is not JSON is an error that names it."""
    path = log_in(home, "{")
    with pytest.raises(ConfigError, match=f"`{path}` cannot be read"):
        find_credentials("a.io")


@pytest.fixture
def helper(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = home / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "docker-credential-test"


def says(helper: Path, script: str) -> None:
    helper.write_text(f"#!/bin/sh\nread server\n{script}\n")
    helper.chmod(0o755)


def test_helper(helper: Path, home: Path) -> None:
    """The host's own helper precedes the store, which precedes the file; Docker Hub has its old name."""
    says(helper, """printf '{"Username": "me", "Secret": "%s"}' "$server" """)
    log_in(home, {"credHelpers": {"a.io": "test"}, "auths": {"a.io": basic("x", "y")}})
    assert find_credentials("a.io") == Credentials("me", "a.io")
    log_in(home, {"credsStore": "test"})
    assert find_credentials("docker.io").password == "https://index.docker.io/v1/"


def test_helper_with_a_token(helper: Path, home: Path) -> None:
    """With the user name `<token>` the secret is an identity token."""
    says(helper, """echo '{"Username": "<token>", "Secret": "t"}'""")
    log_in(home, {"credsStore": "test"})
    assert find_credentials("a.io") == Credentials(identity_token="t")


def test_helper_that_does_not_know(helper: Path, home: Path) -> None:
    """If the helper has no credentials, the file is used."""
    says(helper, "echo credentials not found in native keychain; exit 1")
    log_in(home, {"credsStore": "test", "auths": {"a.io": basic("me", "1")}})
    assert find_credentials("a.io").username == "me"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo the keychain is locked >&2; exit 1", "failed for `a.io`: the keychain is locked"),
        ("exit 3", "failed for `a.io`: no reason given"),
        ("echo '{}'", "returned no credentials for `a.io`"),
    ],
)
def test_helper_that_fails(script: str, message: str, helper: Path, home: Path) -> None:
    """The message contains the helper's error."""
    says(helper, script)
    log_in(home, {"credsStore": "test"})
    with pytest.raises(BackendError, match=f"helper `docker-credential-test` {message}"):
        find_credentials("a.io")


@pytest.mark.parametrize(
    ("name", "error"), [("missing", "is not installed"), ("../../bin/evil", "is not the name of a credential helper")]
)
def test_helper_that_cannot_be_run(name: str, error: str, home: Path) -> None:
    """A missing helper, or a path, is an error: a login file must not choose a program by its path."""
    log_in(home, {"credsStore": name})
    with pytest.raises((BackendError, ConfigError), match=error):
        find_credentials("a.io")


def test_challenges() -> None:
    """Challenges are parsed as registries write them; garbage gives none."""
    found = Challenge.parse('Bearer realm="https://x/t?a=b,c",service="s \\"q\\"",error=insufficient_scope')
    assert found.scheme == "bearer"
    assert found.parameters == {"realm": "https://x/t?a=b,c", "service": 's "q"', "error": "insufficient_scope"}
    assert Challenge.parse('Basic realm="x"').scheme == "basic"
    assert Challenge.parse("").scheme == ""


def test_token_requests() -> None:
    """A password gets a token with GET; an identity token uses POST, so that it is in no URL."""
    challenge = Challenge("bearer", {"realm": "https://x/t", "service": "reg"})
    method, url, headers, body = token_request(challenge, ("a:b:pull", "c:d:push"), Credentials("me", "1"))
    assert (method, url) == ("GET", "https://x/t?service=reg&scope=a%3Ab%3Apull&scope=c%3Ad%3Apush")
    assert headers == {"Authorization": "Basic bWU6MQ=="} and body is None
    assert token_request(challenge, (), Credentials())[2] == {}
    method, url, headers, body = token_request(challenge, ("a",), Credentials(identity_token="sec"))
    assert (method, url) == ("POST", "https://x/t") and b"refresh_token=sec" in (body or b"")
