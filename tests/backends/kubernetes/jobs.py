"""Jobs on the cluster of the tests, by a scheduler in this process, and what they cost the API server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.backends.kubernetes import cluster
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kubernetes.overlays import set_overlay
from torchx.specs import AppDef, BindMount, Resource, Role, is_terminal

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
        """Another scheduler, or a new one of the same name."""
        self.scheduler.close()
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
        self, app_id: str, question: Callable[[DescribeAppResponse], object] | None = None, timeout_s: float = 480
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

    def grant(self, role: Mapping[str, Any]) -> None:
        """Gives the user of :func:`cluster.limited_kubeconfig` the rights of a Role, in the test's namespace."""
        group = "apis/rbac.authorization.k8s.io/v1"
        cluster.call("POST", self.path("roles", group=group), role)
        binding = {
            "metadata": {"name": "user"},
            "subjects": [{"kind": "User", "name": "limited", "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "Role", "name": role["metadata"]["name"], "apiGroup": "rbac.authorization.k8s.io"},
        }
        cluster.call("POST", self.path("rolebindings", group=group), binding)

    def pods(self, app_id: str) -> list[dict[str, Any]]:
        """Of a job, oldest first."""
        selector = f"app.kubernetes.io/instance={app_id.partition(':')[2]}"
        found = cluster.call("GET", f"{self.path('pods')}?labelSelector={selector}")["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["creationTimestamp"])


class Gate:
    """A folder that a test shares with its pods, which wait there until the test lets them go on.

    Attributes:
        mount: of a role; its scripts see the folder as `/gate`.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.mount = BindMount(str(folder), "/gate")

    @staticmethod
    def wait(name: str) -> str:
        """Words of a shell that wait until the test, or another script, has opened the gate of this name."""
        return f"until [ -e /gate/{name} ]; do sleep 0.1; done"

    def open(self, name: str) -> None:
        (self._folder / name).touch()


class Audit:
    """The calls that torchx makes in a namespace from now on, by the API server's own account.

    A call is in the log before the end of its answer is sent; a watch that we have closed, once the server has noticed.
    """

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._log = cluster.AUDIT.open("rb")
        self._log.seek(0, os.SEEK_END)
        self._begun = b""
        self._calls: list[dict[str, Any]] = []

    def calls(self) -> list[dict[str, Any]]:
        """Those of until now."""
        if not self._log.closed:
            self._read()
            if os.fstat(self._log.fileno()).st_ino != cluster.AUDIT.stat().st_ino:  # it was full
                self._read()
                self._log.close()
                self._log = cluster.AUDIT.open("rb")
                self._read()
        return self._calls

    def verbs(self) -> list[str]:
        """Of the calls until now."""
        return [call["verb"] for call in self.calls()]

    def close(self) -> None:
        self.calls()
        self._log.close()

    def _read(self) -> None:
        *lines, self._begun = (self._begun + self._log.read()).split(b"\n")
        self._calls += [call for call in map(json.loads, lines) if self._is_ours(call)]

    def _is_ours(self, call: dict[str, Any]) -> bool:
        return (
            call.get("userAgent", "").startswith("torchx")
            and call["stage"] == "ResponseComplete"  # an answer that goes on is there twice
            and call.get("objectRef", {}).get("namespace") in (None, self._namespace)
        )


@contextmanager
def audited(namespace: str) -> Iterator[Audit]:
    """What torchx asks of the server meanwhile."""
    with closing(Audit(namespace)) as audit:
        yield audit
