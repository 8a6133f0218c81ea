"""Copies files into and out of a replica, as a tar stream: through a process inside it, or by the backend's own API."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from torchx.errors import BackendError, NotFoundError, TorchXError
from torchx.runner.inside.untar import AGAIN, CHUNK, SafeUntar, shortened
from torchx.schedulers.kit.inside import STDOUT, InsideProcess
from torchx.schedulers.kit.inside.run import run
from torchx.util.links import stays
from torchx.util.records import dataclass

Open = Callable[[Sequence[str]], InsideProcess]
"""Starts a command inside the replica."""
Archive = Callable[[str, bool], InsideProcess]
"""The backend's own API for archives: see :class:`torchx.schedulers.kit.abilities.Archives`."""
Progress = Callable[[int], None]

# Prints the kind of the path $1: folder, file or nothing. Then, of the folder $5 (or $3 if $1 is not a folder): its
# real path, user and group, whether it can be written, its file system; and `mode size mtime name` of all files below
# $6 and following (or $4), each ended by `//`, which no name contains. $2: create the folder. GNU and busybox tools
# have all options that are used here.
_LOOK = """\
LC_ALL=C path=$1 make=$2 dir=$3 what=$4; export LC_ALL; shift 4
if [ -d "$path" ]; then kind=folder dir=$1; shift
else kind=nothing; set -- "$what"; [ ! -e "$path" ] && [ ! -L "$path" ] || kind=file; fi
echo $kind
[ -n "$make" ] || [ $kind != nothing ] || exit 0
[ -z "$make" ] || mkdir -p -- "$dir" 2>/dev/null
cd -- "$dir" || exit ${make:+0}
pwd -P; echo "$(id -u) $(id -g) $([ -w . ] && echo w || echo r) $(stat -f -c %T . 2>/dev/null)"
exec find "$@" -exec stat -c "%f %s %Y %n//" {} +"""
_GONE = "No such file"  # from `find` and `stat`: the file was removed meanwhile, or does not exist yet
_MAX_NAMES = 500
_MAX_STDERR = 4096
# Names on stdin end with NUL. GNU tar needs --no-unquote to take them literally. Other implementations of tar get them
# as arguments; if they do not fit on one command line, several archives follow one another.
_PACK = """\
cd -- "$1" && set -- -cf - --no-recursion || exit
if tar --no-unquote --version >/dev/null 2>&1; then exec tar "$@" --null --no-unquote -T -; fi
exec xargs -0 tar "$@"
"""
# Prints the rest of the file $2, from byte $4 on, and fails if its size and modification time are not $3.
_REST = """\
cd -- "$1" || exit
same() { [ "$(stat -c "%s %Y" -- "$2")" = "$3" ] || { echo "it has changed" >&2; exit 1; }; }
same "$@" && tail -c "+$4" -- "$2" && same "$@"
"""
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xf -'
_IN_MEMORY = ("", "tmpfs", "ramfs")


@dataclass(frozen=True)
class Copied:
    """The result of a copy: copied files and bytes, files that were already there, and names that were left out."""

    files: int
    bytes: int
    skipped: int
    left_out: list[str]


@dataclass(frozen=True)
class There:
    """A folder inside the replica, with its owner and the mode, size and modification time of each file in it.

    ``path`` is empty if the backend's own API cannot be used: the folder is in memory, or not writable.
    """

    kind: str
    path: str
    owner: tuple[int, int]
    files: dict[str, tuple[int, int, int]]


@contextmanager
def _says_what_is_wrong() -> Iterator[None]:
    """Raise BackendError for what cannot be copied: a path that is too long here, or whatever a replica may send."""
    try:
        yield
    except TorchXError:
        raise
    except OSError as e:
        if e.errno != errno.ENAMETOOLONG:
            raise
        what = f"`{shortened(str(e.filename))}` cannot be copied: its path is too long for this machine"
        raise BackendError(what, hint="copy a folder further down") from e
    except (ValueError, OverflowError, RecursionError, tarfile.TarError) as e:
        raise BackendError(f"what the replica sent cannot be read: {shortened(str(e))}") from e


