"""Cases of the folders of jobs, and what is left in them, in which one operand of a condition decides."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from torchx.schedulers.batch import folders, hangs
from torchx.schedulers.batch.folders import (
    TAIL_BYTES,
    JobFolder,
    JobFolders,
    ends_of,
    left_by,
    read_whole,
    roles_of,
    shared_folder,
)
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.files import LocalFiles
from torchx.specs import AppDef, Role
from torchx.specs.serialize import appdef_to_dict

# -- folders -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "cut"), [(TAIL_BYTES - 1, False), (TAIL_BYTES, False), (TAIL_BYTES + 1, True)])
def test_the_end_of_a_long_output(length: int, cut: bool, tmp_path: Path) -> None:
    """The first line, of which a part is missing, is left out."""
    (tmp_path / "stderr.log").write_bytes(b"x" * (length - 5) + b"\nend\n")
    (found,) = left_by(LocalFiles(), [str(tmp_path)])
    assert (found.stderr == "end\n") is cut
    assert found.stderr.endswith("\nend\n") is not cut
    assert (found.error_file, found.stdout, found.said) == (None, "", "")


def test_what_a_replica_left(tmp_path: Path) -> None:
    """Of the last attempt alone, as far as its start is known, and the messages of the scheduler."""
    for name, text in (
        ("stdout.log", "old\nnew\n"),
        ("stderr.log", "err\n"),
        ("srun.log", "srun\n"),
        ("error.json", "{}"),
    ):
        (tmp_path / name).write_text(text)
    begins = {str(tmp_path / "stdout.log"): 4, "/elsewhere": 9}
    (found,) = left_by(LocalFiles(), [str(tmp_path)], said="srun.log", begins=begins)
    assert (found.stdout, found.stderr, found.said, found.error_file) == ("new\n", "err\n", "srun\n", "{}")
    (tmp_path / "stdout.log").write_bytes(b"old\n" + b"x" * TAIL_BYTES + b"\nnew\n")
    assert left_by(LocalFiles(), [str(tmp_path)], begins=begins)[0].stdout == "new\n"
    assert left_by(LocalFiles(), []) == []
    (tmp_path / "stdout.log").unlink()
    assert left_by(LocalFiles(), [str(tmp_path)], begins=begins)[0].stdout == ""


def test_the_ends_of_logs(tmp_path: Path) -> None:
    """As much as for a replica."""
    (tmp_path / "a").write_bytes(b"x" * TAIL_BYTES + b"end")
    found = ends_of(LocalFiles(), [str(tmp_path / "a"), str(tmp_path / "b")])
    assert [len(one.stderr) for one in found] == [TAIL_BYTES, 0]


def test_whole_files_in_few_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is full is followed by another query, for those that may have more."""
    monkeypatch.setattr(folders, "MAX_GROWN", 4)
    data = {"a": b"0123", "b": b"01", "c": b"", "d": b"01234567"}
    seen = []

    class Small(LocalFiles):
        def grown(self, offsets: Mapping[str, int], wait_s: float = 0) -> dict[str, bytes]:
            seen.append("".join(sorted(offsets)))
            return {path: data[path][at : at + 4] for path, at in offsets.items() if data[path][at : at + 4]}

    assert read_whole(Small(), data) == {"a": b"0123", "b": b"01", "d": b"01234567"}
    assert seen == ["abcd", "acd", "acd"][: len(seen)]
    seen.clear()
    assert read_whole(Small(), ["b"]) == {"b": b"01"}
    assert seen == ["b"]


def test_folders_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deleted job has none any more, a foreign one never had one; a folder that is not given is not removed."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path))
    ours = JobFolders(LocalFiles(), "toy")
    (tmp_path / "job").mkdir()
    ours.remember("1", str(tmp_path / "job"))
    ours.remember("2[3]", "/x")
    assert ours.of_many([]) == {}
    found = ours.of_many(["1", "2[3]", "9"])
    assert {i: folder and folder.path for i, folder in found.items()} == {"1": str(tmp_path / "job"), "2[3]": "/x"}
    ours.delete("1", "")
    assert (tmp_path / "job").exists()
    assert (ours.of("1"), ours.of_many(["1"])) == (None, {"1": None})
    ours.delete("1", str(tmp_path / "job"))
    assert not (tmp_path / "job").exists()
    assert ours.place("t") == f"{tmp_path}/toy/t"
    assert ours.place("t", "/data").startswith("/data/")


def test_a_folder_that_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job runs, and a warning says what follows."""
    monkeypatch.setenv("TORCHX_HOME", str(tmp_path))
    (tmp_path / "toy").write_text("")
    JobFolders(LocalFiles(), "toy").remember("1", "/x")
    assert "the job's folder may not be found again" in caplog.text


@pytest.mark.parametrize("record", [b"", None, b"{}", b"[]", b"{", b'{"app": 1}', b'{"app": {"roles": [1]}}'])
def test_a_record_that_is_none(record: bytes | None) -> None:
    """It has no roles."""
    assert roles_of(record) == []
    good = json.dumps({"app": appdef_to_dict(AppDef("a", [Role("r", "")]))})
    assert [role.name for role in roles_of(good.encode())] == ["r"]


def test_whose_folder_it_is(tmp_path: Path) -> None:
    """That of torchx has a record, which is not empty."""
    folder = JobFolder(LocalFiles(), str(tmp_path))
    assert not folder.is_ours()
    (tmp_path / "job.json").touch()
    assert not folder.is_ours()
    (tmp_path / "job.json").write_text("{}")
    assert folder.is_ours()


@pytest.mark.parametrize(
    ("hosts", "remote", "certain"),
    [("here", "", True), ("here other", "", False), ("here", "login", False), ("", "", True)],
)
def test_who_sees_the_folder(hosts: str, remote: str, certain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine does; of others, and behind a login node, only a job can tell."""
    monkeypatch.setattr(socket, "gethostname", lambda: "here.example.org")
    found = shared_folder(Completed(["x"], 0, "\n".join(hosts.split()), ""), "slurm", remote)
    assert (found == "all nodes are this machine") is certain
    if not certain:
        assert "login" in str(found) if remote else "slurm" in str(found)


# -- the watchdog ------------------------------------------------------------------------------------


def test_stacks_of_all_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all roles are expected; a host is known for some."""
    from torchx.schedulers.kit.stacks import look

    roles = [Role("a", "", num_replicas=2), Role("b", "", num_replicas=1)]
    (tmp_path / "job.json").write_text(json.dumps({"app": appdef_to_dict(AppDef("j", roles))}))
    seen: list[Any] = []
    monkeypatch.setattr(look, "look", lambda *words, **more: seen.append((words[1:], more)))
    folder = JobFolder(LocalFiles(), str(tmp_path))
    hangs.stacks_of(folder, {("a", 1): "h"}, lambda *_: None)
    hangs.stacks_of(folder, {}, lambda *_: None)
    there = [("a", 0), ("a", 1), ("b", 0)]
    assert seen == [
        ((None, there, [("a", 1)]), {"hosts": {("a", 1): "h"}}),
        ((None, there, None), {"hosts": {}}),
    ]
