"""Prints how many lines of Python `torchx/` has, by the capability that they are for: `python -m benchmarks.size`.

The house as it was redrawn had 49,525 lines before. What came later is listed here by files that serve it alone; lines
of it that stand in shared files (options, doors, the Runner's verbs) count as the house.
"""

from __future__ import annotations

import os
from fnmatch import fnmatch

LATER = {
    "sweeps, run_many, after": """
        */sweeps.py */tasks.py */task_*.py runner/jobs/paced/* runner/sweeps/* runner/*/after.py
        specs/wishes/after.py
        cli/cmd_sweep.py cli/sweep_page.py slurm/ends.py""",
    "inside a job: exec, cp, forward, stacks, watchdog": """
        schedulers/kit/inside/* */inside.py schedulers/kit/stacks/* */hangs.py */watchdog.py */spdy.py
        docker/archive.py batch/channel.py runner/inside/*
        cli/cmd_exec.py cli/cmd_cp.py cli/cmd_stacks.py
        cli/session.py distributed/stacks.py distributed/pace.py kit/pace.py specs/pace.py""",
    "watching, notices, metrics, top, the page": """
        ui/* schedulers/kit/metrics/* */metrics.py schedulers/kit/notices.py runner/notices/*
        specs/wishes/notices.py slurm/notices.py runner/watching/poller.py runner/watching/changes.py
        runner/watching/aio.py runs/statuses.py
        schedulers/kit/change_stream.py util/folder_watch.py supervisor/at_end.py cli/cmd_watch.py cli/cmd_ui.py
        cli/cmd_metrics.py cli/cmd_wait.py cli/live_status.py""",
    "capsules: rerun, diff, export": """
        runner/capsule/* */export.py cli/cmd_diff.py cli/cmd_export.py cli/cmd_rerun.py""",
    "doctor, jobs of others, sbatch scripts": """
        runner/doctor/* runner/launch/checks.py schedulers/kit/findings/* */doctor.py cli/cmd_doctor.py
        schedulers/kit/foreign/* */foreign.py slurm/scripts/* cli/cmd_why.py specs/wishes/scripts.py""",
    "retry by cause, checkpoints, faults on purpose": """
        specs/wishes/retries.py specs/wishes/timeouts.py */attempts.py */job_retries.py */our_retries.py
        kit/native_retries.py */simulat*.py cli/cmd_simulate.py supervisor/limit.py distributed/checkpoints.py""",
    "secrets, private workspaces": """
        specs/secret.py */secrets.py util/redaction.py workspace/private.py""",
    "the first hour: attach, shorthand, init, wait": """
        cli/attach.py cli/shorthand.py cli/cmd_init.py workspace/similar.py render/html_pages.py""",
    "Kubernetes: placement, code without a registry, TrainJob, rights": """
        kubernetes/placement.py kubernetes/shipped_code.py kubernetes/trainjob.py
        kubernetes/rights.py kubernetes/kept_logs.py""",
}
BEFORE = ("util/secrets.py",)  # older than what its name is listed for


def main() -> None:
    root = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "torchx")
    lines = dict.fromkeys([*LATER, "the house"], 0)
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                short = os.path.relpath(path, root).replace(os.sep, "/")
                with open(path, encoding="utf-8") as f:
                    lines[feature_of(short)] += sum(1 for _ in f)
    for feature, count in lines.items():
        print(f"{count:7,} {feature}")
    print(f"{sum(lines.values()):7,} in all")


def feature_of(path: str) -> str:
    """What a file is for.

    >>> feature_of("schedulers/slurm/sweeps.py"), feature_of("schedulers/slurm/client.py")
    ('sweeps, run_many, after', 'the house')
    """
    for feature, patterns in LATER.items():
        if path not in BEFORE and any(fnmatch(path, f"*{pattern}") for pattern in patterns.split()):
            return feature
    return "the house"


if __name__ == "__main__":
    main()