@_says_what_is_wrong()
def download(
    start: Open,
    source: str,
    target: str,
    progress: Progress = lambda _: None,
    archive: Archive | None = None,
    *,
    here: bool = False,
    private: Callable[[str], bool] = lambda _: False,
) -> Copied:
    """Copy a file or folder out of a replica; arguments and errors are those of :meth:`Runner.copy`.

    Nothing is written outside the target, whatever the replica sends: names that lead out are rejected, links are not
    followed, and links that point out of the folder and special files are left out.

    Args:
        archive: the backend's own API; whatever it does not deliver is copied through a process.
        here: the replica's files are files of this machine.
        private: whether a name is left out.
    """
    if not target:
        raise NotFoundError("the path to copy to is empty", hint="`.` is the current folder")
    base = os.path.basename(source.rstrip("/")) or "."
    there = _look(start, source, (os.path.dirname(source) or ".", f"./{base}"), (source, "."), here=here)
    if there.kind == "nothing":
        raise NotFoundError(
            f"the replica has no file `{source}`", hint="paths are relative to the folder in which it runs"
        )
    taker = _taker(there.kind, source, target, progress)
    for name in [*filter(private, there.files)]:
        del there.files[name]
        taker.left_out.append(name)
    files = {n: size for n, (mode, size, _) in there.files.items() if stat.S_ISREG(mode)}
    wanted = [n for n in there.files if n not in files or not taker.has(n, there.files[n])]
    folder = source if there.kind == "folder" else os.path.dirname(source) or "."
    for name in [n for n in wanted if n in files]:
        _resume(start, folder, name, there.files[name], taker)
    wanted = [n for n in wanted if n not in files or not taker.has(n, there.files[n])]
    if here and there.path:
        with suppress(OSError):
            _copy_locally([(f"./{n}", os.path.join(there.path, n)) for n in wanted], taker)
    elif archive and there.path and 2 * sum(files.get(n, 0) for n in wanted) >= sum(files.values()):
        path = os.path.join(there.path, "." if there.kind == "folder" else base)
        with suppress(TorchXError), archive(path, False) as process:
            _unpack(process, taker, wanted)
    wanted = [n for n in wanted if not taker.has(n, there.files[n])]
    if wanted:
        with start(["sh", "-c", _PACK, "sh", folder]) as process:
            names = b"".join(os.fsencode(f"./{n}\0") for n in wanted)
            _in_background(lambda: (process.write(names), process.close_stdin()))
            _unpack(process, taker, wanted)
    return Copied(taker.files, taker.bytes, len(files) - taker.files, taker.left_out)


@_says_what_is_wrong()
def download_archive(
    archive: Callable[[str], InsideProcess],
    source: str,
    target: str,
    progress: Progress = lambda _: None,
    *,
    private: Callable[[str], bool] = lambda _: False,
) -> Copied:
    """Copy out of a container that has ended, by the backend's own API alone; see :func:`download`.

    Raises BackendError if the container has no such path.
    """
    try:
        process, kind = archive(f"{source.rstrip('/')}/."), "folder"
    except BackendError:
        process, kind = archive(source), "file"
    taker = _taker(kind, source, target, progress)
    with process:
        pipe: Any = _Pipe(process)
        with tarfile.open(mode="r|", fileobj=pipe, bufsize=CHUNK) as tar:
            for member in tar:
                name = os.path.normpath(member.name)
                if private(name):
                    taker.left_out.append(name)
                elif name != ".":
                    taker.take(member, partial(tar.extractfile, member))
        _finish(process, pipe, pipe.drain, [source], "")
    return Copied(taker.files, taker.bytes, 0, taker.left_out)


def _taker(kind: str, source: str, target: str, progress: Progress) -> SafeUntar:
    """Return what writes a file or folder of that name to the target, which is an existing folder or the new path."""
    base = os.path.basename(source.rstrip("/")) or "."
    into, root, rename = os.path.isdir(target) or target.endswith("/"), target, {}
    if kind == "file" and not into:
        root, rename = os.path.dirname(target) or ".", {base: os.path.basename(target)}
    elif kind == "folder" and into and not source.endswith("/") and base not in (".", ".."):
        root = os.path.join(target, base)
    os.makedirs(root, exist_ok=True)
    return SafeUntar(root, rename, progress)


