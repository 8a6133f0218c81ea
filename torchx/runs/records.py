"""The records of the run registry: runs, changes of runs, and queries for runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torchx.specs.tasks import TaskList


LAUNCHED_BY = "launched_by"
"""The tag of a run that an agent launched: ``mcp``, name and version of the client."""


def size_of(app: Mapping[str, Any]) -> tuple[float, float]:
    """Return the GPUs and CPUs that a recorded AppDef asks for, all replicas together; those of a sweep's task.

    >>> size_of({"roles": [{"num_replicas": 2, "resource": {"gpu": 8, "cpu": -1}}]})
    (16.0, 0.0)
    """
    found = [0.0, 0.0]
    for role in app.get("roles") or ():
        resource = role.get("resource") or {}
        for i, what in enumerate(("gpu", "cpu")):
            found[i] += max(float(resource.get(what) or 0), 0.0) * float(role.get("num_replicas", 1))
    return found[0], found[1]


@dataclass(kw_only=True)
class NewRun:
    """A run before it is submitted. The caller must mask secrets.

    Attributes:
        scheduler: name of the scheduler.
        session: session name of the Runner.
        name: name of the AppDef.
        handle: the app handle, if it is known before the submission; else empty.
        app: the AppDef as JSON types, see :func:`torchx.specs.serialize.appdef_to_dict`.
        argv, cwd: the command line that submits the run, and its working directory.
        cfg: run options by name, each as ``{"value": ..., "source": ...}``.
        image: image of the first role after its workspace was built in.
        workspace: the workspaces that were built in, as text.
        git_commit: 40 hex digits; empty outside a git repository.
        git_dirty: whether tracked files differed from that commit; None if not known.
        tags: ``patch``: file in ``$TORCHX_HOME/patches`` with the uncommitted changes, if any; ``image.ROLE``: image of
            a role before its workspace was built in. Of a rerun: ``rerun_of``: handle of the original run;
            ``workspace.ROLE``: the workspace in the original run's image; ``checkout``, ``worktree``: the folder with
            its code, and the original folder. ``metrics``: usage of replicas, see ``Runner.metrics``.
            ``launched_by``: the agent that launched it, ``mcp NAME VERSION``.
        image_digests: digest of the image of each role, by role, if it is known before the submission.
        workspace_hashes: hash of the code that was built in for each role, by role.
        submission: token by which the scheduler finds the job if the answer is lost; see
            :meth:`torchx.schedulers.api.Scheduler.submission_token`.
        tasks: the tasks, if the run is a sweep; they are recorded in the same transaction.
    """

    scheduler: str
    session: str
    name: str
    handle: str = ""
    app: dict[str, Any] = field(default_factory=dict)
    cfg: dict[str, dict[str, Any]] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    cwd: str = ""
    image: str = ""
    workspace: str = ""
    git_commit: str = ""
    git_dirty: bool | None = None
    parent_run_id: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    image_digests: dict[str, str] = field(default_factory=dict)
    workspace_hashes: dict[str, str] = field(default_factory=dict)
    submission: str = ""
    tasks: TaskList | None = None


@dataclass(kw_only=True)
class Run(NewRun):
    """A run on record. Times are seconds since the epoch.

    :meth:`RunRegistry.list` leaves ``app``, ``argv``, ``cfg``, ``tags``, ``image_digests``, ``workspace_hashes`` and
    ``submission`` empty. :meth:`RunRegistry.tasks` returns the ``tasks``.

    Attributes:
        id: row number, ascending.
        handle: app handle; empty until the submission is answered, unless the handle is known before.
        state: the last observed state.
        msg: the scheduler's message about the state.
        created_at: when the submission began.
        updated_at: when the state last changed.
        ended_at: when the run ended; None if it has not ended.
        user, host: the user and the host that submitted it.
        image_digests: digest of the image that each role really ran, by role, if known; see
            :mod:`torchx.specs.images`.
        note: why the state could not be refreshed.
    """

    id: int
    app_id: str
    state: AppState
    msg: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    ended_at: float | None = None
    user: str = ""
    host: str = ""
    note: str = ""

    def is_terminal(self) -> bool:
        """Whether the run has ended."""
        return is_terminal(self.state)

    def appdef(self) -> AppDef | None:
        """Return the AppDef that was submitted, with secrets masked; None if it is not on record."""
        if not self.app:
            return None
        from torchx.specs.serialize import appdef_from_dict

        return appdef_from_dict(self.app)

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON types, with one key per attribute and the state by name.

        >>> Run(id=1, handle="x://s/a", scheduler="x", session="s", app_id="a", name="a",
        ...     state=AppState.RUNNING).to_json()["state"]
        'RUNNING'
        """
        fields = {**self.__dict__, "state": self.state.name}
        del fields["tasks"]
        return fields


@dataclass(kw_only=True)
class RunQuery:
    """A filter for runs; None matches any value.

    Attributes:
        states: runs in one of these states.
        scheduler: name of the scheduler.
        name: name of the AppDef; may contain the wildcards ``*``, ``?`` and ``[...]``.
        since: created at or after this time, in seconds since the epoch.
        mine: only runs of the current user; several users may share a home directory.
        by_agent: only runs that an agent launched, through ``torchx mcp``.
        limit: maximum number of runs; the newest are returned.
    """

    states: Iterable[AppState] | None = None
    scheduler: str | None = None
    name: str | None = None
    since: float | None = None
    mine: bool = False
    by_agent: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class Change:
    """One observed change of a run.

    Attributes:
        seq: number of the change, ascending; 0 for the state of a run at the start of a watch.
        handle: app handle.
        name: name of the AppDef.
        was: the previous state; None if the run is new.
        state: the new state.
        msg: the scheduler's message about the state.
        at: when the change was observed, in seconds since the epoch.
    """

    seq: int
    handle: str
    name: str
    was: AppState | None
    state: AppState
    msg: str
    at: float

    def is_terminal(self) -> bool:
        """Whether the run has ended with this change."""
        return is_terminal(self.state)
