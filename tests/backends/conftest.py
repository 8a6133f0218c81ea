"""What the tests with real parts share."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from tests.backends import leftovers, smoke
from tests.backends.shell import ROOT, Shell
from torchx.supervisor.client import shared


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """With ``-n 2``, two folders at a time: the tests of one share its real part, and are run one after the other."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "/".join(file.split("/")[:3]) if file.startswith("tests/backends/") else file

    return ByFolder(config, log)


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test here is marked as one with real parts, and those of ``smoke.txt`` as what the gate runs."""
    tests = frozenset(smoke.listed())
    for item in items:
        if item.path.is_relative_to(smoke.FOLDER):
            item.add_marker("real")
            if smoke.is_listed(item.nodeid, tests):
                item.add_marker("smoke")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In continuous integration, a test of the gate that is skipped has failed: its real part is not there."""
    report = yield
    if report.skipped and os.environ.get("CI") and item.get_closest_marker("smoke"):
        report.outcome, report.longrepr = "failed", f"skipped, in the gate: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """After all tests: no process, temporary file or open descriptor that was not there before them."""
    leftovers.adopt_orphans()
    temporary, no_test = tmp_path_factory.mktemp("tmp"), str(tmp_path_factory.mktemp("no-test") / ".torchx")
    intruders: list[str] = []

    def audit(event: str, args: tuple[object, ...]) -> None:
        if event == "sqlite3.connect" and no_test in str(args[0]):
            intruders.extend(traceback.format_stack())

    sys.addaudithook(audit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        patch.setenv("TORCHX_HOME", no_test)  # of what runs before and after the tests, such as a thread of one
        patch.setattr(tempfile, "tempdir", None)
        descriptors = _descriptors()
        yield
        shared.close()
        deadline = time.monotonic() + 60
        while (processes := leftovers.living()) and time.monotonic() < deadline:
            leftovers.reap()
            time.sleep(0.05)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    assert not processes, f"processes outlived the tests: {processes}"
    assert not intruders, f"the registry was opened by no test, here: {''.join(intruders)}"
    # PyTorch keeps a cache there, and torchrun, run by itself, the logs of its workers.
    files = sorted(name for name in os.listdir(temporary) if not name.startswith(("torchelastic_", "torchinductor_")))
    assert not files, f"temporary files outlived the tests: {files}"
    gc.collect()
    deadline = time.monotonic() + 60
    while _descriptors().keys() - descriptors.keys() and time.monotonic() < deadline:
        time.sleep(0.05)  # a thread of a test's server is about to close it
    opened = {fd: target for fd, target in _descriptors().items() if fd not in descriptors}
    assert not opened, f"descriptors outlived the tests: {opened}"


def _descriptors() -> dict[str, str]:
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the one of the listing
        if "torchx-stacks-" not in target:  # an example of the documentation offers its stack until its process ends
            found[fd] = target
    return found


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Commands run at the root of the checkout. They have a temporary directory of their own: torchrun leaves files there."""
    temporary = str(tmp_path_factory.mktemp("shell"))
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    return Shell(ROOT, {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": temporary})


@pytest.fixture
def eventually() -> Callable[..., object]:
    """Ask until the answer is true; fail with the last answer when it takes too long."""

    def ask(question: Callable[[], object], *, timeout_s: float = 120, every_s: float = 0.1) -> object:
        deadline = time.monotonic() + timeout_s
        while not (answer := question()):
            assert time.monotonic() < deadline, f"still {answer!r} after {timeout_s} s"
            time.sleep(every_s)
        return answer

    return ask
