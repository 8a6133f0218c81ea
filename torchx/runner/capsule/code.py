"""Restores or compares the code of recorded runs, from their commit and the patch of uncommitted changes."""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torchx.config.files import load_files
from torchx.errors import NotFoundError
from torchx.runner.ground.secrets import secret_files
from torchx.runs import Run
from torchx.settings import make_private, torchx_home
from torchx.util.git import KEPT_DAYS, LEFT_OUT, TOO_LARGE, TOO_LATE, find_repository, isolate, pathspecs
from torchx.workspace.private import git_patterns, is_harmless


class CodeGoneError(NotFoundError):
    """The code of a run cannot be restored."""


def patch_of(run: Run) -> str:
    """Return the patch file of the uncommitted changes; empty if there were none;
    raises CodeGoneError if it was not kept.
    """
    name = os.path.basename(run.tags.get("patch", ""))
    path = torchx_home("patches", name) if name else ""
    if not path or not os.path.exists(path):
        if run.git_dirty:
            raise CodeGoneError(
                f"`{run.app_id}` ran code that was not committed, and the difference is not on record",
                hint="patches are kept for 90 days, in $TORCHX_HOME/patches",
            )
        return ""
    with open(path, "rb") as file:
        head = file.read(len(TOO_LARGE) + 2).strip().decode(errors="replace")
        if head == TOO_LATE:
            if run.git_dirty is False:
                return ""  # the tree was clean when git looked; later changes do not belong to this run
            raise CodeGoneError(
                f"`{run.app_id}` ran code that was not committed, and files were changed before it could be recorded"
            )
        if head == TOO_LARGE:
            raise CodeGoneError(
                f"`{run.app_id}` ran code that was not committed, and the difference is too large to keep"
            )
    return path


def checkout(run: Run, cwd: str) -> tuple[str, str, list[str]]:
    """Check out the code of the run from the repository that contains ``cwd``.

    Returns that folder, the top folder of the working tree, and notes for the user. The folder is shared by all runs of
    the same code. It does not contain ignored files, submodules and private files.
    """
    import shutil
    import tempfile

    with _opened(run, cwd) as (git, top):
        tree, left_out, patched = _read(run, git, _private(top, run))
        notes = [f"runs commit {run.git_commit[:12]}{' and what was not committed then' * patched}", *_told(left_out)]
        folder = torchx_home("code", f"{run.git_commit[:12]}-{tree[:16]}")
        if os.path.isdir(folder):
            os.utime(folder)  # so that it is not pruned
            return folder, top, notes
        make_private(torchx_home("code"))
        _prune(torchx_home("code"))
        draft = tempfile.mkdtemp(dir=torchx_home("code"))
        try:
            git("checkout-index", "--all", f"--prefix={draft}/", otherwise="the code cannot be checked out")
            os.rename(draft, folder)
        except OSError:
            if not os.path.isdir(folder):  # else another process was faster
                raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return folder, top, notes


def changes(run: Run) -> bytes:
    """Return the uncommitted changes of the run, as a patch."""
    with open(patch_of(run) or os.devnull, "rb") as file:
        return file.read()


def _prune(home: str) -> None:
    """Remove folders that were not used for as long as patches are kept."""
    import shutil

    oldest = time.time() - KEPT_DAYS * 86400
    for name in os.listdir(home):
        path = os.path.join(home, name)
        if os.lstat(path).st_mtime < oldest:
            shutil.rmtree(path, ignore_errors=True)


def difference(a: Run, b: Run) -> tuple[str, str, list[str]]:
    """Compare the code of two runs: output of ``git diff --numstat``, of ``git diff``, and notes for the user."""
    with _opened(b, b.tags.get("worktree", b.cwd)) as (git, top):
        private = _private(top, a, b)
        (tree_a, left_out, _), (tree_b, more, _) = (_read(run, git, private) for run in (a, b))
        diff = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", tree_a, tree_b)
        numbers, patch = (git(*diff, *word, otherwise="git cannot compare the code") for word in (["--numstat"], []))
        return numbers.decode(errors="replace"), patch.decode(errors="replace"), _told(left_out + more)


def _told(left_out: Sequence[str]) -> list[str]:
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(left_out))
    return [f"left out, as they may contain credentials: {names}"] if names else []


@contextmanager
def _opened(run: Run, cwd: str) -> Iterator[tuple[Callable[..., bytes], str]]:
    """Yield a function that calls git for the commit of the run, and the top folder of the tree that contains ``cwd``.

    Git writes neither the index nor objects into the user's repository.
    """
    import tempfile

    now = "`--code now` runs the code as it is"
    if not run.git_commit:
        raise CodeGoneError(
            f"`{run.app_id}` was not launched in a git repository, so its code is not on record", hint=now
        )
    if not os.path.isdir(cwd):
        raise CodeGoneError(f"the folder `{cwd}`, in which `{run.app_id}` was launched, is gone")
    top, git_dir = find_repository(cwd)
    if not git_dir:
        raise CodeGoneError(f"`{cwd}` is no longer in a git repository", hint=now)

    def git(*words: str, otherwise: str = "the code cannot be read", stdin: bytes = b"") -> bytes:
        try:
            done = subprocess.run(["git", *words], cwd=top, env=env, input=stdin, capture_output=True, check=False)
        except OSError:
            raise CodeGoneError("git is not installed", hint="install it, or use `--code now`") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise CodeGoneError(f"{otherwise}{f': {said[-1]}' if said else ''}", hint=now)
        return done.stdout

    with tempfile.TemporaryDirectory() as folder:
        env = {**isolate(top, git_dir, run.git_commit, folder), "GIT_INDEX_FILE": f"{folder}/index"}
        gone = f"`{top}` no longer has commit {run.git_commit[:12]}"
        git("cat-file", "-e", f"{run.git_commit}^{{commit}}", otherwise=gone)
        yield git, top


def _private(top: str, *runs: Run) -> list[str]:
    """Pathspecs of the files that are private for these runs."""
    files = load_files()
    secret = [path for run in runs for path in secret_files(run.appdef(), files, run.cwd)]
    return pathspecs(top, [*git_patterns(), *secret])


def _read(run: Run, git: Callable[..., bytes], private: Sequence[str]) -> tuple[str, list[str], bool]:
    """Read the code of the run into the index, without private files; ``private`` are pathspecs.

    Returns the tree, the private files, and whether there was a patch.
    """
    left_out, patched, patch = [], False, patch_of(run)
    git("read-tree", run.git_commit)
    with open(patch or os.devnull, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if patched := not line.startswith(LEFT_OUT):
                break
            left_out.append(line.removeprefix(LEFT_OUT).rstrip("\n"))
    if patched:
        git("apply", "--cached", "--whitespace=nowarn", patch, otherwise="the patch on record does not apply")
    names = map(os.fsdecode, git("ls-files", "-z", "--", *private).split(b"\0")[:-1]) if private else ()
    content = functools.partial(git, "cat-file", "blob")
    found = [name for name in names if f":(literal){name}" in private or not is_harmless(name, content)]
    git("update-index", "--force-remove", "-z", "--stdin", stdin=os.fsencode("\0".join(found)))
    return git("write-tree", "--missing-ok").decode().strip(), left_out + found, patched
