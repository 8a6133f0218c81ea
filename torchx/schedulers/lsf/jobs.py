"""Describes, enters, cancels and deletes jobs of LSF."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.schedulers.api import ListAppResponse
from torchx.schedulers.batch.base import BatchScheduler, Known, Site
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.views import by_view
from torchx.schedulers.lsf.answers import by_app, line_of
from torchx.schedulers.lsf.client import accept_kill, bjobs
from torchx.schedulers.lsf.ends import Ends
from torchx.schedulers.lsf.folders import jobs_of
from torchx.schedulers.lsf.parse import ENDS, Row, group_of
from torchx.schedulers.lsf.replicas import CANCELLED_FILE
from torchx.schedulers.lsf.request import LsfBsub
from torchx.specs.api import AppDryRunInfo, CfgVal

if TYPE_CHECKING:
    from torchx.schedulers.kit.findings import Check
    from torchx.schedulers.kit.foreign import ForeignJobs
    from torchx.schedulers.kit.inside import InsideProcess, Tty
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.kit.nodes import Pool
    from torchx.specs.api import Resource

_END_S = 30  # bkill waits between its signals, 10 s by default (JOB_TERMINATE_INTERVAL)


class LsfJobs(BatchScheduler):
    """The part of the backend that knows jobs. Arguments: see :class:`BatchScheduler`."""

    def __init__(self, *args: Any, **parts: Any) -> None:
        super().__init__(*args, **parts)
        self._ends = Ends()
        self._seen: dict[str, tuple[list[Row], Sequence[str]]] = {}  # rows and names of the roles of the last query

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
    def metrics(self, app_id: str) -> list[ReplicaMetrics] | None:
        """See :class:`torchx.schedulers.kit.abilities.ReportsUsage`."""
        from torchx.schedulers.lsf.usage import used

        rows, _ = self._seen.get(app_id, ((), ()))
        if (not rows or any(row.stat not in ENDS for row in rows)) and self._known(app_id) is None:
            return None
        return used(*self._seen.get(app_id, ((), ())))

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

    def _facts(self, site: Site, app_ids: list[str], folders: Mapping[str, JobFolder]) -> dict[str, Known]:
        found = by_app(self._bjobs(site, app_ids))
        known = jobs_of(site.files, {i: found.get(i, []) for i in app_ids}, folders, self._ends)
        self._seen = {i: (found[i], [role.name for role in one.facts.roles]) for i, one in known.items() if i in found}
        return known

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

    def _known(self, app_id: str) -> Known | None:
        folder = self._folder(app_id)
        return self._facts(self._site(app_id), [app_id], {app_id: folder} if folder else {}).get(app_id)

    def _bjobs(self, site: Site, app_ids: list[str]) -> list[Row]:
        return bjobs(functools.partial(self.run_command, site), app_ids)
