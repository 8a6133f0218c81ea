"""Copies into and out of a replica: names, links, times, existing files, and a hostile replica."""

from __future__ import annotations

import contextlib
import inspect
import io
import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from torchx.errors import BackendError, NotFoundError
from torchx.runner.inside.copy import Copied, download, upload
from torchx.runner.inside.untar import SafeUntar
from torchx.schedulers.kit.inside import InsideProcess
from torchx.schedulers.kit.inside.spawned import SpawnedProcess
from torchx.util.records import replace


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """The folder of a replica, with a checkpoint."""
    ckpt = tmp_path / "there" / "ckpt"
    (ckpt / "sub" / "empty").mkdir(parents=True)
    (ckpt / "a").write_bytes(bytes(range(256)) * 5000)
    (ckpt / "sub" / "grüße b").write_text("b")
    (ckpt / "sub" / "grüße b").chmod(0o750)
    (ckpt / "link").symlink_to("sub/grüße b")
    os.utime(ckpt / "a", (1_000_000, 1_000_000))
    return ckpt.parent


@pytest.fixture
def start(there: Path) -> Any:
    """Starts a command in that folder."""

    def started(argv: Sequence[str]) -> InsideProcess:
        return SpawnedProcess(argv, cwd=str(there))

    return started


def same(one: Path, other: Path) -> None:
    done = subprocess.run(["diff", "-r", "--no-dereference", one, other], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    ("source", "target", "exists", "arrives"),
    [
        ("ckpt", "new", False, "new"),
        ("ckpt/", "new", False, "new"),
        ("ckpt", "old", True, "old/ckpt"),
        ("ckpt/", "old", True, "old"),
        ("ckpt", "made/", False, "made/ckpt"),
    ],
)
def test_a_folder_comes_out_and_goes_in(
    start: Any, there: Path, tmp_path: Path, source: str, target: str, exists: bool, arrives: str
) -> None:
    """Like `cp -r`; with a trailing slash, the folder's contents. Modes, times, links and empty folders are kept."""
    if exists:
        (tmp_path / target).mkdir()
        (there / target).mkdir()
    slash = "/" if target.endswith("/") else ""
    out = download(start, source, str(tmp_path / target) + slash)
    assert out == Copied(2, 1_280_001, 0, [])
    same(there / "ckpt", tmp_path / arrives)
    found = (tmp_path / arrives / "sub" / "grüße b").stat()
    assert (found.st_mode & 0o777, (tmp_path / arrives / "a").stat().st_mtime) == (0o750, 1_000_000)
    put = upload(start, str(there / source) + ("/" if source.endswith("/") else ""), target)
    assert put == Copied(2, 1_280_001, 0, [])
    same(there / "ckpt", there / arrives)


