"""Files on a login node, accessed through its POSIX shell alone."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping

from torchx.errors import BackendError, ConfigError
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
from torchx.schedulers.batch.ssh.script import Answer
from torchx.schedulers.kit.commands import last_line
from torchx.schedulers.kit.files import MAX_GROWN
from torchx.schedulers.kit.shell import quote

PATIENCE_S = 45.0
"""For how long a lost connection is retried, seconds."""

FOLLOW_PATIENCE_S = 300.0
"""For how long a lost connection is retried while a log is followed, seconds: the user may be on a train."""

_MISSING = 44  # exit code of these scripts
_ONE_WAIT_S = 15.0  # limits how long a script outlives its connection
_MAX_PATHS = 1000  # per command
_MAX_ANSWER = 8 << 20  # bytes per answer

_WRITE = """\
umask 077
if [ -d {path} ]; then echo "it is a folder" >&2; exit 1; fi
if cat > {new} && [ "$(wc -c < {new})" -eq {size} ] && chmod {mode} {new} && mv -f {new} {path}; then exit 0; fi
rm -f {new}
exit 1
"""
_READ = """\
[ -e {path} ] || exit {missing}
if [ -d {path} ]; then echo "it is a folder" >&2; exit 1; fi
exec < {path}
{read}
"""
_NAMES = r"""
cd {folder} 2>/dev/null || {{ [ -d {folder} ] || exit {missing}; cd {folder}; exit 1; }}
for name in * .[!.]* ..?*; do
  if [ -e "$name" ] || [ -L "$name" ]; then printf '%s\0' "$name"; fi
done
"""
# Lines of stdin are `OFFSET PATH`. `wc -c` gets the sizes of any number of regular files without reading them.
_SIZES = """\
IFS='
'
set -f
list=$(cat)
set -- $(printf '%s\\n' "$list" | sed 's/^[-0-9]* //')
sizes() { wc -c -- "$@" 2>/dev/null; }
"""
_GROWN = (
    _SIZES
    + """\
news() {
  { printf '%s\\n' "$list"; echo; sizes "$@"; } | awk '
    !listed && $0 == "" { listed = 1; next }
    { line = $0; sub(/^ +/, "", line); at = index(line, " "); number = substr(line, 1, at - 1) + 0 }
    { path = substr(line, at + 1) }
    !listed { offset[path] = number; place[path] = NR - 1; next }
    path in offset { from = offset[path]; if (from < 0) from = number + from > 0 ? number + from : 0 }
    path in offset && number > from && room > 0 {
      news = number - from; room -= news < most ? news : most
      printf "%d %.0f %s\\n", place[path], from, path
    }' room=@ROOM@ most=@MAX@
}
ticks=@TICKS@
while :; do
  found=$(news "$@")
  if [ -n "$found" ] || [ "$ticks" -le 0 ]; then break; fi
  ticks=$((ticks - 1))
  if [ "$ticks" -ge @SLOW@ ]; then sleep 0.2 2>/dev/null || sleep 1; else sleep 1; fi
