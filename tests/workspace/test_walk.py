"""One walk over a workspace: ignore rules, links, order; and nothing outside it."""

import logging
import os
import stat
from typing import Any

import pytest

from torchx.errors import SpecError
from torchx.specs import Workspace
from torchx.workspace import walk_workspace
from torchx.workspace.api import LocalFiles, copy_workspace, materialize, open_workspace


def tree(folder: object) -> dict[str, str]:
    """Relative path -> content, or ``-> target`` of a link."""
    found = {}
    for here, dirs, files in os.walk(str(folder)):
        for name in files + [d for d in dirs if os.path.islink(os.path.join(here, d))]:
            path = os.path.join(here, name)
            key = os.path.relpath(path, str(folder))
            if os.path.islink(path):
                found[key] = f"-> {os.readlink(path)}"
            else:
                with open(path) as f:
                    found[key] = f.read()
    return found


@pytest.fixture
def source(tmp_path: Any) -> Any:
    folder = tmp_path / "src"
    for name, text in {
        "train.py": "train",
        "lib/a.py": "a",
        "lib/a.pyc": "junk",
        "data/big.bin": "big",
        "data/keep/x.csv": "x",
        ".torchxignore": "**/*.pyc\ndata\n!data/keep\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_walk_is_ordered_and_obeys_the_ignore_file(source: Any) -> None:
    """Directories and files come sorted, less what .torchxignore names, the same for local files and for fsspec's."""
    import fsspec

    expected = [
        ("", ["lib"], [".torchxignore", "train.py"]),
        ("/data", ["keep"], []),
        ("/data/keep", [], ["x.csv"]),
        ("/lib", [], ["a.py"]),
    ]
    for fs in (LocalFiles(), fsspec.filesystem("file")):
        walked = [(d[len(str(source)) :], list(s), list(f)) for d, s, f in walk_workspace(fs, str(source))]
        assert walked == expected


def test_memory_workspace() -> None:
    """A workspace in fsspec's memory file system is copied like a local one."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/ws_t/a.py": b"a", "/ws_t/sub/b.py": b"b", "/ws_t/.torchxignore": b"sub"})
    try:
        fs, root = open_workspace("memory://ws_t")
        assert [sorted(f) for _, _, f in walk_workspace(fs, root)] == [[".torchxignore", "a.py"]]
    finally:
        memory.rm("/ws_t", recursive=True)


def test_copy_from_memory(tmp_path: Any) -> None:
    """Files of a remote workspace arrive with their content."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/ws_c/a.py": b"a", "/ws_c/sub/b.py": b"b"})
    try:
        copy_workspace("memory://ws_c", str(tmp_path / "out"))
    finally:
        memory.rm("/ws_c", recursive=True)
    assert tree(tmp_path / "out") == {"a.py": "a", "sub/b.py": "b"}


def test_copy_keeps_modes_and_empty_folders(source: Any, tmp_path: Any) -> None:
    """Executable files stay executable, empty folders are there."""
    (source / "run.sh").write_text("#!/bin/sh")
    (source / "run.sh").chmod(0o755)
    (source / "empty").mkdir()
    copy_workspace(str(source), str(tmp_path / "out"))
    assert stat.S_IMODE((tmp_path / "out" / "run.sh").stat().st_mode) == 0o755
    assert (tmp_path / "out" / "empty").is_dir()
    assert set(tree(tmp_path / "out")) == {".torchxignore", "train.py", "lib/a.py", "data/keep/x.csv", "run.sh"}


def test_links(source: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Links within the workspace are kept (absolute ones made relative); those that lead out are left out, with a warning."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (source / "rel").symlink_to("lib/a.py")
    (source / "lib" / "abs").symlink_to(source / "train.py")
    (source / "dir").symlink_to("lib")
    (source / "loop").symlink_to(".")
    (source / "dangling").symlink_to("nowhere")
    (source / "out").symlink_to(outside / "secret")
    (source / "up").symlink_to("../outside")
    (source / "sly").symlink_to("lib/../../outside/secret")
    with caplog.at_level(logging.WARNING, "torchx.workspace"):
        copy_workspace(str(source), str(tmp_path / "copy"))
    links = {k: v for k, v in tree(tmp_path / "copy").items() if v.startswith("->")}
    assert links == {
        "rel": "-> lib/a.py",
        "lib/abs": "-> ../train.py",
        "dir": "-> lib",
        "loop": "-> .",
        "dangling": "-> nowhere",
    }
    assert sorted(r.getMessage().split("`")[1].rpartition("/")[2] for r in caplog.records) == ["out", "sly", "up"]


def test_special_files_are_left_out(source: Any, tmp_path: Any) -> None:
    """A FIFO is not copied, and does not block."""
    os.mkfifo(source / "pipe")
    copy_workspace(str(source), str(tmp_path / "out"))
    assert "pipe" not in os.listdir(tmp_path / "out")


@pytest.mark.parametrize("name", ["a b", "-rf", "new\nline", "quo'te\"", "$(id)", "é", "*"], ids=repr)
def test_hostile_names(tmp_path: Any, name: str) -> None:
    """File names of any kind arrive as they are."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / name).write_text("x")
    copy_workspace(str(tmp_path / "src"), str(tmp_path / "out"))
    assert os.listdir(tmp_path / "out") == [name]


def test_a_file_system_that_lies(tmp_path: Any) -> None:
    """An entry whose name leads out of the workspace is refused."""

    class Evil(LocalFiles):
        def isdir(self, path: str) -> bool:
            return True

        def ls(self, path: str, detail: bool = True) -> list[dict[str, object]]:
            return [{"name": f"{path}/..", "type": "file", "size": 1}]

    with pytest.raises(SpecError, match="leads out of it"):
        list(walk_workspace(Evil(), "/ws"))


def test_target_within_the_source(source: Any) -> None:
    """A job folder below the workspace does not become part of itself."""
    copy_workspace(str(source), str(source / "jobs" / "1"))
    assert "jobs" not in os.listdir(source / "jobs" / "1")


def test_missing_workspace(tmp_path: Any) -> None:
    """A workspace that does not exist is refused with its name."""
    with pytest.raises(SpecError, match=r"`.*/nope` is not a directory"):
        copy_workspace(str(tmp_path / "nope"), str(tmp_path / "out"))
    with pytest.raises(SpecError, match="cannot be opened"):
        open_workspace("nosuchscheme://x")


def test_materialize_several_projects(source: Any, tmp_path: Any) -> None:
    """Each project goes to its place by its own ignore file; a later one wins; a file may be a project."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").write_text("newer")
    (other / "a.pyc").write_text("kept, for this project ignores nothing")
    workspace = Workspace({str(source): "", str(other): "lib", str(other / "train.py"): ""})
    materialize(workspace, str(tmp_path / "out"))
    made = tree(tmp_path / "out")
    assert made["train.py"] == "newer"
    assert made["lib/train.py"] == "newer"
    assert made["lib/a.py"] == "a"
    assert "lib/a.pyc" in made


@pytest.mark.parametrize("place", ["../up", "/abs", "a/../../up"])
def test_materialize_stays_below(source: Any, tmp_path: Any, place: str) -> None:
    """A place outside the workspace is refused."""
    with pytest.raises(SpecError, match="outside the workspace"):
        materialize(Workspace({str(source): place}), str(tmp_path / "out"))
