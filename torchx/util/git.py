"""The git commit of a directory, and its uncommitted changes."""

from __future__ import annotations

import os
import time

from torchx.settings import make_private
from torchx.util.records import dataclass

_cache: dict[tuple[int, str], Probe] = {}

PATCH_LIMIT = 8 << 20
"""Maximum size of a patch in bytes."""
TOO_LARGE = "too large"
"""Content of a patch file if the patch exceeds :data:`PATCH_LIMIT`."""
TOO_LATE = "too late"
"""Content of a patch file if files changed while the patch was made."""
KEPT_DAYS = 90
"""Older patches are removed."""
_FRESH_S = 3.0  # short enough for edits between two cells of a notebook; serves programs that launch many jobs
_STATUS = """git --no-optional-locks -C "$1" status --porcelain=v2 --branch -uno"""
# It outlives its parent. It marks new files as to be added in a copy of the index, so that the patch contains them.
_PATCH = f"""
(
  trap '' INT HUP
  unset GIT_INDEX_FILE
  umask 077
  cd -- "$1" && cd -- "$(git rev-parse --show-toplevel)" || exit
  cp -p -- "$(git rev-parse --git-path index)" "$2.index"
  export GIT_INDEX_FILE="$2.index"
  git add --intent-to-add -- .
  git diff --binary --no-color --no-ext-diff --no-textconv HEAD | head -c "$(($3 + 1))" >"$2.new"
  late=$(git diff -z --name-only HEAD | xargs -0 sh -c 'find "$@" -prune -newer "$0.start"' "$2" | head -n 1)
  if [ -n "$late" ]; then echo '{TOO_LATE}' >"$2.new"; fi
  if [ "$(wc -c <"$2.new")" -gt "$3" ]; then echo '{TOO_LARGE}' >"$2.new"; fi
  if [ -s "$2.new" ]; then mv -- "$2.new" "$2"; else rm -f -- "$2.new"; fi
  find "${{2%/*}}" -name '*.patch*' -mtime +{KEPT_DAYS} -delete
  rm -f -- "$2.index" "$2.start"
) </dev/null >/dev/null 2>&1 &
"""


@dataclass(frozen=True)
class GitState:
    """The state of a working tree."""

    commit: str = ""  # 40 hex digits (64 with SHA-256); empty outside of a repository and before the first commit
    dirty: bool | None = None  # whether tracked files differ from the commit; None if `git status` timed out
    patch: str = ""  # name of the file for the uncommitted changes, which exists only if there are any


def probe(cwd: str | None = None, *, patches: str = "") -> Probe:
    """Start to probe a directory; calls within a few seconds return the same probe.

    Uncommitted changes are saved in the folder ``patches``, if given.

    >>> probe("/").result()
    GitState(commit='', dirty=None, patch='')
    """
    directory = os.getcwd() if cwd is None else cwd
    key = (os.getpid(), directory)
    found = _cache.get(key)
    if found is None or time.monotonic() - found.began > _FRESH_S:
        found = _cache[key] = Probe(directory, patches)
    return found


class Probe:
    """A probe of a directory in the background; :meth:`result` waits for it, but not for the patch."""

    def __init__(self, directory: str, patches: str = "") -> None:
        self.began = time.monotonic()
        git_dir = find_git_dir(directory)
        patch = f"{os.urandom(8).hex()}.patch" if git_dir and patches else ""
        if patch and not _mark(f"{patches}/{patch}.start"):
            patch = ""
        self.known = GitState(read_commit(git_dir), patch=patch) if git_dir else GitState()  # as far as known now
        # In the background, because `git status` takes seconds in a large repository.
        self._child = _start(directory, f"{patches}/{patch}" if patch else "") if git_dir else None

    @property
    def done(self) -> bool:
        """Whether :meth:`result` returns immediately."""
        return self._child is None

    def result(self, timeout_s: float = 0.3) -> GitState:
        """Wait for the state. After the timeout git is killed, and ``dirty`` stays None."""
        if self._child is not None:
            output = _finish(*self._child, timeout_s)
            self._child = None
            if output is not None:
                self.known = _parse(output, self.known)
        return self.known


def find_git_dir(directory: str) -> str:
    """Return the ``.git`` directory of the repository that contains ``directory``; empty if there is none."""
    here = os.path.abspath(directory)
    while True:
        candidate = os.path.join(here, ".git")
        if os.path.isdir(candidate):
            return candidate
        if os.path.isfile(candidate):  # a worktree or a submodule: `gitdir: PATH`
            target = _read(candidate).partition("gitdir:")[2].strip()
            return os.path.normpath(os.path.join(here, target)) if target else ""
        parent = os.path.dirname(here)
        if parent == here:
            return ""
        here = parent


def read_commit(git_dir: str) -> str:
    """Resolve ``HEAD`` without running git; empty if that is not possible."""
    head = _read(os.path.join(git_dir, "HEAD"))
    if not head.startswith("ref:"):
        return head if _is_commit(head) else ""
    ref = head[4:].strip()
    common = os.path.join(git_dir, _read(os.path.join(git_dir, "commondir")) or ".")
    for root in (git_dir, common):
        commit = _read(os.path.join(root, ref))
        if _is_commit(commit):
            return commit
    for line in _read(os.path.join(common, "packed-refs")).splitlines():
        commit, _, name = line.partition(" ")
        if name == ref and _is_commit(commit):
            return commit
    return ""


def _mark(path: str) -> bool:
    """Create the file whose mtime marks the start of the probe; False if that fails."""
    try:
        make_private(os.path.dirname(path))
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


def _start(directory: str, patch: str) -> tuple[int, int] | None:
    """Start ``git status``; return its pid and the read end of its output pipe."""
    script = f"{_PATCH if patch else ''}exec {_STATUS}"
    argv = ["sh", "-c", script, "sh", directory, patch, str(PATCH_LIMIT)]
    reader, writer = os.pipe()
    devnull = os.devnull
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_OPEN, 2, devnull, os.O_WRONLY, 0),
    ]
    try:
        pid = os.posix_spawn("/bin/sh", argv, {**os.environ, "LC_ALL": "C"}, file_actions=actions)
    except OSError:  # process limit reached
        os.close(reader)
        return None
    finally:
        os.close(writer)
    return pid, reader


def _finish(pid: int, reader: int, timeout_s: float) -> str | None:
    """Return the output of the child; None if it failed or timed out."""
    import contextlib
    import select
    import signal

    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    chunks: list[bytes] = []
    ended = False
    while not ended and poll.poll(max(deadline - time.monotonic(), 0) * 1000):
        chunks.append(os.read(reader, 65536))
        ended = not chunks[-1]
    os.close(reader)
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:  # the program has reaped it
        return None
    return b"".join(chunks).decode(errors="replace") if ended and status == 0 else None


def _parse(output: str, known: GitState) -> GitState:
    commit, dirty = known.commit, False
    for line in output.splitlines():
        if line.startswith("# branch.oid ") and not commit:
            oid = line.split()[2]
            commit = oid if _is_commit(oid) else ""
        dirty = dirty or not line.startswith("#")
    return GitState(commit, dirty if commit else None, known.patch)  # a repository without a commit has no changes


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and all(c in "0123456789abcdef" for c in text)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
