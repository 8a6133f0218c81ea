"""One walk over a source directory: ignore rules, links, order; and nothing outside it."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.workspace.trees import make
from torchx.errors import SpecError
from torchx.workspace import files as workspace_files
from torchx.workspace import walk_workspace
from torchx.workspace.copies import remove_tree
from torchx.workspace.files import LocalFiles, ignore_file, open_workspace


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {"train.py": "train", "lib/a.py": "a", "lib/a.pyc": "junk", "data/big.bin": "big", "data/keep/x.csv": "x"}
    return make(tmp_path / "src", {**files, ".torchxignore": "**/*.pyc\ndata\n!data/keep\n"})


def walked(fs: Any, root: object, **options: str) -> list[tuple[str, list[str], list[str]]]:
    return [(d[len(str(root)) :], list(s), list(f)) for d, s, f in walk_workspace(fs, str(root), **options)]


def links(folder: Path) -> dict[str, object]:
    found = {}
    for d, _, files in walk_workspace(LocalFiles(), str(folder)):
        for name, info in files.items():
            if info.get("islink"):
                found[f"{d}/{name}".removeprefix(f"{folder}/")] = info["destination"]
    return found


def test_a_walk_is_ordered_and_obeys_the_ignore_file(source: Path) -> None:
    """Directories and files are sorted, without ignored ones, for local files and for fsspec alike."""
    import fsspec

    expected = [
        ("", ["lib"], [".torchxignore", "train.py"]),
        ("/data", ["keep"], []),
        ("/data/keep", [], ["x.csv"]),
        ("/lib", [], ["a.py"]),
    ]
    for fs in (LocalFiles(), fsspec.filesystem("file")):
        assert walked(fs, source) == expected


def test_a_workspace_in_memory() -> None:
    """Any fsspec file system can be walked."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/ws_t/a.py": b"a", "/ws_t/sub/b.py": b"b", "/ws_t/.torchxignore": b"sub"})
    try:
        fs, root = open_workspace("memory://ws_t")
        assert [sorted(f) for _, _, f in walk_workspace(fs, root)] == [[".torchxignore", "a.py"]]
    finally:
        memory.rm("/ws_t", recursive=True)


@pytest.mark.parametrize(
    ("rules", "name", "kept"),
    [
        ({".torchxignore": "a"}, ".torchxignore", {"b", "c"}),
        ({".dockerignore": "b"}, ".dockerignore", {"a", "c"}),
        ({".torchxignore": "a", ".dockerignore": "b"}, ".torchxignore", {"b", "c"}),
        ({".torchxignore": "", ".dockerignore": "b"}, ".torchxignore", {"a", "b", "c"}),
        ({}, "", {"a", "b", "c"}),
    ],
    ids=["ours", "Docker's", "ours goes first, alone", "an empty one counts", "none"],
)
def test_which_ignore_file_counts(tmp_path: Path, rules: dict[str, str], name: str, kept: set[str]) -> None:
    """`.torchxignore` is used if it exists, else `.dockerignore`; never both."""
    make(tmp_path, {"a": "", "b": "", "c": "", **rules})
    assert ignore_file(LocalFiles(), str(tmp_path)) == name
    [(_, _, files)] = walked(LocalFiles(), tmp_path)
    assert {f for f in files if not f.startswith(".")} == kept


def test_another_ignore_file(tmp_path: Path) -> None:
    """A request for another ignore file uses only that file."""
    make(tmp_path, {"a": "", "b": "", "mine": "a", ".dockerignore": "b"})
    assert walked(LocalFiles(), tmp_path, ignore_name="mine") == [("", [], [".dockerignore", "b", "mine"])]
    assert walked(LocalFiles(), tmp_path, ignore_name="none")[0][2] == [".dockerignore", "a", "b", "mine"]


def test_a_malformed_rule_is_named(tmp_path: Path) -> None:
    """The error has file and line of a malformed rule."""
    make(tmp_path, {".dockerignore": "ok\n[a"})
    with pytest.raises(SpecError, match=r"`\[a` is not an ignore pattern \(.*/.dockerignore:2\)"):
        walked(LocalFiles(), tmp_path)


