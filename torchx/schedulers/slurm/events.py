"""What a Slurm job of ours writes down about its replicas: the file ``events`` in its folder.

A line each: ``<Unix time> <what> ...``. ``start <restarts> <job id>`` begins an attempt; ``up <replica> <host>``, with
the lengths of its stdout and stderr where an earlier attempt has written some; ``down <replica> <exit code>``, ``absent
<replica>`` (an elastic job got fewer nodes), ``again <replica>`` (it was started again in place), ``retry <n>`` (the
job requeues itself), ``end <exit code>``, with ``over`` behind it unless Slurm ends the job. ``hang``: the watchdog has
written down what it saw, ``silent``: the attempt is ended for it.
"""

from __future__ import annotations

from torchx.util.records import dataclass, field

EVENTS_FILE = "events"
SLURM_LOG = "slurm.log"
"""What Slurm itself has to say of the job."""

STEP_LOG = "srun.log"
"""What Slurm itself has to say of a replica; in its folder."""


@dataclass(kw_only=True)
class ReplicaEvents:
    """What became of one replica in the last attempt."""

    host: str = ""
    up: bool = False
    absent: bool = False
    exit_code: int | None = None
    ended: float = 0.0


@dataclass(kw_only=True)
class JobEvents:
    """What is known of the last attempt, and of how many there were.

    Attributes:
        replicas: path of the replica's folder within the job's to what became of it.
        starts: how often the job was started.
        again: how often replicas were started again while the job went on.
        tries: how often in this attempt, by path of the replica.
        retries: how often the job requeued itself because a replica failed.
        exit_code: of the attempt; None while it goes on, and when it was ended from outside.
        job_id: Slurm's; empty before the first start.
        over: the attempt was the last one: nobody has ended it from outside, and it is not started again.
        hung: its watchdog has seen something; the text is in ``watchdog.txt``.
        silent: the attempt was ended for that.
    """

    replicas: dict[str, ReplicaEvents] = field(default_factory=dict)
    starts: int = 0
    again: int = 0
    tries: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    started: float = 0.0
    ended: float = 0.0
    exit_code: int | None = None
    retrying: bool = False
    job_id: str = ""
    over: bool = False
    hung: bool = False
    silent: bool = False


def parse_events(text: str) -> JobEvents:
    """Reads the file; lines that are damaged, not yet written to their end, or of a newer torchx, are left out.

    >>> parse_events("5 start 0 7\\n5 up w/0 n1\\n9 down w/0 3\\n9 end 3\\n").replicas["w/0"].exit_code
    3
    """
    job = JobEvents()
    for line in text.split("\n")[:-1]:
        words = line.split(" ")
        try:
            _apply(job, float(words[0]), words[1], words[2:])
        except (ValueError, IndexError):
            continue
    return job


def starts_of(text: str) -> dict[str, list[tuple[int, int]]]:
    r"""Path of each replica to the lengths of its stdout and stderr at each of its starts.

    >>> starts_of("5 up w/0 n1\n9 up w/0 n2 7 0\n")
    {'w/0': [(0, 0), (7, 0)]}
    """
    starts: dict[str, list[tuple[int, int]]] = {}
    for words in (line.split() for line in text.split("\n")[:-1]):
        if words[1:2] == ["up"] and len(words) in (4, 6) and all(word.isdecimal() for word in words[4:]):
            out, err = words[4:] or (0, 0)
            starts.setdefault(words[2], []).append((int(out), int(err)))
    return starts


def _apply(job: JobEvents, moment: float, what: str, words: list[str]) -> None:
    if what == "start":
        job.starts += 1
        job.job_id = words[1] if len(words) > 1 else ""
        job.replicas, job.tries = {}, {}
        job.started, job.ended, job.exit_code, job.retrying = moment, 0.0, None, False
        job.over = job.silent = False
    elif what == "end":
        job.ended, job.exit_code, job.over = moment, int(words[0]), words[1:] == ["over"]
    elif what in ("hang", "silent"):
        job.hung, job.silent = True, job.silent or what == "silent"
    elif what == "retry":
        job.retries, job.retrying = int(words[0]), True
    elif what == "up":
        job.replicas[words[0]] = ReplicaEvents(host=words[1], up=True)
    elif what == "down":
        exit_code = int(words[1])
        replica = job.replicas.setdefault(words[0], ReplicaEvents())
        replica.exit_code, replica.ended = exit_code, moment
    elif what == "absent":
        job.replicas.setdefault(words[0], ReplicaEvents()).absent = True
    elif what == "again":
        job.tries[words[0]] = job.tries.get(words[0], 0) + 1
        job.again += 1
