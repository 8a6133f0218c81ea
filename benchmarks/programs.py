"""The measured programs of the Python interface, and of the machine's floor: each prints one figure, in seconds.

Run as ``PYTHON programs.py NAME [COUNT]`` with the interpreter of whoever is measured. Only names that all of the
contestants have are used here. The clock starts after the imports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

NULL = subprocess.DEVNULL


def main() -> None:
    name, count = sys.argv[1], int(sys.argv[2])
    print(PROGRAMS[name](count))


def dryrun(count: int) -> float:
    """Seconds of ``count`` calls of Runner.dryrun."""
    with runner() as it:
        app = application("/bin/true")
        it.dryrun(app, "local_cwd", {})
        started = time.perf_counter()
        for _ in range(count):
            it.dryrun(app, "local_cwd", {})
        return time.perf_counter() - started


def dryrun_replicas(count: int) -> float:
    """Seconds of one dryrun of ``count`` replicas."""
    with runner() as it:
        it.dryrun(application("/bin/true"), "local_cwd", {})
        app = application("/bin/true", replicas=count)
        started = time.perf_counter()
        it.dryrun(app, "local_cwd", {})
        return time.perf_counter() - started


def run(count: int) -> float:
    """Seconds to submit ``count`` jobs one after the other and to see each of them succeed."""
    with runner() as it:
        app = application("/bin/true")
        finish(it, it.run(app, "local_cwd", {}))
        started = time.perf_counter()
        handles = [it.run(app, "local_cwd", {}) for _ in range(count)]
        for handle in handles:
            finish(it, handle)
        return time.perf_counter() - started


def replicas(count: int) -> float:
    """Seconds from the submission of one job of ``count`` replicas until it has succeeded."""
    with runner() as it:
        finish(it, it.run(application("/bin/true"), "local_cwd", {}))
        app = application("/bin/true", replicas=count)
        started = time.perf_counter()
        finish(it, it.run(app, "local_cwd", {}))
        return time.perf_counter() - started


def status_running(count: int) -> float:
    """Seconds of ``count`` calls of Runner.status, of a job that runs."""
    with runner() as it:
        handle = it.run(application("/bin/sleep", "120"), "local_cwd", {})
        try:
            while it.status(handle).state.name != "RUNNING":
                time.sleep(0.01)
            return ask(it, handle, count)
        finally:
            it.cancel(handle)


def status_ended(count: int) -> float:
    """Seconds of ``count`` calls of Runner.status, of a job that has ended."""
    with runner() as it:
        handle = it.run(application("/bin/true"), "local_cwd", {})
        finish(it, handle)
        return ask(it, handle, count)


def ask(it: Any, handle: str, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        it.status(handle)
    return time.perf_counter() - started


def log_lines(count: int) -> float:
    """Seconds to iterate over ``count`` lines through Runner.log_lines."""
    with runner() as it, tempfile.TemporaryDirectory() as folder:
        handle = it.run(application("/usr/bin/seq", str(count)), "local_cwd", {"log_dir": folder})
        finish(it, handle)
        started = time.perf_counter()
        seen = sum(1 for _ in it.log_lines(handle, "main", 0))
        seconds = time.perf_counter() - started
    if not count <= seen <= count * 1.001:  # the peers cut lines in two at the edges of their buffer
        raise SystemExit(f"{seen} lines of {count}")
    return seconds


def floor_run(count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        subprocess.Popen(["/bin/true"], stdout=NULL, stderr=NULL).wait()
    return time.perf_counter() - started


def floor_replicas(count: int) -> float:
    started = time.perf_counter()
    for process in [subprocess.Popen(["/bin/true"], stdout=NULL, stderr=NULL) for _ in range(count)]:
        process.wait()
    return time.perf_counter() - started


def floor_log_lines(count: int) -> float:
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(["/usr/bin/seq", str(count)], stdout=file, check=True)
        started = time.perf_counter()
        with open(file.name) as lines:
            seen = sum(1 for _ in lines)
        seconds = time.perf_counter() - started
    if seen != count:
        raise SystemExit(f"{seen} lines of {count}")
    return seconds


def runner() -> Any:
    """A Runner of the torchx that this interpreter has, and of no other."""
    import torchx
    from torchx.runner import get_runner

    if not os.path.abspath(torchx.__file__).startswith(sys.prefix):
        raise SystemExit(f"imported {torchx.__file__}, which is not below {sys.prefix}")
    return get_runner()


def checks(count: int) -> float:
    """Seconds of what `run` checks by itself, the first time in a process, of a script among ``count`` files."""
    from torchx.components.utils import python
    from torchx.specs import Workspace

    with tempfile.TemporaryDirectory() as folder, runner() as it:
        for name in [*(f"{k}.py" for k in range(count)), ".torchxignore"]:
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write("*.ckpt\n" if name.startswith(".") else "")
        app, backend = python("--lr", "0.1", script=f"{count - 1}.py"), it._scheduler("kubernetes")
        app.roles[0].workspace = Workspace.from_str(f"file://{folder}")
        started = time.perf_counter()
        from torchx.runner.launch import static

        static.refuse_scripts(app, backend, {})
        static.refuse_names(app, backend)
        return time.perf_counter() - started


def application(*argv: str, replicas: int = 1) -> Any:
    from torchx.specs import AppDef, Resource, Role

    resource = Resource(cpu=1, gpu=0, memMB=1)
    role = Role("main", image="", entrypoint=argv[0], args=list(argv[1:]), num_replicas=replicas, resource=resource)
    return AppDef("bench", roles=[role])


def finish(it: Any, handle: str) -> None:
    status = it.wait(handle, wait_interval=0.001)
    if status is None or status.state.name != "SUCCEEDED":
        raise SystemExit(f"the job did not succeed: {status}")


def steps(count: int) -> float:
    """``distributed.progress(step)`` in a job of one rank of two, whose thread samples it."""
    from torchx import distributed

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TORCHX_JOB_ID": "local_cwd://s/a", "TORCHX_STEPS": f"{folder}/steps", "WORLD_SIZE": "2"}
        distributed.progress(0, count)
        started = time.perf_counter()
        for step in range(count):
            distributed.progress(step + 1, count, loss=0.5)
        return time.perf_counter() - started


PROGRAMS: dict[str, Callable[[int], float]] = {
    "dryrun": dryrun,
    "dryrun_replicas": dryrun_replicas,
    "run": run,
    "replicas": replicas,
    "status_running": status_running,
    "status_ended": status_ended,
    "log_lines": log_lines,
    "checks": checks,
    "steps": steps,
    "floor_run": floor_run,
    "floor_replicas": floor_replicas,
    "floor_log_lines": floor_log_lines,
}

if __name__ == "__main__":
    main()
