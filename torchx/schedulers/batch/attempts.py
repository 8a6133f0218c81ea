"""Retries of batch jobs: after each attempt the job's own script, on its node, asks whether to start another one.

The nodes need no torchx: a zip archive in the job's folder has the modules that decide. They need Python 3.10 or newer;
without it the job is not started again.
"""

from __future__ import annotations

import functools
import io
import os

import torchx
from torchx.errors import BackendError
from torchx.schedulers.batch.folders import JobFolder
from torchx.schedulers.kit.attempts import ATTEMPTS_FILE, policy_of, refuse_parts
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.commands import LocalCommandRunner
from torchx.schedulers.kit.shell import read_script
from torchx.specs.api import AppDef
from torchx.specs.configured import failures
from torchx.specs.wishes.retries import Attempt, RetryRules, read_attempts

PROGRAM_FILE = "retry.pyz"
_ROOMS = ("util", "specs", "render", "plugins", "supervisor", "schedulers/kit", "schedulers/batch")
_MAIN = """\
import sys
from importlib import import_module

from torchx.specs.configured import provide_failures

provide_failures(lambda: {rows!r})
import_module("torchx.schedulers.{backend}." + sys.argv.pop(1)).main()
"""
_COMMAND_S = 30.0


def policy(app: AppDef, system: str, caps: Capabilities, *, no_memory: str = "") -> RetryRules | None:
    """Return the retry policy of a job; None if it has none. Raises SpecError if ``system`` cannot apply it to this
    job.

    ``no_memory`` says why the next attempt of this job cannot get more memory.
    """
    rules = policy_of(app, system.lower(), caps)
    if rules is None:
        return None
    refuse_parts(app, system)
    if no_memory:
        return rules.within(tuple(a for a in caps.retry_actions if a != "mem"), f"{system.lower()}, with {no_memory},")
    return rules


def program(backend: str) -> str:
    """Return the archive as text (``os.fsdecode``). It runs ``main`` of the backend's module that its first argument
    names, and has the site's signatures of failures, since nodes have no config files.
    """
    return _archive(_MAIN.format(backend=backend, rows=failures()), backend)


@functools.cache
def _archive(main: str, backend: str) -> str:
    import zipfile

    top = os.path.dirname(os.path.abspath(torchx.__file__))
    paths = [f"{top}/{name}.py" for name in ("errors", "settings", "version")]
    paths += [f"{top}/schedulers/{name}.py" for name in ("__init__", "api", "ids", "devices", "streams")]
    for room in (*_ROOMS, f"schedulers/{backend}"):
        for folder, _, names in os.walk(os.path.join(top, room)):
            paths += [os.path.join(folder, name) for name in names if name.endswith((".py", ".sh"))]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("__main__.py", main)
        archive.writestr("torchx/__init__.py", "")
        for path in sorted(paths):
            archive.write(path, os.path.join("torchx", os.path.relpath(path, top)))
    return buffer.getvalue().decode("utf-8", "surrogateescape")


def script(module: str, *names: str) -> str:
    """Return the functions of ``program.sh``, and these parts of a backend's own script, beside the file ``module``."""
    texts = [read_script(__file__, "program.sh"), *(read_script(module, name) for name in names)]
    return "\n\n".join(map(str.strip, texts))


def attempts_in(folder: str) -> list[Attempt]:
    """Return the finished attempts of a job on this machine; empty if its folder has no record of any."""
    try:
        with open(os.path.join(folder, ATTEMPTS_FILE), encoding="utf-8", errors="replace") as f:
            return read_attempts(f)
    except OSError:
        return []


def ends_of(folder: JobFolder, paths: list[str]) -> dict[str, int]:
    """Return the current sizes of files in the job's folder, for :data:`torchx.schedulers.kit.attempts.BEGINS`."""
    sizes = folder.files.sizes([folder.file(path) for path in paths])
    return {path: sizes[folder.file(path)] or 0 for path in paths}


def output_lines(*argv: str) -> list[str]:
    """Return the lines that a command prints; none if it fails or is missing."""
    try:
        done = LocalCommandRunner().run(argv, timeout=_COMMAND_S)
    except BackendError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []
