"""LSF jobs that torchx did not submit: one replica, ``job/0``, or the elements of an array, such as ``task/3``.

Their output is in the files of ``bsub -o`` and ``-e``, which LSF writes with a report when the job ends.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence

from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.batch.foreign import ForeignAtSites, Outputs, task_facts
from torchx.schedulers.batch.queries import Known
from torchx.schedulers.batch.sites import Site
from torchx.schedulers.kit.facts import JobFacts, RoleFacts
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.files import Files
from torchx.schedulers.kit.foreign import Named
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.lsf.answers import replica_facts
from torchx.schedulers.lsf.client import NOTHING
from torchx.schedulers.lsf.ends import NOTE, Ends
from torchx.schedulers.lsf.parse import (
    FIELDS,
    NO_JOB_FILE,
    Row,
    cells,
    custom_format,
    group_of,
    name_parts,
    row_of,
    whole,
)
from torchx.schedulers.lsf.reasons import app_state
from torchx.specs.api import AppState
from torchx.util.records import dataclass, replace

JOB, TASK = "job", "task"
_MORE = ("jobindex", "user", "queue", "sub_cwd", "exec_home", "error_file", "command")  # the last is free text
_FORMAT = custom_format((*FIELDS, *_MORE))
_REFERENCE = re.compile(r"(\d+)(?:\[(\d+)\])?")
_NO_FILE = "without `bsub -o FILE` LSF mails the output when the job has ended"
_REPORT = re.compile(r"^(?:-{20,}\n)?Sender: LSF System.*?^(The output \(if any\) [^\n]*)$", re.MULTILINE | re.DOTALL)
_NOT_YET = re.compile(r"(?i)not yet started|already (?:finished|done)|no matching job")
_PEEKED = re.compile(r"^<< output from std(?:out|err) >>\n", re.MULTILINE)
_TRAILER = re.compile(
    r"\s+PS:\s+(?:Read file <[^\n]*> for stderr output of this job\.|Unable to read output data[^\n]*)"
)


@dataclass(frozen=True)
class Job:
    """A job, or an element of an array (``index`` from 1), with the fields of LSF's answer."""

    index: int
    row: Row
    fields: Mapping[str, str]
    role: str = JOB

    def path(self, field: str) -> str:
        """Return an output file, with patterns expanded:
        https://www.ibm.com/docs/en/SSWRJV_10.1.0/lsf_command_ref/bsub.o.1.html.
        """
        name = self.fields.get(field, "").replace("%J", self.row.jobid).replace("%I", str(self.index))
        if name.endswith("/"):  # a folder, for which LSF chooses the file names
            name += f"{self.row.jobid}.{'err' if field == 'error_file' else 'out'}"
        return posixpath.join(self.folder, name) if name else ""

    @property
    def folder(self) -> str:
        """The folder of submission; LSF abbreviates the home directory to ``$HOME``."""
        return re.sub(r"^\$HOME(?=/|$)", lambda _: self.fields.get("exec_home", "~"), self.fields.get("sub_cwd", ""))


class ReportedOutputs(Outputs):
    """The output files of a job, or of the requested elements of an array."""

    def __init__(self, files: Files, app_id: str, jobs: Sequence[Job]) -> None:
        super().__init__(files, app_id, _NO_FILE)
        self._jobs = jobs

    def places(self) -> dict[str, tuple[str, str]]:
        return {
            f"{job.role}/{job.row.k}": (job.path("output_file"), job.path("error_file") or job.path("output_file"))
            for job in self._jobs
        }

    def evidence(self, replicas: Sequence[tuple[str, int]], *, said: str = "") -> list[Evidence]:
        left = super().evidence(replicas, said=said)
        return [self._without_report(found) for found in left]

    def _without_report(self, found: Evidence) -> Evidence:
        unread = NO_JOB_FILE.search(found.stdout) or NO_JOB_FILE.search(found.stderr)
        said = unread[0] if unread else own_words(found.stderr)
        return replace(found, stdout=own_words(found.stdout), stderr=said)


def own_words(text: str) -> str:
    r"""Return the job's output in a file of ``bsub -o``, without LSF's reports. They come first, or last if the site
    writes output at once.

    >>> own_words("Sender: LSF System <a@b>\n...\nThe output (if any) follows:\n\nfine\n")
    '\n\nfine\n'
    >>> own_words("fine\nSender: LSF System <a@b>\n...\nThe output (if any) is above this job summary.\n")
    'fine\n'
    """
    parts = _REPORT.split(text)  # output, what a report ends with, output, ...
    behind = len(parts) == 1 or "follows" in parts[-2]
    own = parts[-1 if behind else -3]
    trailers = [*_TRAILER.finditer(own)]  # the text of stderr may follow
    return f"{own[: trailers[-1].start()]}\n" if trailers and len(parts) > 1 else own


