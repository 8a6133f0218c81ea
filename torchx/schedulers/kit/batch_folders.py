"""A door for plugins: these names live in :mod:`torchx.schedulers.batch.folders` now."""

from torchx.schedulers.batch.folders import JobFolder, JobFolders, folder_name

__all__ = ["JobFolder", "JobFolders", "folder_name"]
