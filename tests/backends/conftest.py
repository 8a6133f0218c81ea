"""What the tests with real parts share."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import pytest

from tests.backends.shell import ROOT, Shell


@pytest.fixture
def shell() -> Shell:
    env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    return Shell(ROOT, env)


@pytest.fixture
def eventually() -> Callable[..., object]:
    """Ask until the answer is true; fail with the last answer when it takes too long."""

    def ask(question: Callable[[], object], *, timeout_s: float = 60, every_s: float = 0.1) -> object:
        deadline = time.monotonic() + timeout_s
        while not (answer := question()):
            assert time.monotonic() < deadline, f"still {answer!r} after {timeout_s} s"
            time.sleep(every_s)
        return answer

    return ask
