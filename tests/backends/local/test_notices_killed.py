"""Notices of jobs whose supervisor, guardian or poller is killed at a random moment: one at each sink, no more, no less."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.runner.sinks import http_sink, smtp_sink
from torchx.supervisor import proctree

Eventually = Callable[..., object]
ENDINGS = int(os.environ.get("TORCHX_TEST_ENDINGS", "6"))


def run(cwd: Path, *words: str) -> str:
    argv = [sys.executable, "-m", "torchx", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd=cwd).stdout.strip()


def victims() -> list[int]:
    """The supervisor of a job of ours, and the guardian above it; never a sender of notices."""
    home = os.environ["TORCHX_HOME"]
    found = set()
    for pid, process in proctree.snapshot().items():
        with contextlib.suppress(OSError):
            if b"launcher.py" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                continue
            if any(os.readlink(fd).startswith(home) for fd in Path(f"/proc/{pid}/fd").iterdir()):
                found |= {pid, process.ppid}
    return sorted(found - {1})


def test_one_notice_of_each_ending(tmp_path: Path, eventually: Eventually, monkeypatch) -> None:
    """Half of the jobs fail. Someone watches all the time; something of torchx is killed before, at or after each end."""
    rng = random.Random(11)
    with http_sink() as hooks, smtp_sink() as mail:
        monkeypatch.setenv("MY_HOOK", f"http://127.0.0.1:{hooks.port}/hunter2")
        (tmp_path / ".torchxconfig").write_text(
            f"[notify]\nvia = webhook,mail\nwebhook = env:MY_HOOK\nmail = me@example.org\nsmtp = 127.0.0.1:{mail.port}\n"
        )
        watchers: list[subprocess.Popen[bytes]] = []

        def watch() -> None:
            null = subprocess.DEVNULL
            watchers.append(subprocess.Popen([sys.executable, "-m", "torchx", "watch"], cwd=tmp_path, stdout=null))

        handles: list[str] = []
        kills: Counter[str] = Counter()
        watch()
        watch()
        try:
            for number in range(ENDINGS):
                span = rng.random()
                handles.append(run(tmp_path, "run", "-d", "utils.sh", "--", f"sleep {span:.2f}; exit {number % 2}"))
                what = rng.choice(["supervisor", "watch", "nothing"])
                # Between now and a moment after the end of the job.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    watchers[-1].wait(rng.uniform(0, 1.5 * span))
                if what == "watch":
                    watchers[0].kill()
                    watchers.pop(0).wait()
                    watch()
                    kills[what] += 1
                elif what == "supervisor" and (pids := victims()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(rng.choice(pids), signal.SIGKILL)
                        kills[what] += 1
            folder = Path(os.environ["TORCHX_HOME"], "notices")
            eventually(lambda: not list(folder.glob("*.json")), timeout_s=300, every_s=0.2)
        finally:
            for process in watchers:
                process.kill()
                process.wait()
        assert ENDINGS < 20 or len(kills) >= 2, kills
        said = Counter(document["handle"] for document in hooks.got)
        assert said == Counter(handles), json.dumps({"kills": kills, "hooks": said})
        subjects = "\n".join(message for message in mail.got)
        assert [subjects.count(f"({handle})") for handle in handles] == [1] * len(handles), kills
        assert len(mail.got) == len(handles)


def test_a_sender_outlives_its_supervisor(tmp_path: Path, eventually: Eventually) -> None:
    """The guardian ends what is left of a job, and not the program that sends its notice: that has begun, and ends once."""
    hook = tmp_path / "hook.sh"
    hook.write_text("#!/bin/sh\necho x >> began\nwhile [ ! -e go ]; do sleep 0.05; done\necho x >> done\n")
    hook.chmod(0o755)
    run(tmp_path, "run", "-d", "--notify", "exec:./hook.sh", "utils.echo")
    try:
        eventually((tmp_path / "began").exists, timeout_s=120, every_s=0.05)
        (supervisor,) = [
            pid for pid in victims() if b"launcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes() and _has_child(pid)
        ]
        os.kill(supervisor, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{supervisor}").exists(), timeout_s=120, every_s=0.05)
        assert json.loads(run(tmp_path, "status", "--json", "@last"))["state"] == "SUCCEEDED"
    finally:
        (tmp_path / "go").touch()
    eventually((tmp_path / "done").exists, timeout_s=120, every_s=0.05)
    folder = Path(os.environ["TORCHX_HOME"], "notices")
    eventually(lambda: not list(folder.iterdir()), timeout_s=120, every_s=0.05)
    assert ((tmp_path / "began").read_text(), (tmp_path / "done").read_text()) == ("x\n", "x\n")


def _has_child(pid: int) -> bool:
    """Whether a sender is its child."""
    return any(
        process.ppid == pid and b"torchx.runner.notices" in Path(f"/proc/{child}/cmdline").read_bytes()
        for child, process in proctree.snapshot().items()
    )
