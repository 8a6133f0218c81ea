"""Where the benchmark plays: a scratch home for each contestant, filled with finished runs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping

from benchmarks.contestants import OURS, Contestant
from benchmarks.timing import Cannot

SIZES = {
    "runs": 10_000,
    "dryruns": 2_000,
    "dryrun_replicas": 10_000,
    "jobs": 90,  # 0.7.0 ends with an error at its hundredth local job
    "statuses": 2_000,
    "lines": 2_000_000,
    "log_mb": 500,
    "replicas": 1_000,
    "workspace_mb": 500,
    "copied_mb": 500,
    "slurm_runs": 30,
    "slurm_jobs": 100,
    "slurm_tasks": 10_000,
    "tasks": 10_000,
    "files": 1_000,
    "steps": 100_000,
}
QUICK = {
    "runs": 1_000,
    "dryruns": 200,
    "dryrun_replicas": 1_000,
    "jobs": 20,
    "statuses": 500,
    "lines": 100_000,
    "log_mb": 20,
    "replicas": 100,
    "workspace_mb": 50,
    "copied_mb": 50,
    "slurm_runs": 5,
    "slurm_jobs": 20,
    "slurm_tasks": 1_000,
    "tasks": 500,
    "files": 1_000,
    "steps": 100_000,
}
_HANDLE = re.compile(r"\blocal\w*://\S+")

# Puts finished runs on record through the product's own registry, as `torchx run` does.
_FILL = """
import sys, time
from torchx.specs import AppDef, AppState, Role
from torchx.specs.serialize import appdef_to_dict
from torchx.runs import NewRun, RunRegistry
registry = RunRegistry()
for number in range(int(sys.argv[1])):
    name = f"bench-{number:06d}"
    handle = f"local_cwd://torchx/{name}"
    app = AppDef(name, roles=[Role("main", image="", entrypoint="/bin/true")])
    registry.begin(NewRun(scheduler="local_cwd", session="torchx", name=name, handle=handle, app=appdef_to_dict(app)))
    registry.saw(handle, AppState.SUCCEEDED, ended_at=time.time())
"""


class Stage:
    """Scratch folders and the runs that the rows look at. Each run is made when the first row asks for it."""

    def __init__(self, folder: str, sizes: Mapping[str, int]) -> None:
        self.folder = folder
        self.sizes = sizes
        self._runs: dict[tuple[str, str], str] = {}
        self._last: list[Callable[[], object]] = []

    def at_last(self, call: Callable[[], object]) -> None:
        """Has it called when everything was measured; what was started last ends first."""
        self._last.append(call)

    def close(self) -> None:
        """Ends what was started."""
        while self._last:
            self._last.pop()()

    def env(self, contestant: Contestant | None) -> dict[str, str]:
        """What everyone gets, and nothing of the caller's own settings."""
        home = os.path.join(self.folder, "home-" + (contestant.name.replace(" ", "-") if contestant else "floor"))
        temporary = os.path.join(home, "tmp")  # a peer leaves a folder there for each job
        os.makedirs(temporary, exist_ok=True)
        return {
            "HOME": home,
            "TMPDIR": temporary,
            "TORCHX_HOME": os.path.join(home, ".torchx"),
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
        }

    def fill(self, contestant: Contestant) -> None:
        """Put the stated number of finished runs on record."""
        argv = [contestant.python, "-c", _FILL, str(self.sizes["runs"])]
        done = subprocess.run(
            argv, env=self.env(contestant), cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"could not fill the run registry:\n{done.stderr}")

    def finished_run(self, contestant: Contestant) -> str:
        """The handle of a run that said hello and has ended; the process that launched it is gone."""
        return self._run(contestant, "finished", ["utils.echo", "--msg", "hello"])

    def big_run(self, contestant: Contestant) -> str:
        """The handle of a run that copied :meth:`big_file` to its output."""
        if contestant.name != OURS:
            raise Cannot("no logs of a local run from another process")
        return self._run(contestant, "big", ["utils.sh", "cat", self.big_file()])

    def big_file(self) -> str:
        path = os.path.join(self.folder, "big.txt")
        if not os.path.exists(path):
            line = b"step 000123 loss 0.12345 lr 0.00030 tokens/s 123456 a line of log as trainers print them\n"
            size = self.sizes["log_mb"] * 1_000_000
            with open(path, "wb") as file:
                block = line * 10_000
                for _ in range(size // len(block) + 1):
                    file.write(block)
        return path

    def _run(self, contestant: Contestant, key: str, args: list[str]) -> str:
        known = self._runs.get((contestant.name, key))
        if known is not None:
            return known
        argv = [contestant.torchx, "run", "-s", "local_cwd", "--wait", *args]
        done = subprocess.run(
            argv, env=self.env(contestant), cwd=self.folder, capture_output=True, text=True, check=False
        )
        found = _HANDLE.search(done.stdout) or _HANDLE.search(done.stderr)
        if done.returncode != 0 or found is None:
            raise SystemExit(
                f"{contestant.name}: {' '.join(args)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        self._runs[(contestant.name, key)] = found.group()
        return found.group()


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    raise Cannot("the process has no resident memory")
