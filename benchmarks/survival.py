"""Faults on purpose, at random: ``python -m benchmarks.survival --scheduler local_cwd --count 40 --seed 1``.

Each job has a policy for retries, waits to be hit, and succeeds in its second attempt; or has a bug, which is not
retried more than asked. It is checked that each ends as it has to, and that none of its attempts is lost from its
status. On ``local_docker`` an image with a shell is needed (``--image``); on ``slurm`` a job takes minutes, since Slurm
waits before it starts again what it has put back.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.retries import RETRY

FAULTS = {
    "local_cwd": {"preempt": "preempted", "timeout": "timeout", "kill": "unknown"},
    "local_docker": {"timeout": "timeout", "kill": "unknown", "oom": "oom"},
    "slurm": {"preempt": "preempted", "timeout": "timeout", "kill": "unknown"},
}
POLICY = "preempted:free, timeout:2, unknown:2, oom:2, error:1"
SURVIVES = "if test -e {mark}; then exit 0; fi; touch {mark}; echo up; sleep 3000"
FAILS = "if test -e {mark}; then echo ValueError: the same >&2; exit 3; fi; touch {mark}; echo up; sleep 3000"
PATIENCE_S = 900.0


def one(runner: Runner, scheduler: str, number: int, *, seed: int, image: str) -> str:
    """Runs and hits one job; returns what went wrong, or nothing."""
    dice = random.Random(f"{seed}/{number}")  # nothing is to be kept secret
    fault = dice.choice(sorted(FAULTS[scheduler]))
    replicas = dice.choice((1, 2, 3)) if scheduler != "slurm" else 1
    bug = dice.random() < 0.25
    shared = scheduler != "local_docker"
    folder = tempfile.mkdtemp(prefix="survival-") if shared else "/tmp"  # in the container
    script = (FAILS if bug else SURVIVES).format(mark=f"{folder}/${{replica_id}}")
    role = Role("r", image, entrypoint="sh", args=["-c", script], num_replicas=replicas, resource=Resource(1, 0, 64))
    handle = runner.run(AppDef("survival", [role], metadata={RETRY: POLICY}), scheduler)
    try:
        _until_up(runner, handle, replicas)
        plan = runner.simulate(handle, fault, [("r", dice.randrange(replicas))])
        plan.make()
        status = runner.wait(handle, 1.0, timeout=PATIENCE_S)
    finally:
        runner.cancel(handle)
    assert status is not None
    classes = [attempt.kind for attempt in status.attempts]
    wanted = [FAULTS[scheduler][fault], *(["error", "error"] if bug else [])]
    state = AppState.FAILED if bug else AppState.SUCCEEDED
    right = status.state is state and classes == wanted
    return "" if right else f"{handle} {fault}, {replicas} replicas, bug {bug}: {status.state.name}, {classes}"


def _until_up(runner: Runner, handle: str, replicas: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        status = runner.status(handle)
        if status is not None and status.state is AppState.RUNNING:
            lines = [list(runner.log_lines(handle, "r", k)) for k in range(replicas)]
            if all(any(line.startswith("up") for line in of_one) for of_one in lines):
                return
        time.sleep(0.2)
    raise TimeoutError(f"{handle} did not come up")


def main() -> None:
    """Prints what did not end right, and how many did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", choices=sorted(FAULTS), default="local_cwd")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--image", default="")
    args = parser.parse_args()
    with get_runner("survival") as runner, ThreadPoolExecutor(args.at_once) as pool:
        jobs = [
            pool.submit(one, runner, args.scheduler, k, seed=args.seed, image=args.image) for k in range(args.count)
        ]
        wrong = [text for job in jobs if (text := job.result())]
    for text in wrong:
        print(text)
    print(f"{args.scheduler}: {args.count - len(wrong)} of {args.count} ended right, with all of their attempts")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
