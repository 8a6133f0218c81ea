"""A Slurm scheduler that has a tunnel of its own, and one that only adds to what is submitted."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from acme_dropin.runners import CALLS, BookRunner
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Stream
from torchx.schedulers.slurm_scheduler import (
    SLURM_STATES,
    SlurmBatchRequest,
    SlurmReplicaRequest,
    SlurmScheduler,
    appstate_from_slurm_state,
    get_appstate_from_job,
)
from torchx.specs import AppDef, AppDryRunInfo, AppState, CfgVal, ReplicaStatus, Resource, Role, RoleStatus, runopts


class Tunnel:
    """Where the cluster is. This one leads to this machine."""

    def run(self, *argv: str, stdin: str = "") -> str:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, check=True).stdout


class TunnelScheduler(SlurmScheduler):
    """Renders its own script, submits it and asks for it through its tunnel."""

    def __init__(self, session_name: str) -> None:
        self.tunnel: Tunnel | None = None
        super().__init__(session_name)

    def _initialize_tunnel(self, tunnel: Tunnel) -> None:
        if self.tunnel is not tunnel:
            CALLS.append("_initialize_tunnel")
            self.tunnel = tunnel

    def _run_opts(self) -> runopts:
        opts = super()._run_opts()
        opts.add("experiment", type_=str, help="of the job", default=None)
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[str]:
        role = app.roles[0]
        words = " ".join([role.entrypoint, *role.args])
        return AppDryRunInfo(f"#!/bin/sh\n#SBATCH --output=/dev/null\nsrun {words}\n", repr)

    def schedule(self, dryrun_info: AppDryRunInfo[str]) -> str:
        self._initialize_tunnel(Tunnel())
        assert self.tunnel is not None
        return self.tunnel.run("sbatch", "--parsable", stdin=dryrun_info.request).strip()

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        self._initialize_tunnel(Tunnel())
        assert self.tunnel is not None
        said = self.tunnel.run("sacct", "-n", "-X", "-P", "-j", app_id, "-o", "State").split()
        if not said:
            return DescribeAppResponse(app_id=app_id, state=AppState.PENDING)
        state = appstate_from_slurm_state(slurm_state=said[0])
        status = RoleStatus("worker", [ReplicaStatus(id=0, role="worker", state=state, hostname="")])
        return DescribeAppResponse(app_id=app_id, state=state, msg=said[0], roles_statuses=[status])

    def _cancel_existing(self, app_id: str) -> None:
        assert self.tunnel is not None
        self.tunnel.run("scancel", app_id)

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        return []


class AcmeSlurmScheduler(SlurmScheduler):
    """Adds a variable to each replica, and leaves the rest as it is."""

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[SlurmBatchRequest]:
        info = super()._submit_dryrun(app, cfg)
        for name, replica in info.request.replicas.items():
            assert isinstance(replica, SlurmReplicaRequest)
            replica.env["ACME_NAME"] = name
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[SlurmBatchRequest]) -> str:
        CALLS.append("slurm.schedule")
        for replica in dryrun_info.request.replicas.values():
            replica.env["ACME_WHEN"] = "late"
        return super().schedule(dryrun_info)

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


def create_scheduler(session_name: str, **kwargs: Any) -> AcmeSlurmScheduler:
    return AcmeSlurmScheduler(session_name)


def app(script: str) -> AppDef:
    role = Role("worker", "", entrypoint="sh", args=["-c", script], num_replicas=2, resource=Resource(1, 0, 64))
    return AppDef("acme", [role])


def check_the_request() -> None:
    scheduler = create_scheduler("acme")
    info = scheduler.submit_dryrun(app("echo $ACME_NAME"), {"partition": "p", "time": "1:00", "comment": "a b"})
    assert list(info.request.replicas) == ["worker-0", "worker-1"]
    assert info.request.cmd[0] == "sbatch"
    assert "ACME_NAME" in info.request.materialize()
    assert info.request.job_dir is None
    assert info.request.max_retries == 0
    sbatch, srun = info.request.replicas["worker-0"].materialize()
    assert "--job-name=worker-0" in sbatch
    assert srun[-2:] == ["-c", "'echo $ACME_NAME'"] or "echo $ACME_NAME" in srun[-1]
    scheduler.close()


def check_the_parts() -> None:
    role = app("true").roles[0]
    replica = SlurmReplicaRequest.from_role(name="worker-0", role=role, cfg={"partition": "p"}, nomem=True)
    assert replica.entrypoint == "sh"
    assert "mem" not in replica.sbatch_opts
    made = SlurmReplicaRequest(
        name="w-0", entrypoint="sh", args=["-c", "true"], srun_opts={}, sbatch_opts={"partition": "p"}, env={"A": "b"}
    )
    request = SlurmBatchRequest(cmd=["sbatch"], replicas={"w-0": made}, job_dir=None, max_retries=0)
    assert "#SBATCH" in request.materialize()
    assert appstate_from_slurm_state("COMPLETED") is SLURM_STATES["COMPLETED"] is AppState.SUCCEEDED
    assert get_appstate_from_job(job={"job_state": "FAILED"}) is AppState.FAILED


def check_a_tunnel_is_ones_own() -> None:
    scheduler = TunnelScheduler("acme")
    info = scheduler.submit_dryrun(app("true"), {"experiment": "e"})
    assert info.request.startswith("#!/bin/sh")
    assert scheduler.tunnel is None
    scheduler.close()


def run_a_job() -> None:
    """On the cluster that this machine is a part of, by both schedulers."""
    factories = {"mine": create_scheduler, "tunnel": lambda session_name, **kwargs: TunnelScheduler(session_name)}
    with BookRunner("acme", factories) as runner:
        handle = runner.run(app("echo I am $ACME_NAME, $ACME_WHEN"), "mine")
        status = runner.wait(handle, wait_interval=0.5)
        assert status is not None
        assert status.state is AppState.SUCCEEDED, status
        assert list(runner.log_lines(handle, "worker", 1)) == ["I am worker-1, late\n"]
        assert "slurm.schedule" in CALLS
        runner.delete(handle)
        handle = runner.run(app("true"), "tunnel", {"experiment": "e"})
        status = runner.wait(handle, 0.5)
        assert status is not None
        assert status.state is AppState.SUCCEEDED, status
        assert CALLS.count("_initialize_tunnel") >= 1
