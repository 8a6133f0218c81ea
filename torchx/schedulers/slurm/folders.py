"""The files in the folders of Slurm jobs, read for many jobs at once; and the folders of earlier versions."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from torchx.schedulers.batch.folders import JOB_FILE, TAIL_BYTES, JobFolder, LogPaths, read_whole, roles_of
from torchx.schedulers.batch.queries import Known
from torchx.schedulers.kit.attempts import ATTEMPTS_FILE, begins_of
from torchx.schedulers.kit.files import Files
from torchx.schedulers.kit.verdict import describe
from torchx.schedulers.slurm.answers import Job, facts_of, telling_files
from torchx.schedulers.slurm.events import EVENTS_FILE, parse_events, starts_of
from torchx.schedulers.slurm.parse import JobRecord
from torchx.specs.wishes.retries import read_attempts


def files_of(
    files: Files, records: Mapping[str, Sequence[JobRecord]], folders: Mapping[str, JobFolder]
) -> dict[str, Job]:
    """Jobs with the contents of their folders, by one query for all of them, and another one for unexplained failures.

    Args:
        records: Slurm's; empty for a job that Slurm no longer knows.
        folders: the known ones. Others are taken from the records, if torchx made them.
    """
    paths = {app_id: folder.path for app_id, folder in folders.items()}
    for app_id, found in records.items():
        if app_id not in paths and found and found[0].folder.startswith("/"):
            paths[app_id] = found[0].folder
    names = (JOB_FILE, EVENTS_FILE, ATTEMPTS_FILE)
    texts = read_whole(files, [posixpath.join(path, name) for path in paths.values() for name in names])
    jobs = {}
    for app_id in {**records, **folders}:
        path = paths.get(app_id, "")
        record = texts.get(posixpath.join(path, JOB_FILE)) if path else None
        if record is None and not records.get(app_id):
            continue  # Slurm does not know it, and it has no folder
        noted = texts.get(posixpath.join(path, ATTEMPTS_FILE), b"")
        attempts = read_attempts(noted.decode("utf-8", "replace").splitlines()) if noted else []
        folder = JobFolder(files, path) if record is not None else None
        if folder is not None and attempts:
            folder.begins = begins_of(attempts)
        events = texts.get(posixpath.join(path, EVENTS_FILE), b"") if record is not None else b""
        jobs[app_id] = Job(
            app_id=app_id,
            records=list(records.get(app_id, ())),
            events=parse_events(events.decode("utf-8", "replace")),
            folder=folder,
            roles=roles_of(record),
            attempts=attempts,
        )
    # Another query, for what explains a failure.
    wanted = {job.folder.file(name): (job, name) for job in jobs.values() if job.folder for name in telling_files(job)}
    for path, data in (files.grown(dict.fromkeys(wanted, -TAIL_BYTES)) if wanted else {}).items():
        job, name = wanted[path]
        job.texts[name] = data.decode("utf-8", "replace")
    return jobs


class Waiting:
    """A cache of pending jobs: while their records do not change, nothing is read or judged again."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, Known]] = {}

    def as_before(
        self, records: Mapping[str, Sequence[JobRecord]], folders: Mapping[str, JobFolder]
    ) -> dict[str, Known]:
        """Return the cached jobs among these whose records have not changed. Arguments: see :func:`files_of`."""
        found = {i: self._known[i] for i in records if i in self._known}
        return {i: known for i, (seen, known) in found.items() if seen == _seen(records[i], folders.get(i))}

    def keep(self, job: Job, folder: JobFolder | None) -> Known:
        """Return the facts about a job; caches them, with its recorded ``folder``, if it has never started."""
        facts = facts_of(job)
        # An expected start is phrased relative to now. A job that has started before may still write files.
        idle = all(r.state == "PENDING" and r.started is None and not r.restarts for r in job.records)
        if not (idle and job.records) or job.events.starts or job.attempts:
            self._known.pop(job.app_id, None)
            return Known(facts, job.folder)
        known = Known(facts, job.folder, describe(facts))
        self._known[job.app_id] = (_seen(job.records, folder), known)
        return known


def _seen(records: Sequence[JobRecord], folder: JobFolder | None) -> object:
    return list(records), folder and folder.path


def job_id_in(folder: JobFolder) -> str:
    """Return the id that the script of the job in this folder has recorded; empty if it has not started."""
    return parse_events(folder.text(EVENTS_FILE)).job_id


def choose_previous(folder: JobFolder, paths: Sequence[LogPaths]) -> None:
    """Limits the logs of replicas to the attempt before their last restart."""
    starts = starts_of(folder.text(EVENTS_FILE))
    for where in paths:
        replica = posixpath.relpath(posixpath.dirname(where.stdout), folder.path)
        began = starts.get(replica, [])
        where.again = len(began) > 1
        if where.again:
            where.begin, where.end = began[-2:]


class LegacyFolder(JobFolder):
    """The folder of a job of an earlier version, with ``slurm-<id>-<role>-<k>.out`` and ``.err``."""

    def __init__(self, files: Files, path: str, app_id: str) -> None:
        super().__init__(files, path)
        self._app_id = app_id

    @classmethod
    def find(cls, files: Files, index: str, app_id: str) -> LegacyFolder | None:
        """Return the job's folder from the index in the current folder; None if the job is not in it."""
        here = JobFolder(files, files.cwd())
        for line in reversed(here.text(index).splitlines()):
            name, found, path = line.partition(" = ")
            if found and name.strip() == app_id:
                return cls(files, here.file(path.strip()), app_id)
        return None

    def log_paths(self, role: str, k: int) -> LogPaths:
        base = posixpath.join(self.path, f"slurm-{self._app_id}-{role}-{k}")
        return LogPaths(f"{base}.out", f"{base}.err")

    def is_ours(self) -> bool:
        """Never: it may contain other files."""
        return False
