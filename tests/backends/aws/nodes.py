"""Multi-node jobs on moto as Batch runs them. It is loaded by the launcher of :mod:`tests.backends.aws.moto`, in moto's environment.

The main node starts first, and the others are told its address. Each node has a description (``JOB#INDEX``) and a log stream
of its own, which grow while it runs. When the main node ends, the job ends with its exit code, and the others are stopped.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from datetime import datetime
from typing import Any

import docker
from moto.batch.models import BatchBackend, Job

STOP_S = 30
_describe_jobs, _describe, _run = BatchBackend.describe_jobs, Job.describe, Job.run


class Node:
    """One node: its container, its description, and its log."""

    def __init__(self, job: Any, index: int, spec: dict[str, Any], main: Node | None) -> None:
        self.job, self.index = job, index
        self.stream = f"{job.job_definition.name}/default/{job.job_id}-{index}"
        job._log_backend.ensure_log_group(job._log_group)
        job._log_backend.ensure_log_stream(job._log_group, self.stream)
        env = {one["name"]: one["value"] for one in spec.get("environment", [])}
        env.update(AWS_BATCH_JOB_ID=f"{job.job_id}#{index}", AWS_BATCH_JOB_NODE_INDEX=str(index))
        env.update(AWS_BATCH_JOB_MAIN_NODE_INDEX=str(main_node(job)))
        if main is not None:
            env.update(AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=main.address)
        volumes = {one["name"]: one["host"] for one in spec.get("volumes", [])}
        mounts = [
            docker.types.Mount(
                m["containerPath"], volumes[m["sourceVolume"]]["sourcePath"], type="bind", read_only=m["readOnly"]
            )
            for m in spec.get("mountPoints", [])
        ]
        self.seen, self.code = 0, None
        self.started, self.stopped = time.time(), 0.0
        self.reason = ""
        self.container = job.docker_client.containers.run(
            spec["image"],
            spec["command"],
            detach=True,
            environment=env,
            mounts=mounts,
            name=f"{job.job_name}-{job.job_id}-{index}",
        )
        self.container.reload()
        found = self.container.attrs["NetworkSettings"]
        networks = [one["IPAddress"] for one in found["Networks"].values() if one["IPAddress"]]
        self.address: str = (networks or [found.get("IPAddress", "")])[0]

    def look(self) -> None:
        """Pass on what it has written since, and notice its end."""
        self.container.reload()
        over = self.container.status not in ("created", "running")
        text = self.container.logs(timestamps=True).decode("utf-8", "replace")
        lines = text.split("\n")[:-1] if not over else [line for line in text.split("\n") if line]
        events = []
        for line in lines[self.seen :]:
            at, _, message = line.partition(" ")
            when = datetime.fromisoformat(f"{at[:26].rstrip('Z')}+00:00")
            events.append({"timestamp": int(when.timestamp() * 1000), "message": message})
        self.seen = len(lines)
        if events:
            self.job._log_backend.put_log_events(self.job._log_group, self.stream, events)
        if over and self.code is None:
            self.code, self.stopped = self.container.wait()["StatusCode"], time.time()

    def signal(self, name: str) -> None:
        with contextlib.suppress(docker.errors.APIError):  # it has just ended
            self.container.kill(name)

    def describe(self) -> dict[str, Any]:
        container: dict[str, Any] = {"logStreamName": self.stream}
        container["networkInterfaces"] = [{"privateIpv4Address": self.address}]
        found = {
            "jobId": f"{self.job.job_id}#{self.index}",
            "jobName": self.job.job_name,
            "jobQueue": self.job.job_queue.arn,
            "jobDefinition": self.job.job_definition.arn,
            "createdAt": int(self.started * 1000),
            "startedAt": int(self.started * 1000),
            "status": "RUNNING",
            "nodeProperties": {"nodeIndex": self.index, "isMainNode": self.index == main_node(self.job)},
            "container": container,
        }
        if self.code is not None:
            container["exitCode"] = self.code
            found.update(
                stoppedAt=int(self.stopped * 1000), status="FAILED" if self.code or self.reason else "SUCCEEDED"
            )
            found["statusReason"] = self.reason or "Essential container in task exited"
        return found


def main_node(job: Any) -> int:
    return int(job.job_definition.node_properties.get("mainNode") or 0)


def specs(job: Any) -> dict[int, dict[str, Any]]:
    properties = job.job_definition.node_properties
    found = {}
    for one in properties["nodeRangeProperties"]:
        first, colon, last = one["targetNodes"].partition(":")
        end = (last or properties["numNodes"] - 1) if colon else first
        found.update(dict.fromkeys(range(int(first or 0), int(end) + 1), one["container"]))
    return found


def run(job: Any) -> None:
    """Run a job, instead of moto's ``Job.run``."""
    if job.job_definition.type != "multinode":
        _run(job)
        return
    job.nodes = {}
    try:
        job.status = "PENDING"
        if job.depends_on and not job._wait_for_dependencies():
            return
        job.job_started_at = datetime.now()
        job._start_attempt()
        job.status = "STARTING"
        main = Node(job, main_node(job), specs(job)[main_node(job)], None)
        job.nodes[main.index] = main
        job.log_stream_name = main.stream
        job.status = "RUNNING"
        for index, spec in specs(job).items():
            if index != main.index:
                job.nodes[index] = Node(job, index, spec, main)
        while main.code is None and not job.stop:
            for node in job.nodes.values():
                node.look()
            time.sleep(0.2)
        for node in job.nodes.values():
            if job.stop and node.code is None:
                node.reason = job.job_stopped_reason
        _stop(job)
        job.exit_code = main.code
        job._mark_stopped(success=not job.stop and main.code == 0)
    except Exception as err:
        traceback.print_exc()
        job.job_stopped_reason = f"CannotStartContainerError: {err}"
        job._mark_stopped(success=False)
    finally:
        for node in job.nodes.values():
            node.container.remove(force=True)


def _stop(job: Any) -> None:
    """Stop what still runs, as Batch does: SIGTERM, and SIGKILL half a minute later."""
    open_ones = [node for node in job.nodes.values() if node.code is None]
    for node in open_ones:
        node.signal("SIGTERM")
    until = time.monotonic() + STOP_S
    while any(node.code is None for node in open_ones):
        if time.monotonic() > until:
            for node in open_ones:
                node.signal("SIGKILL")
        for node in open_ones:
            node.look()
        time.sleep(0.2)


def describe_jobs(backend: Any, jobs: list[str] | None) -> list[dict[str, Any]]:
    """Describe nodes, too."""
    found = []
    for one in jobs or ():
        job_id, number, index = one.partition("#")
        node = getattr(backend._jobs.get(job_id), "nodes", {}).get(int(index)) if number else None
        found += [node.describe()] if node else []
    plain = [one for one in jobs or () if "#" not in one]
    return [*found, *(_describe_jobs(backend, plain) if plain or not jobs else ())]


def install() -> None:
    BatchBackend.describe_jobs = describe_jobs
    Job.run = run
