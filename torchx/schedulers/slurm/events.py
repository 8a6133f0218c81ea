"""The file ``events`` in a Slurm job's folder, in which its script records what happens to the replicas.

Each line is ``<Unix time> <what> ...``:

    start <restarts> <job id>   an attempt begins
    up <replica> <host>         a replica starts; the sizes of its stdout and stderr follow if they are not empty
    down <replica> <exit code>  it ended; `stopped` follows if the script had told it to, because another one failed
    absent <replica>            an elastic job got too few nodes for it
    again <replica>             it is restarted in place
    ready <replica>             the probe of its role has succeeded
    waits <replica>             it is not restarted before other roles are ready
    unready <replica> <how>     its role was not ready in time (`late`), or ended before it was (`early`); what the
                                last probe saw, a tab, and the replica's last words follow
    retry <n>                   the job requeues itself
    end <exit code>             the attempt ended; `over` follows unless Slurm ended the job
    hang                        the watchdog has recorded a finding
    silent                      the attempt is ended because of that
"""

from __future__ import annotations

from torchx.util.records import dataclass, field

EVENTS_FILE = "events"
SLURM_LOG = "slurm.log"
"""Slurm's own messages about the job."""

STEP_LOG = "srun.log"
"""Slurm's own messages about a replica, in the replica's folder."""

SWEEP_PREFIX = "sweep-"
"""Start of a sweep's app id; the id of its first array follows."""


@dataclass(kw_only=True)
class ReplicaEvents:
    """What happened to one replica in the last attempt."""

    host: str = ""
    up: bool = False
    absent: bool = False
    exit_code: int | None = None
    ended: float = 0.0
    stopped: bool = False
    ready: float = 0.0


@dataclass(kw_only=True)
class JobEvents:
    """The last attempt, and the number of attempts.

    Attributes:
        replicas: events by path of the replica's folder within the job's.
        starts: how often the job was started.
        again: how often replicas were restarted in place.
        tries: the same for this attempt, by path of the replica.
        retries: how often the job requeued itself because a replica failed.
        exit_code: of the attempt; None while it runs, or if it was killed from outside.
        job_id: Slurm's; empty before the first start.
        over: the attempt was the last one, and nothing outside ended it.
        hung: the watchdog has recorded a finding in ``watchdog.txt``.
        silent: the attempt was ended because of that.
        unready: path of a replica whose role did not become ready, how, what its probe saw, and its last words:
            the job was ended.
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
    unready: tuple[str, str, str, str] | None = None


def parse_events(text: str) -> JobEvents:
    """Parse the file. Damaged and unfinished lines, and those of a newer torchx, are skipped.

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
    r"""For each replica's path, the sizes of its stdout and stderr at each of its starts.

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
        job.over, job.silent, job.unready = False, False, None
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
        replica.exit_code, replica.ended, replica.stopped = exit_code, moment, words[2:] == ["stopped"]
    elif what == "absent":
        job.replicas.setdefault(words[0], ReplicaEvents()).absent = True
    elif what == "ready":
        job.replicas.setdefault(words[0], ReplicaEvents()).ready = moment
    elif what == "waits":
        job.replicas.pop(words[0], None)
    elif what == "unready":
        seen, _, said = " ".join(words[2:]).partition("\t")
        job.unready = words[0], words[1], seen, said
    elif what == "again":
        job.tries[words[0]] = job.tries.get(words[0], 0) + 1
        job.again += 1
