"""A local scheduler with every method overridden that programs override, and a log iterator of its own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from acme_dropin.runners import CALLS, BookRunner
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.schedulers.local_scheduler import (
    COMBINED_LOG,
    STDERR_LOG,
    STDOUT_LOG,
    CWDImageProvider,
    ImageProvider,
    LocalDirectoryImageProvider,
    LocalOpts,
    LocalScheduler,
    LogIterator,
    PopenRequest,
    ReplicaParam,
)
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Resource, Role, is_terminal, runopts
from torchx.specs.api import is_started

FILES = {Stream.STDOUT: STDOUT_LOG, Stream.STDERR: STDERR_LOG, Stream.COMBINED: COMBINED_LOG}


class CountingLogIterator(LogIterator):
    """Asks itself whether the job has ended."""

    def __init__(self, app_id: str, log_file: str, scheduler: Scheduler[Any], should_tail: bool = True) -> None:
        super().__init__(app_id=app_id, log_file=log_file, scheduler=scheduler, should_tail=should_tail)
        self.asked = 0

    def _check_finished(self) -> None:
        self.asked += 1
        CALLS.append("_check_finished")
        found = self._scheduler.describe(self._app_id)
        if found is None or is_terminal(found.state):
            self._app_finished = True


class LateLogIterator(LogIterator):
    """Waits by itself until the job has started, as programs do that follow a log from the outside."""

    def __iter__(self) -> Iterator[str]:
        found = self._scheduler.describe(self._app_id)
        assert found is not None
        assert is_started(found.state) or not is_terminal(found.state)
        return super().__iter__()


class AcmeLocalScheduler(LocalScheduler):
    """Remembers its own requests, names the page of a job, and reads logs by itself."""

    def __init__(self, session_name: str, cache_size: int = 100, extra_paths: list[str] | None = None) -> None:
        super().__init__(session_name, CWDImageProvider, cache_size=cache_size, extra_paths=extra_paths)
        self.kept: dict[str, PopenRequest] = {}

    def _submit_dryrun(self, app: AppDef, cfg: LocalOpts) -> AppDryRunInfo[PopenRequest]:
        info = super()._submit_dryrun(app, cfg)
        for role, params in info.request.role_params.items():
            for k, param in enumerate(params):
                param.env["ACME_WHO"] = f"{role}-{k}"
        CALLS.append("_submit_dryrun")
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> str:
        app_id = super().schedule(dryrun_info=dryrun_info)
        assert app_id == dryrun_info.request.app_id
        self.kept[app_id] = dryrun_info.request
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        found = super().describe(app_id)
        if found is not None:
            found.ui_url = f"https://acme.example/{app_id}"
        return found

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        CALLS.append("log_iter")
        folder = self.kept[app_id].role_log_dirs[role_name][k]
        path = os.path.join(folder, FILES[streams or Stream.COMBINED])
        lines: Iterable[str] = CountingLogIterator(app_id, path, self, should_tail)
        return filter_regex(regex, lines) if regex else lines


class EnvImageProvider(ImageProvider):
    """The abstract method, and two of the others."""

    def __init__(self, cfg: LocalOpts) -> None:
        self.cfg = cfg

    def fetch(self, image: str) -> str:
        return image

    def get_cwd(self, image: str) -> str | None:
        return image

    def get_replica_param(
        self,
        img_root: str,
        role: Role,
        stdout: str | None = None,
        stderr: str | None = None,
        combined: str | None = None,
    ) -> ReplicaParam:
        param = super().get_replica_param(img_root, role, stdout=stdout, stderr=stderr, combined=combined)
        param.env["ACME_IMAGE"] = img_root
        return param


class MemoryScheduler(Scheduler[Mapping[str, CfgVal]]):
    """A backend of its own from the base class, with the least that it asks for, in the order that it asks."""

    def __init__(self, session_name: str) -> None:
        super().__init__(backend="acme_memory", session_name=session_name)
        self.jobs: dict[str, AppDef] = {}

    def run_opts(self) -> runopts:
        opts = runopts()
        opts.add("color", type_=str, help="of the job", default="red", required=False)
        opts.add("size", type_=int, help="of the job", required=True)
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[tuple[AppDef, CfgVal]]:
        return AppDryRunInfo((app, cfg.get("color")), repr)

    def schedule(self, dryrun_info: AppDryRunInfo[tuple[AppDef, CfgVal]]) -> str:
        app_id = f"job-{len(self.jobs)}-{dryrun_info.request[1]}"
        self.jobs[app_id] = dryrun_info.request[0]
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        if app_id not in self.jobs:
            return None
        response = DescribeAppResponse()
        response.app_id = app_id
        response.state = AppState.SUCCEEDED
        response.roles = self.jobs[app_id].roles
        return response

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        return [ListAppResponse(app_id=i, state=AppState.SUCCEEDED) for i in self.jobs]

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Any resource will do."""

    def _cancel_existing(self, app_id: str) -> None:
        del self.jobs[app_id]


