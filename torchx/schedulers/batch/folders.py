"""The folders of batch jobs: their contents, and how a job id leads to its folder.

::

    <home>/<backend>/<token>/          or  <job_dir>/torchx-jobs/<token>/
        secrets.sh                     values of secrets until the job ends; mode 0600
        job.json                       the AppDef, secrets masked, and the job's name
        <role>/<k>/stdout.log          output of replica k
        <role>/<k>/stderr.log
        <role>/<k>/times.idx           sizes of the two over time, for `--since`; see logs.py
        <role>/<k>/error.json          torchelastic's error file
    <home>/<backend>/ids/<app id>      path of the folder, or `deleted`

``<home>`` is torchx's home (``$TORCHX_HOME``, else ``~/.torchx``) on the machine where the commands run.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, SpecError
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.files import MAX_GROWN, Files
from torchx.settings import torchx_home
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict, masked
from torchx.supervisor.layout import (
    ERROR_FILE,
    HANG_FILE,
    MARKS,
    STACKS_FILE,
    STDERR_LOG,
    STDOUT_LOG,
    TIMES_INDEX,
    role_folder,
)
from torchx.util.notices import logger
from torchx.util.records import dataclass

if TYPE_CHECKING:
    from torchx.schedulers.kit.commands import Completed
    from torchx.schedulers.kit.findings import Finding
    from torchx.specs.api import AppDef, Role

# What plugins use, see docs/adding-a-scheduler.md.
__all__ = ["ERROR_FILE", "STDERR_LOG", "STDOUT_LOG", "TIMES_INDEX", "JobFolder", "JobFolders", "folder_name"]

JOB_FILE = "job.json"
SECRETS_FILE = "secrets.sh"
IN_JOB_DIR = "torchx-jobs"
_IDS = "ids"
# What the backends have in a job's folder; only bash reads and writes some of these.
_TAKEN = frozenset(
    [
        *(JOB_FILE, SECRETS_FILE, HANG_FILE, STACKS_FILE, *MARKS),
        *("array.sh", "attempt", "cancelled", "chunks", "ended", "events", "job.sh", "launch.sh", "memory"),
        *("metrics.py", "more.lock", "notices.json", "notices.log", "notices.sent", "over", "put_back"),
        *("replicas.sh", "reports", "restarts", "retries.sh", "retry.json", "retry.log", "retry.pyz"),
        *("silent", "slurm.log", "started", "submit.sh", "submitted", "sweep", "values"),
        *("watchdog.log", "watching"),
    ]
)
_DELETED = b"deleted"
TAIL_BYTES = 1 << 16
"""How much of the end of its output is read to find out why a replica failed."""


def folder_name(role: str) -> str:
    """Return the name of a role's folder in that of its job, which is not that of a file there.

    >>> folder_name("trainer"), folder_name("../a b"), folder_name("events")
    ('trainer', '..%2fa%20b', '%65vents')
    """
    return role_folder(role, _TAKEN)


class JobFolders:
    """All folders of one backend at one site."""

    def __init__(self, files: Files, backend: str) -> None:
        self._files = files
        self._root = files.torchx_home(backend)

    def place(self, token: str, job_dir: str | None = None) -> str:
        """Path of the folder for a new job; it is not created."""
        return posixpath.join(job_dir, IN_JOB_DIR, token) if job_dir else posixpath.join(self._root, token)

    def remember(self, app_id: str, folder: str) -> None:
        """Record the folder of a job. If that fails, it logs a warning: the job runs anyway."""
        self._note(app_id, folder.encode("utf-8", "surrogateescape"))

    def of(self, app_id: str) -> JobFolder | None:
        """Return the folder of a job; None if it is not on record."""
        return self.of_many([app_id]).get(app_id)

    def of_many(self, app_ids: Iterable[str]) -> dict[str, JobFolder | None]:
        """Return the folders of many jobs, by one query. None: the job was deleted, but its scheduler may still report
        it.

        Jobs without a recorded folder are left out.
        """
        markers = {self._marker(i): i for i in app_ids}
        noted = self._files.grown(dict.fromkeys(markers, 0)) if markers else {}
        return {
            markers[path]: None if text == _DELETED else JobFolder(self._files, text.decode("utf-8", "surrogateescape"))
            for path, text in noted.items()
        }

    def delete(self, app_id: str, folder: str) -> None:
        """Remove a job's folder, if one is given, and record that the job is deleted."""
        if folder:
            self._files.remove(folder)
        self._note(app_id, _DELETED)

    def _marker(self, app_id: str) -> str:
        safe = "".join(c if c.isalnum() or c in "+-_" else f"%{ord(c):x}" for c in app_id)
        return posixpath.join(self._root, _IDS, safe)

    def _note(self, app_id: str, text: bytes) -> None:
        path = self._marker(app_id)
        try:
            self._files.make_folder(posixpath.dirname(path))
            self._files.write(path, text)
        except BackendError as e:
            logger("torchx.schedulers").warning("%s; the job's folder may not be found again", e)


