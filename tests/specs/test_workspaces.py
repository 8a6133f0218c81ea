"""Workspaces: source directories and their destinations in the image."""

from __future__ import annotations

import os
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.errors import SpecError
from torchx.specs import Workspace

_place = st.text("ab=,\\ .-", min_size=1).filter(lambda s: s != "." and not s.startswith(".."))


@given(st.dictionaries(st.text(min_size=1), st.one_of(st.just(""), _place)))
def test_str_and_from_str_are_inverse(projects: dict[str, str]) -> None:
    """Paths with commas, equals signs and backslashes survive."""
    assert Workspace.from_str(Workspace(projects).to_text()).projects == projects


@pytest.mark.parametrize(
    ("text", "projects"),
    [
        (None, {}),
        ("", {}),
        ("/src", {"/src": ""}),
        ("s3://bucket/a:b", {"s3://bucket/a:b": ""}),
        ("/a=x,/b=y/z,/c", {"/a": "x", "/b": "y/z", "/c": ""}),
        ("/a=.", {"/a": ""}),
        ("/a\\=b\\,c=x", {"/a=b,c": "x"}),
        ("C:\\src", {"C:\\src": ""}),
        ("/a/proj: proj", {"/a/proj": "proj"}),
        ("\n/a: x\n# all of it\nfile:///b: y/z\n'/c':\n", {"/a": "x", "file:///b": "y/z", "/c": ""}),
        ("{/a: x}", {"/a": "x"}),
    ],
)
def test_from_str(text: str | None, projects: dict[str, str]) -> None:
    """One path is a project at the root; `path=place` maps."""
    workspace = Workspace.from_str(text)
    assert workspace.projects == projects
    assert bool(workspace) is bool(projects)
    assert workspace.is_unmapped_single_project() is (list(projects.values()) == [""])


@pytest.mark.parametrize("text", ["/a=/abs", "/a=../up", "/a=x/../../up", "=x", "/a=x,/a=y", "/a,,/b"])
def test_from_str_refuses(text: str) -> None:
    """A destination outside of the root, no source, or a duplicate source is rejected."""
    with pytest.raises(SpecError, match="workspace"):
        Workspace.from_str(text)


def test_merge_into(tmp_path: pathlib.Path) -> None:
    """Projects are copied to their destinations; later ones overwrite, links are kept, and files are allowed."""
    first, second, out = tmp_path / "first", tmp_path / "second", tmp_path / "out"
    (first / "pkg").mkdir(parents=True)
    (first / "pkg" / "a.py").write_text("a")
    (first / "same").write_text("first")
    os.symlink("same", first / "link")
    second.mkdir()
    (second / "same").write_text("second")
    single = tmp_path / "one.txt"
    single.write_text("one")
    Workspace({str(first): "", str(second): "", f"file://{second}": "sub/dir", str(single): "files"}).merge_into(out)
    found = {str(p.relative_to(out)): p.read_text() for p in out.rglob("*") if p.is_file()}
    assert found == {
        "pkg/a.py": "a",
        "same": "second",
        "link": "second",
        "sub/dir/same": "second",
        "files/one.txt": "one",
    }
    assert os.readlink(out / "link") == "same"


def test_merge_into_from_a_url(tmp_path: pathlib.Path) -> None:
    """A project may be on any file system of fsspec."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    memory.pipe("/torchx_ws/pkg/a.py", b"a")
    memory.pipe("/torchx_ws/b", b"b")
    try:
        Workspace({"memory://torchx_ws": "x"}).merge_into(tmp_path)
    finally:
        memory.rm("/torchx_ws", recursive=True)
    assert (tmp_path / "x" / "pkg" / "a.py").read_text() == "a"
    assert (tmp_path / "x" / "b").read_text() == "b"


@pytest.mark.parametrize(
    "projects", [{"/no/such/dir": ""}, {"memory://nothing": ""}, {".": "../up"}, {".": "/abs"}], ids=str
)
def test_merge_into_refuses(projects: dict[str, str], tmp_path: pathlib.Path) -> None:
    """A missing source or a destination outside is rejected."""
    with pytest.raises(SpecError):
        Workspace(projects).merge_into(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_in_sets_and_for_people() -> None:
    """Equal workspaces have the same hash; `str` is short."""
    assert {Workspace({"/a": "", "/b": "t"}), Workspace({"/b": "t", "/a": ""})} == {Workspace({"/a": "", "/b": "t"})}
    assert str(Workspace({"/a": "", "/b": "t"})) == "/a;/b:t"
