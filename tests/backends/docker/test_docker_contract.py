"""The contract of a scheduler, on a real engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from tests.backends.docker.conftest import PATIENCE_S
from torchx.schedulers.docker.reasons import container_state
from torchx.schedulers.docker_scheduler import CONTAINER_STATE, create_scheduler
from torchx.specs.api import AppDef, AppState
from torchx.testing import SchedulerContract


class TestLocalDocker(SchedulerContract):
    """Jobs really run."""

    can_run = True
    timeout_s = PATIENCE_S
    raw_states: ClassVar[Mapping[str, AppState]] = CONTAINER_STATE
    name_rule = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"

    @pytest.fixture(autouse=True)
    def _image(self, docker_image: str) -> None:
        self.image = docker_image

    def create_scheduler(self, folder: str) -> Any:
        return create_scheduler("contract")

    def map_state(self, raw: str) -> AppState:
        return container_state(raw)

    def app(self, *args: str, **kwargs: Any) -> AppDef:
        kwargs.setdefault("image", self.image)
        return super().app(*args, **kwargs)

    @pytest.fixture
    def submit(self, scheduler: Any) -> Any:
        """As the contract's; jobs are deleted without the time for a graceful end."""
        submitted: list[str] = []

        def submit(app: AppDef) -> str:
            submitted.append(scheduler.submit(app, self.cfg))
            return submitted[-1]

        yield submit
        for app_id in submitted:
            scheduler.delete(app_id)
