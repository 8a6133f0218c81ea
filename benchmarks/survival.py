"""Faults on purpose, at random: ``python -m benchmarks.survival --scheduler local_cwd --count 40 --seed 1``.

Each job has a policy for retries, waits to be hit once or twice, and succeeds in the attempt after; or has a bug then,
which is not retried more than asked. It is checked that each ends as it has to, that its programs were started as
often as its status has attempts, each of the right class, and that none starts again on a node that has just failed.
On ``local_docker`` an image with a shell is needed (``--image``). On ``slurm`` a job takes minutes, since Slurm waits
before it starts again what it has put back, and nodes are taken down: it is for a cluster that nobody else uses.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, AppState, AppStatus, Resource, Role, macros
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

CLASSES = {
    "preempt": "preempted",
    "timeout": "timeout",
    "kill": "unknown",
    "hang": "timeout",
    "oom": "oom",
    "node": "node",
}
FAULTS = {
    "local_cwd": ("preempt", "timeout", "kill", "hang"),
    "local_docker": ("timeout", "kill", "hang", "oom"),
    "slurm": ("preempt", "timeout", "kill", "hang", "node"),
}
POLICY = "preempted:free, timeout:2, unknown:2, oom:2, error:2, node:2"
HANGS = "60s"
"""The time limit by which a job that hangs ends; the shortest of Slurm."""
PATIENCE_S = 900.0
PROGRAM = """
n=0; [ -e {mark} ] && n=$(cat {mark}); n=$((n + 1)); echo $n > {mark}; echo "up $n $SLURMD_NODENAME"
if [ $n -le {hits} ]; then trap 'exit 9' TERM; sleep 3000 & wait $!; exit 9; fi
{end}
"""
BUGS = {
    "": (0, "exit 0"),
    "the same": (2, "echo ValueError: at step $n >&2; exit 3"),  # ends after one retry, whatever the budget
    "another each time": (3, "echo ValueError: $(echo $n | tr 0-9 a-j) >&2; exit 3"),
}
"""How often a program fails by itself, at most, and what it does then."""


@dataclass(frozen=True)
class Plan:
    """What happens to one job."""

    faults: tuple[str, ...]
    replicas: int
    bug: str

    @property
    def classes(self) -> list[str]:
        """Of the attempts that fail."""
        return [*(CLASSES[fault] for fault in self.faults), *["error"] * BUGS[self.bug][0]]

    def wrong(self, status: AppStatus, nodes: list[list[str]], hit: int) -> str:
        """What is not as it has to be: the state, an attempt, or the nodes on which each replica was started.

        Args:
            hit: the replica that was hit last.
        """
        found = [attempt.kind for attempt in status.attempts]
        if status.state is not (AppState.FAILED if self.bug else AppState.SUCCEEDED) or found != self.classes:
            return f"{status.state.name} {found}, not {self.classes}"
        starts = len(self.classes) + (not self.bug)
        counts = [len(of_one) for of_one in nodes]  # the others of a gang may be ended before they say that they are up
        if max(counts) > starts or (min(counts) < starts and (self.replicas == 1 or not self.bug)):
            return f"started {counts} times, not {starts}"
        back = "node" in self.faults and any(nodes[hit][0] in of_one[1:] for of_one in nodes)
        return f"back on node {nodes[hit][0]}, which has failed: {nodes}" if back else ""


def plan(dice: random.Random, scheduler: str) -> Plan:
    """What happens to a job; a limit that ends a hang is the only fault of its job, and so is a node that fails."""
    faults = [dice.choice(FAULTS[scheduler]) for _ in range(dice.choice((1, 1, 2)))]
    alone = faults[0] in ("hang", "node")
    faults = faults[:1] if alone else [fault for fault in faults if fault not in ("hang", "node")]
    most = 2 if "node" in faults else 3  # for whom there are nodes left
    return Plan(tuple(faults), dice.randint(1, most), dice.choice(("", "", *BUGS)))


def one(runner: Runner, scheduler: str, number: int, *, seed: int, image: str) -> str:
    """Runs and hits one job; returns what went wrong, or nothing."""
    dice = random.Random(f"{seed}/{number}")  # nothing is to be kept secret
    todo = plan(dice, scheduler)
    mark = f"/tmp/survival-{seed}-{number}-{time.time_ns()}-{macros.replica_id}"  # on Docker, in the container
    script = PROGRAM.format(mark=mark, hits=len(todo.faults), end=BUGS[todo.bug][1])
    policy, cfg = POLICY, {}
    if "node" in todo.faults:
        policy, cfg = f"{POLICY}:avoid", {"exclusive": True}
    metadata = {RETRY: policy, **({TIMEOUT: HANGS} if "hang" in todo.faults else {})}
    resource = Resource(1, 0, 64)
    role = Role("r", image, entrypoint="sh", args=["-c", script], num_replicas=todo.replicas, resource=resource)
    handle, since = "", time.monotonic()
    try:
        handle = runner.run(AppDef("survival", [role], metadata=metadata), scheduler, cfg)
        hit = 0
        for times, fault in enumerate(todo.faults, 1):
            _until_up(runner, handle, todo.replicas, times)
            hit = dice.randrange(todo.replicas)
            runner.simulate(handle, fault, [("r", hit)]).make()
        status = runner.wait(handle, 1.0, timeout=PATIENCE_S)
        assert status is not None
        wrong = todo.wrong(status, [_nodes(runner, handle, k) for k in range(todo.replicas)], hit)
    except Exception as e:  # the others go on
        wrong = f"{type(e).__name__}: {e}"
    finally:
        if handle:
            runner.cancel(handle)
    print(f"{handle} {time.monotonic() - since:.0f} s {todo} {wrong and 'WRONG: ' + wrong}", flush=True)
    return wrong


def _nodes(runner: Runner, handle: str, k: int) -> list[str]:
    """Where a replica was started each time; empty names where nodes have none."""
    return [line.split(" ")[-1].strip() for line in runner.log_lines(handle, "r", k) if line.startswith("up ")]


def _until_up(runner: Runner, handle: str, replicas: int, times: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = runner.status(handle)
        if status is not None and status.is_terminal():
            raise RuntimeError(f"it has ended before it could be hit: {status.state.name} {status.msg}")
        up = [len(_nodes(runner, handle, k)) for k in range(replicas)] if status else []
        if status is not None and status.state is AppState.RUNNING and min(up) >= times:
            return
        time.sleep(0.2)
    raise TimeoutError("it did not come up")


def main() -> None:
    """Prints a line for each job, and how many ended right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", choices=sorted(FAULTS), default="local_cwd")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--image", default="")
    args = parser.parse_args()
    with get_runner("survival") as runner, ThreadPoolExecutor(args.at_once) as pool:
        job = partial(one, runner, args.scheduler, seed=args.seed, image=args.image)
        wrong = [text for text in pool.map(job, range(args.count)) if text]
    print(f"{args.scheduler}: {args.count - len(wrong)} of {args.count} ended right, with all of their attempts")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
