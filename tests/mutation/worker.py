"""Runs tests in forks of itself, in a copy of the checkout and in a world of its own where nothing else can be hit.

A planted change may signal processes that it should not. So this program insists on being process 1 of a pid
namespace: it can see, and end, only what its tests have started. It reads one JSON object a line and answers with one::

    {"map": ["tests/runs/test_x.py"]}            -> {"tests": {node: {"cpu": 0.01, "lines": {file: [1, 2]},
                                                               "starts": true}}, "failed": [node]}
    {"tests": [node, ...], "limit_s": 20.0}      -> {"noticed": "test" | "time" | "", "by": node}
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

_PRELOADED = (
    "hypothesis",
    "pytest_timeout",
    "unittest.mock",
    "sqlite3",
    "subprocess",
    "yaml",
    "jsonschema",
    "asyncio",
    "urllib3",
    "docker",
)
_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.exec", "os.fork", "os.system"}
_PLAIN = (
    "-q",
    "-x",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "--doctest-modules",
    "-o",
    "addopts=",
    "--hypothesis-seed=0",
    "-W",
    "ignore:Module already imported",
)


class Mapper:
    """Writes down which lines of torchx each test runs in this process, and how much processor time it takes."""

    def __init__(self, prefix: str) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: list[str] = []
        self._prefix = prefix
        self._lines: dict[str, set[int]] = {}
        self._starts = False
        sys.addaudithook(self._audit)
        self._forks = tempfile.mkdtemp()  # what forks of a test have run; they end with os._exit
        end, mapper = os._exit, os.getpid()

        def exit_and_tell(status: int) -> NoReturn:
            if os.getpid() != mapper:
                sys.settrace(None)
                with contextlib.suppress(OSError), open(os.path.join(self._forks, str(os.getpid())), "w") as f:
                    json.dump({path: list(numbers) for path, numbers in self._lines.items()}, f)
            end(status)

        os._exit = exit_and_tell

    def pytest_runtest_logstart(self) -> None:
        self._lines, self._starts = {}, False
        self._start = _cpu()
        threading.settrace(self._enter)
        sys.settrace(self._enter)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed or report.skipped:
            self.failed.append(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)
        for name in os.listdir(self._forks):
            with contextlib.suppress(ValueError), open(os.path.join(self._forks, name), encoding="utf-8") as f:
                for path, numbers in json.load(f).items():
                    self._lines.setdefault(path, set()).update(numbers)
            os.unlink(os.path.join(self._forks, name))
        skip = len(self._prefix)
        lines = {path[skip:]: sorted(numbers) for path, numbers in self._lines.items()}
        self.tests[nodeid] = {"cpu": round(_cpu() - self._start, 3), "lines": lines, "starts": self._starts}

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def answer(self) -> dict[str, Any]:
        good = {node: test for node, test in self.tests.items() if node not in self.failed}
        return {"tests": good, "failed": sorted(set(self.failed))}

    def _audit(self, event: str, args: object) -> None:
        self._starts = self._starts or event in _STARTS

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        if not path.startswith(self._prefix):
            return None
        lines = self._lines.setdefault(path, set())
        lines.add(frame.f_lineno)

        def each(frame: FrameType, event: str, arg: object) -> Any:
            lines.add(frame.f_lineno)
            return each

        return each


class Chosen:
    """Runs the chosen tests alone, in the order in which they were given; the first that fails is the answer."""

    def __init__(self, nodes: list[str]) -> None:
        self._order = {node: i for i, node in enumerate(nodes)}
        self.by = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self._order), key=lambda i: self._order[i.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.by:
            self.by = report.nodeid

    def answer(self) -> dict[str, Any]:
        return {"by": self.by}


def main() -> None:
    if os.getpid() != 1:
        sys.exit("worker: start me as process 1 of a pid namespace")
    for name in _PRELOADED:
        with contextlib.suppress(ImportError):
            __import__(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        if "map" in job:
            answer = _forked(lambda job=job: _run(job["map"], Mapper(os.getcwd() + "/")), 900.0)
        else:
            files = list(dict.fromkeys(node.partition("::")[0] for node in job["tests"]))
            answer = _forked(lambda job=job, files=files: _run(files, Chosen(job["tests"])), job["limit_s"])
            code = answer.get("code")
            answer["noticed"] = "time" if code is None else "" if code == 0 else "test"
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _run(files: list[str], plugin: Any) -> dict[str, Any]:
    import pytest

    code = pytest.main([*_PLAIN[: 1 if isinstance(plugin, Mapper) else 2], *_PLAIN[2:], *files], plugins=[plugin])
    return {**plugin.answer(), "code": int(code)}


def _forked(work: Any, limit_s: float) -> dict[str, Any]:
    """What ``work`` returns in a fork; without a ``code`` when it did not end in time, or died."""
    with tempfile.TemporaryDirectory(dir="..") as scratch:
        result = os.path.join(os.path.abspath(scratch), "result")
        pid = os.fork()
        if not pid:
            os.setsid()
            os.environ["TMPDIR"] = tempfile.tempdir = os.path.dirname(result)
            try:
                with open(result, "w", encoding="utf-8") as f:
                    json.dump(work(), f)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        in_time = _wait(pid, limit_s)
        _end_all()
        if not in_time:
            return {}
        try:
            with open(result, encoding="utf-8") as f:
                answer: dict[str, Any] = json.load(f)
                return answer
        except (OSError, ValueError):
            return {"code": -1}  # it died: that is noticed too


def _wait(pid: int, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    with _alarm():
        while time.monotonic() < deadline:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, deadline - time.monotonic()))
            with contextlib.suppress(InterruptedError, TimeoutError):
                if os.wait()[0] == pid:  # any other is an orphan: process 1 inherits those
                    return True
    return False


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _end_all() -> None:
    """End whatever is left in this namespace, which holds nothing but what the tests started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _cpu() -> float:
    return sum(os.times()[:4])


if __name__ == "__main__":
    main()
