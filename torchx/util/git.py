"""The git commit of a directory, and its uncommitted changes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from torchx.settings import make_private
from torchx.util.records import dataclass

_cache: dict[tuple[object, ...], Probe] = {}

PATCH_LIMIT = 8 << 20
"""Maximum size of a patch in bytes."""
TOO_LARGE = "too large"
"""Content of a patch file if the patch exceeds :data:`PATCH_LIMIT`."""
TOO_LATE = "too late"
"""Content of a patch file if files changed while the patch was made."""
KEPT_DAYS = 90
"""Older patches are removed."""
_FRESH_S = 3.0  # short enough for edits between two cells of a notebook; serves programs that launch many jobs
LEFT_OUT = "left out: "
"""Start of the first lines of a patch, which name changed files that are private, and so are not in the patch."""
_CONFIG = """[core]
fsmonitor =
hooksPath = /dev/null
quotePath = false
[diff]
noprefix = false
mnemonicPrefix = false
"""
# What is read of a repository's own configuration: comparisons of files depend on these, and they execute nothing.
_HARMLESS = r"(?im)^\s*((?:filemode|symlinks|ignorecase|trustctime|checkstat|autocrlf|eol)\s*=\s*\w+)\s*$"
_DIFF = "git diff --no-color --no-ext-diff --no-textconv --ignore-submodules=dirty"
# It outlives its parent, to which it writes the pid and the output of `git status`. It marks new files as to be added
# in a copy of the index, so that the patch contains them.
_SCRIPT = f"""
(
  trap '' INT HUP
  umask 077
  patch=$1 most=$2
  shift 2
  cd -- "$GIT_WORK_TREE"
  git status --porcelain=v2 --branch -uno --ignore-submodules=dirty &
  echo "$!"
  exec >/dev/null
  if [ -n "$patch" ]; then
    cp -p -- "$GIT_INDEX_FILE" "$GIT_DIR/index"
    export GIT_INDEX_FILE="$GIT_DIR/index"
    # not `git add .`, which calls git in submodules
    git ls-files -z --others --exclude-standard |
      xargs -0 sh -c '[ $# = 0 ] || git --literal-pathspecs add --intent-to-add -- "$@"' sh
    if [ $# != 0 ]; then {_DIFF} --name-only --line-prefix='{LEFT_OUT}' HEAD -- "$@" >"$patch.new"; fi
    for spec do set -- "$@" ":(exclude,${{spec#:(}}"; shift; done
    {_DIFF} --binary HEAD -- . "$@" | head -c "$(($most + 1))" >>"$patch.new"
    late=$({_DIFF} -z --name-only HEAD -- . "$@" | xargs -0 sh -c '
      for path do set -- "$@" "./$path"; shift; done
      [ $# = 0 ] || find "$@" -prune -newer "$0.start"' "$patch" | head -n 1)
    if [ -n "$late" ]; then echo '{TOO_LATE}' >"$patch.new"; fi
    if [ "$(wc -c <"$patch.new")" -gt "$most" ]; then echo '{TOO_LARGE}' >"$patch.new"; fi
    if [ -s "$patch.new" ]; then mv -- "$patch.new" "$patch"; else rm -f -- "$patch.new"; fi
    find "${{patch%/*}}" -name '*.patch*' -mtime +{KEPT_DAYS} -delete
    rm -f -- "$patch.start"
  fi
  wait
  rm -rf -- "$GIT_DIR"
) </dev/null 2>/dev/null &
"""


@dataclass(frozen=True)
class GitState:
    """The state of a working tree."""

    commit: str = ""  # 40 hex digits (64 with SHA-256); empty outside of a repository and before the first commit
    dirty: bool | None = None  # whether tracked files differ from the commit; None if `git status` timed out
    patch: str = ""  # name of the file for the uncommitted changes, which exists only if there are any


def probe(cwd: str | None = None, *, patches: str = "", private: Sequence[str] = ()) -> Probe:
    """Start to probe a directory; calls within a few seconds return the same probe.

    Uncommitted changes are saved in the folder ``patches``, if given, without ``private`` files, see :func:`pathspecs`.

    >>> probe("/").result()
    GitState(commit='', dirty=None, patch='')
    """
    directory = os.getcwd() if cwd is None else cwd
    key = (os.getpid(), directory, *private)
    found = _cache.get(key)
    if found is None or time.monotonic() - found.began > _FRESH_S:
        found = _cache[key] = Probe(directory, patches, private)
    return found


class Probe:
    """A probe of a directory in the background; :meth:`result` waits for it, but not for the patch."""

    def __init__(self, directory: str, patches: str = "", private: Sequence[str] = ()) -> None:
        self.began = time.monotonic()
        top, git_dir = find_repository(directory)
        patch = f"{os.urandom(8).hex()}.patch" if git_dir and patches else ""
        if patch and not _mark(f"{patches}/{patch}.start"):
            patch = ""
        self.known = GitState(read_commit(git_dir), patch=patch) if git_dir else GitState()  # as far as known now
        # In the background, because `git status` takes seconds in a large repository.
        argv = [f"{patches}/{patch}" if patch else "", str(PATCH_LIMIT), *pathspecs(top, private)]
        self._child = _start(top, git_dir, self.known.commit, argv) if git_dir else None

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


def isolate(top: str, git_dir: str, commit: str, folder: str) -> dict[str, str]:
    """Make the new ``folder`` a git directory for the working tree ``top``; return the environment for git to use it.

    Every call of git needs it. It has the objects and the index of the repository, but not its configuration, which can
    make git execute programs: fsmonitor, hooks, filters, diff drivers, transports. The user's own applies.
    """
    common = os.path.normpath(os.path.join(git_dir, _read(os.path.join(git_dir, "commondir")) or "."))
    os.makedirs(f"{folder}/objects/info", mode=0o700)
    os.mkdir(f"{folder}/refs")
    shared = [entry.path for entry in os.scandir(git_dir) if entry.name.startswith("sharedindex.")]
    for path in (f"{common}/info", *shared):
        os.symlink(path, f"{folder}/{os.path.basename(path)}")
    carried = [f"[core]\n{line}" for line in re.findall(_HARMLESS, _read(f"{common}/config"))]
    if len(commit) == 64:
        carried.append("[core]\nrepositoryformatversion = 1\n[extensions]\nobjectFormat = sha256")
    lfs = f"{common}/lfs".replace("\\", "\\\\").replace('"', '\\"')
    texts = {
        "config": "\n".join([_CONFIG, *carried, f'[lfs]\nstorage = "{lfs}"']),
        "HEAD": commit or "ref: refs/heads/none",
        "objects/info/alternates": f"{common}/objects",
    }
    for name, text in texts.items():
        with os.fdopen(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as file:
            file.write(os.fsencode(f"{text}\n"))
    theirs = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in theirs}
    ours = {"GIT_DIR": folder, "GIT_WORK_TREE": top, "GIT_INDEX_FILE": f"{git_dir}/index", "GIT_OPTIONAL_LOCKS": "0"}
    return {**env, **ours, "LC_ALL": "C"}


def pathspecs(top: str, private: Sequence[str]) -> list[str]:
    """Pathspecs of private files, given as patterns and as absolute paths, which may be elsewhere or links."""
    inside = os.path.join(os.path.realpath(top), "")
    places = {place for path in private if path[0] == "/" for place in (path, os.path.realpath(path))}
    found = [place.removeprefix(inside) for place in sorted(places) if place.startswith(inside)]
    return [f":(glob){path}" for path in private if path[0] != "/"] + [f":(literal){path}" for path in found]


def find_repository(directory: str) -> tuple[str, str]:
    """Return the top folder of the working tree that contains ``directory``, and its ``.git`` directory, or ``""``."""
    here = os.path.abspath(directory)
    while True:
        candidate = os.path.join(here, ".git")
        if os.path.isdir(candidate):
            return here, candidate
        if os.path.isfile(candidate):  # a worktree or a submodule: `gitdir: PATH`
            target = _read(candidate).partition("gitdir:")[2].strip()
            return here, os.path.normpath(os.path.join(here, target)) if target else ""
        parent = os.path.dirname(here)
        if parent == here:
            return here, ""
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


def _start(top: str, git_dir: str, commit: str, argv: Sequence[str]) -> tuple[int, int] | None:
    """Start the script; return its pid, and the read end of its output pipe."""
    folder = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"torchx-git-{os.urandom(8).hex()}")  # noqa: S108  # new
    try:
        os.mkdir(folder, 0o700)
        env = isolate(top, git_dir, commit, folder)
    except OSError:
        return None
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, 1)]
    try:
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", _SCRIPT, "sh", *argv], env, file_actions=actions)
    except OSError:  # process limit reached
        os.close(reader)
        return None
    finally:
        os.close(writer)
    return pid, reader


def _finish(pid: int, reader: int, timeout_s: float) -> str | None:
    """Return the output of ``git status``; None if it failed or timed out."""
    import contextlib
    import select
    import signal

    deadline = time.monotonic() + timeout_s
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    output, ended = b"", False
    # The pid comes at once.
    while not ended and (
        not (git := re.search(rb"(?m)^\d+$", output)) or poll.poll(max(deadline - time.monotonic(), 0) * 1000)
    ):
        chunk = os.read(reader, 65536)
        output, ended = output + chunk, not chunk
    os.close(reader)
    if not ended and git:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(git[0]), signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the program has reaped it
        os.waitpid(pid, 0)
    return output.decode(errors="replace") if ended and b"# branch.oid " in output else None


def _parse(output: str, known: GitState) -> GitState:
    commit, dirty = known.commit, False
    for line in output.splitlines():
        if line.startswith("# branch.oid ") and not commit:
            oid = line.split()[2]
            commit = oid if _is_commit(oid) else ""
        dirty = dirty or not (line.startswith("#") or line.isdigit())
    return GitState(commit, dirty if commit else None, known.patch)  # a repository without a commit has no changes


def _is_commit(text: str) -> bool:
    return len(text) in (40, 64) and all(c in "0123456789abcdef" for c in text)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
