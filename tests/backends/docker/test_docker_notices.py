"""Notices of jobs in containers: their watcher sends them, as nobody else looks; once, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from tests.backends import leftovers
from tests.backends.shell import Shell
from tests.runner.sinks import http_sink

Eventually = Callable[..., object]
ENDINGS = int(os.environ.get("TORCHX_TEST_ENDINGS", "3"))


@pytest.mark.parametrize("replicas", [1, 2])
def test_nobody_watches(docker_image: str, shell: Shell, tmp_path: Path, eventually: Eventually, replicas: int) -> None:
    """The command that submitted is gone; the notice says what `status` says, and who watches later sends no other."""
    with http_sink() as hooks:
        mine = configured(shell, tmp_path, hooks.port)
        handle = launch(mine, docker_image, "sleep 1; exit 3", replicas)
        eventually(lambda: hooks.got, timeout_s=180)
        mine.torchx("watch", handle)
        folder = Path(os.environ["TORCHX_HOME"], "notices")
        eventually(lambda: not list(folder.iterdir()), timeout_s=120)
        assert [(d["handle"], d["state"]) for d in hooks.got] == [(handle, "FAILED")]
        assert "exit code 3" in hooks.got[0]["text"]


def test_an_alarm_of_a_second_watcher(docker_image: str, shell: Shell, tmp_path: Path, eventually: Eventually) -> None:
    """Whoever asks for a job whose watcher was killed starts another one: it tells of the alarm, and of the end."""
    with http_sink() as hooks:
        mine = configured(shell, tmp_path, hooks.port)
        words = ("--watchdog", "4s:cancel", "--notify-on", "hang,end")
        handle = launch(mine, docker_image, "sleep 600", 1, *words)
        for process in leftovers.living(f"watcher.py {handle.rpartition('/')[2]}"):
            os.kill(process.pid, signal.SIGKILL)
        mine.torchx("status", handle)
        eventually(lambda: len(hooks.got) == 2, timeout_s=120)
        assert [(d["event"], d["handle"]) for d in hooks.got] == [("hang", handle), ("end", handle)]
        folder = Path(os.environ["TORCHX_HOME"], "notices")
        eventually(lambda: not list(folder.iterdir()), timeout_s=60)


def test_one_notice_of_each_ending(docker_image: str, shell: Shell, tmp_path: Path, eventually: Eventually) -> None:
    """The job's watcher, or whoever polls, is killed before, at or after the end of each job."""
    rng = random.Random(3)
    with http_sink() as hooks:
        mine = configured(shell, tmp_path, hooks.port)
        watching = mine.start("watch")
        handles = []
        kills = 0
        try:
            for number in range(ENDINGS):
                span = rng.random()
                handles.append(launch(mine, docker_image, f"sleep {span:.2f}; exit {number % 2}", 1))
                deadline = rng.uniform(0, 1.5 + span)
                eventually(elapsed(deadline), every_s=0.02)
                watchers = [p.pid for p in leftovers.living(f"watcher.py {handles[-1].rpartition('/')[2]}")]
                if watchers and rng.random() < 0.6:
                    os.kill(watchers[0], signal.SIGKILL)
                    kills += 1
                elif rng.random() < 0.5:
                    watching.kill()
                    watching.communicate()
                    watching = mine.start("watch")
                    kills += 1
            folder = Path(os.environ["TORCHX_HOME"], "notices")
            eventually(lambda: not list(folder.glob("*.json")), timeout_s=300, every_s=0.2)
        finally:
            watching.kill()
            watching.communicate()
        print(f"{ENDINGS} endings, {kills} kills")
        assert sorted(d["handle"] for d in hooks.got) == sorted(handles)


def test_adopted_containers(docker_image: str, shell: Shell, tmp_path: Path, eventually: Eventually) -> None:
    """One notice of each end, whoever sees it, be they several at once; none of one that is off the record again."""
    client = docker.from_env()
    made = []
    try:
        with http_sink() as hooks:
            mine = configured(shell, tmp_path, hooks.port)
            for code in (0, 3, 4):
                script = f"until [ -e /go ]; do sleep 0.1; done; exit {code}"
                name = f"torchx-adopted-{os.getpid()}-{code}"
                made.append(client.containers.run(docker_image, ["sh", "-c", script], name=name, detach=True))
            handles = [mine.torchx("adopt", c.name, "--name", f"w{i}").strip() for i, c in enumerate(made)]
            mine.torchx("adopt", "--undo", "@w2")
            watching = [mine.start("watch", *handles[:2]) for _ in range(2)]
            for container in made:
                container.exec_run(["touch", "/go"])
            for watcher in watching:
                watcher.communicate(timeout=180)
            assert "FAILED" in mine.torchx("status", handles[2], check=False)
            for handle in handles[:2]:
                mine.torchx("watch", handle)
            folder = Path(os.environ["TORCHX_HOME"], "notices")
            eventually(lambda: not list(folder.glob("*.json")), timeout_s=120, every_s=0.2)
            said = sorted((d["handle"], d["state"], "exit code 3" in d["text"]) for d in hooks.got)
            assert said == sorted([(handles[0], "SUCCEEDED", False), (handles[1], "FAILED", True)])
    finally:
        for container in made:
            container.remove(force=True)
        client.close()


def elapsed(seconds: float) -> Callable[[], bool]:
    due = time.monotonic() + seconds
    return lambda: time.monotonic() >= due


def configured(shell: Shell, folder: Path, port: int) -> Shell:
    (folder / ".torchxconfig").write_text("[notify]\nvia = webhook\nwebhook = env:MY_HOOK\n")
    return replace(shell, cwd=folder, env={**shell.env, "MY_HOOK": f"http://127.0.0.1:{port}/hunter2"})


def launch(shell: Shell, image: str, script: str, replicas: int, *more: str) -> str:
    words = ("-s", "local_docker", "--workspace=", *more, "utils.sh", "--image", image, "--num_replicas", str(replicas))
    return shell.launch(*words, "--", script)
