"""The documents of `--json`: a table for each schema of torchx/cli/schemas, with the meaning of each key from below."""

# ruff: noqa: E501  # a row is one line, as in any table

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _site.markdown import table

DOCUMENTS = {
    "run": "`torchx run --json`",
    "run-dryrun": "`torchx run --dryrun --json`",
    "run-wait": "`torchx run --wait --json`, `torchx wait --json`",
    "status": "`torchx status JOB --json`",
    "why": "`torchx why JOB --json`",
    "list": "`torchx list --json`",
    "list-scheduler": "`torchx list -s SCHEDULER --json`",
    "watch": "`torchx watch [JOB...] --json`",
    "log": "`torchx log JOB --json`",
    "metrics": "`torchx metrics JOB --json`",
    "usage": "`torchx usage --json`",
    "stacks": "`torchx stacks JOB --json`",
    "describe": "`torchx describe JOB --json`",
    "nodes": "`torchx nodes --json`",
    "diff": "`torchx diff A B --json`",
    "sweep": "`torchx sweep --json`",
    "doctor": "`torchx doctor --json`, `torchx run --check --json`",
    "cancel": "`torchx cancel JOB --json`",
    "delete": "`torchx delete JOB --json`",
    "adopt": "`torchx adopt JOB --json`",
    "simulate": "`torchx simulate FAULT JOB --json`",
    "exec": "`torchx exec JOB --json`",
    "cp": "`torchx cp --json`",
    "forward": "`torchx forward JOB PORT --json`",
    "init": "`torchx init --json`",
    "runopts": "`torchx runopts [SCHEDULER] --json`",
    "builtins": "`torchx builtins --json`",
    "plugins": "`torchx plugins --json`",
    "tracker-jobs": "`torchx tracker list jobs --json`",
    "tracker-metadata": "`torchx tracker list metadata JOB --json`",
    "tracker-artifacts": "`torchx tracker list artifacts JOB --json`",
    "tracker-lineage": "`torchx tracker list lineage JOB --json`",
}
NOTES = {
    "run-wait": 'Printed when the job has ended, with `status`\'s keys. `wait` prints `{"jobs": [...]}` for several jobs.',
    "status": 'For several jobs `{"jobs": [...]}`. `--roles a,b` restricts it to these roles.',
    "list": "Newest first. `--all` has every run.",
    "watch": "One document per line, for each change as it is seen; for a named sweep also one for each change of a task, `SWEEP/17`. "
    "`torchx status -w SWEEP --json` prints only these lines, and at the end the document of `status`.",
    "log": "One document for each line of output.",
    "why": "The keys of `status`, and:",
    "cancel": 'For several jobs `{"jobs": [...]}`.',
    "delete": 'For several jobs `{"jobs": [...]}`.',
    "exec": "The exit code is the same as without `--json`; stdin is not passed on.",
    "forward": "Printed when the ports are open.",
}
WITHOUT = {"why": "status", "run-wait": "status"}
"""A document whose keys that another one has are not shown again."""

WHOLE = {"app", "describe:run", "cfg"}
"""Keys whose content is described in one sentence."""

