"""Records what Slurm's commands of a release answer, as ``tests/recorded/slurm/<release>``: see the README there.

``python -m tests.backends.slurm.record trixie ...``, as root. Takes the cluster of :mod:`tests.backends.slurm.releases`,
submits the jobs that every recording has, and some that end badly, and asks about them with torchx's own words.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.backends.slurm.releases import Release
from torchx.schedulers.slurm.client import sacct_argv, squeue_argv
from torchx.schedulers.slurm_scheduler import SlurmScheduler, create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role, is_terminal

RECORDED = Path(__file__).resolve().parents[2] / "recorded" / "slurm"
SMALL = Resource(cpu=1, gpu=0, memMB=100)
_SHOWN = ("failed", "het")  # in the records that torchx itself does not read
_REASON = re.compile(r"[A-Z][A-Za-z]*[a-z][A-Za-z]*")


class Recorder:
    """Jobs of one cluster."""

    def __init__(self, release: Release, home: Path) -> None:
        self.release = release
        self.home = home
        self.ids: dict[str, str] = {}
        self.scheduler: SlurmScheduler = create_scheduler("record")
        self.scheduler.fresh_s = 0.05

    def submit(self, name: str, command: str, n: int = 1, **cfg: Any) -> None:
        role = Role("r", "", entrypoint="sh", args=["-c", command], num_replicas=n, resource=SMALL)
        role.max_retries = 1 if name == "requeued" else 0
        self.ids[name] = self.scheduler.submit(AppDef(name, [role]), cfg)

    def sbatch(self, name: str, *options: str) -> None:
        argv = ["sbatch", "--parsable", "--mem=50", "--output=/dev/null", *options, "--wrap=sleep 600"]
        self.ids[name] = subprocess.run(argv, check=True, capture_output=True, text=True, cwd="/tmp").stdout.strip()

    def until(self, name: str, wanted: Callable[[AppState], bool], within_s: float = 60.0) -> None:
        deadline = time.monotonic() + within_s
        while (found := self.scheduler.describe(self.ids[name])) is None or not wanted(found.state):
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} is {found}")
            time.sleep(0.2)

    def jobs(self) -> None:
        """What every recording has."""
        self.submit("timeout", "sleep 300", time="1")
        self.submit("done", "true", 2)
        self.submit("failed", "exit 3")
        self.submit("killed", "kill -9 $$")
        self.submit("memory", "exec python3 -c 'import time; x = bytes([7]) * (400 << 20); time.sleep(20)'")
        self.submit("lost", "sleep 300", nodelist="n3")
        self.submit("requeued", "sleep 300")
        for name in ("lost", "requeued"):
            self.until(name, lambda state: state is AppState.RUNNING)
        time.sleep(1)
        _run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
        for name in ("done", "failed", "killed", "memory", "lost", "timeout"):
            self.until(name, is_terminal, 150)
        _run("scontrol", "update", "nodename=n3", "state=resume", check=False)  # where it has not come back by itself
        self.submit("cancelled", "exec python3 -c 'x = bytes([7]) * (20 << 20); import time; time.sleep(99)'")
        self.until("cancelled", lambda state: state is AppState.RUNNING)
        time.sleep(3)
        self.scheduler.cancel(self.ids["cancelled"])
        self.submit("running", "sleep 300", 2)
        for name in ("running", "requeued"):
            self.until(name, lambda state: state is AppState.RUNNING)
        roles = [Role(role, "", entrypoint="sleep", args=["300"], resource=SMALL) for role in ("reader", "trainer")]
        roles[1].resource, roles[1].num_replicas = Resource(2, 1, 200), 2
        self.ids["het"] = self.scheduler.submit(AppDef("het", roles), {})
        self.submit("held", "true", extra=["--hold"])
        self.submit("begin", "true", extra=["--begin=now+1hour"])
        self.sbatch("array", "--array=1-3", "--job-name=not ours | 7")
        self.sbatch("arraywait", "--array=1-5%2", "--hold")
        for name in ("het", "array"):
            self.until_squeue(name, "RUNNING")
        self.until_accounted()
        _run("scontrol", "requeue", self.ids["requeued"])
        self.until_squeue("requeued", "PENDING")

    def until_squeue(self, name: str, state: str) -> None:
        """For what torchx takes no interest in: jobs of others, and what comes between two states."""
        argv = ["squeue", "-h", "-o", "%T", "-j", self.ids[name]]
        deadline = time.monotonic() + 30
        while set(_run(*argv).split()) != {state}:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} is not {state}")
            time.sleep(0.2)

    def until_accounted(self) -> None:
        """Accounting hears of jobs a while later."""
        deadline = time.monotonic() + 90
        argv = ["sacct", "-nPX", "--format=State", f"--jobs={self.ids['running']},{self.ids['het']}"]
        while (known := _run(*argv).split()) != ["RUNNING"] * 3:
            if time.monotonic() > deadline:
                raise SystemExit(f"accounting knows {known} only")
            time.sleep(0.5)

    def write(self) -> Path:
        """The answers, without this machine's paths."""
        folder = RECORDED / self.release.version()
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()

        def put(name: str, text: str) -> None:
            shown = _compact(text) if name.endswith(".json") else text
            (folder / name).write_text(shown.replace(str(self.home), "/home/me/.torchx"))

        put("ids.json", json.dumps(self.ids))
        put("version.txt", _run("squeue", "--version"))
        ids = list(self.ids.values())
        put("squeue.txt", _run(*squeue_argv(ids)))
        put("sacct.txt", _run(*sacct_argv(ids)))
        put("sacct-steps.txt", _run(*sacct_argv(ids, steps=True)))
        put("sinfo.txt", _run("sinfo"))
        put("squeue-unknown.stderr", _fails("squeue", "--jobs=999999"))
        put("scancel-over.stderr", _fails("scancel", self.ids["done"]))
        put("reasons.txt", self.reasons())
        shown = ",".join(self.ids[name] for name in _SHOWN)
        put("scontrol.txt", "".join(_run("scontrol", "show", "job", self.ids[name]) for name in _SHOWN))
        for name, argv in (
            ("sacct.json", ["sacct", "--json", f"--jobs={shown}"]),
            ("scontrol.json", ["scontrol", "show", "job", self.ids["failed"], "--json"]),
        ):
            if (said := _run(*argv, check=False)).startswith("{"):
                put(name, said)
        return folder

    def reasons(self) -> str:
        """All that its library can print: those of 22.05 that it has, and the words among them in its table."""
        library = self.release.run("sh", "-c", "ls /usr/lib/*/slurm*/libslurmfull.so").split()[0]
        first = (self.release.state / "pid").read_text()
        data = Path(f"/proc/{first}/root{library}").read_bytes()
        known = {word for word in (RECORDED / "22.05/reasons.txt").read_text().split() if f"{word}\0".encode() in data}
        places = sorted(data.find(f"\0{word}\0".encode()) for word in known if word.startswith(("QOS", "Assoc", "Max")))
        table = data[places[0] - 300 : places[-1] + 600].decode("latin1").split("\0")
        return "\n".join(sorted(known | {word for word in table[1:-1] if _REASON.fullmatch(word)})) + "\n"


