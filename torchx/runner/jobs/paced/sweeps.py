"""Presents paced sweeps and their tasks as jobs of a scheduler, and starts their pacers."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torchx.errors import BackendError
from torchx.runner.ground.backends import is_near
from torchx.runner.jobs.paced.tasks import ENDED, PREFIX, SUBMITTED, WAITING, Task, Tasks, create, folder_of, opened
from torchx.runner.jobs.views import View
from torchx.schedulers.api import NONE, DescribeAppResponse, Scheduler, open_logs
from torchx.schedulers.ids import make_unique
from torchx.schedulers.kit.inside import not_running
from torchx.schedulers.kit.logs import LogQuery
from torchx.schedulers.kit.names import FILE_NAME
from torchx.schedulers.kit.tasks import check_numbers, describe_sweep, waiting
from torchx.settings import ENV_IMAGE_DIGEST, ENV_WORKSPACE_HASH
from torchx.specs.api import AppDef, AppDryRunInfo, AppState, is_terminal
from torchx.specs.copies import copy_data
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict, masked
from torchx.specs.tasks import TaskList, replica_names, replica_of
from torchx.supervisor.layout import private
from torchx.util.machine import cpu_count
from torchx.util.procs import own_program
from torchx.util.secrets import CERTAIN, mask_value

_Replicas = list[tuple[str, int]]

LOG_FILE, _LOCK_FILE = "pacer.log", "lock"
_FAR_WIDTH = 20  # default number of concurrent jobs on a cluster
_FOLLOW_S = 0.5
_DELETE_S = 180.0  # how long tasks may take to end once they are cancelled
_AGAIN_S = 3.0  # minimum time between two pacers of a sweep: a pacer that cannot do anything ends at once
_NAME_CHARS = 80
_started: list[Any] = []


class PacedSweeps(View):
    """Presents the paced sweeps of a backend as jobs; the jobs of their tasks run on that backend."""

    wait_hint = 0.1  # sweeps are described from files of this machine
    _new = ""

    # -- submission ------------------------------------------------------------------------------

    def expected_id(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        if not self._new:
            name = dryrun_info._app.name if dryrun_info._app is not None else "app"
            self._new = make_unique(PREFIX + FILE_NAME.make(name)[:_NAME_CHARS], 6)
        return self._new

    def check_tasks(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> None:
        """See :class:`torchx.schedulers.kit.abilities.RunsTasks`; any job can be a task of a paced sweep."""

    def submit_tasks(self, dryrun_info: AppDryRunInfo[Any], tasks: TaskList) -> str:
        app_id = self.expected_id(dryrun_info)
        app, hashes = unbuilt(dryrun_info)
        cfg = dict(dryrun_info._cfg)
        head = {
            "scheduler": dryrun_info._scheduler,
            "session": self.session_name,
            "cfg": {name: mask_value(name, value, CERTAIN) for name, value in cfg.items()},
            "app": appdef_to_dict(masked(app, CERTAIN)),
            "hashes": hashes,
            "names": list(tasks.names),
            "width": tasks.max_parallel or (_FAR_WIDTH if self.is_cluster() else cpu_count()),
            "host": os.uname().nodename,
            "cwd": os.getcwd(),
        }
        folder = create(app_id, head, tasks.points)
        _start_pacer(folder, {"app": appdef_to_dict(app), "cfg": cfg})
        return app_id

    def is_cluster(self) -> bool:
        """Whether the jobs run on other machines."""
        return not is_near(self._scheduler) and self._scheduler.backend not in ("docker", "local_docker")

    # -- status ----------------------------------------------------------------------------------

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Describe a sweep from what its pacer recorded, without a query. Starts a pacer if there is none any more."""
        if (tasks := opened(app_id)) is None:
            return None
        with tasks:
            head = tasks.head()
            answer = describe_sweep(app_id, tasks.table(head["width"]))
        problem = head["problem"]
        if not is_terminal(answer.state):
            if head["host"] == os.uname().nodename:
                _start_pacer(tasks.folder, cwd=head["cwd"])
            else:
                problem = problem or f"its tasks are submitted by `{head['host']}`"
        answer.msg += f"; {problem}" if problem else ""
        answer.roles = _roles(head)
        return answer

    def describe_tasks(self, app_id: str, numbers: Sequence[int]) -> list[DescribeAppResponse] | None:
        if (tasks := opened(app_id)) is None:
            return None
        with tasks:
            found = tasks.some(*numbers)
        return [self._describe(f"{app_id}/{task.k}", task) for task in found]

    def _describe(self, app_id: str, task: Task) -> DescribeAppResponse:
        answer = self._scheduler.describe(task.app_id) if task.phase >= SUBMITTED and task.app_id else None
        if answer is None:
            answer = DescribeAppResponse(app_id=app_id, state=task.state, num_restarts=0, msg=task.msg or NONE)
            if task.state is AppState.UNKNOWN:
                answer.state = AppState.FAILED
            answer.ended_at = task.ended or None
            return answer if task.phase != WAITING else waiting(answer)
        answer.app_id = app_id
        answer.metadata = {**answer.metadata, "job": task.app_id}
        return answer

    def log_replicas(self, app_id: str) -> _Replicas | None:
        if (tasks := opened(app_id)) is None:
            return None
        with tasks:
            return replica_names(_roles(tasks.head()), len(tasks))

    def open_logs(self, app_id: str, replicas: Sequence[tuple[str, int]], query: LogQuery) -> Sequence[Iterable[str]]:
        with Tasks(folder_of(app_id)) as tasks:
            roles = _roles(tasks.head())
        return [self._lines(tasks.folder, *replica_of(roles, replica), query) for replica in replicas]

    def job_of(self, app_id: str, replica: tuple[str, int]) -> tuple[Scheduler[Any], str, tuple[str, int]]:
        with Tasks(folder_of(app_id)) as tasks:
            number, there = replica_of(_roles(tasks.head()), replica)
            (task,) = tasks.some(number)
        if task.phase != SUBMITTED:
            raise not_running(f"{app_id}/{number}", *there, str(self._describe(app_id, task).state))
        return self._scheduler, task.app_id, there

    def _lines(self, folder: str, k: int, replica: tuple[str, int], query: LogQuery) -> Iterator[str]:
        while True:
            with Tasks(folder) as tasks:
                (task,) = tasks.some(k)
            if task.phase >= SUBMITTED and task.app_id:
                break
            if task.phase == ENDED or not query.follow:
                return
            time.sleep(_FOLLOW_S)
        yield from open_logs(self._scheduler, task.app_id, [replica], query)[0]

    # -- the end ---------------------------------------------------------------------------------

    def _cancel_existing(self, app_id: str) -> None:
        self._stop(app_id, None)

    def cancel_task(self, app_id: str, number: int) -> None:
        self._stop(app_id, number)

    def _stop(self, app_id: str, number: int | None) -> None:
        with Tasks(folder_of(app_id)) as tasks:
            if number is not None:
                check_numbers(app_id, [number], len(tasks))
            tasks.stop(number)
        self.describe(app_id)  # starts a pacer if there is none

    def _delete_existing(self, app_id: str) -> None:
        import shutil

        folder = folder_of(app_id)
        self._stop(app_id, None)
        deadline = time.monotonic() + _DELETE_S
        while (found := self.describe(app_id)) is not None and not is_terminal(found.state):
            if time.monotonic() > deadline:
                raise BackendError(
                    f"`{app_id}` is cancelled, but has not ended: {found.msg}",
                    hint="the same command deletes it when it has",
                )
            time.sleep(_FOLLOW_S)
        with Tasks(folder) as tasks:
            for task in tasks.all(ENDED):
                if task.app_id:
                    self._scheduler.delete(task.app_id)
        shutil.rmtree(folder, ignore_errors=True)