KEYS = {
    "handle": "the app handle, `scheduler://session/app_id`",
    "scheduler": "the scheduler",
    "session": "the session",
    "app_id": "its id",
    "doctor:findings.scheduler": "`null`: this machine",
    "name": "name of the AppDef",
    "by": "what the groups are: `name`, `user`, `scheduler` or `day`",
    "since": "start of the time that is summed; `null`: all",
    "currency": "of `cost`; empty if the prices have none, `null` without prices",
    "usage:groups": "one for each name, user, scheduler or day",
    "key": "the name, user, scheduler or local date",
    "usage:groups.runs": "how many runs",
    "gpu_hours": "GPUs asked for, multiplied by the hours that they ran",
    "cpu_hours": "the same for CPUs",
    "unseen": "how many runs count from their submission, because nobody saw them start",
    "cost": "`null` without prices",
    "usage:total": "the sum",
    "app": "the AppDef: `version`, `name`, `roles`, `metadata`",
    "cfg": 'run option to `{"value": ..., "source": ...}`; the source is `default`, `file:line`, `$VARIABLE`, `-cfg`, `--stdin` or `code`',
    "dryrun": "`true`",
    "request": "the request that would be submitted, as text for people",
    "state": "its state",
    "metrics:state": "of the whole job; `null` if it is no longer known",
    "stacks:ranks.state": "as in `/proc`",
    "msg": "the reason for this state",
    "note": "what this query could not determine",
    "why:log.note": "why there are no lines",
    "num_restarts": "how often it, or a part of it, was restarted",
    "attempts": "with a [retry policy](retries.md), the ended attempts",
    "metrics:replicas.attempts": "averages of each start",
    "started_at": "when it started; `null` before",
    "ended_at": "when it ended, or was first seen to have ended",
    "created_at": "when it was launched",
    "updated_at": "when it was last seen to change",
    "class": "the [class of the failure](debug.md#classes-of-failure)",
    "cause": "why it failed: the replica that failed first, never one that only lost its peer if another has a reason of its own",
    "attempts.cause": "the sentence",
    "failures.cause": "the sentence",
    "hosts": "where it ran",
    "progress": "whether it made progress",
    "retried": "whether there was another attempt",
    "reason": "why, or why not",
    "used_s": "in a [chain](retries.md#longer-than-the-site-allows): seconds of all attempts so far",
    "total_s": "seconds that they may use",
    "next": "changes for the next attempt",
    "avoid": "hosts that it avoids",
    "next.memory": "memory in MiB",
    "status:progress": "[steps](checkpoints.md#how-far-it-is-and-which-rank-is-slow) that the ranks report",
    "progress.ranks": "how many ranks report steps",
    "progress.metrics": "further numbers of the lowest rank",
    "step": "steps done",
    "rate": "steps per second",
    "left_s": "seconds left at that rate",
    "stalled_s": "seconds without a step, if unusually many; else 0",
    "slow": "the rank that the others wait for",
    "factor": "its time for a step, as a multiple of the median",
    "since": "when it became slow",
    "hang": "with a [watchdog](hangs.md#the-watchdog): how long it was silent, and what the ranks were doing",
    "tasks": "for a [sweep](sweeps.md), else `null`",
    "failures.tasks": "numbers of tasks",
    "sweep:tasks": "number of tasks",
    "tracker-metadata:tasks": "for a sweep, one for each task",
    "total": "number of tasks",
    "max_parallel": "`--max-parallel`",
    "counts": "state to number of tasks",
    "failed": "numbers of tasks",
    "failures": "failed tasks, by cause",
    "ui_url": "a page about the job, for people",
    "roles": "its roles",
    "role": "name of the role",
    "cause.role": "the role that failed first; `null` if the job failed as a whole",
    "diff:differences.role": "`null` for the job as a whole",
    "replicas": "its replicas",
    "replica": "number of the replica",
    "id": "id of the run",
    "replicas.id": "number of the replica",
    "hostname": "its host",
    "hostaddr": "how to reach the host",
    "host": "its host",
    "memory_peak": "peak use in bytes",
    "memory_limit": "limit in bytes",
    "as_of": "when this state was first seen, if the scheduler cannot be queried now",
    "scheduler_error": "why the scheduler cannot be queried",
    "notices": "[notices](notices.md) that could not be sent, with the reason",
    "evidence": "the line that determined the class",
    "rank": "global rank of the worker, if known",
    "error": "what went wrong",
    "summary": "one line: `exit code 1: RuntimeError: boom`",
    "message": "`RuntimeError: boom`",
    "exit_code": "exit code",
    "signal": "the signal that ended it, for example `SIGKILL`",
    "traceback": "of the exception, or the last lines of stderr",
    "time": "when it happened",
    "log:time": "with `--timestamps`: when it was written; `null` if the scheduler does not record it",
    "cpus": "number of processors that it may use",
    "samples": "measurements",
    "at": "when",
    "cpu": "processors in use, on average",
    "memory": "bytes",
    "metrics:replicas.attempts.memory": "peak, in bytes",
    "gpus": "each GPU",
    "gpu": "use of GPUs in percent, on average",
    "percent": "use",
    "memory_total": "bytes",
    "attempt": "0 for the first start",
    "seconds": "from its first to its last sample",
    "runs": "the runs",
    "more": "whether older runs were left out",
    "limit": "maximum number of runs; `null`: all",
    "user": "who launched it",
    "cwd": "where",
    "image": "image of the first role",
    "workspace": "workspace of the first role",
    "git_commit": "commit at launch",
    "git_dirty": "whether files differed from it",
    "parent_run_id": "the run that this one was derived from",
    "jobs": "the jobs",
    "was": "the previous state; `null` in the first line for a run",
    "line": "the line, without its line end",
    "stacks:ranks.frames.line": "number of the line",
    "nodes:scheduler": "the scheduler",
    "pools": "nodes of one shape in a partition, node pool or queue",
    "pools.name": "name of the partition, node pool or queue",
    "pools.gpu": "type of its GPUs; empty if unknown",
    "pools.cpus": "CPUs of a node",
    "pools.memory_mb": "memory of a node, MiB; -1: unknown",
    "pools.gpus": "GPUs of a node",
    "pools.nodes": "number of nodes",
    "pools.usable": "how many of them take jobs",
    "pools.free_cpus": "free CPUs of all nodes; -1: unknown",
    "pools.free_memory_mb": "free memory of all nodes, MiB; -1: unknown",
    "pools.free_gpus": "free GPUs of all nodes; -1: unknown",
    "pools.fitting": "nodes on which a replica of the size asked for fits now; -1: none was asked for, or unknown",
    "pools.start": "when a job of that size would start; `null` if the scheduler cannot say",
    "pools.why": "why such a job cannot run here",
    "partial": "`true` for a piece of a line of more than 1 MiB, which the next document continues",
    "foreign": "`true` if torchx did not launch it",
    "on_record": "`true` if it was launched by torchx, or adopted",
    "about": "its description by its scheduler: `name`, `user`, `command`, `folder`, `image`, ..., secrets masked",
    "log": "the end of the output of the replica that failed first, or else of the first one",
    "lines": "the lines",
    "signatures": "with `--explain`: the [signatures](signatures.md) that match",
    "where": "where it is",
    "signatures.where": "the place of the words",
    "signatures.name": "of a row of a site or plugin",
    "words": "the words",
    "of": "the program that uses them",
    "link": "where they are documented",
    "decided": "whether this row determined the class",
    "a": "the first run, or its value",
    "b": "the second run, or its value",
    "took_s": "seconds from launch to end",
    "differences": "what differs",
    "section": "`run`, `code`, `image`, `arguments`, `options`, `origin` (of an option), `resources`, `environment`, `metadata`, `outcome`",
    "diff:differences.name": "what differs",
    "patch": "from the code of `a` to that of `b`, in the format of `git diff`",
    "unknown": "what could not be compared, and why",
    "sentence": "the answer",
    "ranks": "each rank",
    "pid": "process id",
    "doing": "what it does",
    "suspect": "whether the others seem to wait for it",
    "read_by": "`py-spy`, `faulthandler` or `null`",
    "unread_because": "why its stack could not be read",
    "frames": "innermost first, without those of PyTorch and the standard library",
    "function": "name of the function",
    "file": "file",
    "unread": "replicas that could not be examined",
    "why": "the reason",
    "argv": "the command line that launched it",
    "image_digests": "role to the digest of its image",
    "workspace_hashes": "role to the hash of its code",
    "describe:run": "the record of the run, as in `list`; `null` if the job is not on record",
    "launched_by": "the [agent](agents.md) that launched it; `null` if a person did",
    "bad": "number of bad findings; if there are any, the exit code is 1, else 4 if the scheduler itself did not answer",
    "findings": "all findings, also good ones",
    "verdict": "`good`, `bad`, `unknown`",
    "what": "what was checked",
    "said": "what torchx found, or does",
    "fix": "what to do",
    "done": "whether it was done",
    "adopted": "`false` after `--undo`",
    "fault": "the fault",
    "stdout": "its output",
    "stderr": "its error output",
    "cp:files": "number of files",
    "files": "the files",
    "bytes": "bytes",
    "skipped": "files that were there",
    "left_out": "files that were not copied, with the reason",
    "ports": "the ports",
    "port": "port in the replica",
    "local": "port on this machine",
    "schedulers": "scheduler to its options",
    "type": "`str`, `int`, `float`, `bool`, `list[str]`, `dict[str, str]`",
    "required": "whether it is required",
    "default": "its default",
    "help": "its help",
    "components": "each component",
    "components.name": "its name",
    "description": "its description",
    "errors": "reasons why it cannot be used",
    "plugins": "each plugin",
    "plugins.name": "its name",
    "kind": "`scheduler`, `component`, `named_resource`, `tracker` or `command`",
    "group": "the entry-point group",
    "value": "the object behind it, `module:attribute`",
    "package": "its package",
    "version": "version of the package",
    "status": "`ok`, `failed` or `shadowed` (another plugin has the name)",
    "plugins.error": "why it failed, or which plugin shadows it",
    "replaces": "what it replaces: `built-in` or a package",
    "tracker": "name of the queried tracker",
    "metadata": "name to value",
    "task": "number of the task",
    "values": "its parameters",
    "artifacts": "the artifacts",
    "artifacts.name": "its name",
    "path": "path or URL",
    "sources": "the jobs it was made from; `null` with `--descendants-only`",
    "artifact": "name of the artifact",
    "descendants": "the jobs made from it; `null` with `--sources-only`",
    "runopts:schedulers.name": "its name",
    "adopt:name": "its name",
}
"""Key -> meaning; of `DOCUMENT:path`, the end of a path, and the key alone, the most specific one counts."""


