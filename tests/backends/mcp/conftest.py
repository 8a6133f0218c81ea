"""The MCP server as agents use it: the official inspector, conformance suite and client, against real jobs."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from tests.backends.compat.test_dropin_installed import slurm_cluster  # noqa: F401  # a fixture
from tests.backends.docker.engine import BACKENDS

_PACKAGES = ("@modelcontextprotocol/inspector@2.12.0", "@modelcontextprotocol/conformance@0.1.16", "node@22")


@pytest.fixture(scope="session")
def npm() -> Path:
    """The folder with the official programs, which need Node.js 22."""
    folder = BACKENDS / "mcp-npm"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "stamp"
        if not stamp.exists() or stamp.read_text() != " ".join(_PACKAGES):
            argv = [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--foreground-scripts",
                "--prefix",
                str(folder),
                *_PACKAGES,
            ]
            try:
                done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=500, check=False)
            except FileNotFoundError:
                pytest.skip("npm is not installed")
            if done.returncode:
                pytest.skip(f"npm cannot install them: {done.stderr[-300:]}")
            _place_node(folder)
            stamp.write_text(" ".join(_PACKAGES))
    return folder / "node_modules" / ".bin"


def _place_node(folder: Path) -> None:
    """Run the script by which the package `node` fetches its program: newer npm runs none unasked."""
    package = folder / "node_modules" / "node"
    script = package / "installArchSpecificPackage.js"
    if not (package / "bin" / "node").exists() and script.exists():
        subprocess.run(["node", str(script)], cwd=package, capture_output=True, timeout=500, check=True)


@pytest.fixture
def agent_env(tmp_path: Path) -> dict[str, str]:
    """The environment of a client, with a home of its own; the inspector passes on HOME and PATH alone."""
    return {**{k: v for k, v in os.environ.items() if k != "TORCHX_HOME"}, "HOME": str(tmp_path)}
