"""Local and remote files return the same answers; remote ones also after a lost connection."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schedulers.batch.fake_ssh import FakeSsh
from torchx.errors import BackendError, ConfigError
from torchx.schedulers.batch.folders import TAIL_BYTES, JobFolder, read_whole
from torchx.schedulers.batch.ssh import master as ssh_master
from torchx.schedulers.batch.ssh.remote_files import RemoteFiles
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
from torchx.schedulers.kit.files import MAX_GROWN, LocalFiles

AnyFiles = LocalFiles | RemoteFiles
BYTES = bytes(range(256)) * 3


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSsh]:
    made = FakeSsh(tmp_path / "fake")
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("HOME", str(made.there))
    monkeypatch.delenv("TORCHX_HOME")
    monkeypatch.setattr(time, "sleep", lambda s: None)
    yield made
    ssh_master.end_all()


@pytest.fixture
def remote(fake: FakeSsh) -> RemoteFiles:
    return RemoteFiles(SSHCommandRunner("login"))


@pytest.fixture(params=["here", "there"])
def files(request: pytest.FixtureRequest, fake: FakeSsh) -> AnyFiles:
    return LocalFiles() if request.param == "here" else RemoteFiles(SSHCommandRunner("login"))


def test_writing_and_reading(files: AnyFiles, fake: FakeSsh) -> None:
    """Written files can be read, also in part; only their user can read them, and no temporary file remains."""
    folder = fake.there / "a" / "it's $HOME"
    files.make_folder(str(folder))
    path = str(folder / "x y")
    files.write(path, BYTES)
    files.write(path, BYTES + b"!")
    assert files.read(path) == BYTES + b"!"
    assert files.read(path, 3, 5) == BYTES[3:8]
    assert files.read(path, 700) == BYTES[700:] + b"!"
    assert files.read(path, 9999) == b""
    assert files.read(path, 0, 0) == b""
    assert files.names(str(folder)) == ["x y"]
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(folder).st_mode & 0o777 == 0o700


def test_what_is_not_there(files: AnyFiles, fake: FakeSsh) -> None:
    """Missing files are None or empty, and removing them succeeds."""
    path = str(fake.there / "no")
    assert files.read(path) is None
    assert files.names(path) == []
    assert files.sizes([path]) == {path: None}
    assert files.grown({path: 0}) == {}
    files.remove(path)


def test_sizes_and_growth(files: AnyFiles, fake: FakeSsh) -> None:
    """One query answers for all files."""
    found = {}
    for i, name in enumerate(["plain", "two  words ", "-n", "it's", "back\\n", "*"]):
        (fake.there / name).write_bytes(BYTES[:i])
        found[str(fake.there / name)] = i
    assert files.sizes(found) == found
    assert files.grown(dict.fromkeys(found, 2)) == {path: BYTES[2:i] for path, i in found.items() if i > 2}
    assert files.grown(found) == {}


def test_growth_is_bounded(files: AnyFiles, fake: FakeSsh) -> None:
    """A large file is returned in pieces."""
    data = os.urandom(MAX_GROWN + 100)
    path = str(fake.there / "big")
    Path(path).write_bytes(data)
    assert files.grown({path: 0}) == {path: data[:MAX_GROWN]}
    assert files.grown({path: MAX_GROWN}) == {path: data[MAX_GROWN:]}


@pytest.mark.parametrize("count", [1, 3, 699, 700, 701, 5000])
def test_the_ends_of_files(files: AnyFiles, fake: FakeSsh, count: int) -> None:
    """A negative offset counts from the end; a shorter file is returned completely."""
    wanted = {}
    for size in (1, 700, 900):
        path = fake.there / f"{size}  x"
        path.write_bytes(BYTES[:1] * (size - 1) + b"z")
        wanted[str(path)] = path.read_bytes()[-count:]
    (fake.there / "empty").touch()
    offsets = dict.fromkeys([*wanted, str(fake.there / "empty"), str(fake.there / "no")], -count)
    assert files.grown(offsets) == wanted
    assert {path: files.read(path, -count) for path in wanted} == wanted


def test_what_many_replicas_left_behind(files: AnyFiles, fake: FakeSsh) -> None:
    """Error files and the ends of stderr by one query; stdout if stderr is empty; partial lines are dropped."""
    folder = JobFolder(files, str(fake.there))
    for k, (name, text) in enumerate(
        [("error.json", "{}"), ("stderr.log", "cut " * TAIL_BYTES + "\nlast\n"), ("stdout.log", "out\n")]
    ):
        (fake.there / "w" / str(k)).mkdir(parents=True)
        (fake.there / "w" / str(k) / name).write_text(text)
    (fake.there / "w" / "2" / "srun.log").write_text("said\n")
    first, second, third = folder.evidence([("w", k) for k in range(3)], said="srun.log")
    assert (first.error_file, first.stderr, first.said) == ("{}", "", "")
    assert (second.error_file, second.stderr) == (None, "last\n")
    assert (third.stdout, third.said) == ("out\n", "said\n")


def test_whole_files(files: AnyFiles, fake: FakeSsh) -> None:
    """Any amount of data is read, although one answer over SSH is limited to a few MiB. Missing and empty files are
    left out.
    """
    made = {str(fake.there / f"f{n}"): b"%d" % n * (MAX_GROWN - 1) for n in range(10)}
    made[str(fake.there / "large")] = b"x" * (2 * MAX_GROWN + 1)
    for path, data in made.items():
        Path(path).write_bytes(data)
    (fake.there / "empty").touch()
    assert read_whole(files, [*made, str(fake.there / "empty"), str(fake.there / "no")]) == made


def test_removing(files: AnyFiles, fake: FakeSsh) -> None:
    """It removes a folder with its content, or a file."""
    (fake.there / "a" / "b").mkdir(parents=True)
    (fake.there / "f").touch()
    files.remove(str(fake.there / "a"))
    files.remove(str(fake.there / "f"))
    assert set(os.listdir(fake.there)) <= {".torchx"}  # of the connection, where paths are short


def test_refusals(files: AnyFiles, fake: FakeSsh) -> None:
    """Each is a BackendError that names the path."""
    (fake.there / "file").touch()
    below = str(fake.there / "file" / "x")
    for call in (
        lambda: files.make_folder(below),
        lambda: files.write(below, b""),
        lambda: files.read(str(fake.there)),
    ):
        with pytest.raises(BackendError, match=str(fake.there)):
            call()


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_call_outlives_a_lost_connection(when: str, remote: RemoteFiles, fake: FakeSsh) -> None:
    """It is retried, because repeating it is harmless."""
    remote.home()
    path = str(fake.there / "d" / "f")
    for call, answer in (
        (lambda: remote.make_folder(str(fake.there / "d")), None),
        (lambda: remote.write(path, BYTES), None),
        (lambda: remote.read(path), BYTES),
        (lambda: remote.sizes([path]), {path: len(BYTES)}),
        (lambda: remote.grown({path: 700}), {path: BYTES[700:]}),
        (lambda: remote.names(str(fake.there / "d")), ["f"]),
        (lambda: remote.remove(path), None),
    ):
        fake.loses(when, 2)
        assert call() == answer
    assert os.listdir(fake.there / "d") == []


@pytest.mark.parametrize("path", ["", "relative", "/line\nend", "/nul\0"])
def test_paths_that_are_none(path: str, remote: RemoteFiles, fake: FakeSsh) -> None:
    """Invalid paths are rejected without a connection."""
    for call in (remote.read, remote.names, remote.remove, remote.make_folder, lambda p: remote.grown({p: 0})):
        with pytest.raises(ConfigError, match="cannot be a path"):
            call(path)
    assert fake.calls() == []


def test_homes(remote: RemoteFiles, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are queried once; `$TORCHX_HOME` there applies, and the option has precedence."""
    assert remote.torchx_home("a", "b") == f"{fake.there}/.torchx/a/b"
    assert remote.home() == remote.cwd() == str(fake.there)
    assert fake.calls().count("run") == 1
    with monkeypatch.context() as patch:
        patch.setenv("TORCHX_HOME", "/elsewhere")
        assert RemoteFiles(SSHCommandRunner("login")).torchx_home() == "/elsewhere"
        ssh_master.end_all()
    assert RemoteFiles(SSHCommandRunner("login", "~/x y")).torchx_home("a") == f"{fake.there}/x y/a"


def test_the_home_folder_is_not_removed(remote: RemoteFiles, fake: FakeSsh) -> None:
    """No spelling of its path is accepted."""
    for path in ("/", "//", str(fake.there), f"{fake.there}/", f"{fake.there}/x/.."):
        with pytest.raises(ConfigError, match="cannot be removed"):
            remote.remove(path)
    assert fake.there.exists()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(st.text(st.characters(blacklist_characters="\0\n/", blacklist_categories=["Cs"]), min_size=1, max_size=30))
def test_any_name(remote: RemoteFiles, fake: FakeSsh, name: str) -> None:
    """All valid file names work."""
    if name in (".", "..") or len(os.fsencode(name)) > 200:
        return
    folder = f"{fake.there}/files"
    remote.make_folder(folder)
    path = f"{folder}/{name}"
    remote.write(path, b"x")
    assert remote.grown({path: 0}) == {path: b"x"}
    assert remote.names(folder) == [name]
    remote.remove(path)
