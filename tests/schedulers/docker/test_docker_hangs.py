"""The watchdog of a job in containers: signs of life, actions, and the status."""

from __future__ import annotations

import io
import os
import re
import tarfile
from typing import Any

import pytest

from tests.schedulers.docker.test_docker_timeouts import _cause
from tests.schedulers.docker.test_gangs import BAD, KILLED, R, job
from tests.schedulers.docker.test_watcher import Engine
from torchx.errors import NotSupportedError
from torchx.schedulers.docker import attempts, gangs
from torchx.schedulers.docker.answers import facts_of
from torchx.schedulers.docker.evidence import HANG_FILE, STACKS_FILE
from torchx.schedulers.docker.gangs import Rules, is_over, next_step, rules_for
from torchx.schedulers.docker.plain_http import RefusedError
from torchx.schedulers.docker_scheduler import DockerScheduler
from torchx.schedulers.kit.verdict import judge
from torchx.specs.api import AppDef, AppState, Role
from torchx.specs.wishes.watchdog import WATCHDOG

HANG = "no output for 1 min: all 2 ranks wait in all_reduce at t.py:3"


class _Heard(Engine):
    """An engine with logs, in which a container may write a line at each wait; it keeps uploaded files."""

    def __init__(self, n: int, wish: str, *, policy: str = "") -> None:
        super().__init__(n, policy=policy)
        self.labels[gangs.LABEL_RULES] = Rules(place="here", watchdog=wish, policy=policy).to_json()
        self.logs: dict[str, bytes | int] = dict.fromkeys(self.states, b"")
        self.marks: dict[str, bytes] = {}
        self.put: list[str] = []
        self.stacks: list[str] = []
        self.reads: list[str] = []

    def read(self, path: str, params: dict) -> bytes:
        _, _, container, what = path.split("/")
        self.reads.append(f"{what} {container}")
        found: bytes | int = self.logs[container] if what == "logs" else self.marks.get(container, 404)
        if isinstance(found, int):
            raise RefusedError(found, "no")
        return found

    def upload(self, path: str, params: dict) -> Any:
        outer = self

        class Up:
            def write(self, data: bytes) -> None:
                if data:
                    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                        outer.put.append(tar.extractfile(HANG_FILE).read().decode())
                        outer.stacks.append(tar.extractfile(STACKS_FILE).read().decode())

            def answer(self) -> None:
                pass

            def close(self) -> None:
                pass

        return Up()


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inspecting program answers before the engine's next event, as waits take no time here."""

    def spawned(*args: Any, file_actions: list[tuple[int, ...]], **kwargs: Any) -> int:
        (printed,) = [action[1] for action in file_actions if action[0] == os.POSIX_SPAWN_DUP2]
        os.write(printed, b"all wait\n\ntrain.py:3\n")
        return 0

    monkeypatch.setattr(os, "posix_spawn", spawned)


def _ends_after(engine: _Heard, waits: int, each: Any = None) -> None:
    """The job runs for this many waits, in each of which something may happen; then it succeeds."""

    def wait() -> None:
        if each:
            each()

    def over() -> None:
        for container in engine.states:
            engine.ends(container)()

    engine.script = [*[wait] * waits, over]


def test_one_container_with_a_watchdog_is_watched() -> None:
    """No other process would detect silence."""
    rules = rules_for(AppDef("a", [Role("r", "i")]), 10, "here", watchdog="10m")
    assert (rules.place, rules.watchdog) == ("here", "10m")
    assert '"watchdog":"10m"' in rules.to_json()
    assert gangs.rules_of(job(("r-0", R), watchdog="10m")).watchdog == "10m"


def test_a_silent_job_is_only_looked_into() -> None:
    """The finding is stored in its first container, once; nothing is stopped."""
    engine = _Heard(2, "60s")
    _ends_after(engine, 200)
    engine.watch()
    assert len(engine.put) == 1
    assert re.fullmatch(r"no output for 1 min: all wait", engine.put[0])
    assert engine.stacks == [f"{engine.put[0]}\n\ntrain.py:3\n"]
    assert not [call for call in engine.calls if call.startswith("stop")]


