"""The program that submits the tasks of a paced sweep, a limited number at a time, and records their states.

Run as ``pacer FOLDER LOCK``, with the job as JSON on stdin; if stdin is empty, the recorded job is used. There is one
pacer per sweep: it inherits the sweep's lock as the open file ``LOCK``. If it is killed, the next process that looks at
the sweep starts another one. A task is marked before it is submitted and its app id is recorded after, so that the
scheduler can be asked about a task whose submission was interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

from torchx.config.files import load_files
from torchx.errors import BackendError, ConfigError, NotSupportedError, SpecError, TorchXError, TransientError
from torchx.runner.ground.backends import Backends
from torchx.runner.ground.masks import fill as fill_masks
from torchx.runner.ground.secrets import look_up
from torchx.runner.jobs.paced.sweeps import LOG_FILE
from torchx.runner.jobs.paced.tasks import IN_DOUBT, SUBMITTED, WAITING, Task, Tasks
from torchx.schedulers.api import DescribeAppResponse, ResolvedCfg, Scheduler
from torchx.schedulers.kit.abilities import BuildsWorkspaces
from torchx.settings import ENV_JOB_ID, ENV_WORKSPACE_HASH
from torchx.specs.api import AppDef, AppState, is_terminal, make_app_handle
from torchx.specs.copies import copy_data
from torchx.specs.failures import parse_failure
from torchx.specs.serialize import appdef_from_dict, appdef_to_dict, masked
from torchx.specs.tasks import ENV_TASK, fill_in
from torchx.util.redaction import MASK

_STEP_S = 0.1  # between two checks whether a task was cancelled
_MAX_S = 60.0
_ANSWER_TIMES = 10  # at most a tenth of the time is spent on queries
_GONE_S = 60.0  # a scheduler may not list a job for this long after its submission
_REFUSALS = 6  # of one task, with growing pauses, while no other task runs
_FIRST_PAUSE_S = 1.0
_AGAIN_S = 30.0  # after which a cancellation is repeated
_PERMANENT = (SpecError, ConfigError, NotSupportedError)  # a retry would fail again


class Pacer:
    """Submits the tasks of a sweep and follows their jobs until all tasks have ended.

    This process holds the lock of ``tasks``. If the job ``app``, with placeholders, is not known, no further task is
    submitted. ``head`` has the properties that all tasks share.
    """

    def __init__(self, tasks: Tasks, backend: Scheduler[Any], app: AppDef | None, head: dict[str, Any]) -> None:
        self._tasks, self._backend, self._app = tasks, backend, app
        self._cfg: dict[str, Any] = head["cfg"]
        self._cancelled: dict[int, float] = {}  # tasks that were cancelled, and when
        self._names: list[str] = head["names"]
        self._handle = make_app_handle(head["scheduler"], head["session"], os.path.basename(tasks.folder))
        self._width: int = head["width"]
        self._refused = 0
        self._not_before = 0.0
        self._query_s = 0.0

    def run(self) -> None:
        """Run until all tasks have ended, or nothing can be done for the others."""
        while True:
            version = self._tasks.version()
            try:
                self._settle()
                self._cancel()
                more = self._submit()
                active = self._update()
            except BackendError as e:  # the scheduler cannot be queried at the moment
                self._tasks.say(f"{e}; retrying")
                more, active = True, 1
                self._delay()
            if not (active or more):
                return
            self._sleep(version, active)

    # -- submissions -----------------------------------------------------------------------------

    def _submit(self) -> bool:
        """Submit as many tasks as may run; return whether more are waiting."""
        while (task := self._tasks.next()) is not None and self._app is not None:
            busy = len(self._tasks.all(IN_DOUBT, SUBMITTED))
            if busy >= self._width or time.monotonic() < self._not_before:
                return True
            try:
                self._submit_one(task, self._app)
            except _PERMANENT as e:
                self._tasks.end(task.k, AppState.FAILED, f"it was rejected: {e}")
            except BackendError as e:
                self._delay()
                if isinstance(e, TransientError):
                    return True  # the job may exist nevertheless
                self._tasks.withdraw(task.k)
                if self._refused >= _REFUSALS and not busy:
                    self._tasks.end(task.k, AppState.FAILED, f"it could not be submitted: {e}")
                    # The next task is tried only once: the scheduler will probably reject it, too.
                    self._refused, self._not_before = _REFUSALS - 1, 0.0
                    continue
                self._tasks.say(f"the next task could not be submitted, retrying: {e}")
                return True
            else:
                self._refused = 0
                self._tasks.say("")
        return False

    def _submit_one(self, task: Task, template: AppDef) -> None:
        k = task.k
        app = job_of(template, dict(zip(self._names, task.point, strict=True)), f"{self._handle}/{k}")
        info = self._backend.submit_dryrun(app, ResolvedCfg(self._cfg))
        look_up(info, self._backend)
        info.submission.record = appdef_to_dict(masked(app), fallback=repr)
        token, app_id = self._backend.submission_token(info), self._backend.expected_id(info)
        if self._tasks.change(k, WAITING, phase=IN_DOUBT, app_id=app_id, token=token, since=time.time()):
            self._tasks.change(k, IN_DOUBT, phase=SUBMITTED, app_id=self._backend.schedule(info))

    def _settle(self) -> None:
        """Asks the scheduler about submissions whose answer was lost."""
        for task in self._tasks.all(IN_DOUBT):
            age_s = time.time() - task.since
            found = self._backend.find_submission(task.token or task.app_id, self._cfg, age_s=age_s)
            if found:
                self._tasks.change(task.k, IN_DOUBT, phase=SUBMITTED, app_id=found)
            elif found == "":
                self._tasks.withdraw(task.k)

    def _delay(self) -> None:
        self._not_before = time.monotonic() + min(_FIRST_PAUSE_S * 2**self._refused, _MAX_S)
        self._refused += 1

    # -- submitted tasks -------------------------------------------------------------------------

    def _cancel(self) -> None:
        now = time.monotonic()
        for task in self._tasks.all(SUBMITTED):
            if task.stop and now - self._cancelled.get(task.k, -_AGAIN_S) >= _AGAIN_S:
                self._cancelled[task.k] = now
                self._backend.cancel(task.app_id)

    def _update(self) -> int:
        """Query the scheduler once for all submitted tasks and record changes; return how many have not ended."""
        active = {task.app_id: task for task in self._tasks.all(SUBMITTED)}
        began = time.monotonic()
        answers = self._backend.describe_many(list(active)) if active else {}
        self._query_s = time.monotonic() - began
        for app_id, task in active.items():
            answer = answers.get(app_id)
            if answer is None:
                if time.time() - task.since > _GONE_S:
                    self._tasks.end(task.k, AppState.UNKNOWN, "its scheduler no longer knows it")
            elif is_terminal(answer.state):
                state = AppState.CANCELLED if task.stop and answer.state is AppState.FAILED else answer.state
                code = exit_code(answer, state)
                self._tasks.end(task.k, state, answer.msg, code=code, ended=answer.ended_at or 0.0)
            elif (answer.state, answer.msg) != (task.state, task.msg):
                self._tasks.change(task.k, SUBMITTED, state=answer.state.name, msg=answer.msg)
        return len(self._tasks.all(IN_DOUBT, SUBMITTED))

    def _sleep(self, version: int, active: int) -> None:
        """Sleeps until the next query is due, or another process has changed the sweep."""
        least = min(self._backend.wait_hint / 2, 2.0)
        until = time.monotonic() + min(max(least, active / 500, _ANSWER_TIMES * self._query_s), _MAX_S)
        while (left := until - time.monotonic()) > 0 and self._tasks.version() == version:
            time.sleep(min(_STEP_S, left))


def job_of(template: AppDef, values: dict[str, str], handle: str) -> AppDef:
    """Return the job of the task with this handle."""
    app: AppDef = copy_data(template)
    k = handle.rpartition("/")[2]
    app.name = f"{app.name}-{k}"
    for role in app.roles:
        fill_in(role, values)
        role.env[ENV_TASK], role.env[ENV_JOB_ID] = k, handle
    return app


def exit_code(answer: DescribeAppResponse, state: AppState) -> int | None:
    """Return the exit code of the replica that failed first, ``-n`` for signal n; None if it is not known."""
    if state is AppState.SUCCEEDED:
        return 0
    failure = parse_failure(answer.structured_error_msg)
    if failure is None:
        return None
    if failure.signal in signal.Signals.__members__:
        return -int(signal.Signals[failure.signal])
    return failure.exit_code


def job_on_record(head: dict[str, Any]) -> AppDef:
    """Return the recorded job of a sweep; masked values are taken from their references and from this environment."""
    if MASK in str(head["cfg"]):
        raise ConfigError(
            "a run option is masked on record", hint="`torchx sweep --retry-failed` after `torchx cancel`"
        )
    app = appdef_from_dict(head["app"])
    fill_masks(app, load_files(), None)
    return app


def build(app: AppDef, backend: Scheduler[Any], head: dict[str, Any]) -> None:
    """Build the workspaces of a job, once for all tasks; raise ConfigError if code has changed since the launch."""
    if not isinstance(backend, BuildsWorkspaces) or not any(role.workspace for role in app.roles):
        return
    backend.build_workspaces(app.roles, head["cfg"])
    for role in app.roles:
        before = head["hashes"].get(role.name)
        if before and role.env.get(ENV_WORKSPACE_HASH) != before:
            raise ConfigError(
                f"the workspace `{role.workspace}` has changed since the launch",
                hint="restore it; or `torchx cancel` the sweep, and then `torchx sweep --retry-failed`",
            )


def main() -> None:
    folder, given = sys.argv[1], sys.stdin.read()
    os.set_inheritable(int(sys.argv[2]), False)
    with Tasks(folder) as tasks:
        head = tasks.head()
        app = None
        backends = Backends(None, {})
        try:
            backend = backends.get(head["scheduler"], head["session"])
        except TorchXError as e:
            tasks.say(f"{e}")
            raise SystemExit(f"torchx: {e}") from e
        try:
            if given:
                whole = json.loads(given)
                app, head["cfg"] = appdef_from_dict(whole["app"]), whole["cfg"]
            else:
                app = job_on_record(head)
            if tasks.next() is not None:
                build(app, backend, head)
            tasks.say("")
        except TorchXError as e:
            app = None
            tasks.say(f"waiting tasks cannot be submitted: {e}{f' ({e.hint})' if e.hint else ''}")
        try:
            Pacer(tasks, backend, app, head).run()
        except Exception:
            tasks.say(f"the pacer, which submits its tasks, has crashed: see `{os.path.join(folder, LOG_FILE)}`")
            raise
        finally:
            backends.close()
