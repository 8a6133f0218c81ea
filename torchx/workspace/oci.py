"""Builds images without an engine: pushes the workspace as layers on the base image straight to the registry.

It needs no Docker process, pulls no layers of the base image, and sends nothing that the registry has. It cannot run
commands: a ``Dockerfile.torchx`` needs an engine.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from torchx.errors import NotSupportedError
from torchx.specs.api import Workspace
from torchx.util.records import dataclass
from torchx.util.strings import size_text
from torchx.version import __version__
from torchx.workspace import content
from torchx.workspace.content import Entry
from torchx.workspace.hashes import FileHashes
from torchx.workspace.images.docker_build import short_name
from torchx.workspace.images.docker_context import TORCHX_DOCKERFILE, own_dockerfile
from torchx.workspace.images.layers import MAX_LAYERS, Item, Layer, Pushed, arrange, item, pack
from torchx.workspace.images.names import ImageName
from torchx.workspace.images.oci_base import BaseImage, resolve
from torchx.workspace.images.progress import Display
from torchx.workspace.images.registry import DOCKER_MANIFEST, OCI_MANIFEST, PUSH, Blob, Manifest, Registry

T = TypeVar("T")

_FORMAT = "torchx-image-1"  # part of the input of the hash that is the tag
_OVERLAYFS_LAYERS = 125
_AT_ONCE = 6
_MANY_BYTES = 32 << 20
_LAYER_TYPES = {
    # is_docker, compressed -> media type
    (True, True): "application/vnd.docker.image.rootfs.diff.tar.gzip",
    (True, False): "application/vnd.docker.image.rootfs.diff.tar",
    (False, True): "application/vnd.oci.image.layer.v1.tar+gzip",
    (False, False): "application/vnd.oci.image.layer.v1.tar",
}
_CONFIG_TYPES = {
    True: "application/vnd.docker.container.image.v1+json",
    False: "application/vnd.oci.image.config.v1+json",
}
_LABEL_VERSION = "torchx.pytorch.org/version"
_LABEL_BASE = "org.opencontainers.image.base.digest"


@dataclass(frozen=True)
class Plan:
    """A completely determined image, and the parts of it to upload."""

    name: ImageName  # repository and tag, which is a hash of base image and workspace
    digest: str  # of its manifest
    workspace_hash: str  # of the workspace only
    base: BaseImage
    manifest: Manifest | None  # None if the registry has the image
    uploads: list[Blob]  # unless the registry has them
    layers: list[Layer]  # of the workspace, to be cached in `pushed` after the push
    pushed: Pushed

    @property
    def reference(self) -> str:
        """The name of the image by its digest, as it can be pulled."""
        return str(ImageName(self.name.registry, self.name.repository, digest=self.digest))


@dataclass(frozen=True)
class Contents:
    """The contents of a workspace: path -> item, sorted, and their hash."""

    items: dict[str, Item]
    hash: str


class ImageBuilder:
    """Plans and pushes images, with registries from ``connect(host)``. Keeps connections open until it is closed."""

    def __init__(self, connect: Callable[[str], Registry] = Registry) -> None:
        self._connect = connect
        self._registries: dict[str, Registry] = {}

    def close(self) -> None:
        """Close connections; the builder can still be used, and is still logged in."""
        for registry in self._registries.values():
            registry.close()

    def plan(self, workspace: Workspace, *, base: str, repository: str, platform: str = "") -> Plan:
        """Determine what to push: reads the workspace and queries the registries. Sends nothing.

        Raises:
            SpecError: a name is invalid, or the workspace cannot be read.
            NotSupportedError: the workspace or the base image needs an engine.
            BackendError: a registry rejects the request or fails.
        """
        base_name, target = ImageName.parse(base), ImageName.parse_repository(repository)
        refuse_dockerfile(workspace)
        base_image = resolve(self._registry(base_name.registry), base_name, platform)
        found = read_workspace(workspace)
        name = ImageName(target.registry, target.repository, _tag(base_image, found))
        registry = self._registry(target.registry)
        pushed = Pushed([str(target), str(workspace), base_image.place, repr(base_image.above)])
        digest = registry.manifest_digest(name, action=PUSH)
        if digest:
            return Plan(name, digest, found.hash, base_image, None, [], [], pushed)
        most = min(MAX_LAYERS, _OVERLAYFS_LAYERS - len(base_image.layers))
        before = pushed.load()  # the registry may have lost some of these, or be a new one
        checks = [functools.partial(registry.has_blob, name.repository, layer.digest) for layer in before]
        checked = zip(before, self._in_parallel(checks), strict=True)
        arrangement = arrange(found.items, [layer for layer, exists in checked if exists], most)
        made = in_parallel(
            [functools.partial(pack, group, base_image.place, base_image.above) for group in arrangement.new],
            at_once=_AT_ONCE,
        )
        layers = arrangement.kept + [layer for layer, _ in made]
        config = _config(base_image, layers)
        manifest = _manifest(base_image, layers, config)
        uploads = [*(blob for _, blob in made), config]
        return Plan(name, manifest.digest, found.hash, base_image, manifest, uploads, layers, pushed)

    def push(self, plan: Plan, sent: Callable[[int, bool], None] = lambda _bytes, _done: None) -> None:
        """Upload missing blobs, and finally the manifest, which makes the image visible.

        Several threads call ``sent`` with the size of each chunk in bytes, and whether it completes a blob.

        Raises:
            SpecError: the workspace has changed since it was planned.
            BackendError: the registry rejects the push or fails.
        """
        if plan.manifest is None:
            return
        registry = self._registry(plan.name.registry)
        tasks = [functools.partial(self._upload, registry, plan, blob, sent) for blob in plan.uploads]
        tasks += [functools.partial(self._take_over, registry, plan, layer, sent) for layer in plan.base.layers]
        self._in_parallel(tasks)
        registry.put_manifest(plan.name, plan.manifest)
        plan.pushed.save(plan.layers)

    def _registry(self, host: str) -> Registry:
        if host not in self._registries:
            self._registries[host] = self._connect(host)
        return self._registries[host]

    def _in_parallel(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        try:
            return in_parallel(tasks, at_once=_AT_ONCE)
        except BaseException:
            for registry in self._registries.values():
                registry.abort()
            self._registries.clear()
            raise

    def _upload(self, registry: Registry, plan: Plan, blob: Blob, sent: Callable[[int, bool], None]) -> None:
        if not registry.has_blob(plan.name.repository, blob.digest):
            registry.upload_blob(plan.name.repository, _counted(blob, sent))
        sent(0, True)

    def _take_over(
        self, registry: Registry, plan: Plan, layer: Mapping[str, Any], sent: Callable[[int, bool], None]
    ) -> None:
        """Ensure that the repository has a layer of the base image: mounts or copy it if missing."""
        digest, source, repository = str(layer["digest"]), plan.base.name, plan.name.repository
        same_registry = source.registry == plan.name.registry
        there = (same_registry and source.repository == repository) or bool(layer.get("urls"))
        if not there and same_registry:
            there = registry.mount_blob(repository, digest, source=source.repository)
        if not there and not registry.has_blob(repository, digest):
            home = self._registry(source.registry)
            copy = Blob(digest, int(layer["size"]), lambda: home.read_blob(source.repository, digest))
            registry.upload_blob(repository, _counted(copy, sent))
        sent(0, True)


def push_visibly(builder: ImageBuilder, plan: Plan, *, quiet: bool = False, stream: TextIO | None = None) -> None:
    """Pushes an image and shows the progress; raises as :meth:`ImageBuilder.push`."""
    display = Display(stream or sys.stderr, quiet=quiet)
    name = short_name(f"{plan.name.registry}/{plan.name.repository}", plan.name.tag)
    total = len(plan.uploads) + len(plan.base.layers) if plan.manifest else 0
    done = sent = 0
    lock = threading.Lock()

    def progress(size: int, complete: bool) -> None:
        nonlocal done, sent
        with lock:
            sent += size
            done += complete
        display.doing(f"Pushing {name}: {done}/{total} layers, {size_text(sent)} sent")

    try:
        builder.push(plan, progress)
    finally:
        display.close()
    if plan.manifest is None:
        display.line(f"{name} is in the registry already")
    else:
        display.line(f"Pushed {name}, {size_text(sent)} sent")


def refuse_dockerfile(workspace: Workspace) -> None:
    """Raise NotSupportedError for a workspace with its own build instructions, which need an engine."""
    for source, place in workspace.projects.items():
        if not place and own_dockerfile(source):
            raise NotSupportedError(
                f"the `{TORCHX_DOCKERFILE}` of workspace `{source}` needs a Docker engine: without one, files can be"
                " copied onto an image and no command can be run",
                hint="start an engine and run with `-cfg builder=docker`; or do its work once, in the base image, and"
                f" remove `{TORCHX_DOCKERFILE}`",
            )


def read_workspace(workspace: Workspace) -> Contents:
    """Read a workspace; only files that have changed since the last time are read."""
    entries = content.entries(workspace)
    with FileHashes(str(workspace)) as hashes:
        digests = _digests([entry for entry in entries if entry.kind == content.FILE], hashes)
    items = {entry.path: item(entry, lambda e: digests[e.path]) for entry in entries}
    return Contents(items, content.content_hash(entries, lambda e: digests[e.path]))


def _digests(files: list[Entry], hashes: Any) -> dict[str, str]:
    """Return path -> SHA-256. Large amounts are read in several threads, because hashing releases the GIL."""
    digests = {entry.path: hashes.known(entry) for entry in files if entry.identity}
    unknown = [entry for entry in files if not digests.get(entry.path)]
    at_once = _AT_ONCE if sum(entry.size for entry in unknown) > _MANY_BYTES else 1
    read = in_parallel([functools.partial(hashes.of, entry) for entry in unknown], at_once=at_once)
    digests.update(zip((entry.path for entry in unknown), read, strict=True))
    return digests


def _tag(base: BaseImage, found: Contents) -> str:
    parts = (_FORMAT, __version__, base.name.digest, base.place, repr(base.above), found.hash)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _config(base: BaseImage, layers: list[Layer]) -> Blob:
    """Return the base image's configuration with our layers added, and its times, so that builds are reproducible."""
    config = copy.deepcopy(base.config)
    config["rootfs"]["diff_ids"] += [layer.diff_id for layer in layers]
    if config.get("history"):  # it needs an entry for each layer
        step = {"created_by": "COPY . .  # torchx workspace", "comment": f"torchx {__version__}"}
        if config.get("created"):
            step["created"] = config["created"]
        config["history"] += [step for _ in layers]
    inner = config["config"] = config.get("config") or {}
    inner["Labels"] = {
        **(inner.get("Labels") or {}),
        _LABEL_VERSION: __version__,
        _LABEL_BASE: base.name.digest,
    }
    return _document(config)


