"""Environment variables: those of ``torchx/settings.py`` with their docstrings, and others."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise

from _site.markdown import definition, sentence

READ = {
    "TORCHX_<SCHEDULER>_<OPTION>": (
        "A run option, for example `TORCHX_SLURM_PARTITION`; see [configuration](../config.md)."
    ),
    "TORCHX_DEBUG": "Any value except `0`: the command line shows tracebacks, as with `--log_level DEBUG`.",
    "TORCHX_EVENTS": "Destination of the Runner's events: `console` or `file:PATH`. Without it there are no events.",
    "TORCHX_MCP_TOKEN": "Token of `torchx mcp --http`; without it a new one is printed. See [agents](../agents.md).",
    "TORCHX_ALLOW_PRIVATE_WORKSPACE": "`1`: as the option `--allow-private-workspace`.",
    "TORCHX_NO_CHECK": "`1`: as the option `--no-check`.",
    "TORCHX_CHECK_WAIT_S": "On the nodes: seconds that checks wait for other replicas; default 60.",
    "TORCHX_STAGE_DIR": "On nodes: folder of staged data; `/tmp/torchx-stage-UID`. See [nodes](../around.md).",
    "TORCHX_STAGE_GB": "On the nodes: gigabytes that this folder may have; default 500.",
    "FORCE_COLOR": "Use colours even if the output is not a terminal.",
}

SET = {
    "TORCHX_RANK0_HOST": "Host of replica 0 of the role; the variable that the macro `rank0_env` names.",
    "TORCHX_RANK0_PORT": "Rendezvous port of the replicas, where jobs share a machine: `local_cwd`, `slurm`, `lsf`.",
    "TORCHX_ROLE_IDX": "Index of the role in the job; AWS Batch.",
    "TORCHX_TASK": "In a task of a sweep: its number, from 0.",
    "TORCHX_TRACKER_<NAME>_CONFIG": "Configuration of the tracker NAME; see [trackers](../trackers.md).",
    "TORCHX_TRACKING_EXPERIMENT_NAME": "The experiment, from `--name EXPERIMENT/RUN` of `dist.ddp` and `dist.spmd`.",
    "TORCHX_TRACKING_RUN_NAME": "The run, from the same option; by default the name of the job.",
    "TORCHELASTIC_ERROR_FILE": "File for the error of a failing program, written by `torchrun` and its `@record`.",
}

INTERNAL = {
    "TORCHX_ALARM": "tells the program that sends notices which alarm of a watchdog it is for",
    "TORCHX_APP_ID": "a placeholder in scripts, not a variable",
    "TORCHX_APPNAME": "a tag, not a variable",
    "TORCHX_COMP_BREAKS": "between the completion script and torchx",
    "TORCHX_COMP_LINE": "between the completion script and torchx",
    "TORCHX_DOCKERFILE": "a constant of the Python interface",
    "TORCHX_LAUNCHED_BY": "set by `torchx mcp` for the command that launches, which records it",
    "TORCHX_IGNORE": "a constant of the Python interface",
    "TORCHX_RDZV_ID": "a placeholder in scripts, not a variable",
    "TORCHX_TIMEOUT_EXIT_CODE": "between a component and the process monitor",
    "TORCHX_TRY": "between two starts of a Slurm job's script",
    "TORCHX_USER": "a tag, not a variable",
    "TORCHX_VALUES": "gives the tasks of a sweep on AWS Batch their values; not for programs",
    "TORCHX_VER": "a tag, not a variable",
    "TORCHX_LOCAL_JOB": "marks the processes of a local job",
    "TORCHX_LOCAL_REPLICA": "marks the processes of a local job",
}
"""Names in the sources that are not documented for users, and why not."""


def page() -> str:
    found = settings()
    of_jobs = {name: said for name, said in found.items() if said.startswith("Set inside a job")}
    read = {name: sentence(said) for name, said in found.items() if name not in of_jobs} | READ
    there = {name: sentence(said.partition(": ")[2] or said) for name, said in of_jobs.items()} | SET
    return "\n".join(["## Read by torchx\n", *_rows(read), "## Found by a job in its environment\n", *_rows(there)])


def settings() -> dict[str, str]:
    """Returns variable -> the docstring below its ``ENV_`` constant, or switch."""
    import torchx.settings

    body = ast.parse(inspect.getsource(torchx.settings)).body
    found = {}
    for statement, below in pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            constant = statement.targets[0].id
            value = getattr(torchx.settings, constant)
            variable = value.variable if isinstance(value, torchx.settings.Switch) else value
            if constant.startswith("ENV_") or variable is not value:
                said = (
                    below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
                )
                if not said:
                    raise ValueError(f"torchx/settings.py: {constant} has no docstring")
                found[variable] = " ".join(said.split())
    return found


def _rows(said: dict[str, str]) -> list[str]:
    return [definition(f"`{name}`", text) for name, text in said.items()]
