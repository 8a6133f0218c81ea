"""The time limit of a job, checked against what its scheduler can do and what its run options say."""

from __future__ import annotations

from torchx.errors import ConfigError, NotSupportedError
from torchx.specs.timeouts import TIMEOUT, timeout_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from torchx.config import Setting
    from torchx.schedulers.kit.caps import Capabilities
    from torchx.specs.api import AppDef

_FOR_THIS_JOB = ("-cfg", "code", "--stdin")  # and not from a config file or the environment


def check_timeout(app: AppDef, scheduler: str, caps: Capabilities, settings: Mapping[str, Setting]) -> None:
    """Refuses a limit that the scheduler cannot keep, or that is said twice.

    A limit that a config file or the environment sets as a run option gives way to that of the job.

    Raises:
        SpecError: the limit cannot be read.
        NotSupportedError: the scheduler cannot end a job after a time.
        ConfigError: a run option that was given for this job sets the limit, too.
    """
    if not timeout_s(app):
        return
    if not caps.timeout:
        raise NotSupportedError(f"`{scheduler}` cannot end a job after a time", hint="omit `--timeout`")
    found = settings.get(caps.timeout)
    if found is None or found.value is None or found.source not in _FOR_THIS_JOB:
        return
    raise ConfigError(
        f"the timeout `{app.metadata[TIMEOUT]}` and `{caps.timeout}={found.value}` both set the time limit",
        hint=f"omit one of them; on `{scheduler}` they mean the same",
    )
