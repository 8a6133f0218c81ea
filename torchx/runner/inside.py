"""Processes inside replicas: started by whoever knows how, and run to their end."""

from __future__ import annotations

from torchx.errors import NotSupportedError
from torchx.schedulers.inside.run import Ran, run
from torchx.schedulers.kit.abilities import Enters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torchx.schedulers.api import Scheduler
    from torchx.schedulers.inside import InsideProcess, Tty

__all__ = ["Ran", "enter", "run"]


def enter(
    backend: Scheduler[Any], app_id: str, replica: tuple[str, int], argv: Sequence[str], tty: Tty | None
) -> InsideProcess:
    """Starts ``argv`` inside a replica.

    Raises:
        NotSupportedError: this scheduler cannot do that.
    """
    if not isinstance(backend, Enters):
        raise NotSupportedError(
            f"scheduler `{backend.backend}` cannot run a command inside a replica",
            hint="`torchx status` says on which host it runs",
        )
    return backend.enter(app_id, *replica, list(argv), tty)
