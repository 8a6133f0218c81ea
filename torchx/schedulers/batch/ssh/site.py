"""The run options that select a cluster behind a login node, and the site for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.schedulers.batch.site import Site
from torchx.specs.api import CfgVal, runopts

if TYPE_CHECKING:
    from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
    from torchx.schedulers.inside import Tty
    from torchx.schedulers.inside.spawned import SpawnedProcess

SITE_OPTS = runopts()
SITE_OPTS.add(
    "ssh",
    type_=str,
    help="login node to run the scheduler's commands on: `host`, `user@host` or a `Host` of ~/.ssh/config;"
    " without it they run on this machine",
)
SITE_OPTS.add(
    "ssh_dir",
    type_=str,
    help="with `ssh`: folder for jobs and their logs, on a file system that login node and compute nodes share;"
    " $TORCHX_HOME there, or else ~/.torchx, when it is not given",
)


class LoginNode(Site):
    """A cluster behind a login node."""

    commands: SSHCommandRunner

    def spawn(self, argv: list[str], tty: Tty | None) -> SpawnedProcess:
        from torchx.schedulers.batch.ssh.inside import RemoteProcess

        return RemoteProcess(self.commands, argv, tty)


def site_of(cfg: Mapping[str, CfgVal]) -> Site:
    """The site for ``cfg["ssh"]``, not connected yet. Raises ConfigError if that is not a valid host.

    >>> site_of({"ssh": "me@login"}).name
    'me@login'
    """
    from torchx.schedulers.batch.ssh.remote_files import RemoteFiles
    from torchx.schedulers.batch.ssh.runner import SSHCommandRunner

    target = str(cfg["ssh"])
    runner = SSHCommandRunner(target, str(cfg.get("ssh_dir") or ""))
    return LoginNode(runner, RemoteFiles(runner), target)