def test_a_tar_that_reads_no_names(start: Any, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's busybox has no `-T`: names are passed as arguments, as many per command as fit."""
    busybox = shutil.which("busybox")
    if (
        busybox is None
        or "-T" in subprocess.run([busybox, "tar", "--help"], check=False, capture_output=True, text=True).stderr
    ):
        pytest.skip("needs a busybox whose tar has no `-T`")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split():
        (programs / name).symlink_to(busybox)
    monkeypatch.setenv("PATH", str(programs))
    long = "n" * 200
    for i in range(1500):
        (there / "ckpt" / f"{long} {i} it's \"\\").write_text(str(i))
    assert download(start, "ckpt", str(tmp_path / "new")).files == 1502
    monkeypatch.undo()
    same(there / "ckpt", tmp_path / "new")


def test_a_file_gets_its_new_name(start: Any, there: Path, tmp_path: Path) -> None:
    """Or goes into an existing folder."""
    assert download(start, "ckpt/a", str(tmp_path / "b")).files == 1
    assert download(start, "ckpt/a", str(tmp_path)).files == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (there / "ckpt/a").read_bytes()
    assert upload(start, str(tmp_path / "a"), "in/x").files == 1
    assert upload(start, str(tmp_path / "a"), "in").files == 1
    assert sorted(p.name for p in (there / "in").iterdir()) == ["a", "x"]


def test_what_is_there_is_not_sent_again(start: Any, there: Path, tmp_path: Path) -> None:
    """Compared by size and time; changed and missing files are sent."""
    download(start, "ckpt/", str(tmp_path / "out"))
    assert download(start, "ckpt/", str(tmp_path / "out")) == Copied(0, 0, 2, [])
    (tmp_path / "out/a").write_bytes(b"cut off")
    assert download(start, "ckpt/", str(tmp_path / "out")) == Copied(1, 1_280_000, 1, [])
    upload(start, f"{tmp_path}/out/", "in")
    (there / "in/sub/grüße b").unlink()
    assert upload(start, f"{tmp_path}/out/", "in") == Copied(1, 1, 1, [])
    same(there / "ckpt", there / "in")


def test_what_leads_out_or_is_no_file_is_left_out(start: Any, there: Path, tmp_path: Path) -> None:
    """In both directions, by name."""
    os.mkfifo(there / "ckpt/fifo")
    (there / "ckpt/out").symlink_to("/etc/passwd")
    (there / "ckpt/sub/up").symlink_to("../../x")
    left = download(start, "ckpt/", str(tmp_path / "out")).left_out
    assert sorted(left) == ["./fifo", "./out", "./sub/up"]
    assert sorted(upload(start, f"{there}/ckpt/", "in").left_out) == ["fifo", "out", "sub/up"]


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"bad"
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


@pytest.mark.parametrize(
    "members",
    [
        [member("../x")],
        [member("/tmp/torchx-test-x")],
        [member("a/../../x")],
        [member("a/..")],
        [member("l", tarfile.SYMTYPE, ".."), member("l/x")],
        [member("l", tarfile.SYMTYPE, "/tmp"), member("l/x")],
        [member("h", tarfile.LNKTYPE, "../outside")],
        [member("d", tarfile.CHRTYPE), member("f", tarfile.FIFOTYPE), member("b", tarfile.BLKTYPE)],
        [member("s", tarfile.SYMTYPE, "d"), member("d", tarfile.DIRTYPE), member("s/x")],
        [member("here", tarfile.SYMTYPE, "."), member("l", tarfile.SYMTYPE, "here/../outside")],
        [member("l", tarfile.SYMTYPE, "d/../outside"), member("d", tarfile.SYMTYPE, "."), member("../x")],
        [
            *(member(name, tarfile.DIRTYPE) for name in ("a", "t", "t/x", "t/x/y")),
            member("a/b", tarfile.SYMTYPE, "../t/x/y"),
            member("l", tarfile.SYMTYPE, "a/b/../../../../outside"),
        ],
        [member("l", tarfile.SYMTYPE, "mine/outside"), member("../x")],
    ],
    ids=lambda members: "+".join(m[0].name for m in members),
)
def test_a_hostile_replica_writes_nothing_outside(tmp_path: Path, members: Any) -> None:
    """Whatever names and links it sends; nothing is written through a link."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "mine").symlink_to("..")  # the user's own
    (tmp_path / "outside").write_text("mine")
    packed = io.BytesIO()
    with tarfile.open(mode="w", fileobj=packed) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    packed.seek(0)
    taker = SafeUntar(str(root), {})
    with tarfile.open(mode="r|", fileobj=packed) as tar:
        for info in tar:
            taker.take(info, partial(tar.extractfile, info))
    assert taker.left_out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["outside", "root"]
    assert (tmp_path / "outside").read_text() == "mine"
    assert not os.path.exists("/tmp/torchx-test-x")
    assert [p.name for p in root.rglob("*") if not p.resolve().is_relative_to(root)] == ["mine"]


def test_a_link_that_is_there_is_not_followed(tmp_path: Path, start: Any, there: Path) -> None:
    """An existing link in the target is replaced by a file; a folder is left out."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").symlink_to("../outside/a")
    (tmp_path / "out/sub").symlink_to("../outside")
    done = download(start, "ckpt/", str(tmp_path / "out"))
    assert not [*(tmp_path / "outside").iterdir()]
    assert (tmp_path / "out/a").read_bytes() == (there / "ckpt/a").read_bytes()
    assert "./sub/grüße b" in done.left_out


