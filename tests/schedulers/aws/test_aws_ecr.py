"""Logins of ECR: cached, only for its registries, and passed to the clients that pull and push."""

from __future__ import annotations

import base64
import json

import pytest

pytest.importorskip("botocore")

from tests.schedulers.aws.batch_cloud import Cloud, refusal, validate
from torchx.errors import BackendError
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.ecr import EcrLogins
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler
from torchx.workspace.images import registry_auth

HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


class Ecr:
    """The service, in memory."""

    def __init__(self, *repositories):
        self.repositories = set(repositories)
        self.calls = []

    def get_authorization_token(self, **params):
        validate("ecr", "get_authorization_token", params)
        self.calls.append("login")
        token = base64.b64encode(b"AWS:pass:word").decode()
        return {"authorizationData": [{"authorizationToken": token, "proxyEndpoint": f"https://{HOST}"}]}

    def create_repository(self, **params):
        validate("ecr", "create_repository", params)
        if params["repositoryName"] in self.repositories:
            raise refusal("RepositoryAlreadyExistsException", "it is there", operation="CreateRepository")
        self.repositories.add(params["repositoryName"])
        return {}


class Engine:
    """A Docker client."""

    def __init__(self):
        self.logins = []

    def login(self, **given):
        self.logins.append(given)


@pytest.fixture
def no_files(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.setattr(registry_auth, "PROVIDERS", {})
    return tmp_path


def test_login_and_repository(no_files):
    """The engine is logged in to an ECR registry once; the repository is created on request, or exists already."""
    ecr, engine = Ecr("there"), Engine()
    logins = EcrLogins(Clients({"ecr": ecr}))
    pushes = [(f"{HOST}/team/new", "a"), (f"{HOST}/there", "b"), ("ghcr.io/x", "c")]
    logins.prepare(pushes, engine, create=True)
    assert ecr.repositories == {"team/new", "there"}
    assert ecr.calls == ["login"]
    assert {login["registry"] for login in engine.logins} == {HOST}
    assert (engine.logins[0]["username"], engine.logins[0]["password"]) == ("AWS", "pass:word")
    assert list(no_files.iterdir()) == []


def test_a_login_is_renewed_before_it_expires(no_files):
    """A token is valid for 12 hours, and a program may run for longer."""
    ecr, now = Ecr(), [1000.0]
    logins = EcrLogins(Clients({"ecr": ecr}), clock=lambda: now[0])
    logins.credentials(HOST)
    now[0] += 10 * 3600
    logins.credentials(HOST)
    assert ecr.calls == ["login"]
    now[0] += 2 * 3600
    assert logins.credentials(HOST) == registry_auth.Credentials("AWS", "pass:word")
    assert ecr.calls == ["login", "login"]


def test_no_repository_unless_asked(no_files):
    """Repositories, which cost money, are created only on request."""
    ecr = Ecr()
    EcrLogins(Clients({"ecr": ecr})).prepare([(f"{HOST}/new", "a")], None, create=False)
    assert ecr.repositories == set()


def test_builders_without_an_engine(no_files):
    """If the login files have no entry, the registry client gets the login, too; other registries do not."""
    ecr = Ecr()
    cloud = Cloud()
    AWSBatchScheduler("s", clients=Clients({"batch": cloud, "logs": cloud.logs, "ecr": ecr}))
    assert registry_auth.find_credentials(HOST) == registry_auth.Credentials("AWS", "pass:word")
    assert not registry_auth.find_credentials("ghcr.io")
    (no_files / "config.json").write_text(json.dumps({"auths": {HOST: {"username": "me", "password": "x"}}}))
    assert registry_auth.find_credentials(HOST).username == "me"
    assert ecr.calls == ["login"]


def test_a_refused_login(no_files):
    """The error names the denied action."""

    class Denied(Ecr):
        def get_authorization_token(self, **params):
            said = "User: arn:me is not authorized to perform: ecr:GetAuthorizationToken"
            raise refusal("AccessDeniedException", said, operation="GetAuthorizationToken")

    with pytest.raises(BackendError, match="denies `ecr:GetAuthorizationToken`"):
        EcrLogins(Clients({"ecr": Denied()})).prepare([(f"{HOST}/a", "b")], None, create=True)
