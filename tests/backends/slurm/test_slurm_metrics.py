"""What replicas use on a real cluster: sampled in their steps on the nodes, shown while they run and when they are over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.backends.slurm.conftest import becomes
from tests.backends.slurm.test_slurm_notices import torchx

# 64 MiB, of which a child shares all but 16; it says at its end whether anybody is its child that it did not start.
EATS = """
import os, sys, time
x = bytearray(os.urandom(1)) * (64 << 20)
if not os.fork():
    y = bytearray(b"x") * (16 << 20)
    while not os.path.exists(sys.argv[1]): sum(range(10000))
    os._exit(0)
os.wait()
try: os.wait()
except ChildProcessError: print("no child of others")
"""


def samplers(folder: Path) -> list[str]:
    """The processes that sample the replicas of a job."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found += [path.parent.name] if f"{folder}/metrics.py".encode() in path.read_bytes() else []
    return found


def test_two_replicas(tmp_path: Path) -> None:
    """Of each what it uses against what it has asked for; `status` says the peak, and it outlives the files."""
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 1\n")
    (tmp_path / "eats.py").write_text(EATS)
    words = ("utils.sh", "--num_replicas", "2", "--memMB", "500", "--cpu", "2", "--")
    script = f"cd {tmp_path} && exec {sys.executable} eats.py end"
    handle = torchx(tmp_path, "run", "-d", "-s", "slurm", *words, script)
    (folder,) = {path.parent for path in Path(os.environ["TORCHX_HOME"], "slurm").glob("*/job.json")}

    def used() -> list[tuple[object, ...]]:
        found = json.loads(torchx(tmp_path, "metrics", "--json", handle))["replicas"]
        long = [(r, r["samples"][-1]) for r in found if r["attempts"] and r["attempts"][0]["seconds"] > 15]
        return [(80 < s["memory"] / (1 << 20) < 110, s["cpu"] > 0.1, r["cpus"], r["memory_limit"]) for r, s in long]

    becomes(used, [(True, True, 2, 500 << 20)] * 2)
    assert len(samplers(folder)) == 2
    (tmp_path / "end").touch()
    torchx(tmp_path, "wait", handle)
    assert torchx(tmp_path, "log", handle).count("no child of others") == 2
    becomes(lambda: samplers(folder), [])
    peak = re.compile(r"\[[01]\] SUCCEEDED .* (8|9)\d(\.\d)? MiB of 500 MiB", re.MULTILINE)
    assert len(peak.findall(torchx(tmp_path, "status", handle))) == 2
    line = re.search(r"^used: +(.*)$", torchx(tmp_path, "status", handle), re.MULTILINE)
    assert line and re.match(r"[89]\d(\.\d)? MiB of 500 MiB memory, \d\.\d of 2 CPUs", line[1])
    assert "`--mem 256M" in line[1]
    again = json.loads(torchx(tmp_path, "rerun", "--fit", "--dryrun", "--json", handle))
    assert again["app"]["roles"][0]["resource"]["memMB"] == 256
    torchx(tmp_path, "list")
    assert "--mem 256M" in torchx(tmp_path, "list", "--wasteful")
    shutil.rmtree(folder)
    replicas = json.loads(torchx(tmp_path, "metrics", "--json", handle))["replicas"]
    assert [(r["samples"], r["memory_peak"] > 80 << 20) for r in replicas] == [([], True)] * 2


@pytest.mark.parametrize("more", [[], ["--num_replicas", "2"]], ids=["process", "whole"])
def test_tasks_of_a_sweep(tmp_path: Path, more: list[str]) -> None:
    """One that runs for long enough has samples; for a short one nothing is started that is still there at its end."""
    (tmp_path / ".torchxconfig").write_text("[metrics]\nevery = 1\n")
    (tmp_path / "eats.py").write_text(EATS)
    words = ("utils.sh", *more, "--memMB", "400", "--cpu", "1", "--")
    script = f"cd {tmp_path} && exec {sys.executable} eats.py {{end}}"
    (tmp_path / "short").touch()
    handle = torchx(tmp_path, "sweep", "-s", "slurm", "--grid", "end=short,long", *words, script)
    (folder,) = {path.parent for path in Path(os.environ["TORCHX_HOME"], "slurm").glob("*/job.json")}

    def used(task: int) -> list[tuple[bool, object]]:
        found = json.loads(torchx(tmp_path, "metrics", "--json", f"{handle}/{task}"))["replicas"]
        return [(80 << 20 < (r["memory_peak"] or 0) < 110 << 20, r["memory_limit"]) for r in found]

    becomes(lambda: used(1), [(True, 400 << 20)] * (2 if more else 1))
    (tmp_path / "long").touch()
    torchx(tmp_path, "wait", f"{handle}/1")
    becomes(lambda: samplers(folder), [])
    assert re.search(r"\[\d\] SUCCEEDED .* MiB of 400 MiB", torchx(tmp_path, "status", f"{handle}/1"))
    torchx(tmp_path, "wait", handle)
