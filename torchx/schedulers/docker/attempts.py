"""The attempts of a job in containers with a retry policy: after each its watcher runs this module and obeys it.

They are kept where the job is, in a file of its first container, so that whoever reaches the engine can read them. More
memory is given to the containers as they are: an engine takes a new limit for one that has ended.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from torchx.errors import NotSupportedError
from torchx.schedulers.docker import evidence, gangs
from torchx.schedulers.docker.answers import facts_of
from torchx.schedulers.docker.client import side_by_side
from torchx.schedulers.docker.containers import LABEL_APP_ID, Container, Job
from torchx.schedulers.docker.jobs import EngineJobs
from torchx.schedulers.docker.logs import seconds
from torchx.schedulers.kit.attempts import PROGRESS_FILE, policy_of, put_down, refuse_parts
from torchx.schedulers.kit.caps import Capabilities
from torchx.schedulers.kit.verdict import judge, phrase
from torchx.settings import ENV_CHECKPOINT, ENV_PROGRESS
from torchx.specs.api import AppDef, AppState
from torchx.specs.retries import Attempt, RetryRules, to_line
from torchx.specs.timeouts import TIMEOUT, timeout_s
from torchx.specs.watchdog import WATCHDOG, watchdog_of
from torchx.util.records import replace
from torchx.workspace.images.engine_errors import explanation

PROGRESS = "/tmp/torchx_progress"  # noqa: S108  # in the container, which nobody shares
_CHECKPOINT = "/tmp/torchx_checkpoint"  # noqa: S108
_NEED_A_WATCHER = {
    "policy": ("retry", "keep the retry policy"),
    "timeout": ("timeout", "keep the time limit"),
    "watchdog": ("watchdog", "see whether the job is silent"),
}


def marks(policy: str) -> dict[str, str]:
    """The variables that say where a replica leaves its marks, and finds one where the job has a policy."""
    return {**({ENV_CHECKPOINT: _CHECKPOINT} if policy else {}), ENV_PROGRESS: PROGRESS}


def wishes(app: AppDef, caps: Capabilities, place: str) -> dict[str, str]:
    """What the job wants of its watcher, as far as it is kept here, by the names that :class:`gangs.Rules` has for it.

    Args:
        place: where its watcher is to run.

    Raises:
        SpecError, NotSupportedError: it cannot be kept.
    """
    rules = policy_of(app, "local_docker", caps)
    if rules is not None:
        refuse_parts(app, "its watcher")
    found = {
        "policy": "" if rules is None else str(rules),
        "timeout": app.metadata[TIMEOUT] if timeout_s(app) else "",
        "watchdog": app.metadata[WATCHDOG] if watchdog_of(app) else "",
    }
    for name, (option, do) in _NEED_A_WATCHER.items():
        if found[name] and not place:
            raise NotSupportedError(
                f"nobody could {do}: only this program knows the way to its engine",
                hint=f"name the engine by `DOCKER_HOST`, or omit `--{option}`",
            )
    return found


def main() -> None:
    """Exits with 0 when the job is started again, with 1 when not."""
    import docker

    client = docker.from_env()
    job = EngineJobs(lambda: client, None).listed(f"{LABEL_APP_ID}={sys.argv[1]}").get(sys.argv[1])
    sys.exit(0 if job is not None and attempt_ended(client, job).again else 1)


def attempt_ended(client: Any, job: Job) -> Attempt:
    """Writes down the attempt that has just ended, and whether there is another; once, however often it is asked."""
    import tempfile

    earlier = evidence.attempts_of(client, job)
    number = max(c.mark.app for c in job.containers)
    if len(earlier) > number:
        return earlier[number]
    past = evidence.history_of(client, job)
    facts = replace(facts_of(job, past, hang=evidence.hang_of(client, job)), state=AppState.FAILED)
    verdict = judge(facts, evidence.Look(client, job, past, earlier), at_once=1)
    attempt = Attempt(started=past.started_at or facts.started or 0.0, ended=past.ended_at or 0.0)
    with tempfile.TemporaryDirectory() as folder:
        # since the end of the attempt before: an engine may report a start after the program's first steps
        if _progress(client, job) > (earlier[-1].ended if earlier else 0.0):
            with open(os.path.join(folder, PROGRESS_FILE), "wb"):
                pass
        put_down(folder, verdict, RetryRules.parse(gangs.rules_of(job).policy), earlier, attempt)
    if verdict.cause is not None and verdict.cause.summary():
        attempt.cause = phrase(verdict.cause, tell_host=False)
    if attempt.again and attempt.memory != (earlier[-1].memory if earlier else 1.0):
        _give_memory(client, job, attempt)
    lines = "".join(map(to_line, [*earlier, attempt]))
    client.api.put_archive(job.first().id, "/", evidence.tar_of({evidence.ATTEMPTS_FILE: lines}))
    return attempt


def _give_memory(client: Any, job: Job, attempt: Attempt) -> None:
    """Raises the limits of all containers that have one."""
    import docker.errors

    asked = {role.name: role.resource.memMB for role in job.roles()}
    for container in job.containers:
        if asked.get(container.role, 0) > 0:
            memory = int((asked[container.role] << 20) * attempt.memory)
            try:
                client.api.update_container(container.id, mem_limit=memory, memswap_limit=memory)
            except docker.errors.APIError as e:
                attempt.again, attempt.why = False, f"{attempt.kind}: the engine gives no more memory: {explanation(e)}"
                return


def _progress(client: Any, job: Job) -> float:
    """When a replica marked progress last; 0: never."""
    return max(side_by_side(lambda c: _changed(client, c), job.containers), default=0.0)


def _changed(client: Any, container: Container) -> float:
    try:
        stream, stat = client.api.get_archive(container.id, PROGRESS)
    except Exception:  # there is none
        return 0.0
    stream.close()
    return seconds(str(stat.get("mtime") or ""))
