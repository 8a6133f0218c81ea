"""Files in and out of a replica: a stream of tar through a process inside it, or through the backend's own way."""

from __future__ import annotations

import os
import stat
import tarfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from torchx.errors import BackendError, NotFoundError, TorchXError
from torchx.runner.inside import run
from torchx.schedulers.inside import STDOUT, InsideProcess
from torchx.util.any import Any
from torchx.util.records import dataclass

Open = Callable[[Sequence[str]], InsideProcess]
"""Starts a command inside the replica."""
Archive = Callable[[str, bool], InsideProcess]
"""The backend's own way: see :class:`torchx.schedulers.kit.abilities.Archives`."""
Progress = Callable[[int], None]

_CHUNK = 1 << 20
# What $1 is; then the folder $5, or, if $1 is not a folder, $3: its path, who may do what there, and `type size mtime
# name` of all that is below $6 and those after it, or $4. GNU and busybox have the words. With $2 the folder is made.
_LOOK = """\
LC_ALL=C path=$1 make=$2 dir=$3 what=$4; export LC_ALL; shift 4
if [ -d "$path" ]; then kind=folder dir=$1; shift
else kind=nothing; set -- "$what"; [ ! -e "$path" ] && [ ! -L "$path" ] || kind=file; fi
echo $kind
[ -n "$make" ] || [ $kind != nothing ] || exit 0
[ -z "$make" ] || mkdir -p -- "$dir" 2>/dev/null
cd -- "$dir" || exit ${make:+0}
pwd -P; echo "$(id -u) $(id -g) $([ -w . ] && echo w || echo r) $(stat -f -c %T . 2>/dev/null)"
exec find "$@" -exec stat -c "%f %s %Y %n" {} +"""
_GONE = "No such file"  # of `find` and `stat`: it is not there any more, or not yet
_MOST_NAMES = 500
_SAID = 4096
# GNU tar unquotes the names that it reads, unless it is told not to; busybox never does. That of Debian reads none: its
# names are arguments, and where they are too many, one archive comes behind the other.
_PACK = """\
cd -- "$1" || exit
tar --no-unquote --version >/dev/null 2>&1 && set -- --no-unquote || set --
if ! echo . | tar -cf /dev/null --no-recursion -T - 2>/dev/null; then
  tr '\\n' '\\0' | xargs -0 tar -cf - --no-recursion
  exit
fi
exec tar -cf - --no-recursion "$@" -T -"""
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xf -'
_IN_MEMORY = ("", "tmpfs", "ramfs")
_AGAIN = "the same command goes on with what is missing"


@dataclass(frozen=True)
class Copied:
    """What a copy did: files and bytes that were sent, files that were there already, and what was left out."""

    files: int
    bytes: int
    skipped: int
    left_out: list[str]


@dataclass(frozen=True)
class There:
    """A folder inside the replica, and mode, size and time of each file in it.

    The path is empty where the backend's own way does not lead: into a file system in memory, or past rights.
    """

    kind: str
    path: str
    owner: tuple[int, int]
    files: dict[str, tuple[int, int, int]]


