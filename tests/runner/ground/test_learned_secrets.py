"""Values that this process masks in its output: its own credentials, and the secrets of recorded jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from torchx.errors import ConfigError
from torchx.runner.ground.secrets import learn_roles
from torchx.runner.notices.channels import settings_of
from torchx.specs import Role, Secret
from torchx.util.redaction import MASK, forget, redact
from torchx.util.secrets import learn_environment

VALUE = "t0p-s3cret"


@pytest.fixture(autouse=True)
def nothing_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    forget()
    yield
    forget()


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [("HF_TOKEN", VALUE, MASK), ("HF_TOKEN", "/run/agent-token", "/run/agent-token"), ("COLOUR", VALUE, VALUE)],
)
def test_credentials_of_this_process(monkeypatch: pytest.MonkeyPatch, name: str, value: str, shown: str) -> None:
    """Variables that are named like one are masked, but not paths, such as that of an agent's socket."""
    monkeypatch.setenv(name, value)
    learn_environment()
    assert redact(value) == shown


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        (Secret("env:HF_TOKEN"), MASK),
        (MASK, MASK),
        (f"x {MASK}", VALUE),
        (Secret("file:token"), MASK),
        (Secret(f"cmd:echo {VALUE}"), VALUE),
        ("plain", VALUE),
    ],
)
def test_secrets_of_a_recorded_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: str, shown: str) -> None:
    """References to variables and files, and masked variables that are here; no command is run for that."""
    monkeypatch.setenv("HF_TOKEN", VALUE)
    (tmp_path / "token").write_text(VALUE)
    (tmp_path / "token").chmod(0o600)
    learn_roles([Role("r", "", env={"HF_TOKEN": recorded})])
    assert redact(VALUE) == shown


def test_a_secret_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are learned nevertheless."""
    monkeypatch.setenv("HF_TOKEN", VALUE)
    learn_roles([Role("r", "", env={"A": Secret("env:NOT_SET"), "HF_TOKEN": MASK})])
    assert redact(VALUE) == MASK


@pytest.mark.parametrize(
    ("config", "mail"),
    [
        ("mail = me@x", {"to": "me@x", "from": "me@x", "server": "localhost", "user": "", "password": ""}),
        (
            "mail = me@x\nmail_from = jobs@x\nsmtp = mx:25\nsmtp_user = me\nsmtp_password = env:HF_TOKEN",
            {"to": "me@x", "from": "jobs@x", "server": "mx:25", "user": "me", "password": VALUE},
        ),
    ],
)
def test_settings_of_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, mail: dict[str, str]) -> None:
    """Only the address is required; a password is looked up if there is a user, and masked from then on."""
    monkeypatch.setenv("HF_TOKEN", VALUE)
    (tmp_path / ".torchxconfig").write_text(f"[notify]\n{config}\n")
    assert settings_of("mail") == mail
    assert redact(VALUE) == (MASK if mail["password"] else VALUE)


def test_settings_of_a_program(tmp_path: Path) -> None:
    """It is run in this folder; a folder, or a file that cannot be executed, is rejected."""
    program = tmp_path / "tell"
    program.write_text("#!/bin/sh\n")
    for wrong in (f"exec:{program}", f"exec:{tmp_path}"):
        with pytest.raises(ConfigError, match="is not a program"):
            settings_of(wrong)
    program.chmod(0o700)
    assert settings_of("exec:./tell") == {"path": str(program), "cwd": str(tmp_path)}
    assert settings_of("desktop") == {}
