"""Watching the files of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchx.util import folder_watch
from torchx.util.folder_watch import FolderWatch


def test_one_that_was_interrupted_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C during `__init__` causes no error in `__del__`."""

    def interrupt(path: str) -> int:
        raise KeyboardInterrupt(path)

    monkeypatch.setattr(folder_watch, "_open", interrupt)
    made = FolderWatch.__new__(FolderWatch)
    with pytest.raises(KeyboardInterrupt):
        FolderWatch.__init__(made, str(tmp_path))
    made.close()
