"""Uploads a workspace to a login node: only what has changed, and nothing if the same content was sent before.

In ``workspaces`` of torchx's own folder on the login node::

    <hash>          a workspace as it was sent; never changed, removed when unused for a month
    latest.<key>    the hash sent last from one folder of one machine: the next one is likely to be similar
    part.<hash>.*   an upload in progress

Jobs run in copies of them, which they may modify.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING, BinaryIO

from torchx.errors import BackendError, ConfigError
from torchx.schedulers.batch.ssh.master import c_locale
from torchx.schedulers.kit.commands import last_line
from torchx.schedulers.kit.shell import quote
from torchx.specs.api import Workspace
from torchx.supervisor.layout import private
from torchx.util.notices import logger
from torchx.util.records import dataclass, replace
from torchx.workspace.content import Entry, content_hash, entries
from torchx.workspace.copies import copy_file, write_tree
from torchx.workspace.hashes import FileHashes

if TYPE_CHECKING:
    from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
_NOT_EMPTY = 45  # exit code of the script
_SEND_S = 3600.0
_PLACE_S = 600.0
_SAFE = re.compile(r"[A-Za-z0-9_./+@%,:=-]+")
_LOST = (10, 12, 30, 35, 255)  # rsync(1), EXIT VALUES: socket, protocol stream, timeouts; and ssh's own
_SEND_ATTEMPTS = 3
_LARGE = 500_000_000  # bytes; most code is a thousandth of that

_LOOK = """\
umask 077
mkdir -p {folder}/workspaces && cd {folder}/workspaces || exit 1
pwd
if [ -d {hash} ] && touch {hash}; then echo there; else echo missing; fi
latest=$(cat latest.{key} 2>/dev/null); echo "${{latest:-none}}"  # a full disk leaves it empty
for program in rsync gzip; do if command -v $program >/dev/null 2>&1; then echo $program; else echo none; fi; done
"""
_PLACE = """\
umask 077
cd {folder}/workspaces || exit 1
if [ ! -d {hash} ]; then mv {part} {hash} || exit 1; fi
rm -rf {part} {hash}/{part}  # the latter: another upload of it finished first
touch {hash}; echo {hash} > latest.{key}
find . -mindepth 1 -maxdepth 1 \\( -mtime +30 -o -name 'part.*' -mtime +1 \\) -exec rm -rf {{}} + 2>/dev/null
mkdir -p -- {target} || exit 1
if [ -n "$(ls -A -- {target})" ]; then exit {not_empty}; fi
cp -RPp {hash}/. {target}/ || {{ rm -rf -- {target}; exit 1; }}
"""
_UNPACK = """\
umask 077
cd {folder}/workspaces && rm -rf {part} && mkdir {part} && cd {part} || exit 1
cat > ../{part}.tar && [ "$(wc -c < ../{part}.tar)" -eq {size} ] && {tar}
code=$?
rm -f ../{part}.tar
exit $code
"""


@dataclass(frozen=True)
class Placed:
    """A workspace that was copied: hash of the content; ``rsync``, ``tar`` or empty if it was there."""

    hash: str
    sent: str


@dataclass(frozen=True)
class _There:
    """The state of the login node."""

    place: str
    has_it: bool
    latest: str
    has_rsync: bool
    has_gzip: bool


def workspace_hash(workspace: Workspace | str) -> str:
    """Return the hash of a workspace's current content. Raises SpecError if it cannot be read."""
    with FileHashes(_source_name(workspace)) as hashes:
        return content_hash(entries(workspace), hashes.of)


def place_workspace(runner: SSHCommandRunner, workspace: Workspace | str, target: str) -> Placed:
    """Copy a workspace to an absolute path of the login node, by rsync if both sides have it, else by tar.

    Raises:
        SpecError: the workspace does not exist or cannot be read.
        ConfigError: ``target`` is not empty.
        BackendError: the copy failed.
    """
    files = entries(workspace)
    source = _source_name(workspace)
    with FileHashes(source) as hashes:
        digest = content_hash(files, hashes.of)
    key = hashlib.sha256(os.fsencode(f"{os.uname().nodename} {source}")).hexdigest()[:16]
    there = _look(runner, _folder_name(digest), key)
    part, sent = "part.none", ""
    if not there.has_it:
        digest, part, sent = _send(runner, files, there)
    parts = {"folder": runner.folder, "hash": _folder_name(digest), "key": key, "part": part}
    script = _PLACE.format(**parts, target=quote(target), not_empty=_NOT_EMPTY)
    token = f"workspace-{os.urandom(8).hex()}"
    done = runner.run_once(["/bin/sh", "-c", script], token=token, timeout=_PLACE_S)
    if done.returncode == _NOT_EMPTY:
        raise ConfigError(f"job_dir `{target}` is not empty on `{runner.target}`", hint="name a new folder")
    if done.returncode:
        raise BackendError(f"`{target}` cannot be filled on `{runner.target}`: {last_line(done.stderr)}")
    return Placed(digest, sent)


