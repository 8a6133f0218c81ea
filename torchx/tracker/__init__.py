"""Records the results of a job: metadata, artifacts, and the runs they came from.

In a job::

    from torchx.tracker import app_run_from_env

    app_run = app_run_from_env()
    app_run.add_metadata(accuracy=0.98)
    app_run.add_artifact("model", "s3://bucket/model.pt")

The trackers are configured where the job is launched, in ``.torchxconfig``.
"""

from __future__ import annotations

from torchx.tracker.api import AppRun

__all__ = ["AppRun", "app_run_from_env"]


def app_run_from_env() -> AppRun:
    """Return the run that this process is part of; see :meth:`torchx.tracker.api.AppRun.run_from_env`."""
    return AppRun.run_from_env()
