"""Reads a base image from its registry: manifest, configuration, and the place for a workspace."""

from __future__ import annotations

import hashlib
import io
import json
import os
import posixpath
import tarfile
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from torchx.errors import NotSupportedError, ParseError, TorchXError
from torchx.util.foreign import loads
from torchx.util.records import dataclass
from torchx.workspace.images.cache import Cache
from torchx.workspace.images.layers import Folder
from torchx.workspace.images.names import ImageName
from torchx.workspace.images.registry import DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST, Manifest, Registry
from torchx.workspace.images.registry_http import Again

DEFAULT_PLATFORM = "linux/amd64"
# To find the owners of the directories above the workspace, we read only small layers of the base image: the layer of
# `WORKDIR` is small, and pulling gigabytes would defeat the purpose.
_SMALL_LAYER = 4 << 20
_MAX_READ = 16 << 20
_MAX_LINKS = 8
_DOCUMENTS = Cache("documents", most=200)  # by digest
_PLACES = Cache("ways", most=200)


@dataclass(frozen=True)
class BaseImage:
    """An image for one platform, with its parsed documents."""

    name: ImageName  # by digest
    manifest: dict[str, Any]
    config: dict[str, Any]
    is_docker: bool  # whether the manifest has Docker's format (version 2, schema 2), else OCI's
    place: str  # working directory without the leading slash, where the workspace goes
    above: list[Folder]  # the directories down to `place`, inclusive

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The manifest's descriptors of the layers, bottom first."""
        return list(self.manifest["layers"])


def resolve(registry: Registry, image: ImageName, platform: str = "") -> BaseImage:
    """Read an image from a registry. Caches documents by digest.

    ``platform`` is ``OS/ARCHITECTURE[/VARIANT]`` of a multi-platform image; by default ``linux/amd64``.

    Raises:
        NotFoundError: there is no such image.
        NotSupportedError: it is not available for the platform, or only an engine can build on it.
        BackendError: the registry rejects the request or fails.
    """
    found = _pinned(registry, image)
    manifest = _parse(found.content, str(image))
    kind = found.media_type or str(manifest.get("mediaType", ""))
    if kind in (OCI_INDEX, DOCKER_INDEX) or "manifests" in manifest:
        digest = _for_platform(manifest, platform or DEFAULT_PLATFORM, image)
        image = ImageName(image.registry, image.repository, digest=digest)
        found = _pinned(registry, image)
        manifest = _parse(found.content, str(image))
        kind = found.media_type or str(manifest.get("mediaType", ""))
    if "config" not in manifest or "layers" not in manifest:
        raise NotSupportedError(
            f"image `{image}` is in an obsolete format (`{kind}`)", hint="push it again with a current Docker"
        )
    name = ImageName(image.registry, image.repository, digest=found.digest)
    config = _parse(_remembered_blob(registry, name, manifest["config"]["digest"]), str(image))
    _check_config(config, platform, image)
    place = os.path.normpath("/" + str((config.get("config") or {}).get("WorkingDir") or "")).lstrip("/")
    place, above = _resolve_place(registry, name, manifest, place)
    is_docker = kind == DOCKER_MANIFEST or (kind != OCI_MANIFEST and "docker" in str(manifest["config"]["mediaType"]))
    return BaseImage(name, manifest, config, is_docker, place, above)


def _pinned(registry: Registry, image: ImageName) -> Manifest:
    """Return the manifest, from the cache if the registry still has the same digest under this name."""
    digest = image.digest or registry.manifest_digest(image)
    known = _recall(digest) if digest else b""
    if known:
        return Manifest("", digest, known)
    found = registry.manifest(image)
    _DOCUMENTS.remember(found.digest, found.content)
    return found


def _for_platform(index: dict[str, Any], platform: str, image: ImageName) -> str:
    wanted = platform.split("/")
    offered = []
    for one in index.get("manifests", []):
        has = one.get("platform") or {}
        parts = [str(has.get("os", "")), str(has.get("architecture", "")), str(has.get("variant", ""))]
        if parts[0] == "unknown":  # an attestation, not an image
            continue
        # A variant matters only if it is requested: `arm64` matches `arm64/v8`.
        if parts[: len(wanted)] == wanted:
            return str(one["digest"])
        offered.append("/".join(part for part in parts if part))
    raise NotSupportedError(
        f"image `{image}` is not available for `{platform}`, only for " + ", ".join(f"`{one}`" for one in offered),
        hint="choose one of these: `-cfg platform=...`",
    )


