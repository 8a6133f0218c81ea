"""Runs a process inside the container of a Batch job, through ECS Exec.

https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-exec.html
"""

from __future__ import annotations

import binascii
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from torchx.errors import BackendError, MissingDependencyError, NotSupportedError, install_extra
from torchx.schedulers.aws.batch import answers
from torchx.schedulers.aws.batch import client as calls
from torchx.schedulers.aws.batch.channel import DataChannel
from torchx.schedulers.aws.client import Clients, call_once
from torchx.schedulers.aws.errors import AwsError
from torchx.schedulers.kit.inside import STDERR, STDOUT, Tty, described, not_running
from torchx.schedulers.kit.inside.marks import MarkedProcess, kill_words
from torchx.schedulers.kit.shell import quote, read_script
from torchx.specs.api import AppState

_Object = dict[str, Any]
_Task = tuple[str, str]  # ECS cluster, id of the task

_BOOT = (
    """sh -c 'stty raw -echo && echo %s@ && read -r n && eval "$(dd bs="$n" count=1 iflag=fullblock 2>/dev/null)"'"""
)
"""The command given to ECS Exec, whose length has an undocumented limit: it reads the script from the terminal."""
_FRAMES = """\
exec 3<&0 </dev/null
frames() {
  exec <&3 3<&- 2>/dev/null
  trap '' INT TERM HUP QUIT USR1 USR2
  while read -r size && [ "$size" -gt 0 ]; do dd bs="$size" count=1 iflag=fullblock 2>/dev/null || exit; done
}
trap : INT TERM HUP QUIT USR1 USR2
{ frames & exec 3<&-; } | { exec 3<&-; exec "$@"; }
"""
"""Decodes stdin, whose end the connection cannot signal: each piece follows its length and a line end; 0 is the end."""
_FRAME = 1 << 16
_START_S, _END_S = 60.0, 10.0
_NOT_OPEN = frozenset(["TargetNotConnectedException", "InvalidParameterException"])


def task_of(clients: Clients, job: _Object | None, replica: tuple[str, str, int]) -> _Task:
    """The ECS task of a running ``replica`` (app id, role, number). ``job`` describes its job, or its task in a sweep.

    Raises:
        NotFoundError: the replica does not exist, or does not run.
        NotSupportedError: it was submitted without ECS Exec.
    """
    app_id, role, k = replica
    if job is None:
        raise described(None, app_id, role, k)
    index = k if (job.get("arrayProperties") or {}).get("index") is None else 0  # in an array, k is the task's number
    group = next((g for g in answers.groups(job) if g.name == role and g.first + index <= g.last), None)
    node = job
    if group is not None and job.get("nodeProperties"):
        name = f"{job['jobId']}#{group.first + index}"
        node = calls.details(clients.client("batch"), [name]).get(name) or {}
    state = answers.state_of(job)
    state = answers.state_of(node) if state is AppState.RUNNING else state
    if group is None or state is not AppState.RUNNING:
        raise not_running(app_id, role, k, str(state if group else AppState.UNKNOWN))
    if not group.container.get("enableExecuteCommand"):
        raise NotSupportedError(
            f"replica {role}/{k} of `{app_id}` cannot be entered: its job was submitted without ECS Exec",
            hint="submit it with `-cfg execute_command=true,job_role_arn=ARN`; the role needs `ssmmessages:*`",
        )
    arn = str((node.get("container") or {}).get("taskArn") or "")
    # https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-account-settings.html#ecs-resource-ids
    found = re.search(r":task/([^/]+)/([^/]+)$", arn)
    if found is None:
        raise not_running(app_id, role, k, str(AppState.PENDING))
    return found[1], found[2]


