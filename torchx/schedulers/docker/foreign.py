"""Containers that torchx did not create: each is a job of one replica, whose role has the container's name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from torchx.schedulers.api import DescribeAppResponse, Scheduler
from torchx.schedulers.docker import client
from torchx.schedulers.docker.containers import LABEL_APP_ID, Job, parse_container, read_container
from torchx.schedulers.kit.foreign import ForeignJobs, Named
from torchx.workspace.images.engine_errors import engine_errors

_ID_CHARS = 12
"""Length of the ids that ``docker ps`` shows. Names are not used as ids: another container may reuse a name."""

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_NUMBER = re.compile(r"\d{1,11}")


class ForeignContainers(ForeignJobs):
    """A view of :class:`torchx.schedulers.docker_scheduler.DockerScheduler` for containers of others."""

    _client: Any  # the scheduler's

    def find(self, reference: str) -> Named | None:
        if not _NAME.fullmatch(reference) or _NUMBER.fullmatch(reference):  # a number is a job id of another scheduler
            return None
        name = reference.replace(".", "[.]")  # a regular expression
        named = self._listed({"name": [f"^/{name}$"]}, f"`{reference}` cannot be looked up")
        named = named or self._listed({"id": [reference]}, f"`{reference}` cannot be looked up")
        if len(named) != 1:
            return None
        ours = parse_container(named[0])
        if ours is not None:
            return Named(ours.labels[LABEL_APP_ID], ours=True)
        return Named(str(named[0]["Id"])[:_ID_CHARS])

    def about(self, app_id: str) -> dict[str, str]:
        for summary in self._listed({"id": [app_id]}, f"`{app_id}` cannot be looked up"):
            facts = {"name": _name(summary), "image": str(summary.get("Image") or "")}
            return {**facts, "command": str(summary.get("Command") or "")}
        return {}

    def describe_many(self, app_ids: Iterable[str]) -> dict[str, DescribeAppResponse | None]:
        return {app_id: self.describe(app_id) for app_id in app_ids}

    wait_for_end = Scheduler.wait_for_end  # DockerScheduler's filters events by torchx's labels

    def _find(self, app_id: str, doing: str) -> Job | None:
        found = self._listed({"id": [app_id]}, doing % app_id)
        return Job(app_id, [read_container(found[0], _name(found[0]), 0)]) if found else None

    def _listed(self, filters: dict[str, list[str]], doing: str) -> list[dict[str, Any]]:
        with engine_errors(doing):
            found: list[dict[str, Any]] = client.patiently(
                lambda: self._client.api.containers(all=True, filters=filters)
            )
        return found

    def _cancel_existing(self, app_id: str) -> None:
        with engine_errors(f"`{app_id}` could not be stopped"):
            self._client.api.stop(app_id)

    def _delete_existing(self, app_id: str) -> None:
        with engine_errors(f"`{app_id}` could not be removed"):
            client.remove(self._client, app_id)


def _name(summary: dict[str, Any]) -> str:
    return str(next(iter(summary.get("Names") or ()), "")).rpartition("/")[2]
