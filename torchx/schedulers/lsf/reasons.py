"""Tables: LSF's states to torchx's, and a sentence for each reason that keeps a job pending or ends it.

A pending reason is one phrase about the job or several about hosts, each with their number: ``Job's resource
requirements not satisfied: 3 hosts; Closed by LSF administrator: 1 host;``. A termination reason looks like
``TERM_MEMLIMIT: job killed after reaching LSF memory usage limit``. Sites may define their own phrases
(``LSF_CUSTOM_PENDREASONS``): unknown ones are passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchx.specs.api import AppState

# https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=execution-about-job-states
STATES: dict[str, AppState] = {
    "PEND": AppState.PENDING,
    "PROV": AppState.PENDING,
    "PSUSP": AppState.PENDING,
    "WAIT": AppState.PENDING,
    "RUN": AppState.RUNNING,
    "SSUSP": AppState.PENDING,
    "USUSP": AppState.PENDING,
    "DONE": AppState.SUCCEEDED,
    "EXIT": AppState.FAILED,
    "UNKWN": AppState.UNKNOWN,
    "ZOMBI": AppState.UNKNOWN,
}

SUSPENDED = {
    "PROV": "its host is being made ready",
    "SSUSP": "LSF has suspended it, because its host is too busy or a job of higher priority came",
    "USUSP": "its owner or an administrator has suspended it; `bresume` lets it go on",
    "WAIT": "it waits for the jobs before it in a chunk",
    "UNKWN": "its host does not answer to LSF",
    "ZOMBI": "it was killed while its host did not answer to LSF",
}
"""Sentences for states without a further reason."""

# Beginning of LSF's phrase -> sentence. https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=jobs-view-pending-reasons
PENDING: dict[str, str] = {
    # the job
    "New job is waiting for scheduling": "it was submitted a moment ago, and LSF has not looked at it yet",
    "The job has a specified start time": "its start time has not come yet",
    "Job dependency condition not satisfied": "it waits for another job: replica 0, or one of `--after`",
    "Dependency condition invalid or never satisfied": "the job it waits for is gone: it will never start",
    "The job array has reached its running element limit": "the sweep has reached its limit of running tasks",
    "Job array has reached its running element limit": "the sweep has reached its limit of running tasks",
    "Migrating job is waiting for rescheduling": "it was moved off its host and waits for another one",
    "Requeued job is waiting for rescheduling": "it was put back into the queue after a failed attempt",
    "Requeue the job for the next run": "it was put back into the queue",
    "Waiting for re-scheduling after switching queue": "it was moved to another queue",
    "Waiting for re-scheduling after parameters have been changed": "it was changed, and LSF has not looked at it yet",
    "Waiting for scheduling after resumed by user": "it was resumed, and LSF has not looked at it yet",
    "The schedule of the job is postponed for a while": "LSF looks at it again later",
    "The job was suspended by the user while pending": "it is held by its owner; `bresume` lets it go on",
    "The job was suspended by LSF admin or root while pending": "it is held by an administrator",
    "The job's pre-exec command exited with non-zero status": "its pre-execution command fails on the hosts",
    "The job array has reached its": "its job array has reached its limit of running elements",
    "Job's requirement for exclusive execution not satisfied": "it wants a host for itself, and no host is empty",
    "Job's resource requirements not satisfied": "no host meets its resource requirement",
    "Job's requirements for resource reservation not satisfied": "no host has enough free memory, GPUs or the like",
    "Job requirements for reserving resource": "no host has enough of a resource that it reserves",
    "Not enough processors to meet the job's spanning requirement": "no host has enough free slots for one replica",
    "Not enough hosts to meet the job's spanning requirement": "there are not enough hosts with free slots",
    "Job no longer satisfies": "its size is outside of the queue's limits",
    "Job will not finish before": "its time limit does not fit before the queue's window closes",
    "Job will not finish on the host before": "its time limit does not fit before the host's window closes",
    "Unable to access job file": "LSF cannot read its job file: tell the administrator",
    "Unable to determine user account for execution": "your account is not known on the hosts",
    "There is no such user account": "your account is not known on the hosts",
    "The user has no permission to run the job on remote host": "you may not run jobs there",
    "Bad host name, host group name or cluster name": "it names a host that does not exist",
    "Not specified in job submission": "free hosts are not among those that it names",
    # queues and limits
    "The queue is inactivated by the administrator": "its queue starts no jobs now: an administrator has stopped it",
    "The queue is inactivated by its time windows": "its queue starts jobs only at certain hours: see `bqueues -l`",
    "The queue has reached its job slot limit": "its queue has reached its limit of job slots",
    "The queue has not enough job slots for the parallel job": "its queue has fewer slots left than it needs",
    "The queue's pre-exec command exited with non-zero status": "the pre-execution command of its queue fails",
    "User has reached the per-user job slot limit of the queue": "you have reached your limit of slots in this queue",
    "Not enough per-user job slots of the queue for the parallel job": "it needs more slots than you have left there",
    "The user has reached his/her job slot limit": "you have reached your limit of slots",
    "User has reached": "you have reached a limit of your account",
    "The user has not enough job slots for the parallel job": "it needs more slots than you have left",
    "One of the user's groups has reached its job slot limit": "your group has reached its limit of slots",
    "One of user's groups has not enough job slots for the parallel job": "your group has too few slots left",
    "Resource limit defined": "a limit that the administrators set is reached: see `blimits`",
    "Job group limit": "the limit of its job group is reached: see `bjgroup`",
    "Queue's resource requirements not satisfied": "no host meets the resource requirement of its queue",
    "Queue's requirements for resource reservation not satisfied": "no host has enough of what its queue reserves",
    "Queue's per-host job slot limit reached": "its queue may not use more slots of a host",
    "User's per-": "you may not use more slots of a host",
    # hosts
    "Job slot limit reached": "all slots are taken",
    "Not enough job slot": "not enough slots are free",
    "Not enough slots": "not enough slots are free",
    "Host's per-user job slot limit reached": "you have reached your limit of slots on these hosts",
    "Running an exclusive job": "hosts are taken by exclusive jobs",
    "An exclusive job has reserved the host": "hosts are reserved for an exclusive job",
    "Load threshold reached": "hosts are too busy",
    "Load information unavailable": "hosts do not report to LSF",
    "Just started a job recently": "hosts have just been given another job",
    "Closed by LSF administrator": "hosts are closed by an administrator",
    "Host is locked by": "hosts are locked",
    "Dispatch windows closed": "hosts take jobs only at certain hours",
    "Not usable to the queue": "hosts do not serve its queue",
    "Host or host group is not used by the queue": "the hosts that it names do not serve its queue",
    "LIM is unreachable": "hosts cannot be reached",
    "Unable to reach slave batch server": "hosts cannot be reached",
    "Unable to reach batch server": "hosts cannot be reached",
    "Not the same type as the submission host": "hosts are of another type than the one it was submitted from",
    "Slots are reserved": "slots are kept free for jobs that come before it",
    "System is unable to schedule the job": "LSF cannot schedule it: see `bjobs -l`",
    "System is not ready for scheduling": "LSF is being reconfigured",
}

_NO_REASONS = ("candidate host pending", "non-candidate host pending", "(exit code")
_OF_THE_JOB = ("Job dependency", "Dependency", "Requeue", "Waiting for", "New job", "The queue", "The job", "User has")
"""Phrases to which LSF may add `1 host`, although they are about the job."""

# https://www.ibm.com/docs/SSWRJV_10.1.0/lsf_admin/termination_reasons_lsf.html
ENDED: dict[str, str] = {
    "TERM_ADMIN": "it was killed by an administrator",
    "TERM_BUCKET_KILL": "it was killed by `bkill -b`",
    "TERM_CHKPNT": "it was killed after its checkpoint",
    "TERM_CPULIMIT": "it used more CPU time than allowed",
    "TERM_CSM_ALLOC": "its hosts could not be allocated (CSM)",
    "TERM_CWD_NOTEXIST": "its working directory does not exist on the host",
    "TERM_DATA": "its data could not be staged",
    "TERM_DEADLINE": "its deadline came",
    "TERM_EXTERNAL_SIGNAL": "a signal from outside of LSF killed it, for example because memory ran out",
    "TERM_FORCE_ADMIN": "it was killed by an administrator",
    "TERM_FORCE_OWNER": "it was killed by its owner",
    "TERM_KUBE": "it was killed by the Kubernetes integration",
    "TERM_LOAD": "its host became too busy",
    "TERM_MC_RECALL": "it was called back by another cluster",
    "TERM_MEMLIMIT": "it used more memory than it asked for",
    "TERM_ORPHAN_SYSTEM": "it can never start: the job that it waited for did not end as required",
    "TERM_OTHER": "it was killed by LSF",
    "TERM_OWNER": "it was killed by its owner",
    "TERM_PREEMPT": "it was preempted by another job",
    "TERM_PRE_EXEC_FAIL": "its pre-execution command failed",
    "TERM_PROCESSLIMIT": "it had more processes than allowed",
    "TERM_REMOVE_HUNG_JOB": "it hung and was removed",
    "TERM_REQUEUE_ADMIN": "it was requeued by an administrator",
    "TERM_REQUEUE_OWNER": "it was requeued by its owner",
    "TERM_REQUEUE_RC": "it was requeued because its host was taken back",
    "TERM_RMS": "it was killed by the resource manager",
    "TERM_RC_RECLAIM": "its host was taken back by the cloud",
    "TERM_RUNLIMIT": "it ran longer than its time limit",
    "TERM_SLURM": "it was killed by Slurm",
    "TERM_SWAP": "it used more swap space than allowed",
    "TERM_SWITCH": "its queue was switched to one whose limits it exceeds",
    "TERM_THREADLIMIT": "it had more threads than allowed",
    "TERM_UNKNOWN": "LSF does not know how it ended",
    "TERM_WINDOW": "the window of its queue closed",
    "TERM_ZOMBIE": "it ended while LSF was not reachable",
}

KINDS: dict[str, str] = {
    "TERM_CPULIMIT": "timeout",
    "TERM_CSM_ALLOC": "node",
    "TERM_DEADLINE": "timeout",
    "TERM_LOAD": "node",
    "TERM_MEMLIMIT": "oom",
    "TERM_PREEMPT": "preempted",
    "TERM_PROCESSLIMIT": "quota",
    "TERM_RC_RECLAIM": "preempted",
    "TERM_RUNLIMIT": "timeout",
    "TERM_SWAP": "oom",
    "TERM_THREADLIMIT": "quota",
    "TERM_UNKNOWN": "lost",
    "TERM_WINDOW": "timeout",
    "TERM_ZOMBIE": "lost",
}
"""Classes of termination reasons that determine the cause."""

BY_OWNER = frozenset(
    {"TERM_OWNER", "TERM_FORCE_OWNER", "TERM_ADMIN", "TERM_FORCE_ADMIN", "TERM_BUCKET_KILL", "TERM_ORPHAN_SYSTEM"}
)
"""Reasons of cancellation, including that of a dependency that failed."""


def app_state(stat: str) -> AppState:
    """LSF's state as torchx's; unknown states become UNKNOWN."""
    return STATES.get(stat, AppState.UNKNOWN)


def why_pending(reason: str) -> str:
    """Why a job is pending, as a sentence; unknown reasons in LSF's own words.

    >>> why_pending("Job slot limit reached: 3 hosts; Closed by LSF administrator: 1 host;")
    'all slots are taken (3 hosts); hosts are closed by an administrator (1 host)'
    >>> why_pending("The janitor has the key;")
    'LSF says: The janitor has the key'
    """
    sentences = list(dict.fromkeys(_sentence(phrase, hosts) for phrase, hosts in _phrases(reason)))
    return "; ".join(sentences) or "LSF does not say why"


def why_ended(reason: str) -> str:
    """Why LSF ended a job, as a sentence with the keyword from the manual; empty if LSF did not end it.

    >>> why_ended("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit")
    'it used more memory than it asked for (TERM_MEMLIMIT)'
    """
    word = term(reason)
    if not word:
        return "" if reason in ("", "-") else reason
    return f"{ENDED.get(word, reason.partition(':')[2].strip() or 'LSF ended it')} ({word})"


def term(reason: str) -> str:
    """Return the keyword of a termination reason; empty if there is none."""
    found = re.match(r"\s*(TERM_[A-Z_]+)", reason)
    return found[1] if found else ""


def _phrases(reason: str) -> Iterator[tuple[str, str]]:
    for part in reason.replace("\n", " ").split(";"):
        phrase = part.strip()
        if phrase in ("", "-") or phrase.lower().startswith(_NO_REASONS):
            continue
        counted = re.fullmatch(r"(.*?)\s*:\s*(\d+ hosts?)", phrase)
        yield (counted[1], counted[2]) if counted else (phrase, "")


def _sentence(phrase: str, hosts: str) -> str:
    known = next((words for words in PENDING if phrase.startswith(words)), None)
    text = PENDING[known] if known else f"LSF says: {phrase}"
    return f"{text} ({hosts})" if hosts and not (known or "").startswith(_OF_THE_JOB) else text
