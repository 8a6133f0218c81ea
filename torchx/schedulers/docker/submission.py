"""Submits a job to an engine: all of its containers are started, or none is left."""

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
    """Role -> digest of its image; images that the engine does not have are pulled."""
    images = {container.role: container.image for container in job.containers}
    digests = {image: client.pull(jobs.engine(), image) for image in dict.fromkeys(images.values())}
    return {role: digests[image] for role, image in images.items()}


def start(
    jobs: EngineJobs, job: DockerJob, known: dict[str, str], at_end: bytes = b"", sample_s: float | None = None
) -> None:
    """Make network and containers, and start them, rank 0 first.

    Args:
        known: values of secrets that were looked up.
        at_end: the program that its watcher runs when the job has ended.
        sample_s: seconds between two samples of what its containers use; 0: none are taken; None: as ever.

    Raises:
        BackendError: the engine refused. What had been made is removed.
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
        client.make_network(engine, job.app_id, labels, busy=lambda: _going_on(jobs))
    made = client.side_by_side(lambda c: client.create(engine, c, revealed(c.secret, known)), job.containers)
    first, *others = zip(made, job.containers, strict=True)  # the others look for its name at once
    client.start(first)
    client.side_by_side(client.start, others)


def _going_on(jobs: EngineJobs) -> set[str]:
    """Ids of jobs that have not ended. Their networks must stay: a container that is being restarted is on none."""
    return {a for a, job in jobs.listed().items() if any(not is_terminal(c.state) for c in job.containers)}


def _undo(jobs: EngineJobs, app_id: str) -> None:
    try:
        jobs.remove(app_id)
    except Exception as e:  # what went wrong before is more important
        logger("torchx").warning("parts of `%s` remain; `torchx delete` removes them: %s", app_id, e)
