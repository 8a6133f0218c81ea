"""What the look-alike knows of jobs, hosts and queues; and LSF's little languages: resource strings, dependencies."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

UNFINISHED = ("PEND", "PSUSP", "RUN", "USUSP", "SSUSP", "UNKWN")
STARTED = ("RUN", "USUSP", "SSUSP", "UNKWN")

# https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=jobs-termination-reasons-displayed-by-bacct-bhist-bjobs
TERM = {
    "TERM_OWNER": "job killed by owner",
    "TERM_FORCE_OWNER": "job killed by owner without time for cleanup",
    "TERM_MEMLIMIT": "job killed after reaching LSF memory usage limit",
    "TERM_RUNLIMIT": "job killed after reaching LSF run time limit",
    "TERM_REQUEUE_OWNER": "job killed and requeued by owner",
    "TERM_EXTERNAL_SIGNAL": "job killed by a signal external to LSF",
    "TERM_ORPHAN_SYSTEM": "The orphan job was automatically terminated by LSF",
}


class LsfError(Exception):
    """What a command prints before it exits with 255."""


@dataclass
class Host:
    """One execution host: its name is an address of the loopback network."""

    name: str
    slots: int
    mem_mb: float
    gpus: int = 0
    closed: bool = False
    lost_at: float = 0


@dataclass
class Queue:
    """One queue."""

    name: str
    priority: int = 30
    active: bool = True
    open: bool = True
    user_slots: int = 0
    run_limit_min: float = 0


@dataclass
class Resources:
    """What ``-n``, ``-R``, ``-M``, ``-W`` and ``-gpu`` ask for."""

    slots: int = 1
    one_host: bool = False
    mem_mb: float = 0
    mem_limit_mb: float = 0
    run_limit_min: float = 0
    gpus: int = 0
    hosts: list[str] = field(default_factory=list)
    exclusive: bool = False
    select_mem_mb: float = 0
    not_hosts: list[str] = field(default_factory=list)
    warn_min: float = 0


@dataclass
class Job:
    """One job of the cluster, or an element of a job array.

    Attributes:
        index: within its array; 0 of a job that is in none.
        most: how many elements of the array may run at the same time; 0: there is no limit.
        spec: the value of ``-J``.
        no_file: its job file is gone.
    """

    id: int
    user: str
    command: str
    name: str
    queue: str
    from_host: str
    cwd: str
    env: dict[str, str]
    options: dict[str, str]
    resources: Resources
    group: str = ""
    project: str = "default"
    stat: str = "PEND"
    submitted: float = field(default_factory=time.time)
    started: float = 0
    finished: float = 0
    hosts: list[str] = field(default_factory=list)
    gpu_ids: list[tuple[str, int]] = field(default_factory=list)
    exit_code: int | None = None
    term: str = ""
    pend: str = "New job is waiting for scheduling"
    pid: int = 0
    max_mem_mb: float = 0
    cpu_s: float = 0
    runs: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)
    # How a kill goes on: what is to be sent when, and what becomes of the job.
    signals: list[tuple[float, int]] = field(default_factory=list)
    warned: bool = False
    requeue: bool = False
    index: int = 0
    most: int = 0
    spec: str = ""
    # When a requeued job waits again; until then bjobs shows its end.
    back_at: float = 0
    # Since when its host is lost, and how its processes ended meanwhile.
    lost_at: float = 0
    lost_code: int | None = None
    no_file: bool = False

    @property
    def reference(self) -> str:
        """As commands name it: ``7``, or ``7[3]``."""
        return f"{self.id}[{self.index}]" if self.index else str(self.id)

    @property
    def full_name(self) -> str:
        """As bjobs shows it: of an element, with its index."""
        return f"{self.name}[{self.index}]" if self.index else self.name

    def log(self, text: str) -> None:
        """A line of ``bhist``."""
        self.events.append((time.time(), text))

    @property
    def unfinished(self) -> bool:
        """Whether it waits or runs."""
        return self.stat in UNFINISHED

    @property
    def exit_reason(self) -> str:
        """As bjobs and bhist show it."""
        return f"{self.term}: {TERM[self.term]}" if self.term else ""


Jobs = dict[str, Job]
"""Jobs and elements of arrays by their references."""

_UNITS = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


def megabytes(text: str, *, unit: str) -> float:
    """An amount with or without unit; without one it is in ``unit`` (LSF_UNIT_FOR_LIMITS)."""
    match = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)B?!?", text.strip().upper())
    if not match:
        raise LsfError(f"{text}: Bad limit specification. Job not submitted.")
    return float(match[1]) * _UNITS[match[2] or unit[:1].upper()]


def minutes(text: str) -> float:
    """``[hour:]minute`` of -W."""
    match = re.fullmatch(r"(?:(\d+):)?(\d+)(?:/.*)?", text)
    if not match:
        raise LsfError(f"{text}: Illegal time format. Job not submitted.")
    return int(match[1] or 0) * 60 + int(match[2])


def resources(options: dict[str, str], *, unit: str) -> Resources:
    """The request of a submission."""
    found = Resources(slots=int(options.get("-n", "1").split(",")[0]), exclusive="-x" in options)
    for section, body in re.findall(r"(\w+)\s*\[([^\]]*)\]", options.get("-R", "")):
        _section(found, section, body, unit)
    if "-M" in options:
        found.mem_limit_mb = megabytes(options["-M"], unit=unit)
    if "-W" in options:
        found.run_limit_min = minutes(options["-W"])
    if "-wt" in options:
        found.warn_min = minutes(options["-wt"])
    if "-gpu" in options:
        match = re.search(r"num=(\d+)", options["-gpu"])
        found.gpus = int(match[1]) if match else 1
    if "-m" in options:
        found.hosts = options["-m"].split()
    return found


def _section(found: Resources, section: str, body: str, unit: str) -> None:
    if section == "span":
        found.one_host = "hosts=1" in body.replace(" ", "")
    elif section == "rusage":
        for part in re.split(r"[:,]", body):
            name, _, amount = part.partition("=")
            if name.strip() == "mem":
                found.mem_mb = megabytes(amount.partition("/")[0], unit=unit)
    elif section == "select":
        match = re.search(r"mem\s*>=?\s*(\w+)", body)
        found.select_mem_mb = megabytes(match[1], unit=unit) if match else found.select_mem_mb
        found.not_hosts += re.findall(r"hname\s*!=\s*'?([^\s'&|]+)'?", body)
    elif section not in ("order", "affinity", "same", "cu"):
        raise LsfError("Bad resource requirement syntax. Job not submitted.")


_CONDITION = re.compile(r"(started|done|ended|exit)\(\s*\"?([^\s\")]+)\"?\s*\)|&&|\|\||!|\(|\)")


def elements(spec: str, most: int) -> tuple[str, list[int], int]:
    """Name, indices and limit of ``-J``; index 0 alone of a job that is no array.

    https://www.ibm.com/docs/en/spectrum-lsf/10.1.0?topic=options-j

    >>> elements("a[1-3,7]%2", 10)
    ('a', [1, 2, 3, 7], 2)
    """
    match = re.fullmatch(r"(.*)\[([^\]]*)\](?:%(\d+))?", spec)
    if match is None:
        return spec, [0], 0
    found: list[int] = []
    for part in match[2].split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+)(?::(\d+))?)?\s*", part)
        if ends is None or int(ends[1]) < 1:
            raise LsfError(f"{spec}: Bad job array index list. Job not submitted.")
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1, int(ends[3] or 1))
    if len(spec) > 255 or not found or max(found) > most:
        raise LsfError(f"{spec}: Job array index too large. Job not submitted.")
    return match[1], sorted(set(found)), int(match[3] or 0)


def dependency(text: str, jobs: Jobs) -> bool:
    """Whether a ``-w`` expression holds now.

    Raises:
        LsfError: it is malformed, or names a job that does not exist.
    """
    if _CONDITION.sub("", text).strip():
        raise LsfError("Dependency condition syntax error. Job not submitted.")
    words = []
    for match in _CONDITION.finditer(text):
        if match[1]:
            words.append(str(_holds(match[1], _named(match[2], jobs))))
        else:
            words.append({"&&": "and", "||": "or", "!": "not"}.get(match[0], match[0]))
    return bool(eval(" ".join(words), {"__builtins__": {}}))


def _named(word: str, jobs: Jobs) -> list[Job]:
    begins = word.removesuffix("*") if word.endswith("*") else None
    found = [
        j
        for j in jobs.values()
        if word in (str(j.id), j.reference, j.name, j.full_name) or (begins is not None and j.name.startswith(begins))
    ]
    if not found:
        raise LsfError("Dependency condition invalid or never satisfied. Job not submitted.")
    return found


def _holds(condition: str, jobs: list[Job]) -> bool:
    wanted = {
        "started": (*STARTED, "DONE", "EXIT"),
        "done": ("DONE",),
        "ended": ("DONE", "EXIT"),
        "exit": ("EXIT",),
    }[condition]
    return all(j.stat in wanted for j in jobs)


def is_orphan(text: str, jobs: Jobs) -> bool:
    """Whether a ``-w`` expression can never hold: it does not, and the jobs that it names have all ended."""
    try:
        if dependency(text, jobs):
            return False
        named = [job for match in _CONDITION.finditer(text) if match[2] for job in _named(match[2], jobs)]
    except LsfError:
        return True
    return all(job.finished for job in named)


def requeue_codes(spec: str) -> tuple[set[int], bool]:
    """The exit values of ``-Q``; the flag says that they are the ones that do not requeue."""
    words = re.sub(r"EXCLUDE\(([^)]*)\)", r"\1", spec).split()
    if "all" in words:
        return {int(w[1:]) for w in words if w.startswith("~")}, True
    return {int(w) for w in words if w.isdigit()}, False
