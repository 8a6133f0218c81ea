"""Where the values of secrets come from, and how it is said that there is none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from torchx.errors import ConfigError
from torchx.schedulers.kit.secrets import look_up, revealed, sources, split
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
