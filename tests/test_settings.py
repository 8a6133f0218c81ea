"""Paths from the environment, and the permissions of torchx's folders."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import pytest

from torchx.settings import make_private


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o777], ids=oct)
def umask(request) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_what_is_made_is_ours_alone(umask, tmp_path, monkeypatch) -> None:
    """All created levels have mode 0700, whatever the umask, also above the home."""
    home = tmp_path / "above" / "home"
    monkeypatch.setenv("TORCHX_HOME", str(home))
    make_private(str(home / "a" / "b"))
    make_private(str(home / "a" / "c"))
    assert [_mode(path) for path in (home.parent, home, home / "a", home / "a" / "b", home / "a" / "c")] == [0o700] * 5


@pytest.mark.parametrize(("mode", "after"), [(0o777, 0o755), (0o775, 0o755), (0o750, 0o750), (0o1777, 0o1777)])
def test_a_home_that_was_there_before(tmp_path, monkeypatch, mode, after) -> None:
    """Others lose write access to the home (unless it is sticky like /tmp) and keep read access; below it they have none."""
    home = tmp_path / "home"
    (home / "local").mkdir(parents=True)
    for path in (home, home / "local"):
        os.chmod(path, mode)
    monkeypatch.setenv("TORCHX_HOME", str(home))
    make_private(str(home / "local" / "session"))
    assert [_mode(path) for path in (home, home / "local", home / "local" / "session")] == [after, 0o700, 0o700]


def test_a_folder_of_somebody_else(tmp_path, monkeypatch) -> None:
    """Folders of others below the home are rejected; the home itself and folders elsewhere are accepted."""
    home = tmp_path / "home"
    monkeypatch.setenv("TORCHX_HOME", str(home))
    make_private(str(home / "local"))
    make_private(str(tmp_path / "other"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    make_private(str(tmp_path / "other"))
    make_private(str(home))
    with pytest.raises(PermissionError, match="it belongs to another user"):
        make_private(str(home / "local" / "session"))


def test_a_file_in_the_way(tmp_path, monkeypatch) -> None:
    """A file in its place raises FileExistsError, like os.makedirs; a failing parent raises OSError."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path))
    (tmp_path / "a").write_text("")
    (tmp_path / "b").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        make_private(str(tmp_path / "a"))
    for name in "ab":
        with pytest.raises(OSError):
            make_private(str(tmp_path / name / "c"))
