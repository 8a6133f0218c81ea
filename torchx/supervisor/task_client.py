"""Hands a sweep over to its guard process."""

from __future__ import annotations

import json
import marshal
import os
import sys
from collections.abc import Iterable, Mapping

from torchx.supervisor.layout import KEPT_ENVIRONMENT, TASKS_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TAKEN, HELD = b"K", b"H"
"""Responses of a guard: it has taken the sweep, or another guard holds it."""


class TasksError(RuntimeError):
    """The sweep was rejected and does not run."""


def start(
    folder: str, head: dict[str, Any], tasks: Iterable[tuple[str, list[str], dict[str, str]]], env: Mapping[str, str]
) -> None:
    """Start a sweep. Returns when a guard has taken it, and raises TasksError if it was rejected.

    Args:
        folder: of the job; it exists and is empty.
        head: ``facts`` (see :class:`torchx.supervisor.statefile.JobState`), ``role``, ``cwd``, ``grace_s``, ``env``
            (variables of all tasks that override ``env``, without secrets), ``resumable`` (whether they need no other).
        tasks: for each task its program, its arguments, and its own variables.
        env: the environment of all tasks. It is not written to disk.
    """
    path = os.path.join(folder, TASKS_FILE)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as f:
        f.write(json.dumps(head) + "\n")
        f.writelines(json.dumps(task) + "\n" for task in tasks)
    answer = _run_guard(folder, env)
    if answer != TAKEN:
        raise TasksError(answer[1:].decode("utf-8", "replace") or "its process ended unexpectedly")


def resume(folder: str) -> bool:
    """Resume a sweep whose processes were all killed, in this process's environment.

    False: its tasks need secrets, which are not stored, or its files are gone.
    """
    try:
        with open(os.path.join(folder, TASKS_FILE), encoding="ascii") as f:
            head = json.loads(f.readline())
        if not head["resumable"]:
            return False
        return _run_guard(folder, os.environ) in (TAKEN, HELD)
    except (OSError, ValueError, KeyError):
        return False


def _run_guard(folder: str, env: Mapping[str, str]) -> bytes:
    import subprocess

    program = __file__.replace("task_client.py", "task_guard.py")
    minimal = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    done = subprocess.run(  # returns when its daemon has closed the pipes
        [sys.executable, "-I", "-S", program, folder],
        input=marshal.dumps(dict(env)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=minimal,
        check=False,
    )
    return done.stdout