def create_scheduler(session_name: str, **kwargs: Any) -> AcmeLocalScheduler:
    return AcmeLocalScheduler(session_name=session_name, cache_size=kwargs.get("cache_size", 100))


def role(name: str, script: str, **more: Any) -> Role:
    return Role(
        name=name, image="", entrypoint="sh", args=["-c", script], resource=Resource(cpu=1, gpu=0, memMB=64), **more
    )


def check_a_job_of_ones_own_scheduler() -> None:
    CALLS.clear()
    app = AppDef(name="acme", roles=[role("worker", "echo out $ACME_WHO; echo err $ACME_WHO >&2", num_replicas=2)])
    factories = {"mine": create_scheduler}
    with BookRunner(name="acme", scheduler_factories=factories, component_defaults=None) as runner:
        handle = runner.run(app, "mine", cfg={"log_dir": os.path.abspath("logs")})
        status = runner.wait(handle, wait_interval=0.05)
        assert status is not None
        assert status.state is AppState.SUCCEEDED, status
        assert status.ui_url is not None
        assert status.ui_url.startswith("https://acme.example/acme-")
        assert list(runner.log_lines(handle, "worker", 1, should_tail=True, streams=Stream.STDERR)) == [
            "err worker-1\n"
        ]
        assert list(runner.log_lines(handle, "worker", k=0, regex="out")) == ["out worker-0\n"]
        assert any(line.app_id in handle for line in runner.list(scheduler="mine", cfg=None))
        assert runner.describe(handle) is not None
        runner.delete(handle)
    assert CALLS[:4] == ["run", "dryrun", "_submit_dryrun", "schedule"]
    assert {"log_iter", "_check_finished"} <= set(CALLS)


def check_a_log_is_followed_while_the_job_runs() -> None:
    with BookRunner("acme", {"mine": create_scheduler}) as runner:
        app = AppDef("acme", [role("worker", "for i in 1 2 3; do echo $i; sleep 0.2; done")])
        handle = runner.run(app, "mine")
        scheduler = runner._scheduler("mine")
        app_id = handle.rpartition("/")[2]
        folder = scheduler.kept[app_id].role_log_dirs["worker"][0]
        lines = LateLogIterator(app_id, os.path.join(folder, STDOUT_LOG), scheduler)
        assert [line.strip() for line in lines] == ["1", "2", "3"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            runner.stop(handle)
        runner.cancel(handle)


def check_an_image_provider_of_ones_own() -> None:
    factories = {"env": lambda session_name, **kwargs: LocalScheduler(session_name, EnvImageProvider)}
    with BookRunner("acme", factories) as runner:
        job = role("worker", "echo $ACME_IMAGE; pwd")
        job.image = os.getcwd()
        handle = runner.run(AppDef("acme", [job]), "env")
        status = runner.wait(handle, 0.05)
        assert status is not None
        status.raise_for_status()
        assert [line.strip() for line in runner.log_lines(handle, "worker", streams=Stream.STDOUT)] == [os.getcwd()] * 2


def check_image_providers_directly() -> None:
    job = role("worker", "true")
    for provider in (CWDImageProvider(cfg={}), LocalDirectoryImageProvider({})):
        image = os.getcwd()
        assert provider.fetch(image=image) == image
        assert provider.get_entrypoint(img_root=image, role=job)
        param = provider.get_replica_param(image, job, "o", "e", combined=None)
        assert (param.stdout, param.stderr, param.args[1:]) == ("o", "e", ["-c", "true"])


def check_a_backend_from_the_base_class() -> None:
    with BookRunner("acme", {"memory": lambda session_name, **kwargs: MemoryScheduler(session_name)}) as runner:
        app = AppDef("acme", [Role("worker", "image", entrypoint="x")])
        handle = runner.run(app, "memory", {"size": 3})
        assert handle == "memory://acme/job-0-red"
        assert [line.app_id for line in runner.list("memory")] == ["job-0-red"]
        status = runner.status(handle)
        assert status is not None
        assert status.is_terminal()
        runner.cancel(handle)
        assert not runner._scheduler("memory").exists("job-0-red")
    scheduler = MemoryScheduler("acme")
    app_id = scheduler.submit(app=app, cfg={"size": 1}, workspace=None)
    assert scheduler.exists(app_id)
    scheduler.delete(app_id)
    assert not scheduler.exists(app_id)
    scheduler.close()


def check_the_entry_points() -> None:
    with BookRunner("acme") as runner:
        assert {"acme_local", "acme_docker", "acme_slurm", "local_cwd"} <= set(runner.scheduler_backends())
        handle = runner.run_component("utils.echo", ["--msg", "hello"], scheduler="acme_local", cfg={})
        assert handle.startswith("acme_local://acme/")
        status = runner.wait(handle, wait_interval=0.05)
        assert status is not None
        assert status.state is AppState.SUCCEEDED
