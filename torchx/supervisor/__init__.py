"""The small processes that own local jobs, and the files by which they tell of them.

Standard library only, and no import of the rest of torchx: :mod:`launcher` runs as a program of its own
(``python -I -S launcher.py``) beside jobs that may last for weeks.

* :mod:`client` is how a program hands a job over;
* :mod:`launcher` forks one :mod:`supervise` per job and stays as its guardian;
* :mod:`reserve` is where supervisors without a job wait for the next request;
* :mod:`gang` decides what a failed replica means for the others;
* :mod:`statefile` is how supervisors and readers tell one another what became of a job;
* :mod:`follow` makes ``combined.log`` and the time index;
* :mod:`proctree` finds and ends processes; :mod:`orphans` ends a job whose supervisor was killed;
* :mod:`retention` removes old jobs.
"""

from __future__ import annotations


def launcher_path() -> str:
    """Path of the launcher's program."""
    return __file__.replace("__init__.py", "launcher.py")
