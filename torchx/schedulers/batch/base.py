"""Base class of backends that are driven by commands: it alone runs them, retries, and reads the files of jobs.

A backend adds pure functions: what to submit (:class:`Submission`), how to parse answers (``parse_*``), and the
commands for each query (``*_argv``). It starts no process and opens no file itself. A :class:`Site` says where commands
run and files are: on this machine or behind a login node.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, CommandError, NotFoundError, ParseError, TransientError, Unsent
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, shortcut
from torchx.schedulers.batch.folders import SECRETS_FILE, JobFolder, LogPaths
from torchx.schedulers.batch.logs import BatchLog, Growth
from torchx.schedulers.batch.queries import JobQueries, Known
from torchx.schedulers.batch.sites import (
    COMMAND_TIMEOUT_S,
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    PATIENCE_S,
    SUBMIT_TIMEOUT_S,
    Site,
    SiteScheduler,
    within,
)
from torchx.schedulers.kit.caps import COMMON
from torchx.schedulers.kit.commands import Completed, ConnectedRunner, last_line, program_of
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.inside import described
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.kit.views import by_view
from torchx.specs.api import AppDryRunInfo, CfgVal, is_terminal
from torchx.specs.handles import JobId
from torchx.specs.tasks import is_terminal_task
from torchx.util.notices import logger
from torchx.util.records import dataclass, field, replace

if TYPE_CHECKING:
    from torchx.schedulers.kit.facts import ReplicaFacts
    from torchx.schedulers.kit.inside.kept import Kept
    from torchx.schedulers.kit.pace import Rank

    Answers = dict[str, DescribeAppResponse | None]
    _Jobs = list[ListAppResponse]
    _Ranks = list[Rank]
    _Replicas = list[tuple[str, int]]

__all__ = ["CAPABILITIES", "COMMAND_TIMEOUT_S", "PATIENCE_S", "BatchScheduler", "Known", "Site", "Submission"]

_MAX_OTHERS = 300

CAPABILITIES = replace(
    COMMON,
    setup="bash",
    log_streams=("stdout", "stderr", "combined"),
    workspaces=True,
    resources=True,
    describe_many=True,
)
"""Of a scheduler that has a command for each verb and nodes with a shared file system."""


@dataclass(frozen=True)
class Submission:
    """One job, ready to be submitted.

    Attributes:
        token: unique name of the job in its scheduler. It identifies the job if the answer to the submission is lost.
        argv: the command; it runs in the caller's working directory.
        folder: absolute path of the job's own folder.
        files: path within the folder to content; written before the command runs.
        stdin: input of the command.
        without: environment variables to hide from the command, because the scheduler may store them.
        timeout_s: time limit of the command, seconds.
    """

    token: str
    argv: list[str]
    folder: str
    files: dict[str, str] = field(default_factory=dict)
    stdin: str = ""
    timeout_s: float = SUBMIT_TIMEOUT_S
    without: Sequence[str] = ()

    @property
    def env(self) -> list[str]:
        """The words before the command that hide these variables from it; empty if there are none."""
        words = [word for name in self.without for word in ("-u", name)]
        return ["env", *words] if words else []


class BatchScheduler(SiteScheduler):
    """Base class; backends override the methods under "the backend's part". Arguments: see :class:`SiteScheduler`."""

    wait_hint = 2.0

    submission_s = 120.0  # the submitting command may outlive the process that started it

    fresh_s: float = 0.5
    """Maximum age in seconds of a cached answer, so that many waiting callers share one query."""

    def __init__(self, backend: str, session_name: str, **parts: Any) -> None:
        super().__init__(backend, session_name, **parts)
        self._queries = JobQueries()
        self._attempts = itertools.count()
        self._growth: dict[int, Growth] = {}
        self._used: set[str] = set()  # folders of the jobs that this object has submitted
        self._ready: tuple[object, Submission] | None = None  # rendered for `submission_token`, reused by `schedule`

    # -- the backend's part ----------------------------------------------------------------------

    @abstractmethod
    def _submission(self, info: AppDryRunInfo[Any], site: Site) -> Submission:
        """Return what to submit. Run no command; files of the job's folder are written later."""

    def _secret_files(self, info: AppDryRunInfo[Any]) -> dict[str, str]:  # noqa: ARG002  # a hook
        """Files for the job's folder that hold its secrets: path to content. Called once per submission."""
        return {}

    @abstractmethod
    def _parse_submitted(self, done: Completed) -> str:
        """Return the job id in the answer of a submitting command that succeeded."""

    @abstractmethod
    def _find_submitted(self, site: Site, token: str) -> str | None:
        """Return the id of the job with this name; None if there is none. An incomplete submission is removed."""

    def _find_late(self, site: Site, token: str, folder: JobFolder, age_s: float) -> str | None:  # noqa: ARG002  # a hook
        """Return the answer of :meth:`find_submission` for the job with this name, long after its submission."""
        found = self._find_submitted(site, token)
        return found or ("" if age_s > self.submission_s else None)

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:
        """Facts about these jobs by as few commands as possible, without unknown ones; ``folders``: those on record."""
        raise NotImplementedError(f"`{type(self).__name__}` has no `_facts`")

    def _look(self, folder: JobFolder, replicas: Sequence[ReplicaFacts]) -> Sequence[Evidence]:
        """Return what failed replicas of one job left behind."""
        return folder.evidence([(r.role, r.replica) for r in replicas])

    def _query(
        self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]
    ) -> dict[str, DescribeAppResponse]:
        """Return the verdicts on these jobs; unknown jobs are left out. Arguments: see :meth:`_facts`."""
        return {
            app_id: known.answer
            or describe(known.facts, functools.partial(self._look, known.folder) if known.folder else None)
            for app_id, known in self._facts(site, app_ids, folders).items()
        }

    @abstractmethod
    def _query_all(self, site: Site) -> list[ListAppResponse]:
        """Return the jobs of this user."""

    @abstractmethod
    def _cancel_argv(self, app_id: str) -> list[str]:
        """Return the command that cancels a job."""

    def _accept_cancel(self, done: Completed) -> None:
        """Raise if that command failed and the job still runs."""
        done.check()

    def _second_submission(self, info: AppDryRunInfo[Any], site: Site, done: Completed) -> Submission | None:  # noqa: ARG002  # a hook
        """Return an alternative to the submission that the scheduler rejected with ``done``; None: there is none."""
        return None

    def _upload(self, info: AppDryRunInfo[Any], site: Site, created: dict[str, Any]) -> None:
        """Upload what the dry run has only named; may correct the request. Adds the path of each new folder to
        ``created``, with what :meth:`_take_back` needs.
        """

    def _take_back(self, site: Site, created: dict[str, Any]) -> None:
        """Remove what was uploaded for a job that was rejected. If it is submitted again, it is uploaded again."""

    def _log_folder(self, site: Site, app_id: str) -> JobFolder | None:
        """Return the folder with the logs of a job; None if there is no such job."""
        return self.folders(site).of(app_id)

    def _folder(self, app_id: str) -> JobFolder | None:
        """Return the recorded folder of a job; None if it is not on record."""
        return self.folders(self._site(app_id)).of(app_id)

    def kept(self, app_id: str, role: str, k: int, cwd: str) -> Sequence[Kept]:
        """See :class:`torchx.schedulers.kit.abilities.KeepsFiles`."""
        from torchx.schedulers.kit.inside.kept import folders

        site, named = self._site(app_id), JobId.of(app_id)
        folder = self._log_folder(site, named.job)
        if folder is None:
            return []
        images = [one.image for one in folder.roles() if one.name == role and posixpath.isabs(one.image)]
        logs = "" if named.task is not None else folder.replica(role, k)
        paths = [*images, "" if site.name else cwd, logs]
        return folders(paths, lambda argv: site.spawn(argv, None), site.name)

    # -- submission ------------------------------------------------------------------------------

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        """Submit the job once: if the answer is lost, it looks for the job before it submits again.

        Raises:
            CommandError: the scheduler rejected the job. Everything of it is removed.
            TransientError: the scheduler cannot be reached, and whether it accepted the job is unknown.
        """
        with Unsent():
            site = self._site_of(dryrun_info._cfg)
            ready, self._ready = self._ready, None
            submission = ready[1] if ready and ready[0] is dryrun_info else self._prepared(dryrun_info, site)
        folder = JobFolder(site.files, submission.folder)
        if folder.path in self._used:
            raise BackendError(
                f"job `{submission.token}` was already submitted",
                hint="each submission needs a new dryrun: `runner.run`",
            )
        created: dict[str, Any] = {}
        try:
            with Unsent():
                self._upload(dryrun_info, site, created)
                submission = self._submission(dryrun_info, site) if created else submission
                secret = self._secret_files(dryrun_info)
                folder.create({**submission.files, **secret}, dryrun_info._app, submission.token)
            done = self._submit(site, submission)
            if isinstance(done, Completed) and (second := self._second_submission(dryrun_info, site, done)):
                folder.create({**second.files, **secret}, dryrun_info._app, second.token)
                done = self._submit(site, second)
            if isinstance(done, Completed):  # rejected
                raise self._refusal(done)
        except TransientError:
            raise  # the job may exist: keep its files
        except Exception:
            site.files.remove(folder.path)
            self._take_back(site, created)
            raise
        self._used.add(folder.path)
        self._remember(done, site, folder.path)
        return done

    def _remember(self, app_id: str, site: Site, folder: str) -> None:
        """Record the folder and the site of a new job."""
        self.folders(site).remember(app_id, folder)
        self._queries.forget(app_id)
        self._recorded_cfg.cache_clear()
        if site is not self._here:
            self._sites[f"job {app_id}"] = site

    def submission_token(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        if type(self).schedule is not BatchScheduler.schedule:
            return ""  # a third-party subclass may submit another request
        site = self._site_of(dryrun_info._cfg)
        submission = self._prepared(dryrun_info, site)
        self._ready = (dryrun_info, submission)
        return f"{submission.token} {submission.folder}"

    def _prepared(self, info: AppDryRunInfo[Any], site: Site) -> Submission:
        try:
            return self._submission(info, site)
        except TransientError as e:  # as in `schedule`
            raise BackendError(e.message, hint=e.hint) from e

    def find_submission(self, token: str, cfg: Mapping[str, CfgVal], *, age_s: float) -> str | None:
        token, _, place = token.partition(" ")
        if not place:
            return super().find_submission(token, cfg, age_s=age_s)
        site = self._site_of(cfg)
        app_id = self._find_late(site, token, JobFolder(site.files, place), age_s)
        if app_id:
            self._remember(app_id, site, place)
        elif app_id is not None:  # there is no job: nothing will read its secrets
            site.files.remove(posixpath.join(place, SECRETS_FILE))
        return app_id

    def _submit(self, site: Site, submission: Submission) -> str | Completed:
        """Return the id of the job, or the answer by which the scheduler rejected it."""
        once = site.commands.run_once if isinstance(site.commands, ConnectedRunner) else None
        attempt = next(self._attempts)
        spent, pause = 0.0, FIRST_PAUSE_S
        patience_s = submission.timeout_s * PATIENCE_S / SUBMIT_TIMEOUT_S
        while True:
            began = time.monotonic()
            run = functools.partial(once, token=f"{submission.token}.{attempt}") if once else site.commands.run
            try:
                done = self._run_without(run, site, submission)
                attempt = next(self._attempts)  # this one was answered
                if done.returncode == 0:
                    with suppress(ParseError):
                        return self._parse_submitted(done)
                    return self._find_submitted(site, submission.token) or self._parse_submitted(done)
                if not self.transient.search(done.stderr):
                    return done
                failure = TransientError(f"`{program_of(submission.argv)}` failed: {last_line(done.stderr)}")
            except TransientError as e:
                failure = self._by_name(e)
                failure.hint = failure.hint or "whether it took the job is not known: `torchx list` looks for it"
            except CommandError as e:
                raise self._missing(site, e) from e
            # The scheduler may have accepted the job although the answer is lost. The name is unique.
            spent += time.monotonic() - began + pause
            self._sleep(pause)
            began = time.monotonic()
            try:
                with within(patience_s - spent):
                    found = self._find_submitted(site, submission.token)
            except TransientError as e:
                raise failure from e
            if found is not None:
                return found
            spent += time.monotonic() - began
            pause = min(pause * 2, MAX_PAUSE_S)
            if spent + pause > patience_s:
                raise failure
            logger("torchx.schedulers").warning("%s; the job is not there, submitting it again", failure)

    def _run_without(self, run: Callable[..., Completed], site: Site, submission: Submission) -> Completed:
        """Run the command without the variables to hide, by ``env``; the answer looks like the command's own."""
        done = run([*submission.env, *submission.argv], stdin=submission.stdin, timeout=submission.timeout_s)
        if submission.env and done.returncode == 127:
            raise self._missing(site, CommandError(argv=submission.argv, returncode=127))
        return replace(done, argv=submission.argv)

    def _refusal(self, done: Completed) -> BackendError:
        """Return the error for a rejected submission. Backends add hints."""
        try:
            done.check()
        except CommandError as e:
            return e
        return BackendError(f"`{done.argv[0]}` gave an answer that cannot be read: {done.stdout!r}")

    # -- what became of it -----------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        # not by `describe_many`: in a subclass that one may call `describe`
        return self._queries.of([app_id], self._ask, fresh_s=self.fresh_s, others=self._others)[app_id]

    @shortcut
    def describe_many(self, app_ids: Iterable[str]) -> Answers:
        """Return the jobs, by one query per site. Jobs that other callers wait for are part of it."""
        return self._queries.of(app_ids, self._ask, fresh_s=self.fresh_s, others=self._others)

    def _others(self, app_ids: list[str]) -> Iterable[str]:
        """Unfinished jobs on record of this session at the same sites."""
        from torchx.runs import RunQuery, default_registry

        sites = {id(site) for site, _ in self._by_site(app_ids)}
        found = default_registry().list(RunQuery(scheduler=self.backend, limit=_MAX_OTHERS), unfinished=True)
        mine = [run.app_id for run in found if run.session == self.session_name]
        return [i for site, ids in self._by_site(mine) if id(site) in sites for i in ids]

    def _by_site(self, app_ids: list[str]) -> list[tuple[Site, list[str]]]:
        groups: dict[int, tuple[Site, list[str]]] = {}
        for app_id in app_ids:
            site = self._site(app_id)
            groups.setdefault(id(site), (site, []))[1].append(app_id)
        return list(groups.values())

    def _ask(self, app_ids: list[str]) -> Answers:
        answers: Answers = {}
        for site, ids in self._by_site(app_ids):
            folders = self.folders(site).of_many(ids)
            known = {i: folder for i, folder in folders.items() if folder is not None}
            asked = [i for i in ids if i in known or i not in folders]  # the others were deleted
            with within(PATIENCE_S):
                answers.update(self._query(site, asked, known) if asked else {})
        return answers

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> _Jobs:
        site = self._site_of(self._defaults() if cfg is None else cfg)
        with within(PATIENCE_S):
            jobs = self._query_all(site)
        folders = self.folders(site).of_many([job.app_id for job in jobs])
        deleted = {i for i, folder in folders.items() if folder is None}
        return [job for job in jobs if job.app_id not in deleted]

    @shortcut
    @by_view
    def log_replicas(self, app_id: str) -> _Replicas | None:
        """Return the replicas on record in the job's folder; without such a record,
        those that the scheduler reports.
        """
        folder = self._folder(app_id)
        roles = folder.roles() if folder is not None else []
        return [(role.name, k) for role in roles for k in range(role.num_replicas)] or super().log_replicas(app_id)

    @by_view
    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        site = self._site(app_id)
        folder = self._log_folder(site, app_id)
        if folder is None:
            raise NotFoundError(
                f"no logs of job `{app_id}` are known",
                hint="`torchx list` shows the jobs; `torchx delete` removes logs",
            )
        growth = self._growth.get(id(site)) or self._growth.setdefault(id(site), Growth(site.files))
        paths = [folder.log_paths(role, k) for role, k in replicas]
        if query.previous:
            self._choose_previous(folder, paths)
        over = (functools.partial(self._is_over, app_id, k) for _, k in replicas)
        return [BatchLog(growth, where, query, is_over) for where, is_over in zip(paths, over, strict=True)]

    @by_view
    def steps(self, app_id: str) -> _Ranks:
        """See :class:`torchx.schedulers.kit.abilities.ReportsSteps`."""
        from torchx.schedulers.kit.pace import read_files
        from torchx.supervisor.layout import STEPS_FILE

        folder = self._folder(app_id)
        if folder is None:
            return []
        replicas = [(role.name, k) for role in folder.roles() for k in range(role.num_replicas)]
        return read_files(folder.files, {(r, k): f"{folder.replica(r, k)}/{STEPS_FILE}" for r, k in replicas})

    def view_of(self, app_id: str) -> BatchScheduler:  # noqa: ARG002  # a hook
        """Return the view of this job; itself, if nothing about the job is special."""
        return self

    def _choose_previous(self, folder: JobFolder, paths: Sequence[LogPaths]) -> None:
        """Limits the logs of replicas to the attempt before the last restart; for ``log_previous``."""

    def _is_over(self, app_id: str, task: int = 0) -> bool:
        found = self.describe(app_id)
        if found is not None and found.tasks is not None:
            return is_terminal_task(found.tasks.states[task])
        return found is None or is_terminal(found.state)

    # -- the end ---------------------------------------------------------------------------------

    @by_view
    def _cancel_existing(self, app_id: str) -> None:
        found = self.describe(app_id)
        if found is None or is_terminal(found.state):
            return
        self._accept_cancel(self.run_command(self._site(app_id), self._cancel_argv(app_id)))
        self._queries.forget(app_id)
        if folder := self._folder(app_id):
            folder.files.remove(folder.file(SECRETS_FILE))

    def _delete_existing(self, app_id: str) -> None:
        """Cancel the job if it runs, removes its folder, and hides it from now on."""
        site = self._site(app_id)
        self._cancel_existing(app_id)
        folder = self._folder(app_id) or self._log_folder(site, app_id)  # logs of a script are elsewhere
        self.folders(site).delete(app_id, folder.path if folder is not None and folder.is_ours() else "")
        self._queries.forget(app_id)

    def _not_running(self, app_id: str, role: str, k: int) -> NotFoundError:
        self._queries.forget(app_id)
        return described(self.describe(app_id), app_id, role, k)

    def close(self) -> None:
        """Clear caches; jobs go on."""
        super().close()
        self._queries.clear()
        self._growth.clear()
