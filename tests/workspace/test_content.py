"""The contents of a workspace: the files of all its projects, each at its place, and their hash."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workspace.trees import make
from torchx.errors import MissingDependencyError, SpecError
from torchx.specs import Workspace
from torchx.workspace.content import DIRECTORY, FILE, Entry, _put, content_hash, entries, sha256_of


def paths(workspace: Workspace | str) -> list[str]:
    return [entry.path for entry in entries(workspace)]


def text_of(entry: Entry) -> str:
    return b"".join(entry.chunks()).decode()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make(tmp_path / "src", {"b.py": "b", "a/x.py": "x", "a/link": "-> x.py", "empty/": "", "a.b": "ab"})


def test_entries_are_whole_and_in_order(source: Path) -> None:
    """Folders, even empty ones, come before their contents; modes, sizes and times are those of the files."""
    (source / "b.py").chmod(0o4755)
    os.utime(source / "b.py", (1e9, 1e9))
    found = entries(str(source))
    assert [(e.path, e.kind) for e in found] == [
        ("a", "directory"),
        ("a/link", "link"),
        ("a/x.py", "file"),
        ("a.b", "file"),
        ("b.py", "file"),
        ("empty", "directory"),
    ]
    file = found[4]
    assert (file.mode, file.size, file.mtime, file.local) == (0o755, 1, 1e9, str(source / "b.py"))
    assert found[1].target == "x.py"


def test_no_file_is_read_to_list_them(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing a workspace reads only its directories."""
    monkeypatch.setattr("torchx.workspace.files.LocalFiles.open", lambda *_: pytest.fail("read"))
    assert len(entries(str(source))) == 6


def test_projects_go_to_their_places(tmp_path: Path) -> None:
    """Each project uses its own ignore file; a later one wins; a project may be a file."""
    make(tmp_path / "one", {"train.py": "old", "lib/a.py": "a", "lib/junk.pyc": "", ".torchxignore": "**/*.pyc"})
    make(tmp_path / "two", {"a.py": "newer", "b.pyc": "kept: this project ignores nothing"})
    make(tmp_path, {"train.py": "new"})
    found = entries(
        Workspace({str(tmp_path / "one"): "", str(tmp_path / "two"): "lib/./", str(tmp_path / "train.py"): ""})
    )
    files = {e.path: text_of(e) for e in found if e.kind == FILE and not e.path.startswith(".")}
    assert files == {"train.py": "new", "lib/a.py": "newer", "lib/b.pyc": "kept: this project ignores nothing"}


@pytest.mark.parametrize(
    ("first", "second", "place", "expected"),
    [
        ({"x": "file"}, {"a": ""}, "x", ["x", "x/a"]),
        ({"x": "-> /tmp"}, {"a": ""}, "x", ["x", "x/a"]),
        ({"x/a": "", "x/b/c": "", "xy": ""}, {"x": "file"}, "", ["x", "xy"]),
        ({"x/a": ""}, {"b": ""}, "x/a/y", ["x", "x/a", "x/a/y", "x/a/y/b"]),
    ],
    ids=["folder over file", "folder over link", "file over folder", "folder below file"],
)
def test_projects_in_each_others_way(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], place: str, expected: list[str]
) -> None:
    """A later project replaces an earlier one as a whole: no file remains below a non-directory, and no link is followed."""
    make(tmp_path / "one", first)
    make(tmp_path / "two", second)
    found = entries(Workspace({str(tmp_path / "one"): "", str(tmp_path / "two"): place}))
    assert [e.path for e in found] == expected
    kinds = {e.path: e.kind for e in found}
    assert all(kinds[os.path.dirname(path)] == DIRECTORY for path in kinds if "/" in path)


names = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join)


@given(st.lists(st.tuples(names, st.sampled_from(["file", "directory", "link"])), max_size=12))
def test_a_merge_is_always_a_tree(rows: list[tuple[str, str]]) -> None:
    """For any entries in any order, each entry's parent is a folder, and the last entry of a name wins."""
    found: dict[str, Entry] = {}
    for path, kind in rows:
        _put(found, Entry(path, kind, 0o755))
    for path, entry in found.items():
        assert entry.path == path
        parts = path.split("/")
        assert all(found["/".join(parts[:n])].kind == DIRECTORY for n in range(1, len(parts)))
    if rows:
        path, kind = rows[-1]
        assert found[path].kind == kind


