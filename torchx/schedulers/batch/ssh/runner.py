"""Runs the commands of a backend on a login node over OpenSSH, with nothing but a POSIX shell there.

All commands share one connection (:mod:`torchx.schedulers.batch.ssh.master`). Keys, agent, jumps and prompts for a
second factor are those of the user's ``ssh``.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from torchx.errors import CommandError, TransientError
from torchx.schedulers.batch.ssh.errors import ConnectionLostError, UnreachableError, login_error, no_master, no_session
from torchx.schedulers.batch.ssh.master import Master, c_locale
from torchx.schedulers.batch.ssh.once import run_once
from torchx.schedulers.batch.ssh.script import Answer, command_line, enclose, join, parse
from torchx.schedulers.kit.commands import Completed, ConnectedRunner, last_line
from torchx.schedulers.kit.shell import quote
from torchx.util.notices import logger

COMMAND_S = 120.0
"""Default time limit of a command."""

_PROBE_S = 10.0
BUSY_S = 20.0
"""For how long a login node that is at its limit of sessions is asked for another one."""

_MOST_RELOGINS = 2
_NOT_FOUND, SSH_FAILED = 127, 255
_PROBE = "true"

# `sshd` does not start a login shell, but many sites put their scheduler into PATH in /etc/profile.d. A login shell may
# take seconds, so its PATH is read only if the program is missing.
_FIND = """\
if ! command -v {program} >/dev/null 2>&1; then
  for torchx_shell in "$SHELL" bash sh; do
    torchx_path=$("$torchx_shell" -lc env </dev/null 2>/dev/null | sed -n 's/^PATH=//p' | tail -n 1)
    if [ -n "$torchx_path" ] && (PATH=$torchx_path; command -v {program}) >/dev/null 2>&1; then
      PATH=$torchx_path; export PATH; break
    fi
  done
