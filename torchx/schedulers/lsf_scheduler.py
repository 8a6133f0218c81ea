"""``lsf``: one LSF job for each replica, tied together by a job group; submitted all or none.

What is produced: ``submit.sh`` with a ``bsub`` for each replica, and ``replicas.sh``, which those jobs run
(:mod:`torchx.schedulers.lsf.script`). The first job is submitted on hold and let go last, and all others wait for
it to start: a submission that breaks off leaves nothing that runs. A replica runs in the role's image if that is a
folder (a workspace: ``jobdir``), else in the folder of submission; with ``docker`` in a container of the image.

Limits: the job's folder must be on a file system that all hosts share. Replicas are started one by one as LSF finds
room, not as a gang: those that run wait for the others. Tested on a look-alike, not on LSF itself; see docs/lsf.md.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterable, Mapping

from torchx.errors import CommandError, NotFoundError
from torchx.schedulers.api import NONE, DescribeAppResponse, ListAppResponse, Stream
from torchx.schedulers.batch.base import COMMAND_TIMEOUT_S, BatchScheduler, Known, Site, Submission
from torchx.schedulers.batch.folders import STDERR_LOG, STDOUT_LOG, JobFolder, folder_name
from torchx.schedulers.batch.ssh.site_workspace import SiteWorkspaceMixin
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.replicas import replicas
from torchx.schedulers.kit.verdict import describe, state_of
from torchx.schedulers.lsf.answers import facts_of
from torchx.schedulers.lsf.bsub import (
    NAMES,
    NO_LSF,
    RANK0_HOST,
    check,
    cleanup_str,
    find_rank0_host,
    find_rank0_host_from_bhosts_stdout,
    get_bsub,
    get_command,
    get_docker_command,
    get_submit_script,
    in_docker,
    job_dir,
    refusal,
    sample,
)
from torchx.schedulers.lsf.folders import jobs_of
from torchx.schedulers.lsf.options import Opts
from torchx.schedulers.lsf.reasons import STATES, app_state
from torchx.schedulers.lsf.rows import FORMAT, Row, group_of, job_name, rows, was_let_go
from torchx.schedulers.lsf.script import (
    ENV_RANK0_HOST,
    REPLICAS_FILE,
    STARTED_FILE,
    SUBMIT_FILE,
    render_replicas,
)
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, Role, runopts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import Any

    from torchx.schedulers.kit.facts import JobFacts

    _Jobs = list[ListAppResponse]
else:
    from torchx.util.records import dataclass

__all__ = [
    "JOB_STATE",
    "NONE",
    "RANK0_HOST",
    "LsfBsub",
    "LsfScheduler",
    "Opts",
    "bjobs_msg_to_describe",
    "bjobs_msg_to_list",
    "bjobs_msg_to_log_file",
    "cleanup_str",
    "create_scheduler",
    "find_rank0_host",
    "find_rank0_host_from_bhosts_stdout",
    "get_bsub",
    "get_command",
    "get_docker_command",
    "get_job_state",
    "get_submit_script",
]

JOB_STATE: dict[str, AppState] = STATES
"""LSF's states to ours."""

_BSUB_S = 0.5  # at most, on the average
_END_S = 30  # JOB_TERMINATE_INTERVAL, between the signals of bkill, is 10 s unless the site says otherwise

CAPABILITIES = Capabilities(
    logs=True,
    log_streams=("stdout", "stderr", "combined"),
    log_since=True,
    log_follow=True,
    cancel=True,
    delete=True,
    list=True,
    retries=("REPLICA", "ROLE", "APPLICATION"),
    elastic=True,
    multi_role=True,
    workspaces=True,
    gpus=True,
    resources=True,
    durable=True,
    describe_many=True,
)