def of_task(backend: Scheduler[Any], sweep: str, number: int) -> tuple[Scheduler[Any], str] | None:
    """Scheduler and app id of the job of a task; None if it is not submitted."""
    with Tasks(folder_of(sweep)) as tasks:
        (task,) = tasks.some(number)
    return (backend, task.app_id) if task.phase == SUBMITTED else None


def _start_pacer(folder: str, job: dict[str, Any] | None = None, *, cwd: str | None = None) -> None:
    """Start the pacer of a sweep, which outlives this process, unless there is one already.

    ``job``: the app and its run options, with secrets, which are not on record; None: use the recorded ones.
    """
    held = os.open(os.path.join(folder, _LOCK_FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the pacer inherits the open file and with it the lock
        if job is None and time.time() - os.fstat(held).st_mtime < _AGAIN_S:  # the last pacer ended at once
            return
        os.utime(held)
        with open(os.path.join(folder, LOG_FILE), "ab", opener=private) as log:
            process = subprocess.Popen(
                own_program("torchx.runner.jobs.paced.pacer", folder, str(held)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=cwd if cwd and os.path.isdir(cwd) else None,
                start_new_session=True,
                pass_fds=[held],
            )
    except BlockingIOError:  # there is a pacer
        return
    finally:
        os.close(held)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(job).encode() if job is not None else b"")
    _started[:] = [p for p in _started if p.poll() is None]
    _started.append(process)


def unbuilt(info: AppDryRunInfo[Any]) -> tuple[AppDef, dict[str, str]]:
    """Return the job before its workspaces were built in, and the hash of the code of each role, by name.

    The pacer builds the workspaces again: only the process that built an image knows about it.
    """
    assert info._app is not None  # the Runner's own dry run
    app: AppDef = copy_data(info._app)
    hashes = {}
    for role in app.roles:
        if role.workspace and os.path.isdir(role.image):
            role.workspace = None  # the image is a folder with a copy of the code, for all tasks
        elif role.workspace:
            role.image = info.submission.tags.get(f"image.{role.name}", role.image)
            hashes[role.name] = role.env.pop(ENV_WORKSPACE_HASH, "")
            role.env.pop(ENV_IMAGE_DIGEST, None)
    return app, hashes


def _roles(head: dict[str, Any]) -> list[Any]:
    return appdef_from_dict(head["app"]).roles
