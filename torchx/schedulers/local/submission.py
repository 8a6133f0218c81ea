"""Hands a local job over to its supervisor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, ConfigError
from torchx.schedulers.kit.secrets import revealed
from torchx.schedulers.local.path import program_path
from torchx.schedulers.local.request import PopenRequest, check_scripts, move_logs, replica_requests
from torchx.settings import ENV_CHECKPOINT, ENV_PROGRESS, ENV_STEPS, SAMPLE_S, torchx_home
from torchx.specs.api import AppDef, AppDryRunInfo
from torchx.supervisor.layout import (
    AT_END_FILE,
    METRICS_FILE,
    ORDERED,
    REQUEST_FILE,
    RETRY_FACT,
    STDERR_LOG,
    STDOUT_LOG,
    STEPS_FILE,
    WATCHED,
)
from torchx.supervisor.proctree import boot_id, pid_namespace
from torchx.supervisor.retention import discard_folder
from torchx.util.notices import logger
from torchx.util.procs import own_program

if TYPE_CHECKING:
    from torchx.schedulers.local.jobs import LocalJobs
    from torchx.supervisor.layout import JobRequest, LimitRequest, RoleRequest, WatchdogRequest

SCHEME = "local_cwd"
ENV_RANK0_PORT = "TORCHX_RANK0_PORT"
_EARLY_S = 120.0  # as on Slurm


def submit(jobs: LocalJobs, request: PopenRequest, info: AppDryRunInfo[PopenRequest]) -> str:
    """Start a job. Returns its folder when its supervisor has accepted it.

    Raises SpecError if a program, a script or a working directory does not exist, and BackendError if the job could not
    be started.
    """
    from torchx.supervisor.client import LauncherError, shared

    app = info._app
    env = base_environment(request)
    roles = replica_requests(request, env)
    for replica in (replica for role in roles for replica in role["replicas"]):
        replica["env"] = revealed(replica["env"], info.submission.secrets)  # only in memory
    if app is not None:
        from torchx.schedulers.local.resources import warn_of_shortage

        check_scripts(request, app, env)
        warn_of_shortage(app)
    folder, logs = create_folders(jobs, request, roles)
    for replica in (replica for role in roles for replica in role["replicas"]):
        replica["env"] = {ENV_STEPS: os.path.join(replica["folder"], STEPS_FILE), **replica["env"]}
    facts = facts_of_request(request, jobs.session, logs)
    facts |= {RETRY_FACT: "1"} if request.retry else {}
    facts |= {WATCHED: "1"} if request.watchdog or request.idle else {}
    facts |= {ORDERED: "1"} if request.order else {}
    if info.submission.at_end:
        _write_new(os.path.join(folder, AT_END_FILE), info.submission.at_end)
    asked: JobRequest = {
        "job": folder,
        "facts": facts,
        "env": env,
        "grace_s": request.cancel_grace_s,
        "roles": roles,
        "again": _prepare_retries(folder, roles, request.retry),
        "idle": _idle(roles, request.idle, app),
        "watchdog": _watchdog(folder, roles, request.watchdog),
        "limit": _limit(folder, request) if request.timeout or request.retry else {},
        "sample_s": SAMPLE_S if info.submission.sample_s is None else info.submission.sample_s,
        "retention": jobs.retention_due(folder),
    }
    if request.order:
        asked["order"] = request.order
    if request.retry:
        _keep_chain(asked, request, info)
    try:
        shared.submit(asked, lambda: write_request(folder, app, facts, info.submission.record))
    except (LauncherError, OSError) as e:
        discard_folder(folder)
        raise BackendError(f"job `{request.app_id}` could not be started: {e}") from e
    return folder


def _prepare_retries(folder: str, roles: list[RoleRequest], policy: str) -> list[str]:
    """Set variables for the files of checkpoints and progress. Returns the program that decides on another attempt."""
    if not policy:
        return []
    from torchx.schedulers.kit.attempts import CHECKPOINT_FILE, PROGRESS_FILE
    from torchx.schedulers.local.attempts import command

    marks = {ENV_CHECKPOINT: os.path.join(folder, CHECKPOINT_FILE), ENV_PROGRESS: os.path.join(folder, PROGRESS_FILE)}
    for replica in (replica for role in roles for replica in role["replicas"]):
        replica["env"] = {**marks, **replica["env"]}
    return command(folder, policy)


def _keep_chain(asked: JobRequest, request: PopenRequest, info: AppDryRunInfo[PopenRequest]) -> None:
    """Keep the request of a chain of pieces, unless it has secrets: their values are in memory only."""
    from torchx.specs.wishes.retries import RetryRules

    if RetryRules.parse(request.retry).total and not info.submission.secrets:
        from torchx.schedulers.kit.secrets import is_secret
        from torchx.supervisor.chain import keep

        replicas = [replica for role in asked["roles"] for replica in role["replicas"]]
        if any(is_secret(*variable) for replica in replicas for variable in replica["env"].items()):
            return
        keep(asked, [name for name, value in asked["env"].items() if name != "PWD" and is_secret(name, value)])


def _watchdog(folder: str, roles: list[RoleRequest], text: str) -> WatchdogRequest:
    """Return the options of the supervisor's watchdog; empty if there is none."""
    if not text:
        return {}
    from torchx.schedulers.kit.attempts import PROGRESS_FILE
    from torchx.specs.wishes.watchdog import parse_watchdog

    wish, mark = parse_watchdog(text), os.path.join(folder, PROGRESS_FILE)
    files = [mark]
    for replica in (replica for role in roles for replica in role["replicas"]):
        replica["env"] = {ENV_PROGRESS: mark, **replica["env"]}
        files += [os.path.join(replica["folder"], name) for name in (STDOUT_LOG, STDERR_LOG, STEPS_FILE)]
    return {
        "seconds": wish.seconds,
        "action": wish.action,
        "program": own_program("torchx.schedulers.local.hangs", folder),
        "files": files,
    }


