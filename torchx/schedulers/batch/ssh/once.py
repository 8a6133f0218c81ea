"""A command that runs at most once on a login node, even if the connection is lost.

The command runs independently of the connection and stores its answer in a folder named by a token. A later call with
the same token waits for that answer and starts nothing.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from torchx.errors import CommandError, TransientError
from torchx.schedulers.batch.ssh.errors import ConnectionLostError, UnreachableError
from torchx.schedulers.batch.ssh.script import join
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.shell import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchx.schedulers.batch.ssh.runner import SSHCommandRunner

_TOKEN = re.compile(r"[A-Za-z0-9_.-]{1,200}")
PATIENCE_S = 60.0
"""For how long a lost connection is retried, seconds."""

_KEPT_DAYS = 14
_LOOK = "ask the scheduler with `torchx list -s ...` before you submit it again"
_DONE, _UNKNOWN, _SHORT = "done", "unknown", "short"

# `mkdir` is atomic on every file system, NFS included. The shell that creates `lock` starts the command; nothing ever
# removes the lock. The command starts only if its input is complete: the size is checked, because a lost connection
# looks like end of file. Each shell has its own file: after a lost connection two of them may run.
_SCRIPT = """\
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


def run_once(
    runner: SSHCommandRunner, argv: Sequence[str], *, token: str, find: str, stdin: str = "", timeout: float
) -> Completed:
    """Runs ``argv`` unless it ran with this token before; returns the answer of its only run.

    Args:
        token: unique; letters, digits, ``_``, ``.`` and ``-``.
        find: shell lines that put the program into PATH.
        timeout: seconds to wait for the command, in each attempt.

    Raises:
        CommandError: the answer cannot be stored, so nothing was started.
        TransientError: whether the command ran is unknown.
    """
    if not _TOKEN.fullmatch(token):
        raise CommandError(f"`{token}` cannot name a submission", argv=[*argv])
    data = stdin.encode("utf-8", "surrogateescape")
    parts = {
        "FOLDER": runner.folder,
        "TOKEN": quote(token),
        "DAYS": str(_KEPT_DAYS),
        "ATTEMPT": os.urandom(4).hex(),
        "SIZE": str(len(data)),
        "TICKS": str(int(timeout * 10)),
        "DONE": _DONE,
        "UNKNOWN": _UNKNOWN,
        "SHORT": _SHORT,
        "FIND": find,
        "COMMAND": join(argv),
    }
    script = re.sub("@([A-Z]+)@", lambda m: parts[m[1]], _SCRIPT)
    try:
        answer = runner.script(script, stdin=data, timeout=timeout + 30, patience=PATIENCE_S, what=f"`{argv[0]}`")
    except (ConnectionLostError, UnreachableError) as e:
        raise TransientError(f"whether `{argv[0]}` was run is not known: {e}", hint=_LOOK) from e
    said = answer.stderr.decode("utf-8", "replace")
    head, _, rest = answer.stdout.decode("utf-8", "replace").partition("\n")
    state, _, code = head.partition(" ")
    if state == _DONE and code.isdigit():
        return Completed([*argv], int(code), rest, said)
    if state == _UNKNOWN:
        raise TransientError(
            f"`{argv[0]}` on `{runner.target}` was started and has not answered within {timeout:.0f} s",
            hint=_LOOK,
        )
    reason = "its input was cut short" if state == _SHORT else (said.strip().splitlines() or ["it said nothing"])[-1]
    raise CommandError(f"`{argv[0]}` was not started on `{runner.target}`: {reason}", argv=[*argv], stderr=said)