def download(
    start: Open,
    source: str,
    target: str,
    progress: Progress = lambda _: None,
    archive: Archive | None = None,
) -> Copied:
    """Copies a file or a folder out of a replica, as ``cp -r`` would. What is there, of the same size and time, stays.

    Nothing is written outside of the target whatever the replica sends: no name leads out, no link is followed, and
    links that lead out and special files are left out.

    Args:
        source: path there; with a slash at its end, what is in the folder instead of the folder.
        target: path here: a folder that exists, or the new name.
        progress: called with the bytes of each piece.
        archive: the backend's own way; what does not come by it comes by a process.

    Raises:
        NotFoundError: there is no such file there.
        BackendError: the copy broke off; the same call goes on with the files that are missing.
    """
    base = os.path.basename(source.rstrip("/")) or "."
    there = _look(start, source, (os.path.dirname(source) or ".", f"./{base}"), (source, "."))
    if there.kind == "nothing":
        raise NotFoundError(
            f"the replica has no file `{source}`", hint="paths are relative to the folder in which it runs"
        )
    into, root, rename = os.path.isdir(target) or target.endswith("/"), target, {}
    if there.kind == "file" and not into:
        root, rename = os.path.dirname(target) or ".", {base: os.path.basename(target)}
    elif there.kind == "folder" and into and not source.endswith("/") and base not in (".", ".."):
        root = os.path.join(target, base)
    os.makedirs(root, exist_ok=True)
    taker = Taker(root, rename)
    files = {n: size for n, (mode, size, _) in there.files.items() if stat.S_ISREG(mode)}
    wanted = [n for n in there.files if n not in files or not taker.has(n, there.files[n])]
    if archive and there.path and 2 * sum(files.get(n, 0) for n in wanted) >= sum(files.values()):
        path = os.path.join(there.path, "." if there.kind == "folder" else base)
        with suppress(TorchXError), archive(path, False) as process:
            _unpack(process, taker, wanted, progress)
        wanted = [n for n in wanted if not taker.has(n, there.files[n])]
    if wanted:
        folder = source if there.kind == "folder" else os.path.dirname(source) or "."
        with start(["sh", "-c", _PACK, "sh", folder]) as process:
            names = "".join(f"./{n}\n" for n in wanted).encode("utf-8", "surrogateescape")
            _beside(lambda: (process.write(names), process.close_stdin()))
            _unpack(process, taker, wanted, progress)
    return Copied(taker.files, taker.bytes, len(files) - taker.files, taker.left_out)


def upload(
    start: Open,
    source: str,
    target: str,
    progress: Progress = lambda _: None,
    archive: Archive | None = None,
) -> Copied:
    """Copies a file or a folder into a replica; arguments and errors as of :func:`download`, the other way round."""
    if not os.path.lexists(source):
        raise NotFoundError(f"`{source}` does not exist", hint="it is a file or a folder of this machine")
    base, name = os.path.basename(os.path.abspath(source)), os.path.basename(target)
    if os.path.isdir(source):
        names = [f"./{n}" for n in os.listdir(source)]
        root = target if source.endswith("/") else f"{target.rstrip('/')}/{base}"
        below, itself = [root, *(names if 0 < len(names) <= _MOST_NAMES else ["."])], [target, "."]
    else:
        below, itself = [target, f"./{base}"], [os.path.dirname(target) or ".", f"./{name}"]
    itself = below[:2] if target.endswith("/") else itself
    there = _look(start, target, itself, below, make="make")
    chosen = below if there.kind == "folder" else itself
    found = _Sent(
        sorted(_walk(source)) if os.path.isdir(source) else [(chosen[1].removeprefix("./"), source)], there.owner
    )
    todo = found.missing(there, everything=True)
    files = [n for n in todo if n in found.files]
    if archive and there.path:
        with suppress(TorchXError), archive(there.path, True) as process:
            found.send(process, todo, progress)
        todo = found.missing(_look(start, target, chosen[:2], chosen, make="make"))
    if todo:
        with start(["sh", "-c", _UNPACK, "sh", chosen[0]]) as process:
            found.send(process, todo, progress, has_errors=True)
    sent = sum(found.files[n].st_size for n in files)
    return Copied(len(files), sent, len(found.files) - len(files), found.left_out)


