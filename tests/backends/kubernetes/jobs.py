"""Jobs on the cluster of the tests, by a scheduler in this process, and what they cost the API server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.backends.kubernetes import cluster
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import AppDef, Resource, Role, is_terminal
from torchx.specs.overlays import set_overlay

SMALL = Resource(cpu=1, gpu=0, memMB=128)


class Jobs:
    """Submits to one namespace, with one scheduler.

    Attributes:
        scheduler: `kubernetes`, or what a test puts in its place.
    """

    def __init__(self, namespace: str, image: str) -> None:
        self.namespace = namespace
        self.image = image
        self.scheduler = get_scheduler_factories()["kubernetes"]("tests")

    def use(self, name: str) -> None:
        """Another scheduler."""
        self.scheduler = get_scheduler_factories()[name]("tests")

    def close(self) -> None:
        self.scheduler.close()

    def role(
        self, script: str = "true", name: str = "main", *, overlay: Mapping[str, Any] | None = None, **fields: Any
    ) -> Role:
        """One that runs a shell script."""
        fields.setdefault("resource", SMALL)
        role = Role(name, self.image, entrypoint="sh", args=["-c", script], **fields)
        if overlay:
            set_overlay(role, "kubernetes", "pod", dict(overlay))
        return role

    def run(self, script: str | Role | AppDef = "true", *, cfg: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """Submits. Returns the app id."""
        role = self.role(script, **fields) if isinstance(script, str) else script
        app = role if isinstance(role, AppDef) else AppDef("job", [role])
        room = {"reserved_millicpu": 1000}  # the node has few CPUs, and these scripts need none
        return self.scheduler.submit(app, {"namespace": self.namespace, **room, **(cfg or {})})

    def until(
        self, app_id: str, question: Callable[[DescribeAppResponse], object] | None = None, timeout_s: float = 60
    ) -> DescribeAppResponse:
        """What is said of the job, once it answers the question with yes; by default, once it has ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.scheduler.describe(app_id)
            assert found is not None, app_id
            if question(found) if question else is_terminal(found.state):
                return found
            assert time.monotonic() < deadline, (found.state, found.msg, found.roles_statuses)
            time.sleep(0.2)

    def log(self, app_id: str, role: str = "main", k: int = 0, **query: Any) -> list[str]:
        """Lines of a replica without their ends."""
        return [line.rstrip("\n") for line in self.scheduler.log_iter(app_id, role, k, **query)]

    def path(self, plural: str, name: str = "", group: str = "api/v1") -> str:
        """Of objects in the test's namespace."""
        return f"/{group}/namespaces/{self.namespace}/{plural}{'/' + name if name else ''}"

    def pods(self, app_id: str) -> list[dict[str, Any]]:
        """Of a job, oldest first."""
        selector = f"app.kubernetes.io/instance={app_id.partition(':')[2]}"
        found = cluster.call("GET", f"{self.path('pods')}?labelSelector={selector}")["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])


@contextmanager
def audited() -> Iterator[list[dict[str, Any]]]:
    """The calls that torchx makes meanwhile, by the API server's own account; complete at the end."""
    before = cluster.AUDIT.stat().st_size
    calls: list[dict[str, Any]] = []
    yield calls
    time.sleep(0.1)
    with cluster.AUDIT.open("rb") as log:
        log.seek(before)
        lines = [json.loads(line) for line in log if line.endswith(b"\n")]
    # An answer that goes on is in the log twice.
    ours = [line for line in lines if line.get("userAgent", "").startswith("torchx")]
    calls += [line for line in ours if line["stage"] == "ResponseComplete"]
