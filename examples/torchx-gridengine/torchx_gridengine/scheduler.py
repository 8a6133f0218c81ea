"""``gridengine``: a job as one array job of Grid Engine, with a task for each replica.

The job's folder (``$TORCHX_HOME/gridengine/<name>``) has its script, its logs and what became of each replica; it must
be on a file system that all hosts share. The name of the job, which no other has, is its id: a submission whose answer
was lost is found again.

Limits: tasks start one by one as Grid Engine finds slots, not as a gang; every task is given what the most demanding
role asks for; of the retry policies only REPLICA; nothing can be mounted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx.errors import BackendError, CommandError, NotSupportedError
from torchx.schedulers.api import Capabilities, ListAppResponse, StructuredOpts
from torchx.schedulers.batch.base import BatchScheduler, Known, Site, Submission
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.names import NameRule
from torchx.schedulers.kit.verdict import state_of
from torchx.specs import AppDef, AppDryRunInfo, CfgVal, RetryPolicy, Role
from torchx_gridengine.answers import Member, Row, facts_of, parse_qacct, parse_qstat
from torchx_gridengine.script import JOB_SCRIPT, render

# https://manpages.debian.org/bookworm/gridengine-client/submit.1.en.html, "-N name"; and no number, for that is an id
NAMES = NameRule(80, "A-Za-z0-9_-", letter_first=True)

CAPABILITIES = Capabilities(
    logs=True,
    log_streams=("stdout", "stderr", "combined"),
    log_since=True,
    log_follow=True,
    cancel=True,
    delete=True,
    list=True,
    retries=("REPLICA",),
    multi_role=True,
    durable=True,
    describe_many=True,
)


@dataclass
class Opts(StructuredOpts):
    """Run options; the text below each is its help."""

    queue: str | None = None
    """queue to submit to (qsub -q)"""

    project: str | None = None
    """project to charge (qsub -P)"""

    time: str | None = None
    """time limit, [hours:minutes:]seconds (qsub -l h_rt)"""

    resources: list[str] | None = None
    """further resources of each task, for example gpu=1,mem_free=8G (qsub -l)"""

    pe: str | None = None
    """parallel environment that gives a task as many slots as its role has cpu, for example smp (qsub -pe)"""


@dataclass
class GridEngineJob:
    """The request: what ``--dryrun`` shows."""

    app_id: str
    argv: list[str]
    app: AppDef
    cwd: str

    def script(self, folder: str) -> str:
        return render(self.app_id, self.app, self.cwd, folder)

    def __str__(self) -> str:
        return f"{' '.join(self.argv)} {JOB_SCRIPT}\n\n# {JOB_SCRIPT}\n{self.script('JOB_FOLDER')}"

    __repr__ = __str__


class GridEngineScheduler(BatchScheduler):
    """Submits by ``qsub``; asks by ``qstat``, and by ``qacct`` what became of replicas that left no word."""

    options = Opts
    capabilities = CAPABILITIES
    transient = re.compile(r"(?i)unable to contact qmaster|commlib error|got (select|send|read) (error|timeout)|gdi")
    programs = "Grid Engine's commands (qsub, qstat, ...)"

    def __init__(self, session_name: str, **parts: Any) -> None:
        super().__init__("gridengine", session_name, **parts)

    # -- submission --------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[GridEngineJob]:
        for role in app.roles:
            if role.mounts or role.min_replicas is not None:
                raise NotSupportedError(f"Grid Engine can neither mount nor scale role `{role.name}`")
            if role.max_retries and role.retry_policy is not RetryPolicy.REPLICA:
                raise NotSupportedError(
                    f"Grid Engine cannot start the others again when a replica of role `{role.name}` fails",
                    hint="set its `retry_policy` to `RetryPolicy.REPLICA`, or `max_retries` to 0",
                )
        opts, app_id = Opts.from_cfg(cfg), make_unique(NAMES.make(app.name, room=15))
        tasks = sum(role.num_replicas for role in app.roles)
        argv = ["qsub", "-terse", "-N", app_id, "-t", f"1-{tasks}", "-o", "/dev/null", "-j", "y", "-v", "PATH"]
        requests = [("-l", word) for word in opts.resources or []] + (
            [("-l", f"h_rt={opts.time}")] if opts.time else []
        )
        for option, value in [("-q", opts.queue), ("-P", opts.project), *requests]:
            argv += [option, value] if value else []
        slots = max([1, *(role.resource.cpu for role in app.roles)])
        argv += ["-pe", opts.pe, str(slots)] if opts.pe else []
        request = GridEngineJob(
            app_id, [*argv, "-b", "y", "-shell", "n", "/bin/sh"], app, self._site_of(cfg).files.cwd()
        )
        request.script("")  # whether it can be written as a script is found out now
        return AppDryRunInfo(request, str)

    def _submission(self, info: AppDryRunInfo[GridEngineJob], site: Site) -> Submission:
        job = info.request
        folder = self.folders(site).place(job.app_id)
        files = {JOB_SCRIPT: job.script(folder)}
        return Submission(job.app_id, [*job.argv, f"{folder}/{JOB_SCRIPT}"], folder, files)

    def _parse_submitted(self, done: Completed) -> str:
        return done.argv[done.argv.index("-N") + 1]  # the name is the id

    def _find_submitted(self, site: Site, token: str) -> str | None:
        return token if any(row.name == token for row in self._qstat(site)) or self._facts(site, [token], {}) else None

    def _refusal(self, done: Completed) -> BackendError:
        said = " ".join(line.strip() for line in (done.stderr or done.stdout).splitlines() if line != "Exiting.")
        reason = said.removeprefix("Unable to run job: ") or "it said nothing"
        return CommandError(f"Grid Engine refused the job: {reason}", argv=done.argv, returncode=done.returncode)

    # -- what became of it -------------------------------------------------------------------------

    def _qstat(self, site: Site) -> list[Row]:
        return parse_qstat(self.run_command(site, ["qstat", "-u", "$user", "-g", "d", "-xml"]).check().stdout)

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:
        rows: dict[str, dict[int, Row]] = {}
        for row in self._qstat(site):
            rows.setdefault(row.name, {})[row.task] = row
        found = {}
        for app_id in app_ids:
            folder = folders.get(app_id) or JobFolder(site.files, self.folders(site).place(app_id))
            if NAMES.obeys(app_id) and folder.is_ours():
                roles = folder.roles()
                members = self._members(site, app_id, folder, roles, rows.get(app_id, {}))
                found[app_id] = Known(facts_of(app_id, roles, members), folder)
        return found

    def _members(
        self, site: Site, app_id: str, folder: JobFolder, roles: list[Role], rows: dict[int, Row]
    ) -> list[Member]:
        members = [Member(role.name, k) for role in roles for k in range(role.num_replicas)]
        files = {(m, name): f"{folder.replica(m.role, m.k)}/{name}" for m in members for name in ("started", "exit")}
        notes = site.files.grown(dict.fromkeys(files.values(), 0))  # all of them by one look
        for task, m in enumerate(members, 1):
            m.row = rows.get(task)
            m.started, m.exit = (notes.get(files[m, name], b"").decode().split() for name in ("started", "exit"))
        if any(m.row is None and not m.exit for m in members):  # it left no word
            gone = parse_qacct(self.run_command(site, ["qacct", "-j", app_id]).stdout)
            for task, m in enumerate(members, 1):
                m.account = gone.get(task)
        return members

    def _query_all(self, site: Site) -> list[ListAppResponse]:
        names = site.files.names(site.files.torchx_home(self.backend))
        return [ListAppResponse(i, state_of(job.facts), name=i) for i, job in self._facts(site, names, {}).items()]

    # -- the end -----------------------------------------------------------------------------------

    def _cancel_argv(self, app_id: str) -> list[str]:
        return ["qdel", app_id]

    def _accept_cancel(self, done: Completed) -> None:
        if not re.search("does not exist|already in deletion", done.stdout + done.stderr):
            done.check()


def create_scheduler(session_name: str, **kwargs: Any) -> GridEngineScheduler:  # noqa: ARG001  # for other schedulers
    """The factory that the entry point names."""
    return GridEngineScheduler(session_name)
