"""Files in and out of a replica: a stream of tar through a process inside it."""

from __future__ import annotations

import os
import stat
from collections import namedtuple

from torchx.errors import BackendError, NotFoundError, TorchXError
from torchx.schedulers.inside import STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, NamedTuple

    from torchx.schedulers.inside import InsideProcess

    Open = Callable[[Sequence[str]], InsideProcess]
    """Starts a command inside the replica."""

    class Copied(NamedTuple):
        """What a copy did: files and bytes that were sent, files that were there already, and what was left out."""

        files: int
        bytes: int
        skipped: int
        left_out: list[str]
else:
    Copied = namedtuple("Copied", "files bytes skipped left_out")

_CHUNK = 1 << 20
# Lines `type size mtime name` of all that is below a folder, or of a file; GNU and busybox have the words.
_LIST = 'cd -- "$1" && find . -exec stat -c "%f %s %Y %n" {} +'
_KIND = 'if [ -d "$1" ]; then echo folder; elif [ -e "$1" ] || [ -L "$1" ]; then echo file; else echo nothing; fi'
_PACK = 'cd -- "$1" && exec tar -cf - --no-recursion -T -'
_UNPACK = 'mkdir -p -- "$1" && cd -- "$1" && exec tar -xf -'


def download(start: Open, source: str, target: str, progress: Callable[[int], None] = lambda _: None) -> Copied:
    """Copies a file or a folder out of a replica, as ``cp -r`` would. What is there, of the same size and time, stays.

    Nothing is written outside of the target whatever the replica sends: no name leads out, no link is followed, and
    links that lead out and special files are left out.

    Args:
        source: path there; with a slash at its end, what is in the folder instead of the folder.
        target: path here: a folder that exists, or the new name.
        progress: called with the bytes of each piece.

    Raises:
        NotFoundError: there is no such file there.
        BackendError: the copy broke off; the same call goes on with the files that are missing.
    """
    kind = _said(start, ["sh", "-c", _KIND, "sh", source]).strip()
    if kind == "nothing":
        raise NotFoundError(
            f"the replica has no file `{source}`", hint="paths are relative to the folder in which it runs"
        )
    base = os.path.basename(source.rstrip("/")) or "."
    into = os.path.isdir(target) or target.endswith("/")
    if kind == "file":
        root, name = (target, base) if into else (os.path.dirname(target) or ".", os.path.basename(target))
        names, rename = [base], {base: name}
        folder = os.path.dirname(source) or "."
        there = _listed(start, folder, f"./{base}")
    else:
        root, rename, folder = target, {}, source
        if into and not source.endswith("/") and base not in (".", ".."):
            root = os.path.join(target, base)
        there = _listed(start, folder)
        names = []
    os.makedirs(root, exist_ok=True)
    wanted = [
        n for n, (mode, *facts) in there.items() if not (stat.S_ISREG(mode) and _is_here(root, rename.get(n, n), facts))
    ]
    files = sum(stat.S_ISREG(there[n][0]) for n in there)
    with start(["sh", "-c", _PACK, "sh", folder]) as process:
        _feed(process, ("".join(f"./{n}\n" for n in wanted if n)).encode("utf-8", "surrogateescape"))
        taker = Taker(root, rename)
        _unpack(process, taker, progress)
        _check(process, names or [source])
    return Copied(taker.files, taker.bytes, files - taker.files, taker.left_out)


def upload(start: Open, source: str, target: str, progress: Callable[[int], None] = lambda _: None) -> Copied:
    """Copies a file or a folder into a replica; arguments and errors as of :func:`download`, the other way round."""
    import tarfile

    if not os.path.lexists(source):
        raise NotFoundError(f"`{source}` does not exist", hint="it is a file or a folder of this machine")
    kind = _said(start, ["sh", "-c", _KIND, "sh", target]).strip()
    base = os.path.basename(os.path.abspath(source))
    into = kind == "folder" or target.endswith("/")
    if os.path.isdir(source):
        root = target if not into or source.endswith("/") else f"{target.rstrip('/')}/{base}"
        found = sorted(_walk(source))
    else:
        root = target if into else os.path.dirname(target) or "."
        found = [(base if into else os.path.basename(target), source)]
    there = _listed(start, root) if _said(start, ["sh", "-c", _KIND, "sh", root]).strip() == "folder" else {}
    copied = Copied(0, 0, 0, [])
    with start(["sh", "-c", _UNPACK, "sh", root]) as process:
        pipe: Any = _Pipe(process, progress)
        with tarfile.open(mode="w|", fileobj=pipe, format=tarfile.GNU_FORMAT, bufsize=_CHUNK) as tar:
            for name, path in found:
                copied = _put(tar, name, path, there, copied)
        process.close_stdin()
        _drain(process)
        _check(process, [target])
    return copied


def _put(tar: tarfile.TarFile, name: str, path: str, there: dict[str, tuple[int, int, int]], so_far: Copied) -> Copied:
    """Sends one file, unless it is there, or is none that is copied."""
    member = tar.gettarinfo(path, name)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if not (member.isreg() or member.isdir() or (member.issym() and _stays(name, member.linkname))):
        return so_far._replace(left_out=[*so_far.left_out, name])
    if not member.isreg():
        tar.addfile(member)
        return so_far
    if name in there and (there[name][1], there[name][2]) == (member.size, int(member.mtime)):
        return so_far._replace(skipped=so_far.skipped + 1)
    with open(path, "rb") as file:
        tar.addfile(member, file)
    return so_far._replace(files=so_far.files + 1, bytes=so_far.bytes + member.size)