@pytest.mark.parametrize("place", ["../up", "/abs", "a/../../up", ".."])
def test_places_stay_below(source: Path, place: str) -> None:
    """A place outside the workspace is an error."""
    with pytest.raises(SpecError, match=r"would go to `.*`, which is outside the workspace"):
        entries(Workspace({str(source): place}))


@pytest.mark.parametrize("place", ["", ".", "./", "a/.."])
def test_places_that_are_the_root(source: Path, place: str) -> None:
    """Any spelling of the root is accepted."""
    assert paths(Workspace({str(source): place})) == paths(str(source))


# -- sources elsewhere -----------------------------------------------------------------------------


@pytest.fixture
def memory() -> Any:
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.pipe({"/ws_m/a.py": b"aaa", "/ws_m/lib/b.py": b"b", "/ws_m/lib/c.pyc": b"", "/ws_m/.torchxignore": b"**/*.pyc"})
    yield fs
    fs.rm("/ws_m", recursive=True)


def test_a_workspace_in_memory(memory: Any) -> None:
    """Content and times come through fsspec; unknown modes get defaults."""
    found = entries("memory://ws_m")
    assert [(e.path, e.mode, e.size) for e in found] == [
        (".torchxignore", 0o644, 8),
        ("a.py", 0o644, 3),
        ("lib", 0o755, 0),
        ("lib/b.py", 0o644, 1),
    ]
    assert [text_of(e) for e in found if e.kind == FILE] == ["**/*.pyc", "aaa", "b"]
    assert all(e.mtime > 1e9 for e in found if e.kind == FILE)


def test_the_same_content_has_the_same_hash_wherever_it_is(memory: Any, tmp_path: Path) -> None:
    """The hash depends on the contents, not on their source."""
    make(tmp_path, {"a.py": "aaa", "lib/b.py": "b", "lib/c.pyc": "other junk", ".torchxignore": "**/*.pyc"})
    for folder, _, files in os.walk(tmp_path):
        os.chmod(folder, 0o755)
        for name in files:
            os.chmod(os.path.join(folder, name), 0o644)
    assert content_hash(entries(str(tmp_path))) == content_hash(entries("memory://ws_m"))


def test_chained_file_systems(tmp_path: Path) -> None:
    """A file system in a file works: `zip://` in a local archive."""
    import zipfile

    with zipfile.ZipFile(tmp_path / "code.zip", "w") as z:
        z.writestr("pkg/a.py", "zipped")
    [_, file] = entries(f"zip://::file://{tmp_path}/code.zip")
    assert (file.path, text_of(file)) == ("pkg/a.py", "zipped")


def test_a_file_system_that_fails(monkeypatch: pytest.MonkeyPatch, memory: Any) -> None:
    """Any error of a remote file system becomes one line with the address."""

    def refuse(self: object, *args: object, **kwargs: Any) -> None:
        raise RuntimeError("no credentials")

    monkeypatch.setattr(type(memory), "ls", refuse)
    with pytest.raises(SpecError, match="workspace `memory://ws_m` cannot be read: no credentials"):
        entries("memory://ws_m")


def test_a_file_system_whose_part_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match=r"workspace `s3://bucket/x`") as caught:
        entries("s3://bucket/x")
    assert "`s3`" in caught.value.hint


# -- files that make trouble -----------------------------------------------------------------------

HOSTILE = [
    *(
        "a b",
        "-rf",
        "new\nline",
        "quo'te\"",
        "$(id)",
        "é",
        "*",
        "back\\slash",
        "%2e%2e",
        "tab\t",
        ".hidden",
        "~",
        "a:b",
    ),
    *("n" * 255, "é" * 127, "\udcff\udcfe", "a\udc80b"),
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda n: repr(n)[:20])
def test_hostile_names(tmp_path: Path, name: str) -> None:
    """Any file name, even bytes that are not UTF-8, is kept, and the file can be read."""
    with open(os.path.join(tmp_path, name), "w") as f:
        f.write("content")
    [entry] = entries(str(tmp_path))
    assert (entry.path, text_of(entry)) == (name, "content")
    assert content_hash([entry]).startswith("sha256:")


