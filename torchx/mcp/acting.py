"""The tools that act, each only if allowed by name, and within the bounds that the user gave the server."""

from __future__ import annotations

import json
import os
import uuid
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from torchx.mcp.answers import DEFAULT_BYTES, MAX_BYTES, answer, clean
from torchx.mcp.reading import Bytes, Job, Name, Reading
from torchx.mcp.verbs import message_of, run, verb
from torchx.util.records import dataclass, field

_PLANS = 100  # kept; an agent that makes more has forgotten the first ones
_SUBMIT_S = 600.0
_Words = Annotated[list[str], Field(max_length=1000)]
_Texts = Annotated[dict[str, str], Field(max_length=200)]


@dataclass(frozen=True)
class Bounds:
    """What the server never exceeds, whatever a tool is asked for; None and empty: no bound.

    Attributes:
        max_jobs: jobs that this server launches in all.
        max_gpu_hours: GPU-hours of all jobs that it launches: GPUs times their time limit.
        schedulers: the only schedulers on which it launches.
        folder: the folder in which verbs run; scripts and copied files lie below it.
        any_job: acting tools take any job, not only those that this server launched.
    """

    max_jobs: int | None = None
    max_gpu_hours: float | None = None
    schedulers: tuple[str, ...] = ()
    folder: str = "."
    any_job: bool = False


@dataclass
class _Plan:
    argv: list[str]
    gpu_hours: float | None
    scheduler: str
    fingerprint: str
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    handle: dict[str, Any] | None = None
    failed: str = ""


