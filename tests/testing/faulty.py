"""A small backend that keeps the contract, and what each fault makes of it. Run by ``test_contract_faults.py``."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchx.errors import NotFoundError, NotSupportedError
from torchx.schedulers.api import Capabilities, DescribeAppResponse, ListAppResponse, Scheduler, Stream
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import NameRule
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.verdict import fold
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, Role, RoleStatus, runopts
from torchx.testing import SchedulerContract

STATES = {"run": AppState.RUNNING, "ok": AppState.SUCCEEDED, "bad": AppState.FAILED, "cut": AppState.CANCELLED}
NAMES = NameRule(60)


def state_of(raw: str) -> AppState:
    return STATES.get(raw, AppState.UNKNOWN)


@dataclass
class Request:
    app_id: str
    roles: list[Role]
    members: list[Role]

    def __str__(self) -> str:
        return f"{self.app_id}: " + "\n".join(
            f"{r.entrypoint} {r.args} {r.env} {r.metadata} {r.mounts}" for r in self.members
        )

    __repr__ = __str__


class Job:
    """Processes of this one."""

    def __init__(self, request: Request, folder: str) -> None:
        self.request, self.cut = request, False
        self.processes = []
        for i, r in enumerate(request.members):
            paths = [os.path.join(folder, f"{request.app_id}-{i}.{s}") for s in ("stdout", "stderr")]
            with open(paths[0], "wb") as out, open(paths[1], "wb") as err:
                argv = [r.entrypoint, *r.args]
                env = {**os.environ, **r.env}
                self.processes.append(subprocess.Popen(argv, stdout=out, stderr=err, env=env, start_new_session=True))

    def raw(self, i: int) -> str:
        code = self.processes[i].poll()
        if code is None:
            return "run"
        return "cut" if self.cut and code < 0 else "bad" if code else "ok"


class Good(Scheduler[Mapping[str, Any]]):
    """Runs jobs as processes of its own."""

    capabilities = Capabilities(
        logs=True,
        log_streams=("stdout", "stderr"),
        log_follow=True,
        cancel=True,
        delete=True,
        list=True,
        multi_role=True,
    )

    def __init__(self) -> None:
        super().__init__("good", "contract")
        self.folder = tempfile.mkdtemp(dir=os.environ["FAULTY_FOLDER"])
        self.jobs: dict[str, Job] = {}

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("queue", type_=str, default="main", help="where to")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        for role in app.roles:
            if role.mounts or role.min_replicas is not None or role.max_retries:
                raise NotSupportedError("no")
        app_id = f"{NAMES.make(app.name, room=9)}-{uuid.uuid4().hex[:8]}"
        return AppDryRunInfo(Request(app_id, app.roles, [r.role for r in replicas(app, app_id, rank0_env="R0")]), str)

    def schedule(self, dryrun_info: AppDryRunInfo[Request]) -> str:
        self.jobs[dryrun_info.request.app_id] = Job(dryrun_info.request, self.folder)
        return dryrun_info.request.app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        job = self.jobs.get(app_id)
        if job is None:
            return None
        found, i = [], 0
        for role in job.request.roles:
            status = RoleStatus(role.name, [])
            for k in range(role.num_replicas):
                status.replicas.append(ReplicaStatus(k, state_of(job.raw(i)), role.name, ""))
                i += 1
            found.append(status)
        codes = [p.poll() for p in job.processes]
        state = fold(r.state for status in found for r in status.replicas)
        return DescribeAppResponse(
            app_id, state, msg=f"exit codes {codes}", roles=job.request.roles, roles_statuses=found
        )

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        return [ListAppResponse(i, self.describe(i).state) for i in self.jobs]

    def log_iter(self, app_id: str, role_name: str, k: int = 0, *args: Any, **query: Any) -> Iterable[str]:
        if app_id not in self.jobs:
            raise NotFoundError("no such job")
        names = ("regex", "since", "until", "should_tail", "streams")
        wanted = LogQuery.of(**{**dict.fromkeys(names), **dict(zip(names, args, strict=False)), **query})
        if wanted.since or wanted.until or wanted.stream is Stream.COMBINED:
            raise NotSupportedError("no")
        job = self.jobs[app_id]
        if wanted.follow:
            job.processes[k].wait()
        stream = wanted.stream.value if wanted.stream else "stdout"
        with open(os.path.join(self.folder, f"{app_id}-{k}.{stream}"), encoding="utf-8") as f:
            yield from wanted.matching(list(f))

    def _cancel_existing(self, app_id: str) -> None:
        job = self.jobs[app_id]
        for process in job.processes:
            if process.poll() is None:
                job.cut = True
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        del self.jobs[app_id]


class Contract(SchedulerContract):
    can_run = True
    raw_states = STATES
    gather = "sleep 0.1"  # all run as soon as the job is submitted
    make: type[Good] = Good

    def create_scheduler(self, folder: str) -> Scheduler[Any]:
        return self.make()

    def map_state(self, raw: str) -> AppState:
        return state_of(raw)


# -- faults: one each, the docstring says which ------------------------------------------------------------------


class ChangesTheApp(Good):
    """A variable is added to the role that was given."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        app.roles[0].env["ADDED"] = "1"
        return super()._submit_dryrun(app, cfg)


class DiffersEachTime(Good):
    """Something else than the id is random."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        info = super()._submit_dryrun(app, cfg)
        info.request.members[0].env["PORT"] = uuid.uuid4().hex
        return info


class LeavesMacros(Good):
    """Args are handed on as they are."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        info = super()._submit_dryrun(app, cfg)
        info.request.members = [role for role in app.roles for _ in range(role.num_replicas)]
        return info


