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
    """search the current directory for programs before PATH"""

    auto_set_cuda_visible_devices: bool = False
    """assign GPUs to replicas: set CUDA_VISIBLE_DEVICES according to the number of GPUs that each role requests"""

    cancel_grace_s: int = 10
    """seconds between SIGTERM and SIGKILL when processes of a job are ended"""

    def check(self) -> None:
        """Rejects invalid values, with a ConfigError that names the option."""
        if self.cancel_grace_s < 0:
            raise ConfigError(
                f"`cancel_grace_s` is `{self.cancel_grace_s}`", hint="it is a number of seconds: 0 or more"
            )