def test_links_that_stay_within(source: Path) -> None:
    """Links are kept; absolute ones, and those through the workspace's own name, become relative."""
    make(
        source,
        {
            "rel": "-> lib/a.py",
            "lib/abs": f"-> {source}/train.py",
            "dir": "-> lib",
            "loop": "-> .",
            "to-itself": "-> to-itself",
            "dangling": "-> nowhere",
            "lib/by-name": "-> ../../src/train.py",
            "lib/up": "-> ..",
        },
    )
    assert links(source) == {
        "rel": "lib/a.py",
        "lib/abs": "../train.py",
        "dir": "lib",
        "loop": ".",
        "to-itself": "to-itself",
        "dangling": "nowhere",
        "lib/by-name": "../train.py",
        "lib/up": "..",
    }


def test_links_through_other_links(source: Path) -> None:
    """A link that goes up after a name, which may be a link, becomes one that depends on no other link."""
    make(source, {"deep/er/x": "x", "data/keep/to": "-> ../../deep/er", "sly": "-> data/keep/to/../er/x"})
    assert links(source) == {"data/keep/to": "../../deep/er", "sly": "deep/er/x"}


def test_links_that_lead_out(source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Links that lead out in any way are omitted, with a warning that shows the destination."""
    make(tmp_path, {"outside/secret": "secret", "srcs/secret": "a name that begins as ours"})
    make(
        source,
        {
            "out": f"-> {tmp_path}/outside/secret",
            "up": "-> ../outside",
            "sly": "-> lib/../../outside/secret",
            "over": "-> up/secret",
            "nowhere": "-> /nonexistent",
            "neighbour": "-> ../srcs/secret",
            "root": "-> /",
        },
    )
    with caplog.at_level(logging.WARNING, "torchx.workspace"):
        assert links(source) == {}
    said = [r.getMessage() for r in caplog.records]
    assert sorted(text.split("`")[1].rpartition("/")[2] for text in said) == sorted(
        ["out", "up", "sly", "over", "nowhere", "neighbour", "root"]
    )
    assert f"it links to `{tmp_path}/outside/secret`, outside the workspace" in " ".join(said)


def test_an_ignored_link_is_no_news(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There is no warning about ignored entries."""
    make(source, {"data/out": "-> /etc/passwd", "lib/x.pyc": "-> /etc/passwd"})
    with caplog.at_level(logging.WARNING, "torchx.workspace"):
        links(source)
    assert caplog.records == []


def test_the_root_may_be_a_link(source: Path, tmp_path: Path) -> None:
    """If the root is a link, the workspace is its target; links within it stay within."""
    make(source, {"lib/abs": f"-> {source}/train.py", "rel": "-> train.py"})
    (tmp_path / "current").symlink_to("src")
    assert links(tmp_path / "current") == {"lib/abs": "../train.py", "rel": "train.py"}


def test_what_is_no_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A FIFO and a socket are omitted with a warning, and do not block."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as s:
        here = os.open(tmp_path, os.O_RDONLY)
        try:
            s.bind(f"/proc/self/fd/{here}/sock")  # the path of the folder may be too long for a socket
        finally:
            os.close(here)
        with caplog.at_level(logging.WARNING, "torchx.workspace"):
            assert walked(LocalFiles(), tmp_path) == [("", [], [])]
    assert sorted(r.getMessage() for r in caplog.records) == [
        f"`{tmp_path}/{name}` is left out: it is neither a file, a directory nor a link" for name in ("pipe", "sock")
    ]


def test_what_is_removed_during_the_walk_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may remove its temporary files and folders at any time."""
    make(tmp_path, {"a": "a", "b": "b", "lib/c": "c"})
    identity_of = workspace_files.identity_of

    def removing(status: os.stat_result) -> tuple[int, ...]:
        for path in (tmp_path / "a", tmp_path / "b"):
            if path.exists() and path.stat().st_ino != status.st_ino:
                path.unlink()
        return identity_of(status)

    monkeypatch.setattr(workspace_files, "identity_of", removing)
    walk = iter(walk_workspace(LocalFiles(), str(tmp_path)))
    _, folders, found = next(walk)
    assert list(folders) == ["lib"]
    assert len(list(found)) <= 1  # none, if the folder was listed first
    remove_tree(str(tmp_path / "lib"))
    assert list(walk) == [(str(tmp_path / "lib"), {}, {})]


def test_a_fifo_in_the_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """Reading does not block on whatever replaced a file after the walk, and does not follow a link there."""
    os.mkfifo(tmp_path / "pipe")
    with LocalFiles().open(str(tmp_path / "pipe")) as f:
        assert f.read() == b""
    (tmp_path / "link").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic link"):
        LocalFiles().open(str(tmp_path / "link"))


def test_earlier_job_folders_are_no_part_of_a_workspace(source: Path) -> None:
    """Job folders and the store are omitted: otherwise each job would include all earlier ones."""
    make(source, {"jobs/1/.torchx-workspace": "hash", "jobs/1/train.py": "old", "jobs/note": "n"})
    make(source, {"jobs/.torchx-workspaces-0/x/lease": "l", ".torchx-workspace": "of a job that submits jobs"})
    found = [f"{d}/{f}" for d, _, files in walked(LocalFiles(), source) for f in files]
    assert found == ["/.torchxignore", "/train.py", "/data/keep/x.csv", "/jobs/note", "/lib/a.py"]


@pytest.mark.parametrize("name", ["..", ".", "a/..", "nul\0nul"])
def test_a_file_system_that_lies(name: str) -> None:
    """An entry whose name leads out of the workspace is an error."""

    class Evil(LocalFiles):
        def isdir(self, path: str) -> bool:
            return True

        def ls(self, path: str, detail: bool = True) -> list[dict[str, object]]:
            return [{"name": f"{path}/{name}", "type": "file", "size": 1}]

    with pytest.raises(SpecError, match="leads out of it"):
        list(walk_workspace(Evil(), "/ws"))


def test_a_folder_that_cannot_be_read(tmp_path: Path) -> None:
    """The error has the folder, the reason, and a way to continue without it."""

    class Locked(LocalFiles):
        def ls(self, path: str, detail: bool = True) -> list[dict[str, object]]:
            if path.endswith("/locked"):
                raise PermissionError(13, "Permission denied", path)
            return super().ls(path, detail)

    make(tmp_path, {"locked/a": "", "b": ""})
    with pytest.raises(SpecError, match=r"`.*/locked` cannot be read: Permission denied") as caught:
        walked(Locked(), tmp_path)
    assert ".torchxignore" in caught.value.hint
    make(tmp_path, {".torchxignore": "locked"})
    assert walked(Locked(), tmp_path) == [("", [], [".torchxignore", "b"])]


def test_a_tree_deeper_than_python_can_call(tmp_path: Path) -> None:
    """1500 nested folders can be walked."""
    deep = tmp_path
    for _ in range(15):
        deep = deep.joinpath(*["d"] * 100)
        deep.mkdir(parents=True)
    try:
        assert len(walked(LocalFiles(), tmp_path)) == 1501
    finally:
        remove_tree(str(tmp_path / "d"))  # pytest's own would call itself too often


def test_missing_workspaces(tmp_path: Path) -> None:
    """A missing workspace, or one of an unknown kind, is an error that names it."""
    with pytest.raises(SpecError, match=r"`.*/nope` is not a directory"):
        walk_workspace(LocalFiles(), str(tmp_path / "nope"))
    with pytest.raises(SpecError, match="`nosuchscheme://x` cannot be opened"):
        open_workspace("nosuchscheme://x")


@pytest.mark.parametrize(
    ("text", "root"),
    [("file:///a/b/", "/a/b"), ("/a/../b", "/b"), ("local:///a", "/a"), ("~/x", "{home}/x")],
)
def test_local_addresses(text: str, root: str) -> None:
    """A path is accepted with or without a scheme, and needs no fsspec."""
    fs, found = open_workspace(text)
    assert isinstance(fs, LocalFiles)
    assert found == root.format(home=os.path.expanduser("~"))
