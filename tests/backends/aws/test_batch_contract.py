"""The scheduler keeps the contract with jobs that really run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.backends.aws.conftest import QUEUE
from tests.backends.docker.engine import IMAGE
from torchx.schedulers.api import Scheduler
from torchx.schedulers.aws_batch_scheduler import create_scheduler
from torchx.testing import SchedulerContract


@pytest.mark.usefixtures("queue")
class TestBatch(SchedulerContract):
    """On moto's server."""

    cfg: Mapping[str, Any] = {"queue": QUEUE}
    unknown_id = f"{QUEUE}:no-such-job"
    name_rule = r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
    runtime_macros = frozenset({"replica_id"})
    can_run = True
    timeout_s = 400

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        return create_scheduler("contract")

    def app(self, *args: str, **role: Any) -> Any:
        role.setdefault("image", IMAGE)
        return super().app(*args, **role)

    def request_name(self, info: Any) -> str:
        return info.request.name

    def rendered(self, info: Any) -> str:
        return f"{info.request.job_def}\n{info.request.request()}"
