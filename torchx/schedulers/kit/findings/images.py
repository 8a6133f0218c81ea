"""Checks whether the image of a role is in its registry and built for the machines' architecture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torchx.errors import NotFoundError, SpecError
from torchx.schedulers.kit.findings import Check, Finding, bad, doubt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torchx.specs.api import AppDryRunInfo

    Machines = Callable[[], set[str]]
    Elsewhere = Callable[[str], bool | None]


def image_checks(
    job: AppDryRunInfo[Any], architectures: Machines, elsewhere: Elsewhere = lambda _: False
) -> Iterator[Check]:
    """Return a check for each image of a job, or for its base image if the code will be built into it.

    ``architectures`` returns those of the machines, such as ``amd64``; empty if unknown. ``elsewhere`` returns whether
    the machines have an image already; None if unknown.
    """
    roles = job._app.roles if job._app is not None else []
    images = {job.submission.tags.get(f"image.{role.name}") or role.image: role.name for role in roles}
    for image, role in images.items():
        ask = partial(_look, image, architectures, elsewhere)
        yield Check(f"image of role `{role}`", ask, certain=(SpecError,))


def _look(image: str, architectures: Machines, elsewhere: Elsewhere) -> str | Finding:
    held = elsewhere(image)
    if held:
        return f"`{image}` is where it will run"
    try:
        there = _architectures(image)
    except NotFoundError as e:
        fix = f"`docker push {image}`, or another name: `--image HOST/NAME:TAG`"
        return doubt(str(e), fix) if held is None else bad(str(e), fix)
    wanted, offered = architectures(), ", ".join(sorted(there))
    if wanted and there and not wanted & there:
        said = f"`{image}` is for {offered}, and the machines are {', '.join(sorted(wanted))}"
        return bad(said, f"`docker buildx build --platform linux/{min(wanted)} --push -t {image} .`")
    return f"`{image}` is in its registry" + (f", for {offered}" if there else "")


def _architectures(image: str) -> set[str]:
    """Return the architectures for which the image has a variant; empty if it does not declare any."""
    from contextlib import closing

    from torchx.util.foreign import loads, reading
    from torchx.workspace.images.names import ImageName
    from torchx.workspace.images.registry import Registry

    name = ImageName.parse(image)
    with closing(Registry(name.registry)) as registry, reading(f"the registry's answer for `{image}`"):
        manifest = loads(registry.manifest(name).content)
        if "manifests" in manifest:
            platforms = [variant.get("platform") or {} for variant in manifest["manifests"]]
        else:
            platforms = [loads(registry.blob(name.repository, manifest["config"]["digest"]))]
        return {str(platform.get("architecture") or "unknown") for platform in platforms} - {"unknown"}
