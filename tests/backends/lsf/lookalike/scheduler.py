"""Which waiting job may start on which hosts; and, for one that may not, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .model import STARTED, Host, Job, Jobs, LsfError, Queue, dependency


class Cluster:
    """Hosts, queues and jobs."""

    def __init__(self, hosts: Iterable[Host], queues: Iterable[Queue]) -> None:
        self.hosts = {h.name: h for h in hosts}
        self.queues = {q.name: q for q in queues}
        self.jobs: Jobs = {}
        self.groups: dict[str, str] = {}

    def started(self, host: str = "") -> list[Job]:
        """Jobs that hold slots, of one host or of all."""
        return [j for j in self.jobs.values() if j.stat in STARTED and (not host or host in j.hosts)]

    def waiting(self) -> list[Job]:
        """Jobs that may be dispatched, the most urgent first."""
        pending = [j for j in self.jobs.values() if j.stat == "PEND"]
        return sorted(pending, key=lambda j: (-self.queues[j.queue].priority, j.submitted, j.id, j.index))

    def place(self, job: Job) -> list[str]:
        """The slots of a job that may start now; none, and its pending reason set, when it may not."""
        reason = self._job_reason(job)
        if reason:
            job.pend = reason
            return []
        reasons: Counter[str] = Counter()
        slots: list[str] = []
        for host in self.hosts.values():
            why = self._host_reason(host, job)
            if why:
                reasons[why] += 1
                continue
            free = host.slots - self.used(host.name)
            slots += [host.name] * min(free, job.resources.slots - len(slots))
            if len(slots) == job.resources.slots:
                return slots
        if slots:
            reasons["Not enough job slot(s)"] += len(set(slots))
        job.pend = " ".join(f"{why}: {n} host{'s' if n > 1 else ''};" for why, n in reasons.most_common())
        return []

    def used(self, host: str) -> int:
        """Slots of a host that are taken."""
        return sum(j.hosts.count(host) for j in self.started(host))

    def free_gpus(self, host: Host) -> list[int]:
        """Numbers of the GPUs of a host that nobody has."""
        taken = {g for j in self.started(host.name) for name, g in j.gpu_ids if name == host.name}
        return [g for g in range(host.gpus) if g not in taken]

    def _job_reason(self, job: Job) -> str:
        queue = self.queues[job.queue]
        if not queue.active:
            return "The queue is inactivated by the administrator: 1 host;"
        if "-w" in job.options and job.runs == 0:
            try:
                if not dependency(job.options["-w"], self.jobs):
                    return "Job dependency condition not satisfied: 1 host;"
            except LsfError:
                return "Dependency condition invalid or never satisfied: 1 host;"
        if job.most and sum(j.id == job.id for j in self.started()) >= job.most:
            return "The job array has reached its running element limit: 1 host;"
        if queue.user_slots:
            mine = sum(len(j.hosts) for j in self.started() if j.queue == job.queue and j.user == job.user)
            if mine + job.resources.slots > queue.user_slots:
                return "User has reached the per-user job slot limit of the queue: 1 host;"
        return ""

    def _host_reason(self, host: Host, job: Job) -> str:
        wanted, there = job.resources, self.started(host.name)
        if wanted.hosts and host.name not in wanted.hosts:
            return "Not specified in job submission"
        if host.name in wanted.not_hosts:
            return "Job's resource requirements not satisfied"
        if host.lost_at:
            return "Unable to reach slave batch server"
        if host.closed:
            return "Closed by LSF administrator"
        if wanted.select_mem_mb > host.mem_mb:
            return "Job's resource requirements not satisfied"
        if any(j.resources.exclusive for j in there):
            return "Running an exclusive job"
        if wanted.exclusive and there:
            return "Job's requirement for exclusive execution not satisfied"
        if wanted.gpus > len(self.free_gpus(host)):
            return "Job's requirements for resource reservation not satisfied (GPU)"
        if wanted.mem_mb > host.mem_mb - sum(j.resources.mem_mb for j in there):
            return "Job's requirements for resource reservation not satisfied"
        free = host.slots - self.used(host.name)
        if free < (wanted.slots if wanted.one_host else 1):
            return "Job slot limit reached" if free <= 0 else "Not enough job slot(s)"
        return ""