@dataclass
class LsfBsub:
    """A job as it is submitted.

    Attributes:
        jobdir: the folder of the workspace, if there is one.
        app: the job, its macros not yet replaced.
        cmd: the program that reads the submission script.
    """

    jobdir: str | None
    app_id: str
    app: AppDef
    cfg: Opts
    cmd: list[str]

    def materialize(self, rank0_host: str = RANK0_HOST) -> str:
        """The submission script.

        Args:
            rank0_host: put replica 0 on this host; default: where LSF finds room.
        """
        return get_submit_script(self.app_id, self.cmd, self.app, self.cfg, rank0_host)

    def replicas(self, *, whole: bool = True) -> str:
        """The script that the LSF jobs run; not ``whole``: without what is the same in every job."""
        return render_replicas(
            self.app_id,
            self.app,
            list(replicas(self.app, self.app_id, rank0_env=ENV_RANK0_HOST)),
            lambda name, role: get_command(name, role, self.cfg),
            docker=in_docker(self.cfg),
            own_network=in_docker(self.cfg) and not self.cfg.host_network,
            whole=whole,
        )

    def __str__(self) -> str:
        app, rest = sample(self.app)
        shown = LsfBsub(self.jobdir, self.app_id, app, self.cfg, self.cmd)
        return f"# {SUBMIT_FILE}\n{shown.materialize()}\n# {REPLICAS_FILE}\n{shown.replicas(whole=False)}{rest}"

    __repr__ = __str__  # the environment may hold secrets: nowhere is it shown unmasked


# -- what LSF answers --------------------------------------------------------------------------------


def get_job_state(state_str: str, exit_code: str) -> AppState:
    """LSF's state as ours. ``EXIT`` by SIGINT (130), with which ``bkill`` begins, is a cancelled job.

    >>> get_job_state("RUN", "-"), get_job_state("EXIT", "1"), get_job_state("EXIT", "130")
    (RUNNING (3), FAILED (5), CANCELLED (6))
    """
    state = app_state(state_str)
    return AppState.CANCELLED if state is AppState.FAILED and exit_code == "130" else state


def bjobs_msg_to_describe(app_id: str, msg: str) -> DescribeAppResponse | None:
    """One job out of the answer of ``bjobs -a -o FORMAT``; None when it is not in it."""
    found = [row for row in rows(msg) if row.app_id == app_id]
    return describe(facts_of(app_id, found)) if found else None


def bjobs_msg_to_list(msg: str) -> list[ListAppResponse]:
    """All jobs in such an answer."""
    return [_line(facts_of(app_id, found)) for app_id, found in _by_app(rows(msg)).items()]


def _by_app(found: Iterable[Row]) -> dict[str, list[Row]]:
    apps: dict[str, list[Row]] = {}
    for row in found:
        apps.setdefault(row.app_id, []).append(row)
    return apps


def _line(facts: JobFacts) -> ListAppResponse:
    return ListAppResponse(
        app_id=facts.app_id, state=state_of(facts), name=facts.app_id.rpartition("-")[0] or facts.app_id
    )


def bjobs_msg_to_log_file(app_id: str, role_name: str, k: int = 0, streams: Stream | None = None, msg: str = "") -> str:
    """Path of a replica's log, from such an answer; stdout unless ``streams`` says stderr.

    Raises:
        NotFoundError: there is no such replica in it.
    """
    for row in rows(msg):
        if row.name == job_name(app_id, row.role, role_name, k) and row.output_file:
            name = STDERR_LOG if streams is Stream.STDERR else STDOUT_LOG
            return posixpath.join(row.folder, folder_name(role_name), str(k), name)
    raise NotFoundError(f"job `{app_id}` has no replica `{role_name}/{k}`", hint="`torchx status` shows its replicas")


# -- the scheduler -----------------------------------------------------------------------------------

_NOTHING = re.compile(r"(?i)no (unfinished |matching )?job|not found|no such job|already finished")


