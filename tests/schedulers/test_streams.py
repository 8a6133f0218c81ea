"""Tee: every byte of every source, also the last ones."""

from __future__ import annotations

import io

from torchx.schedulers.streams import Tee


def test_everything_up_to_the_close_is_copied(tmp_path) -> None:
    """Sources that come late, and bytes written right before the end, are all there."""
    with io.FileIO(tmp_path / "out", "w") as out:
        tee = Tee(out, str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "never"))
        (tmp_path / "a").write_bytes(b"a" * 300_000)
        assert tee.write(b"mine") == 4
        (tmp_path / "b").write_bytes(b"b" * 5)
        tee.close()
    copied = (tmp_path / "out").read_bytes()
    assert (copied.count(b"a"), copied.count(b"b"), len(copied)) == (300_000, 5, 300_009)


def test_close_without_sources(tmp_path) -> None:
    """Nothing to wait for; what was written is there, and the file is still the caller's."""
    with io.FileIO(tmp_path / "out", "w") as out:
        tee = Tee(out)
        tee.write(b"mine")
        tee.close()
        assert not out.closed
    assert (tmp_path / "out").read_bytes() == b"mine"
