"""Checks whether jobs can run on this machine."""

from __future__ import annotations

import os

from torchx.errors import SpecError
from torchx.schedulers.kit.findings import Check, Finding, doubt
from torchx.schedulers.local.path import program_path
from torchx.schedulers.local.request import PopenRequest, check_scripts, replica_requests
from torchx.schedulers.local.resources import shortages
from torchx.schedulers.local.submission import base_environment
from torchx.specs.api import AppDef
from torchx.util.machine import cpu_count, gpu_ids, memory_mb
from torchx.util.procs import find_program


def of_machine() -> list[Check]:
    """Check of this machine."""
    return [Check("machine", _machine), Check("torchrun", _torchrun)]


def of_job(request: PopenRequest, app: AppDef) -> list[Check]:
    """Check of one job."""
    return [
        Check("programs", lambda: _programs(request, app), certain=(SpecError,)),
        Check("size", lambda: _size(app)),
    ]


def _machine() -> str:
    return f"{cpu_count()} CPUs, {len(gpu_ids())} GPUs, {memory_mb()} MiB of memory"


def _torchrun() -> str | Finding:
    missing = doubt("not in PATH: jobs of `dist.ddp` and `-j` need it, others do not", "`pip install torch`")
    return find_program("torchrun", program_path(os.environ), os.getcwd()) or missing


def _programs(request: PopenRequest, app: AppDef) -> str:
    env = base_environment(request)
    replica_requests(request, env)
    check_scripts(request, app, env)
    return "all are here"


def _size(app: AppDef) -> str | Finding:
    for said in shortages(app):
        return doubt(said, "`torchx doctor -s local_cwd` shows what it has")
    return "this machine has what the replicas ask for"
