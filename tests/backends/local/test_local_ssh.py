"""Replicas as hosts of ssh: the entries that `torchx ssh-config` prints, used by ssh, scp and rsync."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    not shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or not shutil.which("rsync"),
    reason="sshd and rsync are not installed",
)


def torchx(*argv: str) -> str:
    return subprocess.run([sys.executable, "-m", "torchx", *argv], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str], Path]]:
    """A replica's name, options for ssh, and the folder for temporary files in the replica."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    keys, temporary = tmp_path / "home/.ssh", tmp_path / "tmp"
    keys.mkdir(parents=True, mode=0o700)
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / "id_ed25519"], check=True)
    handle = torchx("run", "-d", "utils.sh", "--env", f"TMPDIR={temporary}", "--", "touch up; exec sleep 600").strip()
    while not (tmp_path / "up").exists() or json.loads(torchx("status", handle, "--json"))["state"] != "RUNNING":
        time.sleep(0.05)
    config = tmp_path / "config"
    config.write_text(torchx("ssh-config", handle))
    name = next(line.split()[1] for line in config.read_text().splitlines() if line.startswith("Host "))
    yield name, ["-F", str(config), "-i", str(keys / "id_ed25519")], temporary
    torchx("cancel", handle)
    subprocess.run([sys.executable, "-m", "torchx", "wait", handle], capture_output=True, check=False)


def test_ssh_scp_and_rsync(host: tuple[str, list[str], Path], tmp_path: Path) -> None:
    """A command with its exit code, a file each way; nothing is left in the replica."""
    name, options, temporary = host
    done = subprocess.run(["ssh", *options, name, "cat; exit 7"], input=b"\0x", capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (7, b"\0x")
    data = os.urandom(3_000_000)
    (tmp_path / "a").write_bytes(data)
    subprocess.run(["scp", "-q", *options, tmp_path / "a", f"{name}:{tmp_path}/b"], check=True, timeout=120)
    subprocess.run(["rsync", "-e", f"ssh {' '.join(options)}", f"{name}:{tmp_path}/b", tmp_path / "c"], check=True)
    assert (tmp_path / "c").read_bytes() == data
    while [*temporary.iterdir()]:
        time.sleep(0.05)


def test_another_key_does_not_open(host: tuple[str, list[str], Path], tmp_path: Path) -> None:
    """Only the keys of whoever asked for the entries do."""
    name, options, _ = host
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    options = [*options[:2], "-i", str(tmp_path / "other"), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
    done = subprocess.run(["ssh", *options, name, "true"], capture_output=True, text=True, check=False)
    assert (done.returncode, "Permission denied" in done.stderr) == (255, True)
