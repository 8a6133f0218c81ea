"""What a call of the Runner costs, in units that no busy machine changes: bytecodes, system calls, instructions.

The figures stand in `LIMITS`, with room of a quarter (Python 3.10, which is slower, needs it all). Who makes a call dearer on purpose
raises its limit, and that is looked at in review.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LIMITS = {
    "dryrun": {"bytecodes": 5_100, "instructions": 530_000, "system calls": 8},
    "status": {"bytecodes": 800, "instructions": 62_000, "system calls": 2},
}
"""One dry run of a job of one replica, for this machine; one status of a local job that has ended."""

SETUP = """
import json, os, sys
from torchx.runner import get_runner
from torchx.specs import AppDef, Role

runner = get_runner()
app = AppDef("a", [Role("w", "", entrypoint="true", env={"A": "b"}, args=["x"])])
handle = os.environ["HANDLE"]
calls = {"dryrun": lambda _: runner.dryrun(app, "local_cwd") and 0, "status": lambda _: runner.status(handle) and 0}
for call in calls.values():
    for i in range(30):  # what is made once, and what the interpreter learns
        call(i)
"""

BYTECODES = """
def count(call):
    total = 0

    def step(*_):
        nonlocal total
        total += 1

    if hasattr(sys, "monitoring"):  # since Python 3.12, where tracing misses some
        tool, event = 4, sys.monitoring.events.INSTRUCTION
        sys.monitoring.use_tool_id(tool, "cost")
        sys.monitoring.register_callback(tool, event, step)
        sys.monitoring.set_events(tool, event)
        call(0)
        sys.monitoring.set_events(tool, 0)
        sys.monitoring.free_tool_id(tool)
        return total

    def trace(frame, event, arg):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            step()
        return trace

    sys.settrace(trace)
    call(0)
    sys.settrace(None)
    return total

print(json.dumps({name: count(call) for name, call in calls.items()}))
"""

OF_OS = """
import builtins, collections, os
counted = collections.Counter()

def watch(module, name):
    original = getattr(module, name)

    def watched(*args, **kwargs):
        counted[name] += 1
        return original(*args, **kwargs)

    setattr(module, name, watched)

for name in ("access", "stat", "lstat", "open", "listdir", "scandir", "getcwd", "read", "pread", "write", "urandom"):
    watch(os, name)
watch(builtins, "open")
"""

COUNTS = """
found = {}
for name, call in calls.items():
    counted.clear()
    for i in range(50):
        call(i)
    found[name] = {what: number / 50 for what, number in counted.items()}
print(json.dumps(found | {"modules": sorted(sys.modules)}))
"""

BETWEEN_MARKS = """
for name, call in calls.items():
    os.access(f"/mark/{name}", 0)
    for i in range(50):
        call(i)
    os.access("/mark/end", 0)
"""

WITHIN_SUM = """
for call in calls.values():
    sum(map(call, range(50)))
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with a home, in which one job has ended: its handle is `$HANDLE`."""
    home = tmp_path_factory.mktemp("cost")
    env = {"HOME": str(home), "TORCHX_HOME": str(home / ".torchx"), "TMPDIR": str(home), "PATH": os.environ["PATH"]}
    env |= {name: value for name, value in os.environ.items() if name.startswith(("PYTHON", "PYTEST_TORCHX"))}
    argv = [sys.executable, "-m", "torchx", "run", "-s", "local_cwd", "--wait", "utils.echo"]
    done = subprocess.run(argv, env=env, cwd=home, capture_output=True, text=True, check=True)
    return {**env, "HANDLE": done.stdout.split()[-1]}


def run(env: dict[str, str], *parts: str, under: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """A program of these parts, in the home."""
    argv = [*under, sys.executable, "-c", "".join(parts)]
    done = subprocess.run(argv, env=env, cwd=env["HOME"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


def check(unit: str, found: dict[str, float]) -> None:
    over = {name: number for name, number in found.items() if not 0 < number <= LIMITS[name][unit]}
    assert found.keys() == LIMITS.keys()
    assert not over, f"{unit} a call: {found}"


def test_bytecodes(env: dict[str, str]) -> None:
    """So many bytecodes are executed, all functions that are called included."""
    check("bytecodes", json.loads(run(env, SETUP, BYTECODES).stdout))


@pytest.mark.parametrize("config", ["", "[local_cwd]\ncancel_grace_s = 5\n"], ids=["no config file", "a config file"])
def test_what_is_asked_of_the_system(env: dict[str, str], config: str) -> None:
    """A dry run opens no file: it looks whether the config files are the same. A status looks whether the job is there."""
    file = Path(env["HOME"]) / ".torchxconfig"
    if config:
        file.write_text(config)
    try:
        # Watched from the start: what a Runner keeps must not be a way around.
        found = json.loads(run(env, OF_OS, SETUP, COUNTS).stdout)
    finally:
        file.unlink(missing_ok=True)
    assert found["status"] == {"access": 1}
    # The home is the current directory, too: both places have the file, or none has. To say where its one value stands,
    # the current directory is asked for once more.
    expected = {"access": 2, "getcwd": 2, "urandom": 1}
    assert found["dryrun"] == expected | ({"stat": 2, "getcwd": 3} if config else {})
    assert {"sqlite3", "logging", "torchx.runs"} & set(found["modules"]) == set()


def test_system_calls(env: dict[str, str], tmp_path: Path) -> None:
    """As above, in the kernel's words: calls that allocate memory or wake threads are not counted."""
    trace = tmp_path / "trace"
    under = ("strace", "-qq", "-o", str(trace), "-e", "trace=!brk,mmap,munmap,madvise,mremap,futex,rt_sigaction")
    strace = shutil.which("strace")
    if strace is None or subprocess.run([*under, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace is not here, or may not be used")
    run(env, SETUP, BETWEEN_MARKS, under=under)
    found: dict[str, float] = {}
    name = "end"
    for line in trace.read_text(errors="replace").splitlines():
        if mark := re.search(r'"/mark/(\w+)"', line):
            name = mark[1]
        elif name != "end":
            found[name] = found.get(name, 0) + 1 / 50
    check("system calls", found)


def test_instructions(env: dict[str, str], tmp_path: Path) -> None:
    """So many instructions of the processor, counted by Valgrind within the built-in `sum`."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not here")
    out = tmp_path / "out"
    toggle = ("--toggle-collect=builtin_sum", "--dump-after=builtin_sum")
    run(env, SETUP, WITHIN_SUM, under=("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *toggle))
    dumps = sorted(tmp_path.glob("out.*"), key=lambda path: int(path.suffix[1:]))
    totals = [total for total in map(_total, dumps) if total > 10_000]  # not those of sums that an import makes
    if not totals:
        pytest.skip("this Python's symbols were stripped")
    check("instructions", {name: total / 50 for name, total in zip(LIMITS, totals, strict=True)})


def _total(path: Path) -> int:
    found = re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
