"""One run as it is written down, read back, and asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchx.specs.api import AppDef, AppState, is_terminal
from torchx.util.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchx.specs.tasks import TaskList


@dataclass(kw_only=True)
class NewRun:
    """What is known of a run before it is submitted. Secrets must be masked by the caller.

    Attributes:
        scheduler: name of the scheduler.
        session: name of the Runner's session.
        name: the AppDef's name.
        handle: the app handle, when it is known before the submission; else empty.
        app: the AppDef as JSON types, see :func:`torchx.specs.serialize.appdef_to_dict`.
        argv, cwd: the command line that submits it, and where.
        cfg: run option to ``{"value": ..., "source": ...}``.
        image: image of the first role after its workspace was built in.
        workspace: what was built in, as text.
        git_commit: 40 hex digits; empty outside of a git repository.
        git_dirty: whether tracked files differed from that commit; None when not known.
        tags: ``patch``: file in ``$TORCHX_HOME/patches`` with what differed from the commit, if anything did;
            ``image.ROLE``: image of a role before its workspace was built in; ``rerun_of``: handle of another run;
            ``workspace.ROLE``: the workspace that is in that one's image; ``checkout``, ``worktree``: a folder with its
            code, and where that was; ``metrics``: what replicas used, in short, see :mod:`torchx.runner.metrics`.
        image_digests: role name to the digest of its image, where it is known before the submission.
        workspace_hashes: role name to the hash of the code that was built in.
        submission: by what the scheduler finds the job when the answer is lost; see
            :meth:`torchx.schedulers.api.Scheduler.submission_token`.
        tasks: of a sweep; they are on record with it, in one transaction.
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
    """One run on record: what was known before, and what became of it. Times are seconds since the epoch.

    ``app`` is empty in the answers of ``list``, as are ``argv``, ``cfg``, ``tags``, ``image_digests``,
    ``workspace_hashes`` and ``submission``; ``tasks`` are asked for by :meth:`RunRegistry.tasks`.

    Attributes:
        id: row number, growing.
        handle: app handle; empty while the submission has not been answered and the handle is not known before.
        state: the last state seen.
        msg: what the scheduler said of it.
        created_at: when the submission began.
        updated_at: when the state was last seen to change.
        ended_at: when the run was first seen to have ended; None before.
        user, host: who submitted it, from where.
        image_digests: role name to the digest of the image that it really ran, where that is known; see
            :mod:`torchx.specs.images`.
        note: what could not be found out when the state was refreshed.
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
        """Whether the run was seen to have ended."""
        return is_terminal(self.state)

    def appdef(self) -> AppDef | None:
        """The AppDef that was submitted, secrets masked; None when it is not on record."""
        if not self.app:
            return None
        from torchx.specs.serialize import appdef_from_dict

        return appdef_from_dict(self.app)

    def to_json(self) -> dict[str, Any]:
        """JSON types: one key for each attribute, the state by name.

        >>> Run(id=1, handle="x://s/a", scheduler="x", session="s", app_id="a", name="a",
        ...     state=AppState.RUNNING).to_json()["state"]
        'RUNNING'
        """
        fields = {**self.__dict__, "state": self.state.name}
        del fields["tasks"]
        return fields


@dataclass(kw_only=True)
class RunQuery:
    """Which runs to list; what is None does not matter.

    Attributes:
        states: any of these.
        scheduler: name of the scheduler.
        name: the AppDef's name; ``*``, ``?`` and ``[...]`` as in file names.
        since: created at or after this time, in seconds since the epoch.
        mine: only runs of the current user, who may share the home directory with others.
        limit: at most so many, the newest.
    """

    states: Iterable[AppState] | None = None
    scheduler: str | None = None
    name: str | None = None
    since: float | None = None
    mine: bool = False
    limit: int | None = None


@dataclass(frozen=True)
class Change:
    """One change of a run, as it was seen.

    Attributes:
        seq: number of the change, growing; 0 of a run that was found as it is when the watch began.
        handle: app handle.
        name: the AppDef's name.
        was: the state before; None of a run that is seen for the first time.
        state: the state now.
        msg: what the scheduler says of it.
        at: when it was seen, in seconds since the epoch.
    """

    seq: int
    handle: str
    name: str
    was: AppState | None
    state: AppState
    msg: str
    at: float

    def is_terminal(self) -> bool:
        """Whether the run has ended with it."""
        return is_terminal(self.state)
