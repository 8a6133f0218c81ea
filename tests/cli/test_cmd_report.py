"""`torchx report`: one file for a support ticket, without secrets, whose contents are listed first."""

from __future__ import annotations

import json
import stat
import sys
import tarfile
from pathlib import Path

import pytest

from .conftest import Call


def test_a_report(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret-of-the-test")
    torchx("run", "--wait", "--secret", "MY_TOKEN", "utils.sh", "echo $MY_TOKEN; echo why >&2; exit 3")
    listed = torchx("report", "@last", "--dryrun")
    assert listed.code == 0 and "status.json" in listed.err and not (project / "report.tgz").exists()
    outcome = torchx("report", "@last", "-o", "r.tgz")
    assert (outcome.code, outcome.out) == (0, "r.tgz\n")
    assert stat.S_IMODE((project / "r.tgz").stat().st_mode) == 0o600
    with tarfile.open(project / "r.tgz") as tar:
        found = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}
    assert all(name.removeprefix("report/") in outcome.err for name in found)
    assert "s3cret-of-the-test" not in "".join(found.values())
    assert json.loads(found["report/status.json"])["state"] == "FAILED"
    assert "why" in found["report/log.txt"] and "********" in found["report/log.txt"]
    assert "request to local_cwd" in found["report/request.txt"]
    assert [row["state"] for row in json.loads(found["report/events.json"])][-1] == "FAILED"
    assert (
        f"Python {sys.version.split()[0]}\n" in found["report/versions.txt"]
        and "\npytest " in found["report/versions.txt"]
    )
    again = torchx("report", "@last", "-o", "r.tgz")
    assert (again.code, again.hint()) == (2, "remove it, or name another file with -o")


SHAPES = {
    "url": "https://me:passw0rd@host/x",
    "token": "hf_abcdefghijklmnopqrstuvwxyz",
    "key": "sk-plainvalue1234567890",
}


def test_a_report_is_for_others(torchx: Call, project: Path) -> None:
    """What looks like a credential is masked in the output of the program too, and documents stay documents."""
    torchx(
        "run",
        "--wait",
        "--env",
        f"MY_API_KEY={SHAPES['key']}",
        "utils.sh",
        f"echo $MY_API_KEY; echo '{json.dumps(SHAPES)}'",
    )
    assert torchx("report", "@last").code == 0
    with tarfile.open(project / "report.tgz") as tar:
        found = {name: tar.extractfile(name).read().decode() for name in tar.getnames()}
    shown = "".join(found.values())
    assert [word for word in ("passw0rd", "abcdefgh", "plainvalue") if word in shown] == []
    for document in ("status", "describe", "why", "plugins", "events"):
        json.loads(found[f"report/{document}.json"])


@pytest.mark.parametrize("to", ["none/r.tgz", "setup.cfg/r.tgz"])
def test_no_folder_to_write_to(torchx: Call, project: Path, to: str) -> None:
    """It is said before anything is gathered."""
    (project / "setup.cfg").touch()
    torchx("run", "--wait", "utils.echo")
    outcome = torchx("report", "@last", "-o", to)
    assert (outcome.code, outcome.hint()) == (2, "name another file with -o")
    assert "status.json" not in outcome.err


def test_a_report_that_could_not_be_written(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of it."""
    torchx("run", "--wait", "utils.echo")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "addfile", full)
    assert torchx("report", "@last").code == 74
    assert not (project / "report.tgz").exists()
