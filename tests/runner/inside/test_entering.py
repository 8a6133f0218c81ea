"""Ways into a replica: each is used if the backend has it, and of a task it is that of the task's own job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler
from torchx.errors import NotSupportedError
from torchx.runner.inside import entering
from torchx.runner.jobs.views import View

REPLICA = ("w", 3)


class Open(MemoryScheduler):
    """Answers with what it was called with."""

    def enter(self, app_id: str, role: str, k: int, argv: list[str], tty: Any) -> Any:
        return (app_id, role, k, argv, tty)

    def archive(self, app_id: str, role: str, k: int, path: str, *, into: bool) -> Any:
        return (app_id, role, k, path, into)

    def shares_files(self, app_id: str) -> bool:
        return app_id == "here"

    def port_opener(self, app_id: str, role: str, k: int) -> Callable[[int], Any]:
        return lambda port: (app_id, role, k, port)


class Task(View):
    """A task that runs as the job `job`."""

    def job_of(self, app_id: str, replica: tuple[str, int]) -> Any:
        return self._scheduler, "job", replica

    def describe(self, app_id: str) -> None: ...

    def _cancel_existing(self, app_id: str) -> None: ...


def test_a_backend_with_all_of_them() -> None:
    """Each gets the job and the replica."""
    backend = Open("test")
    entered: Any = entering.enter(backend, "a", REPLICA, ("sh", "-c"), None)
    assert entered == ("a", "w", 3, ["sh", "-c"], None)
    archive, way = entering.archives(backend, "a", REPLICA), entering.port_opener(backend, "a", REPLICA)
    assert archive is not None and way is not None
    copied: Any = archive("/x", True)
    connected: Any = way(80)
    assert (copied, connected) == (("a", "w", 3, "/x", True), ("a", "w", 3, 80))
    assert entering.shares_files(backend, "here")
    assert not entering.shares_files(backend, "a")


def test_a_backend_without_any() -> None:
    """A command cannot be run there, which the error says by its name; the others are left out."""
    backend = MemoryScheduler("test")
    with pytest.raises(NotSupportedError, match="`memory` cannot run a command inside a replica"):
        entering.enter(backend, "a", REPLICA, ["sh"], None)
    assert entering.archives(backend, "a", REPLICA) is None
    assert entering.port_opener(backend, "a", REPLICA) is None
    assert not entering.shares_files(backend, "here")


def test_a_task_is_entered_as_its_own_job() -> None:
    """And a job as itself."""
    backend = Open("test")
    entered: Any = entering.enter(Task(backend), "sweep/3", REPLICA, ["sh"], None)
    assert entered[0] == "job"
    assert entering.job_of(Task(backend), "sweep/3", REPLICA) == (backend, "job", REPLICA)
    assert entering.job_of(backend, "a", REPLICA) == (backend, "a", REPLICA)
