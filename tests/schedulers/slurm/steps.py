"""Runs parts of ``job.sh``, the batch script of a Slurm job, with stand-ins for what it calls."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from torchx.schedulers.batch.attempts import script
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.slurm import request

PREAMBLE, PROGRAM = read_script(request.__file__, "job.sh").split("# @JOB@\n")
FUNCTIONS, _, MAIN = PROGRAM.partition("# -- the job ---")
MAIN = MAIN.partition("\n")[2]

JOB = """
paths=(w/0 w/1) role_of=(0 0) group_of=(0 0) node_of=(0 1) group_nodes=(2) sizes=(2) least=(2) retries=(0)
policy=(APPLICATION) cwd=$PWD secrets= python= notify= watch= wish= every= early=30
"""
STUBS = """
sleep() { echo "$1" >>sleeps; [ -z "$(type -t slept)" ] || slept; }
"""
# A replica ends at once with the code that is said of it: several, one for each of its starts.
STARTS = """
codes=("0" "0")
start() {
  local left=(${codes[$1]})
  alive=$((alive + 1)) ended[$1]=0; echo "start $1"
  [ -z "$left" ] || echo "down $1 ${left[0]}" >&"$bus"
  codes[$1]=${left[*]:1}
}
decide() { echo "decide $*" >>said; echo "${says-end}"; }
"""
SCONTROL = """#!/bin/sh
[ "$2" != hostnames ] || exit 1
echo "scontrol $*" >>said
case $1 in show) cat shown 2>/dev/null ;; *) [ -e accepts ] ;; esac
"""


class Ended(NamedTuple):
    """How the script ended.

    Attributes:
        code: its exit code, -15 if it was killed by SIGTERM.
        out: the lines of its output.
        err: what it printed on stderr.
        events: the lines of the file ``events``, without their times.
        said: what it told Slurm and the policy, a line each.
        sleeps: how long it slept, each time.
    """

    code: int
    out: list[str]
    err: str
    events: list[str]
    said: list[str]
    sleeps: list[str]


def steps(folder: Path, text: str, env: dict[str, str] | None = None, *, more: str = "", main: bool = False) -> Ended:
    """Runs these words after the functions were defined, in a job's folder; ``main``: and then the job.

    ``more`` is another part of the script. Sleeping takes no time: it calls ``slept``, if the words define it.
    """
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("scontrol", "scancel"):
        (folder / "bin" / name).write_text(SCONTROL.replace("scontrol", name))
        (folder / "bin" / name).chmod(0o755)
    (folder / "job.json").write_text("{}")
    for name in ("events", "said", "sleeps"):
        (folder / name).unlink(missing_ok=True)
    parts = [PREAMBLE, JOB, script(request.__file__, *[more] * bool(more)), FUNCTIONS, STUBS]
    given = "\n".join([*parts, *[STARTS] * main, text, *[MAIN] * main])
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "TORCHX_", "TORCHELASTIC"))
    }
    clean.update(
        {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n[1-4]",
            **(env or {}),
        }
    )
    done = subprocess.run(
        ["bash", "-c", given], cwd=folder, env=clean, input="", capture_output=True, text=True, check=False, timeout=120
    )
    events = [line.partition(" ")[2] for line in lines(folder / "events")]
    return Ended(
        done.returncode, done.stdout.splitlines(), done.stderr, events, lines(folder / "said"), lines(folder / "sleeps")
    )


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it does not exist."""
    return path.read_text().splitlines() if path.exists() else []