def _compact(text: str) -> str:
    """The same document, a line for each job."""
    whole = json.loads(text)
    jobs = [json.dumps(job, separators=(",", ":")) for job in whole.get("jobs", ())]
    if not jobs:
        return json.dumps(whole, indent=1) + "\n"
    rest = {key: value for key, value in whole.items() if key != "jobs"}
    return json.dumps(rest, separators=(",", ":"))[:-1] + ',"jobs":[\n' + ",\n".join(jobs) + "\n]}\n"


def _run(*argv: str, check: bool = True) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise SystemExit(f"{argv}: {done.stdout}{done.stderr}")
    return done.stdout if done.returncode == 0 else ""


def _fails(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stderr


def main(suites: Sequence[str]) -> int:
    for suite in suites:
        release = Release(suite)
        was_up = release.is_up()
        release.up()
        os.environ["PATH"] = f"{release.bin}:{os.environ['PATH']}"
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="torchx-record-") as home:
            os.environ["TORCHX_HOME"] = home
            os.chdir(home)
            recorder = Recorder(release, Path(home))
            try:
                recorder.jobs()
                print(suite, recorder.write())
            finally:
                for app_id in recorder.ids.values():
                    _run("scancel", app_id, check=False)
                recorder.scheduler.close()
                time.sleep(3)
                os.chdir("/")
                if not was_up:
                    release.down()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