class JobFolder:
    """The folder of one job, by its absolute path."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.begins: dict[str, int] = {}
        """Start offsets of the last attempt's output, see :func:`torchx.schedulers.kit.attempts.begins_of`."""

    def create(self, files: dict[str, str], app: AppDef | None, token: str) -> None:
        """Create the folder with ``job.json`` and ``files`` (path in it to content). Raises BackendError on failure."""
        record: dict[str, Any] = {"format": 1, "name": token}
        if app is not None:
            record["app"] = appdef_to_dict(masked(app), fallback=repr)
        self.files.make_folder(self.path)
        for name, text in {JOB_FILE: json.dumps(record), **files}.items():
            path = self.file(name)
            if "/" in name:
                self.files.make_folder(posixpath.dirname(path))
            self.files.write(path, text.encode("utf-8", "surrogateescape"))

    def file(self, name: str) -> str:
        """Path of a file in the folder."""
        return posixpath.join(self.path, name)

    def text(self, name: str) -> str:
        """Return the content of a file in the folder; empty if there is none."""
        return (self.files.read(self.file(name)) or b"").decode("utf-8", "replace")

    def is_ours(self) -> bool:
        """Whether torchx created this folder: it removes no others."""
        return bool(self.files.read(self.file(JOB_FILE), 0, 1))

    def roles(self) -> list[Role]:
        """Return the submitted roles, secrets masked; empty if they are not on record."""
        return roles_of(self.files.read(self.file(JOB_FILE)))

    def replica(self, role: str, k: int) -> str:
        """Path of the folder of one replica."""
        return posixpath.join(self.path, folder_name(role), str(k))

    def log_paths(self, role: str, k: int) -> LogPaths:
        """Return the log files of one replica."""
        base = self.replica(role, k)
        stdout, stderr, times = (posixpath.join(base, name) for name in (STDOUT_LOG, STDERR_LOG, TIMES_INDEX))
        return LogPaths(stdout, stderr, times)

    def evidence(self, replicas: Sequence[tuple[str, int]], *, said: str = "") -> list[Evidence]:
        """Return what failed replicas (role, number) left behind, by one query for all.

        Arguments: see :func:`left_by`.
        """
        begins = {self.file(path): at for path, at in self.begins.items()}
        return left_by(self.files, [self.replica(role, k) for role, k in replicas], said=said, begins=begins)


def left_by(
    files: Files, folders: Sequence[str], *, said: str = "", begins: Mapping[str, int] | None = None
) -> list[Evidence]:
    """Return what failed replicas left in their folders, by one query for all of them.

    Args:
        said: name of the file in a replica's folder that holds the scheduler's messages; empty if there is none.
        begins: start offsets of the last attempt in some files, by path.
    """
    ends = (STDERR_LOG, STDOUT_LOG, said) if said else (STDERR_LOG, STDOUT_LOG)
    offsets = {f"{folder}/{name}": -TAIL_BYTES - 1 for folder in folders for name in ends}
    later = {path: at for path, at in (begins or {}).items() if path in offsets}
    for path, size in files.sizes(later).items() if later else ():
        offsets[path] = max(later[path], (size or 0) - TAIL_BYTES - 1)
    found = files.grown({**offsets, **{f"{folder}/{ERROR_FILE}": 0 for folder in folders}}) if folders else {}

    def end(folder: str, name: str) -> str:
        data = found.get(f"{folder}/{name}", b"")
        cut = len(data) > TAIL_BYTES  # drop the partial first line
        return (data[data.find(b"\n") + 1 :] if cut else data).decode("utf-8", "replace")

    return [
        Evidence(
            error_file=found.get(f"{folder}/{ERROR_FILE}", b"").decode("utf-8", "replace") or None,
            stderr=end(folder, STDERR_LOG),
            stdout=end(folder, STDOUT_LOG),
            said=end(folder, said) if said else "",
        )
        for folder in folders
    ]


def read_whole(files: Files, paths: Iterable[str]) -> dict[str, bytes]:
    """Return the whole content of files, by as few queries as possible; missing and empty files are left out."""
    found = dict.fromkeys(paths, b"")
    asked = list(found)
    while asked:
        news = files.grown({path: len(found[path]) for path in asked})
        found.update({path: found[path] + data for path, data in news.items()})
        is_all = sum(map(len, news.values())) < MAX_GROWN  # a larger answer may leave files out
        asked = [] if is_all else [path for path in asked if len(news.get(path, b"")) in (0, MAX_GROWN)]
    return {path: data for path, data in found.items() if data}


def ends_of(files: Files, paths: Sequence[str]) -> list[Evidence]:
    """Return the ends of these logs, by one query. Each is the only output of one process."""
    found = files.grown(dict.fromkeys(paths, -TAIL_BYTES))
    return [Evidence(stderr=found.get(path, b"").decode("utf-8", "replace")) for path in paths]


@dataclass
class LogPaths:
    """The log files of one replica. Empty paths: stderr goes to stdout, or times are not recorded.

    Attributes:
        begin: start offsets in stdout and stderr.
        end: end offsets; None: read to the end.
        again: the replica was restarted; ``begin`` and ``end`` delimit the attempt before that.
    """

    stdout: str
    stderr: str = ""
    times: str = ""
    begin: tuple[int, int] = (0, 0)
    end: tuple[int, int] | None = None
    again: bool = False


def roles_of(record: bytes | None) -> list[Role]:
    """Return the roles in a ``job.json``; empty if it is not a valid one."""
    try:
        found = json.loads(record or b"{}")
        return appdef_from_dict(found["app"]).roles
    except (ValueError, KeyError, TypeError, RecursionError, SpecError):
        return []


def shared_folder(nodes: Completed, backend: str, remote: str) -> str | Finding:
    """Whether the ``nodes`` (host names) see the folder of the backend's jobs, on login node ``remote`` or here."""
    import socket

    hosts = set(nodes.check().stdout.split())
    if not remote and hosts <= {socket.gethostname(), socket.gethostname().partition(".")[0]}:
        return "all nodes are this machine"
    from torchx.schedulers.kit.findings import doubt

    where = f"`{torchx_home(backend)}`" if not remote else f"the folder of jobs on `{remote}`"
    said = f"only a job can show whether the nodes see {where}"
    return doubt(said, f"`torchx doctor -s {backend} --deep`")
