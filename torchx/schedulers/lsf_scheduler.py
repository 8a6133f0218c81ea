"""``lsf``: one LSF job for each replica, tied together by a job group; submitted all or none.

It writes ``submit.sh`` with a ``bsub`` for each replica, and ``replicas.sh``, which those jobs run
(:mod:`torchx.schedulers.lsf.replicas`). The first job is submitted on hold and released last, and all others wait for
its start, so that an interrupted submission leaves nothing running. A replica runs in the role's image if that is a
folder (a workspace: ``jobdir``), else in the folder of submission; with ``docker`` in a container of the image.

Limits: the job's folder must be on a file system that all hosts share. LSF starts replicas one by one, not as a gang:
those that run wait for the others. Tested on a look-alike, not on LSF itself; see docs/lsf.md.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import CommandError, NotSupportedError
from torchx.schedulers.api import NONE, ListAppResponse
from torchx.schedulers.batch.attempts import PROGRAM_FILE, program
from torchx.schedulers.batch.base import CAPABILITIES, COMMAND_TIMEOUT_S, Known, Site, Submission
from torchx.schedulers.batch.folders import SECRETS_FILE, JobFolder
from torchx.schedulers.batch.ssh.site_workspace import SiteWorkspaceMixin
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.secrets import sources
from torchx.schedulers.kit.views import by_view
from torchx.schedulers.lsf.answers import (
    bjobs_msg_to_describe,
    bjobs_msg_to_list,
    bjobs_msg_to_log_file,
    by_app,
    get_job_state,
    line_of,
)
from torchx.schedulers.lsf.attempts import OPTIONS_FILE, policy
from torchx.schedulers.lsf.client import (
    NO_LSF,
    accept_kill,
    find_rank0_host,
    find_rank0_host_from_bhosts_stdout,
    refusal,
)
from torchx.schedulers.lsf.ends import Ends
from torchx.schedulers.lsf.folders import jobs_of
from torchx.schedulers.lsf.options import Opts, check, job_dir
from torchx.schedulers.lsf.parse import group_of, was_released
from torchx.schedulers.lsf.reasons import STATES
from torchx.schedulers.lsf.replicas import (
    CANCELLED_FILE,
    REPLICAS_FILE,
    STARTED_FILE,
    SUBMIT_FILE,
    get_command,
    get_docker_command,
)
from torchx.schedulers.lsf.request import NAMES, RANK0_HOST, LsfBsub, after, cleanup_str, get_bsub, get_submit_script
from torchx.schedulers.lsf.sweep_jobs import SpecialJobs
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, Role, parse_app_handle, runopts
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.timeouts import clock
from torchx.util.records import replace
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.foreign import ForeignJobs
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.nodes import Pool
    from torchx.specs.api import Resource

reexports(__name__)

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
"""LSF's states to torchx's."""

_BSUB_S = 0.5  # upper bound of the average time of one bsub
_BSUB = "\nbsub "
_END_S = 30  # bkill waits between its signals, 10 s by default (JOB_TERMINATE_INTERVAL)


class LsfScheduler(SiteWorkspaceMixin, SpecialJobs):
    """Submits to IBM Spectrum LSF. Arguments: see :class:`BatchScheduler`."""

    capabilities = replace(
        CAPABILITIES,
        retry_actions=("retry", "avoid", "mem", "checkpoint"),
        timeout="time",
        watchdog=True,
        after=("ok", "any", "fail"),
    )
    transient = re.compile(r"(?i)LSF is down|daemon not responding|cannot connect to LSF|communication time ?out")
    programs = "LSF's commands (bsub, bjobs, ...)"
    submits = "bsub"

    def __init__(self, session_name: str, **parts: Any) -> None:
        super().__init__("lsf", session_name, **parts)
        self._ends = Ends()

    def _run_opts(self) -> runopts:
        opts = super()._run_opts()
        opts.update(Opts.as_runopts())
        return opts

    def workspace_opts(self) -> runopts:
        return runopts()  # `jobdir` is an option of the backend

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        super().caching_build_workspace_and_update_role(role, {**cfg, "job_dir": job_dir(cfg)}, build_cache)

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[LsfBsub]:
        opts = Opts.from_cfg(cfg)
        if app.metadata:
            opts.time = clock(limit_s, of_hours=True) if (limit_s := Wishes.of(app).timeout_s) else opts.time
            policy(app, opts, self.capabilities)
            self._check_earlier(app, cfg)
        check(app, opts)
        request = LsfBsub(job_dir(cfg), make_unique(NAMES.make(app.name)), app, opts, ["/bin/bash"], after(app))
        request.check()
        return AppDryRunInfo(request, str)

    def _check_earlier(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> None:
        """Rejects dependencies that LSF cannot express: each attempt of a job with a policy has its own LSF jobs."""
        for condition, handle in Wishes.of(app).after:
            folders = self.folders(self._site_of(cfg))
            folder = folders.of(parse_app_handle(handle).app_id) if condition != "any" else None
            if folder is not None and folder.text(OPTIONS_FILE):
                raise NotSupportedError(
                    f"`{handle}` has a retry policy: LSF does not know how its last attempt ended",
                    hint=f"`--after {handle}:any`, or omit `--retry` there",
                )

    def expected_id(self, dryrun_info: AppDryRunInfo[LsfBsub]) -> str:
        return dryrun_info.request.app_id

    def _submission(self, info: AppDryRunInfo[LsfBsub], site: Site) -> Submission:
        request = info.request
        folder = self.folders(site).place(request.app_id, request.jobdir)
        script = request.materialize()
        files = {SUBMIT_FILE: script, REPLICAS_FILE: request.replicas()}
        files.update(request.arrays.files() if request.arrays is not None else {})
        wishes = Wishes.of(request.app)
        if wishes.retry:
            import json

            files[OPTIONS_FILE] = json.dumps(dict(request.cfg))
        if wishes.retry or wishes.watchdog:
            files[PROGRAM_FILE] = program("lsf")
        argv = [*request.cmd, posixpath.join(folder, SUBMIT_FILE)]
        time_s = COMMAND_TIMEOUT_S + _BSUB_S * script.count(_BSUB)
        without = dict.fromkeys(name for role in request.app.roles for name in sources(role.env))
        return Submission(request.app_id, argv, folder, files, timeout_s=time_s, without=[*without])

    def export(self, dryrun_info: AppDryRunInfo[LsfBsub]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        from torchx.schedulers.lsf.export import export

        return export(self._submission(dryrun_info, self._here), dryrun_info.request.app)

    def nodes(self, cfg: Mapping[str, CfgVal], need: Resource | None, count: int) -> Sequence[Pool]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.ListsNodes`."""
        from torchx.schedulers.kit.nodes import pools_of
        from torchx.schedulers.lsf.nodes import nodes

        return pools_of(nodes(functools.partial(self.run_command, self._site_of(cfg))), need)

    def diagnose(self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[LsfBsub] | None = None) -> list[Check]:  # noqa: ARG002
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        from torchx.schedulers.kit.findings import LIMIT_S
        from torchx.schedulers.lsf.doctor import checks

        site = self._site_of(cfg)
        run = functools.partial(self.run_command, site, patience_s=0, timeout_s=0.9 * LIMIT_S.get())
        return checks(run, str(cfg.get("lsf_queue") or ""), site.name)

    @by_view
    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        from torchx.schedulers.lsf.inside import OnHost, host_of

        site = self._site(app_id)
        folder, known = self._log_folder(site, app_id), self._known(app_id)
        if folder is None or known is None:
            raise self._not_running(app_id, role, k)
        host = host_of(folder, known.facts.replicas(), app_id, role, k)
        run = functools.partial(self.run_command, site)
        ended = functools.partial(self._not_running, app_id, role, k)
        return OnHost(site.spawn, host, folder.replica(role, k), argv, tty, run=run, ended=ended)

    def foreign(self) -> ForeignJobs:
        """See :class:`torchx.schedulers.kit.abilities.KnowsForeign`."""
        from torchx.schedulers.lsf.foreign import ForeignLsfJobs

        return ForeignLsfJobs.of(self)

    def _secret_files(self, info: AppDryRunInfo[LsfBsub]) -> dict[str, str]:
        text = info.request.secrets(info.submission.secrets)
        return {SECRETS_FILE: text} if text else {}

    def _parse_submitted(self, done: Completed) -> str:
        return done.stdout.split()[-1]  # the script prints it

    def _submit(self, site: Site, submission: Submission) -> str | Completed:
        done = super()._submit(site, submission)
        if isinstance(done, Completed) and done.returncode == NO_LSF:
            raise self._missing(site, CommandError(argv=["bsub"], returncode=127))
        if isinstance(done, Completed):  # the script cleans up, unless it was killed
            self.run_command(site, self._cancel_argv(submission.token))
        return done

    _refusal = staticmethod(refusal)

    def _find_submitted(self, site: Site, token: str) -> str | None:
        found = self._bjobs(site, [token])
        if was_released(found):
            return token
        if found:  # incomplete: the first job is released last
            self.run_command(site, self._cancel_argv(token))
        return None

    def _find_late(self, site: Site, token: str, folder: JobFolder, age_s: float) -> str | None:
        script_s = folder.text(SUBMIT_FILE).count(_BSUB) * _BSUB_S
        if age_s <= self.submission_s + script_s:  # its script may still be running
            return token if was_released(self._bjobs(site, [token])) else None
        started = folder.file(STARTED_FILE)  # if LSF has forgotten it
        return self._find_submitted(site, token) or (token if site.files.sizes([started])[started] else "")

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:
        found = by_app(self._bjobs(site, app_ids))
        return jobs_of(site.files, {i: found.get(i, []) for i in app_ids}, folders, self._ends)

    def _query_all(self, site: Site) -> list[ListAppResponse]:
        return [line_of(job) for job in jobs_of(site.files, by_app(self._bjobs(site, [])), {}, self._ends).values()]

    def _log_folder(self, site: Site, app_id: str) -> JobFolder | None:
        known = super()._log_folder(site, app_id)
        if known is None and (found := self._bjobs(site, [app_id])) and found[0].folder:
            return JobFolder(site.files, found[0].folder)
        return known

    def _cancel_existing(self, app_id: str) -> None:
        folder = self._folder(app_id)
        if folder is not None and not self._is_over(app_id):
            folder.files.write(folder.file(CANCELLED_FILE), b"1\n")  # it may be about to be retried or requeued
        super()._cancel_existing(app_id)

    def _cancel_argv(self, app_id: str) -> list[str]:
        return ["bkill", "-g", group_of(app_id), "0"]

    _accept_cancel = staticmethod(accept_kill)

    def _delete_existing(self, app_id: str) -> None:
        self._cancel_existing(app_id)
        for _ in range(_END_S):  # ending replicas still write to the folder
            self._queries.forget(app_id)
            if self._is_over(app_id):
                break
            self._sleep(1)
        super()._delete_existing(app_id)
        self.run_command(self._site(app_id), ["bgdel", group_of(app_id)])  # deleted once LSF forgets its jobs


def create_scheduler(session_name: str, **kwargs: Any) -> LsfScheduler:  # noqa: ARG001  # the contract's signature
    """Return the factory of ``lsf``."""
    return LsfScheduler(session_name)
