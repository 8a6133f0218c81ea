"""`torchx cp`: which end is in a replica, and what is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Call, state, until


@pytest.fixture
def job(torchx: Call, project: Path) -> Iterator[str]:
    """A job with a checkpoint in its folder."""
    torchx("run", "-d", "utils.sh", "--", "mkdir -p ckpt/sub; echo 1 >ckpt/sub/a:b; touch up; exec sleep 600")
    until((project / "up").exists)
    until(lambda: state(torchx) == "RUNNING")
    yield "@last"
    torchx("cancel", "@last")
    torchx("wait", "@last")


def test_out_and_in(torchx: Call, job: str, project: Path, tmp_path: Path) -> None:
    """Copies both ways, without messages in a pipe; paths and job names may contain colons."""
    assert torchx("cp", f"{job}/sh/0:ckpt/sub/a:b", str(tmp_path / "c")) == (0, "", "")
    assert (tmp_path / "c").read_text() == "1\n"
    handle = torchx("list").out.splitlines()[1].split("\t")[0]
    assert torchx("cp", f"{handle}:ckpt", f"{tmp_path}/new") == (0, "", "")
    assert (tmp_path / "new/sub/a:b").read_text() == "1\n"
    assert torchx("cp", str(tmp_path / "c"), f"{job}:ckpt/sub") == (0, "", "")
    assert (project / "ckpt/sub/c").read_text() == "1\n"
    (project / "ckpt/out").symlink_to("/etc/passwd")
    done = torchx("cp", f"{job}:ckpt", f"{tmp_path}/new")
    assert (done.code, "`./out` was left out" in done.err) == (0, True)


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (("a", "b"), 2, "both files are on this machine"),
        (("@last:a", "@last:b"), 2, "both files are in replicas"),
        (("@last:nope", "."), 3, "the replica has no file `nope`"),
        (("nope", "@last:"), 3, "`nope` does not exist"),
        (("@last/sh/3:a", "."), 3, "has no replica `3`"),
        (("nobody-x:a", "."), 3, "nobody-x"),
        (("./a:b", "/c:d"), 2, "both files are on this machine"),
    ],
)
def test_errors(torchx: Call, job: str, ends: tuple[str, str], code: int, said: str) -> None:
    """Each mistake is reported in one sentence."""
    done = torchx("cp", *ends)
    assert (done.code, said in done.err) == (code, True), done.err
