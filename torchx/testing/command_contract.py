"""Tests of how a command-driven backend handles failing commands: :class:`CommandContract`.

::

    class TestTrouble(CommandContract):
        submit_argv = ("qsub",)
        query_argv = ("qstat",)

        def cluster(self):
            fake = FakeCommandRunner()
            fake.on("qsub", stdout="7")
            fake.on("qstat", stdout="...")
            return fake

        def create_scheduler(self, commands):
            return MyScheduler("contract", commands=commands, sleep=lambda seconds: None)
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from torchx.errors import CommandError, TorchXError, TransientError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.batch.base import BatchScheduler
from torchx.specs import AppDef, Resource, Role
from torchx.testing.commands import FakeCommandRunner, FaultyCommandRunner


class CommandContract:
    """The tests. A fake answers the commands, and `sleep` returns at once."""

    submit_argv: ClassVar[tuple[str, ...]]
    """First words of the command that submits a job."""

    query_argv: ClassVar[tuple[str, ...]]
    """First words of the command that queries the states of jobs."""

    cfg: Mapping[str, Any] = types.MappingProxyType({})
    """Run options for every submission."""

    def cluster(self) -> FakeCommandRunner:
        """Return a runner with the answers of a system that accepts one job and then reports its state."""
        raise NotImplementedError

    def create_scheduler(self, commands: Any) -> Scheduler[Any]:
        """Return a new scheduler that runs its commands with ``commands`` and does not really sleep."""
        raise NotImplementedError

    def app(self) -> AppDef:
        """Return the job to submit."""
        return AppDef("contract", [Role("worker", "/", entrypoint="/bin/echo", resource=Resource(1, 0, 64))])

    def query(self, scheduler: Scheduler[Any], app_id: str) -> None:
        """Query the state of the job, without a cache."""
        if isinstance(scheduler, BatchScheduler):
            scheduler.fresh_s = 0
        scheduler.describe(app_id)

    @pytest.fixture
    def trouble(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[FakeCommandRunner, FaultyCommandRunner, Scheduler[Any]]:
        """Return the fake cluster, the faults in front of it, and a scheduler that uses both."""
        monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
        fake = self.cluster()
        faulty = FaultyCommandRunner(fake)
        return fake, faulty, self.create_scheduler(faulty)

    def submissions(self, fake: FakeCommandRunner) -> int:
        """How many jobs were submitted to the system."""
        n = len(self.submit_argv)
        return sum(tuple(call.argv[:n]) == self.submit_argv for call in fake.calls)

    def test_a_lost_answer_does_not_start_the_job_twice(self, trouble: Any) -> None:
        """If the response to a submission is lost, the job is found or an error is raised. It is never resubmitted."""
        fake, faulty, scheduler = trouble
        faulty.lose_answer(*self.submit_argv)
        try:
            app_id = scheduler.submit(self.app(), self.cfg)
        except TransientError:
            app_id = None
        assert self.submissions(fake) == 1
        if app_id is not None:
            assert scheduler.describe(app_id) is not None

    def test_a_refusal_leaves_nothing(self, trouble: Any, tmp_path: Any) -> None:
        """If the system rejects a job, one error quotes its message, and no files are left behind."""
        fake, faulty, scheduler = trouble
        faulty.fail(*self.submit_argv, stderr="you may not, said the cluster", times=100)
        before = _files(tmp_path)
        with pytest.raises(TorchXError, match="you may not, said the cluster"):
            scheduler.submit(self.app(), self.cfg)
        assert self.submissions(fake) == 0
        assert _files(tmp_path) == before

    def test_a_question_is_asked_again(self, trouble: Any) -> None:
        """A failed query is retried. If the system stays unreachable, a TransientError is raised."""
        _, faulty, scheduler = trouble
        app_id = scheduler.submit(self.app(), self.cfg)
        faulty.unreachable(*self.query_argv, times=2)
        self.query(scheduler, app_id)
        assert faulty.met == 2
        faulty.unreachable(*self.query_argv, times=1000)
        with pytest.raises(TransientError):
            self.query(scheduler, app_id)

    @pytest.mark.parametrize(
        "stdout", [None, "", "\0\xff", "<?xml version='1.0'?><x>", "{", "a b c d\n" * 3], ids=lambda s: repr(s)[:12]
    )
    def test_a_damaged_answer_is_one_error(self, trouble: Any, stdout: str | None) -> None:
        """Truncated or unexpected output is either handled or raises a torchx error, never another exception."""
        _, faulty, scheduler = trouble
        app_id = scheduler.submit(self.app(), self.cfg)
        faulty.garble(*self.query_argv, stdout=stdout, times=1000)
        for ask in (lambda: self.query(scheduler, app_id), scheduler.list):
            _quiet_or_ours(ask)
        assert faulty.met

    @pytest.mark.parametrize("which", ["submit_argv", "query_argv"])
    def test_a_missing_program_has_a_hint(self, trouble: Any, which: str) -> None:
        """If the system's commands are not installed, the error names the command and has a hint."""
        _, faulty, scheduler = trouble
        app_id = scheduler.submit(self.app(), self.cfg) if which == "query_argv" else ""
        argv = getattr(self, which)
        faulty.missing(*argv, times=1000)
        with pytest.raises(CommandError, match=f"`{argv[0]}`") as caught:
            if which == "query_argv":
                self.query(scheduler, app_id)
            else:
                scheduler.submit(self.app(), self.cfg)
        assert caught.value.hint


def _quiet_or_ours(ask: Callable[[], object]) -> None:
    try:
        ask()
    except TorchXError:
        return


def _files(folder: Any) -> list[str]:
    return sorted(str(p) for p in folder.rglob("*") if p.is_file())
