"""Runs the commands of a backend on a login node over OpenSSH, with nothing but a POSIX shell there.

All commands share one connection (:mod:`torchx.schedulers.batch.ssh.master`). Keys, agent, jumps and prompts for a
second factor are those of the user's ``ssh``.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any, BinaryIO

from torchx.errors import CommandError, TransientError
from torchx.schedulers.batch.ssh.errors import ConnectionLostError, UnreachableError, login_error, no_master, no_session
from torchx.schedulers.batch.ssh.master import Master, c_locale
from torchx.schedulers.batch.ssh.script import Answer, command_line, enclose, join, parse
from torchx.schedulers.kit.commands import Completed, ConnectedRunner, last_line, program_of
from torchx.schedulers.kit.shell import quote
from torchx.util.notices import logger

COMMAND_S = 120.0
"""Default time limit of a command."""

_PROBE_S = 10.0
BUSY_S = 20.0
"""For how long a login node that is at its limit of sessions is asked for another one."""

_MAX_RELOGINS = 2
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

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,200}")
ONCE_PATIENCE_S = 60.0
"""For how long a connection that was lost by :meth:`SSHCommandRunner.run_once` is retried, seconds."""

_KEPT_DAYS = 14
_LOOK = "ask the scheduler with `torchx list -s ...` before you submit it again"
_DONE, _UNKNOWN, _SHORT = "done", "unknown", "short"

# `mkdir` is atomic on every file system, NFS included. The shell that creates `lock` starts the command; nothing ever
# removes the lock. The command starts only if its input is complete: the size is checked, because a lost connection
# looks like end of file. Each shell has its own file: after a lost connection two of them may run.
_ONCE = """\
umask 077
top=@FOLDER@/submissions
d=$top/@TOKEN@
mkdir -p "$d" || exit 1
find "$top" -mindepth 1 -maxdepth 1 -mtime +@DAYS@ -exec rm -rf {} + 2>/dev/null
in=$d/in.@ATTEMPT@.$$
cat > "$in" || exit 1
if [ "$(wc -c < "$in")" -ne @SIZE@ ]; then rm -f "$in"; echo @SHORT@; exit 0; fi
ticks=@TICKS@
if [ ! -e "$d/code" ] && mkdir "$d/lock" 2>/dev/null; then
@FIND@
  ( trap '' HUP INT PIPE
    cd "$HOME"
    ( @COMMAND@ ) < "$in" > "$d/out" 2> "$d/err"
    echo $? > "$d/code.new"; mv "$d/code.new" "$d/code" ) < /dev/null > /dev/null 2>&1 &
fi
while [ ! -e "$d/code" ] && [ "$ticks" -gt 0 ]; do
  ticks=$((ticks - 1)); sleep 0.1 2>/dev/null || { sleep 1; ticks=$((ticks - 9)); }
