"""Commands and files inside replicas, beside the systems' own tools: ``docker exec``, ``srun``, ``kubectl``.

Docker, Slurm and Kubernetes are those of the tests: they are started, as root, where they do not run. Jobs are
submitted by the Python of this program, which has the packages of the engine and of the cluster.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from benchmarks import stage
from benchmarks.contestants import OURS, ROOT, Contestant
from benchmarks.timing import Cannot, Sample, timed

ALLOWED_S = 0.15
"""What a command may take more than the tool."""

_HANDLE = re.compile(r"\b(?:local_cwd|local_docker|slurm|kubernetes)://\S+")
PATIENCE_S = 120.0
_FILE = "big.bin"
_THERE = "/tmp/torchx-bench"  # in a container, or of root's on a node of the tests


class Place(NamedTuple):
    """A replica that runs: its job, and how the system's own tool gets into it."""

    handle: str
    tool: list[str]
    copies: list[list[str]]
    """Commands that copy the file out, and in."""
    env: Mapping[str, str] = MappingProxyType({})
    """What the tool, and ours, need beside."""


def above_the_tool(scheduler: str) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds that ``torchx exec`` of ``true`` takes more than the tool; the base is what is allowed."""

    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        if contestant is None:
            return lambda: ALLOWED_S

        def work(ours: Contestant, place: Place, env: Mapping[str, str]) -> float:
            mine = timed([ours.torchx, "exec", place.handle, "--", "true"], env, where.folder)
            return max(mine - timed([*place.tool, "true"], env, where.folder), 0.001)

        return _sample(scheduler, contestant, where, work)

    return sampler


def copies(scheduler: str) -> Callable[[Contestant | None, stage.Stage], Sample]:
    """Seconds of a file out of a replica, and into it."""

    def sampler(contestant: Contestant | None, where: stage.Stage) -> Sample:
        def clear(place: Place, env: Mapping[str, str], whose: str) -> None:
            for name in (f"out.{whose}", f"in.{whose}"):
                _remove(where, name)
            subprocess.run(
                [*place.tool, "rm", "-f", f"{_THERE}/in.{whose}"], env=dict(env), cwd=where.folder, check=True
            )

        def tool(_: object, place: Place, env: Mapping[str, str]) -> float:
            clear(place, env, "tool")
            return sum(timed(argv, env, where.folder) for argv in place.copies)

        def ours(one: Contestant, place: Place, env: Mapping[str, str]) -> float:
            clear(place, env, "ours")
            there = f"{place.handle}:{_THERE}"
            ends = ((f"{there}/{_FILE}", "./out.ours"), (f"./{_FILE}", f"{there}/in.ours"))
            return sum(timed([one.torchx, "cp", *pair], env, where.folder) for pair in ends)

        return _sample(scheduler, contestant, where, tool if contestant is None else ours)

    return sampler


def _sample(
    scheduler: str,
    contestant: Contestant | None,
    where: stage.Stage,
    work: Callable[..., float],
) -> Sample:
    def sample() -> float:
        if contestant is not None and contestant.name != OURS:
            raise Cannot("has no such command")
        env = {**where.env(Contestant(OURS, "")), "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}
        place = _place(scheduler, where, env)
        return work(contestant, place, {**env, **place.env})

    return sample


_places: dict[tuple[str, str], Place] = {}


def _place(scheduler: str, where: stage.Stage, env: Mapping[str, str]) -> Place:
    key = (scheduler, where.folder)
    if key not in _places:
        try:
            _places[key] = _PLACES[scheduler](where, env)
        except Exception as problem:
            raise Cannot(f"no `{scheduler}` here: {problem}") from problem
    return _places[key]


def _job(where: stage.Stage, env: Mapping[str, str], *args: str) -> str:
    """The handle of a job that waits, and runs; it is cancelled in the end."""
    argv = [sys.executable, "-m", "torchx"]
    given = {**env, "PYTHONPATH": ROOT}
    run = [*argv, "run", *args, "--", "sleep 1000"]
    done = subprocess.run(run, env=given, cwd=where.folder, capture_output=True, text=True, check=False)
    found = _HANDLE.search(done.stdout)
    if done.returncode or found is None:
        raise Cannot(done.stderr.strip()[-300:])
    cancel = [*argv, "cancel", found.group()]
    where.at_last(lambda: subprocess.run(cancel, env=given, cwd=ROOT, check=False))
    deadline = time.monotonic() + PATIENCE_S
    script = f"mkdir -p {_THERE}; head -c {where.sizes['copied_mb'] * 1_000_000} /dev/urandom >{_THERE}/{_FILE}"
    make = [*argv, "exec", found.group(), "--", "sh", "-c", script]
    while subprocess.run(make, env=given, cwd=where.folder, capture_output=True, check=False).returncode:
        if time.monotonic() > deadline:
            raise Cannot("the job does not run")
        time.sleep(0.2)
    subprocess.run([*argv, "cp", f"{found.group()}:{_THERE}/{_FILE}", "."], env=given, cwd=where.folder, check=True)
    return found.group()


def _here(where: stage.Stage, env: Mapping[str, str]) -> Place:
    handle = _job(where, env, "-s", "local_cwd", "utils.sh")
    out, into = (["cp", f"{_THERE}/{_FILE}", "out.tool"], ["cp", _FILE, f"{_THERE}/in.tool"])
    return Place(handle, ["env"], [out, into])


def _docker(where: stage.Stage, env: Mapping[str, str]) -> Place:
    from tests.backends.docker import engine

    if engine.up():
        where.at_last(engine.down)
    handle = _job(where, env, "-s", "local_docker", "--workspace=", "utils.sh", "--image", engine.image())
    label = f"label=torchx.pytorch.org/app-id={handle.rpartition('/')[2]}"
    found = subprocess.run(["docker", "ps", "-q", "-f", label], capture_output=True, text=True, check=True)
    container = found.stdout.strip()
    copy = ["docker", "cp", "-q"]
    out, into = [f"{container}:{_THERE}/{_FILE}", "out.tool"], [_FILE, f"{container}:{_THERE}/in.tool"]
    return Place(handle, ["docker", "exec", container], [[*copy, *out], [*copy, *into]])


def cluster_up(where: stage.Stage) -> None:
    """Has a Slurm cluster; one that is started for it is stopped in the end."""
    from tests.backends.slurm import cluster

    if not cluster.is_up():
        where.at_last(cluster.down)
    cluster.up()


def _slurm(where: stage.Stage, env: Mapping[str, str]) -> Place:
    cluster_up(where)
    handle = _job(where, env, "-s", "slurm", "--workspace=", "utils.sh", "--memMB", "100")
    srun = ["srun", f"--jobid={handle.rpartition('/')[2]}", "--overlap", "-N1", "-n1", "-QQ", "--mem=0"]
    script = "{} sh -c 'cat {}' {}"
    out = script.format(" ".join(srun), f"{_THERE}/{_FILE}", ">out.tool")
    into = script.format(" ".join(srun), f">{_THERE}/in.tool", f"<{_FILE}")
    return Place(handle, srun, [["sh", "-c", out], ["sh", "-c", into]])


def _kubernetes(where: stage.Stage, env: Mapping[str, str]) -> Place:
    from tests.backends.docker import engine
    from tests.backends.kubernetes import cluster

    engine.install("kubectl", "kubernetes-client")
    if not cluster.is_ready():
        where.at_last(cluster.down)
    more = {"KUBECONFIG": cluster.up(), "TORCHX_KUBERNETES_RESERVED_MILLICPU": "1000"}
    words = ("-s", "kubernetes", "--workspace=", "utils.sh", "--image", engine.image(), "--memMB", "1000")
    handle = _job(where, {**env, **more}, *words)
    label = f"app.kubernetes.io/instance={handle.rpartition(':')[2]}"
    find = ["kubectl", "get", "pods", "-o", "name", "-l", label]
    found = subprocess.run(find, env={**env, **more}, capture_output=True, text=True, check=True)
    pod = found.stdout.strip().rpartition("/")[2]
    out, into = [f"{pod}:{_THERE}/{_FILE}", "out.tool"], [_FILE, f"{pod}:{_THERE}/in.tool"]
    return Place(handle, ["kubectl", "exec", pod, "--"], [["kubectl", "cp", *out], ["kubectl", "cp", *into]], more)


def _remove(where: stage.Stage, name: str) -> None:
    path = os.path.join(where.folder, name)
    if os.path.exists(path):
        os.unlink(path)


_PLACES = {"local_cwd": _here, "local_docker": _docker, "slurm": _slurm, "kubernetes": _kubernetes}
