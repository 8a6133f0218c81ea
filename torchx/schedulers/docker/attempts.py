"""Evaluates the retry policy of a job after each attempt; the job's watcher runs this module as a program.

Attempts are recorded in a file of the job's first container, where any client of the engine can read them. The ``mem``
action changes the limit of the existing containers: an engine accepts a new limit for one that has exited.
"""

from __future__ import annotations

import json
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
from torchx.specs.order import Addresses
from torchx.specs.ready import has_order
from torchx.specs.wishes import Wishes
from torchx.specs.wishes.retries import Attempt, RetryRules, to_line
from torchx.supervisor.layout import private
from torchx.util.records import replace
from torchx.workspace.images.engine_errors import explanation

PROGRESS = "/tmp/torchx_progress"  # noqa: S108  # in the container, which no other user shares
STEPS = "/tmp/torchx_steps"  # noqa: S108
_CHECKPOINT = "/tmp/torchx_checkpoint"  # noqa: S108
_NEEDS_WATCHER = {
    "policy": ("retry", "apply the retry policy"),
    "timeout": ("timeout", "enforce the time limit"),
    "watchdog": ("watchdog", "detect that the job is silent"),
    "idle": ("idle", "detect that the job is idle"),
    "order": ("", "start its roles in order"),
}


def marks(policy: str) -> dict[str, str]:
    """Variables with the paths of the progress file and, for a job with a retry policy, of the checkpoint mark."""
    return {**({ENV_CHECKPOINT: _CHECKPOINT} if policy else {}), ENV_PROGRESS: PROGRESS}


def wishes(app: AppDef, caps: Capabilities, place: str) -> dict[str, str]:
    """Return the ``policy``, ``timeout``, ``watchdog`` and ``idle`` of a job, for :class:`gangs.Rules`; its ``place``
    may be empty.

    Raises:
        SpecError: the policy is invalid.
        NotSupportedError: this backend does not support it, or there is no watcher to apply it.
    """
    rules, texts = policy_of(app, "local_docker", caps), Wishes.of(app).texts
    if rules is not None:
        refuse_parts(app, "its watcher")
    found = {
        "policy": "" if rules is None else str(rules),
        "timeout": texts.get("timeout_s", ""),
        "watchdog": texts.get("watchdog", ""),
    }
    if idle := texts.get("idle", ""):
        found |= {"idle": idle, "plain": "yes" if Wishes.of(app).is_plain(app.roles) else ""}
    if has_order(app):
        from torchx.schedulers.kit.order import order_requests

        found["order"] = json.dumps(order_requests(app, Addresses(app, lambda *_: "")), separators=(",", ":"))
    for name, (option, do) in _NEEDS_WATCHER.items():
        if found.get(name) and not place:
            raise NotSupportedError(
                f"no watcher could {do}: only this process can reach its engine",
                hint=f"set `DOCKER_HOST` to the engine's address{f', or omit `--{option}`' if option else ''}",
            )
    return found


def main() -> None:
    """Exit with 0 if the job is to be started again, otherwise with 1."""
    import docker

    client = docker.from_env()
    job = EngineJobs(lambda: client, None).listed(f"{LABEL_APP_ID}={sys.argv[1]}").get(sys.argv[1])
    sys.exit(0 if job is not None and attempt_ended(client, job).again else 1)


def attempt_ended(client: Any, job: Job) -> Attempt:
    """Record the attempt that has just ended and whether to retry it. Idempotent: repeated calls return the record."""
    import tempfile

    earlier = evidence.attempts_of(client, job)
    number = max(c.mark.app for c in job.containers)
    if len(earlier) > number:
        return earlier[number]
    past = evidence.history_of(client, job)
    evidence.inspect(client, past, [job.first()])  # containers last from attempt to attempt: when it was started last
    facts = facts_of(job, past, hang=evidence.hang_of(client, job), why=evidence.late_of(client, job))
    facts = replace(facts, state=AppState.FAILED)
    verdict = judge(facts, evidence.Look(client, job, past, earlier), at_once=1)
    attempt = Attempt(started=past.started_at or facts.started or 0.0, ended=past.ended_at or 0.0)
    with tempfile.TemporaryDirectory() as folder:
        # Compare with the end of the previous attempt: an engine may report a start after the program's first steps.
        if _progress(client, job) > (earlier[-1].ended if earlier else 0.0):
            with open(os.path.join(folder, PROGRESS_FILE), "wb", opener=private):
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
    """Raise the memory limit of all containers that have one; a refusal of the engine cancels the retry."""
    import docker.errors

    asked = {role.name: role.resource.memMB for role in job.roles()}
    for container in job.containers:
        if asked.get(container.role, 0) > 0:
            memory = int((asked[container.role] << 20) * attempt.memory)
            try:
                client.api.update_container(container.id, mem_limit=memory, memswap_limit=memory)
            except docker.errors.APIError as e:
                attempt.again = False
                attempt.why = f"{attempt.kind}: the engine rejected the higher memory limit: {explanation(e)}"
                return


def _progress(client: Any, job: Job) -> float:
    """Unix time of the last progress mark of any replica; 0: there is none."""

    def marked(container: Container) -> float:
        try:
            stream, stat = client.api.get_archive(container.id, PROGRESS)
        except Exception:  # the file does not exist
            return 0.0
        stream.close()
        return seconds(str(stat.get("mtime") or ""))

    return max(side_by_side(marked, job.containers), default=0.0)
