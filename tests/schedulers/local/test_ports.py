"""Ports of local jobs do not clash."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from torchx.schedulers.local import order
from torchx.schedulers.local.order import claim
from torchx.settings import torchx_home


def test_ports_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wish if it is free; never that of a replica or job that may still listen; that of a job that is gone."""
    with socket.socket() as s:
        s.bind(("", 0))
        s.listen()
        used = s.getsockname()[1]
        (other,) = claim([used], str(tmp_path / "a"))
        assert other != used
    first, second = claim([used, used], str(tmp_path / "b"))
    assert (first, second != used) == (used, True)
    (third,) = claim([used], str(tmp_path / "c"))
    assert third not in (first, second, other)
    monkeypatch.setattr(order, "_SUBMISSION_S", 0.0)
    os.mkdir(tmp_path / "b")
    os.mkfifo(tmp_path / "b" / "control")
    reader = os.open(tmp_path / "b" / "control", os.O_RDONLY | os.O_NONBLOCK)
    assert claim([used, third], str(tmp_path / "d"))[1] == third
    assert claim([used], str(tmp_path / "e")) != [used]
    os.close(reader)
    assert claim([used], str(tmp_path / "f")) == [used]


def test_a_file_that_says_nothing(tmp_path: Path) -> None:
    os.makedirs(torchx_home(), exist_ok=True)
    Path(torchx_home("ports.json")).write_text('{"a": 1}')
    assert claim([0], str(tmp_path))[0] > 0
    os.unlink(torchx_home("ports.json"))
    os.mkdir(torchx_home("ports.json"))
    assert claim([0], str(tmp_path))[0] > 0
