"""Whether the image of a role is in its registry, and made for the machines that there are."""

from __future__ import annotations

from functools import partial

from torchx.errors import NotFoundError, SpecError
from torchx.schedulers.findings import BAD, GOOD, UNKNOWN, Check, Finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from torchx.specs.api import AppDryRunInfo
    from torchx.workspace.images.names import ImageName
    from torchx.workspace.images.registry import Registry

_UNTOLD = ("", "unknown")


def image_checks(
    job: AppDryRunInfo[Any],
    architectures: Callable[[], set[str]],
    elsewhere: Callable[[str], bool | None] = lambda _: False,
) -> Iterator[Check]:
    """A question about each image of a job: that below the code, where one is going to be built.

    Args:
        architectures: of the machines, as ``amd64``; none where that is not known.
        elsewhere: whether the machines have an image already; None: that cannot be told.
    """
    roles = job._app.roles if job._app is not None else []
    images = {job._tags.get(f"image.{role.name}") or role.image: role.name for role in roles}
    for image, role in images.items():
        what = f"image of role `{role}`"
        yield Check(what, partial(_look, image, what, architectures, elsewhere))


def _look(
    image: str, what: str, architectures: Callable[[], set[str]], elsewhere: Callable[[str], bool | None]
) -> Finding:
    from torchx.workspace.images.names import ImageName
    from torchx.workspace.images.registry import Registry

    held = elsewhere(image)
    if held:
        return Finding(GOOD, what, f"`{image}` is where it will run")
    try:
        name = ImageName.parse(image)
    except SpecError as e:
        return Finding(BAD, what, str(e), e.hint)
    registry = Registry(name.registry)
    try:
        there = _architectures(registry, name)
    except NotFoundError as e:
        fix = f"`docker push {image}`, or another name: `--image HOST/NAME:TAG`"
        return Finding(UNKNOWN if held is None else BAD, what, str(e), fix)
    finally:
        registry.close()
    wanted = architectures()
    if wanted and there and not wanted & there:
        said = f"`{image}` is for {', '.join(sorted(there))}, and the machines are {', '.join(sorted(wanted))}"
        fix = f"`docker buildx build --platform linux/{min(wanted)} --push -t {image} .`"
        return Finding(BAD, what, said, fix)
    return Finding(GOOD, what, f"`{image}` is in its registry" + (f", for {', '.join(sorted(there))}" if there else ""))


def _architectures(registry: Registry, name: ImageName) -> set[str]:
    """For which machines there is a variant of the image; none where it does not say so."""
    import json

    manifest = json.loads(registry.manifest(name).content)
    if "manifests" in manifest:
        found = {str((one.get("platform") or {}).get("architecture", "")) for one in manifest["manifests"]}
    else:
        config = json.loads(registry.blob(name.repository, manifest["config"]["digest"]))
        found = {str(config.get("architecture", ""))}
    return found - {*_UNTOLD}