def test_who_writes_is_left_alone() -> None:
    """The log of the most recent writer is checked first, and often alone."""
    engine = _Heard(3, "60s:cancel")

    def line() -> None:
        engine.logs["r-2"] = bytes(engine.logs["r-2"]) + b"x"

    _ends_after(engine, 400, line)
    engine.watch()
    assert engine.put == []
    assert engine.now > 600
    assert {read for read in engine.reads[-20:] if read.startswith("logs")} == {"logs r-2"}


def test_a_mark_of_progress_is_a_sign_of_life() -> None:
    """Even without output."""
    engine = _Heard(1, "60s:cancel")

    def mark() -> None:
        engine.marks["r-0"] = str(engine.now // 20).encode()

    _ends_after(engine, 400, mark)
    engine.watch()
    assert (engine.put, list(engine.names.values())) == ([], ["a-1-r-0"])


def test_a_log_that_cannot_be_read_is_not_silence() -> None:
    """Its state is unknown."""
    engine = _Heard(1, "60s:cancel")
    engine.logs["r-0"] = 501
    _ends_after(engine, 100)
    engine.watch()
    assert engine.put == []


def test_it_ends_a_job_that_it_is_told_to_end() -> None:
    """It is final, whatever the policy."""
    engine = _Heard(2, "60s:cancel", policy="timeout:free")
    engine.watch()
    assert set(engine.names.values()) == {"a-1-r-0.late.silent.final", "a-1-r-1.late.silent.final"}
    assert {state for state, _ in engine.states.values()} == {"exited"}
    assert engine.asked == []


def test_it_ends_an_attempt_and_watches_the_next() -> None:
    """The policy is evaluated each time, and each attempt has the full time."""
    engine = _Heard(1, "60s:retry", policy="timeout:free")
    engine.answers = [lambda: True, lambda: False]
    engine.watch()
    assert len(engine.asked) == 2
    assert len(engine.put) == 2
    assert list(engine.names.values()) == ["a-1-r-0.app1.late.silent.final"]


def test_what_the_page_says() -> None:
    """The reason is the finding, not the ranks' output after SIGTERM."""
    ended = job(("r-0.late.silent.final", KILLED), ("r-1.late.silent.final", BAD), watchdog="60s:cancel")
    assert _cause(ended) == (AppState.FAILED, "timeout")
    assert is_over(ended)
    assert judge(facts_of(ended, hang=HANG)).sentence == f"{HANG}; r/1: exit code 1"
    assert "silent for longer than its watchdog allows (`60s:cancel`)" in judge(facts_of(ended)).sentence
    assert [c.id for c in next_step(job(("r-0.late.silent", KILLED), ("r-1", R))).end] == ["r-1"]
    going = facts_of(job(("r-0", R), watchdog="60s"), hang=HANG)
    assert (going.hang, going.reason, judge(going).state) == (HANG, "", AppState.RUNNING)


def test_who_has_no_place_for_a_watcher_is_told() -> None:
    """Before anything is submitted."""
    app, caps = AppDef("a", [Role("r", "i")], metadata={WATCHDOG: "10m"}), DockerScheduler.capabilities
    assert attempts.wishes(app, caps, "here") == {"policy": "", "timeout": "", "watchdog": "10m"}
    assert attempts.wishes(AppDef("a"), caps, "")["watchdog"] == ""
    with pytest.raises(NotSupportedError, match="no watcher could detect that the job is silent"):
        attempts.wishes(app, caps, "")


def test_marks_of_progress_need_a_variable() -> None:
    """The checkpoint variable is set only with a policy."""
    assert attempts.marks("") == {"TORCHX_PROGRESS": "/tmp/torchx_progress"}
    assert set(attempts.marks("standard")) == {"TORCHX_PROGRESS", "TORCHX_CHECKPOINT_NOW"}
