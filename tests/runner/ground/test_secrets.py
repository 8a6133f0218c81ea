"""Secrets in the Runner: `[secrets]`, the kinds that a backend supports, and when values are looked up."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.runner.memory_backend import MemoryScheduler, backend, echo_app
from torchx.errors import ConfigError, NotSupportedError
from torchx.runs import default_registry
from torchx.schedulers.kit.caps import Capabilities
from torchx.specs import Secret


@pytest.fixture(autouse=True)
def takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The in-memory cluster supports values, and references of Kubernetes."""
    monkeypatch.setattr(MemoryScheduler, "capabilities", Capabilities(secrets=("value", "k8s")))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("", "env:HF_TOKEN"),
        ("[secrets]\nHF_TOKEN = cmd:pass show hf\n", "cmd:pass show hf"),
        ("[secrets]\nHF_TOKEN =\n", "env:HF_TOKEN"),
    ],
    ids=["nothing said", "a command", "empty"],
)
def test_a_name_means_what_the_config_says(runner, section, expected):
    """`[secrets]` has its reference; by default it is the variable of this name."""
    Path(".torchxconfig").write_text(section)
    app = echo_app(env={"HF_TOKEN": Secret("HF_TOKEN"), "B": Secret("env:HF_TOKEN")})
    env = runner.dryrun(app, "memory")._app.roles[0].env
    assert (env["HF_TOKEN"], type(env["HF_TOKEN"])) == (expected, Secret)
    assert env["B"] == "env:HF_TOKEN"
    assert app.roles[0].env["HF_TOKEN"] == "HF_TOKEN"  # the caller's own is as it was


@pytest.mark.parametrize("text", ["hunter2-hunter2", "OTHER", "vault:x"])
def test_the_config_has_to_give_a_reference(runner, text):
    """A plain value, or a typo, is an error with file and line, without the value."""
    Path(".torchxconfig").write_text(f"[secrets]\nHF_TOKEN = {text}\n")
    with pytest.raises(ConfigError, match=r"\.torchxconfig:2: `HF_TOKEN`: ") as e:
        runner.dryrun(echo_app(env={"HF_TOKEN": Secret("HF_TOKEN")}), "memory")
    assert text not in f"{e.value} {e.value.hint}"


@pytest.mark.parametrize(
    ("taken", "reference", "hint"),
    [
        (("value",), "k8s:a/b", "it takes `env:`, `cmd:`, `file:`"),
        (("aws-sm",), "env:X", "store it (`aws secretsmanager create-secret`), and name it by its ARN: `K=aws-sm:ARN`"),
        ((), "cmd:x", "let the program fetch it itself"),
    ],
)
def test_what_a_backend_cannot_take(runner, monkeypatch, taken, reference, hint):
    """It is rejected at the dry run, with an alternative."""
    monkeypatch.setattr(MemoryScheduler, "capabilities", Capabilities(secrets=taken))
    with pytest.raises(NotSupportedError, match=f"`memory` cannot take secret `K` from `{reference}`") as e:
        runner.dryrun(echo_app(env={"K": Secret(reference)}), "memory")
    assert e.value.hint == hint


def test_looked_up_at_the_submission_alone(runner, jobs, tmp_path):
    """A dry run runs no command; the submission does, once, and the record has the reference."""
    (tmp_path / "key").write_text("sesame-open")
    app = echo_app(env={"K": Secret(f"cmd:echo x >>{tmp_path}/runs; cat {tmp_path}/key")})
    info = runner.dryrun(app, "memory")
    assert not (tmp_path / "runs").exists()
    handle = runner.schedule(info)
    assert (tmp_path / "runs").read_text() == "x\n"
    assert info.submission.secrets == {app.roles[0].env["K"]: "sesame-open"}
    assert default_registry().get(handle).appdef().roles[0].env["K"] == app.roles[0].env["K"]
    assert "sesame-open" not in str(default_registry().get(handle))


def test_a_missing_value_leaves_nothing(runner, jobs):
    """Nothing is submitted, and nothing is on record."""
    with pytest.raises(ConfigError, match="the variable `NOT_SET` is not set here"):
        runner.run(echo_app(env={"K": Secret("NOT_SET"), "REMOTE": Secret("k8s:a/b")}), "memory")
    assert jobs == {}
    assert runner.runs() == []


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        (("value",), "handed over as a secret, by the name: `HF_TOKEN`"),
        (("aws-sm",), "anybody who can view the job can read: `HF_TOKEN`; `--secret NAME=aws-sm:ARN` would be safer"),
        ((), "anybody who can view the job can read: `HF_TOKEN`"),
    ],
)
def test_a_note_for_credentials_in_the_environment(runner, monkeypatch, caplog, taken, said):
    """A warning about plain variables that are named like credentials."""
    monkeypatch.setattr(MemoryScheduler, "capabilities", Capabilities(secrets=taken))
    caplog.set_level(logging.INFO)
    runner.run(echo_app(env={"HF_TOKEN": "hunter2-hunter2", "A": "b"}), "memory")
    assert [r.getMessage() for r in caplog.records if r.name == "torchx"] == [said]


def test_a_secret_is_no_argument(runner):
    """Every list of processes would show it."""
    with pytest.raises(ValueError, match="has a Secret among its arguments"):
        runner.dryrun(echo_app(args=[Secret("X")]), "memory")
    assert backend(runner).calls == []
