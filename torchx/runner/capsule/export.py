"""Exports a job as a folder that runs without torchx: its files, its code, a start script and a README."""

from __future__ import annotations

import json
import os
from typing import Any

from torchx.errors import ConfigError, NotSupportedError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import Exports
from torchx.schedulers.kit.export import CODE, Export
from torchx.schedulers.kit.shell import quote
from torchx.specs.api import AppDef, AppDryRunInfo, Workspace
from torchx.specs.serialize import appdef_to_dict, masked
from torchx.util.records import replace
from torchx.version import __version__
from torchx.workspace.content import Entry, entries
from torchx.workspace.copies import copy_tree

FORMATS = {
    "sh": "local_cwd",
    "sbatch": "slurm",
    "bsub": "lsf",
    "k8s": "kubernetes",
    "compose": "local_docker",
    "batch": "aws_batch",
}
"""The scheduler that writes each export format."""

README, RUN = "README.md", "run.sh"


def write(info: AppDryRunInfo[Any], backend: Scheduler[Any], folder: str, workspace: str = "") -> Export:
    """Implement :meth:`Runner.export`."""
    if not isinstance(backend, Exports):
        raise NotSupportedError(
            f"`{info._scheduler}` cannot export jobs", hint=f"these can: {', '.join(FORMATS.values())}"
        )
    exported = backend.export(info)
    app = info._app
    if app is None:
        raise ConfigError("this AppDryRunInfo has no app")
    folder = os.path.abspath(os.path.expanduser(folder))
    code = _code_of(app, workspace)  # before the folder, which may be in it, is made
    try:
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o700)
        if os.listdir(folder):
            raise ConfigError(f"`{folder}` is not empty", hint="name a folder that does not exist yet")
        os.mkdir(os.path.join(folder, CODE), 0o700)
        copy_tree([replace(entry, mode=entry.mode & 0o700) for entry in code], os.path.join(folder, CODE))
        for name, text in exported.files.items():
            _put(folder, name, text)
        record = {"format": 1, "name": app.name, "app": appdef_to_dict(masked(app), fallback=repr)}
        _put(folder, "job.json", json.dumps(record) + "\n")
        _put(folder, RUN, run_script(exported, app.name), mode=0o700)
        _put(folder, README, readme(exported, app, str(info._scheduler)))
    except OSError as e:
        raise ConfigError(f"`{folder}` cannot be written: {e.strerror}") from e
    return exported


def run_script(exported: Export, name: str) -> str:
    lines = [
        "#!/usr/bin/env bash",
        f"# Starts the job {' '.join(name.split())}. README.md says what it needs.",
        "set -euo pipefail",
        'here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)',
    ]
    if exported.secrets:
        lines += [
            f"for name in {' '.join(map(quote, exported.secrets))}; do",
            "  if [[ -z ${!name-} ]]; then",
            '    echo "run.sh: the job needs $name, which is not in this folder: export it" >&2',
            "    exit 2",
            "  fi",
            "done",
        ]
    if exported.where:
        lines.append(f'echo "logs: {exported.where}" >&2')
    return "\n".join([*lines, exported.run, ""])


def readme(exported: Export, app: AppDef, scheduler: str) -> str:
    replicas = sum(role.num_replicas for role in app.roles)
    lines = [
        f"# {app.name}",
        "",
        f"A job for `{scheduler}`, {replicas} replica{'s' * (replicas != 1)}, written by torchx {__version__}."
        " It is run without torchx:",
        "",
        *(f"    export {name}=..." for name in exported.secrets),
        "    ./run.sh",
        "",
        f"It needs {exported.needs}. Output: {exported.logs}.",
        "",
        "| file | what |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in exported.about.items()),
        "| `code/` | the code of the job |",
        "| `job.json` | the job as torchx describes it, secrets masked |",
        "| `run.sh` | starts it |",
    ]
    if exported.secrets:
        names = ", ".join(f"`{name}`" for name in exported.secrets)
        lines += ["", f"The values of {names} are not in here: `run.sh` takes them from its environment."]
    return "\n".join([*lines, *(f"\n{note}" for note in exported.notes), ""])


def _code_of(app: AppDef, otherwise: str) -> list[Entry]:
    """Return the code of the first role that has a workspace, else of ``otherwise``; nothing if that is empty."""
    workspace = next((role.workspace for role in app.roles if role.workspace), None)
    if workspace is None and otherwise:
        workspace = Workspace.from_str(otherwise)
    return entries(workspace) if workspace else []


def _put(folder: str, name: str, text: str, *, mode: int = 0o600) -> None:
    fd = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