@_says_what_is_wrong()
def upload(
    start: Open,
    source: str,
    target: str,
    progress: Progress = lambda _: None,
    archive: Archive | None = None,
    *,
    here: bool = False,
) -> Copied:
    """Copy a file or folder into a replica; arguments and errors are those of :func:`download`, reversed."""
    if not os.path.lexists(source):
        raise NotFoundError(f"`{source}` does not exist", hint="it is a file or a folder of this machine")
    base, name = os.path.basename(os.path.abspath(source)), os.path.basename(target)
    if os.path.isdir(source):
        names = [f"./{n}" for n in os.listdir(source)]
        root = target if source.endswith("/") else f"{target.rstrip('/')}/{base}"
        below, itself = [root, *(names if 0 < len(names) <= _MAX_NAMES else ["."])], [target, "."]
    else:
        below, itself = [target, f"./{base}"], [os.path.dirname(target) or ".", f"./{name}"]
    itself = below[:2] if target.endswith("/") else itself
    there = _look(start, target, itself, below, make="make", here=here)
    chosen = below if there.kind == "folder" else itself
    found = _Sent(
        sorted(_walk(source)) if os.path.isdir(source) else [(chosen[1].removeprefix("./"), source)], there.owner
    )
    todo = found.missing(there, everything=True)
    files = [n for n in todo if n in found.files]
    if here and there.path:
        taker = SafeUntar(there.path, {}, progress)
        with suppress(OSError):
            _copy_locally([(n, found.paths[n]) for n in todo], taker)
        todo = [n for n in todo if not taker.has(n, found.facts(n))]
    elif archive and there.path:
        with suppress(TorchXError), archive(there.path, True) as process:
            found.send(process, todo, progress)
        todo = found.missing(_look(start, target, chosen[:2], chosen, make="make"))
    if todo:
        with start(["sh", "-c", _UNPACK, "sh", chosen[0]]) as process:
            found.send(process, todo, progress, has_errors=True)
    sent = sum(found.files[n].st_size for n in files)
    return Copied(len(files), sent, len(found.files) - len(files), found.left_out)


class _Sent:
    """Files of this machine to send into a replica: folders, regular files, and links that stay inside.

    ``found`` are names in the replica and paths here; ``owner`` are user and group in the replica.
    """

    def __init__(self, found: Sequence[tuple[str, str]], owner: tuple[int, int]) -> None:
        self._owner = owner
        self.paths: dict[str, str] = {}
        self.files: dict[str, os.stat_result] = {}
        self.left_out: list[str] = []
        for name, path in found:
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode):
                self.files[name] = facts
            elif not stat.S_ISDIR(facts.st_mode) and not (
                stat.S_ISLNK(facts.st_mode) and stays(name, os.readlink(path))
            ):
                self.left_out.append(name)
                continue
            self.paths[name] = path

    def facts(self, name: str) -> tuple[int, int, int]:
        """Mode, size and modification time."""
        found = self.files.get(name) or os.lstat(self.paths[name])
        return (found.st_mode, found.st_size, int(found.st_mtime))

    def missing(self, there: There, *, everything: bool = False) -> list[str]:
        """Names that the replica lacks or has with another size or time; ``everything``: and all folders and links."""

        def is_there(name: str) -> bool:
            return there.files.get(name, (0, -1, 0))[1:] == self.facts(name)[1:]

        return [n for n in self.paths if (not is_there(n) if n in self.files else everything or n not in there.files)]

    def send(self, process: InsideProcess, names: list[str], progress: Progress, *, has_errors: bool = False) -> None:
        """Write the files as tar to a process.

        If the process ``has_errors``, it writes to stderr, which must be read meanwhile so that it does not block.
        """
        pipe: Any = _Pipe(process, progress)
        drained = _in_background(pipe.drain) if has_errors else pipe.drain
        refused = False
        try:
            packed: Any = tarfile.TarFile(mode="w", fileobj=pipe, format=tarfile.GNU_FORMAT, copybufsize=CHUNK)
            with packed as tar:
                for name in names:
                    member = _member(tar, self.paths[name], name)
                    member.uid, member.gid = self._owner
                    member.uname = member.gname = ""
                    if name in self.files:
                        with open(self.paths[name], "rb") as file:
                            tar.addfile(member, file)
                    else:
                        tar.addfile(member)
            process.close_stdin()
        except BrokenPipeError:
            refused = True
        _finish(process, pipe, drained, names, "it does not take the files" if refused else "")


def _member(tar: Any, path: str, name: str) -> Any:
    tar.inodes.clear()  # so that a hard link is sent as a file
    return tar.gettarinfo(path, name)


def _copy_locally(found: Sequence[tuple[str, str]], taker: SafeUntar) -> None:
    """Copy files within this machine, given as names and paths."""
    with tarfile.TarFile(mode="w", fileobj=io.BytesIO()) as tar:  # for the metadata only
        for name, path in found:
            taker.take(_member(tar, path, name), partial(open, path, "rb", 0))


def _resume(start: Open, folder: str, name: str, facts: tuple[int, int, int], taker: SafeUntar) -> None:
    """Resumes the copy of a file, if a part of it is here."""

    @contextmanager
    def rest() -> Iterator[_Pipe]:
        with start(["sh", "-c", _REST, "sh", folder, f"./{name}", f"{facts[1]} {facts[2]}", f"{begun + 1}"]) as process:
            pipe = _Pipe(process)
            yield pipe
            _finish(process, pipe, pipe.drain, [name], "")

    if begun := taker.begun(name, facts):
        member = tarfile.TarInfo(f"./{name}")
        member.mode, member.size, member.mtime = facts
        taker.take(member, rest, begun)


