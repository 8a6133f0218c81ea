"""Cases of uploads and files over SSH in which one operand of a condition decides."""

from __future__ import annotations

import io
import logging
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.schedulers.batch.fake_ssh import FakeSsh
from tests.schedulers.batch.test_ssh import fake, runner
from torchx.errors import ConfigError
from torchx.schedulers.batch.ssh import remote_files, remote_workspace
from torchx.schedulers.batch.ssh.remote_files import RemoteFiles
from torchx.schedulers.batch.ssh.remote_workspace import (
    _by_rsync,
    _folder_name,
    _remote_shell,
    _source_name,
    place_workspace,
)
from torchx.schedulers.batch.ssh.runner import SSHCommandRunner
from torchx.schedulers.batch.ssh.script import Answer
from torchx.schedulers.batch.ssh.site_workspace import _rename
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import Role, Workspace
from torchx.util.records import replace

__all__ = ["fake", "runner"]


def answer(code: int | None, out: str = "", err: str = "", noise: str = "", *, began: bool = False) -> Answer:
    return Answer(code, out.encode(), err.encode(), noise, began)


# -- workspaces --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shell"),
    [
        (["ssh", "-S", "/x", "login"], "ssh -S /x login"),
        (["ssh", "a b"], "ssh 'a b'"),
        (["ssh", "it's"], "ssh 'it''s'"),
        (["ssh", 'say"so'], "ssh 'say\"so'"),
    ],
)
def test_the_shell_of_rsync(words: list[str], shell: str) -> None:
    """In its own syntax of quotes."""
    assert _remote_shell(words) == shell


RSYNC = """#!/bin/sh
echo "$*" >>{folder}/asked
code=$(head -n 1 {folder}/codes); sed -i 1d {folder}/codes; exit ${{code:-0}}
"""


@pytest.mark.parametrize(
    ("codes", "good", "tries"),
    [
        ("", True, 1),
        ("255", True, 2),
        ("10 12", True, 3),
        ("30 35 255", False, 3),
        ("1", False, 1),
        ("255 1", False, 2),
        ("23", False, 1),
    ],
)
def test_rsync_is_tried_again(
    codes: str, good: bool, tries: int, runner: SSHCommandRunner, fake: FakeSsh, tmp_path: Path
) -> None:
    """After a lost connection, twice; whatever else fails is sent by tar."""
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes.split()))
    rsync = fake.folder / "bin" / "rsync"
    rsync.write_text(RSYNC.format(folder=tmp_path))
    rsync.chmod(0o755)
    assert _by_rsync(runner, "/here", "/there", "abc0") is good
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == tries
    assert asked[0].endswith(" --copy-dest=../abc0 /here/ me@login:/there/")
    assert fake.calls().count("check") == sum(code in ("10", "12", "30", "35", "255") for code in codes.split())


@pytest.mark.parametrize(
    ("target", "latest", "host", "copies"),
    [
        ("me@login", "none", "me@login", False),
        ("ssh://me@login:22", "abc", "login", True),
        ("me@login", "../x", "me@login", False),
    ],
)
def test_the_words_of_rsync(target: str, latest: str, host: str, copies: bool, fake: FakeSsh, tmp_path: Path) -> None:
    """The host is only a word, as the connection leads there; a name from over there is checked."""
    (tmp_path / "codes").touch()
    rsync = fake.folder / "bin" / "rsync"
    rsync.write_text(RSYNC.format(folder=tmp_path))
    rsync.chmod(0o755)
    assert _by_rsync(SSHCommandRunner(target), "/here", "/there", latest)
    asked = (tmp_path / "asked").read_text()
    assert asked.endswith(f" /here/ {host}:/there/\n")
    assert ("--copy-dest" in asked) is copies


