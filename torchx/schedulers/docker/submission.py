"""Submits a job to an engine: starts all of its containers, or removes what it has created."""

from __future__ import annotations

from torchx.schedulers.docker import client
from torchx.schedulers.docker.containers import LABEL_APP_ID, LABEL_VERSION
from torchx.schedulers.docker.jobs import EngineJobs
from torchx.schedulers.docker.request import DockerJob
from torchx.schedulers.kit.secrets import revealed
from torchx.settings import SAMPLE_S
from torchx.specs.api import is_terminal
from torchx.util.notices import logger
from torchx.version import __version__
from torchx.workspace.images.engine_errors import engine_errors


def find_images(jobs: EngineJobs, job: DockerJob) -> dict[str, str]:
    """Role -> digest of its image. Pulls the images that the engine does not have."""
    images = {container.role: container.image for container in job.containers}
    digests = {image: client.pull(jobs.engine(), image) for image in dict.fromkeys(images.values())}
    return {role: digests[image] for role, image in images.items()}


def start(
    jobs: EngineJobs, job: DockerJob, known: dict[str, str], at_end: bytes = b"", sample_s: float | None = None
) -> None:
    """Creates the network and the containers, and starts them, rank 0 first.

    Args:
        known: values of resolved secrets.
        at_end: the program that the job's watcher runs when the job has ended.
        sample_s: seconds between two samples of resource usage; 0: no samples; None: the default.

    Raises:
        BackendError: the engine refused; what had been created is removed.
    """
    watched = len(job.containers) > 1 or job.rules.place or (at_end and jobs.place())
    every_s = SAMPLE_S if sample_s is None else sample_s
    watcher = jobs.watch(job.app_id, every_s) if watched else None
    try:
        _start(jobs, job, known)
    except BaseException:
        _undo(jobs, job.app_id)
        if watcher is not None:
            watcher.drop()
        raise
    if not watched and every_s and jobs.place():
        watcher = jobs.watch(job.app_id, every_s, later=True)
    if watcher is not None:
        watcher.go(at_end)


def _start(jobs: EngineJobs, job: DockerJob, known: dict[str, str]) -> None:
    engine = jobs.engine()
    with engine_errors(f"the network of job `{job.app_id}` could not be made"):
        labels = {LABEL_APP_ID: job.app_id, LABEL_VERSION: __version__}
        client.make_network(engine, job.app_id, labels, busy=lambda fresh: _live_jobs(jobs, fresh))
    made = client.side_by_side(lambda c: client.create(engine, c, revealed(c.secret, known)), job.containers)
    first, *others = zip(made, job.containers, strict=True)  # the others resolve its name as soon as they start
    client.start(first)
    client.side_by_side(client.start, others)


def _live_jobs(jobs: EngineJobs, fresh: set[str]) -> set[str]:
    """Ids of jobs that have not ended. Their networks look unused while a container is being restarted.

    ``fresh``: jobs whose networks were just created; another process may be about to create the containers.
    """
    listed = jobs.listed()
    live = {a for a, job in listed.items() if any(not is_terminal(c.state) for c in job.containers)}
    return live | (fresh - listed.keys())


def _undo(jobs: EngineJobs, app_id: str) -> None:
    try:
        jobs.remove(app_id)
    except Exception as e:  # the caller raises the original error
        logger("torchx").warning("parts of `%s` remain; `torchx delete` removes them: %s", app_id, e)