def _unpack(process: InsideProcess, taker: SafeUntar, wanted: Collection[str]) -> None:
    """Write the wanted members of the tar that a process prints."""
    pipe: Any = _Pipe(process)
    names, cut = set(wanted), ""
    try:
        with tarfile.open(mode="r|", fileobj=pipe, bufsize=CHUNK) as tar:
            tar.ignore_zeros = True  # several archives may follow one another
            for member in tar:
                if os.path.normpath(member.name) in names:
                    taker.take(member, partial(tar.extractfile, member))
    except tarfile.ReadError as e:
        cut = str(e) if pipe.read_any else ""
    _finish(process, pipe, pipe.drain, wanted, cut)


def _finish(process: InsideProcess, pipe: _Pipe, drained: Callable[[], None], names: Collection[str], cut: str) -> None:
    """Wait for a process that packs or unpacks, and raise BackendError if the copy is incomplete.

    ``drained`` waits until all its output is read. ``cut``: why the stream is incomplete, or empty.
    """
    try:
        drained()
        code = process.wait()
    except BackendError as e:
        code, cut = 0, str(e)
    if code:
        lines = pipe.stderr.decode("utf-8", "replace").splitlines()
        why = "; ".join(map(shortened, lines[:3])) or f"exit code {code}"
        what = shortened(next(iter(names))) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        raise BackendError(f"`{what}` cannot be copied: inside the replica, {why}", hint=AGAIN)
    if cut:
        raise BackendError(f"the copy was interrupted: {cut}", hint=AGAIN)


def _walk(source: str) -> Iterator[tuple[str, str]]:
    todo = [""]  # a stack: a tree may be deeper than Python's recursion limit
    while todo:
        below = todo.pop()
        with os.scandir(os.path.join(source, below)) as found:
            for entry in found:
                name = os.path.join(below, entry.name)
                yield name, entry.path
                if entry.is_dir(follow_symlinks=False):
                    todo.append(name)


def _look(
    start: Open, path: str, itself: Sequence[str], below: Sequence[str], *, make: str = "", here: bool = False
) -> There:
    """Inspects a path inside the replica.

    Args:
        itself: for a path that is not a folder: the folder to look in, and the name to list in it.
        below: for a folder: the folder to look in, and the names to list in it.
        make: if not empty, the folder is created.
        here: return the folder's real path even if it is in memory or not writable.
    """
    done = run(start(["sh", "-c", _LOOK, "sh", path, make, *itself, *below]))
    errors = done.stderr.decode("utf-8", "replace").splitlines()
    relevant = [line for line in errors if _GONE not in line]
    if done.exit_code and (relevant or not errors):
        why = "; ".join(map(shortened, relevant[:3])) or f"exit code {done.exit_code}"
        raise BackendError(f"the replica's files cannot be read: {why}", hint="it needs `sh`, `find`, `stat` and `tar`")
    kind, where, who, listed = (os.fsdecode(done.stdout) + "\n\n\n").split("\n", 3)
    user, group, rights, system = (*who.split(), "", "", "", "")[:4]
    usable = here or (system not in _IN_MEMORY and (rights == "w" or not make))
    words = (line.split(" ", 3) for line in listed.split("//\n"))
    return There(
        kind,
        where if usable else "",
        (int(user or 0), int(group or 0)),
        {w[3].removeprefix("./"): (int(w[0], 16), int(w[1]), int(w[2])) for w in words if len(w) == 4 and w[3] != "."},
    )


def _in_background(work: Callable[[], object]) -> Callable[[], None]:
    """Call ``work`` in a daemon thread; the function that is returned waits for its end, and raise its error."""
    end: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except Exception as e:
            end.set_exception(e)
        else:
            end.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    return end.result


class _Pipe:
    """The file object through which ``tarfile`` reads from or writes to a process."""

    def __init__(self, process: InsideProcess, progress: Progress = lambda _: None) -> None:
        self._process = process
        self._progress = progress
        self.stderr = b""
        self.read_any = False

    def read(self, _: int) -> bytes:
        """Return the next chunk of stdout, of any size: ``tarfile`` accepts that."""
        while (piece := self._process.read()) is not None:
            if piece[0] == STDOUT:
                self.read_any = True
                return piece[1]
            self.stderr = (self.stderr + piece[1])[:_MAX_STDERR]
        return b""

    def drain(self) -> None:
        while self.read(0):
            pass

    def write(self, data: bytes) -> int:
        self._process.write(data)
        self._progress(len(data))
        return len(data)

    def tell(self) -> int:
        return 0