def test_a_program_that_cannot_be_started_is_not_used(
    runner: SSHCommandRunner, fake: FakeSsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rsync may hang, or be broken."""
    runner.master.ensure()

    def fails(*_: object, **__: object) -> None:
        raise OSError("Exec format error")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", fails)
        assert not _by_rsync(runner, "/here", "/there", "none")


@pytest.mark.parametrize(("size", "warned"), [(500_000_000, False), (500_000_001, True)])
def test_a_large_workspace_is_announced(
    size: int,
    warned: bool,
    runner: SSHCommandRunner,
    fake: FakeSsh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Before it is sent, with what to do."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("x")
    monkeypatch.setattr(remote_workspace, "_LARGE", 500_000_000 - size + 1)
    with caplog.at_level(logging.WARNING, "torchx.ssh"):
        place_workspace(runner, Workspace({str(tmp_path / "code"): ""}), str(fake.there / "job"))
    assert ("name in `.torchxignore`" in caplog.text) is warned
    assert (fake.there / "job" / "main.py").read_text() == "x"


@pytest.mark.parametrize("has_gzip", [True, False])
def test_without_rsync(
    has_gzip: bool, runner: SSHCommandRunner, fake: FakeSsh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tar sends it, compressed if both can."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text("x" * 100_000)
    look = remote_workspace._look
    states = []

    def looks(*words: Any) -> Any:
        found = look(*words)
        states.append(found)
        return replace(found, has_rsync=False, has_gzip=has_gzip)

    monkeypatch.setattr(remote_workspace, "_look", looks)
    sizes: list[int] = []
    script = runner.script

    def measured(text: str, *, stdin: Any = b"", **more: Any) -> Answer:
        if not isinstance(stdin, bytes):
            sizes.append(stdin.seek(0, io.SEEK_END))
        return script(text, stdin=stdin, **more)

    monkeypatch.setattr(runner, "script", measured)
    placed = place_workspace(runner, str(tmp_path / "code"), str(fake.there / "job"))
    assert placed.sent == "tar"
    assert (fake.there / "job" / "main.py").read_text() == "x" * 100_000
    assert (sizes[0] < 10_000) is has_gzip
    again = place_workspace(runner, str(tmp_path / "code"), str(fake.there / "job2"))
    assert (again.sent, again.hash) == ("", placed.hash)
    assert [state.has_it for state in states] == [False, True]


def test_the_name_of_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are those of this folder; other places are what they are."""
    monkeypatch.chdir(tmp_path)
    assert _source_name(".") == f"{tmp_path}="
    assert _source_name(Workspace({"a": "b", "git://x": ""})) == f"{tmp_path}/a=b git://x="


@pytest.mark.parametrize(
    ("cfg", "taken", "folder"),
    [
        ({"job_dir": "/data/x"}, False, "/data/x"),
        ({"job_dir": "/data/x"}, True, "/data/x.r"),
        ({"ssh_dir": "/scratch"}, False, "/scratch/code/"),
        ({"ssh_dir": "scratch"}, False, "~/.torchx/code/"),
        ({}, False, "~/.torchx/code/"),
        ({"job_dir": "x"}, False, ""),
    ],
)
def test_where_a_workspace_goes(cfg: dict[str, str], taken: bool, folder: str) -> None:
    """To the folder of the job, a second one beside it; else to a new one in torchx's own."""
    scheduler = SlurmScheduler("s")
    cache: dict[object, object] = {"site_workspace.job_dirs": True} if taken else {}
    if not folder:
        with pytest.raises(ConfigError, match="is relative"):
            scheduler._name_folder(Role("r", ""), {"ssh": "login", **cfg}, cache)
        return
    found = scheduler._name_folder(Role("r", ""), {"ssh": "login", **cfg}, cache)
    assert found == folder or (folder.endswith("/") and found.startswith(folder) and len(found) > len(folder) + 15)
    assert cache["site_workspace.job_dirs"] is True


def test_a_folder_is_renamed_everywhere() -> None:
    """In dicts, lists, tuples and records, in place; in no other value."""
    role = Role("r", "~/.torchx/code/1", args=["x", "~/.torchx/code/1/main.py"], env={"A": "~/.torchx/code/1"})
    value = {"a": [("~/.torchx/code/1", 7)], "r": role, "n": None}
    assert _rename(value, "~/.torchx/code/1", "/home/me/1") is value
    assert value["a"] == [("/home/me/1", 7)]
    assert (role.image, role.args[1], role.env["A"]) == ("/home/me/1", "/home/me/1/main.py", "/home/me/1")


# -- files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait_s", "ticks", "slow"), [(0.0, 0, 0), (0.2, 1, 0), (1.0, 5, 0), (2.0, 10, 0), (3.0, 11, 1), (15.0, 23, 13)]
)
def test_how_often_files_are_looked_at(wait_s: float, ticks: int, slow: int, runner: SSHCommandRunner) -> None:
    """Five times a second for two seconds, then once a second."""
    seen: list[tuple[str, dict[str, Any]]] = []
    files = RemoteFiles(
        SimpleNamespace(script=lambda script, **more: seen.append((script, more)) or answer(0))  # type: ignore[arg-type]  # a stand-in
    )
    assert files._grown({"/a": 3}, wait_s) == {}
    ((script, more),) = seen
    assert f"ticks={ticks}\n" in script
    assert f'"$ticks" -ge {slow} ]' in script
    assert more["timeout"] == wait_s + 60
    assert more["stdin"] == b"3 /a\n"


@pytest.mark.parametrize(("count", "patiences", "pauses"), [(1000, [15.0, 5.0], []), (1001, [0, 0] * 21, [1.0] * 20)])
def test_many_files_are_looked_at(
    count: int, patiences: list[float], pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand in a command, which waits; several commands take turns instead."""
    now, waits, slept = [0.0], [], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    def grown(offsets: dict[str, int], wait_s: float) -> dict[str, bytes]:
        waits.append(wait_s)
        now[0] += wait_s
        return {}

    files = RemoteFiles(SSHCommandRunner("login"))
    monkeypatch.setattr(files, "_grown", grown)
    monkeypatch.setattr(remote_files, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert files.grown({f"/f{k}": 0 for k in range(count)}, 20.0) == {}
    assert (waits[: len(patiences)], slept) == (patiences, pauses)
    assert files.grown({}) == {}


def test_news_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any command."""
    files = RemoteFiles(SSHCommandRunner("login"))
    monkeypatch.setattr(files, "_grown", lambda offsets, _: {"/f1000": b"x"} if "/f1000" in offsets else {})
    assert files.grown({f"/f{k}": 0 for k in range(1001)}, 20.0) == {"/f1000": b"x"}


@pytest.mark.parametrize(
    ("offset", "size", "found"),
    [
        (0, -1, b"0123456789"),
        (3, -1, b"3456789"),
        (-3, -1, b"789"),
        (3, 2, b"34"),
        (0, 2, b"01"),
        (-3, 2, b"78"),
        (0, 0, b""),
    ],
)
def test_a_part_of_a_file(offset: int, size: int, found: bytes, runner: SSHCommandRunner, fake: FakeSsh) -> None:
    """From an offset, or before the end; as long as is wished."""
    (fake.there / "file").write_bytes(b"0123456789")
    assert RemoteFiles(runner).read(str(fake.there / "file"), offset, size) == found


def test_the_name_of_a_sent_workspace() -> None:
    """A part of its hash is enough."""
    assert _folder_name("sha256:" + "0123456789abcdef" * 4) == "0123456789abcdef" * 2