done
for line in $found; do
  place=${line%%" "*}; line=${line#*" "}; offset=${line%%" "*}; path=${line#*" "}
  printf '@KEY@%s\\n' "$place"
  tail -c +"$((offset + 1))" -- "$path" | head -c @MAX@
done
"""
)


class RemoteFiles:
    """Files on a login node; the methods are those of :class:`torchx.schedulers.kit.files.LocalFiles`.

    Calls are retried when the connection is lost: all of them are idempotent.
    """

    wait_s: float = 1.0

    def __init__(self, runner: SSHCommandRunner) -> None:
        self._runner = runner
        self._home = ""
        self._torchx_home = ""

    def home(self) -> str:
        self._learn()
        return self._home

    def torchx_home(self, *parts: str) -> str:
        self._learn()
        return os.path.join(self._torchx_home, *parts)

    def cwd(self) -> str:
        return self.home()

    def make_folder(self, path: str) -> None:
        self._script(f"umask 077; mkdir -p -- {quote(_checked(path))}", path, "be made")

    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        new = quote(f"{_checked(path)}.{os.urandom(4).hex()}.new")
        # The script checks the size, because a lost connection looks like end of file.
        script = _WRITE.format(path=quote(path), new=new, size=len(data), mode=f"{mode:04o}")
        self._script(script, path, "be written", stdin=data)

    def read(self, path: str, offset: int = 0, size: int = -1) -> bytes | None:
        read = f"tail -c {f'+{offset + 1}' if offset > 0 else -offset}" if offset else "cat"
        if size >= 0:
            read += f" | head -c {size}"
        script = _READ.format(path=quote(_checked(path)), missing=_MISSING, read=read)
        answer = self._script(script, path, "be read", allowed=(_MISSING,))
        return None if answer.returncode == _MISSING else answer.stdout

    def sizes(self, paths: Iterable[str]) -> dict[str, int | None]:
        """One command per thousand files."""
        found: dict[str, int | None] = dict.fromkeys(map(_checked, paths))
        for batch in _batches([*found]):
            answer = self._script(
                _SIZES + 'sizes "$@"; :', batch[0], "be looked at", stdin=_list(dict.fromkeys(batch, 0))
            )
            for line in os.fsdecode(answer.stdout).splitlines():
                number, _, path = line.lstrip().partition(" ")
                if path in found and number.isdigit():
                    found[path] = int(number)
        return found

    def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
        """One command per thousand files, however long it waits. It is repeated after a lost connection."""
        deadline = time.monotonic() + wait_s
        batches = _batches([*map(_checked, offsets)])
        while batches:
            left = deadline - time.monotonic()
            # With several commands none may wait, because another may have data.
            patience = min(max(left, 0), _ONE_WAIT_S if len(batches) == 1 else 0)
            news: dict[str, bytes] = {}
            for batch in batches:
                news.update(self._grown({path: offsets[path] for path in batch}, patience))
            if news or left <= 0:
                return news
            if len(batches) > 1:
                time.sleep(min(1.0, left))
        return {}

    def names(self, folder: str) -> list[str]:
        script = _NAMES.format(folder=quote(_checked(folder)), missing=_MISSING)
        answer = self._script(script, folder, "be read", allowed=(_MISSING,))
        return [os.fsdecode(name) for name in answer.stdout.split(b"\0") if name]

    def remove(self, folder: str) -> None:
        """Raise ConfigError for the root and the home folder."""
        path = os.path.normpath(_checked(folder))
        if path in ("/", "//", self.home()):
            raise ConfigError(f"`{path}` on `{self._runner.target}` cannot be removed")
        self._script(f"rm -rf -- {quote(path)}", path, "be removed")

    def _learn(self) -> None:
        if not self._home:
            script = f"printf '%s\\n' \"$HOME\" {self._runner.folder}"
            lines = os.fsdecode(self._script(script, "~", "be found").stdout).splitlines()
            self._home, self._torchx_home = _checked(lines[0]), _checked(os.path.normpath(lines[1]))

    # -- scripts ---------------------------------------------------------------------------------

    def _grown(self, offsets: dict[str, int], wait_s: float) -> dict[str, bytes]:
        key = f"torchx-{os.urandom(8).hex()}:"
        quick = min(int(wait_s / 0.2), 10)
        slow = max(int(wait_s - 2), 0)
        numbers = {"ROOM": _MAX_ANSWER, "MAX": MAX_GROWN, "TICKS": quick + slow, "SLOW": slow, "KEY": key}
        script = re.sub("@([A-Z]+)@", lambda m: str(numbers[m[1]]), _GROWN)
        paths = [*offsets]
        answer = self._script(
            script, paths[0], "be followed", stdin=_list(offsets), timeout=wait_s + 60, patience=FOLLOW_PATIENCE_S
        )
        found = {}
        for part in answer.stdout.split(key.encode())[1:]:
            place, _, data = part.partition(b"\n")
            if data:
                found[paths[int(place)]] = data
        return found

    def _script(
        self,
        script: str,
        path: str,
        what: str,
        *,
        stdin: bytes = b"",
        allowed: tuple[int, ...] = (),
        timeout: float | None = None,
        patience: float | None = None,
    ) -> Answer:
        patience = PATIENCE_S if patience is None else patience
        what_for = f"access to `{path}`"
        answer = self._runner.script(script, stdin=stdin, timeout=timeout, patience=patience, what=what_for)
        if answer.returncode and answer.returncode not in allowed:
            reason = last_line(answer.stderr.decode("utf-8", "replace"), f"exit code {answer.returncode}")
            raise BackendError(f"`{path}` cannot {what} on `{self._runner.target}`: {reason}")
        return answer


def _checked(path: str) -> str:
    """Return a path that is safe in these lists.

    Raises ConfigError if it is relative, or contains NUL or a line end.
    """
    if not path.startswith("/") or any(char in path for char in "\0\n"):
        raise ConfigError(f"`{path!r}` cannot be a path on a login node", hint="give an absolute path in one line")
    return path


def _list(offsets: Mapping[str, int]) -> bytes:
    return os.fsencode("".join(f"{offset} {path}\n" for path, offset in offsets.items()))


def _batches(paths: list[str]) -> list[list[str]]:
    return [paths[i : i + _MAX_PATHS] for i in range(0, len(paths), _MAX_PATHS)]
