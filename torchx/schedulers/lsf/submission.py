"""Renders and submits jobs of LSF, all replicas or none."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx.errors import CommandError, NotSupportedError
from torchx.schedulers.batch.attempts import PROGRAM_FILE, program
from torchx.schedulers.batch.base import COMMAND_TIMEOUT_S, Site, Submission
from torchx.schedulers.batch.folders import SECRETS_FILE, JobFolder
from torchx.schedulers.batch.ssh.site_workspace import SiteWorkspaceMixin
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.secrets import sources
from torchx.schedulers.lsf.attempts import OPTIONS_FILE, policy
from torchx.schedulers.lsf.client import NO_LSF, refusal
from torchx.schedulers.lsf.jobs import LsfJobs
from torchx.schedulers.lsf.options import Opts, job_dir
from torchx.schedulers.lsf.order import order_for
from torchx.schedulers.lsf.parse import was_released
from torchx.schedulers.lsf.replicas import REPLICAS_FILE, STARTED_FILE, SUBMIT_FILE
from torchx.schedulers.lsf.request import NAMES, LsfBsub, after
from torchx.specs.api import AppDef, AppDryRunInfo, CfgVal, Role, parse_app_handle, runopts
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.timeouts import clock

if TYPE_CHECKING:
    from torchx.schedulers.kit.export import Export

_BSUB_S = 0.5  # upper bound of the average time of one bsub
_BSUB = "\nbsub "


class SubmitsJobs(SiteWorkspaceMixin, LsfJobs):
    """The part of the backend that submits. Arguments: see :class:`BatchScheduler`."""

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
        request = LsfBsub(job_dir(cfg), make_unique(NAMES.make(app.name)), app, opts, ["/bin/bash"], after(app))
        request.orders = order_for(app, opts)
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
