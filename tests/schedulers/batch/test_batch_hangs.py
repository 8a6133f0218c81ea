"""The loop of the watchdog beside a batch job, with findings and times that the test sets."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchx.schedulers.batch import base, hangs


class Dog:
    """A watchdog whose looks are due at these times, and find what is said of them."""

    def __init__(self, due: list[float | None], found: list[str | None], *, silent: bool) -> None:
        self._due, self._found, self.silent = due, found, silent
        self.turns: list[float] = []
        self.asked: Any = None

    def __call__(self, asked: Any, env: Any, signs: Any) -> Dog:
        self.asked, self.signs = asked, signs
        return self

    def begin(self, now: float) -> None:
        self.began = now

    @property
    def due(self) -> float | None:
        return self._due[0]

    def turn(self, now: float) -> str | None:
        self.turns.append(now)
        if len(self._due) > 1:
            self._due.pop(0)
        return self._found.pop(0) if self._found else None


class Loop:
    """Runs the loop until its script has ended, at second 5."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dog: Dog, wish: str) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.news: list[str] = []
        self.put: list[str] = []
        self.up = True
        monkeypatch.setattr(sys, "argv", ["hangs", wish])
        monkeypatch.setattr(hangs, "Watchdog", dog)
        monkeypatch.setattr(hangs, "put_down", lambda place, _: self.put.append(place))
        monkeypatch.setattr(hangs, "os", SimpleNamespace(getppid=lambda: 1 if self.now < 5 else 2, environ={}))
        monkeypatch.setattr(hangs, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))
        hangs.main("m", lambda: ["w/0"], lambda _, act: self.news.append(act), lambda: None, lambda: self.up)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(round(seconds, 3))
        self.now += seconds


def test_when_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a look is due, and otherwise it waits for that, a second at most."""
    dog = Dog([0.25, 1.5, 1.5001, None], [], silent=False)
    loop = Loop(monkeypatch, dog, "2s")
    assert dog.turns == [0.25, 1.5, 1.51]
    assert loop.slept[:4] == [0.25, 1.0, 0.25, 0.01]
    assert set(loop.slept[4:]) == {0.01}  # nothing is due any more
    assert (loop.news, loop.put) == ([], [])
    assert dog.asked["seconds"] == 2


@pytest.mark.parametrize(
    ("wish", "silent", "news", "goes_on"),
    [
        ("2s:cancel", True, "cancel", False),
        ("2s:retry", True, "retry", False),
        ("2s:cancel", False, "", True),
        ("2s", True, "", True),
    ],
)
def test_what_follows_from_a_finding(
    wish: str, silent: bool, news: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wished action, if the job is silent, and then it ends; other findings are only recorded."""
    loop = Loop(monkeypatch, Dog([0.5, 9.0], ["it hangs"], silent=silent), wish)
    assert (loop.news, loop.put) == ([news], ["."])
    assert (loop.now >= 5) is goes_on


def test_a_job_of_which_a_part_is_missing_is_not_silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its signs change each time, until all replicas run; then output and progress count."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w" / "0").mkdir(parents=True)
    dog = Dog([9.0], [], silent=False)
    loop = Loop(monkeypatch, dog, "2s")
    first = dog.signs()
    assert dog.signs() == first
    loop.up = False
    second = dog.signs()
    assert second not in (first, dog.signs())
    loop.up = True
    third = dog.signs()
    assert dog.signs() == third
    for name in ("progress", "w/0/stdout.log", "w/0/stderr.log"):
        (tmp_path / name).write_text("x")
        assert dog.signs() != third
        third = dog.signs()


def test_what_such_backends_can_do() -> None:
    """Their nodes reserve what roles request, and share files; one query is enough for many jobs."""
    caps = base.CAPABILITIES
    assert (caps.workspaces, caps.resources, caps.describe_many) == (True, True, True)
    assert caps.log_streams == ("stdout", "stderr", "combined")
