"""The verbs: run a job, and ask, wait for, cancel or delete it.

>>> from torchx.runner import get_runner
>>> with get_runner() as runner:
...     "local_cwd" in runner.scheduler_backends()
True
"""

from __future__ import annotations

from torchx.runner.api import Runner, get_runner

__all__ = ["Runner", "get_runner"]