done
rm -f "$in"
if [ -e "$d/code" ]; then echo "@DONE@ $(cat "$d/code")"; cat "$d/out"; cat "$d/err" >&2; else echo @UNKNOWN@; fi
"""


class SSHCommandRunner(ConnectedRunner):
    """Runs commands on a login node. Thread-safe.

    Args:
        target: ``host``, ``user@host``, a ``Host`` of ``~/.ssh/config``, or ``ssh://user@host:port``.
        folder: torchx's own folder there; relative paths and ``~`` start at the home folder. Empty: ``$TORCHX_HOME``
            there, or else ``~/.torchx``.
        before: lines of shell to run before each command.

    Raises:
        ConfigError: ``target`` is not a valid host.
    """

    def __init__(self, target: str, folder: str = "", *, before: str = "") -> None:
        self.target = target
        self._before = before
        self.folder = _word_of(folder)
        """torchx's own folder, as a shell word."""
        self.master = Master(target)
        self._was_up = False
        self._mark = f"torchx-{os.urandom(8).hex()}:"

    def run(self, argv: Sequence[str], *, stdin: str = "", timeout: float | None = None) -> Completed:
        """Run ``argv`` to completion, without a terminal and in the C locale, so that its output can be parsed.

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
        program = program_of(words)
        script = self._before + _find(program) + join(words)
        answer = self.script(
            script, stdin=stdin.encode("utf-8", "surrogateescape"), timeout=timeout, what=f"`{program}`"
        )
        return self._found(Completed(words, answer.returncode or 0, _text(answer.stdout), _text(answer.stderr)))

    def run_once(self, argv: Sequence[str], *, token: str, stdin: str = "", timeout: float | None = None) -> Completed:
        """Run ``argv`` unless it ran with this token before; return the answer of its only run.

        The command runs independently of the connection and stores its answer in a folder named by the token, where a
        later call with that token waits for it.

        Args:
            token: unique; letters, digits, ``_``, ``.`` and ``-``.
            timeout: seconds to wait for the command, in each attempt; None: :data:`COMMAND_S`.

        Raises:
            CommandError: the program does not exist, or the answer cannot be stored, so nothing was started.
            TransientError: whether the command ran is unknown.
        """
        timeout_s, program = COMMAND_S if timeout is None else timeout, program_of(argv)
        if not _TOKEN.fullmatch(token):
            raise CommandError(f"`{token}` cannot name a submission", argv=[*argv])
        data = stdin.encode("utf-8", "surrogateescape")
        parts = {
            "FOLDER": self.folder,
            "TOKEN": quote(token),
            "DAYS": str(_KEPT_DAYS),
            "ATTEMPT": os.urandom(4).hex(),
            "SIZE": str(len(data)),
            "TICKS": str(int(timeout_s * 10)),
            "DONE": _DONE,
            "UNKNOWN": _UNKNOWN,
            "SHORT": _SHORT,
            "FIND": self._before + _find(program),
            "COMMAND": join(argv),
        }
        script = re.sub("@([A-Z]+)@", lambda m: parts[m[1]], _ONCE)
        try:
            answer = self.script(
                script, stdin=data, timeout=timeout_s + 30, patience=ONCE_PATIENCE_S, what=f"`{program}`"
            )
        except (ConnectionLostError, UnreachableError) as e:
            raise TransientError(f"whether `{program}` was run is not known: {e}", hint=_LOOK) from e
        said = _text(answer.stderr)
        head, _, rest = _text(answer.stdout).partition("\n")
        state, _, code = head.partition(" ")
        if state == _DONE and code.isdigit():
            return self._found(Completed([*argv], int(code), rest, said))
        if state == _UNKNOWN:
            raise TransientError(
                f"`{program}` on `{self.target}` was started and has not answered within {timeout_s:.0f} s", hint=_LOOK
            )
        reason = "its input was cut short" if state == _SHORT else last_line(said, "it said nothing")
        raise CommandError(f"`{program}` was not started on `{self.target}`: {reason}", argv=[*argv], stderr=said)

    def script(
        self,
        script: str,
        *,
        stdin: bytes | BinaryIO = b"",
        timeout: float | None = None,
        patience: float = 0.0,
        what: str = "a script",
    ) -> Answer:
        """Run a POSIX shell script to completion; the exit code in the answer is never None.

        Args:
            stdin: its input; a file is read from the beginning.
            timeout: time limit of one attempt, seconds; None: :data:`COMMAND_S`.
            patience: for how many seconds a lost connection is retried. The script may run twice then.
            what: name of the script in errors, which are those of :meth:`run`.
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
        """Return the ``ssh`` command that runs ``argv`` with connected streams, the first bytes of its input, and the
        mark that precedes each stream of output. Raises BackendError if the login node is unreachable, or rejects it.
        """
        self.master.ensure()
        begin = f"printf %s {self._mark}" + ("" if tty else f"; printf %s {self._mark} >&2")
        line, first = command_line(f"{self._before}{_find(program_of(argv))}{begin}\nexec {join(argv)}")
        ssh, *words = self.master.session()
        return [ssh, *(["-tt"] if tty else []), *words, line], first, self._mark

    def lost(self, noise: str, code: int, what: str, *, began: bool) -> Exception:
        """Return the error for a session with this output of ``ssh`` itself; ``began``:
        the command has surely started.
        """
        if no_session(noise):
            return TransientError(
                f"`{self.target}` accepts no further session on its connection: {what} was not started",
                hint="its sshd limits sessions per connection (MaxSessions); end a `torchx log --follow`, or try again",
            )
        if no_master(noise):
            return login_error(self.target, noise)
        if code != SSH_FAILED and not began:  # ssh succeeded, but the script never started
            return CommandError(
                f"the login shell of `{self.target}` does not run commands: {last_line(noise, f'exit code {code}')}",
                argv=["ssh", self.target],
                returncode=code,
                stderr=noise,
                hint=f"`ssh {self.target} true` must end with exit code 0",
            )
        return ConnectionLostError(f"the connection to `{self.target}` was lost during {what}", hint="try again")

    def _attempt(self, script: str, stdin: bytes | BinaryIO, timeout_s: float, what: str) -> Answer:
        """Run the script once. It is retried only if it cannot have started."""
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
            elif no_master(answer.noise) and relogins < _MAX_RELOGINS:
                relogins += 1
                self.master.login()
            else:
                raise self.lost(answer.noise, code, what, began=answer.began)

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
        """Return the error for a timeout: the command may be slow, or the connection dead."""
        late = TransientError(f"{what} did not end within {timeout_s:g} s on `{self.target}`")
        if what == _PROBE or self._answers():
            return late
        self.master.abandon()
        return ConnectionLostError(
            f"`{self.target}` stopped answering during {what}", hint="check the network or the VPN"
        )

    def _found(self, done: Completed) -> Completed:
        """Return the answer, if the program exists."""
        if done.returncode != _NOT_FOUND or "not found" not in done.stderr:
            return done
        program = program_of(done.argv)
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


def _word_of(folder: str) -> str:
    r"""Return a folder as a shell word.

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
