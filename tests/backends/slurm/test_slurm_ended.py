"""Files of jobs that have ended: from the folder in which they ran, and from that of their logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.errors import NotFoundError
from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role
from torchx.specs.wishes.fetch import FETCH


def test_files_of_a_job_that_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its results are fetched; a file that is nowhere is an error that says where it was looked for."""
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.chdir(code)
    role = Role("r", "", entrypoint="sh", args=["-c", "mkdir -p runs; echo 3 >runs/x"], resource=Resource(1, 0, 50))
    with get_runner() as runner:
        app = AppDef("fetch", [role], metadata={FETCH: f"runs/={tmp_path}/out"})
        handle = runner.run(app, "slurm")
        runner.wait(handle, 0.2)
        assert runner.fetch(handle)["runs/"].files == 1
        assert (tmp_path / "out" / "x").read_text() == "3\n"
        assert runner.fetch(handle)["runs/"].skipped == 1
        runner.copy(handle, "stdout.log", f"{tmp_path}/log")
        assert (tmp_path / "log").exists()
        with pytest.raises(NotFoundError, match="no `nope` where its files are") as e:
            runner.copy(handle, "nope", str(tmp_path))
        assert str(code) in str(e.value)
