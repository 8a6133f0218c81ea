"""Runs a sweep as an array job, if its values fit into a job definition and all tasks may run at the same time.

https://docs.aws.amazon.com/batch/latest/userguide/array_jobs.html
"""

from __future__ import annotations

import json
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.aws.batch import answers
from torchx.schedulers.aws.batch.client import children
from torchx.schedulers.aws.batch.container import variables
from torchx.schedulers.aws.batch.request import BatchJob, with_name
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kit.tasks import describe_sweep, only_role, shell_words, values_line
from torchx.specs.api import AppDef, AppState
from torchx.specs.tasks import TaskList, TaskTable, placeholders
from torchx.util.records import replace

_Object = dict[str, Any]

# https://docs.aws.amazon.com/batch/latest/userguide/service_limits.html
MAX_TASKS = 10_000
MAX_BYTES = 22_000
"""Limit of a job definition; that of Batch is 24 KiB."""
ENV_VALUES = "TORCHX_VALUES"
# In the order of a job's life: a job that changes its status while they are listed is found in a later one.
_STATUSES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")


def check(job: BatchJob, app: AppDef | None, tasks: TaskList) -> None:
    """Raise NotSupportedError if the sweep cannot be one array job."""
    only_role(app, "aws_batch", timeout=True)
    count = len(tasks.points)
    if job.job_def["type"] != "container":
        raise NotSupportedError("only multi-node jobs can have an instance type, and they cannot be arrays")
    if not 2 <= count <= MAX_TASKS:
        raise NotSupportedError(f"an array job of Batch has 2 to {MAX_TASKS:,} tasks")
    if 0 < tasks.max_parallel < count:
        raise NotSupportedError("Batch does not limit how many tasks of an array job run at the same time")
    if len(json.dumps(with_values(job, tasks).job_def)) > MAX_BYTES:
        raise NotSupportedError(f"the values do not fit into the {MAX_BYTES // 1000} kB of a job definition")


def with_values(job: BatchJob, tasks: TaskList) -> BatchJob:
    """Convert the job to an array job whose tasks find their values in their environment."""
    container = dict(job.job_def["containerProperties"])
    late = (job.overrides.get("containerOverrides") or {}).get("environment") or []
    env = {item["name"]: item["value"] for item in [*container["environment"], *late]}
    own = {name: value for name, value in env.items() if placeholders(value)}
    assignments, words = shell_words(tasks.names, own, container["command"])
    script = "\n".join([read_script(__file__, "task.sh").strip(), *assignments, f"exec {' '.join(words)}"])
    kept = {item["name"]: item["value"] for item in container["environment"] if item["name"] not in own}
    values = "".join(map(values_line, tasks.points))
    container.update(command=["sh", "-c", script], environment=variables({**kept, ENV_VALUES: values}))
    overrides = {**job.overrides, "arrayProperties": {"size": len(tasks.points)}}
    if late:
        overrides["containerOverrides"] = {"environment": [item for item in late if item["name"] not in own]}
    definition = {**job.job_def, "containerProperties": container}
    return replace(job, job_def=with_name(definition, job.name.rpartition("-")[0]), overrides=overrides)


def table_of(client: Any, job: _Object) -> TaskTable:
    """Return the states of all tasks. Calls ListJobs once for each thousand tasks of a status."""
    count = answers.array_size(job)
    table = TaskTable(states=[AppState.PENDING] * count, exit_codes=[None] * count, ended=[0.0] * count)
    there = (job.get("arrayProperties") or {}).get("statusSummary") or dict.fromkeys(_STATUSES, 1)
    for status in _STATUSES:
        for line in children(client, str(job["jobId"]), status) if there.get(status) else ():
            k = int(str(line["jobId"]).rpartition(":")[2])
            table.states[k] = answers.state_of(line)
            table.exit_codes[k] = answers.exit_code(line)
            table.ended[k] = (line.get("stoppedAt") or 0) / 1000
    table.states[:] = [AppState.PENDING if state is AppState.SUBMITTED else state for state in table.states]
    return table


def describe(client: Any, app_id: str, job: _Object) -> DescribeAppResponse:
    """Return the answer of ``describe`` for a sweep."""
    answer = describe_sweep(app_id, table_of(client, job))
    answer.roles = [answers.role_of(group, 0) for group in answers.groups(job)]
    return answer
