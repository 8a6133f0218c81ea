"""Podman's service as a Docker engine: installed by apt if need be, with a state folder of its own, as root."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tests.backends import leftovers
from tests.backends.docker import engine

# crun refuses machines with both versions of cgroups, and not every root may raise limits.
_CONFIG = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
events_logger = "file"
cgroup_manager = "cgroupfs"
network_backend = "netavark"
"""
# Of every root user's Podman, whatever its other folders are.
_NAMES = Path("/run/containers/networks/aardvark-dns")


class Podman:
    """``podman system service`` on a socket of its own.

    Args:
        state: its folder.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """What belongs in ``DOCKER_HOST``."""
        return f"unix://{self.state}/p.sock"

    def command(self, *words: str) -> list[str]:
        return ["podman", "--root", f"{self.state}/root", "--runroot", f"{self.state}/run", *words]

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            Unavailable: it cannot be had.
        """
        for program, package in (("podman", "podman"), ("runc", "runc"), ("docker", "docker.io")):
            engine.install(program, package)
        if not Path("/usr/lib/podman/netavark").exists():
            engine.run("apt-get", "-qq", "-y", "install", "--no-install-recommends", "netavark", "aardvark-dns")
        self._forget_networks_that_are_gone()
        (self.state / "containers.conf").write_text(_CONFIG)
        log = self.state / "log"
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command("system", "service", "-t", "0", self.host),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**engine.environment(), "CONTAINERS_CONF": f"{self.state}/containers.conf"},
            )
        engine.until(
            lambda: engine.run("docker", "-H", self.host, "version", "--format", "{{.Server.Version}}", check=False),
            "Podman does not answer",
            log=log,
            process=self.process,
        )

    def _forget_networks_that_are_gone(self) -> None:
        """What a killed run has left on record would keep the server of names alive for good, after our last container."""
        known = engine.run(*self.command("network", "ls", "--format", "{{.Name}}")).split()
        for record in _NAMES.glob("job-*"):
            if record.name not in known:
                record.unlink()

    def remove(self) -> None:
        """End it and remove all that it holds."""
        engine.run(*self.command("rm", "-f", "-a", "-v", "-t", "0"), check=False)
        engine.run(*self.command("network", "prune", "-f"), check=False)
        with contextlib.suppress(ProcessLookupError):
            if self.process is not None:
                os.kill(self.process.pid, signal.SIGTERM)
                self.process.wait(120)
        for left in leftovers.living(f"{self.state}/root"):  # it keeps a process for five minutes after each exec
            with contextlib.suppress(ProcessLookupError):
                os.kill(left.pid, signal.SIGKILL)
        engine.unmount(self.state)
