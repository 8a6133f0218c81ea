"""Runs a process inside the container of a Batch job, through ECS Exec and AWS's own client for its sessions.

https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-exec.html
"""

from __future__ import annotations

import binascii
import json
import re
import shutil
from collections.abc import Sequence
from typing import Any

from torchx.errors import BackendError, NotSupportedError
from torchx.schedulers.aws.batch import answers
from torchx.schedulers.aws.batch import client as calls
from torchx.schedulers.aws.client import Clients, call, call_once
from torchx.schedulers.aws.errors import AwsError
from torchx.schedulers.kit.inside import STDERR, STDOUT, Tty, described, not_running
from torchx.schedulers.kit.inside.marks import MarkedProcess, kill_words
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.schedulers.kit.shell import quote, read_script
from torchx.specs.api import AppState

_Object = dict[str, Any]
_Task = tuple[str, str]  # ECS cluster, id of the task

_PLUGIN = "session-manager-plugin"
_RAW = 'stty raw -echo; exec "$@"'
_BOOT = (
    """sh -c 'stty raw -echo && echo %s@ && read -r n"""
    """ && eval "$(dd bs="$n" count=1 iflag=fullblock 2>/dev/null | base64 -d)"'"""
)
"""The command given to ECS Exec, whose length has an undocumented limit: it reads the script from the terminal."""
_FRAMES = """\
exec 3<&0 </dev/null
frames() {
  exec <&3 3<&- 2>/dev/null
  trap '' INT TERM HUP QUIT USR1 USR2
  while read -r size && [ "$size" -gt 0 ]; do dd bs="$size" count=1 iflag=fullblock | base64 -d || exit; done
}
trap : INT TERM HUP QUIT USR1 USR2
{ frames & exec 3<&-; } | { exec 3<&-; exec "$@"; }
"""
"""Decodes stdin, whose end and control characters a terminal takes for itself: each piece is Base64 after its length
and a line end; 0 is the end."""
_FRAME = 3 << 14
_START_S, _END_S = 60.0, 10.0
_GREETING = re.compile(r"(?i)(start|exit)ing session with sessionid: .*")
_NOT_OPEN = frozenset(["TargetNotConnectedException", "InvalidParameterException"])


