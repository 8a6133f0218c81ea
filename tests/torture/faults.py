"""Faults that are planted in a copy of the sources, to see that the sweeps find them: ``--plant NAME``."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.mutation.house import copy_tree

TOP = Path(__file__).resolve().parents[2]


class Fault(NamedTuple):
    """A line of a file that becomes another one; ``sweep`` finds it."""

    sweep: str
    what: str
    path: str
    old: str
    new: str

    def plant(self, top: Path) -> None:
        """Raises LookupError if the line is not there, or not once."""
        path = top / self.path
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise LookupError(f"`{self.old.strip()}` is not in {self.path} once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


FAULTS = {
    "guardian": Fault(
        "kills",
        "the guardian ends nothing of a supervisor that was killed",
        "torchx/supervisor/launcher.py",
        "            self._supervisor_died(folder, code)\n",
        "            pass\n",
    ),
    "supervisor": Fault(
        "kills",
        "the supervisor records no end of a job",
        "torchx/supervisor/supervise.py",
        "        job.state = self._outcome\n",
        "        pass\n",
    ),
    "launcher": Fault(
        "kills",
        "the launcher answers each request twice",
        "torchx/supervisor/launcher.py",
        '        os.write(reserve.answers, b"K\\n")\n',
        '        os.write(reserve.answers, b"K\\n")\n        os.write(reserve.answers, b"K\\n")\n',
    ),
    "guard": Fault(
        "tasks",
        "the guard of a sweep does not take over",
        "torchx/supervisor/task_guard.py",
        "    if not ends.pop(supervisor):\n        return\n",
        "    return\n",
    ),
    "modules": Fault(
        "folders",
        "programs of torchx import from the current folder",
        "torchx/util/procs.py",
        '    find = f"sys.path[:] = [{root!r}, *filter(None, sys.path)]; import torchx; sys.path.append(sys.path.pop(0))"\n',
        '    find = "pass"\n',
    ),
    "consent": Fault(
        "folders",
        "a project's config file needs no consent",
        "torchx/config/trust.py",
        '        if entry is None or os.environ.get(ENV_TRUST) == "1" or _is_marked(digest, "trusted"):\n',
        "        if entry is not None:\n",
    ),
    "private": Fault(
        "canaries",
        "private files of a commit are restored and compared",
        "torchx/runner/capsule/code.py",
        "    return pathspecs(top, [*git_patterns(), *secret])\n",
        "    return []\n",
    ),
    "newer": Fault(
        "versions",
        "what an older version set aside is left there",
        "torchx/runs/asides.py",
        "    there = os.path.exists(path)\n",
        "    return\n",
    ),
    "sigterm": Fault(
        "grace",
        "what a handler of SIGTERM starts is signalled again",
        "torchx/supervisor/replica.py",
        "        first = self.first = self.first or found\n",
        "        first = self.first = found\n",
    ),
}


def found(name: str, argv: list[str]) -> int:
    """Run the sweeps in a copy of the checkout with this fault. 0 if the sweep that is for it fails."""
    fault, by_it = FAULTS[name], False
    with tempfile.TemporaryDirectory(prefix="torchx-fault-") as place:
        copy = Path(place, "copy")
        copy_tree(str(TOP), str(copy))
        fault.plant(copy)
        print(f"planted: {fault.what} ({fault.path})\n", flush=True)
        env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [sys.executable, "-m", "tests.torture", *argv]
        with subprocess.Popen(words, cwd=copy, env=env, stdout=subprocess.PIPE, text=True) as sweeps:
            for line in sweeps.stdout or ():
                print(line, end="", flush=True)
                by_it |= line.startswith(f"{fault.sweep}: ")
    print(f"\nthe fault was {'found' if by_it else 'NOT FOUND'}", flush=True)
    return 0 if by_it else 1
