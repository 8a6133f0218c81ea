"""Run options of ``local_cwd``."""

from __future__ import annotations

from torchx.errors import ConfigError
from torchx.schedulers.api import StructuredOpts
from torchx.util.records import dataclass


@dataclass
class Opts(StructuredOpts):
    """Run options of ``local_cwd``."""

    log_dir: str | None = None
    """folder for the logs, which torchx then never removes by itself; default: below $TORCHX_HOME/local"""

    prepend_cwd: bool = False
    """look for programs in the current directory first, before those in PATH"""

    auto_set_cuda_visible_devices: bool = False
    """share the GPUs out: sets CUDA_VISIBLE_DEVICES of each replica according to the GPUs that its role asks for"""

    cancel_grace_s: int = 10
    """seconds between SIGTERM and SIGKILL when processes of a job are ended"""

    def check(self) -> None:
        """Refuses values that make no sense.

        Raises:
            ConfigError: which option, and why.
        """
        if self.cancel_grace_s < 0:
            raise ConfigError(
                f"`cancel_grace_s` is `{self.cancel_grace_s}`", hint="it is a number of seconds: 0 or more"
            )
