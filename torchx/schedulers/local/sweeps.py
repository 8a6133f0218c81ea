"""Sweeps on this machine: one job with many tasks, of which a limited number run at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torchx.errors import BackendError
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kit.facts import ReplicaFacts
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.secrets import revealed, split
from torchx.schedulers.kit.tasks import check_numbers, describe_sweep, describe_task, only_role
from torchx.schedulers.local.answers import replica_facts, state_of_sweep, table_of, url_path
from torchx.schedulers.local.request import ENV_ERROR_FILE, PopenRequest, check_scripts, replica_requests
from torchx.schedulers.local.submission import base_environment, create_folders, facts_of_request, write_request
from torchx.settings import ENV_JOB_ID, SAMPLE_S
from torchx.specs.api import AppDryRunInfo
from torchx.specs.tasks import ENV_TASK, TaskList, fill
from torchx.supervisor.layout import USED_FILE, task_log, task_metrics
from torchx.supervisor.retention import discard_folder
from torchx.supervisor.statefile import TASKS, JobState

if TYPE_CHECKING:
    from torchx.schedulers.kit.metrics import ReplicaMetrics
    from torchx.schedulers.local.jobs import LocalJobs
    from torchx.supervisor.layout import ReplicaRequest


def submit(jobs: LocalJobs, info: AppDryRunInfo[PopenRequest], tasks: TaskList) -> str:
    """Start a sweep and return its app id. The errors are those of a single job and of :func:`only_role`."""
    from torchx.supervisor.task_client import TasksError, start
    from torchx.util.machine import cpu_count

    request, app = info.request, info._app
    role = only_role(app, "local_cwd")
    env = base_environment(request)
    program_differs = any("{" in text for text in (request.role_params[role.name][0].args[0], role.entrypoint))
    if not program_differs and app is not None and "{" not in str(role.metadata.get("script")):
        check_scripts(request, app, env)
    roles = replica_requests(request, env, resolve=not program_differs)
    folder, logs = create_folders(jobs, request, roles)
    replica = roles[0]["replicas"][0]
    replica["env"].pop(ENV_ERROR_FILE, None)  # all tasks would share one file
    plain, hidden = split(replica["env"])
    secret = revealed(hidden, info.submission.secrets)
    common = {name: value for name, value in plain.items() if "{" not in value}
    width = tasks.max_parallel or cpu_count()
    facts = {**facts_of_request(request, jobs.session, logs), TASKS: str(width)}
    head = {
        "facts": facts,
        "role": role.name,
        "cwd": replica["cwd"],
        "grace_s": request.cancel_grace_s,
        "env": common,
        "resumable": not secret,
        "sample_s": SAMPLE_S if info.submission.sample_s is None else info.submission.sample_s,
    }
    own = {name: value for name, value in plain.items() if name not in common}
    write_request(folder, app, facts, info.submission.record)
    try:
        start(folder, head, _tasks(tasks, replica, own, env), {**env, **secret})
    except (TasksError, OSError) as e:
        discard_folder(folder)
        raise BackendError(f"sweep `{request.app_id}` could not be started: {e}") from e
    return request.app_id


def _tasks(
    tasks: TaskList, replica: ReplicaRequest, own: dict[str, str], env: dict[str, str]
) -> Iterator[tuple[str, list[str], dict[str, str]]]:
    from torchx.util.procs import find_program

    job = replica["env"].get(ENV_JOB_ID, "")
    path = replica["env"].get("PATH") or env.get("PATH", os.defpath)
    programs: dict[str, str] = {}
    for k in range(len(tasks.points)):
        values = tasks.values(k)
        argv = [fill(arg, values) for arg in replica["argv"]]
        program = replica["exe"] or programs.get(argv[0])
        if program is None:
            program = programs[argv[0]] = find_program(argv[0], path, replica["cwd"]) or argv[0]
        ids = {ENV_TASK: str(k), **({ENV_JOB_ID: f"{job}/{k}"} if job else {})}
        yield program, argv, {**ids, **{name: fill(value, values) for name, value in own.items()}}


def describe(job: JobState, app_id: str) -> DescribeAppResponse:
    """Return the response for a sweep, without causes of failed tasks."""
    answer = describe_sweep(app_id, table_of(job), state_of_sweep(job))
    answer.started_at, answer.ui_url = job.created or None, f"file://{url_path(job.facts['logs'])}"
    return answer


def describe_some(job: JobState, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse]:
    """Return the responses for some tasks, each with its cause."""
    check_numbers(app_id, numbers, len(job.replicas))
    logs, role = job.facts["logs"], job.roles[0][0]

    def look(replicas: Sequence[ReplicaFacts]) -> list[Evidence]:
        from torchx.schedulers.batch.folders import ends_of
        from torchx.schedulers.kit.files import LocalFiles

        return ends_of(LocalFiles(), [task_log(logs, r.role, r.replica) for r in replicas])

    return [describe_task(f"{app_id}/{k}", replica_facts(role, k, job.replicas[k], "localhost"), look) for k in numbers]


def metrics(job: JobState, folder: str, number: int | None) -> list[ReplicaMetrics]:
    """Return the usage of one task, with its samples, or, if ``number`` is None,
    summaries of all tasks that have ended.
    """
    from torchx.schedulers.kit.files import LocalFiles
    from torchx.schedulers.kit.metrics import AttemptUsage, ReplicaMetrics, read_kept

    role = job.roles[0][0]
    files, found = LocalFiles(), {}
    if number is not None:
        check_numbers(job.facts["app_id"], [number], len(job.replicas))
        found[number] = read_kept(files, {(role, number): task_metrics(job.facts["logs"], role, number)})[0]
    head, *lines = (files.read(os.path.join(folder, USED_FILE)) or b"0 0").splitlines()
    for k, kib, seconds in (map(float, line.split()) for line in lines if line.count(b" ") == 2):
        if number in (None, k):
            task = job.replicas[int(k)]
            one = found.setdefault(int(k), ReplicaMetrics(role, int(k)))
            took = task.ended - task.started
            one.attempts = [AttemptUsage(0, round(seconds / max(took, 0.001), 2), int(kib) << 10, None, took)]
    for one in found.values():
        one.memory_limit, one.cpus = map(int, head.split())
    return [found[k] for k in sorted(found)]