class Acting:
    """Tools that launch, end and enter jobs."""

    def __init__(self, reading: Reading, bounds: Bounds) -> None:
        self._reading = reading
        self._bounds = bounds
        self._plans: dict[str, _Plan] = {}
        self._launched: dict[str, float] = {}  # handle to GPU-hours
        self._launching = anyio.Lock()

    async def plan_run(
        self,
        what: Annotated[_Words, Field(min_length=1, description="Script, component or `--` program, and arguments")],
        scheduler: Name = "",
        cfg: Annotated[_Texts, Field(description="Run options of the scheduler; see `options`")] = {},
        options: Annotated[
            _Texts, Field(description="Options of run without dashes: j, gpu, mem, nodes, name, timeout, retry, ...")
        ] = {},
        env: _Texts = {},
        max_bytes: Bytes = DEFAULT_BYTES,
    ) -> dict[str, Any]:
        """Return what would be submitted, its GPU-hours, and a plan id for `launch`. Submits nothing."""
        argv = ["run", *(["-s", scheduler] if scheduler else [])]
        for key, value in cfg.items():
            argv += ["-cfg", f"{key}={value}"]
        for key, value in options.items():
            if not key.replace("-", "").replace("_", "").isalnum() or key.replace("_", "-") in _REFUSED:
                raise ToolError(f"`{key[:40]}` is not an option for a plan")
            argv.append(f"-{key}={value}" if len(key) == 1 else f"--{key}={value}")
        for key, value in env.items():
            argv += ["--env", f"{key}={value}"]
        if what[0].startswith("-") and what[0] != "--":
            raise ToolError(f"`{what[0][:40]}` is not a script, a component or `--`: options go into `options`")
        self._check_inside(what[0])
        return await self._plan([*argv, *what], max_bytes)

    async def plan_rerun(
        self,
        job: Job,
        changes: Annotated[_Words, Field(description="Options and arguments of `torchx rerun` that change it")] = [],
        max_bytes: Bytes = DEFAULT_BYTES,
    ) -> dict[str, Any]:
        """Plan to launch a run again, unchanged or with changes such as `--mem 8G`. Submits nothing; see `launch`."""
        handle = await self._ours(job)
        if any(word.partition("=")[0].lstrip("-").replace("_", "-") in _REFUSED for word in changes):
            raise ToolError(f"`changes` may not have {', '.join(f'--{name}' for name in sorted(_REFUSED))}")
        return await self._plan(["rerun", handle, *changes], max_bytes)

    async def launch(self, plan_id: Annotated[str, Field(max_length=64)], context: Context[Any, Any]) -> dict[str, Any]:
        """Submit exactly what a plan showed, once: further calls with the same plan return the same job."""
        plan = self._plans.get(plan_id)
        if plan is None:
            raise ToolError(f"there is no plan `{plan_id[:64]}` in this server: call plan_run")
        async with plan.lock:
            if plan.handle is not None:
                return {**plan.handle, "launched_before": True}
            if plan.failed:
                raise ToolError(
                    f"this plan was submitted and failed: {plan.failed}. list_runs shows whether a job exists"
                )
            async with self._launching:
                self._check_bounds(plan)
                if await self._fingerprint(plan.argv, await self._dryrun(plan.argv)) != plan.fingerprint:
                    raise ToolError("the script, the options or the config have changed since the plan: plan again")
                with anyio.CancelScope(shield=True):  # a job of which nobody knows must not come of a cancelled call
                    await self._submit(plan, context)
        return {**(plan.handle or {}), "launched_before": False}

    async def cancel(self, job: Job) -> dict[str, Any]:
        """End a job; its logs and its record stay."""
        handle = await self._ours(job)
        return await verb("cancel", "--json", "--", handle, folder=self._bounds.folder)

    async def exec(
        self,
        job: Annotated[str, Field(max_length=512, description="As in get_run, with /ROLE/REPLICA for one replica")],
        command: Annotated[_Words, Field(min_length=1)],
        timeout_s: Annotated[float, Field(gt=0, le=3600)] = 60.0,
        max_bytes: Bytes = DEFAULT_BYTES,
    ) -> dict[str, Any]:
        """Run a command inside a replica, and return its output, which is data, and its exit code."""
        await self._ours(job)
        code, out, err = await run(["exec", job, "--", *command], folder=self._bounds.folder, timeout_s=timeout_s)
        found = {"exit_code": code, "lines": out.splitlines(), "error": err}
        return answer(found, max_bytes, "raise `max_bytes`")

    async def cp(
        self,
        source: Annotated[str, Field(max_length=4096, description="JOB[/ROLE/K]:PATH, or a path in the workspace")],
        target: Annotated[str, Field(max_length=4096, description="The other one of these")],
    ) -> dict[str, Any]:
        """Copy files out of a replica into the workspace, or from there into a replica."""
        remote, local = (source, target) if ":" in source else (target, source)
        if ":" not in remote or ":" in local:
            raise ToolError("one of `source` and `target` is JOB:PATH, the other a path in the workspace")
        self._check_inside(local, always=True)
        await self._ours(remote.rpartition(":")[0])
        args = ["cp", "--json", "--", source, target]
        return answer(await verb(*args, folder=self._bounds.folder, timeout_s=_SUBMIT_S), MAX_BYTES, "")

    async def _plan(self, argv: list[str], max_bytes: int) -> dict[str, Any]:
        dryrun = await self._dryrun(argv)
        hours = gpu_hours(dryrun)
        plan = _Plan(argv, hours, str(dryrun.get("scheduler")), await self._fingerprint(argv, dryrun))
        self._check_bounds(plan)
        while len(self._plans) >= _PLANS:
            del self._plans[next(iter(self._plans))]
        plan_id = uuid.uuid4().hex[:12]
        self._plans[plan_id] = plan
        command = ["torchx", *argv]
        found = {"plan_id": plan_id, "gpu_hours": hours, "command": command, **dryrun, "next": "launch(plan_id)"}
        return {**answer(found, max_bytes, "raise `max_bytes`"), "plan_id": plan_id}

    async def _dryrun(self, argv: list[str]) -> dict[str, Any]:
        return await verb(argv[0], "--dryrun", "--json", *argv[1:], folder=self._bounds.folder)

    async def _fingerprint(self, argv: list[str], dryrun: dict[str, Any]) -> str:
        """Return what identifies a plan: the job, its options, and the scripts that it names; the request has an id."""
        import hashlib

        found = hashlib.sha256(json.dumps([dryrun.get(key) for key in ("scheduler", "app", "cfg")]).encode())
        for word in argv[1:]:
            path = os.path.join(self._bounds.folder, word.partition(":")[0])
            if os.path.isfile(path):
                found.update(await anyio.Path(path).read_bytes())
        return found.hexdigest()

    async def _submit(self, plan: _Plan, context: Context[Any, Any]) -> None:
        info = context.session.client_params.client_info if context.session.client_params else None
        client = clean(f"{info.name} {info.version}")[:100] if info else "unknown client"
        args = [plan.argv[0], "--json", "--detach", *plan.argv[1:]]
        env = {"TORCHX_LAUNCHED_BY": f"mcp {client}"}
        plan.failed = "its answer was lost"  # until there is one: a plan is not submitted a second time
        code, out, err = await run(args, folder=self._bounds.folder, env=env, timeout_s=_SUBMIT_S)
        if code:
            plan.failed = message_of(args, code, err)
            raise ToolError(plan.failed)
        handle: dict[str, Any] = json.loads(out)
        plan.handle = handle
        self._launched[handle["handle"]] = plan.gpu_hours or 0.0

    def _check_bounds(self, plan: _Plan) -> None:
        bounds = self._bounds
        if bounds.schedulers and plan.scheduler not in bounds.schedulers:
            raise ToolError(f"refused by --only-scheduler: `{plan.scheduler}` is not {' or '.join(bounds.schedulers)}")
        if bounds.max_jobs is not None and len(self._launched) >= bounds.max_jobs:
            raise ToolError(f"refused by --max-jobs: this server has launched {len(self._launched)} jobs")
        if bounds.max_gpu_hours is not None:
            used = sum(self._launched.values())
            if plan.gpu_hours is None:
                raise ToolError("refused by --max-gpu-hours: GPUs need `timeout`, such as 2h, and no `free` retry")
            if used + plan.gpu_hours > bounds.max_gpu_hours:
                raise ToolError(
                    f"refused by --max-gpu-hours: {plan.gpu_hours:g} GPU-hours, and {used:g} of "
                    f"{bounds.max_gpu_hours:g} are used"
                )

    def _check_inside(self, path: str, *, always: bool = False) -> None:
        """Refuse a path that leads out of the workspace; a component's name is none."""
        root = os.path.realpath(self._bounds.folder)
        full = os.path.realpath(os.path.join(root, os.path.expanduser(path.partition(":")[0])))
        is_path = always or os.sep in path or path.startswith("~")
        if is_path and os.path.commonpath([root, full]) != root:
            raise ToolError(f"refused by --workspace: `{path[:200]}` is not below {root}")

    async def _ours(self, job: str) -> str:
        """Return the handle of a job that this server launched, or of any one if that is allowed."""
        from torchx.cli.log_targets import parse_target

        handle = await self._reading.resolve(parse_target(job).reference)
        if not self._bounds.any_job and handle not in self._launched:
            raise ToolError(f"`{handle}` was not launched by this server: the user may start it with --allow-any")
        return handle


