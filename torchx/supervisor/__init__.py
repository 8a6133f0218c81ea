"""The processes that own local jobs, and the files in which they record the jobs' states.

Uses only the standard library and imports nothing else of torchx, because :mod:`launcher` runs as a program of its own
(``python -I -S launcher.py``) next to jobs that may run for weeks.

* :mod:`client` hands jobs over to the launcher;
* :mod:`launcher` forks one :mod:`supervise` per job and stays as its guardian;
* :mod:`reserve` coordinates the supervisors that wait for the next request;
* :mod:`gang` decides what a failed replica means for the others;
* :mod:`statefile` defines the file with the state of a job;
* :mod:`follow` writes ``combined.log`` and the time index;
* :mod:`proctree` finds and ends processes; :mod:`orphans` ends a job whose supervisor was killed;
* :mod:`retention` removes old jobs.
"""

from __future__ import annotations


def launcher_path() -> str:
    """Path of the launcher's program."""
    return __file__.replace("__init__.py", "launcher.py")
