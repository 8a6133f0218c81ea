"""The file with a local job's state: its supervisor updates it in place, and any process can read it.

One header line and one line per replica, of fixed width, each with a checksum at its end. The file is created with its
full size, so that a state transition is a single ``pwrite`` and needs no free disk space. A line that is read during a
write fails its checksum and is read again.

It is text, so that ``cat`` shows it::

    torchx-local-job 1 640 app_id=... roles=trainer:2 ... state=RUNNING restarts=0 ...   5c0c1b06
    0 RUNNING 0 4711 99021 - 1763731200.120000 0.000000                                  91e0a9d1
    1 PENDING 0 0 0 - 0.000000 0.000000                                                  7a5b0c44
"""

from __future__ import annotations

import binascii
import errno
import os
import stat
import time

from torchx.supervisor.layout import CONTROL_FIFO, ORDERED, STATE_FILE

MAGIC = "torchx-local-job"
FORMAT = 1

PENDING = "PENDING"
RUNNING = "RUNNING"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
TERMINAL = frozenset((SUCCEEDED, FAILED, CANCELLED))
LOST = "UNKNOWN"
"""State of a replica only: it ended while neither the supervisor nor the guardian was alive to see its exit code."""

TASKS = "tasks"
"""Key in the facts of a job whose replicas are the tasks of a sweep: how many of them run at the same time."""

_LINE = 112  # bytes of a replica's line, including checksum and line end
_ROOM_FOR_CHANGES = 512  # bytes of the header reserved for the fields that change
_MAX_MESSAGE = 240
_ROOM_FOR_ORDER = 400, 24  # bytes for a longer message if roles have an order, and for the time of each replica
_PAUSE_S = 0.00025


class StateFileError(ValueError):
    """The data is not a state file, or has another format."""


class ForeignJobError(StateFileError):
    """The job's folder belongs to another user or others can write to it, so its content is not trusted."""


class ReplicaLine:
    """The state of one replica.

    Attributes:
        attempt: 0 for its first process, 1 for the next.
        pid: of its last process; 0 before the first one.
        ticks: start time of that process in kernel ticks; the pair of pid and ticks is unique.
        state: one of the states above; ``LOST`` if its exit code is unknown.
        exit: exit code, ``-n`` for signal n; None if it has not ended or is lost.
        started: Unix time of the start of its last process; 0 before.
        ended: Unix time of the end of its last process; 0 before.
        ready: Unix time at which its probe succeeded; 0: not yet, or it has none. It is kept in the header, so that
            older versions can read the file.
    """

    def __init__(self) -> None:
        self.state = PENDING
        self.attempt = 0
        self.pid = 0
        self.ticks = 0
        self.exit: int | None = None
        self.started = 0.0
        self.ended = 0.0
        self.ready = 0.0


class JobState:
    """The state of a job.

    Attributes:
        facts: constant fields: ``app_id``, ``name``, ``session``, ``handle``, ``host``, ``boot``, ``pidns``, ``logs``,
            ``mark`` (see :func:`torchx.supervisor.proctree.set_mark`).
        roles: names and numbers of replicas of the roles. Indices of replicas count over all roles in this order.
        first: index of the replica whose failure ends the job; -1 if none does.
        restarts: how many times a replica, role or application was restarted.
        supervisor: pid of the supervisor.
        guardian: pid and start ticks of the process that ends the job if the supervisor is killed.
        kill_at: Unix time at which the processes of a cancelled job are killed; 0 if it is not cancelled.
        kind: class of the reason in ``msg``, such as ``timeout``; empty if it has none.
        msg: the reason for the job's state, unless it follows from the replicas.
    """

    def __init__(self, facts: dict[str, str], roles: list[tuple[str, int]]) -> None:
        self.facts = facts
        self.roles = roles
        self.state = PENDING
        self.restarts = 0
        self.first = -1
        self.created = 0.0
        self.ended = 0.0
        self.supervisor = 0
        self.guardian = (0, 0)
        self.kill_at = 0.0
        self.kind = ""
        self.msg = ""
        self.replicas = [ReplicaLine() for _ in range(sum(n for _, n in roles))]

    def positions(self) -> list[tuple[str, int]]:
        """Role and number within the role of each replica."""
        return [(name, k) for name, count in self.roles for k in range(count)]


