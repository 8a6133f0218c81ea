"""What a command-driven backend promises when its commands are in trouble, as tests: :class:`CommandContract`.

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
from torchx.testing.commands import FakeCommandRunner
from torchx.testing.faults import FaultyCommandRunner


class CommandContract:
    """The tests. Nothing runs: the commands are answered by a fake, and time by a `sleep` that returns at once."""

    submit_argv: ClassVar[tuple[str, ...]]
    """How the command begins that submits a job."""

    query_argv: ClassVar[tuple[str, ...]]
    """How the command begins that asks what became of jobs."""

    cfg: Mapping[str, Any] = types.MappingProxyType({})
    """Run options for every submission."""

    def cluster(self) -> FakeCommandRunner:
        """Answers as a system would that takes a job, and then knows it."""
        raise NotImplementedError

    def create_scheduler(self, commands: Any) -> Scheduler[Any]:
        """A fresh scheduler whose commands run by ``commands``, and that does not really sleep."""
        raise NotImplementedError

    def app(self) -> AppDef:
        """The job."""
        return AppDef("contract", [Role("worker", "/", entrypoint="/bin/echo", resource=Resource(1, 0, 64))])

    def told(self, scheduler: Scheduler[Any], app_id: str) -> None:
        """Asks about the job, afresh."""
        if isinstance(scheduler, BatchScheduler):
            scheduler.fresh_s = 0  # an answer is kept for half a second
        scheduler.describe(app_id)

    @pytest.fixture
    def trouble(
        self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[FakeCommandRunner, FaultyCommandRunner, Scheduler[Any]]:
        """The fake, the faults in front of it, and a scheduler that goes through them."""
        monkeypatch.setenv("TORCHX_HOME", str(tmp_path / "home"))
        fake = self.cluster()
        faulty = FaultyCommandRunner(fake)
        return fake, faulty, self.create_scheduler(faulty)

    def submissions(self, fake: FakeCommandRunner) -> int:
        """How often the system was handed a job."""
        n = len(self.submit_argv)
        return sum(tuple(call.argv[:n]) == self.submit_argv for call in fake.calls)

    def test_a_lost_answer_does_not_start_the_job_twice(self, trouble: Any) -> None:
        """The system took the job and its answer was lost: it is found, or the error says so; never submitted again."""
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
        """A job that the system refuses is one error, with the system's words, and no folder is left."""
        fake, faulty, scheduler = trouble
        faulty.fail(*self.submit_argv, stderr="you may not, said the cluster", times=100)
        before = _files(tmp_path)
        with pytest.raises(TorchXError, match="you may not, said the cluster"):
            scheduler.submit(self.app(), self.cfg)
        assert self.submissions(fake) == 0
        assert _files(tmp_path) == before

    def test_a_question_is_asked_again(self, trouble: Any) -> None:
        """A system that cannot be reached for a moment is asked again, and one that stays away is a TransientError."""
        _, faulty, scheduler = trouble
        app_id = scheduler.submit(self.app(), self.cfg)
        faulty.unreachable(*self.query_argv, times=2)
        self.told(scheduler, app_id)
        assert faulty.met == 2
        faulty.unreachable(*self.query_argv, times=1000)
        with pytest.raises(TransientError):
            self.told(scheduler, app_id)

    @pytest.mark.parametrize(
        "stdout", [None, "", "\0\xff", "<?xml version='1.0'?><x>", "{", "a b c d\n" * 3], ids=lambda s: repr(s)[:12]
    )
    def test_a_damaged_answer_is_one_error(self, trouble: Any, stdout: str | None) -> None:
        """Output that was cut off, or is something else, is understood or is one of our errors; nothing else."""
        _, faulty, scheduler = trouble
        app_id = scheduler.submit(self.app(), self.cfg)
        faulty.garble(*self.query_argv, stdout=stdout, times=1000)
        for ask in (lambda: self.told(scheduler, app_id), scheduler.list):
            _quiet_or_ours(ask)
        assert faulty.met

    @pytest.mark.parametrize("which", ["submit_argv", "query_argv"])
    def test_a_missing_program_has_a_hint(self, trouble: Any, which: str) -> None:
        """On a machine without the system's commands the error names the command, and the hint says what to do."""
        _, faulty, scheduler = trouble
        app_id = scheduler.submit(self.app(), self.cfg) if which == "query_argv" else ""
        argv = getattr(self, which)
        faulty.missing(*argv, times=1000)
        with pytest.raises(CommandError, match=f"`{argv[0]}`") as caught:
            if which == "query_argv":
                self.told(scheduler, app_id)
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
