"""What a job returned, in a file for the launcher that waits for it; Hydra itself does not import this module."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback


class KeepJobReturn(Callback):  # type: ignore[misc]  # Hydra has no types
    """Writes the ``JobReturn`` of a job into an existing folder, where the launcher reads it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def on_job_end(self, config: Any, job_return: JobReturn, **kwargs: Any) -> None:  # noqa: ARG002  # Hydra's signature
        """Write what the job returned or raised; Hydra calls this in the job."""
        path = _path(self._folder, config.hydra.job.num)
        try:
            data = pickle.dumps(job_return)
        except Exception as e:  # whatever a value of the program's raises
            job_return = JobReturn(overrides=job_return.overrides, status=JobStatus.FAILED)
            job_return.return_value = RuntimeError(f"what the job returned, or raised, cannot be pickled: {e}")
            data = pickle.dumps(job_return)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_bytes(data)
        new.replace(path)


def read(folder: str, number: int) -> JobReturn | None:
    """Return what a job has left there; None when there is nothing."""
    try:
        return pickle.loads(_path(Path(folder), number).read_bytes())  # noqa: S301  # a job of ours wrote it
    except OSError:
        return None


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number}.pickle"
