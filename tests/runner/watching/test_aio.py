"""The Runner's coroutines: many can wait at once, and poll the scheduler no more often than one."""

from __future__ import annotations

import asyncio

import pytest

from tests.runner.memory_backend import echo_app
from torchx.runner.api import WaitTimeoutError
from torchx.runner.watching import changes, poller
from torchx.specs import AppState


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(poller, "LEAST_S", 0.02)
    monkeypatch.setattr(poller, "_STANDBY_S", 0.01)
    monkeypatch.setattr(changes, "TICK_S", 0.005)


def test_verbs(runner):
    """Each method of the Runner can be awaited; other names raise AttributeError."""

    async def main():
        handle = await runner.aio.run(echo_app(), "memory")
        assert (await runner.aio.status(handle)).state is AppState.RUNNING
        await runner.aio.cancel(handle)
        assert (await runner.aio.status(handle)).state is AppState.CANCELLED
        with pytest.raises(AttributeError):
            runner.aio.dance

    asyncio.run(main())


def test_many_wait_at_once(runner, jobs):
    """A hundred awaited jobs: each is queried once at the beginning and once at its end; the poller queries all of them."""

    async def main():
        handles = [runner.run(echo_app(), "memory") for _ in range(100)]
        waits = [asyncio.create_task(runner.aio.wait(handle)) for handle in handles]
        while runner.aio._news is None or len(runner.aio._news._unfinished) < 100:
            await asyncio.sleep(0)
        for job in jobs.values():
            job.state = AppState.SUCCEEDED
        return await asyncio.gather(*waits)

    assert {status.state for status in asyncio.run(main())} == {AppState.SUCCEEDED}
    assert runner.aio._news is None
    assert len(runner._scheduler("memory").asked) <= 200


def test_the_time_is_up(runner):
    """As for `Runner.wait`; the job keeps running. The error says which job, and its last state."""

    async def main():
        handle = runner.run(echo_app(), "memory")
        with pytest.raises(WaitTimeoutError, match=r"is RUNNING after 0\.05 s of waiting") as e:
            await runner.aio.wait(handle, timeout=0.05)
        assert (e.value.handle, e.value.state) == (handle, AppState.RUNNING)
        return await runner.aio.status(handle)

    assert asyncio.run(main()).state is AppState.RUNNING


def test_a_job_that_is_not_on_record(runner, jobs):
    """No process polls for it; its scheduler is queried directly."""
    from torchx.runs import default_registry

    async def main():
        handle = runner.run(echo_app(), "memory")
        default_registry().forget(handle)
        jobs["echo-1"].state = AppState.FAILED
        return await runner.aio.wait(handle)

    assert asyncio.run(main()).state is AppState.FAILED


def test_a_home_that_cannot_be_written(runner, jobs, monkeypatch):
    """No process polls: after a while, each waiting caller queries the scheduler itself."""
    monkeypatch.setattr(poller._Files, "_lock", lambda self, rank: False)
    monkeypatch.setattr(changes, "_TRUST_S", 0.02)
    monkeypatch.setattr(changes, "_ASK_AGAIN_S", 0.02)

    async def main():
        handle = runner.run(echo_app(), "memory")
        task = asyncio.create_task(runner.aio.wait(handle))
        while not runner._scheduler("memory").asked:
            await asyncio.sleep(0)
        jobs["echo-1"].state = AppState.SUCCEEDED
        return await task

    assert asyncio.run(main()).state is AppState.SUCCEEDED


def test_a_job_that_another_process_deletes(runner, jobs, monkeypatch):
    """It has no end that could be recorded: who waits gets None, and a watch ends."""
    from torchx.runs import default_registry

    monkeypatch.setattr(changes, "_ON_RECORD_S", 0.02)

    async def main():
        handle = runner.run(echo_app(), "memory")
        waiting = asyncio.create_task(runner.aio.wait(handle))
        seen = []
        async for change in runner.watch(handle):
            seen.append(change.state)
            if change.state is AppState.RUNNING:
                jobs.clear()
                default_registry().forget(handle)
        return seen[-1], await waiting

    assert asyncio.run(main()) == (AppState.RUNNING, None)
