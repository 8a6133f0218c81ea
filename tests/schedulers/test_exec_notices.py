"""Notices by a program of the user."""

from __future__ import annotations

from torchx.schedulers.notices import Notice, deliver


def test_a_program_may_print_any_bytes(tmp_path) -> None:
    """A program whose output is not UTF-8 is judged by its exit code."""
    hook = tmp_path / "hook.sh"
    settings = {"path": str(hook), "cwd": str(tmp_path)}
    notice = Notice("end", "x://s/a", "train", "FAILED", "state: FAILED\n")
    for code, said in ((0, ""), (3, "exit code 3: caf\ufffd")):
        hook.write_text(f"#!/bin/sh\nprintf 'caf\\351\\n'\nprintf 'caf\\351\\n' >&2\nexit {code}\n")
        hook.chmod(0o755)
        assert deliver("exec", settings, notice) == said