def _manifest(base: BaseImage, layers: list[Layer], config: Blob) -> Manifest:
    manifest = {
        "schemaVersion": 2,
        "mediaType": DOCKER_MANIFEST if base.is_docker else OCI_MANIFEST,
        "config": {"mediaType": _CONFIG_TYPES[base.is_docker], "size": config.size, "digest": config.digest},
        "layers": base.layers
        + [
            {
                "mediaType": _LAYER_TYPES[base.is_docker, layer.compressed],
                "size": layer.size,
                "digest": layer.digest,
            }
            for layer in layers
        ],
    }
    document = _document(manifest)
    return Manifest(manifest["mediaType"], document.digest, b"".join(document.chunks()))  # type: ignore[arg-type]  # a string


def _document(value: object) -> Blob:
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return Blob("sha256:" + hashlib.sha256(data).hexdigest(), len(data), lambda: iter((data,)))


def _counted(blob: Blob, sent: Callable[[int, bool], None]) -> Blob:
    def chunks() -> Iterator[bytes]:
        for chunk in blob.chunks():
            yield chunk
            sent(len(chunk), False)

    return Blob(blob.digest, blob.size, chunks)


def in_parallel(tasks: Iterable[Callable[[], T]], *, at_once: int) -> list[T]:
    """Run tasks in threads, and return their results in order.

    Raises the first exception of a task at once, and starts no further task. It does not wait for running tasks: their
    threads are daemons, so Ctrl-C does not wait for the upload of a gigabyte.

    >>> in_parallel([lambda: 1, lambda: 2], at_once=2)
    [1, 2]
    """
    todo = list(enumerate(tasks))
    if len(todo) < 2 or at_once < 2:
        return [task() for _, task in todo]
    results: list[T | None] = [None] * len(todo)
    left = iter(todo)
    lock, done = threading.Lock(), queue.SimpleQueue[BaseException | None]()
    stopped = threading.Event()

    def work() -> None:
        while not stopped.is_set():
            with lock:
                number, task = next(left, (-1, None))
            if task is None:
                return
            try:
                results[number] = task()
                done.put(None)
            except BaseException as e:
                done.put(e)

    for _ in range(min(at_once, len(todo))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in todo:
            error = done.get()
            if error is not None:
                raise error
    finally:
        stopped.set()
    return results  # type: ignore[return-value]  # every task has put its result
