"""Where the commands of one cluster run and its files are."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass

    from torchx.schedulers.kit.commands import CommandRunner
    from torchx.schedulers.kit.files import Files
else:
    from torchx.util.records import dataclass


@dataclass(frozen=True)
class Site:
    """One cluster, from here.

    Attributes:
        name: empty for this machine; else what messages call it, for example ``me@login``.
    """

    commands: CommandRunner
    files: Files
    name: str = ""
