"""References to jobs and replicas on the command line: ``handle/role/0,2-4``."""

from __future__ import annotations

from collections.abc import Sequence

from torchx.cli.failures import error, note
from torchx.errors import HandleError, TorchXError
from torchx.runner import Runner
from torchx.runner.watching.answers import check_replica
from torchx.specs import AppDef
from torchx.specs.handles import MalformedAppHandleException
from torchx.util.records import dataclass

ID_FORMAT = "SCHEDULER://[SESSION_NAME]/APP_ID/[ROLE_NAME/[REPLICA_IDS,...]]"
JOB_HELP = "handle, app id or unique prefix of one, @last (newest run), @last~1 (the one before), or @NAME"
LAST = "@last"
OR_LAST = {"nargs": "?"}
"""Of an argument for which :func:`or_last` has a default."""
_MAX_IDS = 1_000_000
_LONGEST = 40  # characters of a number or range; int() rejects thousands of digits


@dataclass(frozen=True)
class LogTarget:
    """A reference to a job, with a role and replicas; None means all."""

    reference: str
    role: str | None
    ids: list[int] | None


def parse_target(identifier: str) -> LogTarget:
    """Parse the argument of ``torchx log``; raise HandleError if it is malformed.

    >>> parse_target("local_cwd://torchx/echo-x1/trainer/0,2-4")
    LogTarget(reference='local_cwd://torchx/echo-x1', role='trainer', ids=[0, 2, 3, 4])
    >>> parse_target("@last/trainer")
    LogTarget(reference='@last', role='trainer', ids=None)
    """
    job_reference(identifier)
    scheduler, separator, rest = identifier.partition("://")
    session = ""
    if separator:
        session, slash, rest = rest.partition("/")
        if not (scheduler and slash and rest):
            raise MalformedAppHandleException(identifier)
    else:
        rest = identifier
    app_id, *path = rest.rstrip("/").split("/") if rest.strip("/") else [""]
    if not app_id or not identifier.isprintable() or " " in identifier:
        raise _malformed(identifier, "the app id is missing" if not app_id else "it contains white space")
    if len(path) > 2 or "" in path:
        raise _malformed(identifier, "after the app id there may be a role, then replicas")
    role = path[0] if path else None
    ids = parse_ids(path[1], identifier) if len(path) > 1 else None
    return LogTarget(f"{scheduler}://{session}/{app_id}" if separator else app_id, role, ids)


def job_reference(text: str) -> str:
    """Return a reference to a job; raise HandleError if it is neither a handle nor a short form of one.

    >>> job_reference("@last")
    '@last'
    """
    if not text.strip():
        raise HandleError("no job is named: the argument is empty", hint="`@last` is the newest run")
    if "://" not in text and (":/" in text or not text.isprintable() or " " in text):
        raise HandleError(
            f"`{text}` is not an app handle", hint="write SCHEDULER://SESSION/APP_ID, an app id, or @last"
        )
    return text


def or_last(runner: Runner, reference: str | None) -> str:
    """Return the job that a command line names; without one the newest run, and say which that is."""
    if reference is None:
        reference = runner.resolve(LAST)
        note(f"{LAST} is {reference}")
    return reference


def resolve_all(runner: Runner, references: Sequence[str], failed: list[int] | None = None) -> list[str]:
    """Resolve references to handles, without duplicates. Call it before using the first: ``@last`` may change.

    With ``failed``, references that cannot be resolved are reported, and their exit codes added to it.
    """
    handles = []
    for reference in dict.fromkeys(references):
        try:
            handles.append(runner.resolve(reference))
        except TorchXError as e:
            if failed is None:
                raise
            failed.append(e.exit_code)
            error(str(e), hint=e.hint)
    return list(dict.fromkeys(handles))


def parse_ids(text: str, identifier: str = "") -> list[int]:
    """Parse a list of replica numbers and ranges; return the numbers sorted, without duplicates.

    >>> parse_ids("3,0-1,1")
    [0, 1, 3]
    """
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        numbers = first.isdigit() and (last.isdigit() or not dash)
        if not (numbers and part.isascii() and len(part) <= _LONGEST):
            raise _malformed(identifier or text, f"`{part}` is neither a number nor a range of replicas")
        low, high = int(first), int(last) if dash else int(first)
        if low > high or high >= _MAX_IDS:
            raise _malformed(identifier or text, f"`{part}` is not a range of replicas")
        found.update(range(low, high + 1))
    return sorted(found)


def find_role_replicas(app: AppDef, role_name: str | None = None) -> list[tuple[str, int]]:
    """Return the replicas of a job, or of one of its roles, as ``(role, number)``."""
    return [(r.name, k) for r in app.roles if role_name in (None, r.name) for k in range(r.num_replicas)]


def select(replicas: Sequence[tuple[str, int]], target: LogTarget) -> list[tuple[str, int]]:
    """Return the replicas that the target names; raise NotFoundError if the job has no such role or replica."""
    if target.role is None:
        return list(replicas)
    of_role = [(role, k) for role, k in replicas if role == target.role]
    if not of_role and target.ids is None and len({role for role, _ in replicas}) == 1:
        try:  # `SWEEP/17`, or a replica of a job with one role
            return select(replicas, LogTarget(target.reference, replicas[0][0], parse_ids(target.role)))
        except HandleError:
            pass
    wanted = [k for _, k in of_role] if target.ids is None else target.ids
    known = {k for _, k in of_role}
    if not known or not known.issuperset(wanted):
        check_replica(replicas, target.reference, target.role, next((k for k in wanted if k not in known), 0))
    return [(target.role, k) for k in wanted]


def _malformed(identifier: str, why: str) -> HandleError:
    return HandleError(f"`{identifier}` is not a job's identifier: {why}", hint=f"write {ID_FORMAT}, or `@last/ROLE/0`")
