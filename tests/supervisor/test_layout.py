"""Names of folders: nothing that a user writes leads elsewhere."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from torchx.supervisor.layout import folder_name


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
