"""A workspace must not contain a home directory, credentials, or torchx's own records."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from torchx.errors import SpecError
from torchx.workspace import private
from torchx.workspace.content import entries

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----\n"


def paths(folder: Path) -> list[str]:
    return [entry.path for entry in entries(str(folder))]


def test_torchx_home_is_never_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records and logs of all runs are omitted, wherever they are; so no job includes all earlier ones."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "sub" / "records"))
    (tmp_path / "sub" / "records" / "local").mkdir(parents=True)
    (tmp_path / "sub" / "records" / "runs.db").write_text("x")
    (tmp_path / "sub" / "train.py").write_text("x")
    assert paths(tmp_path) == ["sub", "sub/train.py"]


def test_a_folder_of_the_same_name_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the home itself is omitted."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "records"))
    (tmp_path / "sub" / "records").mkdir(parents=True)
    assert paths(tmp_path) == ["sub", "sub/records"]


def test_a_home_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another path of the home is rejected, too; the hint has a solution, and the flag that allows it."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    for path in (home, tmp_path / "link"):
        with pytest.raises(SpecError, match="is your home directory") as e:
            entries(str(path))
        assert "--allow-private-workspace" in (e.value.hint or "")
    assert paths(tmp_path) == ["home", "link"]  # a folder above it is not it
    monkeypatch.setenv("TORCHX_ALLOW_PRIVATE_WORKSPACE", "1")
    assert entries(str(home)) == []


def test_the_root_of_the_machine_is_refused() -> None:
    """The root is rejected before anything is read."""
    with pytest.raises(SpecError, match="the root of this machine"):
        entries("/")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".ssh/config", ""),
        ("a/.aws/credentials", ""),
        (".netrc", ""),
        ("deep/er/id_ed25519", KEY),
        ("certs/server.pem", KEY),
        ("server.key", KEY),
    ],
    ids=lambda v: v.partition("\n")[0],
)
def test_credentials_are_refused_by_name(
    name: str, content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file; an ignore rule, or the flag, allows the rest."""
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    first = next(part for part in (*path.relative_to(tmp_path).parts,) if part.startswith(".") or part == path.name)
    with pytest.raises(SpecError, match=first.replace(".", r"\.")):
        entries(str(tmp_path))
    monkeypatch.setenv("TORCHX_ALLOW_PRIVATE_WORKSPACE", "1")
    assert name in paths(tmp_path)
    monkeypatch.delenv("TORCHX_ALLOW_PRIVATE_WORKSPACE")
    (tmp_path / ".torchxignore").write_text(f"**/{first}\n")
    assert name not in paths(tmp_path)


def test_public_keys_and_certificates_are_no_secret(tmp_path: Path) -> None:
    """A file that only looks like a key, or a public key, is included."""
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nMII\n")
    (tmp_path / "id_rsa.pub").write_text("ssh-rsa AAAA")
    (tmp_path / "translation.key").write_text("hello = bonjour")
    assert paths(tmp_path) == ["ca.pem", "id_rsa.pub", "translation.key"]


def test_a_large_workspace_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Above a limit, a warning has the number of files and the size, and how to exclude some; below it there is none."""
    monkeypatch.setattr(private, "_MANY_FILES", 2)
    for name in ("a", "b"):
        (tmp_path / name).write_text("x")
    with caplog.at_level(logging.WARNING):
        entries(str(tmp_path))
        assert caplog.messages == []
        (tmp_path / "c").write_text("x")
        entries(str(tmp_path))
    assert len(caplog.messages) == 1
    assert "has 3 files, 0.0 GB" in caplog.messages[0]
    assert os.fspath(tmp_path) in caplog.messages[0]
