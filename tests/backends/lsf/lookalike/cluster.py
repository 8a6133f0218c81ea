"""Bring a look-alike up and down: ``python -m tests.backends.lsf.lookalike.cluster up FOLDER``, then ``down FOLDER``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from .commands import NAMES
from .config import Config, write_config
from .model import Host, Queue

HERE = os.path.dirname(os.path.abspath(__file__))


def default_config(envdir: str, **changes: Any) -> Config:
    """Four hosts of eight slots, with two GPUs each; a minute of a second; LSF's own patience of bkill."""
    hosts = [Host(f"127.0.0.1{n}", slots=8, mem_mb=16384, gpus=2) for n in range(1, 5)]
    queues = [Queue("normal"), Queue("urgent", priority=60), Queue("narrow", user_slots=1)]
    config = Config(envdir, hosts, queues, apps=["docker-app"], minute_s=1)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def up(config: Config) -> int:
    """Writes the folder and starts the daemon; its pid."""
    os.makedirs(config.bindir, exist_ok=True)
    write_config(config)
    package = os.path.basename(HERE)
    for name in NAMES:
        path = os.path.join(config.bindir, name)
        with open(path, "w") as file:
            file.write(
                f"#!{sys.executable} -IS\nimport os, sys\nsys.path.insert(0, {os.path.dirname(HERE)!r})\n"
                f"os.environ.setdefault('LSF_ENVDIR', {config.envdir!r})\n"
                f"from {package}.commands import main\nsys.exit(main({name!r}, sys.argv[1:]))\n"
            )
        os.chmod(path, 0o755)
    code = f"import sys; sys.path.insert(0, {os.path.dirname(HERE)!r}); from {package} import config, daemon; "
    code += f"daemon.Daemon(config.read_config({config.envdir!r})).serve()"
    with open(os.path.join(config.envdir, "mbatchd.log"), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-IS", "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + 60
    while not _answers(config):
        if process.poll() is not None or time.monotonic() > deadline:
            with open(log.name) as file:
                raise RuntimeError(f"the look-alike did not start: {file.read()}")
        time.sleep(0.01)
    with open(os.path.join(config.envdir, "mbatchd.pid"), "w") as file:
        file.write(str(process.pid))
    process.returncode = 0  # it is stopped by its pid
    return process.pid


def _answers(config: Config) -> bool:
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(config.socket) == 0


def down(envdir: str) -> None:
    """Stops the daemon of a folder, and with it all jobs."""
    with open(os.path.join(envdir, "mbatchd.pid")) as file:
        pid = int(file.read())
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        _wait(pid)


def _wait(pid: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


@contextlib.contextmanager
def running(envdir: str, **changes: Any) -> Iterator[Config]:
    """A cluster for the time of the context."""
    config = default_config(envdir, **changes)
    up(config)
    try:
        yield config
    finally:
        down(envdir)


if __name__ == "__main__":
    verb, folder = sys.argv[1], os.path.abspath(sys.argv[2])
    if verb == "up":
        up(default_config(folder))
        print(f"export LSF_ENVDIR={folder} PATH={folder}/bin:$PATH")
    else:
        down(folder)
