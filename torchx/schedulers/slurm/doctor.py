"""What keeps jobs from running on a Slurm cluster: missing commands, partitions, accounts, and a trial of ``sbatch``.

https://slurm.schedmd.com/sbatch.html#OPT_test-only: nothing is submitted, but the controller answers.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

from torchx.schedulers.batch.base import Submission
from torchx.schedulers.batch.folders import shared_folder
from torchx.schedulers.batch.inherit import shown
from torchx.schedulers.kit.commands import Completed, last_line, telling
from torchx.schedulers.kit.findings import Check, Finding, bad, doubt, no_such
from torchx.schedulers.slurm.client import hint_for, parse_version
from torchx.schedulers.slurm.options import NODE_OPTIONS, SlurmOpts

Run = Callable[..., Completed]

# Rejections that waiting does not change. Limits on currently running jobs do not belong here.
_FOR_GOOD = re.compile(
    r"\binvalid\b(?!.*(credential|protocol))|not permitted to use|unrecognized option|more processors|"
    r"node count specification|node configuration is not available|memory specification|no partition specified",
    re.IGNORECASE,
)
_MAY_PASS = re.compile(r"not available now|temporarily|violates accounting|busy|\(down, drained", re.IGNORECASE)
_MINE = (
    "exec sacctmgr --noheader --parsable2 show associations "  # exec: else it would outlive its time limit
    'where user="$(id -un)" format=account,partition,qos,defaultqos'
)
_VARIABLES = ("SBATCH_", "SLURM_", "SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_", "SCONTROL_", "SRUN_")


def of_cluster(run: Run, opts: SlurmOpts, remote: str) -> list[Check]:
    """Check of a cluster, on login node ``remote`` or else here, and of the run options for it."""
    words = [f"--{name}={value}" for name in NODE_OPTIONS if (value := getattr(opts, name))]
    return [
        Check("Slurm", lambda: _version(run)),
        *([] if remote else [Check("environment", lambda: shown("slurm", "Slurm", _VARIABLES))]),
        Check("partition", lambda: _partitions(run, opts.partition or ""), vital=True),
        Check("account", lambda: _accounts(run, opts)),
        Check("sbatch", lambda: _trial(run, [*words, *(opts.extra or ())], "#!/bin/sh\ntrue\n", lambda _: False)),
        Check("shared folder", lambda: shared_folder(run(["sinfo", "--noheader", "--format=%n"]), "slurm", remote)),
    ]


def of_job(run: Run, submission: Submission, without_memory: Callable[[Completed], bool]) -> list[Check]:
    """Return the trial of one job; ``without_memory``: whether a job so rejected is resubmitted without a memory
    request.
    """
    argv = submission.argv
    at = next(i for i, word in enumerate(argv) if word.startswith(f"{submission.folder}/"))  # its arguments follow
    script = submission.files[posixpath.basename(argv[at])]
    words = [word for word in argv[1:at] if word != "--parsable"]
    return [Check("sbatch", lambda: _trial(run, words, script, without_memory, submission.env), vital=True)]


def _version(run: Run) -> str:
    major, minor = parse_version(run(["sinfo", "--version"]).check().stdout)
    return f"{major}.{minor:02d}"


def _partitions(run: Run, wanted: str) -> str | Finding:
    done = run(["sinfo", "--all", "--noheader", "--format=%P|%a|%D"]).check()
    rows = [line.split("|") for line in done.stdout.split() if line.count("|") == 2]
    there = {row[0].rstrip("*"): row for row in rows}
    default = next((row[0].rstrip("*") for row in rows if row[0].endswith("*")), "")
    names = [name for name in (wanted or default).split(",") if name]
    if not names:
        fix = f"name one: `-cfg partition={min(there, default='NAME')}`"
        return doubt("the cluster has no default, and none is named", fix)
    for name in names:
        if name not in there:
            return no_such(name, there, "partition", default)
    for name in names:
        if there[name][1] != "up":
            said = f"`{name}` is {there[name][1]}: jobs wait until an administrator changes that"
            return doubt(said, "`sinfo` shows others")
    nodes = sum(int(row[2]) for row in rows if row[0].rstrip("*") in names and row[2].isdigit())
    return f"`{', '.join(names)}` is up, {nodes} nodes"


def _accounts(run: Run, opts: SlurmOpts) -> str | Finding:
    done = run(["sh", "-c", _MINE])
    rows = [line.split("|") for line in done.stdout.splitlines() if line.count("|") == 3]
    if done.returncode or not rows:
        return doubt(last_line(done.stderr, "accounting has no account of yours"))
    accounts = sorted({row[0] for row in rows})
    levels = sorted({q for row in rows for q in row[2].split(",") if q})
    for what, wanted, mine in (("account", opts.account, accounts), ("qos", opts.qos, levels)):
        if wanted and mine and wanted.lower() not in mine:
            said = f"`{wanted}` is not a {what} of yours; those are: {', '.join(mine)}"
            return doubt(said, f"`-cfg {what}={mine[0]}`")
    return ", ".join(accounts) + (f"; qos {', '.join(levels)}" if levels else "")


def _trial(
    run: Run, words: list[str], script: str, without_memory: Callable[[Completed], bool], env: Sequence[str] = ()
) -> str | Finding:
    done = run([*env, "sbatch", "--test-only", *words], stdin=script)
    said = re.sub(r"(^|; )(?:sbatch: |error: |allocation failure: )+", r"\1", telling(done.stderr))
    if done.returncode == 0:
        when = re.search(r"to start at (\S+)", said)
        return f"accepts it (test only); earliest start {when[1]}" if when else "accepts it (test only)"
    if without_memory(done):
        return "accepts it (test only), without a request for memory"
    if any(map(_FOR_GOOD.search, done.stderr.splitlines())) and not _MAY_PASS.search(done.stderr):
        return bad(f"refuses it: {said}", hint_for(done.stderr))
    return doubt(f"says: {said}", hint_for(done.stderr))
