"""Checks of a scheduler, or of a job on it, which run concurrently and within a time limit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, TorchXError
from torchx.runner.ground.backends import answers_within
from torchx.runner.launch import static
from torchx.runner.watching.wait import WaitTimeoutError
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.abilities import BuildsWorkspaces, Diagnoses
from torchx.schedulers.kit.findings import BAD, GOOD, LIMIT_S, UNKNOWN, WITHIN_S, Check, Finding, bad, doubt, probe_app
from torchx.schedulers.kit.rules import broken
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, Workspace
from torchx.specs.copies import copy_data

if TYPE_CHECKING:
    from torchx.runner.watching.handling import Handles

    _Cfg = Mapping[str, CfgVal] | None

_POLL_S = 1.0

Progress = Callable[[Sequence[Finding], Sequence[str]], None]
"""Is called while checks run, with new findings and the names of the checks that have no answer yet."""


def ask(checks: Sequence[Check], within_s: float = WITHIN_S, progress: Progress | None = None) -> list[Finding]:
    """Run checks concurrently and return their findings; the finding of a check that takes too long is ``unknown``.

    >>> ask([Check("a", lambda: "is there")])
    [Finding(verdict='good', what='a', said='is there', fix='', unreachable=False)]
    """
    found: list[Finding] = []
    reported: set[str] = set()
    taken = 0

    def take(findings: Sequence[Finding]) -> list[Finding]:
        """Keep findings, but report a cause of several only once, or again if it is worse."""
        nonlocal taken
        taken += 1
        new = [f for f in findings if not f.fix or f.said not in reported or f.verdict == BAD or f.unreachable]
        reported.update(f.said for f in new)
        found.extend(new)
        return new

    def seen(answers: Mapping[int, list[Finding]]) -> None:
        new: list[Finding] = []
        while taken in answers:
            new += take(answers[taken])
        if progress:
            progress(new, [check.what for i, check in enumerate(checks) if i not in answers])

    seen({})
    answers = answers_within(within_s, [check.findings for check in checks], seen)
    seen({i: [checks[i].late(within_s)] if answer is None else answer for i, answer in enumerate(answers)})
    return found


def of_system(runner: Handles, name: str, cfg: _Cfg, *, within_s: float, progress: Progress | None) -> list[Finding]:
    """Check whether jobs can run on a scheduler."""
    backend = runner._scheduler(name)
    wrong: list[Finding] = []
    try:
        settled = {key: setting.value for key, setting in runner._settings(name, cfg).items()}
        wrong = [Finding(BAD, "options", str(e), e.hint) for e in broken(backend.rules, (), settled)]
        return wrong + _asked(backend, name, settled, None, within_s=within_s, progress=progress)
    except TorchXError as e:  # for example, a required option is missing
        hint = e.hint or f"`torchx runopts {name}` shows the options; `torchx doctor -s {name} -cfg KEY=VALUE`"
        return wrong or [Finding(UNKNOWN, "options", str(e), hint, unreachable=isinstance(e, BackendError))]


def of_job(
    runner: Handles,
    app: AppDef,
    name: str,
    cfg: _Cfg,
    workspace: Workspace | str | None,
    *,
    within_s: float,
    progress: Progress | None,
) -> list[Finding]:
    """Check one job; see :meth:`Runner.check`."""
    backend = runner._scheduler(name)
    try:
        info = runner.dryrun(app, name, cfg, workspace)
    except TorchXError as e:  # a BackendError may be a failure of the query: it does not prove that the job is wrong
        failed = isinstance(e, BackendError)
        return [Finding(UNKNOWN if failed else BAD, "request", str(e), e.hint, unreachable=failed)]
    settled, given = info._cfg or {}, copy_data(app)
    if workspace and isinstance(backend, BuildsWorkspaces):
        code = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
        for role in given.roles:
            role.workspace = role.workspace or code
    found = [Finding(GOOD, "request", f"the dry run for `{name}` succeeded"), *static.findings(given, backend, settled)]
    if progress:
        progress(found, ())
    try:
        return found + _asked(backend, name, settled, info, within_s=within_s, progress=progress)
    except TorchXError as e:
        return [*found, Check(name, list, vital=True).failed(e)]
    finally:
        runner.discard(info)


def _asked(
    backend: Scheduler[Any],
    name: str,
    cfg: Mapping[str, CfgVal],
    job: AppDryRunInfo[Any] | None,
    *,
    within_s: float,
    progress: Progress | None,
) -> list[Finding]:
    if isinstance(backend, Diagnoses):
        token = LIMIT_S.set(within_s)
        try:
            checks = [*backend.diagnose(cfg, job)]
        finally:
            LIMIT_S.reset(token)
        return ask(checks, within_s, progress)
    fix = f"`torchx doctor -s {name} --deep` runs a small job there"
    return [Finding(UNKNOWN, name, "this scheduler has no checks of its own", fix)]


def probe(runner: Handles, name: str, cfg: _Cfg, image: str, within_s: float) -> list[Finding]:
    """Run a small job, reads its log, and delete it."""
    return Check("probe job", lambda: _probe(runner, name, cfg, image, within_s), certain=(TorchXError,)).findings()


def _probe(runner: Handles, name: str, cfg: _Cfg, image: str, within_s: float) -> str | Finding:
    word = f"torchx-doctor-{time.time_ns()}"
    begun = time.monotonic()
    handle = runner.run(probe_app(image, word), name, cfg)
    try:
        try:
            status = runner.wait(handle, _POLL_S, within_s)
        except WaitTimeoutError:
            status = runner.status(handle)
        took = time.monotonic() - begun
        said = f"{status.state.name}: {status.msg}".rstrip(": ") if status is not None else "gone"
        if status is not None and not status.is_terminal():
            return doubt(f"after {within_s:g} s it is {said}", "`torchx doctor --deep` later")
        if status is None or status.state is not AppState.SUCCEEDED:
            return bad(f"it is {said}", "run it by hand: `torchx run --wait --log utils.echo --msg hello`")
        if word in "".join(runner.log_lines(handle, "probe", 0)):
            return f"ran, and its log came back, in {took:.1f} s"
        said = "it ran, but what it wrote is not seen from here: do the nodes share the folder of the jobs?"
        return bad(said, "`export TORCHX_HOME=/a/shared/folder`, or `-cfg job_dir=...` on one")
    finally:
        with contextlib.suppress(TorchXError):  # the finding matters more than the cleanup
            runner.cancel(handle)
            runner.delete(handle)
