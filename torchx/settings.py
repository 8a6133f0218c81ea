"""Names of the environment variables that torchx reads, and the paths derived from them."""

import os
import stat

ENV_HOME = "TORCHX_HOME"
"""Directory of torchx's own files: run registry, local jobs, caches. Default ``~/.torchx``. A relative path is resolved
against the current directory."""

ENV_CONFIG = "TORCHXCONFIG"
"""Path of the only ``.torchxconfig`` to read, instead of the home and project files."""

ENV_PROFILE = "TORCHX_PROFILE"
"""Default of ``--profile``, which selects the ``[scheduler@profile]`` sections."""

ENV_TRUST = "TORCHX_TRUST"
"""Set to 1 to let the config file of any directory run programs; see ``config/trust.py``."""

ENV_IMAGE = "TORCHX_IMAGE"
"""Default container image. Backends set it inside a job to the image in use, so that nested jobs inherit it."""

ENV_IMAGE_DIGEST = "TORCHX_IMAGE_DIGEST"
"""Set inside a job if known: the digest of the image of its replicas; see ``specs/images.py``."""

ENV_WORKSPACE_HASH = "TORCHX_WORKSPACE_HASH"
"""Set inside a job whose code comes from a workspace: the hash of that code."""

ENV_SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
"""Session id of the events of a program and its child processes; generated if unset."""

ENV_JOB_ID = "TORCHX_JOB_ID"
"""Set inside a job: its handle, for trackers."""

ENV_REPLICA_ID = "TORCHX_REPLICA_ID"
"""Set inside a job: the number of the replica within its role, from 0."""

ENV_ROLE_NAME = "TORCHX_ROLE_NAME"
"""Set inside a job: the name of the replica's role."""

ENV_PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
"""Set inside a job launched with ``--parent_run_id``: that id, for lineage."""

ENV_TRACKERS = "TORCHX_TRACKERS"
"""Set inside a job: the comma-separated names of its trackers."""

ENV_LOCAL_RETENTION_DAYS = "TORCHX_LOCAL_RETENTION_DAYS"
"""Finished local runs older than this many days are removed (default 30; 0 keeps all)."""

ENV_LOCAL_RETENTION_GB = "TORCHX_LOCAL_RETENTION_GB"
"""Finished local runs are removed, oldest first, above this total size (default 20; 0 keeps all)."""

ENV_CHECKPOINT = "TORCHX_CHECKPOINT_NOW"
"""A file whose creation or change asks the ranks to write a checkpoint; see ``torchx.distributed``."""

ENV_PROGRESS = "TORCHX_PROGRESS"
"""A file that a job touches to report progress; see ``torchx.distributed.progress``."""

ENV_STEPS = "TORCHX_STEPS"
"""Set inside a job: the file for the steps of a replica's ranks; see ``torchx/distributed/pace.py``."""

ENV_STRAGGLER = "TORCHX_STRAGGLER_S"
"""Seconds after which a rank that takes 1.8 times the median time of a step counts as slow (default 300)."""

STEPS_SLOT = 4096
"""Bytes of the record of one rank in that file."""

STEPS_LINE = "::torchx progress"
"""Start of a line on stdout that reports a step: ``::torchx progress step=7 total=100``."""

SAMPLE_S = 15.0
"""Default interval in seconds between two samples of resource usage; ``[metrics]`` of the config files overrides it."""

FIRST_SAMPLE_S = 1.0
"""Age in seconds at which a job has its first sample; the sampler, which runs without torchx, has its own copy."""


class Switch:
    """A variable that is set to 1 in the environment, or the ``option`` of the command that runs now.

    >>> Switch("TORCHX_NO_CHECK").is_on()
    False
    """

    def __init__(self, variable: str) -> None:
        self.variable = variable
        self.option = False

    def is_on(self) -> bool:
        """Whether the option was given, or the variable is set."""
        return self.option or os.environ.get(self.variable, "0") not in ("", "0")


ALLOW_PRIVATE_WORKSPACE = Switch("TORCHX_ALLOW_PRIVATE_WORKSPACE")
"""Allows a home directory, or one with credentials, as workspace (``--allow-private-workspace``)."""

NO_CHECK = Switch("TORCHX_NO_CHECK")
"""Submits jobs that the pre-submit checks reject (``torchx run --no-check``)."""


def default_image() -> str:
    """Return the default image of components, ``$TORCHX_IMAGE``; empty: backends that need an image ask for one."""
    return os.environ.get(ENV_IMAGE, "")


def torchx_home(*parts: str) -> str:
    """Return a path below the torchx home directory, without creating it.

    >>> torchx_home("runs").endswith("runs")
    True
    """
    top = os.environ.get(ENV_HOME) or os.path.expanduser("~/.torchx")
    if not top.startswith("/"):  # processes that outlive this one have another working directory
        top = os.path.abspath(top)
    return "/".join((top.rstrip("/"), *parts)) if parts else top


def make_private(path: str) -> None:
    """Create a folder and its missing parents with mode 0700, whatever the umask.

    Existing folders below torchx's home get mode 0700 too; the home itself only loses write access for others. Anybody
    with write access could plant jobs and code that torchx would trust.

    Raises:
        OSError: the folder cannot be created, or a folder below torchx's home belongs to another user.
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
