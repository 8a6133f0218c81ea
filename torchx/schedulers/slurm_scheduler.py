"""``slurm``: a job as one ``sbatch`` script with a step for each replica, on nodes that share a file system.

Options: see :class:`SlurmOpts`; ``torchx runopts slurm`` shows them with those of SSH.

Each replica has a node of its own, or shares one (``replicas_per_node``). Roles that request different nodes make a
heterogeneous job. The job's folder is ``$TORCHX_HOME/slurm/<name>``, or ``<job_dir>/torchx-jobs/<name>``. It is the
working directory of the batch script, so that Slurm's records lead to it.

Limits: images are folders, unless ``container`` is set. The retry policy APPLICATION restarts a job by ``scontrol
requeue``. Log lines have times to a second or so, in long jobs to some seconds.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, CommandError, NotSupportedError, SpecError
from torchx.schedulers.api import NONE, ListAppResponse
from torchx.schedulers.batch.attempts import PROGRAM_FILE, program
from torchx.schedulers.batch.base import CAPABILITIES, Known, Site, Submission
from torchx.schedulers.batch.folders import JobFolder, LogPaths
from torchx.schedulers.batch.ssh.site_workspace import SiteWorkspaceMixin
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.names import NameRule
from torchx.schedulers.kit.secrets import sources
from torchx.schedulers.kit.verdict import state_of
from torchx.schedulers.kit.views import by_view
from torchx.schedulers.slurm import allocations, sweeps
from torchx.schedulers.slurm.allocations import move_in, suggest
from torchx.schedulers.slurm.answers import bare, facts_of
from torchx.schedulers.slurm.client import NO_MEMORY, OVER, SlurmQueries, hint_for, parse_sbatch, version
from torchx.schedulers.slurm.events import SLURM_LOG
from torchx.schedulers.slurm.folders import LegacyFolder, Waiting, choose_previous, files_of, job_id_in
from torchx.schedulers.slurm.options import SlurmOpts, outranking
from torchx.schedulers.slurm.reasons import SLURM_STATES, get_appstate_from_job
from torchx.schedulers.slurm.reasons import app_state as appstate_from_slurm_state
from torchx.schedulers.slurm.request import (
    LAUNCH_FILE,
    MAX_SCRIPT,
    SBATCH_GROUP_OPTIONS,
    SBATCH_JOB_OPTIONS,
    SCRIPT_FILE,
    SlurmBatchRequest,
    SlurmReplicaRequest,
    launcher,
    make_request,
)
from torchx.schedulers.slurm.sweep_jobs import SpecialJobs
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, parse_app_handle
from torchx.specs.handles import JobId
from torchx.specs.ready import PROBES
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.scripts import is_script
from torchx.specs.wishes.timeouts import clock
from torchx.util.records import replace
from torchx.util.reexports import reexports

if TYPE_CHECKING:
    from torchx.schedulers.kit.commands import Completed
    from torchx.schedulers.kit.export import Export
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.nodes import Pool
    from torchx.schedulers.kit.simulations import Simulation
    from torchx.schedulers.slurm.foreign import ForeignSlurmJobs
    from torchx.specs.api import Resource

reexports(__name__)

__all__ = [
    "NONE",
    "PIPE",
    "SBATCH_GROUP_OPTIONS",
    "SBATCH_JOB_OPTIONS",
    "SLURM_JOB_DIRS",
    "SLURM_STATES",
    "SlurmBatchRequest",
    "SlurmOpts",
    "SlurmReplicaRequest",
    "SlurmScheduler",
    "appstate_from_slurm_state",
    "create_scheduler",
    "get_appstate_from_job",
    "version",
]

PIPE = -1
"""``subprocess.PIPE``; programs import the name from here."""

SLURM_JOB_DIRS = ".torchxslurmjobdirs"
"""File of earlier versions in the folder of submission, with lines ``<job id> = <job_dir>``. It is only read."""

NAME_RULE = NameRule(100)
_RANDOM = 6
_KNOWN_ID = re.compile(r"\d+(_\d+)?")  # of a job of its own
_DEPENDENCIES = {"ok": "afterok", "any": "afterany", "fail": "afternotok"}


class SlurmScheduler(SiteWorkspaceMixin, SpecialJobs):
    """Runs jobs on a Slurm cluster. Arguments: see :class:`BatchScheduler`."""

    capabilities = replace(
        CAPABILITIES,
        exec=True,
        log_previous=True,
        metrics="kept",
        retry_actions=("retry", "avoid", "mem", "checkpoint"),
        timeout="time",
        watchdog=True,
        idle=True,
        after=("ok", "any", "fail"),
        order=PROBES,
    )
    transient = re.compile(
        r"Unable to contact slurm controller|Socket timed out|Connection (refused|reset|timed out)|"
        r"temporarily (unavailable|disabled)|Slurm backup controller in standby|Resource temporarily",
        re.IGNORECASE,
    )
    programs = "Slurm's commands"
    submits = "sbatch"
    options = SlurmOpts
    rules = "torchx.schedulers.slurm.rules:RULES"

    def __init__(self, session_name: str, **parts: Any) -> None:
        super().__init__("slurm", session_name, **parts)
        self._asked: dict[int, SlurmQueries] = {}
        self._waiting = Waiting()

    def time_limit_s(self, cfg: Mapping[str, CfgVal]) -> float | None:
        from torchx.schedulers.slurm.scripts.sbatch import seconds

        return seconds(str(cfg.get("time") or "")) or None

    # -- submission ------------------------------------------------------------------------------

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[SlurmBatchRequest]:
        opts = SlurmOpts.from_cfg(cfg)
        opts.check()
        if opts.job_dir and not cfg.get("ssh"):
            opts.job_dir = os.path.abspath(os.path.expanduser(opts.job_dir))  # commands run in other folders later
        name = make_unique(NAME_RULE.make(app.name, room=_RANDOM + 1), _RANDOM)
        cwd = "" if cfg.get("ssh") else self._site_of(cfg).files.cwd()
        wishes, retry = Wishes.of(app), None
        if wishes.after:
            opts.extra = [*(opts.extra or ()), *self._after(wishes.after, opts)]
        if wishes.timeout_s:
            opts.time = clock(wishes.timeout_s)
        if opts.partition == "auto":
            from torchx.schedulers.slurm.nodes import first_to_start

            run = functools.partial(self.run_command, self._site_of(cfg))
            opts.partition = first_to_start(run, opts, app.roles, wishes.spares)
        if wishes.retry:
            from torchx.schedulers.slurm.attempts import policy

            retry = policy(app, self.capabilities, opts.requeue)
        if is_script(app.roles):
            from torchx.schedulers.slurm.scripts.jobs import script_request

            return AppDryRunInfo(script_request(app, opts, name=name), str)
        request = make_request(app, opts, name=name, cwd=cwd, retry=retry)
        request.watchdog, request.idle = (wishes.texts.get(name, "") for name in ("watchdog", "idle"))
        request.plain = wishes.is_plain(app.roles)
        if wishes.notify:
            from torchx.schedulers.slurm.notices import is_wanted

            request.notify = is_wanted(wishes)
        if wishes.spares:
            from torchx.schedulers.slurm.spares import add_spares

            add_spares(request, app.roles, wishes)
        if wishes.stage and not opts.in_ and len(request.replicas) > 1:
            from torchx.schedulers.slurm.broadcast import broadcast

            request.broadcast = broadcast(wishes.stage)
        if opts.in_:
            move_in(request, opts, wishes, functools.partial(self.run_command, self._site_of(cfg)))
        else:
            suggest(remote=bool(cfg.get("ssh")))
        request.check()
        return AppDryRunInfo(request, str)

    def _after(self, after: Iterable[tuple[str, str]], opts: SlurmOpts) -> list[str]:
        """Return the ``sbatch`` options for dependencies, with those of the user, because the last option counts. Slurm
        removes a job that can never start.
        """
        given = (option.partition("=") for option in opts.extra or ())
        words = [value for name, _, value in given if name == "--dependency"]
        for condition, handle in after:
            app_id = parse_app_handle(handle).app_id
            sweep = self._sweep(JobId.of(app_id).job)
            if sweep is None and not _KNOWN_ID.fullmatch(app_id):
                raise SpecError(f"`{handle}` is not a job that Slurm knows", hint="`torchx list` shows the jobs")
            ids = sweep.job_ids(app_id) if sweep is not None else [app_id]
            words.append(":".join([_DEPENDENCIES[condition], *ids]))
        return [f"--dependency={','.join(words)}", "--kill-on-invalid-dep=yes"]

    def _environments(self, info: AppDryRunInfo[SlurmBatchRequest]) -> Iterable[tuple[str, dict[str, str]]]:
        yield from super()._environments(info)
        yield from ((replica.role, replica.env) for replica in info.request.replicas.values())

    def _submission(self, info: AppDryRunInfo[SlurmBatchRequest], site: Site) -> Submission:
        request = info.request
        request.cwd = request.cwd or site.files.cwd()
        folder = self.folders(site).place(request.name, request.job_dir)
        output = f"{folder.replace('%', '%%')}/{SLURM_LOG}"
        if info._app is not None and is_script(info._app.roles):
            from torchx.schedulers.slurm.scripts.jobs import submission

            return submission(request, folder)
        argv = [
            *request.cmd,
            f"--job-name={request.name}",
            f"--chdir={folder}",
            f"--output={output}",
            f"{folder}/{SCRIPT_FILE}",
        ]
        files = self._sampler(info)
        files[SCRIPT_FILE] = script = request.materialize()
        if request.retry or request.notify or request.is_watched:
            files[PROGRAM_FILE] = program("slurm")
        if len(script.encode("utf-8", "surrogateescape")) > MAX_SCRIPT:
            files[LAUNCH_FILE] = launcher(script)
            argv[-1] = f"{folder}/{LAUNCH_FILE}"
        without = dict.fromkeys(name for replica in request.replicas.values() for name in sources(replica.env))
        beating = outranking(script, argv)
        without.update(dict.fromkeys(i for i in beating if site is not self._here or i in os.environ))
        made = Submission(request.name, argv, folder, files, without=[*without])
        if request.inside[0]:
            return allocations.submission(made, request)
        return made if request.arrays is None else request.arrays.submission(made, request)

    def export(self, dryrun_info: AppDryRunInfo[SlurmBatchRequest]) -> Export:
        """See :class:`torchx.schedulers.kit.abilities.Exports`."""
        if dryrun_info._app is not None and is_script(dryrun_info._app.roles):
            raise NotSupportedError("this job is your own batch script", hint="submit it with `sbatch`")
        from torchx.schedulers.slurm.export import export

        allocations.refuse_export(dryrun_info.request)
        dryrun_info.request.notify = False
        if not dryrun_info.request.idle:
            dryrun_info.request.sample_s = 0  # without torchx nothing else uses them
        return export(self._submission(dryrun_info, self._here), dryrun_info.request)

    def nodes(self, cfg: Mapping[str, CfgVal], need: Resource | None, count: int) -> Sequence[Pool]:
        """See :class:`torchx.schedulers.kit.abilities.ListsNodes`."""
        from torchx.schedulers.slurm.nodes import pools

        return pools(functools.partial(self.run_command, self._site_of(cfg)), SlurmOpts.from_cfg(cfg), need, count)

    def diagnose(
        self, cfg: Mapping[str, CfgVal], job: AppDryRunInfo[SlurmBatchRequest] | None = None
    ) -> Iterable[Check]:
        """See :class:`torchx.schedulers.kit.abilities.Diagnoses`."""
        from torchx.schedulers.kit.findings import LIMIT_S
        from torchx.schedulers.slurm import doctor

        site = self._site_of(cfg)
        run = functools.partial(self.run_command, site, patience_s=0, timeout_s=0.9 * LIMIT_S.get())
        if job is None:
            return doctor.of_cluster(run, SlurmOpts.from_cfg(cfg), site.name)
        if job.request.inside[0]:
            return ()  # `_submit_dryrun` has found the allocation
        return doctor.of_job(
            run, self._submission(job, site), lambda done: self._second_submission(job, site, done) is not None
        )

    def _second_submission(
        self, info: AppDryRunInfo[SlurmBatchRequest], site: Site, done: Completed
    ) -> Submission | None:
        replicas = info.request.replicas.values()
        partitions = {str(r.sbatch_opts["partition"]) for r in replicas if "partition" in r.sbatch_opts}
        # on other partitions the job requested too much, and must not start with less
        if not NO_MEMORY.search(done.stderr) or not self._slurm(site).knows_no_memory(partitions):
            return None
        info.request = info.request.without_memory()
        return self._submission(info, site)

    def _parse_submitted(self, done: Completed) -> str:
        return parse_sbatch(done.stdout)

    def _find_submitted(self, site: Site, token: str) -> str | None:
        return self._slurm(site).submitted(token) or self._slurm(site).commented(token)

    def _find_late(self, site: Site, token: str, folder: JobFolder, age_s: float) -> str | None:
        found = super()._find_late(site, token, folder, age_s)
        found = found or self._slurm(site).named(token, age_s) or job_id_in(folder) or found
        if found:
            found = sweeps.id_of(found, folder)
        return found

    def _refusal(self, done: Completed) -> BackendError:
        error = super()._refusal(done)
        error.hint = hint_for(done.stderr) or error.hint
        return error

    # -- what became of it -----------------------------------------------------------------------

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:
        asked = [i for i in app_ids if _KNOWN_ID.fullmatch(i)]
        slurm = self._slurm(site)
        records = self._succeeded(site, folders)
        if left := [i for i in asked if i not in records]:
            records.update(slurm.jobs(left, ended=functools.partial(self._have_ended, site, folders)))
        inner = {i: folders[i] for i in app_ids if i in folders and allocations.STEP_ID.fullmatch(i)}
        folders = {i: folder for i, folder in folders.items() if i not in inner}
        known = self._waiting.as_before(records, folders)
        if inner:
            known.update(allocations.known(slurm, site, functools.partial(self.run_command, site), inner))
        folders = {i: folder for i, folder in folders.items() if i not in known}
        jobs = files_of(site.files, {i: found for i, found in records.items() if i not in known}, folders)
        dead = [i for i, job in jobs.items() if job.state is AppState.FAILED and job.was_killed]
        steps = slurm.sacct(dead, steps=True) if dead else {}
        for app_id in dead:
            jobs[app_id].steps = steps.get(app_id, ())
        scripts = [app_id for app_id, job in jobs.items() if is_script(job.roles)]
        known.update({i: self._waiting.keep(job, folders.get(i)) for i, job in jobs.items() if i not in scripts})
        return known if not scripts else {**known, **self.foreign()._facts(site, scripts, {})}

    def _slurm(self, site: Site) -> SlurmQueries:
        if id(site) not in self._asked:
            self._asked[id(site)] = SlurmQueries(functools.partial(self.run_command, site))
        return self._asked[id(site)]

    def _query_all(self, site: Site) -> list[ListAppResponse]:
        records = self._slurm(site).jobs(None)
        ending = {i: found for i, found in records.items() if any(r.completing for r in found)}
        jobs = files_of(site.files, ending, {})  # to see whether replicas still run
        return [
            ListAppResponse(app_id, state_of(facts_of(jobs.get(app_id) or bare(app_id, found))), name=found[0].name)
            for app_id, found in sorted(records.items(), key=lambda item: -(item[1][0].submitted or 0))
        ]

    def _log_folder(self, site: Site, app_id: str) -> JobFolder | None:
        noted = super()._log_folder(site, app_id)
        if noted is not None or not _KNOWN_ID.fullmatch(app_id):
            return noted
        legacy = LegacyFolder.find(site.files, SLURM_JOB_DIRS, app_id)
        if legacy is not None:
            return legacy
        for record in self._slurm(site).jobs([app_id]).get(app_id, ()):
            folder = JobFolder(site.files, record.folder)
            if record.folder and folder.is_ours():
                return folder
        return None

    def _choose_previous(self, folder: JobFolder, paths: Sequence[LogPaths]) -> None:
        choose_previous(folder, paths)

    @by_view
    def simulate(self, app_id: str, fault: str, replica: tuple[str, int]) -> Simulation:
        """See :class:`torchx.schedulers.kit.abilities.Simulates`."""
        from torchx.schedulers.slurm.simulate import simulation

        site = self._site(app_id)
        run = functools.partial(self.run_command, site)
        replicas = self.log_replicas(app_id) or [replica]
        self._queries.forget(app_id)
        return simulation(run, app_id, fault, replica, replicas=replicas, files=site.files)

    @by_view
    def enter(self, app_id: str, role: str, k: int, argv: Sequence[str], tty: Tty | None = None) -> InsideProcess:
        from torchx.schedulers.slurm import inside

        site = self._site(app_id)
        job_id, host, sign, component = self._place_of(site, app_id, role, k)
        ended = functools.partial(self._not_running, app_id, role, k)
        if not host:
            raise ended()
        step = inside.step_words(job_id, host, component=component, tty=tty is not None)
        run = functools.partial(self.run_command, site)
        return inside.Step(lambda words: site.spawn([*step, *words], tty), sign, argv, tty, run=run, ended=ended)

    def _place_of(self, site: Site, app_id: str, role: str, k: int) -> tuple[str, str, str, int | None]:
        """Where a replica runs: Slurm's id, node (empty if not running), sign and component of its job."""
        from torchx.schedulers.batch.inside import sign_of
        from torchx.schedulers.slurm import inside

        folder = self._log_folder(site, app_id)
        host = inside.host_of(folder, role, k) if folder is not None else ""
        if folder is None or not host:
            return app_id, "", "", None
        records = self._slurm(site).jobs([app_id]).get(app_id, ()) if len(folder.roles()) > 1 else ()
        run = functools.partial(self.run_command, site)
        component = inside.component_of(run, host, {r.component: r.nodes for r in records})
        return app_id, host, sign_of(folder.replica(role, k)), component

    def foreign(self) -> ForeignSlurmJobs:
        """See :class:`torchx.schedulers.kit.abilities.KnowsForeign`."""
        from torchx.schedulers.slurm.foreign import ForeignSlurmJobs

        return ForeignSlurmJobs.of(self)

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_argv(self, app_id: str) -> list[str]:
        return ["scancel", app_id]

    def _accept_cancel(self, done: Completed) -> None:
        if done.returncode and not OVER.search(done.stderr):
            raise CommandError(
                f"job could not be cancelled: {done.stderr.strip()}", argv=done.argv, returncode=done.returncode
            )


def create_scheduler(session_name: str, **kwargs: Any) -> SlurmScheduler:  # noqa: ARG001  # for other schedulers
    """Return the factory of ``slurm``."""
    return SlurmScheduler(session_name)