def _idle(roles: list[RoleRequest], text: str, app: AppDef | None) -> WatchdogRequest:
    """Return the options for idle jobs; empty if there are none."""
    if not text:
        return {}
    from torchx.specs.wishes import Wishes
    from torchx.specs.wishes.idle import parse_idle

    wish = parse_idle(text)
    files = [f"{replica['folder']}/{METRICS_FILE}" for role in roles for replica in role["replicas"]]
    return {
        "seconds": wish.seconds,
        "action": wish.action,
        "files": files,
        "plain": app is not None and Wishes.of(app).is_plain(app.roles),
    }


def _limit(folder: str, request: PopenRequest) -> LimitRequest:
    """Return the options of the supervisor's time limit,
    with a request for a checkpoint before it if the policy has one.
    """
    from torchx.schedulers.kit.attempts import CHECKPOINT_FILE, PROGRESS_FILE
    from torchx.specs.wishes.retries import RetryRules
    from torchx.specs.wishes.timeouts import parse_timeout

    seconds = parse_timeout(request.timeout) if request.timeout else 0
    limit: LimitRequest = {"seconds": seconds, "text": request.timeout}
    if request.retry:
        limit["ask"], limit["progress"] = (os.path.join(folder, name) for name in (CHECKPOINT_FILE, PROGRESS_FILE))
        if RetryRules.parse(request.retry).rule("timeout").checkpoint:
            limit["early_s"] = min(_EARLY_S, seconds / 4) if seconds else _EARLY_S
    return limit


def base_environment(request: PopenRequest) -> dict[str, str]:
    """Return the environment of all replicas: the caller's, plus a port if there are several replicas."""
    env = dict(os.environ)
    env.pop(ENV_STEPS, None)  # of a job in which this one is submitted
    env["PATH"] = program_path(os.environ)
    if sum(map(len, request.role_params.values())) > 1:
        env[ENV_RANK0_PORT] = str(_free_port())
    return env


def facts_of_request(request: PopenRequest, session: str, logs: str) -> dict[str, str]:
    """Return the constant fields of the job's state file."""
    first = next((p[0] for p in request.role_params.values() if p), None)
    handle = first.env.get("TORCHX_JOB_ID") if first else None
    return {
        "app_id": request.app_id,
        "name": request.app_id.rpartition("-")[0],
        "session": session,
        "handle": handle or f"{SCHEME}://{session}/{request.app_id}",
        "logs": logs,
        "host": os.uname().nodename,
        "boot": boot_id(),
        "pidns": pid_namespace(),
    }


def write_request(folder: str, app: AppDef | None, facts: dict[str, str], masked_app: dict[str, Any] | None) -> None:
    """Record the job in ``job.json``, with secrets masked. Only warns if this fails, since the job runs without it.

    Args:
        masked_app: the app in the form to be recorded, if the caller has it already.
    """
    import json

    record: dict[str, Any] = {"format": 1, **facts}
    if app is not None:
        from torchx.specs.serialize import appdef_to_dict, masked

        record["app"] = masked_app or appdef_to_dict(masked(app), fallback=repr)
    path = os.path.join(folder, REQUEST_FILE)
    try:
        _write_new(path, json.dumps(record).encode())
    except OSError as e:
        text = f"`{path}` cannot be written: {e.strerror}; the job runs all the same"
        logger("torchx.schedulers.local").warning(text)


def _write_new(path: str, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)


def create_folders(jobs: LocalJobs, request: PopenRequest, roles: list[RoleRequest]) -> tuple[str, str]:
    """Create the folder of a job and the folder of its logs, to which ``roles`` are changed to write. Returns both."""
    ours = request.log_dir.startswith(torchx_home("local") + os.sep)
    try:
        if not ours:
            os.makedirs(request.log_dir, exist_ok=True)
    except OSError as e:
        raise ConfigError(
            f"the logs cannot be kept in `{request.log_dir}`: {e.strerror}", hint="choose another `log_dir`, or omit it"
        ) from e
    folder = jobs.create(request.app_id)
    logs = folder if ours else request.log_dir
    if logs != request.log_dir:
        move_logs(roles, request.log_dir, logs)
    return folder, logs


def _free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
