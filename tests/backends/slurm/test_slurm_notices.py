"""Notices of the end of a job on a real cluster: from its batch script, as nobody watches; once, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.slurm.conftest import becomes, command
from tests.runner.sinks import Sink, http_sink, smtp_sink

Eventually = Callable[..., object]
ENDINGS = int(os.environ.get("TORCHX_TEST_ENDINGS", "4"))


@pytest.fixture
def sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Sink, Sink]]:
    """A webhook, whose address is a secret, and mail."""
    with http_sink() as hooks, smtp_sink() as mail:
        monkeypatch.setenv("MY_HOOK", f"http://127.0.0.1:{hooks.port}/hunter2")
        (tmp_path / ".torchxconfig").write_text(
            f"[notify]\nvia = webhook,mail\nwebhook = env:MY_HOOK\nmail = me@example.org\nsmtp = 127.0.0.1:{mail.port}\n"
        )
        yield hooks, mail


def torchx(cwd: Path, *words: str) -> str:
    argv = [sys.executable, "-m", "torchx", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd=cwd).stdout.strip()


def run(cwd: Path, script: str, *words: str) -> str:
    memory = "300" if "--watchdog" in words else "50"  # it looks by programs of its own
    return torchx(cwd, "run", "-d", "-s", "slurm", *words, "utils.sh", "--memMB", memory, "--", script)


def home_files(text: bytes) -> list[Path]:
    return [p for p in Path(os.environ["TORCHX_HOME"]).rglob("*") if p.is_file() and text in p.read_bytes()]


def test_nobody_watches(sinks: tuple[Sink, Sink], tmp_path: Path) -> None:
    """The batch script sends what `status` says, and the address is in no script; who watches later sends nothing more."""
    hooks, mail = sinks
    go = tmp_path / "go"
    handle = run(tmp_path, f"until test -e {go}; do sleep 0.1; done; echo 'ValueError: bad lr' >&2; exit 3")
    app_id = handle.rpartition("/")[2]
    addresses = home_files(b"hunter2")
    assert {path.name for path in addresses} >= {"notices.json"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in addresses)
    assert "hunter2" not in command("scontrol", "write", "batch_script", app_id, "-")
    go.touch()
    becomes(lambda: (len(hooks.got), len(mail.got)), (1, 1))
    assert (hooks.got[0]["handle"], hooks.got[0]["state"]) == (handle, "FAILED")
    assert "exit code 3" in hooks.got[0]["text"] and "ValueError: bad lr" in hooks.got[0]["text"]
    assert f"({handle})" in mail.got[0]
    torchx(tmp_path, "watch", handle)
    becomes(lambda: home_files(b"hunter2"), [])
    assert (len(hooks.got), len(mail.got)) == (1, 1)
    assert json.loads(torchx(tmp_path, "status", "--json", handle))["notices"] == []


def test_cancelled(sinks: tuple[Sink, Sink], tmp_path: Path) -> None:
    """A job that is cancelled says so while Slurm ends it."""
    hooks, _ = sinks
    handle = run(tmp_path, "sleep 600")
    becomes(lambda: json.loads(torchx(tmp_path, "status", "--json", handle))["state"], "RUNNING")
    command("scancel", handle.rpartition("/")[2])
    becomes(lambda: [document["state"] for document in hooks.got], ["CANCELLED"])


def test_an_alarm(sinks: tuple[Sink, Sink], tmp_path: Path) -> None:
    """Told from the node while the job goes on, and then its end; the one who watches later has nothing to tell."""
    hooks, mail = sinks
    go = tmp_path / "go"
    script = f"until test -e {go}; do sleep 0.1; done"
    handle = run(tmp_path, script, "--watchdog", "2s", "--notify-on", "hang,fail")
    assert "hunter2" not in command("scontrol", "write", "batch_script", handle.rpartition("/")[2], "-")
    becomes(lambda: (len(hooks.got), len(mail.got)), (1, 1))
    assert [hooks.got[0][key] for key in ("event", "handle", "state")] == ["hang", handle, "RUNNING"]
    assert "no output for " in hooks.got[0]["text"]
    go.touch()
    becomes(lambda: json.loads(torchx(tmp_path, "status", "--json", handle))["state"], "SUCCEEDED")
    torchx(tmp_path, "watch", handle)
    becomes(lambda: home_files(b"hunter2"), [])
    ended = run(tmp_path, "sleep 600", "--watchdog", "2s:cancel", "--notify-on", "hang,fail")
    becomes(lambda: [document["event"] for document in hooks.got], ["hang", "hang", "end"])
    assert [document["handle"] for document in hooks.got] == [handle, ended, ended]
    torchx(tmp_path, "watch", ended)
    becomes(lambda: home_files(b"hunter2"), [])
    assert (len(hooks.got), len(mail.got)) == (3, 3)


def scripts() -> list[int]:
    """The batch scripts of jobs of this test, and what sends notices for them."""
    home = os.environ["TORCHX_HOME"].encode()
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            ours = b"/slurm_script" in line or b"torchx.schedulers.slurm.notices" in line
            if ours and os.fsencode(os.readlink(entry / "cwd")).startswith(home):
                found.append(int(entry.name))
    return found


def test_one_notice_of_each_ending(sinks: tuple[Sink, Sink], tmp_path: Path, eventually: Eventually) -> None:
    """Someone watches; a watcher or a job's batch script is killed before, at or after the end of each job."""
    hooks, mail = sinks
    rng = random.Random(5)
    watchers: list[subprocess.Popen[bytes]] = []

    def watch() -> None:
        null = subprocess.DEVNULL
        argv = [sys.executable, "-m", "torchx", "watch"]
        watchers.append(subprocess.Popen(argv, cwd=tmp_path, stdout=null, stderr=null))

    handles: list[str] = []
    kills: Counter[str] = Counter()
    watch()
    watch()
    try:
        for number in range(ENDINGS):
            span = rng.random()
            handles.append(run(tmp_path, f"sleep {span:.2f}; exit {number % 2}"))
            what = rng.choice(["script", "watch", "nothing"])
            with contextlib.suppress(subprocess.TimeoutExpired):
                watchers[-1].wait(rng.uniform(0, 2 + span))
            if what == "watch":
                watchers[0].kill()
                watchers.pop(0).wait()
                watch()
                kills[what] += 1
            elif what == "script" and (pids := scripts()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(pids), signal.SIGKILL)
                    kills[what] += 1
        folder = Path(os.environ["TORCHX_HOME"], "notices")
        eventually(lambda: not list(folder.glob("*.json")), timeout_s=400, every_s=0.5)
    finally:
        for process in watchers:
            process.kill()
            process.wait()
    print(f"{ENDINGS} endings, killed: {dict(kills)}")
    said = Counter(document["handle"] for document in hooks.got)
    assert said == Counter(handles), kills
    subjects = "\n".join(mail.got)
    assert [subjects.count(f"({handle})") for handle in handles] == [1] * len(handles), kills
    assert len(mail.got) == len(handles)
