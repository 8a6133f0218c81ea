"""The probe reads real processes: which are ranks, where they are, and why one cannot be read."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import torchx
from torchx.errors import BackendError
from torchx.schedulers.kit.inside.run import Ran
from torchx.schedulers.kit.stacks import look as stacks_look
from torchx.schedulers.kit.stacks import probe_text

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

PROGRAM = """\
import sys, time
{first}
def sleeps():
    print("up", flush=True)
    time.sleep(600)
sleeps()
"""
OFFERS = "import torchx.distributed"
SHOWN = re.compile(r"^    ( *\S.*)$", re.M)


class Job:
    """Processes that bear the mark of one job."""

    def __init__(self, mark: str, folder: Path) -> None:
        source = Path(torchx.__file__).parents[1]
        self.env = {**os.environ, "TORCHX_JOB_ID": mark, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(source)}
        self.folder = folder
        self.python = str(folder / "python")  # a developer may have py-spy beside the other
        os.symlink(os.path.realpath(sys.executable), self.python)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str, first: str = OFFERS, **env: str) -> subprocess.Popen[bytes]:
        """Starts ``argv``, or Python with the program, and waits until it is where it stays."""
        program = self.folder / f"p{len(self.started)}.py"
        program.write_text(PROGRAM.format(first=first))
        words = [word.replace("PROGRAM", str(program)) for word in argv] or [self.python, str(program)]
        process = subprocess.Popen(words, env={**self.env, **env}, stdout=subprocess.PIPE, start_new_session=True)
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    def look(self) -> dict[int | None, Any]:
        words = [self.python, "-c", probe_text()]
        done = subprocess.run(words, env=self.env, capture_output=True, check=True)
        assert done.stderr == b""
        return {row["rank"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    found = Job(f"probe-{tmp_path}", tmp_path)
    yield found
    for process in found.started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_ranks_are_read_while_they_go_on(job: Job) -> None:
    """Each by its stack, several times; they are not ended by it, and what they wrote down is not kept."""
    for rank in range(3):
        job.start(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="3")
    for _ in range(2):
        rows = job.look()
        assert sorted(rows) == [0, 1, 2]
        for rank, process in enumerate(job.started):
            row = rows[rank]
            assert (row["pid"], row["by"], row["why"], len(row["looks"])) == (process.pid, "faulthandler", "", 8)
            assert [frame[:3:2] for frame in row["looks"][0]] == [["sleeps", 5], ["<module>", 6]]
            assert row["looks"][0][0] == ["sleeps", str(job.folder / f"p{rank}.py"), 5, "time.sleep(600)"]
            assert process.poll() is None


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("", "py-spy is not installed there, and the program does not import torchx.distributed"),
        (f"{OFFERS}, signal; signal.signal(signal.SIGRTMIN + 13, signal.SIG_IGN)", "it no longer handles signal 47"),
    ],
    ids=["no-offer", "taken-back"],
)
def test_who_cannot_be_read_gets_no_signal(job: Job, first: str, why: str) -> None:
    """It would be the end of a process that does not handle it."""
    process = job.start(first=first, RANK="0")
    row = job.look()[0]
    assert (row["why"], row["looks"], row["state"]) == (why, [], "S")
    assert process.poll() is None


def test_a_program_without_torchx_offers_the_same(job: Job) -> None:
    """With the lines of the docstring."""
    from torchx.distributed import stacks

    assert stacks.__doc__ is not None
    lines = "\n".join(SHOWN.findall(stacks.__doc__))
    assert "memfd_create" in lines
    job.start(first=lines, RANK="0")
    row = job.look()[0]
    assert [frame[0] for frame in row["looks"][0]] == ["sleeps", "<module>"]


def test_who_computes_is_seen_to_be_busy(job: Job) -> None:
    """Though nothing else can be read of it; who sleeps is not."""
    job.start(first="", RANK="1")
    rows = job.look()
    assert rows[1]["busy"] < 0.2
    spinning = job.start(job.python, "-c", "print('up', flush=True)\nwhile True: pass", RANK="2")
    busy = job.look()[2]
    assert (busy["pid"], busy["looks"]) == (spinning.pid, [])
    assert busy["busy"] >= 0.2


def test_a_stopped_process_is_not_waited_for(job: Job) -> None:
    """Its state is the answer."""
    process = job.start(RANK="0")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    row = job.look()[0]
    assert (row["state"], row["looks"]) == ("T", [])


def test_agents_wrappers_and_workers_are_not_ranks(job: Job, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A rank is the first Python process below what was started with its number; others of the machine are not."""
    shell = ["sh", "-c", f"{job.python} PROGRAM torchrun; true", "sh"]
    job.start(*shell, RANK="9")  # the agent of torchrun, which got that number from outside
    forks = f"{OFFERS}, os\nif os.fork() == 0: time.sleep(600)"
    job.start("sh", "-c", f"{job.python} PROGRAM; true", first=forks, RANK="0")
    stranger = Job("somebody else's", tmp_path_factory.mktemp("else"))
    stranger.started = job.started
    stranger.start(RANK="1")
    rows = job.look()
    assert sorted(rows) == [0]
    assert [frame[0] for frame in rows[0]["looks"][0]] == ["sleeps", "<module>"]