class TaskProcess(MarkedProcess):
    """A command in a task. ECS Exec has only a terminal: ``inside.sh`` adds separate streams and an exit code."""

    def __init__(self, clients: Clients, task: _Task, argv: Sequence[str], tty: Tty | None) -> None:
        super().__init__(tty)
        self._clients, (self._cluster, self._task) = clients, task
        self._rest = b""
        self._decoded: list[tuple[int, bytes]] = []
        self._startup_output = b""
        words = self._mark.words(argv) if self._tty else self._mark.words(argv, _FRAMES)
        first = " ".join(map(quote, [self._mark.text, "yes" if tty else "no", *words[4:]]))
        start = f"torchx_start() {{\n{words[2]}\n}}"
        script = f"set -- {first}\n{start}\n{read_script(__file__, 'inside.sh')}".encode()
        self._link: DataChannel = self._open(_BOOT % self._mark.text)
        try:
            self._await(f"{self._mark.text}@\n".encode())
            self._link.write(b"%d\n%s" % (len(script), script))
        except BaseException:
            self._link.close()
            raise

    def _open(self, command: str) -> DataChannel:
        """Opens a session that runs a command."""
        by_hand = f"`aws ecs execute-command --cluster {self._cluster} --task {self._task}"
        by_hand += " --interactive --command sh`"
        try:
            session = call_once(
                self._clients.client("ecs", retries=False),
                "execute_command",
                f"task `{self._task}` cannot be entered",
                cluster=self._cluster,
                task=self._task,
                interactive=True,
                command=command,
            )["session"]
            return DataChannel(session, by_hand)
        except AwsError as e:
            if e.code not in _NOT_OPEN:
                raise
            hint = "the agent connects some seconds after the start, if the role of the job may use `ssmmessages:*`"
            raise AwsError(str(e), code=e.code, hint=f"{hint}; by hand: {by_hand}") from None
        except ImportError:
            raise MissingDependencyError(
                "this needs the package `websocket-client`, which is not installed", hint=install_extra("aws")
            ) from None

    def _await(self, prompt: bytes) -> None:
        """Discards output up to the prompt of :data:`_BOOT`, which then waits for the script."""
        deadline = time.monotonic() + _START_S
        while prompt not in self._rest:
            data = self._link.read(max(deadline - time.monotonic(), 0))
            if not data:
                raise self._failed()
            self._rest += data
        self._rest = b""

    def _failed(self) -> BackendError:
        """The error for a script that did not start."""
        output = (self._startup_output + self._rest).decode("utf-8", "replace").strip() or self._link.closing_message
        return BackendError(
            f"the command could not be started in task `{self._task}`{f': {output}' if output else ''}",
            hint="the image needs sh, stty, dd, base64, sed and tr",
        )

    def write(self, data: bytes) -> None:
        if self._tty:
            self._link.write(data)
            return
        for begin in range(0, len(data), _FRAME):
            self._link.write(_frame(data[begin : begin + _FRAME]))

    def _end_stdin(self) -> None:
        self._link.write(_frame(b""))

    def _piece(self) -> tuple[int, bytes] | None:
        while not self._decoded:
            data = b"" if self._mark.code is not None else self._link.read()
            if not data:
                self._over = self._link.ended
                return None
            self._decode(data)
        return self._decoded.pop(0)

    def _decode(self, data: bytes) -> None:
        """Decodes output. Without a terminal it has lines of Base64, each after the number of its stream."""
        if self._tty:
            self._decoded.append((STDOUT, data))
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            stream, text = (STDOUT, line[1:]) if line[:1] == b"1" else (STDERR, line[1:])
            if line.startswith(self._mark.text.encode()):
                self._decoded.append((STDERR, line + b"\n"))
            elif line[:1] not in (b"1", b"2"):
                self._startup_output += line + b"\n"
            elif self._decoded and self._decoded[-1][0] == stream:
                self._decoded[-1] = (stream, self._decoded[-1][1] + binascii.a2b_base64(text))
            else:
                self._decoded.append((stream, binascii.a2b_base64(text)))

    def resize(self, columns: int, rows: int) -> None:
        self._mark.once_known(lambda _: self._link.resize(columns, rows))

    def _signal(self, who: str, number: int | None) -> None:
        other = self._open(" ".join(map(quote, kill_words(who, number))))
        deadline = time.monotonic() + _END_S
        while other.read(max(deadline - time.monotonic(), 0)):
            pass  # wait until `kill` has ended
        other.close()

    def wait(self) -> int:
        if self._mark.code is not None:
            return self._mark.code
        if not self._link.ended:
            raise BackendError(
                f"the connection to task `{self._task}` was lost", hint="the command may go on inside the replica"
            )
        if not self._mark.who:
            raise self._failed()
        return 128 + signal.SIGKILL  # it was killed from outside


def _frame(data: bytes) -> bytes:
    """Encodes a piece of stdin for :data:`_FRAMES`; an empty piece is the end.

    >>> _frame(b"abc"), _frame(b"")
    (b'3\\nabc', b'0\\n')
    """
    return b"%d\n%s" % (len(data), data)