def task_of(clients: Clients, job: _Object | None, replica: tuple[str, str, int]) -> _Task:
    """Return the ECS task of a running ``replica`` (app id, role, number). ``job`` describes its job, or its task in a
    sweep.

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
    """A command in a task. ECS Exec has only a terminal: ``inside.sh`` adds separate streams and an exit code.

    AWS's client needs a terminal on this side, too, and ends with its stdin.
    """

    def __init__(self, clients: Clients, task: _Task, argv: Sequence[str], tty: Tty | None) -> None:
        super().__init__(tty)
        if shutil.which(_PLUGIN) is None:
            raise NotSupportedError(
                f"task `{task[1]}` cannot be entered: `{_PLUGIN}`, AWS's client for it, is not on PATH",
                hint="install it: https://docs.aws.amazon.com/systems-manager/latest/userguide/"
                "session-manager-working-with-install-plugin.html",
            )
        self._clients, (self._cluster, self._task) = clients, task
        self._rest = b""
        self._decoded: list[tuple[int, bytes]] = []
        self._startup_output = b""
        self._started = False
        words = self._mark.words(argv) if self._tty else self._mark.words(argv, _FRAMES)
        first = " ".join(map(quote, [self._mark.text, "yes" if tty else "no", *words[4:]]))
        start = f"torchx_start() {{\n{words[2]}\n}}"
        script = f"set -- {first}\n{start}\n{read_script(__file__, 'inside.sh')}".encode()
        self._link: SpawnedProcess = self._open(_BOOT % self._mark.text, tty or Tty())
        try:
            self._await(f"{self._mark.text}@".encode())
            self._link.write(_frame(script))
        except BaseException:
            self._link.close()
            raise

    def _open(self, command: str, tty: Tty) -> SpawnedProcess:
        """Open a session that runs a command, in AWS's client: a command line like that of AWS's own CLI."""
        ecs, doing = self._clients.client("ecs", retries=False), f"task `{self._task}` cannot be entered"
        asked: _Object = {"cluster": self._cluster, "task": self._task, "interactive": True, "command": command}
        try:
            answer = call_once(ecs, "execute_command", doing, **asked)
        except AwsError as e:
            if e.code not in _NOT_OPEN:
                raise
            by_hand = f"`aws ecs execute-command --cluster {self._cluster} --task {self._task}"
            by_hand += " --interactive --command sh`"
            hint = "the agent connects some seconds after the start, if the role of the job may use `ssmmessages:*`"
            raise AwsError(str(e), code=e.code, hint=f"{hint}; by hand: {by_hand}") from None
        tasks = call(ecs, "describe_tasks", doing, cluster=self._cluster, tasks=[self._task]).get("tasks") or ()
        name, containers = answer.get("containerName"), [c for t in tasks for c in t.get("containers") or ()]
        runtime = next((str(c.get("runtimeId")) for c in containers if c.get("name") == name), "")
        target = f"ecs:{self._cluster}_{self._task}_{runtime}"
        words = [json.dumps(answer["session"]), ecs.meta.region_name, "StartSession", self._clients.profile]
        words += [json.dumps({"Target": target}), self._clients.client("ssm").meta.endpoint_url]
        return SpawnedProcess(["sh", "-c", _RAW, "sh", _PLUGIN, *words], tty=tty)

    def _await(self, prompt: bytes) -> None:
        """Discards output up to the prompt of :data:`_BOOT`, which then waits for the script."""
        self._link.settimeout(_START_S)
        while re.search(re.escape(prompt) + rb"\r*\n", self._rest) is None:
            found = self._link.read()
            if found is None:
                raise self._failed()
            self._rest += found[1]
        self._link.settimeout(None)
        self._rest = b""

    def _failed(self) -> BackendError:
        """Return the error for a script that did not start."""
        output = (self._startup_output + self._rest).decode("utf-8", "replace")
        output = " ".join(_GREETING.sub("", output).split())
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
            found = None if self._mark.code is not None else self._link.read()
            if found is None:
                return None
            self._decode(found[1])
        return self._decoded.pop(0)

    def _decode(self, data: bytes) -> None:
        """Decode output. Without a terminal it has lines of Base64, each after the number of its stream."""
        if self._tty:
            self._decoded.append((STDOUT, data))
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(self._mark.text.encode()):
                self._decoded.append((STDERR, line + b"\n"))
            elif line[:1] in (b"1", b"2"):  # STDOUT, STDERR
                self._started = True
                self._decoded.append((int(line[:1]), binascii.a2b_base64(line[1:])))
            else:
                self._startup_output += line + b"\n"

    def resize(self, columns: int, rows: int) -> None:
        self._mark.once_known(lambda _: self._link.resize(columns, rows))

    def _signal(self, who: str, number: int | None) -> None:
        try:
            other = self._open(" ".join(map(quote, kill_words(who, number))), Tty())
        except BackendError:
            if number is None:
                return  # the container may have ended, too
            raise
        other.settimeout(_END_S)
        while other.read() is not None:
            pass  # wait until `kill` has ended
        other.close()

    def wait(self) -> int:
        if self._mark.code is not None:
            return self._mark.code
        if not self._mark.who and not self._started:
            raise self._failed()
        raise BackendError(
            f"the connection to task `{self._task}` was lost before the command's exit code was known",
            hint="the command may go on inside the replica; if the replica has ended, `torchx status` shows it",
        )


def _frame(data: bytes) -> bytes:
    """Encode a piece of stdin for :data:`_FRAMES`; an empty piece is the end.

    >>> _frame(b"abc"), _frame(b"")
    (b'4\\nYWJj', b'0\\n')
    """
    text = binascii.b2a_base64(data, newline=False)
    return b"%d\n%s" % (len(text), text)
