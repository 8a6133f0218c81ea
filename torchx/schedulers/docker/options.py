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
    """environment variables for all containers, such as `A:1,B:2`; those of a role take precedence"""

    privileged: bool = False
    """run the containers in privileged mode, with all devices of the engine's machine"""

    keep_entrypoint: bool = False
    """run the image's own ENTRYPOINT, with the role's command as its arguments"""

    cancel_grace_s: int = gangs.CANCEL_GRACE_S
    """seconds between SIGTERM and SIGKILL when containers of a job are stopped"""

    def check(self) -> None:
        """Raise ConfigError for an invalid value."""
        if self.cancel_grace_s < 0:
            raise ConfigError(f"`cancel_grace_s` is `{self.cancel_grace_s}`", hint="set it to 0 seconds or more")
