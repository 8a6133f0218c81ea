"""What Slurm jobs record themselves: how they end and what they use; and the files that they need for it."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.schedulers.batch.base import BatchScheduler
from torchx.schedulers.batch.folders import SECRETS_FILE, JobFolder, read_whole
from torchx.schedulers.batch.sites import Site
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.views import by_view
from torchx.schedulers.slurm.events import EVENTS_FILE, SWEEP_PREFIX, parse_events
from torchx.schedulers.slurm.parse import JobRecord
from torchx.schedulers.slurm.request import SAMPLER_FILE, SlurmBatchRequest
from torchx.schedulers.slurm.sweeps import Sweep
from torchx.specs.api import AppDryRunInfo
from torchx.specs.handles import JobId
from torchx.supervisor.layout import METRICS_FILE

if TYPE_CHECKING:
    from torchx.schedulers.kit.facts import ReplicaFacts
    from torchx.schedulers.kit.metrics import ReplicaMetrics

_LAST_LINE = 128
_MAX_HEARD = 500
_MAX_SWEEPS = 20  # each poll reads their notes completely
_LOOK_S = 0.2


class ReportsItsEnd(BatchScheduler):
    """The part of the backend that reads the jobs' own records. Arguments: see :class:`BatchScheduler`."""

    hears_all = False

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self._event_sizes: dict[str, int] = {}  # of the `events` files that were read
        self._ended: set[str] = set()  # according to their files, which count for one query

    def changed(self, app_ids: Sequence[str], most_s: float) -> set[str] | None:
        """See :class:`torchx.schedulers.kit.abilities.PushesChanges`:
        jobs and tasks here record their ends in files.
        """
        deadline = time.monotonic() + most_s
        sweeps = [i for i in app_ids if i.startswith(SWEEP_PREFIX)][:_MAX_SWEEPS]
        heard = dict.fromkeys([*self._queries.running(app_ids)[:_MAX_HEARD], *sweeps])
        folders = {
            folder.path: i
            for site, ids in self._by_site([*heard])
            if not site.name
            for i, folder in self.folders(site).of_many(ids).items()
            if folder is not None
        }
        near = set(folders.values())
        going = [sweep for i in sweeps if i in near and (sweep := self._sweep(i)) is not None]
        while True:
            ended = self._new_ends(folders) | {sweep.app_id for sweep in going if sweep.is_over()}
            if ended or (left := deadline - time.monotonic()) <= 0:
                break
            time.sleep(min(_LOOK_S, left))
        for app_id in ended:
            self._queries.forget(app_id)
        self._ended = ended
        return ended

    def _new_ends(self, folders: Mapping[str, str]) -> set[str]:
        """Return the jobs (by folder) whose ``events`` have recorded the end since the last call."""
        over = set()
        for folder, app_id in folders.items():
            path = f"{folder}/{EVENTS_FILE}"
            try:
                size = os.stat(path).st_size
                if self._event_sizes.get(path) == size:
                    continue
                self._event_sizes[path] = size
                with open(path, "rb") as file:
                    file.seek(max(size - _LAST_LINE, 0))
                    line = file.read().rstrip(b"\n").rpartition(b"\n")[2]
            except OSError:
                continue
            if line.split()[1:2] == [b"end"]:
                over.add(app_id)
        return over

    def _sweep(self, app_id: str) -> Sweep | None:
        """Return the sweep with this id, or the sweep of this task; None if the id is neither,
        or its folder is unknown.
        """
        app_id = JobId.of(app_id).job
        if not app_id.startswith(SWEEP_PREFIX):
            return None
        folder, run = self._folder(app_id), functools.partial(self.run_command, self._site(app_id))
        return None if folder is None else Sweep(app_id, folder, run)

    def _succeeded(self, site: Site, folders: Mapping[str, JobFolder]) -> dict[str, list[JobRecord]]:
        """Record of jobs that succeeded according to their own files, so that Slurm need not be queried."""
        paths = {f.file(EVENTS_FILE): (i, f) for i, f in folders.items() if i in self._ended}
        found = {}
        for path, text in read_whole(site.files, paths).items():
            app_id, folder = paths[path]
            events = parse_events(text.decode("utf-8", "replace"))
            if events.over and events.exit_code == 0:
                record = JobRecord(job_id=app_id, state="COMPLETED", folder=folder.path, exit_code=0)
                record.started, record.ended = events.started, events.ended
                found[app_id] = [record]
        return found

    def _have_ended(self, site: Site, folders: Mapping[str, JobFolder], app_ids: Sequence[str]) -> bool:
        """Whether all of these jobs ended for good according to their own files."""
        paths = {folders[i].file(EVENTS_FILE) for i in app_ids if i in folders}
        texts = read_whole(site.files, paths) if len(paths) == len(app_ids) else {}
        return sum(parse_events(text.decode("utf-8", "replace")).over for text in texts.values()) == len(app_ids)

    def _look(self, folder: JobFolder, replicas: Sequence[ReplicaFacts]) -> list[Evidence]:
        from torchx.schedulers.slurm.attempts import left_in

        return left_in(folder, replicas)

    def _secret_files(self, info: AppDryRunInfo[SlurmBatchRequest]) -> dict[str, str]:
        text = info.request.secrets(info.submission.secrets)
        files = {SECRETS_FILE: text} if text else {}
        if info.request.notify:
            from torchx.schedulers.slurm.notices import NOTICES_FILE, content

            if addresses := content(info.submission.notices, self.session_name):
                files[NOTICES_FILE] = addresses
        return files

    def take_notices(self, app_id: str) -> dict[str, str] | None:
        """See :class:`torchx.schedulers.kit.abilities.SendsNotices`."""
        from torchx.schedulers.slurm.notices import taken

        folder = self._folder(app_id)
        return {} if folder is None else taken(folder)

    def _sampler(self, info: AppDryRunInfo[SlurmBatchRequest]) -> dict[str, str]:
        """Return the program that samples replicas, as a file for nodes without torchx; empty if it is not wanted."""
        from torchx.supervisor import metrics

        if info.request.sample_s and info.submission.sample_s is not None:
            info.request.sample_s = info.submission.sample_s
        return {SAMPLER_FILE: read_script(metrics.__file__, SAMPLER_FILE)} if info.request.sample_s else {}

    @by_view
    def metrics(self, app_id: str) -> list[ReplicaMetrics] | None:
        """See :class:`torchx.schedulers.kit.abilities.ReportsUsage`."""
        from torchx.schedulers.kit.metrics import read_kept

        folder = self._folder(app_id)
        if folder is None:
            return None
        replicas = [(role.name, k) for role in folder.roles() for k in range(role.num_replicas)]
        return read_kept(folder.files, {(r, k): f"{folder.replica(r, k)}/{METRICS_FILE}" for r, k in replicas})
