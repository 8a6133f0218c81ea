"""A door for plugins: these names live in :mod:`torchx.schedulers.batch.base` now."""

from torchx.schedulers.batch.base import BatchScheduler, Site, Submission

__all__ = ["BatchScheduler", "Site", "Submission"]