def _check_config(config: dict[str, Any], platform: str, image: ImageName) -> None:
    if config.get("os", "linux") != "linux" or not isinstance((config.get("rootfs") or {}).get("diff_ids"), list):
        raise NotSupportedError(f"image `{image}` is not for Linux")
    is_for = "/".join(str(config[key]) for key in ("os", "architecture") if config.get(key))
    if platform and is_for and platform.split("/")[:2] != is_for.split("/"):
        raise NotSupportedError(f"image `{image}` is for `{is_for}`, not for `{platform}`")
    if (config.get("config") or {}).get("OnBuild"):
        raise NotSupportedError(
            f"image `{image}` has `ONBUILD` instructions, which only an engine can carry out",
            hint="start a Docker engine and run with `-cfg builder=docker`",
        )


def _resolve_place(
    registry: Registry, name: ImageName, manifest: dict[str, Any], place: str
) -> tuple[str, list[Folder]]:
    """Follows the links in a path of the image; returns the real path, and the directories down to it."""
    if not place:
        return "", []
    key = f"way {name.digest} {place}"
    try:
        found = loads(_PLACES.recall(key))
        return found["place"], [Folder(*one) for one in found["above"]]
    except (ValueError, LookupError, TypeError):  # there is none yet, or it is damaged
        pass
    entries = _small_entries(registry, name, manifest)
    for _ in range(_MAX_LINKS):
        above = []
        for path in accumulate(place.split("/"), posixpath.join):
            kind, mode, uid, gid, target = entries.get(path, ("dir", 0o755, 0, 0, ""))
            if kind == "link":
                rest = place[len(path) :]
                place = os.path.normpath(os.path.join("/", os.path.dirname(path), target)).lstrip("/") + rest
                break
            above.append(Folder(path, mode, uid, gid))
        else:
            way = {"place": place, "above": [(one.path, one.mode, one.uid, one.gid) for one in above]}
            _PLACES.remember(key, json.dumps(way).encode())
            return place, above
    raise NotSupportedError(f"the working directory `/{place}` of `{name}` is a link that leads nowhere")


def _small_entries(
    registry: Registry, name: ImageName, manifest: dict[str, Any]
) -> dict[str, tuple[str, int, int, int, str]]:
    """Read directories and links in small layers: path -> (kind, mode, uid, gid, target); the top layer wins."""
    found: dict[str, tuple[str, int, int, int, str]] = {}
    left = _MAX_READ
    for layer in reversed(manifest["layers"]):
        size = int(layer.get("size", 0))
        if size > min(_SMALL_LAYER, left) or layer.get("urls"):
            continue
        left -= size
        try:
            for entry in _directories(registry.blob(name.repository, layer["digest"])):
                found.setdefault(entry[0], entry[1:])
        except (TorchXError, Again):
            continue  # missing owners of directories are no reason to fail
    return found


def _directories(blob: bytes) -> Iterator[tuple[str, str, int, int, int, str]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(blob), mode="r:*") as tar:
            for member in tar:
                path = os.path.normpath("/" + member.name).lstrip("/")
                if member.isdir():
                    yield path, "dir", member.mode & 0o7777, member.uid, member.gid, ""
                elif member.issym():
                    yield path, "link", 0o777, 0, 0, member.linkname
    except (tarfile.TarError, OSError, EOFError):  # zstd, or damaged
        return


def _parse(content: bytes, what: str) -> dict[str, Any]:
    try:
        found = loads(content)
    except ValueError:
        found = None
    if not _is_sound(found):
        raise ParseError(f"the registry's answer for `{what}` cannot be read", text=repr(content[:2000]))
    return dict(found)


def _is_sound(found: Any) -> bool:
    """Whether a document is an object, and everything that it refers to has a digest."""
    if not isinstance(found, dict):
        return False
    config = [found["config"]] if "config" in found and "layers" in found else []  # not that within a configuration
    parts = (found.get("layers", []), found.get("manifests", []), config)
    return all(
        isinstance(part, list) and all(isinstance(one, dict) and isinstance(one.get("digest"), str) for one in part)
        for part in parts
    )


def _remembered_blob(registry: Registry, name: ImageName, digest: str) -> bytes:
    known = _recall(digest)
    if not known:
        known = registry.blob(name.repository, digest)
        _DOCUMENTS.remember(digest, known)
    return known


def _recall(digest: str) -> bytes:
    """Return a cached document if it matches its digest, else empty bytes."""
    content = _DOCUMENTS.recall(digest)
    return content if f"sha256:{hashlib.sha256(content).hexdigest()}" == digest else b""
