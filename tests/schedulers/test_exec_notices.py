"""Notices by a program of the user."""

from __future__ import annotations

import pytest

from torchx.schedulers.kit import notices
from torchx.schedulers.kit.notices import Notice, deliver


def test_a_program_may_print_any_bytes(tmp_path) -> None:
    """A program whose output is not UTF-8 is judged by its exit code."""
    hook = tmp_path / "hook.sh"
    settings = {"path": str(hook), "cwd": str(tmp_path)}
    notice = Notice("end", "x://s/a", "train", "FAILED", "state: FAILED\n")
    for code, said in ((0, ""), (3, "exit code 3: caf\ufffd")):
        hook.write_text(f"#!/bin/sh\nprintf 'caf\\351\\n'\nprintf 'caf\\351\\n' >&2\nexit {code}\n")
        hook.chmod(0o755)
        assert deliver("exec", settings, notice) == said


def test_a_program_may_leave_another_one_behind(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it started in the background is not waited for, even if that could still print something."""
    monkeypatch.setattr(notices, "_HOOK_S", 2.0)
    hook = tmp_path / "hook.sh"
    hook.write_text("#!/bin/sh\nsleep 5 &\nexit 0\n")
    hook.chmod(0o755)
    notice = Notice("end", "x://s/a", "train", "FAILED", "state: FAILED\n")
    assert deliver("exec", {"path": str(hook), "cwd": str(tmp_path)}, notice) == ""
