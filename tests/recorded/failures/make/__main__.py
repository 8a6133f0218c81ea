"""Make the corpus again, or a family of it: ``python -m tests.recorded.failures.make [--python PYTHON] FAMILY...``.

The interpreter needs torch 2.13 (a CPU build), numpy, requests and tqdm. Families that need more say so in their module.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from tests.recorded.failures.make.cases import Case

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FAMILIES = (
    "torchrun",
    "collectives",
    "python",
    "torch",
    "adversarial",
    "programs",
    "memory",
    "systems",
    "gpu",
    "containers",
    "slurm",
    "frameworks",
    "others",
)
LONGEST_S = 120
MAX = 1 << 16
KEPT_LINES = 400  # of a longer stream, as many lines at its end are enough for the corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", help="regular expression of ids; the records of others are kept")
    options = parser.parse_args()
    for family in options.families:
        path = os.path.join(FOLDER, f"{family}.jsonl")
        cases = importlib.import_module(f"tests.recorded.failures.make.{family}").cases()
        known = {r["id"]: r for r in _records(path)}
        for case in cases:
            name = f"{family}/{case.id}"
            if name in known and (not options.only or not re.search(options.only, name)):
                known[name]["label"] = label(case)
                continue
            started = time.time()
            known[name] = record(family, case, options.python)
            shown = {k: known[name][k] for k in ("exit_code", "signal")}
            print(f"{name}: {shown}, {time.time() - started:.1f} s", flush=True)
            _write(path, [known[f"{family}/{c.id}"] for c in cases if f"{family}/{c.id}" in known])
        _write(path, [known[f"{family}/{c.id}"] for c in cases])


def label(case: Case) -> dict[str, object]:
    """What is right to say of it."""
    told: dict[str, object] = {"class": case.kind, "rank": case.rank, "message": list(case.said)}
    told |= {"not": list(case.unsaid)} if case.unsaid else {}
    told |= {"signal": case.signal} if case.signal and case.by != "files" else {}
    return told | ({"aftermath": True} if case.aftermath else {})


def record(family: str, case: Case, python: str) -> dict[str, object]:
    """Run a case, and write down what it left."""
    how = {"id": f"{family}/{case.id}", "source": case.source}
    if case.by == "files":
        streams = {key: case.files.get(key, "") for key in ("stderr", "stdout", "said")}
        end: dict[str, object] = {"exit_code": case.exit_code, "signal": case.signal}
        return {**how, "how": "", "error_file": case.files.get("error_file"), **streams, **end, "label": label(case)}
    folder = tempfile.mkdtemp(prefix="failure-")
    try:
        return {**how, **_run(case, folder, case.python or python), "label": label(case)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(case: Case, folder: str, python: str) -> dict[str, object]:
    port = _free_port()
    said = ""
    source = os.path.join(folder, "train.py" if case.by in ("python", "torchrun") else "job.sh")
    with open(source, "w") as f:
        f.write(case.program.replace("@PORT@", str(port)))
    processes = []
    for node in range(case.nodes):
        argv = _argv(case, node, os.path.basename(source), python, port)
        out, err = (open(os.path.join(folder, f"{name}{node}"), "wb") for name in ("stdout", "stderr"))  # noqa: SIM115
        env = _environment(case, python, os.path.join(folder, f"error{node}.json"))
        group = _cgroup(case) if node == case.node else ""
        begin = functools.partial(_begin, group)
        processes.append(
            subprocess.Popen(
                argv,
                cwd=folder,
                stdout=out,
                stderr=err,
                env=env,
                start_new_session=True,
                preexec_fn=begin,  # noqa: PLW1509 - there are no threads here
            )
        )
    code = _end(case, processes)
    if case.memory_mb:
        said = _kernel_words(processes[case.node].pid, f"failures-{os.getpid()}")

    def read(name: str) -> str:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace", newline="") as f:
            lines = neutral(f.read(), folder, python).split("\n")
        return "\n".join(lines[-KEPT_LINES:])[-MAX:]

    return {
        "how": neutral(shlex.join(_argv(case, case.node, os.path.basename(source), python, port)), folder, python)
        + f"\n{case.program}",
        "error_file": read(f"error{case.node}.json") or None,
        "stderr": read(f"stderr{case.node}"),
        "stdout": read(f"stdout{case.node}"),
        "said": neutral(said, folder, python) or read("said"),
        "exit_code": code if code >= 0 else None,
        # A script ends itself by SIGUSR1 where the program never ran: nothing is known of its end.
        "signal": signal.Signals(-code).name if code < 0 and -code != signal.SIGUSR1 else "",
    }


def _begin(group: str) -> None:
    """In the child: signals as a scheduler leaves them, whatever started us; and the memory cgroup."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    if group:
        with open(f"{group}/cgroup.procs", "w") as f:
            f.write("0")