def test_a_replica_without_ranks_is_its_main_process(job: Job) -> None:
    """Whatever that is."""
    job.start("sh", "-c", "echo up; sleep 600; true")
    row = job.look()[None]
    assert row["looks"] == []
    assert re.fullmatch(r"it runs `\w+`, not Python", row["why"])


SPY = """#!{python}
import json, sys
pid = int(sys.argv[sys.argv.index("--pid") + 1])
frame = {{"name": "seen by " + sys.argv[0], "filename": "train.py", "line": 7}}
print(json.dumps([{{"thread_name": "MainThread", "os_thread_id": pid, "frames": [frame]}}]))
"""


@pytest.mark.parametrize("reached", ["by its path", "as a copy", "not at all"])
def test_py_spy_of_this_machine(job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reached: str) -> None:
    """Where there is none it is used by its path, or copied there; where that fails, what is known is said."""
    mine, there = tmp_path / "bin" / "py-spy", tmp_path / "there"
    mine.parent.mkdir()
    mine.write_text(SPY.format(python=job.python))
    mine.chmod(0o755 if reached == "by its path" else 0o775)  # as pip leaves it with the umask of Ubuntu
    monkeypatch.setenv("PATH", f"{mine.parent}:/usr/bin:/bin")
    monkeypatch.setattr(stacks_look, "_THERE", str(there))
    job.start(first="", RANK="0")
    brought = []

    def run(words: Sequence[str], role: str, k: int) -> Ran:
        hidden = [word if reached == "by its path" else word.replace(repr(str(mine)), "'/nowhere'") for word in words]
        done = subprocess.run(hidden, env=job.env, capture_output=True, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)

    def bring(source: str, target: str, role: str, k: int) -> None:
        brought.append((role, k))
        if reached == "not at all":
            raise BackendError("no room")
        shutil.copy(source, target)

    found = stacks_look.look(run, None, [("r", 0)], None, bring)
    (rank,) = found.ranks
    if reached == "not at all":
        assert rank.why.startswith("py-spy is not installed there")
    else:
        used = mine if reached == "by its path" else there
        assert rank.frames[0].function == f"seen by {used}"
    assert brought == [("r", 0)] * (reached != "by its path")


def test_py_spy_that_others_may_write_is_not_run(job: Job, tmp_path: Path) -> None:
    """Whoever put it there would be run as this user."""
    spy = tmp_path / "py-spy-of-others"
    spy.write_text(SPY.format(python=job.python))
    spy.chmod(0o777)
    job.start(first="", RANK="0")
    done = subprocess.run([job.python, "-c", probe_text(str(spy))], env=job.env, capture_output=True, check=True)
    assert json.loads(done.stdout)["why"].startswith("py-spy is not installed there")
