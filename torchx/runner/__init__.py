"""Submits jobs, and describes, waits for, cancels and deletes them.

>>> from torchx.runner import get_runner
>>> with get_runner() as runner:
...     "local_cwd" in runner.scheduler_backends()
True
"""

from __future__ import annotations

from torchx import config
from torchx.runner.api import Runner, get_runner
from torchx.specs.configured import provide_failures, provide_gpu_types, provide_named_resources

__all__ = ["Runner", "get_runner"]

# At import time, so that `torchx.specs.resource(h=...)` finds the named resources of the config files in any program.
provide_named_resources(lambda: config.get_section("named_resources"))
provide_gpu_types(lambda backend: config.get_section(f"gpu_types:{backend}"))
provide_failures(lambda: config.get_section("failures"))