class Taker:
    """Writes what comes out of a replica below one folder, and nowhere else.

    Args:
        root: the folder.
        rename: names in the stream to the names that they get.
    """

    def __init__(self, root: str, rename: dict[str, str]) -> None:
        self._root = root
        self._rename = rename
        self._taken: dict[str, str] = {}
        self.files = self.bytes = 0
        self.left_out: list[str] = []

    def has(self, name: str, facts: tuple[int, int, int]) -> bool:
        """Whether it is here, a file with the same size and time; or was left out."""
        try:
            found = os.lstat(os.path.join(self._root, self._rename.get(name, name)))
        except OSError:
            return name in map(os.path.normpath, self.left_out)
        same = stat.S_ISREG(found.st_mode) and (found.st_size, int(found.st_mtime)) == facts[1:]
        return same or not stat.S_ISREG(facts[0])

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """One member of the stream."""
        name = os.path.normpath(member.name)
        path = None if ".." in member.name.split("/") else self._place(self._rename.get(name, name))
        other = self._taken.get(os.path.normpath(member.linkname)) if member.islnk() else None
        regular = member.isreg() or other is not None
        if path is None or not (regular or member.isdir() or (member.issym() and _stays(name, member.linkname))):
            self.left_out.append(member.name)
        elif member.isdir():
            os.makedirs(path, exist_ok=True)
        elif os.path.isdir(path) and not os.path.islink(path):
            self.left_out.append(member.name)
        elif member.issym():
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(member.linkname, path)
        else:
            self._write(tar, member, path, other)
            self._taken[name] = path

    def _place(self, name: str) -> str | None:
        """Where it goes; None for a name that leads out, or through a link."""
        if name.startswith("/"):
            return None
        path = self._root
        *folders, last = name.split("/")
        for folder in folders:
            path = os.path.join(path, folder)
            if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
                return None
        os.makedirs(path, exist_ok=True)
        path = os.path.join(path, last)
        return None if os.path.islink(path) and os.path.isdir(path) else path

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, other: str | None) -> None:
        """Writes a file from the stream, or, if it is a second name of one that came before, from that one."""
        part = f"{path}.torchx-part"
        if os.path.lexists(part):
            os.unlink(part)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode & 0o777 | 0o200)
        file = open(other, "rb") if other else tar.extractfile(member)  # noqa: SIM115  # closed below
        assert file is not None  # of a regular file there is one
        with open(fd, "wb") as out, file:
            while data := file.read(_CHUNK):
                self.bytes += out.write(data)
        os.utime(part, (member.mtime, member.mtime))
        os.chmod(part, member.mode & 0o777)
        os.replace(part, path)
        self.files += 1


class _Sent:
    """What of this machine is sent into a replica: folders, files, and links that stay inside.

    Args:
        found: names there and paths here.
        owner: user and group there.
    """

    def __init__(self, found: Sequence[tuple[str, str]], owner: tuple[int, int]) -> None:
        self._owner = owner
        self._paths: dict[str, str] = {}
        self.files: dict[str, os.stat_result] = {}
        self.left_out: list[str] = []
        for name, path in found:
            facts = os.lstat(path)
            if stat.S_ISREG(facts.st_mode):
                self.files[name] = facts
            elif not stat.S_ISDIR(facts.st_mode) and not (
                stat.S_ISLNK(facts.st_mode) and _stays(name, os.readlink(path))
            ):
                self.left_out.append(name)
                continue
            self._paths[name] = path

    def missing(self, there: There, *, everything: bool = False) -> list[str]:
        """What is not there, files with the same size and time; with ``everything`` all folders and links."""

        def is_there(name: str) -> bool:
            facts = self.files[name]
            return there.files.get(name, (0, -1, 0))[1:] == (facts.st_size, int(facts.st_mtime))

        return [n for n in self._paths if (not is_there(n) if n in self.files else everything or n not in there.files)]

    def send(self, process: InsideProcess, names: list[str], progress: Progress, *, has_errors: bool = False) -> None:
        """Writes them to a process that reads tar.

        Args:
            has_errors: it writes errors, and waits until they are read.
        """
        pipe: Any = _Pipe(process, progress)
        drained = _beside(pipe.drain) if has_errors else pipe.drain
        refused = False
        try:
            packed: Any = tarfile.TarFile(mode="w", fileobj=pipe, format=tarfile.GNU_FORMAT, copybufsize=_CHUNK)
            with packed as tar:
                for name in names:
                    tar.inodes.clear()  # a second name of a file is a file
                    member = tar.gettarinfo(self._paths[name], name)
                    member.uid, member.gid = self._owner
                    member.uname = member.gname = ""
                    if name in self.files:
                        with open(self._paths[name], "rb") as file:
                            tar.addfile(member, file)
                    else:
                        tar.addfile(member)
            process.close_stdin()
        except BrokenPipeError:
            refused = True
        _finish(process, pipe, drained, names, "it does not take the files" if refused else "")


