"""What tracking costs a job: its import, and many writes from several processes at once.

Run as a program, ``PYTHON tracking.py all KIND COUNT``, it prints the seconds of the writes; the clock starts when all
processes have imported what they need. Only names that all contestants have are used there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.contestants import Contestant
    from benchmarks.stage import Stage
    from benchmarks.timing import Sample

PROCESSES = 8
WRITES = 1_000
RUN = "local_cwd://torchx/bench"
THIS = os.path.abspath(__file__)


def imports(contestant: Contestant | None, where: Stage) -> Sample:
    """Seconds of ``import torchx.tracker``; the floor is a bare interpreter."""
    from benchmarks.rows import bare_python
    from benchmarks.timing import command

    if contestant is None:
        return bare_python(where)
    return command([contestant.python, "-c", "import torchx.tracker"], where.env(contestant), where.folder)


def writes(contestant: Contestant | None, where: Stage) -> Sample:
    """Seconds of 1,000 ``add_metadata`` from 8 processes; the floor is a line to a file, opened for each."""
    from benchmarks.timing import program

    python, kind = (sys.executable, "floor") if contestant is None else (contestant.python, "fsspec")
    return program([python, THIS, "all", kind, str(WRITES)], where.env(contestant), where.folder)


def _all(kind: str, count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, THIS, "one", kind, folder, str(count // PROCESSES)]
        pipe = subprocess.PIPE
        writers = [subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) for _ in range(PROCESSES)]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        started = time.perf_counter()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "done\n"
        seconds = time.perf_counter() - started
        for writer in writers:
            writer.communicate()
        return seconds


def _one(kind: str, folder: str, count: int) -> None:
    write = (_floor if kind == "floor" else _fsspec)(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(count):
        write(step)
    print("done", flush=True)


def _floor(folder: str) -> Callable[[int], None]:
    path = os.path.join(folder, str(os.getpid()))

    def write(step: int) -> None:
        with open(path, "a") as f:
            f.write(json.dumps({"run": RUN, "metadata": {f"loss{os.getpid()}": step}}))

    return write


def _fsspec(folder: str) -> Callable[[int], None]:
    import fsspec

    from torchx.tracker.backend.fsspec import FsspecTracker

    tracker = FsspecTracker(fsspec.filesystem("file", auto_mkdir=True), folder)
    return lambda step: tracker.add_metadata(RUN, **{f"loss{os.getpid()}": step})


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file has modules of common names
    if sys.argv[1] == "all":
        print(_all(sys.argv[2], int(sys.argv[3])))
    else:
        _one(sys.argv[2], sys.argv[3], int(sys.argv[4]))