def _argv(case: Case, node: int, source: str, python: str, port: int) -> list[str]:
    if case.by == "python":
        return [python, *case.args, source]
    if case.by == "sh":
        return ["bash", *case.args, source]
    rendezvous = f"localhost:{port if case.nodes > 1 else 0}"
    args = [arg.replace("@PORT@", str(port)).replace("@NODE@", str(node)) for arg in case.args]
    command = [os.path.join(os.path.dirname(python), "torchrun"), "--nnodes", str(case.nodes)]
    if not any(arg.startswith("--rdzv") for arg in args):
        command += ["--rdzv_backend", "c10d", "--rdzv_endpoint", rendezvous]
    if "--tee" not in args:
        command += ["--tee", "3", "--role", ""]
    last = [] if any(arg in ("-m", "--no-python") for arg in args) or args[-1].endswith(".py") else [source]
    return [*command, *args, *last]


def _environment(case: Case, python: str, error_file: str) -> dict[str, str]:
    path = f"{os.path.dirname(os.path.abspath(python))}:{os.environ['PATH']}"
    extra = {name: os.environ[name] for name in ("PYTHONPATH", "KUBECONFIG") if name in os.environ}
    env = {"PATH": path, "HOME": os.environ["HOME"], "LANG": "C.UTF-8", "TORCHELASTIC_ERROR_FILE": error_file}
    return {**env, **extra, "PYTHONUNBUFFERED": "1", "TMPDIR": os.path.dirname(error_file), **case.env}


def _end(case: Case, processes: list[subprocess.Popen[bytes]]) -> int:
    if case.kill_after_s:
        time.sleep(case.kill_after_s)  # a person or a system ends it, at some time
        processes[case.node].send_signal(case.kill_signal)
    try:
        return processes[case.node].wait(LONGEST_S)
    finally:
        for process in processes:
            try:
                process.wait(20 if process.poll() is None and case.nodes > 1 else 0.1)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _cgroup(case: Case) -> str:
    if not case.memory_mb:
        return ""
    group = f"/sys/fs/cgroup/memory/failures-{os.getpid()}"
    os.makedirs(group, exist_ok=True)
    with open(f"{group}/memory.limit_in_bytes", "w") as f:
        f.write(str(case.memory_mb << 20))
    return group


def _kernel_words(pid: int, group: str) -> str:
    """What the kernel said when it ended a process of the group; in it are other processes than ours, too."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout
    found = [line for line in log.splitlines() if group in line or "Memory cgroup out of memory" in line]
    with_pid = [line for line in found if re.search(r"oom-kill:|Memory cgroup out of memory", line)][-2:]
    os.rmdir(f"/sys/fs/cgroup/memory/{group}")
    return "\n".join(re.sub(r"^\[ *[\d.]+\] ", "", line) for line in with_pid)


def neutral(text: str, folder: str, python: str) -> str:
    """Without the paths and names of the machine on which it was made."""
    venv = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    text = text.replace(os.path.realpath(folder), "/job").replace(folder, "/job")
    text = text.replace(f"/private{folder}", "/job").replace(venv, "/opt/venv").replace(os.environ["HOME"], "/home/u")
    text = re.sub(r"/home/u/\.pyenv/versions/[\d.]+", "/usr/local", text)
    for path in filter(None, os.environ.get("PYTHONPATH", "").split(":")):
        text = text.replace(path, "/opt/venv/lib/python3.11/site-packages")
    text = re.sub(r"/tmp/failure-\w+", "/job", text)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "n1", text)


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        return int(s.getsockname()[1])


def _records(path: str) -> list[dict[str, object]]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def _write(path: str, records: list[dict[str, object]]) -> None:
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(json.dumps(r, ensure_ascii=False) + "\n" for r in records)


if __name__ == "__main__":
    main()
