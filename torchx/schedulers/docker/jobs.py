"""The jobs on an engine: found by their labels, watched, ended and removed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from torchx.schedulers.docker import client, gangs, watchers
from torchx.schedulers.docker.containers import LABEL_APP_ID, Job, jobs_of
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.settings import SAMPLE_S
from torchx.specs.api import AppState
from torchx.util.notices import logger
from torchx.workspace.images.engine_errors import engine_errors

_CANCELS = 10  # a watcher may just start replicas again; and an engine lists an end a moment after it has reported it


class EngineJobs:
    """The jobs on one engine, whoever submitted them.

    Args:
        engine: returns a ``docker.DockerClient``.
        given: the client that a program has made by itself; None: it is made from the environment.
    """

    def __init__(self, engine: Callable[[], Any], given: Any | None) -> None:
        self.engine = engine
        self.given = given

    def find(self, app_id: str, doing: str) -> Job | None:
        """A job, which has a watcher then if it needs one; None when the engine does not have it.

        Args:
            doing: what fails when the engine does not answer, as the beginning of a sentence.
        """
        return self.find_all([app_id], doing, f"{LABEL_APP_ID}={app_id}").get(app_id)

    def find_all(self, wanted: Iterable[str] | None, doing: str, label: str = LABEL_APP_ID) -> dict[str, Job]:
        """These jobs (None: all), as far as the engine has them, by one call; see :meth:`find`."""
        with engine_errors(doing):
            found = self.listed(label)
        chosen = found if wanted is None else {a: found[a] for a in wanted if a in found}
        for job in chosen.values():
            self._attend(job)
        return chosen

    def listed(self, label: str = LABEL_APP_ID) -> dict[str, Job]:
        """The jobs with a label. An engine that is just being restarted is waited for, once it has answered."""
        filters = {"label": [label]}
        # The client's library takes longer to import than the engine to answer.
        environ = None if "docker" in sys.modules else self.environment()
        if environ is not None:
            try:
                return jobs_of(EngineHttp(environ).get("/containers/json", {"all": 1, "filters": json.dumps(filters)}))
            except TimeoutError:
                raise
            except (OSError, RefusedError):
                pass  # the client waits for an engine that is being restarted, and says what is wrong with the others
        api = self.engine().api
        return jobs_of(client.patiently(lambda: api.containers(all=True, filters=filters)))

    # -- the end ---------------------------------------------------------------------------------

    def cancel(self, app_id: str) -> None:
        """End what runs, all at once: SIGTERM, and SIGKILL after the grace period. Containers and logs are kept."""
        ours: set[str] = set()
        for attempt in range(_CANCELS):
            if attempt > 1:
                client.pause(attempt)
            job = self.listed(f"{LABEL_APP_ID}={app_id}").get(app_id)
            if job is None:
                return
            ours |= {c.id for c in job.containers if gangs.goes_on(job, c)}
            left = [c for c in job.containers if c.id in ours and c.state is not AppState.CANCELLED]
            if not left:
                return
            client.stop_all(self.engine(), self.environment(), left, gangs.rules_of(job).grace_s)

    def remove(self, app_id: str) -> None:
        """Remove all that carries the job's label; a job that runs is ended at once."""
        engine = self.engine()
        label = f"{LABEL_APP_ID}={app_id}"
        ids = [c["Id"] for c in engine.api.containers(all=True, filters={"label": [label]})]
        client.side_by_side(lambda i: client.remove(engine, i), ids)
        client.remove_networks(engine, [label], keep=set())

    # -- watchers --------------------------------------------------------------------------------

    def environment(self) -> dict[str, str] | None:
        """The environment that leads another process to the engine; None when only this program can reach it."""
        return watchers.engine_environment(self.given, os.environ)

    def place(self) -> str:
        """Where a watcher of a job that is submitted now runs; empty where it can have none."""
        return watchers.place() if self.environment() is not None else ""

    def watch(self, app_id: str, every_s: float = SAMPLE_S, *, later: bool = False) -> watchers.Starting | None:
        """A watcher for a job; None, after a warning, when there can be none. See :func:`watchers.start`."""
        environ = self.environment()
        why = "only this program knows the way to its engine"
        try:
            if environ is not None:
                return watchers.start(app_id, environ, every_s, later=later)
        except OSError as e:
            why = f"no process can be started: {e.strerror}"
        harm = "When a replica fails, the others run on, and are not started again"
        harm = "What it uses is not looked at" if later else harm
        text = f"nobody watches `%s`: %s. {harm}"
        logger("torchx").warning(text, app_id, why)
        return None

    def _attend(self, job: Job) -> None:
        """A job that has lost its watcher, here, gets another one. A submission has its own."""
        submitting = any(c.state is AppState.SUBMITTED for c in job.containers)
        if not submitting and gangs.needs_watcher(job) and gangs.rules_of(job).place == watchers.place():
            watcher = None if watchers.lives(job.app_id) else self.watch(job.app_id)
            if watcher is not None:
                from torchx.schedulers.notices import sender_of

                watcher.go(sender_of("local_docker", job.app_id))
