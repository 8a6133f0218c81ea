"""Restores or compares the code of recorded runs, from their commit and the patch of uncommitted changes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torchx.errors import NotFoundError
from torchx.runs import Run
from torchx.settings import make_private, torchx_home
from torchx.util.git import KEPT_DAYS, TOO_LARGE, TOO_LATE


class CodeGoneError(NotFoundError):
    """The code of a run cannot be restored."""


def patch_of(run: Run) -> str:
    """The patch file of the uncommitted changes; empty if there were none; raises CodeGoneError if it was not kept."""
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


def toplevel(run: Run, cwd: str) -> str:
    """The top folder of the git working tree that contains ``cwd``; its repository has the commit of the run."""
    if not run.git_commit:
        raise CodeGoneError(
            f"`{run.app_id}` was not launched in a git repository, so its code is not on record",
            hint="`--code now` runs the code as it is",
        )
    if not os.path.isdir(cwd):
        raise CodeGoneError(f"the folder `{cwd}`, in which `{run.app_id}` was launched, is gone")
    top = _git(cwd, ["rev-parse", "--show-toplevel"], f"`{cwd}` is no longer in a git repository").strip()
    _git(top, ["cat-file", "-e", f"{run.git_commit}^{{commit}}"], f"`{top}` no longer has commit {run.git_commit[:12]}")
    return top


def checkout(run: Run, cwd: str) -> tuple[str, str]:
    """Checks out the code of the run. Returns that folder, and the top folder of the working tree around ``cwd``.

    The folder is shared by all runs of the same code. It does not contain ignored files and submodules.
    """
    import shutil
    import tempfile

    top, patch = toplevel(run, cwd), patch_of(run)
    folder = torchx_home("code", f"{run.git_commit[:12]}-{digest(patch)}")
    if os.path.isdir(folder):
        os.utime(folder)  # so that it is not pruned
        return folder, top
    make_private(torchx_home("code"))
    _prune(torchx_home("code"))
    draft = tempfile.mkdtemp(dir=torchx_home("code"))
    try:
        with _scratch(top) as env:
            _read(run, top, patch, env)
            _git(top, ["checkout-index", "--all", f"--prefix={draft}/"], "the code cannot be checked out", env)
        os.rename(draft, folder)
    except OSError:
        if not os.path.isdir(folder):  # else another process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder, top


def _prune(home: str) -> None:
    """Removes folders that were not used for as long as patches are kept."""
    import shutil

    oldest = time.time() - KEPT_DAYS * 86400
    for name in os.listdir(home):
        path = os.path.join(home, name)
        if os.lstat(path).st_mtime < oldest:
            shutil.rmtree(path, ignore_errors=True)


def difference(a: Run, b: Run, *words: str) -> str:
    """The output of ``git diff``, with options ``words``, for the code of two runs."""
    top = toplevel(b, b.tags.get("worktree", b.cwd))
    with _scratch(top) as env:
        trees = []
        for run in (a, b):
            _read(run, top, patch_of(run), env)
            trees.append(_git(top, ["write-tree"], "the code cannot be read", env).strip())
        return _git(top, ["diff", "--no-color", "--no-ext-diff", *words, *trees], "git cannot compare the code", env)


@contextmanager
def _scratch(top: str) -> Iterator[dict[str, str]]:
    """Yields an environment in which git writes neither the index nor objects into the user's repository."""
    import tempfile

    theirs = os.path.join(top, _git(top, ["rev-parse", "--git-path", "objects"], "git has no objects").strip())
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        yield {**index, "GIT_OBJECT_DIRECTORY": folder, "GIT_ALTERNATE_OBJECT_DIRECTORIES": theirs}


def _read(run: Run, top: str, patch: str, env: dict[str, str]) -> None:
    """Reads the code of the run into the index."""
    _git(top, ["read-tree", run.git_commit], f"`{top}` no longer has commit {run.git_commit[:12]}", env)
    if patch:
        _git(top, ["apply", "--cached", "--whitespace=nowarn", patch], "the patch on record does not apply", env)


def _git(where: str, words: Sequence[str], otherwise: str, env: dict[str, str] | None = None) -> str:
    argv = ["git", "-C", where, *words]
    ours = {k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")}
    try:
        done = subprocess.run(argv, env={**ours, "LC_ALL": "C", **(env or {})}, capture_output=True, check=False)
    except OSError:
        raise CodeGoneError("git is not installed", hint="install it, or use `--code now`") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CodeGoneError(f"{otherwise}{f': {said[-1]}' if said else ''}", hint="`--code now` runs the code as it is")
    return done.stdout.decode(errors="replace")


def digest(path: str) -> str:
    """Identifies the contents of a patch file; ``path`` is empty if there were no uncommitted changes."""
    if not path:
        return "clean"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:12]
