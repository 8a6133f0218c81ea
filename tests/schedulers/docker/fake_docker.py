"""A Docker client without an engine: containers and networks in memory, with faults where a test wants them."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import docker.errors


class Answer:
    """An HTTP answer, as far as errors and streams look at one."""

    def __init__(self, status_code: int = 200, body: bytes | io.BytesIO = b"") -> None:
        self.status_code = status_code
        self.raw = body if isinstance(body, io.BytesIO) else io.BytesIO(body)
        self._body = body
        self.reason = "because"
        self.url = "http+docker://fake"

    def json(self) -> Any:
        return json.loads(self.raw.getvalue())

    def close(self) -> None:
        self.raw.close()


def refusal(status_code: int, said: str) -> docker.errors.APIError:
    """The client's exception for what an engine says."""
    return docker.errors.APIError("refused", response=Answer(status_code), explanation=said)


class FakeDocker:
    """``docker.DockerClient``, as far as the scheduler uses it.

    Attributes:
        faults: name of a call -> exceptions that its next calls raise, None for a call that works.
        streams: path -> bodies of the streams that are asked for there, in order; empty when there is none left.
        filters: of the events that were asked for.
        asked_to_follow: ``follow`` of each log that was asked for.
        log_limits: for how long a read of each log may take, in seconds.
        pull_ends_with: an error in the middle of the next pulls.
    """

    def __init__(self) -> None:
        self.api = self
        self.containers_made: dict[str, dict[str, Any]] = {}
        self.networks_made: dict[str, dict[str, Any]] = {}
        self.images_here = {"img": {"Id": f"sha256:{'a' * 64}", "RepoDigests": []}}
        self.faults: dict[str, list[Exception | None]] = {}
        self.streams: dict[str, list[bytes | io.BytesIO]] = {}
        self.filters: list[dict[str, list[str]]] = []
        self.asked_to_follow: list[int] = []
        self.log_limits: list[float | None] = []
        self.pull_ends_with = ""
        self.calls: list[str] = []
        self.closed = 0
        self.base_url, self.api_version = "http+docker://fake", "1.41"
        self._ids = (f"id{i:03}" for i in itertools.count())
        self.images = self
        self.networks_api = self

    # -- client.containers.create, client.networks.create, client.api.pull -------------------------

    @property
    def networks(self) -> Any:
        return _Networks(self)

    @property
    def containers(self) -> Any:
        return _Containers(self)

    def pull(self, image: str, *, stream: bool, decode: bool) -> Iterator[dict[str, Any]]:
        assert stream
        assert decode
        self.called("pull")
        yield {"status": "Downloading"}
        if self.pull_ends_with:
            yield {"error": self.pull_ends_with}
            return
        self.images_here[image] = {"Id": "sha256:" + "b" * 64, "RepoDigests": [f"{image}@sha256:{'c' * 64}"]}

    def close(self) -> None:
        self.closed += 1

    # -- client.api ----------------------------------------------------------------------------------

    def inspect_image(self, image: str) -> Any:
        self.called("inspect_image")
        if image not in self.images_here:
            raise docker.errors.ImageNotFound("no", response=Answer(404), explanation=f"No such image: {image}")
        return self.images_here[image]

    def inspect_container(self, container_id: str) -> Any:
        self.called("inspect_container")
        return self.containers_made[container_id]["inspect"]

    def remove_container(self, container_id: str, **_: Any) -> None:
        self.called("remove_container")
        self.containers_made.pop(container_id, None)

    def remove_network(self, network_id: str) -> None:
        self.called("remove_network")
        self.networks_made.pop(network_id, None)

    def rename(self, container_id: str, name: str) -> None:
        self.called("rename")
        self.containers_made[container_id]["Names"] = [f"/{name}"]

    def stop(self, container_id: str, timeout: int = 10) -> None:
        self.called("stop")
        self.set(container_id, "exited", 143)

    def get_archive(self, container_id: str, path: str) -> Any:
        self.called("get_archive")
        raise refusal(404, "no such file")

    def get(self, url: str, *, params: dict[str, Any] | None = None, timeout: Any = (None, None), **_: Any) -> Answer:
        path = url.removeprefix(f"{self.base_url}/v{self.api_version}")
        self.called(f"get {path}")
        if path == "/events":
            self.filters.append(json.loads((params or {})["filters"]))
        if path.endswith("/logs"):
            self.asked_to_follow.append((params or {})["follow"])
            self.log_limits.append(timeout[1])
        bodies = self.streams.get(path)
        return Answer(200, bodies.pop(0) if bodies else b"")

    # -- for tests -----------------------------------------------------------------------------------

    def called(self, name: str) -> None:
        self.calls.append(name)
        faults = self.faults.get(name)
        if faults and (fault := faults.pop(0)) is not None:
            raise fault

    def set(self, container_id: str, state: str, exit_code: int = 0) -> None:
        """Puts a container into a state."""
        made = self.containers_made[container_id]
        made["State"] = state
        made["Status"] = f"Exited ({exit_code}) 2 seconds ago" if state == "exited" else "Up 2 seconds"
        made["inspect"]["State"] |= {"ExitCode": exit_code, "FinishedAt": "1970-01-01T00:00:20Z"}


