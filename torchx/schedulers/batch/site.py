"""Where the commands of a cluster run and its files are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.schedulers.inside import Tty
    from torchx.schedulers.inside.spawned import SpawnedProcess
    from torchx.schedulers.kit.commands import CommandRunner
    from torchx.schedulers.kit.files import Files


@dataclass(frozen=True)
class Site:
    """One cluster, by the name that messages show, such as ``me@login``; empty for this machine."""

    commands: CommandRunner
    files: Files
    name: str = ""

    def spawn(self, argv: list[str], tty: Tty | None) -> SpawnedProcess:
        """Starts a command and connects its streams. Raises BackendError if the login node cannot be reached."""
        from torchx.schedulers.inside.spawned import SpawnedProcess

        return SpawnedProcess(argv, tty=tty)