def test_what_is_in_the_way_is_named(start: Any, there: Path, tmp_path: Path) -> None:
    """A file where a folder should be stays, with and without a stream; so does a folder where a file should be."""
    for here in (False, True):
        out = tmp_path / f"out{here}"
        (out / "a").mkdir(parents=True)
        (out / "sub").write_text("mine")
        done = download(start, "ckpt/", str(out), here=here)
        assert {"./a", "./sub", "./sub/empty", "./sub/grüße b"} <= {*done.left_out}
        assert ((out / "sub").read_text(), (out / "a").is_dir()) == ("mine", True)


def test_what_has_changed_is_copied_again(start: Any, there: Path, tmp_path: Path) -> None:
    """A file of the same length, and where a link points to; an empty file is copied once. In both directions."""
    file, link = there / "ckpt/sub/grüße b", there / "ckpt/link"
    (there / "ckpt/empty").touch()
    os.utime(there / "ckpt/empty", (5, 5))
    ends = [
        (download, "ckpt/", tmp_path / "out", str(tmp_path / "out")),
        (upload, f"{there}/ckpt/", there / "in", "in"),
    ]
    for turn, (copy, source, target, name) in itertools.product(range(3), ends):
        file.write_text(str(turn))
        os.utime(file, (turn, turn))
        link.unlink()
        link.symlink_to(f"sub/{turn}")
        for here in (False, True):
            copied = copy(start, source, f"{name}{here}", here=here)
            assert copied.files == (1 if turn else 3), (turn, copy, here)
            same(there / "ckpt", Path(f"{target}{here}"))


class Odd:
    """A replica that lists files and sends an archive as it likes."""

    def __init__(self, folder: Path, listed: str, *sent: tarfile.TarInfo, before: bytes = b"") -> None:
        packed = io.BytesIO()
        with tarfile.open(mode="w", fileobj=packed) as tar:
            for info in sent:
                tar.addfile(info, io.BytesIO(bytes(info.size)))
        self._listed, self._sent = folder / "listed", folder / "sent"
        self._listed.write_text(f"folder\n/x\n{listed}")
        self._sent.write_bytes(before + packed.getvalue())

    def __call__(self, argv: Sequence[str]) -> InsideProcess:
        return SpawnedProcess(["cat", str(self._listed if "find" in argv[2] else self._sent)])


def with_time(text: str) -> tarfile.TarInfo:
    info, _ = member("f")
    info.pax_headers = {"mtime": text}
    return info


DEEP = "/".join("d" * 2500)
FILE = "0 0 w ext2\n81a4 3 1 ./f//\n"
LONG_NAME = tarfile.TarInfo("././@LongLink")
LONG_NAME.type, LONG_NAME.size = tarfile.GNUTYPE_LONGNAME, 2
ODD_ANSWERS: dict[str, tuple[str, list[Any], bytes, str]] = {
    "a deep folder": (
        f"0 0 w ext2\n41ed 0 0 ./{DEEP}//\n",
        [member(DEEP, tarfile.DIRTYPE)[0]],
        b"",
        "path is too long",
    ),
    "a deep file": (f"0 0 w ext2\n81a4 3 1 ./{DEEP}//\n", [member(DEEP)[0]], b"", "d/d/d.*`.*path is too long"),
    "no time": (FILE, [with_time("nan")], b"", "`f` has a modification time that is none: `nan`"),
    "never": (FILE, [with_time("1e300")], b"", "`f` has a modification time that is none: `1e"),
    "a size of letters": ("0 0 w ext2\n81a4 x 1 ./f//\n", [], b"", "what the replica sent cannot be read: .*'x'"),
    "an endless size": (f"0 0 w ext2\n81a4 {'9' * 5000} 1 ./f//\n", [], b"", "what the replica sent cannot be read"),
    "a user of letters": ("me 0 w ext2\n", [], b"", "what the replica sent cannot be read: .*'me'"),
    "names of names": (FILE, [], LONG_NAME.tobuf() + bytes(512), "recursion depth exceeded"),
}


