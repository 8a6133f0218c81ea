"""Removes finished local jobs that are too old, and the oldest ones if all together are too big."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from torchx.supervisor.layout import JOB_FILES, REPLICA_FILES, STATE_FILE, replica_folder, task_log, task_metrics
from torchx.supervisor.statefile import TASKS, TERMINAL, JobState, StateFileError, check_owner, read_state

_STALE_S = 3600.0  # age at which a folder without a state file, whose submission was killed, is removed


def apply(base: str, *, max_age_s: float, max_bytes: int) -> None:
    """Remove finished jobs beyond these limits; 0: no limit. Jobs that have not ended, and logs elsewhere, stay.

    ``base`` is a folder of sessions, each of which is a folder of jobs.
    """
    import glob

    now = time.time()
    finished: list[tuple[float, str, JobState]] = []
    for path in glob.glob(f"{glob.escape(base)}/*/*/"):
        folder = path.rstrip("/")
        try:
            check_owner(folder)
            job = read_state(os.path.join(folder, STATE_FILE))
        except FileNotFoundError:
            with suppress(FileNotFoundError):  # another process has just removed it
                if now - os.stat(folder).st_mtime > _STALE_S:
                    discard_folder(folder)
            continue
        except (OSError, StateFileError):
            continue
        if job.state in TERMINAL:
            finished.append((job.ended, folder, job))
    finished.sort(key=lambda item: item[0], reverse=True)
    total = 0
    for ended, folder, job in finished:
        logs = job.facts.get("logs") or folder
        ours = os.path.realpath(logs) == os.path.realpath(folder)  # else in the user's `log_dir`, where they stay
        total += sum(_size(path) for path in _files(logs, job)) if max_bytes and ours else 0
        if (max_age_s and now - ended > max_age_s) or (max_bytes and total > max_bytes):
            remove_job(folder, job) if ours else discard_folder(folder)


def remove_job(folder: str, job: JobState) -> None:
    """Remove the files of a job and its logs, and the folders that are empty then. Other files in them are kept."""
    logs = job.facts.get("logs") or folder
    files = _files(logs, job)
    for path in files:
        _remove(path)
    folders = {os.path.dirname(path) for path in files}
    for path in (*folders, *map(os.path.dirname, folders), logs):
        _remove_folder(path)
    discard_folder(folder)
    if logs != folder:
        _remove_folder(os.path.dirname(logs))


def discard_folder(folder: str) -> None:
    """Remove the files of a job in its own folder, and the folder if it is empty then."""
    for name in JOB_FILES:
        _remove(os.path.join(folder, name))
    _remove_folder(folder)


def _files(logs: str, job: JobState) -> list[str]:
    if TASKS in job.facts:
        return [path_of(logs, *at) for at in job.positions() for path_of in (task_log, task_metrics)]
    return [os.path.join(replica_folder(logs, *at), name) for at in job.positions() for name in REPLICA_FILES]


def _size(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _remove_folder(folder: str) -> None:
    with suppress(OSError):
        os.rmdir(folder)
