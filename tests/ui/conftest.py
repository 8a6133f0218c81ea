"""A `torchx ui` of its own for each test, asked over its port as a browser asks."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PATIENCE_S = 60


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Page:
    """The server in a process of its own."""

    def __init__(self, env: dict[str, str], *args: str) -> None:
        self.env = env
        argv = [sys.executable, "-m", "torchx", "ui", *([] if "BROWSER" in env else ["--no-open"]), *args]
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=(\S+)", self.address)
        assert found, (self.address, self.process.communicate(timeout=PATIENCE_S))
        self.port, self.token = int(found[1]), found[2]

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        asked = {"Authorization": f"Bearer {self.token}", **headers}
        self.connection.request(method, path, headers={name: value for name, value in asked.items() if value})
        return self.connection.getresponse()

    def ask(self, path: str, *, method: str = "GET", **headers: str) -> Answer:
        answer = self._ask(method, path, headers)
        with contextlib.closing(self.connection), answer:
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def stream(self, path: str) -> Generator[Any, None, None]:
        """Yields the documents of a stream, until the server ends it or the caller closes the generator."""
        answer = self._ask("GET", path, {})
        with contextlib.closing(self.connection), answer:
            assert answer.status == 200, answer.read()
            while line := answer.readline():
                if line.strip():
                    yield json.loads(line)

    def end(self) -> tuple[str, str]:
        """Sends Ctrl-C, and returns the output after the address."""
        self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    env = {**os.environ, "TORCHX_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    env.pop("BROWSER", None)
    return env


@pytest.fixture
def run(home: dict[str, str], tmp_path: Path) -> Callable[..., str]:
    """Launches a shell script on local_cwd, and returns the handle."""

    def launch(script: str, *options: str) -> str:
        argv = [sys.executable, "-m", "torchx", "run", "-s", "local_cwd", *options, "utils.sh", script]
        done = subprocess.run(argv, env=home, cwd=tmp_path, capture_output=True, text=True, check=False)
        handle = next((line for line in done.stdout.splitlines() if "://" in line), "")
        assert handle, (done.stdout, done.stderr)
        return handle.strip()

    return launch


@pytest.fixture
def pages(home: dict[str, str]) -> Iterator[Callable[..., Page]]:
    started: list[Page] = []

    def start(*args: str, **env: str) -> Page:
        started.append(Page({**home, **env}, *args))
        return started[-1]

    yield start
    for page in started:
        page.process.kill()
        page.process.communicate()
