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
