"""A torchx scheduler for mqueue: one job for each app, its replicas side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.api import Capabilities, ListAppResponse, Stream, StructuredOpts
from torchx.schedulers.batch.base import BatchScheduler, Known, Site, Submission
from torchx.schedulers.batch.folders import JobFolder, folder_name
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.facts import JobFacts, ReplicaFacts, RoleFacts
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import NameRule
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.shell import env_words, exports, quote
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role

# 1. Tables: the states, valid names, the capabilities.
STATES = {"R": AppState.RUNNING, "C": AppState.SUCCEEDED, "F": AppState.FAILED, "K": AppState.CANCELLED}
NAMES = NameRule(60, "A-Za-z0-9_-", letter_first=True)
CAPABILITIES = Capabilities(
    logs=True, log_streams=("stdout", "stderr"), log_follow=True, cancel=True, delete=True, list=True, multi_role=True,
    durable=True, describe_many=True,
)  # fmt: skip


# 2. Run options; the text below each is its help.
@dataclass
class Opts(StructuredOpts):
    nice: int = 0
    """how nice the job is to others, 0 to 19"""


# 3. The request: what `--dryrun` shows.
@dataclass
class Request:
    app_id: str
    app: AppDef
    opts: Opts
    cwd: str

    def script(self, folder: str) -> str:
        """Every user value goes through `quote`, `exports` or `env_words`."""
        lines = ["#!/bin/sh", f"cd {quote(self.cwd)}", "pids="]
        for replica in replicas(self.app, self.app_id, rank0_env="MINE_RANK0"):
            role, where = replica.role, f"{quote(folder)}/{quote(folder_name(replica.role.name))}/{replica.k}"
            command = " ".join(["exec", *env_words(role.env), quote(role.entrypoint), *map(quote, role.args)])
            body = "; ".join(["export MINE_RANK0=localhost", *exports(role.env), command])
            lines += [
                f"mkdir -p {where}",
                f"(({body}) </dev/null >{where}/stdout.log 2>{where}/stderr.log; code=$?",
                f'echo $code >{where}/exit; exit $code) & pids="$pids $!"',
            ]
        return "\n".join([*lines, "code=0", "for pid in $pids; do wait $pid || code=$?; done; exit $code", ""])

    def __str__(self) -> str:
        return f"msub {self.app_id} job.sh\n\n{self.script('JOB_FOLDER')}"

    __repr__ = __str__


# 4. Answers to facts: functions of text. An unknown state is UNKNOWN, never an error. torchx itself derives from the
# facts which replica failed first, and the message, in the same way for all backends.
def app_state(raw: str) -> AppState:
    return STATES.get(raw, AppState.UNKNOWN)


def parse_mstat(text: str) -> dict[str, tuple[str, str]]:
    """Name of a job to its id and state."""
    rows = [line.split() for line in text.splitlines()]
    return {row[1]: (row[0], row[2]) for row in rows if len(row) == 3}


def facts_of(app_id: str, raw: str, roles: list[Role], exits: Mapping[tuple[str, int], str]) -> JobFacts:
    """The facts of a job: its state as mqueue reports it, and the exit codes that its replicas wrote."""
    state, found = app_state(raw), []
    for role in roles:
        members = []
        for k in range(role.num_replicas):
            code = int(exits[role.name, k]) if (role.name, k) in exits else None
            own = state if code is None else AppState.FAILED if code else AppState.SUCCEEDED
            members.append(ReplicaFacts(role=role.name, replica=k, state=own, native=raw, exit_code=code))
        found.append(RoleFacts(name=role.name, replicas=members))
    # unattended: our script does not end the others when a replica fails
    return JobFacts(app_id=app_id, roles=found, state=state, native=raw, unattended=True, definition=roles)


# 5. The scheduler: a command for each query. The base class runs the commands.
class MineScheduler(BatchScheduler):
    options = Opts  # and `ssh`: it also works from a laptop
    capabilities = CAPABILITIES
    programs = "mqueue's commands (msub, mstat, mkill)"
    wait_hint = 0.2  # polling interval in seconds; use a longer one for a cluster

    def __init__(self, session_name: str, **parts: Any) -> None:
        super().__init__("mine", session_name, **parts)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[Request]:
        for role in app.roles:  # reject unsupported features
            if role.mounts or role.min_replicas is not None or role.max_retries:
                raise NotSupportedError(f"mqueue can neither mount, nor scale, nor retry role `{role.name}`")
        app_id = make_unique(NAMES.make(app.name, room=15))
        request = Request(app_id, app, Opts.from_cfg(cfg), self._site_of(cfg).files.cwd())
        request.script("")  # find errors now
        return AppDryRunInfo(request, str)

    def _submission(self, info: AppDryRunInfo[Request], site: Site) -> Submission:
        folder = self.folders(site).place(info.request.app_id)
        argv = ["msub", info.request.app_id, f"{folder}/job.sh"]
        return Submission(info.request.app_id, argv, folder, {"job.sh": info.request.script(folder)})

    def _parse_submitted(self, done: Completed) -> str:
        return done.argv[1]  # the job's unique name is its id here

    def _find_submitted(self, site: Site, token: str) -> str | None:
        return token if token in self._mstat(site) else None  # called when the answer of `msub` was lost

    def _mstat(self, site: Site) -> dict[str, tuple[str, str]]:
        return parse_mstat(self.run_command(site, ["mstat"]).check().stdout)

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:
        rows, found = self._mstat(site), {}  # one command for all jobs
        for app_id in app_ids:
            folder = folders.get(app_id)
            if folder is not None and app_id in rows:
                roles = folder.roles()
                files = {f"{folder.replica(r.name, k)}/exit": (r.name, k) for r in roles for k in range(r.num_replicas)}
                left = site.files.grown(dict.fromkeys(files, 0))  # read all of them at once
                exits = {files[path]: text.decode().strip() for path, text in left.items()}
                found[app_id] = Known(facts_of(app_id, rows[app_id][1], roles, exits), folder)
        return found

    def _query_all(self, site: Site) -> list[ListAppResponse]:
        return [ListAppResponse(name, app_state(state), name=name) for name, (_, state) in self._mstat(site).items()]

    def _cancel_argv(self, app_id: str) -> list[str]:
        job, _ = self._mstat(self._site(app_id))[app_id]
        return ["mkill", job]

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        if query.since is not None or query.until is not None or query.stream is Stream.COMBINED:
            raise NotSupportedError("mqueue does not know when a line was written")
        return super().open_logs(app_id, replicas, replace(query, stream=query.stream or Stream.STDOUT))


# 6. The factory.
def create_scheduler(session_name: str, **kwargs: Any) -> MineScheduler:
    return MineScheduler(session_name)