class _Made:
    def __init__(self, fake: FakeDocker, container_id: str) -> None:
        self.fake, self.id = fake, container_id
        self.labels = fake.containers_made[container_id]["Labels"]
        self.attrs: dict[str, Any] = {"HostConfig": {"DeviceRequests": [1]}}

    def start(self) -> None:
        self.fake.called("start")
        self.fake.set(self.id, "running")


class _Containers:
    """Both ``client.containers`` and ``client.api.containers(...)``."""

    def __init__(self, fake: FakeDocker) -> None:
        self.fake = fake

    def __call__(self, *, all: bool, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        self.fake.called("containers")
        made = self.fake.containers_made.values()
        return [
            c
            for c in reversed(list(made))
            if _carries(c["Labels"], filters.get("label", []))
            and c["Id"].startswith(filters.get("id", [""])[0])
            and re.search(filters.get("name", [""])[0], c["Names"][0])
        ]

    def create(self, image: str, command: list[str], **kwargs: Any) -> _Made:
        self.fake.called("create")
        names = [c["Names"][0] for c in list(self.fake.containers_made.values())]  # others are made at the same time
        if f"/{kwargs['name']}" in names:
            raise refusal(409, f"Conflict. The container name {kwargs['name']} is already in use")
        container_id = next(self.fake._ids)
        self.fake.containers_made[container_id] = {
            "Id": container_id,
            "Names": [f"/{kwargs['name']}"],
            "Labels": kwargs["labels"],
            "State": "created",
            "Status": "Created",
            "Created": 10,
            "ImageID": "sha256:" + "a" * 64,
            "Ports": [],
            "inspect": {"State": {"StartedAt": "1970-01-01T00:00:11Z"}, "RestartCount": 0, "Config": {"Env": []}},
        }
        return _Made(self.fake, container_id)

    def get(self, name: str) -> _Made:
        self.fake.called("get container")
        return next(_Made(self.fake, i) for i, c in self.fake.containers_made.items() if c["Names"] == [f"/{name}"])


class _Networks:
    """Both ``client.networks`` and ``client.api.networks(...)``."""

    def __init__(self, fake: FakeDocker) -> None:
        self.fake = fake

    def __call__(self, names: list[str] | None = None, filters: dict[str, list[str]] | None = None) -> list[Any]:
        self.fake.called("networks")
        wanted = (filters or {}).get("label", [])
        return [n for n in list(self.fake.networks_made.values()) if _carries(n["Labels"], wanted)]

    def create(self, name: str, *, labels: dict[str, str], **_: Any) -> None:
        self.fake.called("create network")
        network_id = next(self.fake._ids)
        self.fake.networks_made[network_id] = {"Id": network_id, "Name": name, "Labels": labels}


def _carries(labels: dict[str, str], wanted: list[str]) -> bool:
    return all(labels.get(w.partition("=")[0]) == w.partition("=")[2] if "=" in w else w in labels for w in wanted)
