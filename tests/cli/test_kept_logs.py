"""`[logs] keep = end`: logs outlive what their scheduler keeps; `torchx log --search` finds lines in all runs."""

from __future__ import annotations

import gzip
import json
import shutil
import stat
from pathlib import Path

import jsonschema
import pytest

import torchx.cli
from torchx.runner import get_runner
from torchx.runner.ground.registry import run_registry
from torchx.runner.launch.log_place import place
from torchx.runner.watching import archive
from torchx.runs import unkept
from torchx.schedulers.kit.logs import LogQuery
from torchx.settings import torchx_home

from .conftest import Call, runs, until

SAYS = "echo step {k}; echo token $TOKEN; echo nan >&2"
SECRET = "s3cret-of-the-test"
SCHEMA = json.loads((Path(torchx.cli.__file__).parent / "schemas/log.json").read_text())


@pytest.fixture
def kept(torchx: Call, project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two runs that have ended, newest last, whose logs are in the archive and which `local_cwd` has forgotten."""
    monkeypatch.setenv("TOKEN", SECRET)
    (project / ".torchxconfig").write_text(f"[logs]\nkeep = end\nto = {project}/kept\n")
    handles = []
    for k in (0, 3):
        script = SAYS.format(k=k)
        handle = torchx("run", "--secret", "TOKEN", "utils.sh", "--num_replicas", "2", script).out.strip()
        torchx("wait", handle)
        handles.append(handle)
    until(lambda: len([*(project / "kept").rglob("*.log.gz")]) == 4)
    shutil.rmtree(torchx_home("local"))
    return handles


def test_logs_that_stay(torchx: Call, project: Path, kept: list[str]) -> None:
    """Each replica has a compressed, private file without secrets; `torchx log` and its options read it."""
    for file in (project / "kept").rglob("*.gz"):
        text = gzip.decompress(file.read_bytes()).decode()
        assert SECRET not in text and "token ********" in text
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert torchx("log", kept[1], "--regex", "step|token").out.splitlines() == [
        f"sh/{k} {line}" for k in (0, 1) for line in ("step 3", "token ********")
    ]
    assert torchx("log", f"{kept[0]}/sh/1", "--regex", "step").out == "sh/1 step 0\n"
    assert torchx("log", f"{kept[0]}/sh/1", "--tail", "1").out.count("\n") == 1
    assert torchx("log", kept[0], "--timestamps", "--regex", "step").out.startswith("sh/0 20")
    assert torchx("log", kept[0], "--since", "1h", "--regex", "step").out.count("\n") == 2
    assert torchx("log", kept[0], "--until", "2020-01-01").out == ""
    with get_runner() as runner:
        assert [*runner.log_lines(kept[0], "sh", 1, regex="step")] == ["step 0\n"]
    refused = torchx("log", kept[0], "--streams", "stderr")
    assert (refused.code, refused.hint()) == (5, "omit `--streams` and `--previous`")
    assert torchx("log", "local_cwd://torchx/other").code == 3


def test_search(torchx: Call, project: Path, kept: list[str]) -> None:
    """Live runs and kept ones are searched, newest first; without a match it exits with 1."""
    live = torchx("run", "utils.sh", "echo step 9; sleep 600").out.strip()
    until(lambda: "step 9" in torchx("log", live).out)
    rows = torchx("log", "--search", "step [39]", "--since", "1h").out.splitlines()
    where, times, lines = zip(*[row.split(" ", 2) for row in rows], strict=True)
    assert where == (f"{live}/sh/0", f"{kept[1]}/sh/0", f"{kept[1]}/sh/1")
    assert lines == ("step 9", "step 3", "step 3")
    assert [at.split(".")[0] for at in times] == [
        torchx("log", handle, "--regex", "step", "--timestamps").out.split()[1].split(".")[0]
        for handle in (live, kept[1], kept[1])
    ]
    found = [json.loads(line) for line in torchx("log", "--search", "token", "--json").out.splitlines()]
    for row in found:
        jsonschema.validate(row, SCHEMA)
    assert [(row["handle"], row["replica"], row["line"]) for row in found] == [
        (handle, k, "token ********") for handle in (kept[1], kept[0]) for k in (0, 1)
    ]
    torchx("cancel", live)
    assert torchx("log", "--search", "nobody wrote this").code == 1
    assert torchx("log", "--search", "(").code == 2
    assert torchx("log", live, "--search", "x").code == 2
    shutil.rmtree(project / "kept")
    assert "2 of 3 runs have no logs any more" in torchx("log", "--search", "step 9").err


def test_the_time_of_a_line(torchx: Call, project: Path) -> None:
    """A line has its own time, a state of a progress bar too. A long line comes from the archive in pieces."""
    (project / ".torchxconfig").write_text(f"[logs]\nkeep = end\nto = {project}/kept\n")
    handle = torchx(
        "run",
        "utils.sh",
        r"printf '10%%\r'; sleep 0.3; printf '20%%\rdone\n'; head -c 200000 /dev/zero | tr '\0' x; echo needle",
    ).out.strip()
    torchx("wait", handle)
    whole = torchx("log", handle, "--timestamps", "--raw", "--no-prefix").out
    plain = torchx("log", handle, "--raw", "--no-prefix").out
    for what in ("10%", "done"):
        (row,) = torchx("log", "--search", what).out.splitlines()
        _, at, line = row.split(" ", 2)
        assert line == what and f"{at} {what}" in whole, (row, whole[:200])
    until(lambda: [*(project / "kept").rglob("*.log.gz")])
    shutil.rmtree(torchx_home("local"))
    assert torchx("log", handle, "--timestamps", "--raw", "--no-prefix").out == whole
    assert torchx("log", handle, "--raw", "--no-prefix").out == plain, "no times within a line, either"
    assert torchx("log", handle, "--raw", "--no-prefix", "--regex", "20%").out == "10%\r20%\rdone\n"
    (found,) = (json.loads(row) for row in torchx("log", "--search", "needle", "--json").out.splitlines())
    assert found["time"].startswith("20") and found["line"].endswith("needle") and len(found["line"]) <= 65536


def test_without_the_wish_nothing_is_kept(torchx: Call, project: Path) -> None:
    torchx("run", "--wait", "utils.echo")
    assert len(runs(torchx)) == 1
    assert not (project / "logs").exists() and not Path(torchx_home("logs")).exists()


@pytest.mark.parametrize("text", ["always", "End"])
def test_an_unknown_wish(torchx: Call, project: Path, text: str) -> None:
    """Nothing is submitted: one line about the config file."""
    (project / ".torchxconfig").write_text(f"[logs]\nkeep = {text}\n")
    outcome = torchx("run", "--wait", "utils.echo")
    assert outcome.code == 2 and f".torchxconfig:2: `keep` is `{text}`" in outcome.err
    assert "Traceback" not in outcome.err
    (project / ".torchxconfig").unlink()
    assert not runs(torchx)


def test_a_relative_folder(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is the same one from everywhere: beside the config file."""
    (project / ".torchxconfig").write_text("[logs]\nto = kept\n")
    monkeypatch.setenv("TORCHXCONFIG", str(project / ".torchxconfig"))
    for folder in (project, tmp_path):
        monkeypatch.chdir(folder)
        assert place() == (f"{project}/kept", False)


@pytest.mark.parametrize(
    "data",
    [b"no gzip", gzip.compress(b"- line\n" * 9000)[:60], b"\x1f\x8b\x08" + b"x" * 60],
    ids=["text", "cut", "odd"],
)
def test_a_damaged_file(torchx: Call, project: Path, kept: list[str], data: bytes) -> None:
    """It is named in one line, and a search goes on without it."""
    for file in (project / "kept").rglob("sh-0.log.gz"):
        file.write_bytes(data)
    outcome = torchx("log", f"{kept[0]}/sh/0")
    assert outcome.code == 4 and "sh-0.log.gz` cannot be read: " in outcome.err
    (project / "kept" / "local_cwd" / "torchx" / kept[1].split("/")[-1] / "sh-0.log.gz").unlink()
    found = torchx("log", "--search", "step 3")
    assert found.code == 0 and f"{kept[1]}/sh/1" in found.out


@pytest.mark.parametrize("to", ["memory://bucket/logs", "file://{}/new/logs"])
def test_a_url(project: Path, to: str) -> None:
    """Any file system of fsspec has the same files; names of roles are quoted."""
    (project / ".torchxconfig").write_text(f"[logs]\nto = {to.format(project)}\n")
    files = archive._Files("slurm://torchx/1")
    files.write(("a/b-1", 0), [])
    with files._open(f"{files._path(('a/b-1', 0))}.7.new", "wb") as killed:
        killed.write(b"a part")
    files.write(("a/b-1", 0), ["2026-11-29T08:00:00.000Z one\n", "- two\n"])
    assert archive.replicas("slurm://torchx/1") == [("a/b-1", 0)]
    assert len(files._names()) == 1
    assert [*archive.lines("slurm://torchx/1", ("a/b-1", 0), LogQuery())] == ["one\n", "two\n"]
    late = LogQuery(since=1_795_939_260.0)  # a minute later
    assert [*archive.lines("slurm://torchx/1", ("a/b-1", 0), late)] == ["two\n"]


def test_what_cannot_be_kept(torchx: Call, project: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever sees the end says why, once; a later command tries again. What is gone is not tried again."""
    (project / ".torchxconfig").write_text(f"[logs]\nkeep = end\nto = {project}/kept\n")
    (project / "kept").write_text("not a folder")
    handle = torchx("run", "utils.echo").out.strip()
    assert torchx("wait", handle).code == 0
    assert f"the logs of {handle} are not in the archive: the archive of logs `{project}/kept/" in caplog.text
    assert caplog.text.rstrip().endswith("Not a directory; a later command tries again")
    assert "logs:      not in the archive: " in torchx("describe", handle).out
    caplog.clear()
    assert torchx("list").code == 0
    (project / "kept").unlink()
    run_registry().store().execute("UPDATE unkept SET tried_at = 1")
    assert torchx("list").code == 0
    assert not caplog.text
    until(lambda: [*(project / "kept").rglob("echo-0.log.gz")])
    until(lambda: not unkept.read(run_registry()))

    (project / ".torchxconfig").write_text("[logs]\nto = /nowhere\n")
    gone = torchx("run", "--wait", "utils.echo").out.splitlines()[0]
    shutil.rmtree(torchx_home("local"))
    unkept.add(run_registry(), gone)
    (project / ".torchxconfig").write_text(f"[logs]\nkeep = end\nto = {project}/kept\n")
    for _ in range(2):
        torchx("list")
    [said] = caplog.messages
    assert said.startswith(f"the logs of {gone} are not in the archive") and "again" not in said
