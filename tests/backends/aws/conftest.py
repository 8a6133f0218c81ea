"""Moto's server and a queue of Batch whose jobs are containers on Docker."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("boto3")

from tests.backends.aws import moto
from tests.backends.docker import engine
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler, create_scheduler
from torchx.specs.api import AppDef, Resource, Role
from torchx.specs.wishes.after import AFTER

QUEUE = "torchx-tests"
collect_ignore = ["nodes.py"]  # it imports moto, which lies elsewhere


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """The endpoint, and the image on the engine that its jobs run in; what was started here is stopped again."""
    engine_started = started = False
    try:
        engine_started = engine.up()
        engine.image()
        started = moto.up()
    except engine.Unavailable as e:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(e))
    yield moto.ENDPOINT
    if started:
        moto.down()
    if engine_started:
        engine.down()


@pytest.fixture
def queue(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A queue of a service that knows nothing else; boto3 finds it by the environment, as a user's would."""
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name, value in moto.variables().items():
        monkeypatch.setenv(name, value)
    moto.reset()
    moto.make_queue(QUEUE)
    yield QUEUE
    batch = create_scheduler("end")
    for line in batch.list():
        batch.cancel(line.app_id)
    batch.close()


@pytest.fixture
def batch(queue: str) -> Iterator[AWSBatchScheduler]:
    """The scheduler."""
    made = create_scheduler("aws-tests")
    yield made
    made.close()


@pytest.fixture
def submit(batch: AWSBatchScheduler, queue: str) -> Callable[..., str]:
    """Submit ``sh -c command`` in ``n`` replicas; ``after``: its earlier jobs; further keywords are the role's."""

    def run(command: str, n: int = 1, *, name: str = "w", after: str = "", **more: Any) -> str:
        more.setdefault("resource", Resource(cpu=1, gpu=0, memMB=128))
        role = Role(name, engine.IMAGE, entrypoint="sh", args=["-c", command], num_replicas=n, **more)
        return batch.submit(AppDef("job", [role], metadata={AFTER: after} if after else {}), {"queue": queue})

    return run


def reached(scheduler: AWSBatchScheduler, app_id: str, *states: object, within_s: float = 400) -> DescribeAppResponse:
    """The job, once it is in one of these states."""
    deadline = time.monotonic() + within_s
    while (found := scheduler.describe(app_id)) is None or found.state not in states:
        assert time.monotonic() < deadline, found
        time.sleep(0.3)
    return found