class StateWriter:
    """The only writer of a state file. Change :attr:`job`, report what changed, and :meth:`flush`."""

    def __init__(self, path: str, job: JobState, *, header: int = 0) -> None:
        self.job = job
        roles = ",".join(f"{escape(name)}:{count}" for name, count in job.roles)
        facts = " ".join(f"{key}={escape(value)}" for key, value in job.facts.items())
        self._fixed = f"roles={roles} {facts}"
        longer, each = _ROOM_FOR_ORDER if ORDERED in job.facts else (0, 0)
        room = _ROOM_FOR_CHANGES + longer + each * len(job.replicas)
        self._most = _MAX_MESSAGE + longer
        self._header = header or -(-(len(self._fixed) + room) // 64) * 64
        self._bytes = bytearray()
        self._low, self._high = self._header, 0  # range of lines that is not written yet
        self._new_header = False
        self.header_changed()
        for index in range(len(job.replicas)):
            self.replica_changed(index)
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def header_changed(self) -> None:
        """Render the header; the next :meth:`flush` writes it."""
        job = self.job
        kind = f"kind={job.kind} " if job.kind else ""
        kill = f"kill_at={job.kill_at:.6f} " if job.kill_at else ""
        ready = ",".join(f"{k}:{r.ready:.6f}" for k, r in enumerate(job.replicas) if r.ready)
        kill += f"ready={ready} " if ready else ""
        text = (
            f"{MAGIC} {FORMAT} {self._header} {self._fixed} "
            f"state={job.state} restarts={job.restarts} first={job.first} "
            f"created={job.created:.6f} ended={job.ended:.6f} supervisor={job.supervisor} "
            f"guardian={job.guardian[0]}:{job.guardian[1]} {kind}{kill}msg={escape(_shortened(job.msg, self._most))}"
        )
        self._put(0, text, self._header)
        self._new_header = True

    def replica_changed(self, index: int) -> None:
        """Render a replica's line; the next :meth:`flush` writes it."""
        r = self.job.replicas[index]
        exit_code = "-" if r.exit is None else r.exit
        text = f"{index} {r.state} {r.attempt} {r.pid} {r.ticks} {exit_code} {r.started:.6f} {r.ended:.6f}"
        offset = self._header + index * _LINE
        self._put(offset, text, _LINE)
        self._low = min(self._low, offset)
        self._high = max(self._high, offset + _LINE)

    def flush(self) -> None:
        """Write the changes, with one system call if they are adjacent; else the lines first, and then the header."""
        low, high, new_header = self._low, self._high, self._new_header
        self._low, self._high, self._new_header = len(self._bytes), 0, False
        if new_header and low == self._header:  # a reader of a new file never sees it without a header
            low, new_header = 0, False
        if low < high:
            os.pwrite(self.fd, memoryview(self._bytes)[low:high], low)
        if new_header:
            os.pwrite(self.fd, memoryview(self._bytes)[: self._header], 0)

    def close(self) -> None:
        os.close(self.fd)

    def _put(self, offset: int, text: str, width: int) -> None:
        body = text.encode().ljust(width - 9)
        if len(body) > width - 9:
            raise StateFileError(f"line of {len(body)} bytes where {width - 9} fit: {text}")
        line = body + b"%08x\n" % binascii.crc32(body)
        self._bytes[offset : offset + width] = line


def read_state(path: str) -> JobState:
    """Read a state file. Raises StateFileError if it is none or has another format."""
    problem = ""
    for attempt in range(20):  # a line may be read during a write, whose process may lose the processor
        try:
            return parse_state(read_bytes(path))
        except StateFileError as e:
            problem = str(e)
        time.sleep(attempt * _PAUSE_S)
    raise StateFileError(f"`{path}`: {problem}")


def check_owner(folder: str) -> None:
    """Reject a job that another user may have forged, since readers kill processes and remove files by its state file.

    Raises:
        OSError: the job does not exist.
        ForeignJobError: its folder or state file belongs to another user, or others can write to it.
    """
    for path, is_right in ((folder, stat.S_ISDIR), (f"{folder}/{STATE_FILE}", stat.S_ISREG)):
        found = os.lstat(path)
        if not is_right(found.st_mode):
            if path == folder:
                raise NotADirectoryError(path)
            raise ForeignJobError(f"`{path}` is not a regular file")
        if found.st_uid != os.geteuid():
            raise ForeignJobError(f"`{path}` belongs to user {found.st_uid}, and you are user {os.geteuid()}")
        if found.st_mode & 0o022:
            raise ForeignJobError(f"others can write to `{path}` (mode {stat.S_IMODE(found.st_mode):04o})")


def has_supervisor(folder: str) -> bool:
    """Whether a supervisor has the job's FIFO open. The kernel knows this for certain, unlike a recorded pid."""
    try:
        os.close(os.open(os.path.join(folder, CONTROL_FIFO), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as e:
        return e.errno not in (errno.ENXIO, errno.ENOENT, errno.ENOTDIR)
    return True


def read_bytes(path: str) -> bytes:
    """Return the content of a small file."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def parse_state(data: bytes) -> JobState:
    """Parse the content of a state file. Raises StateFileError if it is none, has another format, or is truncated."""
    words = data[:64].split(b" ", 3)
    if len(words) < 4 or words[0] != MAGIC.encode() or not words[2].isdigit():
        raise StateFileError("not a state file")
    if words[1] != b"%d" % FORMAT:
        raise StateFileError(f"a state file of format {words[1]!r}; this version of torchx reads {FORMAT}")
    width = int(words[2])
    try:
        job = _parse_header(_checked(data, 0, width), most=(len(data) - width) // _LINE)
        for index, replica in enumerate(job.replicas):
            _parse_replica(replica, index, _checked(data, width + index * _LINE, _LINE))
    except (ValueError, KeyError, IndexError) as e:
        raise e if isinstance(e, StateFileError) else StateFileError(f"not a state file: {e!r}") from e
    return job


def escape(text: str) -> str:
    """Escape ``text`` as one printable word: blanks, control characters, ``%``, ``:``, ``,`` and ``=`` become ``%xx``.

    >>> escape("a b%"), unescape(escape("a b%"))
    ('a%20b%25', 'a b%')
    """
    return "".join(chr(b) if b in _PLAIN else f"%{b:02x}" for b in text.encode("utf-8", "surrogateescape"))


def unescape(word: str) -> str:
    """Return the inverse of :func:`escape`."""
    head, *rest = word.split("%")
    if not rest:
        return head
    parts = [head.encode()]
    parts += [bytes([int(piece[:2], 16)]) + piece[2:].encode() for piece in rest]
    return b"".join(parts).decode("utf-8", "surrogateescape")


_PLAIN = frozenset(b for b in range(0x21, 0x7F) if chr(b) not in "%:,=")


def _shortened(text: str, most: int) -> str:
    # Escaping may triple the length of a character.
    while len(escape(text)) > most:
        text = text[: len(text) * 3 // 4] + "…" if len(text) > 8 else ""
    return text


def _checked(data: bytes, offset: int, width: int) -> str:
    line = data[offset : offset + width]
    if len(line) != width or int(line[-9:-1], 16) != binascii.crc32(line[:-9]):
        raise StateFileError("cut off, or in the middle of being written")
    return line[:-9].decode()


def _parse_header(line: str, *, most: int) -> JobState:
    fields = dict(word.partition("=")[::2] for word in line.split()[3:])
    roles = [word.split(":") for word in fields.pop("roles").split(",") if word]
    counts = [(unescape(name), int(count)) for name, count in roles]
    if sum(max(count, 0) for _, count in counts) > most:  # before allocating for a number that may be corrupt
        raise StateFileError("cut off: it has fewer lines than replicas")
    job = JobState({}, counts)
    job.state = fields.pop("state")
    job.restarts = int(fields.pop("restarts"))
    job.first = int(fields.pop("first"))
    job.created = float(fields.pop("created"))
    job.ended = float(fields.pop("ended"))
    job.supervisor = int(fields.pop("supervisor"))
    pid, _, ticks = fields.pop("guardian").partition(":")
    job.guardian = int(pid), int(ticks)
    job.kind = fields.pop("kind", "")
    job.kill_at = float(fields.pop("kill_at", 0))
    job.msg = unescape(fields.pop("msg"))
    for word in filter(None, fields.pop("ready", "").split(",")):
        index, _, at = word.partition(":")
        job.replicas[int(index)].ready = float(at)
    job.facts = {key: unescape(value) for key, value in fields.items()}
    return job


def _parse_replica(replica: ReplicaLine, index: int, line: str) -> None:
    number, state, attempt, pid, ticks, exit_code, started, ended = line.split()
    if int(number) != index:
        raise StateFileError(f"line {number} where {index} is expected")
    replica.state = state
    replica.attempt = int(attempt)
    replica.pid = int(pid)
    replica.ticks = int(ticks)
    replica.exit = None if exit_code == "-" else int(exit_code)
    replica.started = float(started)
    replica.ended = float(ended)
