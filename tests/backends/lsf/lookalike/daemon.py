"""The daemon: mbatchd and sbatchd of the look-alike in one process. ``python -m ... daemon.py ENVDIR``."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import socket
import sys
import time

from . import processes
from .config import Config, read_config
from .model import Job, is_orphan, requeue_codes
from .report import job_report
from .requests import answer
from .scheduler import Cluster

MEMORY_EVERY_S = 0.1

# LSF wraps the command in a job file, whose shell outlives the signals of bkill until the command ends.
JOB_FILE = """trap '#' 15 10 12 2 1
%s
ExitStat=$?
wait
exit $ExitStat
"""


class Daemon:
    """Answers the commands, dispatches jobs, and looks after their processes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.cluster = Cluster(config.hosts, config.queues)
        # Jobs choose ports by their ids: those of another cluster on this machine are others.
        self.next_id = random.randrange(1, 1_000_000)
        self.stopping = False

    # -- the loop ---------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until it is told to stop."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.config.socket)
        server = socket.socket(socket.AF_UNIX)
        server.bind(self.config.socket)
        server.listen(64)
        with selectors.DefaultSelector() as ready, server:
            ready.register(server, selectors.EVENT_READ)
            ready.register(wake_read, selectors.EVENT_READ)
            while not self.stopping:
                for key, _ in ready.select(self._next_deadline()):
                    if key.fileobj is server:
                        self._answer(server)
                    else:
                        os.read(wake_read, 512)
                self.turn()
        self._stop_everything()
        os.unlink(self.config.socket)

    def _answer(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        connection.settimeout(60)
        # Who asked may be gone by now.
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(answer(self, json.loads(stream.readline()))).encode() + b"\n")

    def turn(self) -> None:
        """Everything that is due now."""
        for pid, code in processes.reap():
            job = next((j for j in self.cluster.started() if j.pid == pid), None)
            if job is not None:
                self._ended(job, code)
        now = time.time()
        for job in self.cluster.started():
            if job.lost_at:
                job.stat = "UNKWN" if now >= job.lost_at + self.config.unreach_s else job.stat
                continue
            while job.signals and job.signals[0][0] <= now:
                processes.send(job.pid, job.signals.pop(0)[1])
            self._limits(job, now)
        for job in self.cluster.jobs.values():
            if job.back_at and now >= job.back_at:
                job.log("Pending: Job has been requeued")
                self.put_back(job, "Requeue the job for the next run: 1 host;")
        self._forget(now)
        for job in self.cluster.waiting():
            if "-ti" in job.options and "-w" in job.options and is_orphan(job.options["-w"], self.cluster.jobs):
                self.kill(job, "TERM_ORPHAN_SYSTEM")
                continue
            slots = self.cluster.place(job)
            if slots:
                self.dispatch(job, slots)

    def _next_deadline(self) -> float | None:
        now = time.time()
        due = [job.signals[0][0] for job in self.cluster.started() if job.signals]
        for job in self.cluster.started():
            if job.resources.mem_limit_mb:
                due.append(now + MEMORY_EVERY_S)
            if not job.term and (limit := self._run_limit_s(job)):
                due.append(job.started + limit)
                due += [self._warn_at(job)] if job.options.get("-wa") and not job.warned else []
        due += [j.finished + self.config.clean_period_s for j in self.cluster.jobs.values() if j.finished]
        due += [j.back_at for j in self.cluster.jobs.values() if j.back_at]
        due += [j.lost_at + self.config.unreach_s for j in self.cluster.started() if j.lost_at and j.stat != "UNKWN"]
        return max(0.0, min(due) - now) if due else None

    def _limits(self, job: Job, now: float) -> None:
        if job.signals or job.term:
            return
        limit = job.resources.mem_limit_mb
        if limit:
            job.max_mem_mb = max(job.max_mem_mb, processes.memory_mb(job.pid))
            job.cpu_s = max(job.cpu_s, processes.cpu_s(job.pid))
            if job.max_mem_mb > limit:
                self.kill(job, "TERM_MEMLIMIT")
        run_limit = self._run_limit_s(job)
        warn = job.options.get("-wa") and not job.warned and self._warn_at(job)
        if warn and now >= warn:
            job.warned = True
            processes.send(job.pid, getattr(signal, f"SIG{job.options['-wa'].removeprefix('SIG')}"))
        if run_limit and now >= job.started + run_limit and not job.term:
            job.term = "TERM_RUNLIMIT"
            processes.send(job.pid, signal.SIGUSR2)  # and no more: a program that traps it goes on

    def _warn_at(self, job: Job) -> float:
        """When the signal of -wa is due: -wt before the run limit. 0: there is none."""
        limit = self._run_limit_s(job)
        return job.started + limit - job.resources.warn_min * self.config.minute_s if limit else 0

    def _run_limit_s(self, job: Job) -> float:
        wanted = [m for m in (job.resources.run_limit_min, self.cluster.queues[job.queue].run_limit_min) if m]
        return min(wanted) * self.config.minute_s if wanted else 0

    def _forget(self, now: float) -> None:
        for job in list(self.cluster.jobs.values()):
            if job.finished and now >= job.finished + self.config.clean_period_s:
                self.config.archive(job)
                del self.cluster.jobs[job.reference]

    # -- one job ----------------------------------------------------------------------------------

    def dispatch(self, job: Job, slots: list[str]) -> None:
        """Starts a job on the hosts of its slots; its processes all run here."""
        job.hosts = slots
        first = self.cluster.hosts[slots[0]]
        job.gpu_ids = [(first.name, g) for g in self.cluster.free_gpus(first)[: job.resources.gpus]]
        job.stat, job.started, job.runs, job.pend, job.term = "RUN", time.time(), job.runs + 1, "", ""
        job.exit_code, job.warned = None, False
        spool = self.config.spool(job)
        os.makedirs(os.path.dirname(spool), exist_ok=True)
        for stream in ("out", "err"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{spool}.{stream}")
        cwd = job.cwd if os.path.isdir(job.cwd) else "/tmp"
        job.pid = processes.start(
            ["/bin/sh", "-c", "exit 127" if job.no_file else JOB_FILE % job.command],
            env=self._environment(job),
            cwd=cwd,
            stdout=f"{spool}.out",
            stderr=f"{spool}.out" if not ({"-e", "-eo"} & set(job.options)) else f"{spool}.err",
        )
        job.log(f"Dispatched to {' '.join(f'<{h}>' for h in slots)}")
        job.log(f"Starting (Pid {job.pid})")
        job.log(f"Running with execution home <{job.env.get('HOME', '/')}>, Execution CWD <{cwd}>")

    def _environment(self, job: Job) -> dict[str, str]:
        """https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=variables-environment-variable-reference"""
        config, first = self.config, job.hosts[0]
        path = job.env.get("PATH", "/usr/bin:/bin")
        env = {
            **job.env,
            "LSB_JOBID": str(job.id),
            "LSB_BATCH_JID": str(job.id),
            "LSB_JOBINDEX": str(job.index),
            "LSB_JOBNAME": job.full_name,
            "LSB_QUEUE": job.queue,
            "LSB_HOSTS": " ".join(job.hosts),
            "LSB_MCPU_HOSTS": " ".join(f"{h} {job.hosts.count(h)}" for h in dict.fromkeys(job.hosts)),
            "LSB_SUB_HOST": job.from_host,
            "LSB_JOBPEND": "",
            "LS_SUBCWD": job.cwd,
            "LSFUSER": job.user,
            "LSF_ENVDIR": config.envdir,
            "LSF_BINDIR": config.bindir,
            "PATH": f"{config.bindir}:{path}",
        }
        if job.runs > 1:
            env["LSB_RESTART"] = "Y"
        if job.gpu_ids:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(str(g) for name, g in job.gpu_ids if name == first)
        return env

    def kill(self, job: Job, term: str, *, now_only: bool = False) -> None:
        """Ends a job as bkill does: SIGINT, SIGTERM and SIGKILL, with time in between; a waiting one at once."""
        if job.stat in ("PEND", "PSUSP"):
            job.term, job.stat, job.finished = term, "EXIT", time.time()
            job.log(f"Exited; {job.exit_reason}.")
            return
        if job.signals:
            return
        job.term, job.lost_at = term, 0
        now, gap = time.time(), self.config.terminate_interval_s
        numbers = [signal.SIGKILL] if now_only else [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
        job.signals = [(now + i * gap, number) for i, number in enumerate(numbers)]
        if job.stat in ("USUSP", "SSUSP"):
            processes.send(job.pid, signal.SIGCONT)

    def lose(self, name: str) -> None:
        """The link to a host breaks: a rerunnable job (-r) is put back, others run on, and nobody knows of them."""
        self.cluster.hosts[name].lost_at = time.time()
        for job in self.cluster.started(name):
            job.signals = []
            if "-r" in job.options:
                processes.send(job.pid, signal.SIGKILL)
                job.log("Job has been requeued: its execution host is unavailable")
                self.put_back(job, "Requeued job is waiting for rescheduling: 1 host;")
            else:
                job.lost_at = time.time()

    def find(self, name: str) -> None:
        """The link is there again: what was killed meanwhile ends, and what has ended is known."""
        self.cluster.hosts[name].lost_at = 0
        for job in self.cluster.started(name):
            job.stat, job.lost_at = "RUN", 0
            if job.term:
                processes.send(job.pid, signal.SIGKILL)
                job.log("Exited; job has been forced to exit.")
            if job.lost_code is not None:
                self._ended(job, job.lost_code)

    def put_back(self, job: Job, reason: str) -> None:
        """Makes a job wait again; ``reason`` is what bjobs shows."""
        job.stat, job.pend, job.finished, job.exit_code = "PEND", reason, 0, None
        job.hosts, job.gpu_ids, job.pid, job.started, job.term, job.back_at = [], [], 0, 0, "", 0

    def _ended(self, job: Job, code: int) -> None:
        processes.send(job.pid, signal.SIGKILL)  # what it left behind
        if job.lost_at:
            job.lost_code = code
            return
        job.signals, job.exit_code, job.lost_code = [], code, None
        if not job.term and code == 128 + signal.SIGKILL:
            job.term = "TERM_EXTERNAL_SIGNAL"
        spec, all_but = requeue_codes(job.options.get("-Q", ""))
        if not job.term and code != 0 and (code in spec) != all_but and "-Q" in job.options:
            job.log(f"Pending: Requeued job is waiting for rescheduling: 1 host;(exit code {code})")
            self.put_back(job, f"Requeued job is waiting for rescheduling: 1 host;(exit code {code})")
            return
        job.stat, job.finished = ("DONE" if code == 0 else "EXIT"), time.time()
        if job.requeue:
            job.requeue, job.back_at = False, job.finished + self.config.requeue_window_s
            job.log(f"Exited with exit code {code}")
            return
        if code == 0:
            job.term = ""
            job.log("Done successfully. The CPU time used is 0.0 seconds")
        else:
            reason = f"; {job.exit_reason}" if job.term else ""
            job.log(f"Exited with exit code {code}. The CPU time used is 0.0 seconds{reason}")
        job_report(self.config, job)

    def _stop_everything(self) -> None:
        deadline = time.time() + 60
        # Again and again: one look may miss a process that is just being forked.
        while sum(processes.send(job.pid, signal.SIGKILL) for job in self.cluster.started()):
            if time.time() > deadline:
                break
            time.sleep(0.02)
        processes.reap()


if __name__ == "__main__":
    Daemon(read_config(sys.argv[1])).serve()