def page() -> str:
    """Each document, with its keys."""
    import torchx.cli

    folder = Path(torchx.cli.__file__).parent / "schemas"
    found = {path.stem: dict(keys(json.loads(path.read_text("utf-8")), path.stem)) for path in folder.glob("*.json")}
    if set(found) != set(DOCUMENTS):
        raise ValueError(f"describe in {__file__}: {sorted(set(found) ^ set(DOCUMENTS))}")
    parts = []
    for name, title in DOCUMENTS.items():
        known = found.get(WITHOUT.get(name, ""), {})
        rows = [[f"`{key}`", said] for key, said in found[name].items() if key not in known]
        parts.append(f"## {title}\n\n{NOTES.get(name, '')}\n\n{table(['key', 'what'], rows) if rows else ''}")
    return "\n".join(parts)


def keys(schema: dict[str, Any], document: str, path: str = "") -> Iterator[tuple[str, str]]:
    """The path of each key, and what it means."""
    for branch in (schema, *schema.get("anyOf", ())):
        for key, inner in branch.get("properties", {}).items():
            full = f"{path}.{key}".lstrip(".")
            yield full, meaning(document, full)
            if key not in WHOLE and f"{document}:{full}" not in WHOLE:
                yield from keys(inner, document, full)
        for place in ("items", "additionalProperties"):
            if isinstance(branch.get(place), dict):
                yield from keys(branch[place], document, path)


def meaning(document: str, path: str) -> str:
    """The sentence of the table for a key.

    >>> meaning("status", "tasks.failures.tasks"), meaning("sweep", "tasks")
    ('numbers of tasks', 'number of tasks')
    """
    words = path.split(".")
    for name in (f"{document}:{path}", *(".".join(words[k:]) for k in range(len(words)))):
        if name in KEYS:
            return KEYS[name]
    raise ValueError(f"describe in {__file__}: the key `{path}` of {document}.json")
