"""Marks at the end of a container's name, which record what torchx has done with the container.

Labels of a container are immutable, but it can be renamed, and the name survives a restart of the engine. So the state
of a job needs no file outside the engine, and a new watcher continues where a killed one stopped::

    APP_ID-ROLE-K[.appN][.roleM][.due][.ended][.late][.silent][.final][.cancelled]

- ``appN``, ``roleM``: restarted N times with the application, M times with its role.
- ``due``: a restart is decided, but has not happened yet.
- ``ended``: (retry policy) stopped because another replica failed; the policy has not been evaluated yet.
- ``late``: stopped at the job's time limit; with ``silent``, because it was silent for longer than its watchdog allows.
- ``final``: (retry policy) the job is not retried.
- ``cancelled``: stopped by torchx; its exit code has no meaning.
"""

from __future__ import annotations

import re

from torchx.util.records import dataclass

_NAME = re.compile(
    r"(.*?)(?:\.app(\d+))?(?:\.role(\d+))?(\.due)?(\.ended)?(\.late)?(\.silent)?(\.final)?(\.cancelled)?", re.DOTALL
)


@dataclass
class Mark:
    """The marks of one container; see the module."""

    app: int = 0
    role: int = 0
    due: bool = False
    ended: bool = False
    late: bool = False
    silent: bool = False
    final: bool = False
    cancelled: bool = False


def split(name: str) -> tuple[str, Mark]:
    """Splits a container's name into its original name and its marks.

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
