"""Output by the gigabyte, and by many at once: complete to the byte, none of our processes grows, followers keep up."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends.leftovers import gone, living, resident_peak_mb

from .conftest import eventually
from .moments import command

MAX_MB = 60
GIGABYTE = 1 << 30
LINES = f"yes 'a line that is of thirty-one by' | head -c {GIGABYTE}"  # and its end: whole lines fill a gigabyte

REPLICAS, RATE, SECONDS = 32, 10_000, 3
# A hundred lines, a hundred times a second: no faster, so that whoever follows has to keep up and cannot catch up later.
WRITER = f"""
import os, sys, time
k, go = sys.argv[1:]
os.write(1, f"replica {{k}} line 0 and some more text that fills it\\n".encode())
while not os.path.exists(go):
    time.sleep(0.01)
begun = time.monotonic()
for n in range({SECONDS * RATE // 100}):
    text = "".join([f"replica {{k}} line {{n * 100 + i + 1}} and some more text that fills it\\n" for i in range(100)])
    os.write(1, text.encode())
    time.sleep(max(0.0, begun + (n + 1) / {RATE // 100} - time.monotonic()))
"""


@contextmanager
def ours_stay_small():
    """None of torchx's processes has more than 60 MB resident, at any time."""
    peaks: dict[str, float] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            for process in living():
                if "launcher.py" in process.command or "bin/torchx" in process.command:
                    name = f"{process.pid} {process.command}"
                    peaks[name] = max(peaks.get(name, 0.0), resident_peak_mb(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    assert any("launcher.py" in name for name in peaks), "nobody was watched"
    assert max(peaks.values()) < MAX_MB, peaks


@pytest.fixture
def torchx(tmp_path):
    """What a torchx command prints."""

    def call(*args: str) -> str:
        done = subprocess.run(command(*args), cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout[-500:] + done.stderr
        return done.stdout

    return call


@pytest.mark.timeout(1200)
def test_a_gigabyte_from_one_replica(torchx, tmp_path) -> None:
    """1 GB, in every file and from `torchx log`, complete to the byte."""

    def same(*producer: str) -> None:
        cmp = subprocess.run(
            ["bash", "-c", f'{LINES} | cmp - <("$@")', "-", *producer], capture_output=True, text=True, check=False
        )
        assert (cmp.returncode, cmp.stdout, cmp.stderr) == (0, "", "")

    with ours_stay_small():
        handle = torchx("run", "--wait", "utils.sh", f"{LINES}; echo end of it >&2").splitlines()[0]
        folder = Path(json.loads(torchx("status", "--json", handle))["ui_url"].removeprefix("file://")) / "sh/0"
        same("cat", str(folder / "stdout.log"))
        assert (folder / "combined.log").stat().st_size == GIGABYTE + len("end of it\n")
        same("grep", "-v", "end of it", str(folder / "combined.log"))
        same(*command("log", "--no-prefix", "--streams", "stdout", handle))
    torchx("delete", handle)


LONG = 300_000_000
DOTS = f"head -c {LONG} /dev/zero | tr '\\0' ."


@pytest.mark.timeout(1200)
def test_a_line_of_three_hundred_megabytes(torchx, tmp_path) -> None:
    """A line without an end is shown while it grows, and complete to the byte in every form; nobody holds it whole."""

    def same(*producer: str, expected: str = DOTS) -> None:
        cmp = subprocess.run(
            ["bash", "-c", f'cmp <({expected}) <("$@")', "-", *producer], capture_output=True, text=True, check=False
        )
        assert (cmp.returncode, cmp.stdout, cmp.stderr) == (0, "", "")

    go, on = tmp_path / "go", tmp_path / "on"
    wait = "until [ -e {} ]; do sleep 0.05; done"
    script = f"{DOTS}; {wait.format(go)}; echo a line >&2; {wait.format(on)}; echo"
    with ours_stay_small():
        handle = torchx("run", "utils.sh", script).strip()
        folder = Path(json.loads(torchx("status", "--json", handle))["ui_url"].removeprefix("file://")) / "sh/0"
        with open(tmp_path / "shown", "wb") as shown:
            follow = command("log", "-f", "--no-prefix", "--streams", "stdout", handle)
            follower = subprocess.Popen(follow, cwd=tmp_path, stdout=shown, stderr=shown)
            for growing in (folder / "combined.log", tmp_path / "shown"):
                eventually(lambda path=growing: path.exists() and path.stat().st_size >= LONG, 300)  # type: ignore[misc]  # mypy cannot infer the default of a lambda
            go.touch()
            eventually(lambda: (folder / "combined.log").stat().st_size >= LONG + len("\na line\n"), 300)
            on.touch()
            gone("launcher.py")
            assert follower.wait(300) == 0
        line = f"{DOTS}; echo"
        same("cat", str(folder / "stdout.log"), expected=line)
        same("cat", str(tmp_path / "shown"), expected=line)
        same(*command("log", "--no-prefix", "--streams", "stdout", handle), expected=line)
        same(*command("log", "--streams", "stdout", handle), expected=f"printf 'sh/0 '; {line}")
        same(*command("log", "--no-prefix", "--tail", "1", "--streams", "stdout", handle), expected=line)
        # The line of stderr came while it was open: each is whole on lines of its own.
        same("cat", str(folder / "combined.log"), expected=f"{DOTS}; echo; echo a line; echo")
        shown = torchx("log", "--json", "--regex", "line", handle)
        assert [json.loads(line)["line"] for line in shown.splitlines()] == ["a line"]
        pieces = subprocess.Popen(command("log", "--json", handle), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert sum(len(json.loads(piece)["line"]) for piece in pieces.stdout) == LONG + len("a line")
        pieces.stdout.close()
        assert pieces.wait(300) == 0
    torchx("delete", handle)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("options", [[], ["--regex", "line .*more", "--tail", "7"]], ids=["all", "regex and tail"])
def test_followers_keep_up_with_ten_thousand_lines_a_second_from_each_of_32(torchx, tmp_path, options) -> None:
    """`torchx log -f` of all ends with them, having shown each line whole, in order, once, under its replica's name."""
    (tmp_path / "writer.py").write_text(WRITER)
    go = tmp_path / "go"
    with ours_stay_small():
        handle = torchx(
            *("run", "utils.sh", "--num_replicas", str(REPLICAS), "--"),
            *(sys.executable, "-I", "-S", str(tmp_path / "writer.py"), "${replica_id}", str(go)),
        ).strip()
        with open(tmp_path / "shown", "wb") as shown:
            follower = subprocess.Popen(
                command("log", "-f", *options, handle), cwd=tmp_path, stdout=shown, stderr=shown
            )
            # Each has written its first line, and is followed.
            eventually(lambda: (tmp_path / "shown").read_bytes().count(b"\n") == REPLICAS, 300)
            go.touch()
            gone("launcher.py", 300)  # the job has ended, the last line been taken over
            assert follower.wait(300) == 0
    _check_lines(tmp_path / "shown")
    for k in (0, REPLICAS - 1):
        logged = torchx("log", "--no-prefix", f"{handle}/sh/{k}").splitlines()
        assert logged == [_line(k, n) for n in range(SECONDS * RATE + 1)]


def _line(k: int, n: int) -> str:
    return f"replica {k} line {n} and some more text that fills it"


def _check_lines(path: Path) -> None:
    seen = [0] * REPLICAS
    with open(path) as f:
        for shown in f:
            prefix, _, line = shown.rstrip("\n").partition(" ")
            k = int(prefix.removeprefix("sh/"))
            assert line == _line(k, seen[k])
            seen[k] += 1
    assert seen == [SECONDS * RATE + 1] * REPLICAS
