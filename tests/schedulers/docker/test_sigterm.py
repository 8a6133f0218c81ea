"""Containers that would lose SIGTERM, according to the kernel's status of their first process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.docker.sigterm import sigterm_is_lost

STATUS = "Name:\tpython\nNSpid:\t{nspid}\nSigBlk:\t{blk:016x}\nSigIgn:\t{ign:016x}\nSigCgt:\t{cgt:016x}\n"
TERM, OTHERS = 1 << 14, 0x180000002


def details(**fields: Any) -> dict[str, Any]:
    return {"Id": "abc123", "State": {"Pid": 77}, "Config": {}, **fields}


def proc(folder: Path, *, cgroup: str = "0::/docker/abc123", **fields: Any) -> str:
    (folder / "77").mkdir()
    (folder / "77/cgroup").write_text(f"{cgroup}\n")
    (folder / "77/status").write_text(STATUS.format(**{"nspid": "77\t1", "blk": 0, "ign": 0, "cgt": OTHERS, **fields}))
    return str(folder)


def test_a_process_without_a_handler(tmp_path: Path) -> None:
    """As Python or a shell has none."""
    assert sigterm_is_lost(details(), proc(tmp_path))


@pytest.mark.parametrize(
    "fields",
    [
        {"cgt": TERM | OTHERS},
        {"ign": TERM},
        {"blk": TERM},
        {"nspid": "77\t12"},
        {"nspid": ""},
        {"cgroup": "0::/docker/other"},
    ],
    ids=["it has one", "it ignores it", "it waits for it", "it is not the first", "an old kernel", "another process"],
)
def test_others_are_waited_for(tmp_path: Path, fields: dict[str, Any]) -> None:
    """If SIGTERM may be handled, or nothing is known."""
    assert not sigterm_is_lost(details(), proc(tmp_path, **fields))


@pytest.mark.parametrize(
    "said",
    [None, {}, {"State": None}, details(State={"Pid": 0}), details(Config={"StopSignal": "SIGINT"}), details(Id="")],
)
def test_what_an_engine_says(tmp_path: Path, said: Any) -> None:
    """A container that does not run, that has another stop signal, or without details."""
    assert not sigterm_is_lost(said, proc(tmp_path))


def test_another_machine(tmp_path: Path) -> None:
    """The process does not exist here."""
    assert not sigterm_is_lost(details(), str(tmp_path))