def _unpack(process: InsideProcess, taker: Taker, wanted: Collection[str], progress: Progress) -> None:
    """Takes what is wanted of the tar that a process writes."""
    pipe: Any = _Pipe(process, progress)
    names, cut = set(wanted), ""
    try:
        with tarfile.open(mode="r|", fileobj=pipe, bufsize=_CHUNK) as tar:
            tar.ignore_zeros = True  # the end of one archive may be the beginning of another
            for member in tar:
                if os.path.normpath(member.name) in names:
                    taker.take(tar, member)
    except tarfile.ReadError as e:
        cut = str(e) if pipe.read_any else ""
    _finish(process, pipe, pipe.drain, wanted, cut)


def _finish(process: InsideProcess, pipe: _Pipe, drained: Callable[[], None], names: Collection[str], cut: str) -> None:
    """Waits for the end of a process that packs or unpacks, and says what is wrong.

    Args:
        drained: waits until all that it has written is read.
        cut: why the stream is not whole; empty if it is.
    """
    try:
        drained()
        code = process.wait()
    except BackendError as e:
        code, cut = 0, str(e)
    if code:
        why = "; ".join(pipe.said.decode("utf-8", "replace").splitlines()[:3]) or f"exit code {code}"
        what = next(iter(names)) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        raise BackendError(f"`tar` inside the replica failed for `{what}`: {why}", hint=_AGAIN)
    if cut:
        raise BackendError(f"the copy broke off: {cut}", hint=_AGAIN)


def _stays(name: str, target: str) -> bool:
    """Whether a link leads to a place below the folder that it is copied with.

    >>> _stays("a/b", "../c"), _stays("a/b", "../../c"), _stays("a", ".."), _stays("a", "/etc/passwd")
    (True, False, False, False)
    """
    there = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return not target.startswith("/") and there.split("/")[0] != ".."


def _walk(source: str) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(source):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, source), path


def _look(start: Open, path: str, itself: Sequence[str], below: Sequence[str], *, make: str = "") -> There:
    """What is at a path inside the replica.

    Args:
        itself: if it is not a folder: the folder that matters, and what in it is listed, with all that is below.
        below: if it is one: the same, and further names to list.
        make: not empty: the folder is made if need be.
    """
    done = run(start(["sh", "-c", _LOOK, "sh", path, make, *itself, *below]))
    said = done.stderr.decode("utf-8", "replace").splitlines()
    wrong = [line for line in said if _GONE not in line]
    if done.exit_code and (wrong or not said):
        why = "; ".join(wrong[:3]) or f"exit code {done.exit_code}"
        raise BackendError(f"the replica's files cannot be read: {why}", hint="it needs `sh`, `find`, `stat` and `tar`")
    kind, where, who, *lines = [*done.stdout.decode("utf-8", "surrogateescape").split("\n"), "", ""]
    user, group, rights, system = (*who.split(), "", "", "", "")[:4]
    usable = system not in _IN_MEMORY and (rights == "w" or not make)
    words = (line.split(" ", 3) for line in lines)
    return There(
        kind,
        where if usable else "",
        (int(user or 0), int(group or 0)),
        {w[3].removeprefix("./"): (int(w[0], 16), int(w[1]), int(w[2])) for w in words if len(w) == 4 and w[3] != "."},
    )


def _beside(work: Callable[[], object]) -> Callable[[], None]:
    """Has it done by a thread; what is returned waits for its end, and raises its error."""
    from concurrent.futures import Future

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
    """A process as the file that ``tarfile`` reads or writes."""

    def __init__(self, process: InsideProcess, progress: Progress) -> None:
        self._process = process
        self._progress = progress
        self.said = b""
        self.read_any = False

    def read(self, _: int) -> bytes:
        """The next piece, as it comes: ``tarfile`` takes any."""
        while (piece := self._process.read()) is not None:
            if piece[0] == STDOUT:
                self.read_any = True
                self._progress(len(piece[1]))
                return piece[1]
            self.said = (self.said + piece[1])[:_SAID]
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
