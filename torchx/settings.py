"""Names of the environment variables that torchx reads, and the places they point to."""

import os
import stat

ENV_HOME = "TORCHX_HOME"
"""Where torchx keeps its own files: run registry, local jobs, caches. Default ``~/.torchx``. A relative path is below
the current directory, so another one in each directory."""

ENV_CONFIG = "TORCHXCONFIG"
"""Path of the one ``.torchxconfig`` to read instead of the home and project files."""

ENV_PROFILE = "TORCHX_PROFILE"
"""Default of ``--profile``: which ``[scheduler@profile]`` sections apply."""

ENV_IMAGE = "TORCHX_IMAGE"
"""Default container image. Backends also set it inside a job to the image in use,
so that a job launched from within a job keeps its parent's image."""

ENV_IMAGE_DIGEST = "TORCHX_IMAGE_DIGEST"
"""Set inside a job, where it is known: digest of the image that its replicas run, see ``specs/images.py``."""

ENV_WORKSPACE_HASH = "TORCHX_WORKSPACE_HASH"
"""Set inside a job whose code came from a workspace: hash of that code."""

ENV_SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
"""Id that events carry, the same in a program and in those that it starts; made when there is none."""

ENV_JOB_ID = "TORCHX_JOB_ID"
"""Set inside a job: its handle, for trackers."""

ENV_PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
"""Set inside a job that was launched with ``--parent_run_id``: that id, for lineage."""

ENV_TRACKERS = "TORCHX_TRACKERS"
"""Set inside a job: names of its trackers, separated by commas."""

ENV_NO_COLOR = "NO_COLOR"
"""No colours in the output when it is set and not empty."""

ENV_LOCAL_RETENTION_DAYS = "TORCHX_LOCAL_RETENTION_DAYS"
"""Finished local runs older than this many days are removed (default 30; 0 keeps all)."""

ENV_LOCAL_RETENTION_GB = "TORCHX_LOCAL_RETENTION_GB"
"""Finished local runs are removed, oldest first, above this total size (default 20; 0 keeps all)."""

ENV_CHECKPOINT = "TORCHX_CHECKPOINT_NOW"
"""A file that appears, or changes, when the ranks shall write a checkpoint; see ``torchx.distributed``."""

ENV_PROGRESS = "TORCHX_PROGRESS"
"""A file that a job touches when it has achieved something; see ``torchx.distributed.progress``."""

SAMPLE_S = 15.0
"""Seconds between two samples of what replicas use, unless ``[metrics]`` of the config files says otherwise."""

ENV_ALLOW_PRIVATE_WORKSPACE = "TORCHX_ALLOW_PRIVATE_WORKSPACE"
"""Set to 1: a workspace may be a home directory, and hold credentials; ``torchx run --allow-private-workspace``."""

ENV_NO_CHECK = "TORCHX_NO_CHECK"
"""Set to 1: jobs are submitted although a check refuses them; ``torchx run --no-check``."""

# The newest image published under this name. The tag follows a published image,
# not our version: an image that does not exist cannot run a job.
PUBLISHED_IMAGE = "ghcr.io/pytorch/torchx:0.7.0"


def default_image() -> str:
    """The default image of components: ``$TORCHX_IMAGE`` or the published one."""
    return os.environ.get(ENV_IMAGE) or PUBLISHED_IMAGE


def torchx_home(*parts: str) -> str:
    """Path below the torchx home directory; nothing is created.

    >>> torchx_home("runs").endswith("runs")
    True
    """
    top = os.environ.get(ENV_HOME) or os.path.expanduser("~/.torchx")
    if not top.startswith("/"):  # what outlives this process has other ideas of where it is
        top = os.path.abspath(top)
    return "/".join((top.rstrip("/"), *parts)) if parts else top


def make_private(path: str) -> None:
    """Make a folder, and those above it that are missing: open to their owner alone, whatever the umask.

    Below torchx's home, folders that are there already are made so, too; of the home itself only writing is taken from
    others. Who can write there could give us jobs and code that we take for our own.

    Raises:
        OSError: it cannot be made, or a folder below torchx's home belongs to somebody else.
    """
    home, parent = torchx_home(), os.path.dirname(path)
    if path.startswith(home + os.sep) or (parent not in ("", path) and not os.path.isdir(parent)):
        make_private(parent)
    try:
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)
    except FileExistsError:
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise
        ours, mode = found.st_uid == os.geteuid(), stat.S_IMODE(found.st_mode)
        if path.startswith(home + os.sep):
            if not ours:
                import errno

                raise PermissionError(errno.EPERM, "it belongs to another user", path) from None
            if mode & 0o077:
                os.chmod(path, 0o700)
        elif path == home and ours and mode & 0o022 and not mode & stat.S_ISVTX:
            os.chmod(path, mode & ~0o022)