def _look(runner: SSHCommandRunner, name: str, key: str) -> _There:
    script = _LOOK.format(folder=runner.folder, hash=name, key=key)
    answer = runner.script(script, patience=60.0, what="a look at the workspaces")
    if answer.returncode:
        reason = last_line(answer.stderr.decode("utf-8", "replace"))
        raise BackendError(
            f"torchx's folder cannot be made on `{runner.target}`: {reason}",
            hint="name another with `-cfg ssh_dir=...`",
        )
    place, state, latest, rsync, gzip = os.fsdecode(answer.stdout).splitlines()
    return _There(place, state == "there", latest, rsync != "none", gzip != "none")


# -- sending ---------------------------------------------------------------------------------------


def _send(runner: SSHCommandRunner, files: list[Entry], there: _There) -> tuple[str, str, str]:
    """Upload the files to a ``part`` folder; return the hash of what was sent, the part, and ``rsync`` or ``tar``."""
    import tempfile

    digests: dict[str, str] = {}

    def stage(entry: Entry, path: str) -> None:
        digests[entry.path] = copy_file(replace(entry, mode=entry.mode | 0o400), path)  # rsync and tar read it as us

    size = sum(entry.size for entry in files)
    if size > _LARGE:
        logger("torchx.ssh").warning(
            "the workspace has %.1f GB: name in `.torchxignore` what the job does not need, or use `--workspace ''`",
            size / 1e9,
        )
    with tempfile.TemporaryDirectory(prefix="torchx-workspace-") as staged:
        folder = os.path.join(staged, "files")
        os.mkdir(folder, 0o700)
        write_tree(files, folder, stage)
        digest = content_hash(files, lambda entry: digests[entry.path])
        part = f"part.{_folder_name(digest)}.{os.urandom(4).hex()}"
        usable = there.has_rsync and shutil.which("rsync") is not None and _SAFE.fullmatch(there.place)
        if usable and _by_rsync(runner, folder, f"{there.place}/{part}", there.latest):
            return digest, part, "rsync"
        with open(os.path.join(staged, "tar"), "w+b", opener=private) as archive:
            _by_tar(runner, folder, archive, part, compress=there.has_gzip)
        return digest, part, "tar"


def _by_rsync(runner: SSHCommandRunner, folder: str, target: str, latest: str) -> bool:
    """Whether rsync uploaded the folder. Files that are also in ``latest`` are copied on the login node."""
    argv = ["rsync", "-rlptcz", "--delete", "--timeout=60", "-e", _remote_shell(runner.master.session()[:-1])]
    if re.fullmatch(r"[0-9a-f]+", latest):
        argv.append(f"--copy-dest=../{latest}")
    # The shared connection decides where it leads.
    host = runner.target if re.fullmatch(r"[A-Za-z0-9_.@-]+", runner.target) else "login"
    argv += [f"{folder}/", f"{host}:{target}/"]
    for _ in range(_SEND_ATTEMPTS):
        runner.master.ensure()
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SEND_S, check=False, env=c_locale()
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            return _not_by_rsync(str(e))
        if done.returncode == 0:
            return True
        if done.returncode not in _LOST:
            break
        runner.master.login()
    return _not_by_rsync(last_line(done.stderr.decode("utf-8", "replace")))


def _not_by_rsync(reason: str) -> bool:
    logger("torchx.ssh").info("rsync failed (%s); the workspace is sent by tar", reason)
    return False


def _by_tar(runner: SSHCommandRunner, folder: str, archive: BinaryIO, part: str, *, compress: bool) -> None:
    # Every tar reads GNU's format, with names of any length and bytes.
    with (
        gzip.open(archive, "wb", 1) if compress else contextlib.nullcontext(archive) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        tar.add(folder, arcname=".")
    archive.flush()
    unpack = f"gzip -dc < ../{part}.tar | tar -xof -" if compress else f"tar -xof ../{part}.tar"
    script = _UNPACK.format(folder=runner.folder, part=part, size=os.fstat(archive.fileno()).st_size, tar=unpack)
    answer = runner.script(script, stdin=archive, timeout=_SEND_S, patience=60.0, what="sending the workspace")
    if answer.returncode:
        reason = last_line(answer.stderr.decode("utf-8", "replace"))
        raise BackendError(f"the workspace cannot be unpacked on `{runner.target}`: {reason}")


# -- words and names -------------------------------------------------------------------------------


def _remote_shell(words: list[str]) -> str:
    """Return the words in rsync's syntax for ``-e``: a quote within quotes is doubled (rsync(1))."""
    return " ".join("'" + word.replace("'", "''") + "'" if re.search(r"[\s'\"]", word) else word for word in words)


def _folder_name(digest: str) -> str:
    """Return a folder name for a hash: its first 32 digits."""
    return digest.rpartition(":")[2][:32]


def _source_name(workspace: Workspace | str) -> str:
    """Return the workspace with absolute paths: ``.`` is another one in each folder."""
    projects = {workspace: ""} if isinstance(workspace, str) else workspace.projects
    return " ".join(f"{path if '://' in path else os.path.abspath(path)}={place}" for path, place in projects.items())
