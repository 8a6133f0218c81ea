"""GPU-hours and the report of a job on this machine."""

from __future__ import annotations

from pathlib import Path

from tests.backends import used
from tests.backends.shell import Shell


def test_what_it_costs(shell: Shell, tmp_path: Path) -> None:
    used.told(shell, tmp_path, ["-s", "local_cwd"])
