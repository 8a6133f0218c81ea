"""Checks of a scheduler and of a job on it: refused options, failing queries, and the probe job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.runner.memory_backend import MemoryScheduler, echo_app
from torchx.errors import BackendError, ConfigError, SpecError, TorchXError
from torchx.runner import Runner, get_runner
from torchx.runner.doctor import online
from torchx.runner.watching.wait import WaitTimeoutError
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Check, Finding
from torchx.specs import AppState, AppStatus


class Diagnosed(MemoryScheduler):
    """Has one check, which is given the options and the job; a test may have calls fail."""

    fails: TorchXError | None = None

    def _submit_dryrun(self, app: Any, cfg: Any) -> Any:
        if self.fails is not None and "submit" in str(self.fails):
            raise self.fails
        return super()._submit_dryrun(app, cfg)

    def diagnose(self, cfg: Any, job: Any) -> Sequence[Check]:
        if self.fails is not None:
            raise self.fails
        return [Check("queue", lambda: f"{cfg['queue']}: {'no job' if job is None else job.request.app.name}")]


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.chdir(tmp_path)
    backend = Diagnosed("test")
    with Runner("test", {"memory": lambda session_name, **_: backend}) as found:
        yield found


def rows(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.verdict, f.what, f.said) for f in found]


def test_checks_get_the_options_and_the_job(runner: Runner) -> None:
    """Of the scheduler alone there is no job; of a job there is, and nothing of it is left."""
    assert rows(runner.doctor("memory", {"queue": "q"})) == [(GOOD, "queue", "q: no job")]
    assert rows(runner.check(echo_app(), "memory", {"queue": "q"})) == [
        (GOOD, "request", "the dry run for `memory` succeeded"),
        (GOOD, "queue", "q: echo"),
    ]


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (ConfigError("no `project`", hint="name it"), "name it"),
        (ConfigError("no `project`"), "`torchx runopts memory`"),
    ],
)
def test_options_that_are_missing(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, error: TorchXError, fix: str
) -> None:
    """Whether jobs can run is unknown; without a hint of its own, the fix shows the options."""
    monkeypatch.setattr(Diagnosed, "fails", error)
    (found,) = runner.doctor("memory")
    assert (found.verdict, found.what, found.said) == (UNKNOWN, "options", "no `project`")
    assert found.fix.startswith(fix)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(SpecError("cannot submit that", hint="h"), BAD), (BackendError("cannot submit now", hint="h"), UNKNOWN)],
)
def test_a_job_whose_request_fails(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, error: TorchXError, verdict: str
) -> None:
    """A wrong job is bad; a scheduler that cannot be queried proves nothing."""
    monkeypatch.setattr(Diagnosed, "fails", error)
    (found,) = runner.check(echo_app(), "memory")
    assert (found.verdict, found.what, found.said, found.fix) == (verdict, "request", str(error), "h")


def test_a_job_whose_checks_fail(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found before is reported, too, and the request is discarded."""
    monkeypatch.setattr(Diagnosed, "fails", BackendError("connection refused"))
    discarded: list[object] = []
    monkeypatch.setattr(runner, "discard", discarded.append)
    first, second = runner.check(echo_app(), "memory")
    assert (first.what, second.what, "connection refused" in second.said) == ("request", "memory", True)
    assert len(discarded) == 1


# -- the probe job ---------------------------------------------------------------------------------


class Probed:
    """A runner whose probe job ends as a test says."""

    def __init__(self, status: AppStatus | None, lines: Callable[[str], list[str]], *, in_time: bool = True) -> None:
        self._status, self._lines, self._in_time = status, lines, in_time
        self.called: list[str] = []
        self.refuses_cancel = False

    def run(self, app: Any, scheduler: str, cfg: Any) -> str:
        (role,) = app.roles
        self.word = role.args[1].partition(" ")[2]
        self.image = role.image
        return "x://s/probe"

    def wait(self, handle: str, interval_s: float, timeout_s: float) -> AppStatus | None:
        if not self._in_time:
            raise WaitTimeoutError("it still runs")
        return self._status

    def status(self, handle: str) -> AppStatus | None:
        return self._status

    def log_lines(self, handle: str, role: str, k: int) -> list[str]:
        return self._lines(self.word)

    def cancel(self, handle: str) -> None:
        self.called.append("cancel")
        if self.refuses_cancel:
            raise BackendError("connection refused")

    def delete(self, handle: str) -> None:
        self.called.append("delete")


def is_seen(word: str) -> list[str]:
    return ["hello\n", f"{word}\n"]


ENDS = {
    "well": (AppStatus(AppState.SUCCEEDED), True, is_seen, GOOD, "ran, and its log came back", ""),
    "without a log": (AppStatus(AppState.SUCCEEDED), True, lambda _: ["x"], BAD, "is not seen from here", "job_dir"),
    "badly": (AppStatus(AppState.FAILED, msg="no sh"), True, is_seen, BAD, "it is FAILED: no sh", "utils.echo"),
    "silently": (AppStatus(AppState.CANCELLED), True, is_seen, BAD, "it is CANCELLED", "utils.echo"),
    "not at all": (AppStatus(AppState.PENDING, msg="Priority"), False, is_seen, UNKNOWN, "after 7 s it is PENDING", ""),
    "late": (AppStatus(AppState.SUCCEEDED), False, is_seen, GOOD, "ran, and its log came back", ""),
    "nowhere": (None, True, is_seen, BAD, "it is gone", "utils.echo"),
}


@pytest.mark.parametrize("case", ENDS)
@pytest.mark.parametrize("refuses", [True, False])
def test_how_a_probe_ends(case: str, refuses: bool) -> None:
    """The finding says what became of it; the job is removed, and if that fails, the finding is the same."""
    status, in_time, lines, verdict, said, fix = ENDS[case]
    runner: Any = Probed(status, lines, in_time=in_time)
    runner.refuses_cancel = refuses
    (found,) = online.probe(runner, "x", None, "img", 7.0)
    assert (found.verdict, said in found.said, fix in found.fix) == (verdict, True, True), found
    assert not found.said.endswith((": ", ":"))
    assert runner.image == "img"
    assert runner.called == (["cancel"] if refuses else ["cancel", "delete"])


def test_a_probe_that_cannot_be_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the finding, and it is certain."""
    monkeypatch.chdir(tmp_path)
    with get_runner() as runner:
        (found,) = online.probe(runner, "nowhere", None, "", 7.0)
    assert (found.verdict, "nowhere" in found.said) == (BAD, True)
