"""A program as others have written it: it subclasses Runner, LocalScheduler, LogIterator and an image provider.

Run by ``test_program.py``; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import torchx.specs as specs
from torchx.runner import Runner
from torchx.runner.api import get_runner
from torchx.schedulers import SchedulerFactory, get_scheduler_factories
from torchx.schedulers.api import DescribeAppResponse, Scheduler, Stream
from torchx.schedulers.local_scheduler import (
    STDOUT_LOG,
    CWDImageProvider,
    ImageProvider,
    LocalOpts,
    LocalScheduler,
    LogIterator,
    PopenRequest,
    ReplicaParam,
)
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, Role
from torchx.util.types import none_throws

CALLS: list[str] = []


class AuditingRunner(Runner):
    """Overrides the three verbs that start jobs."""

    def dryrun(self, app: AppDef, scheduler: str, *args: Any, **kwargs: Any) -> AppDryRunInfo[Any]:
        CALLS.append("runner.dryrun")
        return super().dryrun(app, scheduler, *args, **kwargs)

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        CALLS.append("runner.schedule")
        return super().schedule(dryrun_info)

    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: Any = None,
        parent_run_id: str | None = None,
    ) -> str:
        CALLS.append("runner.run")
        return self.schedule(self.dryrun(app, scheduler, cfg, workspace, parent_run_id))


class TaggingImageProvider(CWDImageProvider):
    """Adds a variable to each replica."""

    def get_replica_param(
        self,
        img_root: str,
        role: Role,
        stdout: str | None = None,
        stderr: str | None = None,
        combined: str | None = None,
    ) -> ReplicaParam:
        param = super().get_replica_param(img_root, role, stdout, stderr, combined)
        param.env["TAG"] = "from the image provider"
        return param


class FolderProvider(ImageProvider):
    """Implements the one abstract method."""

    def __init__(self, cfg: LocalOpts) -> None:
        self.cfg = cfg

    def fetch(self, image: str) -> str:
        return image


class PatientLogIterator(LogIterator):
    """Counts how often it looks whether the job has ended."""

    def __init__(self, app_id: str, log_file: str, scheduler: Scheduler[Any], should_tail: bool = True) -> None:
        super().__init__(app_id, log_file, scheduler, should_tail)
        CALLS.append("log_iterator.__init__")

    def _check_finished(self) -> None:
        if "log_iterator._check_finished" not in CALLS:
            CALLS.append("log_iterator._check_finished")
        return super()._check_finished()


class MyScheduler(LocalScheduler):
    """Overrides what surface of LocalScheduler others override."""

    def __init__(self, session_name: str, cache_size: int = 100, extra_paths: list[str] | None = None) -> None:
        super().__init__(session_name, TaggingImageProvider, cache_size, extra_paths)
        self.requests: dict[str, PopenRequest] = {}

    def _submit_dryrun(self, app: AppDef, cfg: LocalOpts) -> AppDryRunInfo[PopenRequest]:
        CALLS.append("scheduler._submit_dryrun")
        info = super()._submit_dryrun(app, cfg)
        for params in info.request.role_params.values():
            for param in params:
                param.env["ADDED"] = "in the dryrun"
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[PopenRequest]) -> str:
        CALLS.append("scheduler.schedule")
        app_id = super().schedule(dryrun_info)
        self.requests[app_id] = dryrun_info.request
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        response = super().describe(app_id)
        if response is not None:
            response.ui_url = f"https://jobs.example/{app_id}"
        return response

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
        CALLS.append("scheduler.log_iter")
        folder = self.requests[app_id].role_log_dirs[role_name][k]
        return PatientLogIterator(app_id, os.path.join(folder, STDOUT_LOG), self, should_tail)


def create_scheduler(session_name: str, **kwargs: Any) -> MyScheduler:
    return MyScheduler(session_name)


def folder_provider_works(folder: str) -> list[str]:
    """A LocalScheduler with an image provider of one's own runs programs relative to the image."""
    with open(os.path.join(folder, "hello.sh"), "w", encoding="utf-8") as f:
        f.write("#!/bin/sh\necho from the folder\n")
    os.chmod(f.name, 0o755)
    role = Role(
        name="r",
        image=folder,
        entrypoint=f"{specs.macros.img_root}/hello.sh",
        resource=specs.Resource(cpu=1, gpu=0, memMB=16),
    )
    factories: dict[str, SchedulerFactory] = {
        "folder": lambda session_name, **kw: LocalScheduler(session_name, FolderProvider)
    }
    with Runner("compat", factories) as runner:
        handle = runner.run(AppDef("app", [role]), "folder")
        none_throws(runner.wait(handle, wait_interval=0.02)).raise_for_status()
        return list(runner.log_lines(handle, "r", should_tail=True))


def main(folder: str) -> None:
    factories = {**get_scheduler_factories(), "mine": create_scheduler}
    with AuditingRunner("compat", scheduler_factories=factories) as runner:
        role = Role(
            name="worker",
            image="",
            entrypoint="sh",
            args=["-c", 'echo "$TAG, $ADDED, replica $0"', specs.macros.replica_id],
            num_replicas=2,
            resource=specs.resource(cpu=1, gpu=0, memMB=16),
        )
        handle = runner.run(AppDef("app", [role]), "mine", {"log_dir": os.path.join(folder, "logs")})
        status = none_throws(runner.wait(handle, wait_interval=0.02))
        lines = list(runner.log_lines(handle, "worker", k=1, should_tail=True))
        parsed = specs.parse_app_handle(handle)
        result = {
            "calls": CALLS,
            "state": status.state.name,
            "terminal": specs.is_terminal(status.state),
            "ui_url": status.ui_url == f"https://jobs.example/{parsed.app_id}",
            "backend": parsed.scheduler_backend,
            "session": parsed.session_name,
            "lines": lines,
            "same_state": status.state == AppState.SUCCEEDED,
        }
    result["folder"] = folder_provider_works(folder)
    with get_runner("plain", component_defaults={}) as plain:
        result["backends"] = plain.scheduler_backends()
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
