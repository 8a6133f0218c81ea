"""The job report that LSF appends to the output file of ``-o``, and the output that it copies there at the end."""

from __future__ import annotations

import contextlib
import os
import time

from .config import Config
from .model import Job


def path_of(job: Job, *flags: str) -> str:
    """The output file of a job, its ``%J`` replaced; empty when there is none."""
    for flag in flags:
        if flag in job.options:
            name = job.options[flag].replace("%J", str(job.id)).replace("%I", str(job.index))
            return os.path.join(job.cwd, name)
    return ""


def job_report(config: Config, job: Job) -> None:
    """Delivers a finished job's output, and the report on it, to its files."""
    spool = config.spool(job)
    out, err = path_of(job, "-o", "-oo"), path_of(job, "-e", "-eo")
    if out:
        text = _report(config, job, _read(f"{spool}.out"))
        if err:
            text += f"\nPS:\n\nRead file <{err}> for stderr output of this job.\n\n{_read(f'{spool}.err')}"
        if job.no_file:
            text += "\nPS:\n\nUnable to read output data from the stdout buffer file\n"
        _deliver(out, text, overwrite="-oo" in job.options)
    if err:
        _deliver(err, _read(f"{spool}.err"), overwrite="-eo" in job.options)
    for stream in ("out", "err"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{spool}.{stream}")


def _report(config: Config, job: Job, output: str) -> str:
    def when(at: float) -> str:
        return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(at))

    word = "Done" if job.stat == "DONE" else "Exited"
    line = "-" * 60
    end = "Successfully completed." if job.stat == "DONE" else f"Exited with exit code {job.exit_code}."
    reason = f"{job.exit_reason}.\n" if job.term and config.exit_reasons else ""
    unread = "Cannot open your job file: /spool/lsbatch/1.shell\n\n" if job.no_file else ""
    return f"""Sender: LSF System <lsfadmin@{job.hosts[0]}>
Subject: Job {job.reference}: <{job.spec or job.full_name}> {word}

Job <{job.spec or job.full_name}> was submitted from host <{job.from_host}> by user <{job.user}>.
Job was executed on host(s) <{job.hosts[0]}>, in queue <{job.queue}>, as user <{job.user}>.
<{job.env.get("HOME", "/")}> was used as the home directory.
<{job.cwd}> was used as the working directory.
Started at {when(job.started)}
Results reported at {when(time.time())}

Your job looked like:

{line}
# LSBATCH: User input
{job.command}
{line}

{unread}{reason}{end}

Resource usage summary:

    CPU time :                                   0.00 sec.
    Max Memory :                                 {job.max_mem_mb:.0f} MB
    Run time :                                   {job.finished - job.started:.0f} sec.

The output (if any) follows:

{output}
"""


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
        return file.read()
    return ""


def _deliver(path: str, text: str, *, overwrite: bool) -> None:
    with contextlib.suppress(OSError), open(path, "w" if overwrite else "a") as file:
        file.write(text)
