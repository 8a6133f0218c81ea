"""Records the attempts of a local job with a retry policy, and decides on the next one.

The supervisor cannot find out the cause of a failure. After each attempt, it runs this module in another Python
process, which reads the job's folder, appends the attempt to ``attempts.jsonl``, and exits with 0 if there is another.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

from torchx.schedulers.batch.attempts import attempts_in
from torchx.schedulers.kit.attempts import ATTEMPTS_FILE, BEGINS, CHECKPOINT_FILE, begins_of, put_down
from torchx.schedulers.kit.facts import JobFacts
from torchx.schedulers.kit.verdict import judge
from torchx.schedulers.local.answers import facts_of, look
from torchx.specs.api import AppState
from torchx.specs.configured import failures, provide_failures
from torchx.specs.wishes.retries import Attempt, RetryRules
from torchx.supervisor.layout import STATE_FILE, STDERR_LOG, STDOUT_LOG, private, replica_folder
from torchx.supervisor.statefile import read_state
from torchx.util.procs import own_program
from torchx.util.records import replace

_WAITING = (AppState.RUNNING, AppState.PENDING)


def command(folder: str, policy: str) -> list[str]:
    """Return the command that the supervisor runs after each attempt."""
    import json

    return own_program("torchx.schedulers.local.attempts", folder, policy, json.dumps(failures()))


def main() -> None:
    """Exit with 0 if the job is restarted, else with 1."""
    import json

    folder, policy, rows = sys.argv[1:]
    provide_failures(lambda: json.loads(rows))
    sys.exit(0 if attempt_ended(folder, RetryRules.parse(policy)).again else 1)


def attempt_ended(folder: str, rules: RetryRules) -> Attempt:
    """Record the attempt that has just ended, with the decision on another one. Idempotent."""
    with open(os.path.join(folder, ATTEMPTS_FILE), "a", opener=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _attempt_ended(folder, rules)


def _attempt_ended(folder: str, rules: RetryRules) -> Attempt:
    job = read_state(os.path.join(folder, STATE_FILE))
    logs = job.facts.get("logs", folder)
    earlier = attempts_in(folder)
    number = max(line.attempt for line in job.replicas)
    if len(earlier) > number:  # by another process, which was killed before it started the next one
        return earlier[number]
    facts = facts_of(job, folder)
    over = [replace(r, replicas=[m for m in r.replicas if m.state not in _WAITING], state=None) for r in facts.roles]
    facts = replace(facts, roles=[role for role in over if role.replicas], state=AppState.FAILED)
    verdict = judge(facts, lambda replicas: look(logs, replicas, begins_of(earlier)))
    now = time.time()
    attempt = Attempt(
        started=min((m.started for m in facts.replicas() if m.started), default=now),
        ended=now,
        hosts=[job.facts.get("host", "")],
        more={BEGINS: _sizes(logs, facts)},
    )
    put_down(folder, verdict, rules, earlier, attempt)
    if os.path.exists(asked := os.path.join(folder, CHECKPOINT_FILE)):
        os.unlink(asked)  # the request was for the attempt that has ended
    return attempt


def _sizes(logs: str, facts: JobFacts) -> dict[str, int]:
    sizes = {}
    for replica in facts.replicas():
        for name in (STDOUT_LOG, STDERR_LOG):
            path = f"{replica_folder(logs, replica.role, replica.replica)}/{name}"
            sizes[os.path.relpath(path, logs)] = os.stat(path).st_size if os.path.exists(path) else 0
    return sizes