@pytest.mark.parametrize("odd", ODD_ANSWERS)
def test_odd_answers_are_one_clear_line(tmp_path: Path, odd: str) -> None:
    """A folder that is too deep, times, sizes and archives that are none: one line, no traceback, nothing outside."""
    listed, sent, before, said = ODD_ANSWERS[odd]
    replica = Odd(tmp_path, listed, *sent, before=before * 2000)
    with pytest.raises(BackendError, match=said) as refused:
        download(replica, "x/", str(tmp_path / "out"))
    assert "\n" not in refused.value.message
    assert len(str(refused.value)) < 1000
    assert not [*(tmp_path / "out").glob("*")]


def make_deep(folder: Path, depth: int, name: str) -> None:
    folder.mkdir()
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=fd)
        above, fd = fd, os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(above)
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd))
    os.close(fd)


def test_a_deep_folder(start: Any, there: Path, tmp_path: Path) -> None:
    """Its depth may exceed Python's limit of recursion, in both directions, with and without a stream."""
    make_deep(there / "deep", 400, "d")
    limit, frames = sys.getrecursionlimit(), len(inspect.stack(0))
    try:
        sys.setrecursionlimit(frames + 200)
        for here in (False, True):
            assert upload(start, f"{there}/deep/", f"in{here}", here=here) == Copied(1, 0, 0, [])
            assert download(start, "deep/", f"{tmp_path}/out{here}", here=here) == Copied(1, 0, 0, [])
    finally:
        sys.setrecursionlimit(limit)


def test_a_folder_that_is_too_deep(start: Any, there: Path, tmp_path: Path) -> None:
    """No path leads to its files: one clear line, in both directions."""
    make_deep(there / "deep", 25, "d" * 200)
    try:
        for work in (partial(upload, start, f"{there}/deep", "in"), partial(download, start, "deep", str(tmp_path))):
            with pytest.raises(BackendError, match="too long") as refused:
                work()
            assert len(str(refused.value)) < 1000
    finally:
        subprocess.run(["rm", "-rf", "deep"], cwd=there, check=True)


def test_errors(start: Any, there: Path, tmp_path: Path) -> None:
    """A missing file, an empty or unwritable target, and an interrupted stream, after which the rest is fetched."""
    with pytest.raises(NotFoundError, match="is empty"):
        download(start, "ckpt/a", "")
    with pytest.raises(NotFoundError, match="`nope`"):
        download(start, "nope", str(tmp_path))
    with pytest.raises(NotFoundError, match="`nope`"):
        upload(start, "nope", ".")
    with pytest.raises(BackendError, match="cannot be copied: inside the replica"):
        upload(start, str(there / "ckpt"), "ckpt/a/b")

    cut = cut_after(start, 700_000)
    (there / "ckpt/b").write_bytes(b"x" * 500_000)
    with pytest.raises(BackendError, match="the copy was interrupted"):
        download(cut, "ckpt/", str(tmp_path / "out"))
    assert not (tmp_path / "out/a").exists() or not (tmp_path / "out/b").exists()
    download(start, "ckpt/", str(tmp_path / "out"))
    same(there / "ckpt", tmp_path / "out")


def cut_after(start: Any, count: int) -> Any:
    """A replica whose connection breaks after this many bytes."""

    def cut(argv: Sequence[str]) -> InsideProcess:
        sends = "tar" in argv[2] or "tail" in argv[2]
        return start(["sh", "-c", f'"$@" | head -c {count}', "sh", *argv] if sends else argv)

    return cut


