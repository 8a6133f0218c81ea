"""Run options of ``local_docker``."""

from __future__ import annotations

from torchx.errors import ConfigError
from torchx.schedulers.api import StructuredOpts
from torchx.schedulers.docker import gangs
from torchx.util.records import dataclass


@dataclass
class Opts(StructuredOpts):
    """Run options of ``local_docker``."""

    copy_env: list[str] | None = None
    """environment variables to copy from this shell into the containers; `*` and `?` match, as in `NCCL_*`"""

    env: dict[str, str] | None = None
    """environment variables for all containers, such as `A:1,B:2`; those of a role go before them"""

    privileged: bool = False
    """give the containers all rights and devices of the engine's machine"""

    cancel_grace_s: int = gangs.CANCEL_GRACE_S
    """seconds between SIGTERM and SIGKILL when containers of a job are ended"""

    def check(self) -> None:
        """Refuses values that make no sense.

        Raises:
            ConfigError: which option, and why.
        """
        if self.cancel_grace_s < 0:
            raise ConfigError(
                f"`cancel_grace_s` is `{self.cancel_grace_s}`", hint="it is a number of seconds: 0 or more"
            )
