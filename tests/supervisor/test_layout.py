"""Names of folders: nothing that a user writes leads elsewhere."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchx.supervisor.layout import JOB_FILES, folder_name, replica_folder, task_log


@given(st.text(max_size=300))
def test_a_name_is_one_folder_below(name: str) -> None:
    """Any name becomes one path component that is neither hidden in its parent nor too long for a file system."""
    folder = folder_name(name)
    assert folder not in ("", ".", "..")
    assert "/" not in folder and "\0" not in folder
    assert len(os.fsencode(folder)) <= 255
    assert os.path.dirname(os.path.normpath(os.path.join("/base", folder))) == "/base"


@given(st.text(max_size=40), st.text(max_size=40))
def test_different_names_have_different_folders(a: str, b: str) -> None:
    """No two names share a folder."""
    assert (folder_name(a) == folder_name(b)) == (a == b)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("trainer", "trainer"),
        ("x" * 200, "x" * 200),
        ("é" * 33, "%c3%a9" * 33),
        ("my role", "my%20role"),
        ("a/b", "a%2fb"),
        ("100%", "100%25"),
        ("a\\b", "a%5cb"),
        ("a\tb", "a%09b"),
        ("", "%00"),
        (".", "%2e"),
        ("..", "%2e."),
        (".a", ".a"),
        ("~me", "%7eme"),
        ("a~", "a%7e"),
        ("...", "..."),
        ("\ud800", "%ed%a0%80"),
    ],
)
def test_how_a_name_looks(name: str, folder: str) -> None:
    """ASCII letters, digits, `_`, `-` and `.` stay as they are: a script needs no quotes, and no shell expands it."""
    assert folder_name(name) == folder


@pytest.mark.parametrize("name", ["x" * 201, "é" * 34, "a/" + "x" * 199, "\ud800" * 80])
def test_a_long_name_is_cut_and_told_apart(name: str) -> None:
    """More than 200 characters: the first 60, and a checksum of all."""
    folder = folder_name(name)
    shown, _, checksum = folder.rpartition("%")
    assert len(shown) == 60 and len(checksum) == 8
    assert folder_name(name + "y") != folder


def test_folders_of_replicas() -> None:
    """Below the job's logs, by role and number."""
    assert replica_folder("/logs", "a/b", 3) == "/logs/a%2fb/3"


@pytest.mark.parametrize("name", JOB_FILES)
def test_the_folder_of_a_role_is_no_file_of_the_job(name: str) -> None:
    """A role may have the name of such a file."""
    for path in (replica_folder("/logs", name, 0), task_log("/logs", name, 0)):
        assert path.split("/")[2] == f"%{ord(name[0]):02x}{name[1:]}"
    assert replica_folder("/logs", f"{name}s", 0) == f"/logs/{name}s/0"