@pytest.mark.parametrize("change", ["", "later", "meanwhile", "in place of it"])
def test_a_file_that_was_cut_off_is_gone_on_with(start: Any, there: Path, tmp_path: Path, change: str) -> None:
    """Unless it has changed in the replica, or the part is of another file; then it starts again."""
    big, part = there / "ckpt/a", tmp_path / "a.torchx-part"
    big.write_bytes(os.urandom(9 << 20))
    os.utime(big, (1_000_000, 1_000_000))
    with pytest.raises(BackendError, match="the copy was interrupted"):
        download(cut_after(start, 5 << 20), "ckpt/a", str(tmp_path))
    begun = part.stat().st_size
    assert 3 << 20 < begun < 5 << 20
    if change == "later":
        big.write_bytes(os.urandom(9 << 20))
    elif change == "in place of it":
        part.write_bytes(b"x" * begun)
    elif change == "meanwhile":

        def changing(argv: Sequence[str]) -> InsideProcess:
            if "tail" in argv[2]:
                big.write_bytes(os.urandom(9 << 20))
            return start(argv)

        with pytest.raises(BackendError, match="a` cannot be copied: inside the replica, it has changed"):
            download(changing, "ckpt/a", str(tmp_path))
    done = download(start, "ckpt/a", str(tmp_path))
    assert done == Copied(1, (9 << 20) - (0 if change else begun), 0, [])
    assert (tmp_path / "a").read_bytes() == big.read_bytes()


def test_a_file_that_is_cut_off_again_and_again(start: Any, there: Path, tmp_path: Path) -> None:
    """Each call resumes where the last one stopped, also under a new name."""
    (there / "ckpt/a").write_bytes(os.urandom(9 << 20))
    calls = 0
    while not (tmp_path / "b").exists():
        calls += 1
        with contextlib.suppress(BackendError):
            download(cut_after(start, 3 << 20), "ckpt/a", str(tmp_path / "b"))
        assert calls < 9
    assert (tmp_path / "b").read_bytes() == (there / "ckpt/a").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "there"]


@pytest.mark.parametrize(
    "name", ["a\\b", "\\n", "\\\\", "\\101", "-T", "--checkpoint", " x ", '"', "a\nb", "\n", "\n81a4 1 1 x"]
)
def test_names_are_as_they_are(start: Any, there: Path, tmp_path: Path, name: str) -> None:
    """Names with a special meaning for tar are taken literally."""
    (there / "odd").mkdir()
    (there / "odd" / name).write_text("odd")
    assert download(start, "odd", str(tmp_path / "out")).files == 1
    same(there / "odd", tmp_path / "out")
    assert upload(start, f"{tmp_path}/out", "in/").files == 1
    same(there / "odd", there / "in/out")


@pytest.mark.timeout(60)
def test_more_errors_than_a_pipe_takes(start: Any, there: Path, tmp_path: Path) -> None:
    """stderr is read while files are sent, so that tar does not block. The first errors are shown."""
    many = tmp_path / "many"
    many.mkdir()
    for number in range(1500):
        (many / f"{number:0100}").write_bytes(bytes(1000))
        (there / f"in/{number:0100}/in the way").mkdir(parents=True)
    with pytest.raises(BackendError, match="cannot be copied: inside the replica") as refused:
        upload(start, f"{many}/", "in")
    assert len(str(refused.value)) < 2000


def test_second_names_of_a_file_are_files(start: Any, there: Path, tmp_path: Path) -> None:
    """Hard links, as in caches: each name arrives, in both directions."""
    os.link(there / "ckpt/a", there / "ckpt/sub/also a")
    assert download(start, "ckpt/", str(tmp_path / "out")) == Copied(3, 2_560_001, 0, [])
    same(there / "ckpt", tmp_path / "out")
    assert upload(start, f"{there}/ckpt/", "in") == Copied(3, 2_560_001, 0, [])
    same(there / "ckpt", there / "in")