# Options that would let a plan submit something else than it shows, or wait, or read files of others.
_REFUSED = frozenset(
    "dryrun dry-run full export wait log tee-logs check no-check stdin json detach d help workspace yes secret s"  # noqa: SIM905
    " allow-private-workspace scheduler cfg scheduler-args notify env".split()
)


def gpu_hours(dryrun: dict[str, Any]) -> float | None:
    """Return the most GPU-hours that a planned job can use, all attempts together; None if nothing limits them.

    >>> role = {"num_replicas": 2, "resource": {"gpu": 8}}
    >>> gpu_hours({"app": {"roles": [role], "metadata": {"torchx/timeout": "90m"}}})
    24.0
    """
    from torchx.specs.wishes.retries import RETRY, RetryRules
    from torchx.specs.wishes.timeouts import TIMEOUT, parse_timeout

    app = dryrun.get("app") or {}
    gpus = sum(
        max((r.get("resource") or {}).get("gpu") or 0, 0) * r.get("num_replicas", 1) for r in app.get("roles", ())
    )
    if not gpus:
        return 0.0
    wishes = app.get("metadata") or {}
    times = [rule.times for rule in RetryRules.parse(wishes[RETRY]).rules] if wishes.get(RETRY) else []
    if not wishes.get(TIMEOUT) or min(times, default=0) < 0:
        return None
    attempts: int = 1 + sum(times)
    hours: float = gpus * attempts * parse_timeout(wishes[TIMEOUT]) / 3600
    return round(hours, 3)