class ForeignLsfJobs(ForeignAtSites):
    """The view of :class:`torchx.schedulers.lsf_scheduler.LsfScheduler` on jobs of others."""

    _ends: Ends  # the scheduler's

    def find(self, reference: str) -> Named | None:
        if not _REFERENCE.fullmatch(reference):
            return None
        found = self._jobs(self._site_of(self._defaults()), [reference]).get(reference)
        if not found:
            return None
        ours = name_parts(found[0].row.name)
        if ours is not None and found[0].fields.get("job_group") == group_of(ours[0]):
            return Named(ours[0], ours=True)
        return Named(reference)

    def about(self, app_id: str) -> dict[str, str]:
        for job in self._asked(app_id):
            facts = {key: job.fields.get(key, "") for key in ("user", "queue", "command")}
            return {k: v for k, v in {"name": job.row.name, **facts, "folder": job.folder}.items() if v}
        return {}

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:  # noqa: ARG002  # the scheduler's
        return {
            app_id: Known(foreign_facts(app_id, found, self._ends), ReportedOutputs(site.files, app_id, found))
            for app_id, found in self._jobs(site, app_ids).items()
        }

    def _outputs(self, app_id: str) -> Outputs:
        return ReportedOutputs(self._site(app_id).files, app_id, self._asked(app_id))

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        """Read the files. For a running job without any, a query that does not follow gets the output of ``bpeek``."""
        site = self._site(app_id)
        plain = query == LogQuery(regex=query.regex, last=query.last)
        jobs = {(job.role, job.row.k): job for job in self._asked(app_id)} if plain else {}
        files = {r: job.path("output_file") for r, job in jobs.items() if app_state(job.row.stat) is AppState.RUNNING}
        sizes = site.files.sizes([files[r] for r in replicas if files.get(r)])
        peeked = {r: self._peeked(site, jobs[r], query) for r in replicas if r in files and not sizes.get(files[r])}
        others = iter(super().open_logs(app_id, [r for r in replicas if r not in peeked], query))
        return [peeked[r] if r in peeked else next(others) for r in replicas]

    def _peeked(self, site: Site, job: Job, query: LogQuery) -> Sequence[str]:
        element = f"{job.row.jobid}[{job.index}]" if job.index else job.row.jobid
        done = self.run_command(site, ["bpeek", element])
        if not _NOT_YET.search(done.stderr):
            done.check()
        return [*query.matching(_PEEKED.sub("", done.stdout).splitlines(keepends=True))]

    def _asked(self, app_id: str) -> list[Job]:
        return self._jobs(self._site(app_id), [app_id]).get(app_id, [])

    def _jobs(self, site: Site, app_ids: list[str]) -> dict[str, list[Job]]:
        """Jobs and elements of arrays, by one query; unknown ones are left out."""
        wanted = {i: found.groups() for i in app_ids if (found := _REFERENCE.fullmatch(i))}  # no option of `bjobs`
        if not wanted:
            return {}
        done = self.run_command(site, ["bjobs", "-a", "-u", "all", "-o", _FORMAT, *wanted])
        every = [job for fields in cells(done.stdout) if (job := _job(fields)) is not None]
        if not every and done.returncode and not NOTHING.search(done.stderr):
            done.check()
        jobs: dict[str, list[Job]] = {}
        for app_id, (number, index) in wanted.items():
            own = {j.index: j for j in reversed(every) if j.row.jobid == number and index in (None, str(j.index))}
            if own:
                if index is None and max(own) > 0:
                    own = {k: replace(job, role=TASK, row=replace(job.row, k=k)) for k, job in own.items()}
                jobs[app_id] = [own[k] for k in sorted(own)]
        return jobs

    def _cancel_argv(self, app_id: str) -> list[str]:
        return ["bkill", app_id]


def foreign_facts(app_id: str, jobs: Sequence[Job], ends: Ends) -> JobFacts:
    """Facts about a job, or about an array."""
    rows = [ends.settled(job.row) for job in jobs]
    members = [replica_facts(job.role, row) for job, row in zip(jobs, rows, strict=True)]
    facts = JobFacts(
        app_id=app_id,
        native=jobs[0].row.stat,
        started=min((r.started for r in members if r.started), default=None),
        ended=max(r.ended for r in members) or None,
        cancelled=all(r.state is AppState.CANCELLED for r in members),
        roles=[RoleFacts(name=jobs[0].role, replicas=members)],
        notes=() if all(job.row is row for job, row in zip(jobs, rows, strict=True)) else [NOTE],
    )
    return task_facts(facts, members) if jobs[0].role == TASK else facts


def _job(fields: Mapping[str, str]) -> Job | None:
    found = _REFERENCE.fullmatch(fields.get("jobid", ""))  # some sites append the index
    if found is None:
        return None
    index = found[2] or fields.get("jobindex", "")
    return Job(whole(index), row_of({**fields, "jobid": found[1]}), fields)