def test_files_of_this_machine(start: Any, there: Path, tmp_path: Path) -> None:
    """They are copied without a stream, by the same rules; tar reports unreadable files."""

    def refusing(argv: Sequence[str]) -> InsideProcess:
        assert "tar " not in argv[2]
        return start(argv)

    (there / "ckpt/out").symlink_to("/etc/passwd")
    os.mkfifo(there / "ckpt/fifo")
    os.link(there / "ckpt/a", there / "ckpt/sub/also\na")
    seen: list[int] = []
    for again in (False, True):
        sent = Copied(0, 0, 3, ["./fifo", "./out"]) if again else Copied(3, 2_560_001, 0, ["./fifo", "./out"])
        done = download(refusing, "ckpt/", str(tmp_path / "out"), seen.append, here=True)
        assert replace(done, left_out=sorted(done.left_out)) == sent
        put = upload(refusing, f"{tmp_path}/out/", "in", seen.append, here=True)
        assert put == replace(sent, left_out=[])
        same(tmp_path / "out", there / "in")
    assert sum(seen) == 2 * 2_560_001
    assert ((tmp_path / "out/a").stat().st_mtime, (tmp_path / "out/link").readlink()) == (1e6, Path("sub/grüße b"))
    upload(refusing, f"{tmp_path}/out/a", "in/b", here=True)
    download(refusing, "in/b", str(tmp_path / "c"), here=True)
    assert (tmp_path / "c").read_bytes() == (there / "ckpt/a").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="copies within the kernel are of Linux")
@pytest.mark.parametrize("pieces", [0, 1])
def test_a_file_system_between_which_the_kernel_does_not_copy(
    pieces: int, start: Any, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it refuses, the rest is copied by reading and writing."""
    calls: list[int] = []
    sendfile = os.sendfile

    def some(out: int, source: int, offset: None, count: int) -> int:
        calls.append(out)
        if len(calls) > pieces:
            raise OSError(22, "Invalid argument")
        return sendfile(out, source, offset, min(count, 100_000))

    monkeypatch.setattr(os, "sendfile", some)
    download(start, "ckpt/a", str(tmp_path / "a"), here=True)
    assert (tmp_path / "a").read_bytes() == (there / "ckpt/a").read_bytes()
    assert len(calls) > pieces


class OwnWay:
    """A backend's own API: tar outside the replica, which does not see some files, or refuses."""

    def __init__(self, unseen: str = "", *, refuses: bool = False) -> None:
        self.calls: list[tuple[str, bool]] = []
        self._unseen = unseen
        self._refuses = refuses

    def __call__(self, path: str, into: bool) -> InsideProcess:
        self.calls.append((path, into))
        if self._refuses:
            raise BackendError("the engine refused")
        words = ["-C", path, "-xf", "-"] if into else ["-C", os.path.dirname(path), "-cf", "-", os.path.basename(path)]
        return SpawnedProcess(["tar", *([f"--exclude={self._unseen}"] if self._unseen else []), *words])


@pytest.mark.parametrize(
    "way", [OwnWay(), OwnWay("a"), OwnWay("*"), OwnWay(refuses=True)], ids=["all", "some", "none", "no"]
)
def test_a_way_of_the_backends_own(start: Any, there: Path, tmp_path: Path, way: OwnWay) -> None:
    """It is used; what it does not deliver is copied through a process; nothing is counted or sent twice."""
    for again in (False, True):
        sent = Copied(0, 0, 2, []) if again else Copied(2, 1_280_001, 0, [])
        way.calls.clear()
        assert download(start, "ckpt/", str(tmp_path / "out"), archive=way) == sent
        assert way.calls == ([] if again else [(f"{there}/ckpt/.", False)])
        same(there / "ckpt", tmp_path / "out")
        way.calls.clear()
        assert upload(start, f"{there}/ckpt/", "in", archive=way) == sent
        assert way.calls == [(f"{there}/in", True)]
        same(there / "ckpt", there / "in")
    assert download(start, "ckpt/a", str(tmp_path / "b"), archive=way).files == 1
    assert upload(start, f"{there}/ckpt/a", "in/b", archive=way).files == 1
    assert (tmp_path / "b").read_bytes() == (there / "in/b").read_bytes() == (there / "ckpt/a").read_bytes()


def test_a_file_system_in_memory_is_no_way_for_an_engine(start: Any, there: Path, tmp_path: Path) -> None:
    """The engine does not see the mount: files that it wrote would be hidden below it."""
    if not Path("/dev/shm").is_mount():
        pytest.skip("no file system in memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        way = OwnWay()
        assert upload(start, f"{there}/ckpt", folder, archive=way).files == 2
        assert download(start, f"{folder}/ckpt", str(tmp_path / "out"), archive=way).files == 2
        assert way.calls == []
    same(there / "ckpt", tmp_path / "out")
