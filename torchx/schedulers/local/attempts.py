"""The attempts of a local job with a retry policy: after each its supervisor runs this module, and does what it says.

The supervisor knows processes alone; the cause of a failure is the verdict's business. So it starts a Python that reads
the job's folder, writes the attempt down in ``attempts.jsonl``, and says with its exit code whether there is another.
"""

from __future__ import annotations

import os
import sys

from torchx.schedulers.kit.attempts import ATTEMPTS_FILE, decide, digest, to_line
from torchx.specs.api import AppState
from torchx.specs.retries import Attempt, RetryRules
from torchx.supervisor.layout import STATE_FILE, STDERR_LOG, STDOUT_LOG, replica_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from torchx.schedulers.kit.facts import JobFacts

PROGRESS_FILE = "progress"
CHECKPOINT_FILE = "checkpoint"
_WAITING = (AppState.RUNNING, AppState.PENDING)


def command(folder: str, policy: str) -> list[str]:
    """What the supervisor runs after each attempt."""
    import torchx

    root = os.path.dirname(os.path.dirname(os.path.abspath(torchx.__file__)))
    code = f"import sys; sys.path.insert(0, {root!r}); from torchx.schedulers.local.attempts import main; main()"
    return [sys.executable, "-c", code, folder, policy]


def main() -> None:
    """Exits with 0 when the job is started again, with 1 when not."""
    folder, policy = sys.argv[1:]
    sys.exit(0 if attempt_ended(folder, RetryRules.parse(policy)).again else 1)


def attempt_ended(folder: str, rules: RetryRules) -> Attempt:
    """Writes down the attempt that has just ended, and whether there is another one."""
    import time

    from torchx.schedulers.kit.verdict import judge, phrase
    from torchx.schedulers.local.answers import SIZES, attempts_of, facts_of, look, sizes_of
    from torchx.supervisor.statefile import read_state
    from torchx.util.records import replace

    job = read_state(os.path.join(folder, STATE_FILE))
    logs = job.facts.get("logs", folder)
    attempts = attempts_of(folder)
    facts = facts_of(job, folder)
    over = [replace(r, replicas=[m for m in r.replicas if m.state not in _WAITING], state=None) for r in facts.roles]
    facts = replace(facts, roles=[role for role in over if role.replicas], state=AppState.FAILED)
    verdict = judge(facts, lambda replicas: look(logs, replicas, sizes_of(attempts)))
    failure = verdict.cause
    now = time.time()
    started = max((m.started for m in facts.replicas()), default=now)
    attempt = Attempt(
        started=min((m.started for m in facts.replicas() if m.started), default=started),
        ended=now,
        kind=(failure.kind if failure else "") or "unknown",
        cause=phrase(failure, tell_host=False) if failure else verdict.sentence,
        hosts=[job.facts.get("host", "")],
        digest=digest(failure) if failure else "",
        more={SIZES: _log_sizes(logs, facts)},
    )
    attempt.progress = _mtime(os.path.join(folder, PROGRESS_FILE)) >= attempt.started
    decision = decide(rules, [*attempts, attempt])
    attempt.again, attempt.why = decision.again, decision.why
    attempt.avoid, attempt.memory = list(decision.avoid), decision.memory
    with open(os.path.join(folder, ATTEMPTS_FILE), "a", encoding="utf-8") as f:
        f.write(to_line(attempt))
    if os.path.exists(asked := os.path.join(folder, CHECKPOINT_FILE)):
        os.unlink(asked)  # it was asked of the attempt that has ended
    return attempt


def _log_sizes(logs: str, facts: JobFacts) -> dict[str, list[int]]:
    sizes = {}
    for replica in facts.replicas():
        folder = replica_folder(logs, replica.role, replica.replica)
        sizes[f"{replica.role}/{replica.replica}"] = [_size(f"{folder}/{name}") for name in (STDOUT_LOG, STDERR_LOG)]
    return sizes


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _mtime(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
