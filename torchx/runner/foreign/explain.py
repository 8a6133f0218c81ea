"""Finds, explains and adopts jobs that torchx did not launch, by the names that their schedulers give them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchx.errors import BackendError, HandleError, NotFoundError, NotSupportedError, SpecError, TorchXError
from torchx.runner.ground.backends import answers_within
from torchx.runner.launch.record import forget_notices, masked_settings
from torchx.runner.notices.plans import Plan
from torchx.runner.watching.tee import log_openers
from torchx.runs import NewRun, Run, RunRegistry, default_registry
from torchx.runs.registry import user_name
from torchx.schedulers.api import Scheduler
from torchx.schedulers.kit.failures.signatures import Match, explained
from torchx.schedulers.kit.foreign import ForeignJobs
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs.api import (
    AppDef,
    AppState,
    AppStatus,
    MalformedAppHandleException,
    UnknownAppException,
    make_app_handle,
    parse_app_handle,
)
from torchx.specs.failures import parse_failure
from torchx.specs.handles import FOREIGN
from torchx.specs.serialize import appdef_to_dict
from torchx.util.records import dataclass, field
from torchx.util.secrets import mask_args, mask_text

if TYPE_CHECKING:
    from torchx.runner.watching.handling import Handles

    Find = Callable[[str, str], Scheduler[Any]]

ALIASES = {"k8s": "kubernetes", "docker": "local_docker", "batch": "aws_batch"}
_WAITS_S = 30.0


@dataclass(kw_only=True)
class Explained:
    """The answer of :func:`why`.

    Attributes:
        about: name, user, command, ... as far as the scheduler reports them.
        role, replica: the replica whose log is shown: the one that caused the failure, else the first; None if there is
            none.
        lines: the last lines of that log.
        log_note: why there are no lines.
        on_record: whether the job is in the run registry, so that short references resolve to it.
        matches: the signatures of failures that its output matches; those that decided a class are marked.
    """

    handle: str
    status: AppStatus
    about: Mapping[str, str]
    role: str = ""
    replica: int | None = None
    lines: Sequence[str] = field(default_factory=list)
    log_note: str = ""
    on_record: bool = False
    matches: Sequence[Match] = field(default_factory=list)


def why(runner: Handles, reference: str, scheduler: str | None = None, *, lines: int = 20) -> Explained:
    """Explains any job that this user can see: state, cause of a failure, reason for waiting, last log lines.

    Args:
        reference: a reference as for other verbs, or the name that the job's own scheduler uses: ``4711``,
            ``slurm://4711_3``, the name of a container, ``k8s://NAMESPACE/job/NAME``.
        scheduler: search only this scheduler.
        lines: number of log lines, of the replica that caused the failure if the job failed.

    Raises:
        NotFoundError: no scheduler knows such a job; the hint lists the schedulers that could not be queried.
        HandleError: several schedulers know a job of this name.
    """
    return explain(runner, find(runner, reference, scheduler), lines)


def find(runner: Handles, reference: str, scheduler: str | None) -> str:
    """Resolve a reference to a handle; arguments and errors are those of :func:`why`."""
    runner._settle_intents()
    registry = default_registry()
    scheme, separator, rest = reference.partition("://")
    if separator and scheme not in ALIASES:
        try:
            parse_app_handle(reference)
            return reference
        except MalformedAppHandleException:
            if not rest or rest.endswith("/"):
                raise
    if separator:
        scheduler, reference = ALIASES.get(scheme, scheme), rest
    if reference.startswith("@"):
        return registry.find(reference).handle
    known = None if scheduler else _recorded(registry, reference)
    if known is not None and reference in (known.app_id, known.name):
        return known.handle
    asked = [ALIASES.get(scheduler, scheduler)] if scheduler else runner.scheduler_backends()
    found, errors = _ask(reference, asked, runner._scheduler, must_know=bool(scheduler))
    if len(found) == 1:
        return _handle_of(found[0], registry)
    if found:
        raise HandleError(
            f"`{reference}` could be any of: {', '.join(found)}",
            hint=f"say where with `-s {parse_app_handle(found[0]).scheduler_backend}`, or give the whole handle",
        )
    if known is not None:
        return known.handle
    if len(errors) == 1 and scheduler:
        raise next(iter(errors.values()))
    said = "; ".join(f"{name}: {error}" for name, error in errors.items())
    raise NotFoundError(
        f"no job is called `{reference}`, neither on record nor {'there' if scheduler else 'where torchx can look'}",
        hint=said or "use the name that its scheduler uses: a job id, a container, `k8s://NAMESPACE/job/NAME`",
    )


def _recorded(registry: RunRegistry, reference: str) -> Run | None:
    try:
        return registry.find(reference)
    except (NotFoundError, HandleError):
        return None


def _ask(
    reference: str, schedulers: Sequence[str], get: Find, *, must_know: bool
) -> tuple[list[str], dict[str, TorchXError]]:
    """Query the schedulers for a job of this name. Returns the handles found, and the errors by scheduler."""

    def question(name: str) -> Callable[[], str | TorchXError]:
        def ask() -> str | TorchXError:
            try:
                view = get(name, FOREIGN)
                if not isinstance(view, ForeignJobs):
                    return NotSupportedError(f"`{name}` finds only jobs that torchx launched") if must_know else ""
                named = view.find(reference)
            except TorchXError as e:
                return e
            except Exception as e:  # whatever a backend raises, the others are asked
                return BackendError(f"{type(e).__name__}: {e}")
            if named is None:
                return ""
            return make_app_handle(name, "" if named.ours else FOREIGN, named.app_id)

        return ask

    answers = dict(zip(schedulers, answers_within(_WAITS_S, [question(name) for name in schedulers]), strict=True))
    late = BackendError(f"did not answer within {_WAITS_S:g} s")
    found = [answer for answer in answers.values() if isinstance(answer, str) and answer]
    return found, {n: a or late for n, a in answers.items() if a is None or isinstance(a, TorchXError)}


def _handle_of(found: str, registry: RunRegistry) -> str:
    """Return the recorded handle of a job that torchx launched; if it is not on record here,
    one that its scheduler knows.
    """
    scheduler, session, app_id = parse_app_handle(found)
    if session:
        return found
    recorded = _recorded(registry, app_id)
    same = recorded is not None and (recorded.scheduler, recorded.app_id) == (scheduler, app_id)
    return recorded.handle if recorded is not None and same else make_app_handle(scheduler, "torchx", app_id)


def explain(runner: Handles, handle: str, lines: int) -> Explained:
    """Explains the job of a handle; see :func:`why`."""
    _, backend, app_id = runner._locate(handle)
    with explained() as matches:
        status = runner.status(handle)
    if status is None:
        raise UnknownAppException(handle)
    recorded = runner.recorded(handle)
    if isinstance(backend, ForeignJobs):
        about: dict[str, str] = backend.about(app_id)
    else:
        about = {} if recorded is None else {"name": recorded.name, "user": recorded.user, "folder": recorded.cwd}
    found = Explained(handle=handle, status=status, about=about, on_record=recorded is not None, matches=matches)
    replica = _replica_to_show(status)
    if replica is not None and lines and status.state not in (AppState.PENDING, AppState.SUBMITTED):
        found.role, found.replica = replica
        _read_log(runner, found, replica, lines)
    return found


def _replica_to_show(status: AppStatus) -> tuple[str, int] | None:
    failure = parse_failure(status.structured_error_msg)
    if failure is not None and failure.role and failure.replica is not None:
        return failure.role, failure.replica
    replicas = [r for role in status.roles for r in role.replicas]
    failed = [r for r in replicas if r.state is AppState.FAILED]
    return next(((r.role, r.id) for r in (*failed, *replicas)), None)


def _read_log(runner: Handles, found: Explained, replica: tuple[str, int], lines: int) -> None:
    try:
        (opened,) = log_openers(runner, found.handle, [replica], LogQuery(last=lines))
        found.lines = [str(line) for line in opened()]
    except TorchXError as e:
        found.log_note = f"{e}; {e.hint}" if e.hint else str(e)


def disown(handle: str) -> str:
    """Implement :meth:`Runner.disown`."""
    if parse_app_handle(handle).session_name != FOREIGN:
        raise SpecError(f"torchx launched `{handle}`", hint="`torchx delete` removes it, with its record")
    default_registry().forget(handle)
    forget_notices(handle)
    return handle


def adopt(
    runner: Handles,
    reference: str,
    scheduler: str | None = None,
    *,
    name: str = "",
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Record a job that torchx did not launch and return its handle. Other arguments and errors: see :func:`why`.

    Args:
        name: name of the run, for the reference ``@NAME``; by default the name that its scheduler reports.
        metadata: metadata of the run, for example a request for notices, see :mod:`torchx.specs.wishes.notices`.

    Raises:
        SpecError: the job is on record already, or torchx launched it.
    """
    handle = find(runner, reference, scheduler)
    scheduler, session, _ = parse_app_handle(handle)
    registry = default_registry()
    if session != FOREIGN or registry.get(handle) is not None:
        which = "is on record" if registry.get(handle) is not None else "was launched by torchx"
        raise SpecError(f"`{handle}` {which}", hint=f"`torchx status {handle}` shows it")
    found = explain(runner, handle, 0)
    name = name or found.about.get("name", "") or parse_app_handle(handle).app_id
    about = {key: mask_text(text) for key, text in found.about.items()}
    app = AppDef(name, metadata={**about, **(metadata or {})})
    plan = Plan.of(app)
    run_id = registry.begin(
        NewRun(
            scheduler=scheduler,
            session=FOREIGN,
            name=name,
            handle=handle,
            app=appdef_to_dict(app),
            cfg=masked_settings(runner._settings(scheduler, None), {}),
            argv=mask_args(sys.argv),
            cwd=found.about.get("folder", ""),
            tags={"adopted_by": user_name()},
        )
    )
    if not run_id:
        raise BackendError(f"`{handle}` cannot be put on record", hint="the warning above says why")
    registry.submitted(run_id, handle)
    if plan is not None:
        plan.submitted(handle)
    registry.saw(handle, found.status.state, msg=found.status.msg, ended_at=found.status.ended_at)
    return handle
