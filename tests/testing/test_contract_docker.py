"""The Docker scheduler keeps the contract, as far as no engine is needed; tests/backends/docker has the rest."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

pytest.importorskip("docker")

from tests.schedulers.docker.fake_docker import FakeDocker
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import Scheduler
from torchx.schedulers.docker.reasons import container_state
from torchx.schedulers.docker_scheduler import CONTAINER_STATE
from torchx.specs import AppState
from torchx.testing import SchedulerContract


class TestLocalDocker(SchedulerContract):
    """On an engine in memory: nothing runs."""

    name_rule = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
    raw_states: ClassVar[Mapping[str, AppState]] = CONTAINER_STATE

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        return get_scheduler_factories()["local_docker"]("contract", docker_client=FakeDocker())

    def map_state(self, raw: str) -> AppState:
        return container_state(raw)
