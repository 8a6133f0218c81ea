"""Runs functions of the scripts of LSF's replicas, with stand-ins for what they call."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.lsf import replicas

STUBS = """
torchx_pause() { echo "$1" >>pauses; [ -z "$(type -t paused)" ] || paused "$1"; }
bjobs() { echo "bjobs $*" >>said; [ ! -e jobs ] || cat jobs; }
bkill() { echo "bkill $*" >>said; }
brequeue() { echo "brequeue $*" >>said; }
"""
JOB = """
job=$PWD app=a group=/torchx_a LSB_JOBID=7 LSB_MCPU_HOSTS="h1 4 h2 4" role=0 k=0 folder=r/0 rank0=a.0-r.0 own_network=
policy=APPLICATION retries=0 spare=0 scope=$job cwd=$PWD total=2 python= wish= watch= attempt=0 killed=0 ended=0 code=0
suffix= dir=$job/r/0
"""


class Ended(NamedTuple):
    """How the script ended.

    Attributes:
        code: its exit code, -15 if it was killed by SIGTERM.
        out: the lines of its output.
        err: what it printed on stderr.
        said: what it told LSF, a line for each command.
        pauses: how often it paused, by length.
    """

    code: int
    out: list[str]
    err: str
    said: list[str]
    pauses: list[str]


def steps(folder: Path, text: str, *more: str) -> Ended:
    """Runs these words after the functions of ``replica.sh`` and of ``more`` were defined; the folder is the job's.

    Pauses take no time: they call ``paused``, if the words define it.
    """
    (folder / "r" / "0").mkdir(parents=True, exist_ok=True)
    for name in ("said", "pauses"):
        (folder / name).unlink(missing_ok=True)
    parts = [read_script(replicas.__file__, name) for name in ("replica.sh", *more)]
    given = "\n".join([*parts, STUBS, JOB, text])
    words = ["bash", "-c", given, str(folder / "replicas.sh"), "0", "0"]
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("LSB_", "TORCHX_", "TORCHELASTIC_"))
    }
    done = subprocess.run(
        words, cwd=folder, env=env, input="stdin\n", capture_output=True, text=True, check=False, timeout=120
    )
    return Ended(
        done.returncode, done.stdout.splitlines(), done.stderr, lines(folder / "said"), lines(folder / "pauses")
    )


def lines(path: Path) -> list[str]:
    """The lines of a file; none if it does not exist."""
    return path.read_text().splitlines() if path.exists() else []