def test_a_file_that_grows(tmp_path: Path) -> None:
    """A log that is being written to is included at its listed length, as in the header of its archive."""
    make(tmp_path, {"log": "one\n"})
    [entry] = entries(str(tmp_path))
    with open(tmp_path / "log", "a") as f:
        f.write("two\n")
    assert text_of(entry) == "one\n"


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    """A file that became shorter is an error that names it."""
    make(tmp_path, {"log": "one\n"})
    [entry] = entries(str(tmp_path))
    (tmp_path / "log").write_text("")
    with pytest.raises(SpecError, match="`log` became shorter while it was read"):
        text_of(entry)


def test_a_file_that_is_gone_or_locked(tmp_path: Path) -> None:
    """The error names the file and the reason, without a traceback."""
    make(tmp_path, {"a": "a"})
    [entry] = entries(str(tmp_path))
    (tmp_path / "a").unlink()
    with pytest.raises(SpecError, match="`a` cannot be read: No such file or directory") as caught:
        text_of(entry)
    assert ".torchxignore" in caught.value.hint

    def locked() -> Any:
        raise PermissionError(13, "Permission denied")

    with pytest.raises(SpecError, match="`b` cannot be read: Permission denied"):
        sha256_of(Entry("b", FILE, 0o600, size=1, opener=locked))


def test_a_link_that_took_a_files_place(tmp_path: Path) -> None:
    """A link that replaces a file is not followed."""
    make(tmp_path, {"a": "a"})
    [entry] = entries(str(tmp_path))
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("/etc/passwd")
    with pytest.raises(SpecError, match="`a` cannot be read"):
        text_of(entry)


def test_hard_links_are_files(tmp_path: Path) -> None:
    """Two hard links of one file are two files."""
    make(tmp_path, {"a": "x"})
    os.link(tmp_path / "a", tmp_path / "b")
    assert [(e.path, text_of(e)) for e in entries(str(tmp_path))] == [("a", "x"), ("b", "x")]


def test_a_huge_file_is_streamed(tmp_path: Path) -> None:
    """Hashing a file of 200 MB takes a few megabytes of memory."""
    with open(tmp_path / "big", "wb") as f:
        f.truncate(200 << 20)
    [entry] = entries(str(tmp_path))
    tracemalloc.start()
    try:
        sha256_of(entry)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


# -- the hash --------------------------------------------------------------------------------------


def test_times_and_owners_do_not_count(source: Path) -> None:
    """The same files give the same hash."""
    before = content_hash(entries(str(source)))
    os.utime(source / "b.py", (1, 1))
    assert content_hash(entries(str(source))) == before


@pytest.mark.parametrize("change", ["content", "mode", "name", "link", "empty folder", "new file", "kind"])
def test_every_change_counts(source: Path, change: str) -> None:
    """Content, permissions, names, link targets and empty folders change the hash."""
    before = content_hash(entries(str(source)))
    if change == "content":
        (source / "b.py").write_text("B")
    elif change == "mode":
        (source / "b.py").chmod(0o700)
    elif change == "name":
        (source / "b.py").rename(source / "c.py")
    elif change == "link":
        (source / "a" / "link").unlink()
        (source / "a" / "link").symlink_to("./x.py")
    elif change == "empty folder":
        (source / "empty").rmdir()
    elif change == "new file":
        (source / "new").write_text("")
    else:
        (source / "empty").rmdir()
        (source / "empty").write_text("")
    assert content_hash(entries(str(source))) != before


def test_names_cannot_pass_for_content() -> None:
    """Two files are never taken for one with a long name."""
    one = [Entry("a", "link", 0o777, target="b"), Entry("c", "link", 0o777, target="d")]
    other = [Entry("a", "link", 0o777, target="b4:link,3:777,1:c,1:d")]
    assert content_hash(one) != content_hash(other)
