"""An in-memory scheduler that implements the whole contract without processes."""

from __future__ import annotations

from torchx.errors import BackendError
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler
from torchx.specs import AppDef, AppDryRunInfo, AppState, Role, RoleStatus, runopts


class Request:
    """The request; `app_id` is set if the scheduler knows it before the submission, like local jobs."""

    def __init__(self, app, cfg, app_id):
        self.app = app
        self.cfg = cfg
        self.app_id = app_id


class MemoryScheduler(Scheduler):
    """Jobs end when a test says so. All sessions see the same jobs, as on a cluster.

    Args:
        jobs: id to answer.
    """

    def __init__(self, session_name, *, jobs=None, ids_known=True, **params):
        super().__init__("memory", session_name)
        self.jobs = {} if jobs is None else jobs
        self.ids_known = ids_known
        self.params = params
        self.asked = []
        self.calls = []
        self.closed = False
        self.refuses = None

    def _run_opts(self):
        opts = runopts()
        opts.add("queue", type_=str, help="queue to submit to", default="any")
        opts.add("priority", type_=int, help="priority of the job", default=1)
        opts.add("tags", type_=list[str], help="tags of the job")
        opts.add("limits", type_=dict[str, str], help="limits of the job")
        opts.add("mail-type", type_=str, help="when to send mail")
        opts.add("api_key", type_=str, help="a secret")
        return opts

    def _pre_build_validate(self, app, scheduler, cfg):
        self.calls.append("pre_build_validate")

    def _validate(self, app, scheduler, cfg):
        self.calls.append("validate")

    def _submit_dryrun(self, app, cfg):
        self.calls.append("submit_dryrun")
        app_id = f"{app.name}-{len(self.jobs) + 1}" if self.ids_known else ""
        return AppDryRunInfo(Request(app, cfg, app_id), lambda request: f"{request.app.name} {request.cfg}")

    def expected_id(self, dryrun_info):
        return dryrun_info.request.app_id

    def schedule(self, dryrun_info):
        if self.refuses is not None:
            raise self.refuses
        app = dryrun_info.request.app
        app_id = dryrun_info.request.app_id or f"{app.name}-{len(self.jobs) + 1}"
        self.jobs[app_id] = DescribeAppResponse(
            app_id, AppState.RUNNING, roles=app.roles, roles_statuses=[RoleStatus(r.name, []) for r in app.roles]
        )
        return app_id

    def describe(self, app_id):
        self.asked.append([app_id])
        return self.jobs.get(app_id)

    def describe_many(self, app_ids):
        self.asked.append(list(app_ids))
        return {app_id: self.jobs.get(app_id) for app_id in app_ids}

    def list(self, cfg=None):
        self.listed_with = cfg
        return [ListAppResponse(app_id, job.state) for app_id, job in self.jobs.items()]

    def log_iter(self, app_id, role_name, k=0, regex=None, since=None, until=None, should_tail=False, streams=None):
        return iter([f"{app_id} {role_name} {k} {regex} {should_tail} {streams}\n"])

    def _cancel_existing(self, app_id):
        self.jobs[app_id].state = AppState.CANCELLED

    def _delete_existing(self, app_id):
        del self.jobs[app_id]

    def close(self):
        self.closed = True


class Killed(BaseException):
    """Raised past every ``except``, as if the process had been killed."""


class UnreachableScheduler(MemoryScheduler):
    """A cluster that cannot be queried."""

    def describe_many(self, app_ids):
        raise BackendError("connection refused")


def echo_app(**fields):
    """A job with one role."""
    role = {"name": "echo", "image": "/tmp", "entrypoint": "echo", "args": ["hello"], **fields}
    return AppDef("echo", roles=[Role(**role)], metadata={"team": "a"})


def backend(runner, name="memory", session=None):
    """The scheduler of a Runner."""
    return runner._scheduler(name, session)
