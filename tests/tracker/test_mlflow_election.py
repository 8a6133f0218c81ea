"""Ranks that start at once elect one MLflow run, whatever the order of their requests and their clocks."""

from __future__ import annotations

import random
import threading
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from torchx.tracker import mlflow_runs
from torchx.tracker.mlflow_runs import TAG_DUPLICATE_OF, TAG_JOB, Runs


class Server:
    """MLflow's data. Each call waits until the test lets its rank continue."""

    def __init__(self, ranks: int, rng: random.Random) -> None:
        self.rng = rng
        self.runs: dict[str, Any] = {}
        self.come: SimpleQueue[tuple[int, bool]] = SimpleQueue()
        self.gates = [threading.Semaphore(0) for _ in range(ranks)]

    def enter(self, rank: int) -> None:
        self.come.put((rank, True))
        self.gates[rank].acquire()

    def active(self) -> list[Any]:
        found = [run for run in self.runs.values() if run.info.lifecycle_stage == "active"]
        return [SimpleNamespace(info=run.info, data=SimpleNamespace(tags=dict(run.data.tags))) for run in found]

    def add(self, name: str, tags: dict[str, str]) -> Any:
        run_id, at = f"{self.rng.random()}", self.rng.randrange(3)
        info = SimpleNamespace(run_id=run_id, run_name=name, start_time=at, lifecycle_stage="active", status="RUNNING")
        self.runs[run_id] = SimpleNamespace(info=info, data=SimpleNamespace(tags=dict(tags)))
        return self.runs[run_id]


class Rank:
    """MLflow's client for one rank."""

    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number, self.chosen = server, number, ""
        self.runs = Runs.__new__(Runs)  # MLflow itself is not installed where these tests run
        self.runs._ids, self.runs.owned, self.runs.client = {}, set(), self
        self.runs.experiment_id, self.runs._active = lambda: "1", self.active  # type: ignore[method-assign]  # as above
        self.thread = threading.Thread(target=self._choose)
        self.thread.start()

    def _choose(self) -> None:
        try:
            self.chosen = self.runs.made("job")
        finally:
            self.server.come.put((self.number, False))

    def active(self, name: str) -> list[Any]:
        self.server.enter(self.number)
        return self.server.active()

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> Any:
        self.server.enter(self.number)
        return self.server.add(run_name, tags)

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        self.server.enter(self.number)
        self.server.runs[run_id].data.tags[name] = value

    def delete_run(self, run_id: str) -> None:
        self.server.enter(self.number)
        self.server.runs[run_id].info.lifecycle_stage = "deleted"


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_runs, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))


@pytest.mark.usefixtures("_patient")
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_one_run_is_chosen(ranks: int) -> None:
    """In two hundred orders of requests all ranks elect the same run; the others become its deleted duplicates."""
    for seed in range(200):
        rng = random.Random(seed)
        server = Server(ranks, rng)
        all_ranks = [Rank(server, number) for number in range(ranks)]
        for _ in range(ranks):
            server.come.get()  # each is at its first request
        live = list(range(ranks))
        while live:
            server.gates[rng.choice(live)].release()
            number, goes_on = server.come.get()
            if not goes_on:
                live.remove(number)
        for rank in all_ranks:
            rank.thread.join()
        (left,) = server.active()
        assert {rank.chosen for rank in all_ranks} == {left.info.run_id}, seed
        deleted = [run for run in server.runs.values() if run.info.lifecycle_stage == "deleted"]
        assert all(TAG_DUPLICATE_OF in run.data.tags for run in deleted)


def test_who_died_in_the_middle_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose rank never takes its turn is elected after a while; one with a turn precedes it."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(mlflow_runs, "time", clock)
    server = Server(1, random.Random(0))
    server.gates = [threading.Semaphore(10**6)]
    dead = server.add("job", {TAG_JOB: "job", mlflow_runs.TAG_TURN: "choosing"})
    rank = Rank(server, 0)
    rank.thread.join()
    assert rank.chosen == dead.info.run_id
    assert 10 <= now[0] < 12
    other = server.add("job", {TAG_JOB: "job", mlflow_runs.TAG_TURN: "1"})
    rank = Rank(server, 0)
    rank.thread.join()
    assert rank.chosen == other.info.run_id


def test_runs_of_earlier_versions() -> None:
    """Runs without a turn existed before: the oldest is elected at once."""
    server = Server(1, random.Random(0))
    server.gates = [threading.Semaphore(10**6)]
    made = [server.add("job", {TAG_JOB: "job"}) for _ in range(4)]
    rank = Rank(server, 0)
    rank.thread.join()
    assert rank.chosen == min((run.info.start_time, run.info.run_id) for run in made)[1]
