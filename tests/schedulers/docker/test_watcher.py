"""The watcher of a job, with an engine in memory and a simulated clock."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from torchx.schedulers.docker import gangs
from torchx.schedulers.docker.gangs import Rules
from torchx.schedulers.docker.plain_http import RefusedError
from torchx.schedulers.docker.watcher import GIVE_UP_S, LOOK_S, Watcher

BAD = ("exited", 1)


class Engine:
    """What a watcher sees of an engine: containers, and events from a script.

    Attributes:
        script: what happens at each wait for events: a change of containers, or an exception to raise.
        faults: path -> statuses of its next calls.
        away: so many connections are refused.
        now: seconds.
    """

    def __init__(self, n: int, *, retries: dict | None = None, least: int | None = None, policy: str = "") -> None:
        self.labels = {
            "torchx.pytorch.org/app-id": "a-1",
            "torchx.pytorch.org/roles": json.dumps([["r", n, least]]),
            gangs.LABEL_RULES: Rules(retries or {}, 10, "here", policy).to_json(),
        }
        self.states: dict[str, tuple[str, int]] = {f"r-{k}": ("running", 0) for k in range(n)}
        self.names = {c: f"a-1-{c}" for c in self.states}
        self.restarts: dict[str, int] = {}
        self.script: list[Callable[[], Any] | Exception] = []
        self.faults: dict[str, list[int]] = {}
        self.events_now: list[dict] = []
        self.calls: list[str] = []
        self.away = 0
        self.gone = False
        self.now = 0.0
        self.listening = 0
        self.lag: dict[str, int] = {}
        self.after_start: dict[str, tuple[str, int]] = {}
        self.answers: list[Callable[[], bool]] = []
        self.asked: list[dict[str, tuple[str, str]]] = []

    # -- as an engine -----------------------------------------------------------------------------------

    def is_gone(self) -> bool:
        return self.gone

    def get(self, path: str, params: dict | None = None) -> Any:
        if self.away:
            self.away -= 1
            raise ConnectionRefusedError
        if path != "/containers/json":
            container = path.split("/")[2]
            if container not in self.states:
                raise RefusedError(404, "no such container")
            return {"RestartCount": self.restarts.get(container, 0)}
        return [self._summary(c) for c in self.states]

    def events(self, filters: dict, since: float) -> Engine:
        self.listening += 1
        return self

    def close(self) -> None:
        pass

    def wait(self, timeout_s: float) -> list[dict]:
        self.now += timeout_s
        if not self.script and timeout_s < LOOK_S:
            return []
        if not self.script:
            raise AssertionError(f"the watcher waits, and nothing happens any more: {self.states} {self.names}")
        act = self.script.pop(0)
        if isinstance(act, Exception):
            raise act
        act()
        events, self.events_now = self.events_now, []
        return events

    def post(self, targets: Any, *, timeout_s: float = 0) -> list[int]:
        return [self._post(urlsplit(t)) for t in targets]

    def _post(self, url: Any) -> int:
        _, given, verb = re.findall(r"[^/]+", url.path)
        container = next((c for c, name in self.names.items() if given in {c, name}), given)
        self.calls.append(f"{verb} {container}")
        faults = self.faults.get(verb)
        if faults and (status := faults.pop(0)) != 204:
            return status
        if container not in self.states:
            return 404
        if verb == "rename":
            self.names[container] = parse_qs(url.query)["name"][0]
        elif verb == "stop" and self.states[container][0] == "running":
            assert url.query == "t=10"
            self.states[container] = ("exited", 143)
        elif verb == "start":
            self.states[container] = self.after_start.get(container, ("running", 0))
        return 204

    def _summary(self, container: str) -> dict:
        raw, code = self.states[container]
        if self.lag.get(container, 0) > 0:
            self.lag[container] -= 1
            raw = "running"
        status = f"Exited ({code}) now" if raw == "exited" else "Up"
        labels = {**self.labels, "torchx.pytorch.org/role-name": "r", "torchx.pytorch.org/replica-id": container[2:]}
        made = {"Id": container, "Names": [f"/{self.names[container]}"], "Created": 1, "Labels": labels}
        return {**made, "State": raw, "Status": status}

    # -- for tests -----------------------------------------------------------------------------------

    def ends(self, container: str, code: int = 0) -> Callable[[], None]:
        def end() -> None:
            self.states[container] = ("exited", code)
            self.events_now.append({"status": "die", "id": container})

        return end

    def watch(self) -> Watcher:
        def sleep(s: float) -> None:
            self.now += s

        def may_start_again(app_id: str) -> bool:
            self.asked.append(self.done)
            return self.answers.pop(0)()

        watcher = Watcher(self, "a-1", sleep=sleep, clock=lambda: self.now, may_start_again=may_start_again)  # type: ignore[arg-type]  # it does as an engine
        watcher.run()
        return watcher

    @property
    def done(self) -> dict[str, tuple[str, str]]:
        return {c: (self.states[c][0], self.names[c].partition(".")[2]) for c in self.states}


def test_nobody_is_ended_without_reason() -> None:
    """Replicas end one after the other, and so does the watcher."""
    engine = Engine(2)
    engine.script = [engine.ends("r-0"), list, engine.ends("r-1")]
    engine.watch()
    assert engine.calls == []


def test_a_failure_ends_the_others() -> None:
    """They are marked first, then stopped; the failed one is not touched."""
    engine = Engine(3)
    engine.script = [engine.ends("r-1", 1)]
    engine.watch()
    assert engine.calls == ["rename r-0", "rename r-2", "stop r-0", "stop r-2"]
    assert engine.done == {"r-0": ("exited", "cancelled"), "r-1": ("exited", ""), "r-2": ("exited", "cancelled")}


def test_it_had_failed_before() -> None:
    """A failure from before the watcher started is found in the list."""
    engine = Engine(2)
    engine.states["r-1"] = BAD
    engine.watch()
    assert engine.done["r-0"] == ("exited", "cancelled")


def test_a_role_is_started_again() -> None:
    """The failed one is marked first, then all; all stop, all start, rank 0 first; then the marks are removed."""
    engine = Engine(3, retries={"r": (1, "ROLE")})
    engine.script = [engine.ends("r-2", 1), *[engine.ends(f"r-{k}") for k in range(3)]]
    engine.watch()
    assert engine.calls == [
        *("rename r-2", "rename r-0", "rename r-1", "stop r-0", "stop r-1"),
        *("start r-0", "rename r-0", "start r-1", "start r-2", "rename r-1", "rename r-2"),
    ]
    assert set(engine.done.values()) == {("exited", "role1")}


def test_the_last_attempt_fails() -> None:
    """Then the others are stopped."""
    engine = Engine(2, retries={"r": (2, "APPLICATION")})
    engine.after_start["r-1"] = BAD
    engine.script = [engine.ends("r-1", 1)]
    engine.watch()
    assert engine.calls.count("start r-1") == 2
    assert engine.done == {"r-0": ("exited", "app2.cancelled"), "r-1": ("exited", "app2")}


@pytest.mark.parametrize("at", range(11))
def test_another_one_goes_on(at: int) -> None:
    """Wherever one is killed in the middle of a restart, the next one has the same result."""

    class Killed(BaseException):
        pass

    engine = Engine(3, retries={"r": (1, "ROLE")})
    engine.states["r-2"] = BAD
    post = engine._post

    def killing(url: Any) -> int:
        if len(engine.calls) == at:
            raise Killed
        return post(url)

    engine._post = killing  # type: ignore[method-assign]  # a fault
    with pytest.raises(Killed):
        engine.watch()
    engine._post = post  # type: ignore[method-assign]  # and back
    engine.script = [engine.ends(f"r-{k}") for k in range(3)]
    engine.watch()
    assert engine.done == dict.fromkeys(engine.states, ("exited", "role1"))


def test_a_cancellation_in_the_middle() -> None:
    """A cancellation during a restart stops running replicas, and none is started after it."""
    engine = Engine(3, retries={"r": (9, "ROLE")})
    engine.states["r-2"] = BAD
    post = engine._post

    def cancelling(url: Any) -> int:
        answer = post(url)
        if engine.calls[-1] == "start r-0":
            engine.names["r-1"] += ".cancelled"
        return answer

    engine._post = cancelling  # type: ignore[method-assign]  # somebody else
    engine.watch()
    assert engine.calls.count("start r-1") == engine.calls.count("start r-2") == 0
    assert {state for state, _ in engine.done.values()} == {"exited"}


@pytest.mark.parametrize("at", range(11))
def test_a_cancellation_while_it_stands_still(at: int) -> None:
    """Somebody cancels from beginning to end between two calls of a watcher: what it had decided before is not carried
    out, and no replica loses its mark."""
    engine = Engine(3, retries={"r": (9, "ROLE")})
    engine.states["r-2"] = BAD
    post = engine._post

    def cancelling(url: Any) -> int:
        if len(engine.calls) == at:
            engine.states = dict.fromkeys(engine.states, ("exited", 137))
            engine.names = {c: f"{name}.cancelled" for c, name in engine.names.items()}
        answer = post(url)
        assert len(engine.calls) <= at or not {"running"} & {state for state, _ in engine.states.values()}, engine.calls
        return answer

    engine._post = cancelling  # type: ignore[method-assign]  # somebody else
    engine.watch()
    assert len(engine.calls) > at
    assert all(mark.endswith("cancelled") for _, mark in engine.done.values()), engine.done


@pytest.mark.parametrize("mark", ["cancelled", "late"])
def test_what_another_process_stops_gets_no_second_signal(mark: str) -> None:
    """Its handler may be writing a checkpoint. If it runs when the grace is over, that process may have been killed."""
    engine = Engine(3)

    def stopped() -> None:
        engine.names = {c: f"{name}.{mark}" for c, name in engine.names.items()}
        engine.ends("r-1", 143)()

    engine.script = [stopped, list, list, engine.ends("r-0")]
    engine.watch()
    assert [call for call in engine.calls if call.startswith("stop")] == ["stop r-2"]
    assert engine.now > 10


def test_the_list_lags_behind_the_event() -> None:
    """An exit that an event has reported is looked up again, soon, until it is listed."""
    engine = Engine(2)
    engine.lag["r-1"] = 0

    def end() -> None:
        engine.ends("r-1", 1)()
        engine.lag["r-1"] = 4

    engine.script = [end, *[list] * 4]
    before = engine.now
    engine.watch()
    assert engine.done["r-0"] == ("exited", "cancelled")
    assert engine.now - before < 30 + 2


def test_the_engine_may_start_it_again() -> None:
    """Podman lists a replica as exited that it is about to restart: the watcher waits for a while."""
    engine = Engine(2, retries={"r": (2, "REPLICA")})

    def back() -> None:
        engine.states["r-1"], engine.restarts["r-1"] = ("running", 0), 1

    def used_up() -> None:
        engine.ends("r-1", 1)()
        engine.restarts["r-1"] = 2

    engine.script = [engine.ends("r-1", 1), list, back, used_up]
    engine.watch()
    assert engine.done == {"r-0": ("exited", "cancelled"), "r-1": ("exited", "")}
    assert not engine.script
    engine = Engine(2, retries={"r": (2, "REPLICA")})
    engine.script = [engine.ends("r-1", 1), *[list] * 20]
    engine.watch()
    assert len(engine.script) > 5  # two seconds, and no more


def test_an_elastic_role() -> None:
    """Nothing is stopped while enough replicas are left."""
    engine = Engine(3, least=2)
    engine.script = [engine.ends("r-0", 1), engine.ends("r-1", 1)]
    engine.watch()
    assert [c for c in engine.calls if c.startswith("stop")] == ["stop r-2"]


def test_a_container_is_removed() -> None:
    """It has failed; a job without containers has no watcher."""
    engine = Engine(2)
    engine.script = [lambda: engine.states.pop("r-0")]
    engine.watch()
    assert engine.done == {"r-1": ("exited", "cancelled")}
    engine = Engine(2)
    engine.script = [engine.states.clear]
    engine.watch()
    assert engine.calls == []


def test_the_engine_is_restarted() -> None:
    """The stream ends, and later the job is checked again: containers may have ended meanwhile."""
    engine = Engine(2, retries={"r": (1, "ROLE")})

    def restart() -> None:
        engine.away = 12
        engine.states.update({"r-0": ("exited", 137), "r-1": ("exited", 137)})
        raise ConnectionError

    engine.script = [restart, engine.ends("r-0"), engine.ends("r-1")]
    engine.watch()
    assert engine.listening == 2
    assert set(engine.done.values()) == {("exited", "role1")}
    assert engine.states == {"r-0": ("exited", 0), "r-1": ("exited", 0)}


def test_no_engine_any_more() -> None:
    """The watcher gives up after some minutes; at once, if the engine was removed."""
    engine = Engine(2)
    engine.away = 10**6
    engine.watch()
    assert GIVE_UP_S < engine.now < GIVE_UP_S + 10
    assert 10**6 - engine.away < 200
    engine = Engine(2)
    engine.away, engine.gone = 10**6, True
    engine.watch()
    assert engine.now == 0


@pytest.mark.parametrize("status", [500, 0])
def test_the_engine_refuses(status: int) -> None:
    """It is retried, more and more slowly."""
    engine = Engine(2)
    engine.states["r-1"] = BAD
    engine.faults["stop"] = [status] * 5
    engine.watch()
    assert engine.done["r-0"] == ("exited", "cancelled")
    assert engine.calls.count("stop r-0") == 6
    assert 0 < engine.now < 5


def test_a_container_that_does_not_end() -> None:
    """A container whose removal takes minutes does not cause constant requests."""
    engine = Engine(2)
    engine.states.update({"r-0": ("removing", 0), "r-1": BAD})
    reads: list[float] = []
    get = engine.get

    def counted(path: str, params: dict | None = None) -> Any:
        reads.append(engine.now)
        if engine.now > 600:
            engine.states.clear()
        return get(path, params)

    engine.get = counted  # type: ignore[method-assign]  # it counts
    engine.script = [list] * 60
    engine.watch()
    assert len(reads) < 120


def test_a_submission_that_was_killed() -> None:
    """Its containers are marked as cancelled, and stopped."""
    engine = Engine(3)
    engine.states["r-2"] = ("created", 0)
    Watcher(engine, "a-1", sleep=lambda s: None, clock=lambda: 0.0).end_all()  # type: ignore[arg-type]  # it does as an engine
    assert {mark for _, mark in engine.done.values()} == {"cancelled"}
    assert engine.done["r-0"][0] == "exited"


def test_a_policy_is_asked_after_each_attempt() -> None:
    """The others are stopped first; yes restarts all of them, no ends the job for good."""
    engine = Engine(2, policy="error:1")
    engine.answers = [lambda: True, lambda: False]
    engine.script = [engine.ends("r-1", 3), engine.ends("r-0", 3)]
    engine.watch()
    first, second = engine.asked
    assert first == {"r-0": ("exited", "ended"), "r-1": ("exited", "")}
    assert second == {"r-0": ("exited", "app1"), "r-1": ("exited", "app1.ended")}
    assert engine.done == {"r-0": ("exited", "app1.final"), "r-1": ("exited", "app1.ended.final")}
    assert [call for call in engine.calls if call.startswith("start")] == ["start r-0", "start r-1"]


def test_what_a_killed_watcher_has_started_goes_on() -> None:
    """It was killed before it could mark that: a piece that runs, perhaps since yesterday, is not stopped for it."""
    engine = Engine(2, policy="error:1")
    engine.names = {c: f"a-1-{c}.app1.due" for c in engine.states}
    engine.states["r-1"] = ("exited", 3)
    engine.script = [engine.ends("r-0"), engine.ends("r-1")]
    engine.watch()
    assert engine.calls == ["rename r-0", "stop r-1", "start r-1", "rename r-1"]
    assert engine.done == {"r-0": ("exited", "app1"), "r-1": ("exited", "app1")}


def test_a_lone_container_with_a_policy_is_watched() -> None:
    """Its end is a success, and the policy is not evaluated."""
    engine = Engine(1, policy="error:1")
    engine.script = [engine.ends("r-0", 0)]
    engine.watch()
    assert engine.asked == [] and engine.done == {"r-0": ("exited", "")}


def test_a_job_that_was_cancelled_while_the_policy_was_asked_stays_cancelled() -> None:
    """The decision comes too late."""
    engine = Engine(1, policy="error:1")
    engine.states["r-0"] = BAD

    def yes_but() -> bool:
        engine.names["r-0"] += ".cancelled"
        return True

    engine.answers = [yes_but]
    engine.watch()
    assert engine.done == {"r-0": ("exited", "cancelled")}
