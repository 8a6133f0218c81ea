"""A Docker scheduler that labels its containers and sees to their environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from acme_dropin.runners import CALLS, BookRunner
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream
from torchx.schedulers.docker_scheduler import (
    LABEL_APP_ID,
    LABEL_REPLICA_ID,
    DockerContainer,
    DockerJob,
    DockerScheduler,
    ensure_network,
    has_docker,
)
from torchx.specs import AppDef, AppDryRunInfo, AppState, BindMount, CfgVal, Resource, Role, macros, runopts

IMAGE_ENV = "ACME_DOCKER_IMAGE"


class Mixin:
    """Comes before the scheduler, as mixins do."""

    def __init__(self, session_name: str, **kwargs: Any) -> None:
        super().__init__(session_name, **kwargs)
        self.started: list[str] = []


class AcmeDockerScheduler(Mixin, DockerScheduler):
    """Overrides what programs override."""

    def __init__(self, session_name: str) -> None:
        super().__init__(session_name=session_name)

    def _run_opts(self) -> runopts:
        opts = super()._run_opts()
        opts.add("team", type_=str, help="who pays", default="acme")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[DockerJob]:
        info = super()._submit_dryrun(app, cfg)
        request = info.request
        assert isinstance(request, DockerJob)
        for container in request.containers:
            assert isinstance(container, DockerContainer)
            container.kwargs["labels"]["acme.team"] = str(cfg.get("team"))
            container.kwargs["environment"]["ACME_REPLICA"] = container.kwargs["labels"][LABEL_REPLICA_ID]
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[DockerJob]) -> str:
        CALLS.append("docker.schedule")
        app_id = super().schedule(dryrun_info)
        self.started.append(app_id)
        return app_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return super().describe(app_id)

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
        return super().log_iter(app_id, role_name, k, regex, since, until, should_tail, streams)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        return super().list(cfg)


def create_scheduler(session_name: str, **kwargs: object) -> AcmeDockerScheduler:
    return AcmeDockerScheduler(session_name)


def app(image: str) -> AppDef:
    script = f"echo replica $ACME_REPLICA of {macros.replica_id}; ls /mnt/acme"
    role = Role(
        name="worker",
        image=image,
        entrypoint="sh",
        args=["-c", script],
        num_replicas=2,
        resource=Resource(cpu=1, gpu=0, memMB=64),
        mounts=[BindMount(src_path="/", dst_path="/mnt/acme", read_only=True)],
    )
    return AppDef("acme", [role])


def check_the_request() -> None:
    scheduler = create_scheduler("acme")
    info = scheduler.submit_dryrun(app=app("busybox"), cfg={"team": "blue"})
    assert len(info.request.containers) == 2
    first = info.request.containers[0]
    assert (first.image, first.command[0]) == ("busybox", "sh")
    assert first.kwargs["labels"][LABEL_APP_ID] == info.request.app_id
    assert first.kwargs["labels"]["acme.team"] == "blue"
    assert "busybox" in str(info)
    assert isinstance(has_docker(), bool)
    scheduler.close()


def run_a_job(image: str) -> None:
    """On the engine of this machine, with an image that has a shell."""
    ensure_network()
    with BookRunner("acme", {"mine": create_scheduler}) as runner:
        handle = runner.run(app(image), "mine", cfg={"team": "blue"})
        status = runner.wait(handle, wait_interval=0.2)
        assert status is not None
        assert status.state is AppState.SUCCEEDED, status
        lines = list(runner.log_lines(handle, "worker", k=1, should_tail=True))
        assert lines[0] == "replica 1 of 1\n", lines
        assert len(lines) > 1
        assert any(line.app_id in handle for line in runner.list("mine"))
        scheduler = runner._scheduler("mine")
        assert scheduler.started == [handle.rpartition("/")[2]]
        assert "docker.schedule" in CALLS
        runner.delete(handle)
        assert runner.status(handle) is None
