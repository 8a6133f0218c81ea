"""A backend of fifty lines keeps the contract: what is asked of everybody is little."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.commands import CommandRunner
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, macros, runopts
from torchx.testing import FakeCommandRunner, SchedulerContract
from torchx.util.strings import normalize_str

STATES = {"Q": AppState.PENDING, "R": AppState.RUNNING, "C": AppState.SUCCEEDED, "F": AppState.FAILED}


@dataclass
class Request:
    """A job as the `q` tool takes it: one line per replica."""

    app_id: str
    lines: list[str]

    def __str__(self) -> str:
        return "\n".join(self.lines)


class QScheduler(Scheduler[Mapping[str, CfgVal]]):
    """Submits by `qput`, asks by `qget`."""

    capabilities = Capabilities(cancel=True, delete=True, list=True, multi_role=True)

    def __init__(self, session_name: str, *, runner: CommandRunner) -> None:
        super().__init__("q", session_name)
        self._runner = runner

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("queue", type_=str, default="main", help="Queue to submit to")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[Request]:
        app_id = make_unique(normalize_str(app.name)[:40] or "job")
        lines = []
        for role in app.roles:
            if role.mounts or role.min_replicas is not None or role.max_retries:
                raise NotSupportedError(f"`q` can neither mount, nor scale, nor retry role `{role.name}`")
            for k in range(role.num_replicas):
                values = macros.Values(
                    img_root="/", app_id=app_id, replica_id=str(k), rank0_env="Q_HOST0", base_img_root="/"
                )
                r = values.apply(role)
                lines.append(f"{cfg['queue']} {r.name}/{k} {r.entrypoint} {r.args!r} {r.env!r} {r.metadata!r}")
        return AppDryRunInfo(Request(app_id, lines), str)

    def schedule(self, dryrun_info: AppDryRunInfo[Request]) -> str:
        self._runner.run(["qput", dryrun_info.request.app_id], stdin=str(dryrun_info.request)).check()
        return dryrun_info.request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        answer = self._runner.run(["qget", app_id])
        if answer.returncode:
            return None
        return DescribeAppResponse(app_id=app_id, state=STATES.get(answer.stdout.strip(), AppState.UNKNOWN))

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        rows: Iterable[list[str]] = (line.split() for line in self._runner.run(["qget"]).check().stdout.splitlines())
        return [ListAppResponse(app_id, STATES.get(state, AppState.UNKNOWN)) for app_id, state in rows]

    def _cancel_existing(self, app_id: str) -> None:
        self._runner.run(["qdel", app_id]).check()


class TestQ(SchedulerContract):
    """The contract, against scripted answers."""

    cfg = types.MappingProxyType({"queue": "test"})
    raw_states = STATES

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        fake = FakeCommandRunner()
        fake.on("qget", stdout="job-1 R\njob-2 ?\n")
        fake.on("qget", self.unknown_id, returncode=1, stderr="no such job")
        return QScheduler("contract", runner=fake)

    def map_state(self, raw: str) -> AppState:
        return STATES.get(raw, AppState.UNKNOWN)


def test_submission_goes_through_the_runner() -> None:
    """What is submitted is what the dryrun shows, in one command."""
    fake = FakeCommandRunner()
    fake.on("qput")
    fake.on("qget", stdout="C")
    scheduler = QScheduler("s", runner=fake)
    app = SchedulerContract().app("hi")
    app_id = scheduler.submit(app, {})
    assert [c.argv for c in fake.calls] == [["qput", app_id]]
    assert fake.calls[0].stdin.startswith("main worker/0 /bin/echo ['hi']")
    described = scheduler.describe(app_id)
    assert described is not None
    assert described.state is AppState.SUCCEEDED