fi
"""


class SSHCommandRunner(ConnectedRunner):
    """Runs commands on a login node. Thread-safe.

    Args:
        target: ``host``, ``user@host``, a ``Host`` of ``~/.ssh/config``, or ``ssh://user@host:port``.
        folder: torchx's own folder there; relative paths and ``~`` start at the home folder. Empty: ``$TORCHX_HOME``
            there, or else ``~/.torchx``.

    Raises:
        ConfigError: ``target`` is not a valid host.
    """

    def __init__(self, target: str, folder: str = "") -> None:
        self.target = target
        self.folder = _word_of(folder)
        """torchx's own folder, as a shell word."""
        self.master = Master(target)
        self._was_up = False
        self._mark = f"torchx-{os.urandom(8).hex()}:"

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Runs ``argv`` to completion, without a terminal and in the C locale, so that its output can be parsed.

        Args:
            timeout: seconds; None: :data:`COMMAND_S`.

        Returns:
            The command's own exit code; 128 plus the number of the signal that killed it.

        Raises:
            CommandError: the program does not exist.
            ConnectionLostError: the connection broke; whether the command ran is unknown.
            TransientError: no answer in time, or the login node cannot be reached at the moment.
            LoginError: the login node rejects the login.
        """
        words = list(argv)
        script = _find(words[0]) + join(words)
        answer = self.script(
            script, stdin=stdin.encode("utf-8", "surrogateescape"), timeout=timeout, what=f"`{words[0]}`"
        )
        return self._found(Completed(words, answer.returncode or 0, _text(answer.stdout), _text(answer.stderr)))

    def run_once(self, argv: Sequence[str], *, token: str, stdin: str = "", timeout: float | None = None) -> Completed:
        """Runs ``argv`` at most once per token; see :func:`torchx.schedulers.batch.ssh.once.run_once`."""
        timeout_s = COMMAND_S if timeout is None else timeout
        find = _find(argv[0])
        return self._found(run_once(self, argv, token=token, find=find, stdin=stdin, timeout=timeout_s))

    def script(
        self,
        script: str,
        *,
        stdin: bytes | BinaryIO = b"",
        timeout: float | None = None,
        patience: float = 0.0,
        what: str = "a script",
    ) -> Answer:
        """Runs a POSIX shell script to completion; the exit code in the answer is never None.

        Args:
            stdin: its input; a file is read from the beginning.
            timeout: time limit of one attempt, seconds; None: :data:`COMMAND_S`.
            patience: for how many seconds a lost connection is retried. The script may run twice then.
            what: name of the script in errors.

        Raises:
            BackendError: see :meth:`run`.
        """
        timeout_s = COMMAND_S if timeout is None else timeout
        patient_until, pause = 0.0, 0.25
        while True:
            try:
                answer = self._attempt(script, stdin, timeout_s, what)
            except (ConnectionLostError, UnreachableError) as e:
                now = time.monotonic()
                patient_until = patient_until or now + patience
                lost = isinstance(e, ConnectionLostError)
                self._was_up = self._was_up or lost
                # Do not retry a login node that was never reached: most likely it is misspelt.
                if not self._was_up or now + pause > patient_until:
                    raise
                if pause == 0.25:  # the first time
                    message = (
                        f"the connection to `{self.target}` was lost, trying again" if lost else f"{e}; trying again"
                    )
                    logger("torchx.ssh").warning(message)
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
            else:
                self._was_up = True
                return answer

    def session(self, argv: Sequence[str], *, tty: bool) -> tuple[list[str], bytes, str]:
        """The ``ssh`` command that runs ``argv`` with connected streams.

        Returns:
            Its command line, the first bytes of its input, and the mark that precedes each stream of output.

        Raises:
            BackendError: the login node cannot be reached, or rejects the login.
        """
        self.master.ensure()
        begin = f"printf %s {self._mark}" + ("" if tty else f"; printf %s {self._mark} >&2")
        line, first = command_line(f"{_find(argv[0])}{begin}\nexec {join(argv)}")
        ssh, *words = self.master.session()
        return [ssh, *(["-tt"] if tty else []), *words, line], first, self._mark

    def lost(self, noise: str, code: int, what: str, *, began: bool) -> Exception:
        """The error for a failed session.

        Args:
            noise: output of ``ssh`` itself.
            what: name of the command.
            began: whether the command is known to have started.
        """
        return self._error(Answer(None, b"", b"", noise, began=began), code, what)

    def _attempt(self, script: str, stdin: bytes | BinaryIO, timeout_s: float, what: str) -> Answer:
        """Runs the script once. It is retried only if it cannot have started."""
        started = time.monotonic()
        relogins, pause = 0, 0.1
        self.master.ensure()
        while True:
            answer, code = self._session(script, stdin, timeout_s, what)
            if answer.returncode is not None:
                return answer
            if no_session(answer.noise) and time.monotonic() < started + min(BUSY_S, timeout_s):
                time.sleep(pause)
                pause = min(pause * 2, 2.0)
            elif no_master(answer.noise) and relogins < _MOST_RELOGINS:
                relogins += 1
                self.master.login()
            else:
                raise self._error(answer, code, what)

    def _session(self, script: str, stdin: bytes | BinaryIO, timeout_s: float, what: str) -> tuple[Answer, int]:
        line, first = command_line(enclose(script, self._mark))
        if isinstance(stdin, bytes):
            given: dict[str, Any] = {"input": first + stdin}
        else:
            stdin.seek(0)
            given = {"input": first + stdin.read()} if first else {"stdin": stdin}
        try:
            done = subprocess.run(
                [*self.master.session(), line],
                capture_output=True,
                timeout=timeout_s,
                check=False,
                env=c_locale(),
                **given,
            )
        except subprocess.TimeoutExpired as e:
            raise self._late(timeout_s, what) from e
        except OSError as e:
            raise CommandError(f"`ssh` cannot be started: {e}", argv=["ssh", self.target], returncode=126) from e
        return parse(self._mark, done.stdout, done.stderr), done.returncode

    def _late(self, timeout_s: float, what: str) -> TransientError:
        """The error for a timeout: the command may be slow, or the connection dead."""
        late = TransientError(f"{what} did not end within {timeout_s:g} s on `{self.target}`")
        if what == _PROBE or self._answers():
            return late
        self.master.abandon()
        return ConnectionLostError(
            f"`{self.target}` stopped answering during {what}", hint="check the network or the VPN"
        )

    def _found(self, done: Completed) -> Completed:
        """The answer, if the program exists."""
        if done.returncode != _NOT_FOUND or "not found" not in done.stderr:
            return done
        program = done.argv[0]
        raise CommandError(
            f"`{program}` is not installed on `{self.target}`, or not on PATH there",
            argv=done.argv,
            returncode=_NOT_FOUND,
            stderr=done.stderr,
            hint=f"`ssh {self.target} command -v {quote(program)}` must find it: set PATH in ~/.bashrc there",
        )

    def _answers(self) -> bool:
        """Whether the connection still works, so that only the command is slow."""
        try:
            answer, _ = self._session("true", b"", _PROBE_S, _PROBE)
        except TransientError:
            return False
        return answer.returncode == 0 or no_session(answer.noise)

    def _error(self, answer: Answer, code: int, what: str) -> Exception:
        noise = answer.noise
        if no_session(noise):
            return TransientError(
                f"`{self.target}` accepts no further session on its connection: {what} was not started",
                hint="its sshd limits sessions per connection (MaxSessions); end a `torchx log --follow`, or try again",
            )
        if no_master(noise):
            return login_error(self.target, noise)
        if code != SSH_FAILED and not answer.began:  # ssh succeeded, but the script never started
            return CommandError(
                f"the login shell of `{self.target}` does not run commands: {last_line(noise, f'exit code {code}')}",
                argv=["ssh", self.target],
                returncode=code,
                stderr=noise,
                hint=f"`ssh {self.target} true` must end with exit code 0",
            )
        return ConnectionLostError(f"the connection to `{self.target}` was lost during {what}", hint="try again")


def _word_of(folder: str) -> str:
    r"""A folder as a shell word.

    >>> _word_of("~/my jobs"), _word_of("/scratch")
    ('"$HOME"/\'my jobs\'', '/scratch')
    """
    if not folder:
        return '"${TORCHX_HOME:-$HOME/.torchx}"'
    if folder.startswith("/"):
        return quote(folder)
    return f'"$HOME"/{quote(folder.removeprefix("~").lstrip("/") or ".")}'


def _find(program: str) -> str:
    return "" if "/" in program else _FIND.format(program=quote(program))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
