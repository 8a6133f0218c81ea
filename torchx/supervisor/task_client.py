"""How a program hands a sweep to the process that keeps it going."""

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
"""What a guard answers that has taken a sweep, and one that finds another guard at it."""


class TasksError(RuntimeError):
    """The sweep was not taken, and does not run."""


def start(
    folder: str, head: dict[str, Any], tasks: Iterable[tuple[str, list[str], dict[str, str]]], env: Mapping[str, str]
) -> None:
    """Start a sweep; returns when it has been taken.

    Args:
        folder: of the job; it exists and is empty.
        head: ``facts`` (see :class:`torchx.supervisor.statefile.JobState`), ``role``, ``cwd``, ``grace_s``, ``env``
            (what all tasks get on top of ``env``, without secrets), ``resumable`` (whether they need nothing else).
        tasks: for each its program, its arguments, and variables of its own.
        env: the environment of all tasks. It is not written down.

    Raises:
        TasksError: the sweep was not taken.
        OSError: its files could not be written.
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
    """Have a sweep go on whose processes were all killed, in this process's environment.

    Returns:
        False when it cannot: its tasks need secrets, which nobody has written down, or its files are gone.
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
    done = subprocess.run(  # our own program; it leaves a child that has closed its pipes
        [sys.executable, "-I", "-S", program, folder],
        input=marshal.dumps(dict(env)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=minimal,
        check=False,
    )
    return done.stdout
