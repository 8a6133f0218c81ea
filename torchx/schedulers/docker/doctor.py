"""What keeps containers from running: the engine, room on its disk, GPUs, and the images and sizes of a job."""

from __future__ import annotations

import functools
import os

from torchx.errors import BackendError, TransientError
from torchx.schedulers.docker.errors import engine_errors, is_missing
from torchx.schedulers.findings import BAD, GOOD, UNKNOWN, Check, Finding, disk_space
from torchx.schedulers.findings.images import image_checks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from torchx.specs.api import AppDryRunInfo

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NO_TOOLKIT = "install the NVIDIA container toolkit; `docker run --rm --gpus all ubuntu nvidia-smi` shows when it works"


def checks(connect: Callable[[], Any], job: AppDryRunInfo[Any] | None) -> list[Check]:
    """The questions about an engine, or about one job on it.

    Args:
        connect: returns a ``docker.DockerClient``.
    """

    @functools.cache
    def engine() -> dict[str, Any]:
        with engine_errors("the engine cannot be asked"):
            found: dict[str, Any] = connect().info()
        return found

    if job is None:
        return [
            Check("engine", lambda: _engine(engine)),
            Check("disk", lambda: _disk(engine())),
            Check("GPUs", lambda: _gpus(engine())),
        ]

    def has(image: str) -> bool:
        try:
            with engine_errors("the engine cannot be asked"):
                return bool(connect().api.inspect_image(image))
        except BackendError as e:
            if e.__cause__ is not None and is_missing(e.__cause__):
                return False
            raise

    def architectures() -> set[str]:
        name = str(engine().get("Architecture") or "")
        return {_ARCHITECTURES.get(name, name)} - {""}

    return [
        Check("engine", lambda: _engine(engine)),
        Check("size", lambda: _sizes(engine(), job)),
        *image_checks(job, architectures, has),
    ]


def _engine(engine: Callable[[], dict[str, Any]]) -> Finding:
    try:
        found = engine()
    except TransientError:
        raise
    except BackendError as e:  # nobody listens, or it lets nobody in
        return Finding(BAD, "engine", str(e), e.hint or "`sudo systemctl start docker`, or `DOCKER_HOST=...`")
    return Finding(
        GOOD, "engine", f"{found.get('ServerVersion')} on {found.get('OperatingSystem')}, {found.get('NCPU')} CPUs"
    )


def _is_here(found: dict[str, Any]) -> bool:
    """Whether the engine's machine is this one, and its files and devices are those that are seen here."""
    socket = (os.environ.get("DOCKER_HOST") or "unix:").startswith("unix:")
    return socket and "Desktop" not in str(found.get("OperatingSystem")) and not os.path.exists("/.dockerenv")


def _disk(found: dict[str, Any]) -> Finding:
    root = str(found.get("DockerRootDir") or "")
    if not _is_here(found) or not os.path.isdir(root):
        return Finding(UNKNOWN, "disk", f"`{root}` of the engine cannot be seen from here")
    return disk_space(root, "`docker system df` shows what takes it, `docker image prune` removes images")


def _gpus(found: dict[str, Any]) -> Finding:
    if "nvidia" in (found.get("Runtimes") or {}) or found.get("CDISpecDirs"):
        return Finding(GOOD, "GPUs", "the engine has a runtime for them")
    if _is_here(found) and not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))):
        return Finding(UNKNOWN, "GPUs", "the engine's machine has none: jobs that ask for GPUs do not start")
    return Finding(UNKNOWN, "GPUs", "the engine names no runtime for them, and may have one all the same", _NO_TOOLKIT)


def _sizes(found: dict[str, Any], job: AppDryRunInfo[Any]) -> Iterator[Finding]:
    for role in job._app.roles if job._app is not None else []:
        what, cpus = f"size of role `{role.name}`", int(found.get("NCPU") or 0)
        if cpus and role.resource.cpu > cpus:
            yield Finding(
                BAD, what, f"{role.resource.cpu} CPUs, and the engine's machine has {cpus}", f"`--cpu {cpus}`"
            )
        elif role.resource.gpu > 0 and "has none" in (gpus := _gpus(found)).said:
            yield Finding(BAD, what, f"{role.resource.gpu} GPUs: {gpus.said}", "`--gpu 0`, or another `-s`")
        else:
            yield Finding(GOOD, what, "the engine's machine is large enough")
