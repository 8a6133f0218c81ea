"""Retries by cause on SageMaker, which starts a job again after failures of its own alone (``RetryStrategy``)."""

from __future__ import annotations

from torchx.errors import ConfigError
from torchx.schedulers.aws.sagemaker.options import AWSSageMakerOpts
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.native_retries import NativeSystem
from torchx.specs.api import AppDef

SYSTEM = NativeSystem(name="aws_sagemaker", groups=[("node",)], most=30, free=False)


def retries(app: AppDef, opts: AWSSageMakerOpts, caps: Capabilities) -> int | None:
    """``MaximumRetryAttempts`` of a job: by its policy, or else by the options; None: none.

    Raises:
        SpecError: the policy cannot be kept.
        ConfigError: both say it.
    """
    asked = SYSTEM.policy(app, caps)
    if asked is None:
        return opts.max_retry_attempts
    if opts.max_retry_attempts:
        raise ConfigError("`--retry` and `max_retry_attempts` exclude one another", hint="omit one of them")
    return asked.times or None
