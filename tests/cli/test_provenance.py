"""`describe` shows which image and which code a job really ran; a dry run from the command line leaves no folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchx.specs.images import report_image_digest
from torchx.testing import site

from .conftest import Call
from .test_json import check

DIGEST = f"reg/echo@sha256:{'b' * 64}"

FOLDERS = """
    from torchx.schedulers.local_scheduler import CWDImageProvider, LocalScheduler
    from torchx.workspace.dir_workspace import DirWorkspaceMixin

    class Lab(DirWorkspaceMixin, LocalScheduler):
        pass

    def create(session_name, **kwargs):
        return Lab(session_name, CWDImageProvider)
"""


def test_the_digest_that_a_scheduler_reports(torchx: Call, project: Path, paper: Any, monkeypatch: Any) -> None:
    """The page shows it beside the image, the document by role."""
    schedule = paper.Paper.schedule

    def reporting(self: Any, info: Any) -> str:
        report_image_digest(info, "echo", DIGEST)
        return str(schedule(self, info))

    monkeypatch.setattr(paper.Paper, "schedule", reporting)
    assert torchx("run", "-s", "paper", "utils.echo", "--image", "reg/echo:1").code == 0
    [line] = [line for line in torchx("describe", "@last").out.splitlines() if "image digest:" in line]
    assert line.split() == ["image", "digest:", DIGEST]
    document = check("describe", torchx("describe", "@last", "--json").out)
    assert document["image_digests"] == {"echo": DIGEST}
    assert document["workspace_hashes"] is None


def test_nothing_known_is_nothing_shown(torchx: Call, project: Path, paper: Any) -> None:
    """Without a digest there is no line for it."""
    torchx("run", "-s", "paper", "utils.echo")
    assert "digest" not in torchx("describe", "@last").out
    assert check("describe", torchx("describe", "@last", "--json").out)["image_digests"] is None


def test_a_workspace_in_a_job_folder(torchx: Call, project: Path, tmp_path: Path) -> None:
    """A dry run shows the job folder and leaves none; `describe` shows the hash of the code."""
    (project / "a,b=c.py").write_text("a")
    job_dir = tmp_path / "job"
    command = ("-s", "lab", "-cfg", f"job_dir={job_dir}", "utils.echo")
    with site(str(tmp_path / "site")) as packages:
        packages.install("lab", entry_points="[torchx.schedulers]\nlab = lab:create\n", files={"lab.py": FOLDERS})
        dry = json.loads(torchx("run", "--dryrun", "--json", *command).out)
        assert dry["app"]["roles"][0]["image"] == str(job_dir)
        assert not job_dir.exists()
        assert torchx("run", "--wait", *command).code == 0
        assert (job_dir / "a,b=c.py").read_text() == "a"
        document = check("describe", torchx("describe", "@last", "--json").out)
        page = torchx("describe", "@last").out
    assert document["workspace_hashes"]["echo"] in page
    assert "workspace hash:" in page


def test_the_current_directory_may_have_any_name(torchx: Call, tmp_path: Path, monkeypatch: Any) -> None:
    """Commas and equals signs in its name are not parsed as several projects."""
    odd = tmp_path / "a,b=c"
    odd.mkdir()
    (odd / "x.py").write_text("x")
    monkeypatch.chdir(odd)
    with site(str(tmp_path / "site")) as packages:
        packages.install("lab", entry_points="[torchx.schedulers]\nlab = lab:create\n", files={"lab.py": FOLDERS})
        command = ("run", "--wait", "-s", "lab", "-cfg", f"job_dir={tmp_path}/job", "utils.echo")
        assert torchx(*command).code == 0
    assert (tmp_path / "job" / "x.py").exists()
