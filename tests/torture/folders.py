"""Folders of somebody else: torchx is started in one, and executes nothing of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.torture.calls import DOCUMENTED, HANG_S
from torchx.supervisor import proctree
from torchx.util.procs import own_program

_MODULES = sorted(name for name in sys.stdlib_module_names if not name.startswith("_") and name != "this")
_PACKAGES = ("torchx", "torchx/supervisor", "torchx/cli", "tests", "yaml", "tabulate", "docstring_parser", "rich")
_FEW = 8
_CONFIGS = (
    "[cli:run]\nsecret = X=cmd:{}\n",
    "[notify]\nvia = exec:{}\n",
    "[slurm]\nssh = host-of-somebody\n",  # announced: only a dry run never connects
)
_SSH = """#!/bin/sh
case "$(tr '\\0' ' ' < /proc/$PPID/cmdline)" in *--dryrun*) echo ssh >> '{}'; esac
exit 255
"""
_VERBS = (
    ("run", "-s", "local_cwd", "--wait", "utils.sh", "true"),
    ("run", "-s", "local_cwd", "--wait", "--retry", "error:1", "utils.sh", "exit 3"),
    ("run", "-s", "local_cwd", "--dryrun", "utils.echo"),
    ("run", "-s", "slurm", "--dryrun", "utils.echo"),
    ("run", "-s", "local_cwd", "--wait", "--watchdog", "1s:cancel", "utils.sh", "sleep 2"),
    ("sweep", "-s", "local_cwd", "--grid", "k=0..1", "utils.sh", "true {k}"),
    ("list",),
    ("status", "@last"),
    ("log", "@last"),
    ("describe", "@last"),
    ("metrics", "@last"),
    ("stacks", "JOB"),
    ("exec", "JOB", "--", "true"),
    ("cp", "JOB:/etc/hostname", "copied"),
    ("ssh-config", "JOB"),
    ("export", "@last", "exported"),
    ("doctor",),
    ("builtins",),
    ("plugins",),
    ("runopts", "local_cwd"),
)
_RUNS = [verb for verb in _VERBS if verb[0] in ("run", "sweep")]  # what executes most


def folders(rng: random.Random, place: Path) -> Iterator[str]:
    """A verb in a folder with modules, and other things that programs execute when they find them."""
    programs = place / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(_SSH.format(place / "executed"))
    (programs / "ssh").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "TORCHX_HOME": str(place / "home"),
        "TORCHX_ERROR_FILE": "",
        "TORCHX_NOINPUT": "1",
    }
    clean = place / "clean"
    clean.mkdir()
    started = _torchx(("run", "-s", "local_cwd", "utils.sh", "sleep 1000"), clean, env)
    job = started.stdout.strip()
    try:
        for number in range(1 << 30):
            folder = place / str(number)
            folder.mkdir()
            for plant in _PLANTS:
                plant(rng, folder, place / "executed")
            verb = tuple(
                f"{job}/sh/0{word[3:]}" if word[:3] == "JOB" else word
                for word in rng.choice(rng.choice((_VERBS, _RUNS)))
            )
            yield _problem(verb, folder, env, place / "executed")
    finally:
        _torchx(("cancel", job), clean, env)
        for process in proctree.snapshot().values():  # a verb that executed something may have left them behind
            if proctree.environment(process.pid).get("TORCHX_HOME") == env["TORCHX_HOME"]:
                proctree.send(process, signal.SIGKILL)


def _problem(verb: tuple[str, ...], folder: Path, env: dict[str, str], witness: Path) -> str:
    what = f"`torchx {' '.join(verb)}` in {folder}"
    try:
        ended = _torchx(verb, folder, env)
    except subprocess.TimeoutExpired:
        return f"{what}: hangs"
    if witness.exists():
        said = witness.read_text(encoding="utf-8")
        witness.unlink()
        return f"{what}: executed {said}"
    if ended.returncode not in DOCUMENTED or "Traceback" in ended.stderr:
        return f"{what}: exit code {ended.returncode}: {ended.stderr[-400:]}"
    return ""


def _torchx(verb: tuple[str, ...], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    words = [*own_program("torchx.cli.main"), *verb]
    return subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, errors="replace", timeout=HANG_S,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


# -- what is planted -------------------------------------------------------------------------------


def _modules(rng: random.Random, folder: Path, witness: Path) -> None:
    """Modules with the names of those that torchx imports."""
    names = [f"{name}.py" for name in rng.sample(_MODULES, _FEW)]
    names += [f"{name}/__init__.py" for name in rng.sample(_PACKAGES, 2)]
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(witness)!r}, 'a').write({name!r} + ' ')\nraise SystemExit('planted')\n")


def _config(rng: random.Random, folder: Path, witness: Path) -> None:
    """A config file of the project whose keys execute or connect, in a part of the folders: most verbs refuse it."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\necho {program} >> '{witness}'\n")
    program.chmod(0o755)
    if rng.random() < 0.6:
        (folder / ".torchxconfig").write_text(rng.choice(_CONFIGS).format(program))


_PLANTS: tuple[Callable[[random.Random, Path, Path], None], ...] = (_modules, _config)
"""Each puts something into a folder that leaves the witness if it is executed."""