class LeavesMacrosInMetadata(Good):
    """Only args and env are looked at."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        info = super()._submit_dryrun(app, cfg)
        for role in info.request.members:
            role.metadata = app.roles[0].metadata
        return info


class TakesTheNameAsId(Good):
    """The id is the name of the app."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        info = super()._submit_dryrun(app, cfg)
        info.request.app_id = app.name
        return info

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return super().describe(app_id) if app_id in self.jobs else None


class InventsJobs(Good):
    """A job that nobody knows is described."""

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return super().describe(app_id) or DescribeAppResponse(app_id)


class RaisesForUnknownJobs(Good):
    """A job that nobody knows is a KeyError."""

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        self.jobs[app_id]
        return super().describe(app_id)


class ListNeedsOptions(Good):
    """`list(None)` fails."""

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        dict(cfg)
        return super().list(cfg)


class CancelsOnce(Good):
    """Cancelling a job again is an error."""

    def _cancel_existing(self, app_id: str) -> None:
        if self.jobs[app_id].cut:
            raise ValueError("it was cancelled already")
        super()._cancel_existing(app_id)

    def _delete_existing(self, app_id: str) -> None:
        del self.jobs[app_id]


class CancelRewritesHistory(Good):
    """A job that SUCCEEDED is CANCELLED after `cancel`."""

    gone: frozenset[str] = frozenset()

    def _cancel_existing(self, app_id: str) -> None:
        super()._cancel_existing(app_id)
        self.gone |= {app_id}

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        found = super().describe(app_id)
        if found is not None and app_id in self.gone:
            found.state = AppState.CANCELLED
        return found


class ClaimsToDelete(Good):
    """`delete` only cancels."""

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)


class ClaimsSince(Good):
    """The capabilities say that `since` is honoured; it is ignored."""

    capabilities = Capabilities(**{**vars(Good.capabilities), "log_since": True})

    def log_iter(self, app_id: str, role_name: str, k: int = 0, *args: Any, **query: Any) -> Iterable[str]:
        return super().log_iter(app_id, role_name, k, *args, **{**query, "since": None, "until": None})


class ClaimsCombined(Good):
    """The capabilities say that both outputs come together; only stdout does."""

    capabilities = Capabilities(**{**vars(Good.capabilities), "log_streams": ("stdout", "stderr", "combined")})

    def log_iter(self, app_id: str, role_name: str, k: int = 0, *args: Any, **query: Any) -> Iterable[str]:
        streams = query.pop("streams", None)
        streams = Stream.STDOUT if streams is Stream.COMBINED else streams
        return super().log_iter(app_id, role_name, k, *args, streams=streams, **query)


class ClaimsLogs(Good):
    """The capabilities say that there are no logs; and an empty one comes instead of a refusal."""

    capabilities = Capabilities(cancel=True, delete=True, list=True, multi_role=True)

    def log_iter(self, app_id: str, role_name: str, k: int = 0, *args: Any, **query: Any) -> Iterable[str]:
        return []


class EmptyLogOfAnybody(Good):
    """The log of a job that does not exist is an empty one."""

    def log_iter(self, app_id: str, role_name: str, k: int = 0, *args: Any, **query: Any) -> Iterable[str]:
        return super().log_iter(app_id, role_name, k, *args, **query) if app_id in self.jobs else []


class IgnoresMounts(Good):
    """A role with mounts, retries or `min_replicas` is taken, and these are ignored."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, Any]) -> AppDryRunInfo[Request]:
        plain = {"mounts": [], "min_replicas": None, "max_retries": 0}
        roles = [Role(**{**vars(role), **plain}) for role in app.roles]
        return super()._submit_dryrun(AppDef(app.name, roles), cfg)


class GoesThroughAShell(Good):
    """Words are joined with blanks, and a shell takes them apart; scripts for a shell come through."""

    def schedule(self, dryrun_info: AppDryRunInfo[Request]) -> str:
        for role in dryrun_info.request.members:
            words = role.args[1:] if role.entrypoint == "/bin/sh" else [role.entrypoint, *role.args]
            role.args = ["-c", " ".join(words)]
            role.entrypoint = "/bin/sh"
        return super().schedule(dryrun_info)


class KeepsTheReason(Good):
    """A job that fails does not say how."""

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        found = super().describe(app_id)
        if found is not None:
            found.msg = "something went wrong"
        return found


class StripsLines(Good):
    """Lines come without their line end."""

    def log_iter(self, app_id: str, role_name: str, k: int = 0, *args: Any, **query: Any) -> Iterable[str]:
        return (line.rstrip("\n") for line in super().log_iter(app_id, role_name, k, *args, **query))


class OptionWithoutHelp(Good):
    """A run option says nothing of itself."""

    def _run_opts(self) -> runopts:
        opts = super()._run_opts()
        opts.add("partition", type_=str, help=" ")
        return opts


class DescribesOneByOne(Good):
    """`describe_many` leaves out what it does not know."""

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        return {i: found for i in app_ids if (found := self.describe(i)) is not None}


class TestGood(Contract):
    """No fault."""


class TestRawStates(Contract):
    """A state that the table does not have is a KeyError."""

    def map_state(self, raw: str) -> AppState:
        return STATES[raw]


class TestWrongState(Contract):
    """One state of the table is taken for another."""

    def map_state(self, raw: str) -> AppState:
        return AppState.FAILED if raw == "cut" else state_of(raw)


for _fault in [value for value in list(vars().values()) if isinstance(value, type) and issubclass(value, Good)]:
    if _fault is not Good:
        globals()[f"Test{_fault.__name__}"] = type(f"Test{_fault.__name__}", (Contract,), {"make": _fault})