class Taker:
    """Writes what comes out of a replica below one folder, and nowhere else.

    Args:
        root: the folder.
        rename: names in the stream to the names that they get.
    """

    def __init__(self, root: str, rename: dict[str, str]) -> None:
        self._root = root
        self._rename = rename
        self.files = self.bytes = 0
        self.left_out: list[str] = []

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """One member of the stream."""
        name = os.path.normpath(member.name)
        path = None if ".." in member.name.split("/") else self._place(self._rename.get(name, name))
        if path is None or not (member.isreg() or member.isdir() or (member.issym() and _stays(name, member.linkname))):
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
            self._write(tar, member, path)

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

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        part = f"{path}.torchx-part"
        if os.path.lexists(part):
            os.unlink(part)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode & 0o777 | 0o200)
        file = tar.extractfile(member)
        assert file is not None  # of a regular file there is one
        with open(fd, "wb") as out:
            while data := file.read(_CHUNK):
                out.write(data)
        os.utime(part, (member.mtime, member.mtime))
        os.chmod(part, member.mode & 0o777)
        os.replace(part, path)
        self.files += 1
        self.bytes += member.size


def _stays(name: str, target: str) -> bool:
    """Whether a link leads to a place below the folder that it is copied with.

    >>> _stays("a/b", "../c"), _stays("a/b", "../../c"), _stays("a", ".."), _stays("a", "/etc/passwd")
    (True, False, False, False)
    """
    there = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return not target.startswith("/") and there.split("/")[0] != ".."


def _is_here(root: str, name: str, facts: Sequence[int]) -> bool:
    try:
        found = os.lstat(os.path.join(root, name))
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and [found.st_size, int(found.st_mtime)] == list(facts)


def _walk(source: str) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(source):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            yield os.path.relpath(path, source), path


def _listed(start: Open, folder: str, only: str = "") -> dict[str, tuple[int, int, int]]:
    """Mode, size and time of all that is below a folder there, by its name relative to it."""
    script = _LIST.replace("find .", 'find "$2" -maxdepth 0') if only else _LIST
    found = {}
    for line in _said(start, ["sh", "-c", script, "sh", folder, only]).split("\n"):
        words = line.split(" ", 3)
        if len(words) == 4 and words[3] != ".":
            found[words[3].removeprefix("./")] = (int(words[0], 16), int(words[1]), int(words[2]))
    return found


def _said(start: Open, argv: Sequence[str]) -> str:
    from torchx.runner.inside import run

    done = run(start(argv))
    if done.exit_code:
        why = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.exit_code}"
        raise BackendError(f"the replica's files cannot be read: {why}", hint="it needs `sh`, `find`, `stat` and `tar`")
    return done.stdout.decode("utf-8", "surrogateescape")


def _feed(process: InsideProcess, data: bytes) -> None:
    import threading

    def feed() -> None:
        try:
            process.write(data)
            process.close_stdin()
        except OSError:
            return  # it has ended, and says why

    threading.Thread(target=feed, daemon=True).start()


def _unpack(process: InsideProcess, taker: Taker, progress: Callable[[int], None]) -> None:
    import tarfile

    pipe: Any = _Pipe(process, progress)
    try:
        with tarfile.open(mode="r|", fileobj=pipe, bufsize=_CHUNK) as tar:
            for member in tar:
                taker.take(tar, member)
    except tarfile.ReadError as e:
        _drain(process)
        if code := process.wait():
            _check(process, [f"exit code {code}"], pipe.said)
        elif pipe.read_any:
            raise BackendError(f"the copy broke off: {e}", hint="the same command goes on with what is missing") from e
    _drain(process)


class _Pipe:
    """A process as the file that ``tarfile`` reads or writes."""

    def __init__(self, process: InsideProcess, progress: Callable[[int], None]) -> None:
        self._process = process
        self._progress = progress
        self._begun = b""
        self.said = b""
        self.read_any = False

    def read(self, size: int) -> bytes:
        while len(self._begun) < size and (piece := self._process.read()) is not None:
            if piece[0] == STDOUT:
                self.read_any = True
                self._begun += piece[1]
                self._progress(len(piece[1]))
            else:
                self.said += piece[1]
        data, self._begun = self._begun[:size], self._begun[size:]
        return data

    def write(self, data: bytes) -> int:
        try:
            self._process.write(data)
        except BrokenPipeError:
            _drain(self._process)
            _check(self._process, ["the target"])
            raise TorchXError("the replica does not take the files") from None
        self._progress(len(data))
        return len(data)


def _drain(process: InsideProcess) -> bytes:
    said = b""
    while (piece := process.read()) is not None:
        said += piece[1] if piece[0] != STDOUT else b""
    return said


def _check(process: InsideProcess, what: Sequence[str], said: bytes = b"") -> None:
    if code := process.wait():
        why = said.decode("utf-8", "replace").strip() or f"exit code {code}"
        raise BackendError(
            f"`tar` inside the replica failed for `{', '.join(what)}`: {why}",
            hint="the same command goes on with what is missing",
        )
