"""The layout of a local job's files.

::

    <base>/<session>/<app_id>/          the job's folder
        job.json  state  control        the request, the state, and a FIFO to cancel the job
        <role>/<k>/                     one folder per replica; below the user's `log_dir` if there is one
            stdout.log  stderr.log  combined.log  times.idx  starts.idx  error.json  metrics.jsonl  steps

A sweep also has ``tasks.jsonl``, and one output file per task, ``<role>/<k>.log``.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    class ReplicaRequest(TypedDict):
        """One replica; ``exe`` is the program of ``argv``, and None where it is not looked up."""

        argv: list[str]
        exe: str | None
        env: dict[str, str]  # in addition to that of the job
        cwd: str
        folder: str
        stdout: str
        stderr: str

    class RoleRequest(TypedDict):
        """One role; see :class:`torchx.supervisor.gang.RoleRules`."""

        name: str
        max_retries: int
        policy: str
        min_replicas: int | None
        replicas: list[ReplicaRequest]

    class OrderRequest(TypedDict, total=False):
        """The order of one role; see :class:`torchx.specs.order.RoleOrder`. Without a probe, started is ready."""

        after: list[str]
        probe: str
        what: str
        ports: list[int]  # that are probed, of each replica
        within_s: float
        at_least: int
        ends_job: bool
        restarts_after: bool
        late: str  # the beginning of the sentence if it is not ready in time,
        ended: str  # and if it has ended before

    class LimitRequest(TypedDict, total=False):
        """The time limit; see :class:`torchx.supervisor.limit.Limit`."""

        seconds: float
        text: str  # the limit as its user wrote it
        early_s: float  # how long before its end a checkpoint is requested
        ask: str  # the file that requests it
        progress: str  # the file that the ranks touch when it is written

    class WatchdogRequest(TypedDict, total=False):
        """The watchdog; see :class:`torchx.supervisor.watchdog.Watchdog`."""

        seconds: float
        action: str  # `stacks`, `cancel` or `retry`
        program: list[str]  # inspects the job, prints a sentence, followed by the stacks
        files: Sequence[str]  # logs and marks of progress
        plain: bool  # of `idle`: no set-up, staging or GPUs, so that the work of processors is a first step

    class RetentionRequest(TypedDict):
        """Limits that the supervisor applies to old jobs at its end."""

        base: str
        max_age_s: float
        max_bytes: int

    class _JobRequest(TypedDict):
        job: str  # the folder of the job
        facts: dict[str, str]  # see JobState
        env: dict[str, str]  # of every replica
        grace_s: float
        roles: list[RoleRequest]

    class JobRequest(_JobRequest, total=False):
        """What the client hands to a supervisor; the fields of this class are optional."""

        order: dict[str, OrderRequest]  # by role, if roles wait for others or end the job
        again: list[str]  # a program that decides on restarts
        watchdog: WatchdogRequest
        idle: WatchdogRequest  # see `idle`: `notify`, `cancel` or `checkpoint`; the files of samples
        limit: LimitRequest
        sample_s: float  # interval of usage samples
        resumes: tuple[int, float]  # number of the attempt, and when the job was created; see `chain`
        retention: RetentionRequest | None


REQUEST_FILE = "job.json"
STATE_FILE = "state"
CONTROL_FIFO = "control"
CRASH_FILE = "supervisor.log"
AT_END_FILE = "at_end"
HANG_FILE = "watchdog.txt"  # the watchdog's findings when the job was last silent
STACKS_FILE = "stacks.txt"  # the same, followed by all stacks
RETRY_FACT = "retry"  # key in the header of the state file if the job has a retry policy
WATCHED = "watched"  # and if it has a watchdog
ORDERED = "ordered"  # and if its roles have an order
MARKS = ("attempts.jsonl", "progress", "checkpoint")  # see schedulers/kit/attempts.py
STDOUT_LOG = "stdout.log"
STDERR_LOG = "stderr.log"
COMBINED_LOG = "combined.log"
TIMES_INDEX = "times.idx"
STARTS_INDEX = "starts.idx"
ERROR_FILE = "error.json"
METRICS_FILE = "metrics.jsonl"
STEPS_FILE = "steps"
TASKS_FILE = "tasks.jsonl"
CHAIN_FILE = "chain.json"
USED_FILE = "used"
"""Usage of tasks: a line ``BYTES PROCESSORS`` with the limits, then lines ``TASK PEAK_KIB PROCESSOR_SECONDS``."""

JOB_FILES = (
    REQUEST_FILE,
    STATE_FILE,
    CONTROL_FIFO,
    CRASH_FILE,
    AT_END_FILE,
    TASKS_FILE,
    CHAIN_FILE,
    USED_FILE,
    HANG_FILE,
    STACKS_FILE,
    *MARKS,
)
_TAKEN = frozenset(JOB_FILES)
REPLICA_FILES = (STDOUT_LOG, STDERR_LOG, COMBINED_LOG, TIMES_INDEX, STARTS_INDEX, ERROR_FILE, METRICS_FILE, STEPS_FILE)

# The launcher gets only these variables, so that it does not keep the caller's secrets in memory while jobs run. The
# environment of replicas comes with each request.
KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONUTF8")


def folder_name(name: str) -> str:
    """Escapes ``name`` as the name of one folder, so that it cannot refer to another path.

    >>> folder_name("trainer"), folder_name("../a b"), folder_name("..")
    ('trainer', '..%2fa%20b', '%2e.')
    """
    if name.isascii() and name.isalnum() and len(name) < 50:
        return name
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else _escaped(c) for c in name)
    if safe in ("", ".", ".."):
        safe = f"%2e{safe[1:]}" if safe else "%00"
    elif safe == "%00":  # which stands for the empty name
        safe = "%u0000"
    if len(safe) <= 200:
        return safe
    import binascii

    return f"{safe[:60]}%{binascii.crc32(safe.encode()):08x}"


def role_folder(role: str, taken: frozenset[str] = _TAKEN) -> str:
    """Return the name of a role's folder, which is not that of a file of the job, such as `state`."""
    name = folder_name(role)
    return f"%{ord(name[0]):02x}{name[1:]}" if name in taken else name


def replica_folder(logs: str, role: str, k: int) -> str:
    """Return the folder of replica ``k`` of a role, below the job's log folder."""
    return f"{logs}/{role_folder(role)}/{k}"


def task_log(logs: str, role: str, k: int) -> str:
    """Return the file with the output, stdout and stderr, of task ``k`` of a sweep."""
    return f"{logs}/{role_folder(role)}/{k}.log"


def task_metrics(logs: str, role: str, k: int) -> str:
    """Return the file with the usage samples of task ``k`` of a sweep, if it ran long enough to have any."""
    return f"{logs}/{role_folder(role)}/{k}.jsonl"


def make_folder(path: str, *, private: bool) -> None:
    """Create a folder and its missing parents; ``private``: accessible to their owner only, whatever the umask."""
    umask = os.umask(0o077) if private else None
    try:
        os.makedirs(path, exist_ok=True)
    finally:
        if umask is not None:
            os.umask(umask)


def private(path: str, flags: int) -> int:
    """Return an ``opener`` for :func:`open`: a new file is accessible to its owner only, whatever the umask."""
    return os.open(path, flags, 0o600)


def _escaped(character: str) -> str:
    return "".join(f"%{b:02x}" for b in character.encode("utf-8", "surrogatepass"))
