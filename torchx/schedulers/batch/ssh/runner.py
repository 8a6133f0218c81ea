"""Runs the commands of a backend on a login node, over OpenSSH; nothing but a POSIX shell is needed there.

All commands share one connection (:mod:`torchx.schedulers.batch.ssh.master`). ``ssh`` as the user has set it up does
the rest: keys, agent, jumps and questions for a second factor are its own.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from torchx.errors import CommandError, TransientError
from torchx.schedulers.batch.ssh.errors import ConnectionLostError, UnreachableError, login_error, no_master, no_session
from torchx.schedulers.batch.ssh.master import Master
from torchx.schedulers.batch.ssh.once import run_once
from torchx.schedulers.batch.ssh.script import Answer, command_line, enclose, join, parse
from torchx.schedulers.kit.commands import Completed, ConnectedRunner, last_line
from torchx.schedulers.kit.shell import quote
from torchx.util.notices import logger

COMMAND_S = 120.0
"""How long a command may take when its caller does not say."""

_PROBE_S = 10.0
_BUSY_S = 20.0  # how long a login node is asked for one more session
_MOST_RELOGINS = 2
_NOT_FOUND, _SSH_FAILED = 127, 255
_PROBE = "true"

# `sshd` starts a shell that is no login shell: many sites put their scheduler into PATH in /etc/profile.d. Only where
# the program is missing is the login shell asked for its PATH, for that may take seconds.
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
    """Runs commands on a login node. Threads may share it.

    Args:
        target: ``host``, ``user@host``, a ``Host`` of ``~/.ssh/config``, or ``ssh://user@host:port``.
        folder: torchx's own folder there; ``~`` stands for the home folder, to which it is relative. When empty:
            ``$TORCHX_HOME`` if that is set there, else ``~/.torchx``.

    Raises:
        ConfigError: ``target`` cannot be the name of a host.
    """

    def __init__(self, target: str, folder: str = "") -> None:
        self.target = target
        self.folder = _word_of(folder)
        """torchx's own folder, as a word of a script."""
        self.master = Master(target)
        self._was_up = False
        self._mark = f"torchx-{os.urandom(8).hex()}:"

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Runs ``argv`` to its end, without a terminal, and in the C locale so that answers can be parsed.

        The exit code is the command's own; a signal that ended it shows as 128 and its number.

        Args:
            timeout: seconds; :data:`COMMAND_S` when None.

        Raises:
            CommandError: the program is not there.
            ConnectionLostError: the connection broke; whether the command ran is not known.
            TransientError: no answer in time, or the login node cannot be reached just now.
            LoginError: the login node does not let us in.
        """
        words = list(argv)
        script = _find(words[0]) + join(words)
        answer = self.script(
            script, stdin=stdin.encode("utf-8", "surrogateescape"), timeout=timeout, what=f"`{words[0]}`"
        )
        return self._found(Completed(words, answer.returncode or 0, _text(answer.stdout), _text(answer.stderr)))

    def run_once(self, argv: Sequence[str], *, token: str, stdin: str = "", timeout: float | None = None) -> Completed:
        """Runs ``argv`` unless it was run with this token before, however often the connection is lost meanwhile.

        The answer is that of the one time it ran, whoever asks and whenever.

        Args:
            token: letters, digits, ``_``, ``.`` and ``-``; unique to what must happen once.
            timeout: seconds that the command itself may take; :data:`COMMAND_S` when None.

        Raises:
            CommandError: it is not there, or there is no place for its answer: nothing was started.
            TransientError: whether it ran is not known, or the login node cannot be reached just now.
        """
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
        """Runs a script of the POSIX shell to its end; its exit code is in the answer, never None.

        Args:
            stdin: what it reads; a file is read from its beginning.
            timeout: seconds of one attempt; :data:`COMMAND_S` when None.
            patience: for how many seconds a connection that was lost is tried again. The script may run twice then.
            what: what it is called in errors.

        Raises:
            BackendError: as :meth:`run`.
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
                # A login node that was never reached is most likely misspelt.
                if not self._was_up or now + pause > patient_until:
                    raise
                if pause == 0.25:  # the first time
                    told = f"the connection to `{self.target}` was lost, trying again" if lost else f"{e}; trying again"
                    logger("torchx.ssh").warning(told)
                time.sleep(pause)
                pause = min(pause * 2, 5.0)
            else:
                self._was_up = True
                return answer

    def session(self, argv: Sequence[str], *, tty: bool) -> tuple[list[str], bytes, str]:
        """The ``ssh`` that runs ``argv`` with its own streams for those of the command.

        Returns:
            Its command line, what it must read first, and the mark behind which each stream of output begins.

        Raises:
            BackendError: the login node cannot be reached, or does not let us in.
        """
        self.master.ensure()
        begin = f"printf %s {self._mark}" + ("" if tty else f"; printf %s {self._mark} >&2")
        line, first = command_line(f"{_find(argv[0])}{begin}\nexec {join(argv)}")
        ssh, *words = self.master.session()
        return [ssh, *(["-tt"] if tty else []), *words, line], first, self._mark

    def lost(self, noise: str, code: int, what: str, *, began: bool) -> Exception:
        """The error for a session that failed.

        Args:
            noise: what ``ssh`` said.
            what: what it was to run.
            began: whether that is known to have been started.
        """
        return self._error(Answer(None, b"", b"", noise, began=began), code, what)

    def _attempt(self, script: str, stdin: bytes | BinaryIO, timeout_s: float, what: str) -> Answer:
        """Runs the script once. It is tried again only where nothing can have been started."""
        started = time.monotonic()
        relogins, pause = 0, 0.1
        self.master.ensure()
        while True:
            answer, code = self._session(script, stdin, timeout_s, what)
            if answer.returncode is not None:
                return answer
            if no_session(answer.noise) and time.monotonic() < started + min(_BUSY_S, timeout_s):
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
                env={**os.environ, "LC_ALL": "C"},
                **given,
            )
        except subprocess.TimeoutExpired as e:
            raise self._late(timeout_s, what) from e
        except OSError as e:
            raise CommandError(f"`ssh` cannot be started: {e}", argv=["ssh", self.target], returncode=126) from e
        return parse(self._mark, done.stdout, done.stderr), done.returncode

    def _late(self, timeout_s: float, what: str) -> TransientError:
        """The error for no answer in time: the command may be slow, or the connection dead."""
        late = TransientError(f"{what} did not end within {timeout_s:g} s on `{self.target}`")
        if what == _PROBE or self._answers():
            return late
        self.master.leave()
        return ConnectionLostError(
            f"`{self.target}` stopped answering during {what}", hint="check the network or the VPN"
        )

    def _found(self, done: Completed) -> Completed:
        """The answer, when the program is there."""
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
        """Whether the connection still works: what is slow may be the command alone."""
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
        if code != _SSH_FAILED and not answer.began:  # ssh is content, and our script was never started
            return CommandError(
                f"the login shell of `{self.target}` does not run commands: {last_line(noise, f'exit code {code}')}",
                argv=["ssh", self.target],
                returncode=code,
                stderr=noise,
                hint=f"`ssh {self.target} true` must end with exit code 0",
            )
        return ConnectionLostError(
            f"the connection to `{self.target}` was lost during {what}",
            hint="try again",
        )


def _word_of(folder: str) -> str:
    r"""A folder as a word of a script.

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
