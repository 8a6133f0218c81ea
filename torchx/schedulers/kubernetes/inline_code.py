"""Ships a workspace without a registry: as a ConfigMap, which each container unpacks before its program starts.

As in an image with the workspace, its files are laid over those in the working directory of the image.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from torchx.errors import ConfigError
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kubernetes.names import ANNOTATION_SUBMISSION, LABEL_QUEUE, MAIN_CONTAINER, Object
from torchx.util.records import dataclass
from torchx.workspace import content
from torchx.workspace.content import FILE, Entry
from torchx.workspace.docker_workspace import TORCHX_DOCKERFILE
from torchx.workspace.images import archive

if TYPE_CHECKING:
    from torchx.schedulers.kubernetes.bucket_code import BucketCode
    from torchx.specs.api import Workspace


AUTO, BUCKET, INLINE, REGISTRY = "auto", "bucket", "inline", "registry"
WAYS = (AUTO, BUCKET, INLINE, REGISTRY)
MOST_BYTES = 1_000_000
"""Limit after compression. A ConfigMap holds 1 MiB: https://kubernetes.io/docs/concepts/configuration/configmap/"""

_MOST_UNPACKED = 100 << 20
_TIME = 347155200  # 1981, as in images
_FILE = "code.tgz"
_VOLUME = "torchx-code"
FOLDER = f"/{_VOLUME}"
"""Mount point of the code's volume in a container."""
URL, SCRIPT = "url", "start.sh"
"""Files in that folder: the URL of the code if it is in a bucket, and the script that unpacks it."""


@dataclass(frozen=True)
class Code:
    """A packed workspace.

    Attributes:
        data: a reproducible ``.tgz`` archive.
        hash: hash of the files.
    """

    data: bytes
    hash: str

    @staticmethod
    def volume(name: str) -> Object:
        """The source of the volume at :data:`FOLDER`."""
        return {"configMap": {"name": name}}

    def as_object(self, metadata: Object) -> Object:
        """The ConfigMap of the volume."""
        script = {SCRIPT: read_script(__file__, SCRIPT)}
        data = {_FILE: base64.b64encode(self.data).decode()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": script, "binaryData": data}


class TooLargeError(ConfigError):
    """A workspace is too large for a ConfigMap."""


def pack(workspace: Workspace) -> Code:
    """Pack a workspace; TooLargeError if a ConfigMap cannot hold it. Other errors are those of :func:`entries_of`."""
    entries = entries_of(workspace)
    data = bytearray()
    if sum(entry.size for entry in entries) <= _MOST_UNPACKED:
        for block in archive_of(entries):
            data += block
            if len(data) > MOST_BYTES:
                break
    if not data or len(data) > MOST_BYTES:
        raise TooLargeError(
            f"the workspace `{workspace}` is larger than the {MOST_BYTES // 1000} kB, compressed, of inline code",
            hint="exclude what the job does not need in `.torchxignore`; or push an image: "
            "`-cfg image_repo=<registry>/<name>`; or name a bucket: `-cfg bucket=s3://<name>`",
        )
    return Code(bytes(data), content.content_hash(entries))


def entries_of(workspace: Workspace) -> list[Entry]:
    """The files of a workspace that is shipped without an image; ConfigError if a ``Dockerfile.torchx`` needs one."""
    entries = content.entries(workspace)
    if any(entry.path == TORCHX_DOCKERFILE for entry in entries):
        hint = "push an image: `-cfg code=registry,image_repo=<registry>/<name>`"
        raise ConfigError(f"the workspace has a `{TORCHX_DOCKERFILE}`, which needs an image", hint=hint)
    return entries


def archive_of(entries: Iterable[Entry]) -> Iterator[bytes]:
    """A reproducible ``.tgz`` archive of files."""
    packer = zlib.compressobj(6, wbits=31)
    for entry in entries:
        yield packer.compress(archive.header_of(entry, entry.path, _TIME))
        if entry.kind == FILE:
            yield from map(packer.compress, entry.chunks())
            yield packer.compress(archive.padding(entry.size))
    yield packer.compress(archive.END) + packer.flush()


def names_of(app_id: str, codes: Mapping[int, Code | BucketCode]) -> dict[str, str]:
    """Hash of a code -> name of its ConfigMap or Secret, which roles with the same code share."""
    return {code: f"{app_id}-code-{i}" for i, code in enumerate(dict.fromkeys(c.hash for c in codes.values()))}


def objects_of(codes: Mapping[int, Code | BucketCode], owner: Object) -> list[Object]:
    """The ConfigMaps or Secrets with the code of the roles; ``owner`` is the metadata of the app's first object."""
    different = {code.hash: code for code in codes.values()}
    named = names_of(owner["name"], codes).items()
    return [different[code].as_object(metadata_of_part(name, owner)) for code, name in named]


def metadata_of_part(name: str, owner: Object) -> Object:
    """The metadata of a dependent object of a job, from those of its first object."""
    labels = {key: value for key, value in owner["labels"].items() if key != LABEL_QUEUE}
    marks = {key: value for key, value in owner["annotations"].items() if key == ANNOTATION_SUBMISSION}
    return {"name": name, "namespace": owner["namespace"], "labels": labels, "annotations": marks}


def mount(pod: Object, code: Code | BucketCode, name: str) -> None:
    """Mount the ConfigMap or Secret ``name`` into a pod, and make it unpack its code before its program starts."""
    main = next(c for c in pod["containers"] if c["name"] == MAIN_CONTAINER)
    main["command"] = ["sh", f"{FOLDER}/{SCRIPT}", *main["command"]]
    pod["volumes"] = [*(pod.get("volumes") or ()), {"name": _VOLUME, **code.volume(name)}]
    mount = {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}
    main["volumeMounts"] = [*(main.get("volumeMounts") or ()), mount]


def without_data(resource: Object) -> Object:
    """A copy to print, with the size or the URL of the code instead of the code."""
    if resource["kind"] == "List":
        return {**resource, "items": [without_data(item) for item in resource["items"]]}
    texts = resource.get("data") or resource.get("stringData") or {}
    if SCRIPT not in texts:
        return resource
    script = {SCRIPT: f"({len(texts[SCRIPT])} bytes)"}
    if URL in texts:
        return {**resource, "stringData": {URL: f"(signed at the submission) {texts[URL]}", **script}}
    archive_size = len(resource["binaryData"][_FILE]) * 3 // 4
    return {**resource, "data": script, "binaryData": {_FILE: f"({archive_size} bytes)"}}
