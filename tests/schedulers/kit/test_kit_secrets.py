"""Where the values of secrets come from, and how it is said that there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchx.errors import ConfigError, NotSupportedError
from torchx.schedulers.kit import secrets
from torchx.schedulers.kit.secrets import check, is_value, look_up, revealed, sources, split
from torchx.specs import Secret
from torchx.util.redaction import redact


def test_each_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A variable, what a command prints and what a file holds; one line end at the end is not part of it."""
    monkeypatch.setenv("MINE", "v1")
    (tmp_path / "key").write_text("v3\nv4\n")
    assert look_up("X", Secret("MINE")) == look_up("X", Secret("env:MINE")) == "v1"
    assert look_up("X", Secret("cmd:echo v2; echo not me >&2")) == "v2"
    assert look_up("X", Secret(f"file:{tmp_path}/key")) == "v3\nv4"


def test_a_file_at_home() -> None:
    """`~` is the home folder."""
    Path(os.environ["HOME"], "key").write_text("v")
    assert look_up("X", Secret("file:~/key")) == "v"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("NOT_SET", "secret `X`: the variable `NOT_SET` is not set here"),
        ("cmd:echo s3same; exit 3", "secret `X`: `echo s3same; exit 3` failed with exit code 3"),
        ("cmd:true", "secret `X`: what `cmd:true` gives is empty"),
        ("cmd:printf 'a\\0b'", "is not text"),
        ("file:{tmp}/none", "secret `X`: `{tmp}/none` cannot be read: No such file or directory"),
        ("file:{tmp}", "secret `X`: `{tmp}` is not a file"),
        ("file:{tmp}/fifo", "secret `X`: `{tmp}/fifo` is not a file"),
        ("file:{tmp}/big", "is longer than 128 KiB"),
    ],
    ids=["variable", "command", "empty", "NUL", "no file", "folder", "FIFO", "too long"],
)
def test_there_is_none(reference: str, said: str, tmp_path: Path) -> None:
    """One line says why; what a command printed is not in it."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "big").write_text("x" * ((128 << 10) + 1))
    with pytest.raises(ConfigError) as e:
        look_up("X", Secret(reference.format(tmp=tmp_path)))
    assert said.format(tmp=tmp_path) in str(e.value)
    assert "\n" not in str(e.value)


def test_as_long_as_linux_passes_on(tmp_path: Path) -> None:
    """A program can be started with the longest value that is accepted, and not with a longer one."""
    for name, character in (("X", "y"), ("NAME", "é")):
        most = ((128 << 10) - len(f"{name}=") - 1) // len(character.encode())
        (tmp_path / "long").write_text(character * most)
        value = look_up(name, Secret(f"file:{tmp_path}/long"))
        subprocess.run(["/bin/true"], env={name: value}, check=True)
        (tmp_path / "long").write_text(character * (most + 1))
        with pytest.raises(ConfigError, match="longer than 128 KiB"):
            look_up(name, Secret(f"file:{tmp_path}/long"))
        with pytest.raises(OSError, match="Argument list too long"):
            subprocess.run(["/bin/true"], env={name: value + character}, check=True)


def test_a_command_runs_once(tmp_path: Path) -> None:
    """Several roles and replicas have the value of one look-up, and what is printed later does not show it."""
    secret = Secret(f"cmd:echo x >> {tmp_path}/runs; echo sesame-open")
    known: dict[str, str] = {}
    for _ in range(3):
        assert revealed({"K": secret, "A": "b"}, known) == {"K": "sesame-open", "A": "b"}
    assert (tmp_path / "runs").read_text() == "x\n"
    assert redact("it is sesame-open.") == "it is ********."


def test_split_and_sources() -> None:
    """Secrets and names of credentials are apart from the rest; an empty value is no secret."""
    env = {"A": "1", "HF_TOKEN": "t", "K": Secret("env:MY_K"), "W": Secret("cmd:x"), "API_KEY": ""}
    assert split(env) == ({"A": "1", "API_KEY": ""}, {"HF_TOKEN": "t", "K": "env:MY_K", "W": "cmd:x"})
    assert sources(env) == ["HF_TOKEN", "K", "W", "MY_K"]


@pytest.mark.parametrize(
    ("secret", "taken", "hint"),
    [
        ("env:A", ("value",), None),
        ("A", ("value",), None),
        ("cmd:x", ("value", "k8s"), None),
        ("k8s:n/k", ("k8s",), None),
        ("aws-sm:arn:a", ("aws-sm",), None),
        ("k8s:n/k", ("value",), "it takes `env:`, `cmd:`, `file:`"),
        ("aws-sm:arn:a", ("value", "k8s"), "it takes `env:`, `cmd:`, `file:`, `k8s:NAME/KEY`"),
        ("env:A", ("k8s",), "it takes `k8s:NAME/KEY`"),
        ("file:A", ("aws-sm",), "and name it by its ARN: `K=aws-sm:ARN`"),
        ("env:A", (), "let the program fetch it itself"),
    ],
)
def test_what_a_scheduler_can_take(secret: str, taken: tuple[str, ...], hint: str | None) -> None:
    """Values that are known here, and references that it resolves itself; plain variables are no matter of it."""
    env = {"PLAIN": "1", "HF_TOKEN": "t", "K": Secret(secret)}
    if hint is None:
        check(env, taken, "x")
        return
    with pytest.raises(NotSupportedError, match=f"`x` cannot take secret `K` from `{secret}`") as e:
        check(env, taken, "x")
    assert hint in (e.value.hint or "")


def test_plain_values_are_passed_on_and_only_secrets_are_masked() -> None:
    """A value with the name of a secret is masked in what is printed later; an ordinary one is not."""
    known: dict[str, str] = {}
    env = {"API_TOKEN": "open-says-me", "PHASE": "ordinary-word", "EMPTY_TOKEN": ""}
    assert revealed(env, known) == env and known == {}
    assert redact("open-says-me is no ordinary-word") == "******** is no ordinary-word"


def test_which_secrets_are_known_here() -> None:
    """All but those that the scheduler resolves."""
    known = {text: is_value(Secret(text)) for text in ("A", "env:A", "cmd:a", "file:a", "k8s:a/b", "aws-sm:arn:a")}
    assert [text for text, here in known.items() if not here] == ["k8s:a/b", "aws-sm:arn:a"]
    assert is_value("plain")


def test_a_command_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, with its name, and gets no input to wait for."""
    monkeypatch.setattr(secrets, "_COMMAND_S", 0.02)
    with pytest.raises(ConfigError, match=r"secret `X`: `exec sleep 60` did not end within 0\.02 s"):
        look_up("X", Secret("cmd:exec sleep 60"))
    monkeypatch.undo()
    assert look_up("X", Secret("cmd:cat; echo v")) == "v"


def test_only_one_line_end_is_no_part_of_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other white space may belong to it; a line end alone is no value."""
    monkeypatch.setenv("MINE", " v \n\n")
    assert look_up("X", Secret("MINE")) == " v \n"
    monkeypatch.setenv("MINE", "\n")
    with pytest.raises(ConfigError, match="gives is empty"):
        look_up("X", Secret("MINE"))
