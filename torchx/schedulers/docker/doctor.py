"""Checks of ``torchx doctor`` for a Docker engine: reachability, disk, GPUs, and the images and sizes of a job."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

from torchx.errors import BackendError
from torchx.schedulers.kit.findings import Check, Finding, bad, disk_space, doubt, once
from torchx.schedulers.kit.findings.images import image_checks
from torchx.specs.api import AppDryRunInfo, Role
from torchx.workspace.images.engine_errors import engine_errors, is_missing

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_START = "`sudo systemctl start docker`, or `DOCKER_HOST=...`"
_NO_TOOLKIT = "install the NVIDIA container toolkit; `docker run --rm --gpus all ubuntu nvidia-smi` shows when it works"
_NO_GPUS = "the engine's machine has none: jobs that ask for GPUs do not start"


def checks(connect: Callable[[], Any], job: AppDryRunInfo[Any] | None) -> list[Check]:
    """Check of the engine of the ``docker.DockerClient`` that ``connect`` returns, or of one job on it."""

    def query(call: Callable[[Any], Any]) -> Any:
        with engine_errors("the engine cannot be queried"):
            return call(connect())

    engine = once(lambda: query(lambda client: client.info()))
    first = Check("engine", lambda: _about(engine()), certain=(BackendError,), fix=_START, vital=True)
    if job is None:
        return [first, Check("disk", lambda: _disk(engine())), Check("GPUs", lambda: _gpus(engine()))]

    def has(image: str) -> bool:
        try:
            return bool(query(lambda client: client.api.inspect_image(image)))
        except BackendError as e:
            if e.__cause__ is not None and is_missing(e.__cause__):
                return False
            raise

    def architectures() -> set[str]:
        name = str(engine().get("Architecture") or "")
        return {_ARCHITECTURES.get(name, name)} - {""}

    roles = job._app.roles if job._app is not None else []
    sizes = [Check(f"size of role `{role.name}`", partial(lambda r: _size(engine(), r), role)) for role in roles]
    return [first, *sizes, *image_checks(job, architectures, has)]


def _about(found: dict[str, Any]) -> str:
    return f"{found.get('ServerVersion')} on {found.get('OperatingSystem')}, {found.get('NCPU')} CPUs"


def is_here(found: dict[str, Any]) -> bool:
    """Whether the engine runs on this machine, so that this process sees its files and devices."""
    socket = (os.environ.get("DOCKER_HOST") or "unix:").startswith("unix:")
    return socket and "Desktop" not in str(found.get("OperatingSystem")) and not os.path.exists("/.dockerenv")


def _disk(found: dict[str, Any]) -> Finding:
    root = str(found.get("DockerRootDir") or "")
    if not is_here(found) or not os.path.isdir(root):
        return doubt(f"`{root}` of the engine is not visible from here")
    return disk_space(root, "`docker system df` shows what uses it, `docker image prune` removes images")


def _gpus(found: dict[str, Any]) -> str | Finding:
    if "nvidia" in (found.get("Runtimes") or {}) or found.get("CDISpecDirs"):
        return "the engine has a runtime for them"
    if is_here(found) and not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))):
        return doubt(_NO_GPUS)
    return doubt("the engine lists no runtime for them, but may have one all the same", _NO_TOOLKIT)


def _size(found: dict[str, Any], role: Role) -> str | Finding:
    cpus = int(found.get("NCPU") or 0)
    if cpus and role.resource.cpu > cpus:
        return bad(f"{role.resource.cpu} CPUs, and the engine's machine has {cpus}", f"`--cpu {cpus}`")
    if role.resource.gpu > 0 and _gpus(found) == doubt(_NO_GPUS):
        return bad(f"{role.resource.gpu} GPUs: {_NO_GPUS}", "`--gpu 0`, or another `-s`")
    return "the engine's machine is large enough"