class LsfScheduler(SiteWorkspaceMixin, BatchScheduler):
    """Submits to IBM Spectrum LSF. Further arguments: see :class:`BatchScheduler`."""

    capabilities = CAPABILITIES
    transient = re.compile(r"(?i)LSF is down|daemon not responding|cannot connect to LSF|communication time ?out")
    programs = "LSF's commands (bsub, bjobs, ...)"

    def __init__(self, session_name: str, **parts: Any) -> None:
        super().__init__("lsf", session_name, **parts)

    def _run_opts(self) -> runopts:
        opts = super()._run_opts()
        opts.update(Opts.as_runopts())
        return opts

    def workspace_opts(self) -> runopts:
        return runopts()  # `jobdir` is ours

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        super().caching_build_workspace_and_update_role(role, {**cfg, "job_dir": job_dir(cfg)}, build_cache)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[LsfBsub]:
        opts = Opts.from_cfg(cfg)
        check(app, opts)
        request = LsfBsub(job_dir(cfg), make_unique(NAMES.make(app.name)), app, opts, ["/bin/bash"])
        request.materialize(), request.replicas()  # whether all of it can be written as a script
        return AppDryRunInfo(request, str)

    def _submission(self, info: AppDryRunInfo[LsfBsub], site: Site) -> Submission:
        request = info.request
        folder = self.folders(site).place(request.app_id, request.jobdir)
        files = {SUBMIT_FILE: request.materialize(), REPLICAS_FILE: request.replicas()}
        argv = [*request.cmd, posixpath.join(folder, SUBMIT_FILE)]
        time_s = COMMAND_TIMEOUT_S + _BSUB_S * sum(role.num_replicas for role in request.app.roles)
        return Submission(request.app_id, argv, folder, files, timeout_s=time_s)

    def _parse_submitted(self, done: Completed) -> str:
        return done.stdout.split()[-1]  # the script prints it

    def _submit(self, site: Site, submission: Submission) -> str | Completed:
        done = super()._submit(site, submission)
        if isinstance(done, Completed) and done.returncode == NO_LSF:
            raise self._missing(site, CommandError(argv=["bsub"], returncode=127))
        if isinstance(done, Completed):  # the script cleans up by itself, unless it was killed
            self.run_command(site, self._cancel_argv(submission.token))
        return done

    _refusal = staticmethod(refusal)

    def _find_submitted(self, site: Site, token: str) -> str | None:
        found = self._bjobs(site, [token])
        if was_let_go(found):
            return token
        if found:  # incomplete: the first is let go last
            self.run_command(site, self._cancel_argv(token))
        return None

    def _find_late(self, site: Site, token: str, folder: JobFolder, age_s: float) -> str | None:
        size = sum(role.num_replicas for role in folder.roles())
        if age_s <= self.submission_s + size * _BSUB_S:  # its script may be at it still
            return token if was_let_go(self._bjobs(site, [token])) else None
        started = posixpath.join(folder.path, STARTED_FILE)  # where LSF has forgotten it
        return self._find_submitted(site, token) or (token if site.files.sizes([started])[started] else "")

    def _bjobs(self, site: Site, app_ids: list[str]) -> list[Row]:
        only = ["-g", group_of(app_ids[0])] if len(app_ids) == 1 else []
        done = self.run_command(site, ["bjobs", "-a", "-o", FORMAT, *only])
        found = [row for row in rows(done.stdout) if not only or row.app_id == app_ids[0]]
        if not found and done.returncode and not _NOTHING.search(done.stderr):
            done.check()
        return found

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:
        found = _by_app(self._bjobs(site, app_ids))
        known = {i: JobFolder(site.files, found[i][0].folder) for i in app_ids if i in found and found[i][0].folder}
        return jobs_of(site.files, {i: found.get(i, []) for i in app_ids}, {**known, **folders}, now=time.time())

    def _query_all(self, site: Site) -> _Jobs:
        found = _by_app(self._bjobs(site, []))
        folders = {i: JobFolder(site.files, of[0].folder) for i, of in found.items() if of[0].folder}
        return [_line(job.facts) for job in jobs_of(site.files, found, folders, now=time.time()).values()]

    def _log_folder(self, site: Site, app_id: str) -> JobFolder | None:
        known = super()._log_folder(site, app_id)
        if known is None and (found := self._bjobs(site, [app_id])) and found[0].folder:
            return JobFolder(site.files, found[0].folder)
        return known

    def _cancel_argv(self, app_id: str) -> list[str]:
        return ["bkill", "-g", group_of(app_id), "0"]

    def _accept_cancel(self, done: Completed) -> None:
        if not _NOTHING.search(done.stderr):
            done.check()

    def _delete_existing(self, app_id: str) -> None:
        ((site, _),) = self._by_site([app_id])
        self._cancel_existing(app_id)
        for _ in range(_END_S):  # LSF gives replicas their time to end, and they write into the folder
            self._queries.forget(app_id)
            if self._is_over(app_id):
                break
            self._sleep(1)
        super()._delete_existing(app_id)
        self.run_command(site, ["bgdel", group_of(app_id)])  # LSF keeps the group while it remembers its jobs


def create_scheduler(session_name: str, **kwargs: Any) -> LsfScheduler:  # noqa: ARG001  # the contract's signature
    """The factory."""
    return LsfScheduler(session_name)
