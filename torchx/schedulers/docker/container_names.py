"""Marks at the end of a container's name: what torchx has done with the container since it was made.

A container's labels cannot be changed, its name can, and an engine keeps it over its own restarts. So a job needs no
file beside the engine, and whoever continues the work of a killed process finds out from the names how far that got::

    APP_ID-ROLE-K[.appN][.roleM][.due][.ended][.late][.silent][.final][.cancelled]

``appN``: started again N times with the whole application, ``roleM``: M times with its role; ``due``: it is to be
started again, and has not been yet; ``cancelled``: torchx has ended it, and its exit code says nothing. Of jobs with a
policy on retries: ``ended``: torchx has ended it because another replica has failed, and asks whether the job is to be
started again; ``final``: it is not. ``late``: torchx has ended it because the job had reached its time limit; with
``silent``, because it wrote nothing for longer than its watchdog allows.
"""

from __future__ import annotations

import re

from torchx.util.records import dataclass

_NAME = re.compile(
    r"(.*?)(?:\.app(\d+))?(?:\.role(\d+))?(\.due)?(\.ended)?(\.late)?(\.silent)?(\.final)?(\.cancelled)?", re.DOTALL
)


@dataclass
class Mark:
    """See the module.

    Attributes:
        app: how often the container was started again with the application.
        role: how often with its role.
    """

    app: int = 0
    role: int = 0
    due: bool = False
    ended: bool = False
    late: bool = False
    silent: bool = False
    final: bool = False
    cancelled: bool = False


def split(name: str) -> tuple[str, Mark]:
    """The name that a container was made with, and its marks.

    >>> split("app-1-trainer-0.role2.due") == ("app-1-trainer-0", Mark(role=2, due=True))
    True
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return name, Mark()
    return found[1], Mark(int(found[2] or 0), int(found[3] or 0), *map(bool, found.groups()[3:]))


def join(base: str, mark: Mark) -> str:
    """The name of a container with marks.

    >>> join("app-1-trainer-0", Mark(app=1, cancelled=True))
    'app-1-trainer-0.app1.cancelled'
    """
    parts = [base]
    if mark.app:
        parts.append(f"app{mark.app}")
    if mark.role:
        parts.append(f"role{mark.role}")
    parts += [word for word in ("due", "ended", "late", "silent", "final", "cancelled") if getattr(mark, word)]
    return ".".join(parts)
