"""What the daemon does for each command, and what it answers: lines to print, an exit code, rows of jobs."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from . import processes
from .model import STARTED, Job, LsfError, dependency, elements, resources

if TYPE_CHECKING:
    from .daemon import Daemon

Answer = dict[str, Any]

MAX_NAME = 511


def answer(daemon: Daemon, request: dict[str, Any]) -> Answer:
    """The answer to one request."""
    try:
        return _HANDLERS[request["command"]](daemon, request)
    except LsfError as e:
        return {"err": [str(e)], "code": 255}


def _submit(daemon: Daemon, request: dict[str, Any]) -> Answer:
    options, cluster = request["options"], daemon.cluster
    queue = options.get("-q", daemon.config.queues[0].name)
    if queue not in cluster.queues:
        raise LsfError(f"{queue}: No such queue. Job not submitted.")
    if not cluster.queues[queue].open:
        raise LsfError(f"{queue}: Queue has been closed. Job not submitted.")
    if "-app" in options and options["-app"] not in daemon.config.apps:
        raise LsfError(f"{options['-app']}: No such application profile. Job not submitted.")
    wanted = resources(options, unit=daemon.config.unit)
    if any(h not in cluster.hosts for h in wanted.hosts):
        raise LsfError("Bad host name, host group name or cluster name. Job not submitted.")
    if "-w" in options:
        dependency(options["-w"], cluster.jobs)
    if len(request["job"]) > 4094:
        raise LsfError("Command is too long. Job not submitted.")
    spec = options.get("-J", "").replace("\n", "")
    name, indices, most = elements(spec, daemon.config.array_size)
    if len(name) > MAX_NAME:
        raise LsfError(f"{name}: Bad job name. Job not submitted.")
    group = _group(daemon, options["-g"], request["user"]) if "-g" in options else ""
    for index in indices:
        job = Job(
            id=daemon.next_id,
            user=request["user"],
            command=request["job"],
            name=name or request["job"],
            queue=queue,
            from_host=request["host"],
            cwd=options.get("-cwd", request["cwd"]),
            env=request["env"],
            options=options,
            resources=wanted,
            group=group,
            project=options.get("-P", "default"),
            index=index,
            most=most,
            spec=spec,
        )
        cluster.jobs[job.reference] = job
        if "-H" in options:
            job.stat, job.pend = "PSUSP", "The job was suspended by the user while pending;"
        job.log(f"Submitted from host <{job.from_host}>, to Queue <{queue}>, CWD <{job.cwd}>")
    daemon.next_id += 1
    default = "" if "-q" in options else "default "
    return {"out": [f"Job <{job.id}> is submitted to {default}queue <{queue}>."]}


def _group(daemon: Daemon, name: str, user: str) -> str:
    if not name.startswith("/") or len(name) > 512 or name.endswith("/") or set(name) & set(":* \t\n"):
        raise LsfError(f"{name}: Bad job group name. Job not submitted.")
    daemon.cluster.groups.setdefault(name, user)
    return name


def _select(daemon: Daemon, request: dict[str, Any]) -> list[Job]:
    """The jobs that ``-g``, ``-J``, ``-q`` and ids name; all of them when nothing does."""
    chosen, jobs = request["options"], list(daemon.cluster.jobs.values())
    ids = [i for i in request["ids"] if i != "0"]
    if "-g" in chosen:
        jobs = [j for j in jobs if j.group == chosen["-g"] or j.group.startswith(chosen["-g"].rstrip("/") + "/")]
    if "-J" in chosen:
        jobs = [j for j in jobs if chosen["-J"] in (j.name, j.full_name)]
    if "-q" in chosen:
        jobs = [j for j in jobs if j.queue == chosen["-q"]]
    if chosen.get("-u", request["user"]) != "all":
        jobs = [j for j in jobs if j.user == chosen.get("-u", request["user"])]
    return [j for j in jobs if _is_named(j, ids)] if ids else jobs


def _is_named(job: Job, ids: list[str]) -> bool:
    """``7`` is a job, or all elements of an array; ``7[3]`` and ``7[1-4]`` are some."""
    for word in ids:
        number, bracket, _ = word.partition("[")
        if number == str(job.id) and (not bracket or job.index in elements(word, 1 << 31)[1]):
            return True
    return False


def _query(daemon: Daemon, request: dict[str, Any]) -> Answer:
    """Rows for bjobs; ids that nobody knows are named."""
    finished = "-a" in request["options"] or "-d" in request["options"] or bool(request["ids"])
    found = [j for j in _select(daemon, request) if finished or j.unfinished]
    if "-p" in request["options"]:
        found = [j for j in found if j.stat in ("PEND", "PSUSP")]
    every = list(daemon.cluster.jobs.values())
    missing = [i for i in request["ids"] if i != "0" and not any(_is_named(j, [i]) for j in every)]
    return {"rows": [_row(daemon, job) for job in sorted(found, key=lambda j: (j.id, j.index))], "missing": missing}


def _row(daemon: Daemon, job: Job) -> dict[str, Any]:
    limit = daemon._run_limit_s(job)
    return {
        "jobid": job.reference if daemon.config.with_index else str(job.id),
        "stat": job.stat,
        "user": job.user,
        "queue": job.queue,
        "job_name": job.full_name,
        "job_description": job.options.get("-Jd", ""),
        "proj_name": job.project,
        "application": job.options.get("-app", ""),
        "job_group": job.group,
        "dependency": job.options.get("-w", ""),
        "command": job.command,
        "exit_code": "" if job.exit_code is None or job.stat == "DONE" else str(job.exit_code),
        "exit_reason": job.exit_reason if job.stat == "EXIT" and daemon.config.exit_reasons else "",
        "pend_reason": job.pend if job.stat in ("PEND", "PSUSP") else "",
        "from_host": job.from_host,
        "first_host": job.hosts[0] if job.hosts else "",
        "exec_host": ":".join(f"{n}*{h}" if (n := job.hosts.count(h)) > 1 else h for h in dict.fromkeys(job.hosts)),
        "nexec_host": str(len(set(job.hosts))),
        "slots": str(len(job.hosts)) if job.hosts else "",
        "submit_time": job.submitted,
        "start_time": job.started,
        "finish_time": job.finished or (job.started + limit if job.started and limit else 0),
        "run_time": f"{(job.finished or time.time()) - job.started:.0f} second(s)" if job.started else "",
        "finish_mark": "" if job.finished else " L",
        "output_file": job.options.get("-o") or job.options.get("-oo") or "",
        "error_file": job.options.get("-e") or job.options.get("-eo") or "",
        "sub_cwd": job.cwd,
        "exec_home": job.env.get("HOME", "/") if job.started else "",
        "jobindex": str(job.index),
        "memlimit": f"{job.resources.mem_limit_mb:g} M" if job.resources.mem_limit_mb else "",
        "max_mem": f"{job.max_mem_mb:.0f} Mbytes" if job.max_mem_mb else "",
        "cpu_used": f"{job.cpu_s:.1f} second(s)" if job.started else "",
        "gpu_num": str(job.resources.gpus) if job.resources.gpus else "",
        "effective_resreq": job.options.get("-R", ""),
    }


def _kill(daemon: Daemon, request: dict[str, Any]) -> Answer:
    jobs, options = _select(daemon, request), request["options"]
    out, err = [], []
    everything = "0" in request["ids"]
    if not request["ids"] and not everything:
        jobs = jobs[-1:]
    unknown = [i for i in request["ids"] if i != "0" and not any(_is_named(j, [i]) for j in jobs)]
    err += [f"Job <{i}>: No matching job found" for i in unknown]
    for job in jobs:
        if job.lost_at and "-r" not in options:
            job.term = "TERM_OWNER"
            job.log("Termination request issued; but unable to reach the execution host")
            err.append(f"Job <{job.reference}>: Operation is in progress")
        elif job.signals and not options.keys() & {"-s", "-r"}:
            err.append(f"Job <{job.reference}>: Operation is in progress")
        elif job.unfinished:
            force = "-r" in options or options.get("-s", "") in ("KILL", "SIGKILL", "9")
            if "-s" in options and not force:
                processes.send(job.pid, getattr(signal, f"SIG{options['-s'].removeprefix('SIG')}"))
                out.append(f"Job <{job.reference}> is being signaled")
                continue
            daemon.kill(job, "TERM_FORCE_OWNER" if "-r" in options else "TERM_OWNER", now_only=force)
            line = f"Job <{job.reference}> is being terminated"
            # Taken, though it does not sound so.
            err.append(f"Job <{job.reference}>: Operation is in progress") if job.index and not force else out.append(
                line
            )
        elif not everything:
            err.append(f"Job <{job.reference}>: Job has already finished")
    if everything and not out and not err:
        err.append("Job <0>: No matching job found")
    busy = any("in progress" in line for line in err)
    return {"out": out, "err": err, "code": 255 if busy or (err and not out) else 0}


def _requeue(daemon: Daemon, request: dict[str, Any]) -> Answer:
    """``-r -d -e``: running, done, exited ones too; without, running and suspended ones."""
    options, out, err = request["options"], [], []
    for job in _select(daemon, request):
        if job.stat in STARTED:
            job.requeue = True
            job.log("Signal <REQUEUE_PEND> requested by user")
            daemon.kill(job, "TERM_REQUEUE_OWNER")
        elif job.stat == {"-d": "DONE", "-e": "EXIT"}.get(next((o for o in ("-d", "-e") if o in options), ""), "-") or (
            {"-d", "-e"} <= set(options) and not job.unfinished
        ):
            daemon.put_back(job, "Requeue the job for the next run: 1 host;")
            job.log("Pending: Job has been requeued")
        else:
            err.append(f"Job <{job.reference}>: Job has already finished")
            continue
        out.append(f"Job <{job.reference}> is being requeued")
    return {"out": out, "err": err, "code": 255 if not out else 0}


def _stop(daemon: Daemon, request: dict[str, Any]) -> Answer:
    out = []
    for job in _select(daemon, request):
        if job.stat == "PEND":
            job.stat, job.pend = "PSUSP", "The job was suspended by the user while pending;"
        elif job.stat == "RUN":
            job.stat = "USUSP"
            processes.send(job.pid, signal.SIGSTOP)
        else:
            continue
        job.log("Suspended by the user or administrator")
        out.append(f"Job <{job.reference}> is being stopped")
    return {"out": out, "code": 0 if out else 255}


def _resume(daemon: Daemon, request: dict[str, Any]) -> Answer:
    out = []
    for job in _select(daemon, request):
        if job.stat == "PSUSP":
            job.stat, job.pend = "PEND", "Waiting for scheduling after resumed by user;"
        elif job.stat in ("USUSP", "SSUSP"):
            job.stat = "RUN"
            processes.send(job.pid, signal.SIGCONT)
        else:
            continue
        out.append(f"Job <{job.reference}> is being resumed")
    return {"out": out, "code": 0 if out else 255}


def _group_add(daemon: Daemon, request: dict[str, Any]) -> Answer:
    name = request["ids"][-1]
    if name in daemon.cluster.groups:
        raise LsfError(f"{name}: Job group already exists")
    _group(daemon, name, request["user"])
    return {"out": [f"Job group {name} was added."]}


def _group_delete(daemon: Daemon, request: dict[str, Any]) -> Answer:
    name = request["ids"][-1]
    if name not in daemon.cluster.groups:
        raise LsfError(f"{name}: No such job group")
    if any(j.group == name for j in daemon.cluster.jobs.values()):
        raise LsfError(f"{name}: Job group has jobs")
    del daemon.cluster.groups[name]
    return {"out": [f"Job group {name} was deleted."]}


def _groups(daemon: Daemon, request: dict[str, Any]) -> Answer:
    lines = [
        f"{'GROUP_NAME':16}{'NJOBS':>9}{'PEND':>8}{'RUN':>8}{'SSUSP':>7}{'USUSP':>7}{'FINISH':>8} SLA JLIMIT OWNER"
    ]
    for name, owner in daemon.cluster.groups.items():
        stats = [j.stat for j in daemon.cluster.jobs.values() if j.group == name]
        n = stats.count
        lines.append(
            f"{name:16}{len(stats):>9}{n('PEND') + n('PSUSP'):>8}{n('RUN'):>8}{n('SSUSP'):>7}{n('USUSP'):>7}"
            f"{n('DONE') + n('EXIT'):>8} () -/- {owner}"
        )
    return {"out": lines}


def _hosts(daemon: Daemon, request: dict[str, Any]) -> Answer:
    lines = [
        f"{'HOST_NAME':19}{'STATUS':12}{'JL/U':>5}{'MAX':>7}{'NJOBS':>7}{'RUN':>7}{'SSUSP':>7}{'USUSP':>7}{'RSV':>7}"
    ]
    named = [word for word in request["ids"] if word in daemon.cluster.hosts]
    for host in daemon.cluster.hosts.values():
        if named and host.name not in named:
            continue
        used = daemon.cluster.used(host.name)
        status = (
            "unreach"
            if host.lost_at > time.time() - daemon.config.unreach_s
            else "unavail"
            if host.lost_at
            else "closed_Adm"
            if host.closed
            else "closed_Full"
            if used >= host.slots
            else "ok"
        )
        lines.append(f"{host.name:19}{status:12}{'-':>5}{host.slots:>7}{used:>7}{used:>7}{0:>7}{0:>7}{0:>7}")
    return {"out": lines}


def _queues(daemon: Daemon, request: dict[str, Any]) -> Answer:
    lines = [
        f"{'QUEUE_NAME':15}{'PRIO':>5} {'STATUS':15}{'MAX':>4} JL/U JL/P JL/H {'NJOBS':>5}{'PEND':>6}{'RUN':>6}{'SUSP':>6}"
    ]
    for q in daemon.cluster.queues.values():
        stats = [j.stat for j in daemon.cluster.jobs.values() if j.queue == q.name and j.unfinished]
        status = f"{'Open' if q.open else 'Closed'}:{'Active' if q.active else 'Inact'}"
        pend, run = stats.count("PEND"), stats.count("RUN")
        lines.append(
            f"{q.name:15}{q.priority:>5} {status:15}{'-':>4} {q.user_slots or '-':>4}    -    - "
            f"{len(stats):>5}{pend:>6}{run:>6}{len(stats) - pend - run:>6}"
        )
    return {"out": lines}


def _params(daemon: Daemon, request: dict[str, Any]) -> Answer:
    return {"out": ["", f"MAX_JOB_ARRAY_SIZE = {daemon.config.array_size}", ""]}


def _admin(daemon: Daemon, request: dict[str, Any]) -> Answer:
    verb, *names = request["ids"]
    for name in names:
        if verb == "lose":  # not LSF's: what happens when a host breaks
            daemon.lose(name)
        elif verb == "find":
            daemon.find(name)
        elif verb == "nofile":  # not LSF's: the job file of a waiting job is gone
            daemon.cluster.jobs[name].no_file = True
        elif verb in ("hclose", "hopen"):
            daemon.cluster.hosts[name].closed = verb == "hclose"
        elif verb in ("qinact", "qact"):
            daemon.cluster.queues[name].active = verb == "qact"
        elif verb in ("qclose", "qopen"):
            daemon.cluster.queues[name].open = verb == "qopen"
        else:
            raise LsfError(f"{verb}: not known to the look-alike")
    return {"out": [f"{verb} {' '.join(names)}: done"]}


def _peek(daemon: Daemon, request: dict[str, Any]) -> Answer:
    jobs = [j for j in _select(daemon, request) if j.stat in STARTED]
    if not jobs:
        raise LsfError(f"Job <{request['ids'][0]}> : Not yet started." if request["ids"] else "No matching job found")
    job = jobs[-1]
    if job.lost_at:
        raise LsfError(f"Job <{job.reference}> : Failed in an LSF library call: unable to reach the execution host")
    lines = ["<< output from stdout >>"]
    for stream in ("out", "err"):
        path = f"{daemon.config.spool(job)}.{stream}"
        if os.path.exists(path):
            with open(path, errors="replace") as file:
                lines += file.read().splitlines()
    return {"out": lines}


def _history(daemon: Daemon, request: dict[str, Any]) -> Answer:
    from .config import history

    rows = [history(j) for j in _select(daemon, {**request, "options": {**request["options"], "-u": "all"}})]
    return {"rows": rows, "history": daemon.config.history, "now": time.time()}


_HANDLERS = {
    "bsub": _submit,
    "bjobs": _query,
    "bkill": _kill,
    "brequeue": _requeue,
    "bstop": _stop,
    "bresume": _resume,
    "bgadd": _group_add,
    "bgdel": _group_delete,
    "bjgroup": _groups,
    "bhosts": _hosts,
    "bqueues": _queues,
    "bparams": _params,
    "badmin": _admin,
    "bpeek": _peek,
    "bhist": _history,
}
