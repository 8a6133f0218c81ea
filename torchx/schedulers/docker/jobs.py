"""The jobs on an engine: submits, finds, watches, cancels and removes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torchx.schedulers.docker import client, gangs, watchers
from torchx.schedulers.docker.containers import LABEL_APP_ID, LABEL_VERSION, Job, jobs_of, list_jobs
from torchx.schedulers.docker.plain_http import EngineHttp, RefusedError
from torchx.schedulers.kit.secrets import revealed
from torchx.settings import SAMPLE_S
from torchx.specs.api import AppState, Submission, is_terminal
from torchx.util.foreign import reading
from torchx.util.notices import logger
from torchx.version import __version__
from torchx.workspace.images.engine_errors import engine_errors

if TYPE_CHECKING:
    from torchx.schedulers.docker.request import DockerJob

_CANCELS = 10  # a watcher may be restarting replicas, and an engine lists an exit a moment after it has reported it


class EngineJobs:
    """The torchx jobs on one engine, whoever submitted them.

    Args:
        engine: returns a ``docker.DockerClient``.
        given: the client that the calling program has passed; None: it is created from the environment.
    """

    def __init__(self, engine: Callable[[], Any], given: Any | None) -> None:
        self.engine = engine
        self.given = given

    def find(self, app_id: str, doing: str) -> Job | None:
        """Find a job, and start a watcher if it has lost its own; ``doing`` begins the message of an error."""
        return self.find_all([app_id], doing, f"{LABEL_APP_ID}={app_id}").get(app_id)

    def find_all(self, wanted: Iterable[str] | None, doing: str, label: str = LABEL_APP_ID) -> dict[str, Job]:
        """Find several jobs (None: all) by one call; see :meth:`find`."""
        with engine_errors(doing):
            found = self.listed(label)
        chosen = found if wanted is None else {a: found[a] for a in wanted if a in found}
        for job in chosen.values():
            self._ensure_watcher(job)
        return chosen

    def listed(self, label: str = LABEL_APP_ID) -> dict[str, Job]:
        """Return the jobs with a label. Waits for an engine that is being restarted."""
        environ = self.environment()  # importing `docker` takes longer than the engine needs to answer
        if environ is not None:
            try:
                return list_jobs(EngineHttp(environ), label)
            except TimeoutError:
                raise
            except (OSError, RefusedError):
                pass  # fall back to `docker`: with it we wait for a restarting engine, and report other errors
        api = self.engine().api
        return jobs_of(client.patiently(lambda: api.containers(all=True, filters={"label": [label]})))

    def find_images(self, job: DockerJob) -> dict[str, str]:
        """Role -> digest of its image. Pulls the images that the engine does not have."""
        images = {container.role: container.image for container in job.containers}
        digests = {image: client.pull(self.engine(), image) for image in dict.fromkeys(images.values())}
        return {role: digests[image] for role, image in images.items()}

    def submit(self, job: DockerJob, info: Submission) -> None:
        """Create the network and the containers, and start them, rank 0 first; or remove what it has created."""
        watched = len(job.containers) > 1 or job.rules.place or (info.at_end and self.place())
        every_s = SAMPLE_S if info.sample_s is None else info.sample_s
        watcher = self.watch(job.app_id, every_s) if watched else None
        try:
            self._start(job, info.secrets)
        except BaseException:
            self._undo(job.app_id)
            if watcher is not None:
                watcher.communicate()  # it cancels what was submitted
            raise
        if not watched and every_s and self.place():
            watcher = self.watch(job.app_id, every_s, later=True)
        if watcher is not None:
            watcher.communicate(watchers.GO + info.at_end)

    def _start(self, job: DockerJob, known: dict[str, str]) -> None:
        engine = self.engine()
        with engine_errors(f"the network of job `{job.app_id}` could not be made"):
            labels = {LABEL_APP_ID: job.app_id, LABEL_VERSION: __version__}
            client.make_network(engine, job.app_id, labels, busy=self._live)
        made = client.side_by_side(lambda c: client.create(engine, c, revealed(c.secret, known)), job.containers)
        now = [pair for pair in zip(made, job.containers, strict=True) if not pair[1].waits]
        first, *others = now  # the others resolve its name as soon as they start
        client.start(first)
        client.side_by_side(client.start, others)

    def _live(self, fresh: set[str]) -> set[str]:
        """Ids of jobs that have not ended. Their networks look unused while a container is being restarted.

        ``fresh``: jobs whose networks were just created; another process may be about to create the containers.
        """
        listed = self.listed()
        live = {a for a, job in listed.items() if any(not is_terminal(c.state) for c in job.containers)}
        return live | (fresh - listed.keys())

    def _undo(self, app_id: str) -> None:
        try:
            self.remove(app_id)
        except Exception as e:  # the caller raises the original error
            logger("torchx").warning("parts of `%s` remain; `torchx delete` removes them: %s", app_id, e)

    def cancel(self, app_id: str) -> None:
        """Stop all running containers at once: SIGTERM, then SIGKILL after the grace period. Keeps their logs."""
        ours: set[str] = set()
        for attempt in range(_CANCELS):
            if attempt > 1:
                client.pause(attempt)
            job = self.listed(f"{LABEL_APP_ID}={app_id}").get(app_id)
            if job is None:
                return
            ours |= {c.id for c in job.containers if gangs.is_alive(job, c)}
            left = [c for c in job.containers if c.id in ours and c.state is not AppState.CANCELLED]
            if not left:
                return
            client.stop_all(self.engine(), self.environment(), left, gangs.rules_of(job).grace_s, cancelled=True)

    def remove(self, app_id: str) -> None:
        """Remove all containers and networks of a job; a running job is killed."""
        engine = self.engine()
        label = f"{LABEL_APP_ID}={app_id}"
        containers = engine.api.containers(all=True, filters={"label": [label]})
        with reading("the engine's list of containers"):
            ids = [c["Id"] for c in containers]
        client.side_by_side(lambda i: client.remove(engine, i), ids)
        client.remove_networks(engine, [label])

    def environment(self) -> dict[str, str] | None:
        """Return the environment by which another process reaches the engine;
        None if only this process can reach it.
        """
        return watchers.engine_environment(self.given, os.environ)

    def place(self) -> str:
        """Where a watcher that is started now would run; empty if a job cannot have one."""
        return watchers.place() if self.environment() is not None else ""

    def watch(self, app_id: str, every_s: float = SAMPLE_S, *, later: bool = False) -> watchers.Process | None:
        """Start a watcher for a job; logs a warning and return None if it cannot. See :func:`watchers.start`."""
        environ = self.environment()
        why = "only this process can reach its engine"
        try:
            if environ is not None:
                return watchers.start(app_id, environ, every_s, later=later)
        except OSError as e:
            why = f"no process can be started: {e.strerror}"
        harm = "When a replica fails, the others run on, and are not started again"
        harm = "Its resource usage is not recorded" if later else harm
        logger("torchx").warning(f"`%s` has no watcher: %s. {harm}", app_id, why)
        return None

    def _ensure_watcher(self, job: Job) -> None:
        """Start another watcher on this machine for a job that has lost its own; a submission starts its own."""
        submitting = any(c.state is AppState.SUBMITTED for c in job.containers)
        here = gangs.rules_of(job).place == watchers.place()
        if here and not submitting and not gangs.is_over(job):
            watcher = None if watchers.lives(job.app_id) else self.watch(job.app_id)
            if watcher is not None:
                from torchx.schedulers.kit.notices import sender_of

                watcher.communicate(watchers.GO + sender_of("local_docker", job.app_id))
