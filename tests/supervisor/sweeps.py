"""A sweep whose supervisor is made in a fork of the test, to be driven step by step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.supervisor.forks import state, text
from torchx.supervisor import proctree, task_guard
from torchx.supervisor.layout import STATE_FILE, TASKS_FILE, task_log
from torchx.supervisor.statefile import TASKS, StateWriter
from torchx.supervisor.tasks import TaskSupervisor

Change = Callable[[list[Any]], None]


class Sweep:
    """The files of a sweep, and its supervisor in this process; to be used in a fork."""

    def __init__(self, folder: Path, *scripts: str, width: int = 9, boot: str = "", **head: Any) -> None:
        self.folder = str(folder)
        folder.mkdir(exist_ok=True)
        facts = {"app_id": "s", "logs": self.folder, "boot": boot or proctree.boot_id(), TASKS: str(width)}
        self.head = {"facts": facts, "role": "r", "cwd": "/", "grace_s": 10.0, "env": {}, **head}
        self.lines: list[Any] = [["/bin/sh", ["sh", "-c", script], {}] for script in scripts]
        self.env = {"PATH": os.environ["PATH"]}

    def prepare(self, change: Change = lambda _: None) -> int:
        """Writes the files; ``change`` changes the lines of the tasks in the state."""
        Path(self.folder, TASKS_FILE).write_text("".join(json.dumps(x) + "\n" for x in (self.head, *self.lines)))
        control = task_guard._prepare(self.folder)
        job = state(self.folder)
        change(job.replicas)
        writer = StateWriter(os.path.join(self.folder, STATE_FILE), job)
        writer.flush()
        writer.close()
        return control

    def made(
        self,
        change: Change = lambda _: None,
        *,
        ends: dict[int, int] | None = None,
        started: dict[int, int] | None = None,
    ) -> TaskSupervisor:
        made = TaskSupervisor(
            self.folder, self.env, control=self.prepare(change), ends=ends or {}, started=started or {}
        )
        os.makedirs(made._logs, exist_ok=True)
        return made

    def states(self) -> list[str]:
        """On the disk."""
        return [line.state for line in state(self.folder).replicas]

    def log(self, k: int = 0) -> str:
        return text(task_log(self.folder, "r", k))
