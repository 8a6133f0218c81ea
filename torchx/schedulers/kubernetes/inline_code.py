"""Code without a registry: a workspace as a ConfigMap, which each container unpacks before its program starts.

What is in the image's working directory stays, as with an image that is made of it: the workspace is laid over it.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from torchx.errors import ConfigError
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
"""Compressed. A ConfigMap holds 1 MiB: https://kubernetes.io/docs/concepts/configuration/configmap/"""

_MOST_UNPACKED = 100 << 20
_TIME = 347155200  # 1981, as in images
_FILE = "code.tgz"
_VOLUME = "torchx-code"
FOLDER = f"/{_VOLUME}"
"""Where a container finds what leads to its code."""
URL, SCRIPT = "url", "start.sh"
"""In that folder, where the code is in a bucket: its address, and what fetches it."""
_PLACE = f"{FOLDER}/{_FILE}"
# Python first: it needs no gzip, and leaves a link to a folder, as `/lib` is one, as it is.
_UNPACK = f"""\
if command -v python3 >/dev/null 2>&1; then python3 -IS -m tarfile -e {_PLACE} .; else tar -xzomf {_PLACE}; fi || {{
  echo "torchx: the code cannot be unpacked into $PWD, the working directory of the image" >&2; exit 1; }}
exec "$@"
"""


@dataclass(frozen=True)
class Code:
    """A workspace.

    Attributes:
        data: a tar archive, compressed by gzip; the same files give the same bytes.
        hash: of its content.
    """

    data: bytes
    hash: str

    @property
    def command(self) -> list[str]:
        """What a container runs, the words of its program after it."""
        return ["sh", "-c", _UNPACK, "torchx"]

    @staticmethod
    def volume(name: str) -> Object:
        """The source of the volume at :data:`FOLDER`."""
        return {"configMap": {"name": name}}

    def as_object(self, metadata: Object) -> Object:
        """What the volume is made of."""
        data = {_FILE: base64.b64encode(self.data).decode()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}


class TooLargeError(ConfigError):
    """A workspace is too large to go along."""


def pack(workspace: Workspace) -> Code:
    """The workspace, compressed.

    Raises:
        TooLargeError: it is too large for a ConfigMap.
        ConfigError: it has a ``Dockerfile.torchx``, which only an image can follow.
    """
    entries = entries_of(workspace)
    data = bytearray()
    if sum(entry.size for entry in entries) <= _MOST_UNPACKED:
        for block in archive_of(entries):
            data += block
            if len(data) > MOST_BYTES:
                break
    if not data or len(data) > MOST_BYTES:
        raise TooLargeError(
            f"the workspace `{workspace}` is larger than the {MOST_BYTES // 1000} kB, compressed, that go along inline",
            hint="name what the job does not need in `.torchxignore`; or push an image: "
            "`-cfg image_repo=<registry>/<name>`; or name a bucket: `-cfg bucket=s3://<name>`",
        )
    return Code(bytes(data), content.content_hash(entries))


def entries_of(workspace: Workspace) -> list[Entry]:
    """The files of a workspace that is laid over an image.

    Raises:
        ConfigError: it has a ``Dockerfile.torchx``, which only an image can follow.
    """
    entries = content.entries(workspace)
    if any(entry.path == TORCHX_DOCKERFILE for entry in entries):
        hint = "push an image: `-cfg code=registry,image_repo=<registry>/<name>`"
        raise ConfigError(f"the workspace has a `{TORCHX_DOCKERFILE}`, which needs an image", hint=hint)
    return entries


def archive_of(entries: Iterable[Entry]) -> Iterator[bytes]:
    """A tar archive, compressed by gzip; the same files give the same bytes."""
    packer = zlib.compressobj(6, wbits=31)
    for block in _blocks(entries):
        yield packer.compress(block)
    yield packer.flush()


def _blocks(entries: Iterable[Entry]) -> Iterator[bytes]:
    for entry in entries:
        yield archive.header_of(entry, entry.path, _TIME)
        if entry.kind == FILE:
            yield from entry.chunks()
            yield archive.padding(entry.size)
    yield archive.END


def names_of(app_id: str, codes: Mapping[int, Code | BucketCode]) -> dict[str, str]:
    """Hash of a code to the name of the object that leads to it: one for each code, whatever roles it is of."""
    return {code: f"{app_id}-code-{i}" for i, code in enumerate(dict.fromkeys(c.hash for c in codes.values()))}


def objects_of(codes: Mapping[int, Code | BucketCode], owner: Object) -> list[Object]:
    """The ConfigMaps or Secrets that lead to the code of an app.

    Args:
        codes: index of a role -> its code.
        owner: the metadata of the app's first object.
    """
    different = {code.hash: code for code in codes.values()}
    named = names_of(owner["name"], codes).items()
    return [different[code].as_object(metadata_of_part(name, owner)) for code, name in named]


def metadata_of_part(name: str, owner: Object) -> Object:
    """The metadata of what belongs to a job, from those of its first object."""
    labels = {key: value for key, value in owner["labels"].items() if key != LABEL_QUEUE}
    marks = {key: value for key, value in owner["annotations"].items() if key == ANNOTATION_SUBMISSION}
    return {"name": name, "namespace": owner["namespace"], "labels": labels, "annotations": marks}


def mount(pod: Object, code: Code | BucketCode, name: str) -> None:
    """Has a pod fetch its code by the object of that name before its program starts."""
    main = next(c for c in pod["containers"] if c["name"] == MAIN_CONTAINER)
    main["command"] = [*code.command, *main["command"]]
    pod["volumes"] = [*(pod.get("volumes") or ()), {"name": _VOLUME, **code.volume(name)}]
    mount = {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}
    main["volumeMounts"] = [*(main.get("volumeMounts") or ()), mount]


def without_data(resource: Object) -> Object:
    """A copy to be shown: of the code only how much there is, or where it will be fetched from."""
    if resource["kind"] == "List":
        return {**resource, "items": [without_data(item) for item in resource["items"]]}
    data = {name: f"({len(text) * 3 // 4} bytes)" for name, text in resource.get("binaryData", {}).items()}
    if data:
        return {**resource, "binaryData": data}
    texts = resource.get("stringData", {})
    if SCRIPT not in texts:
        return resource
    shown = {URL: f"(signed when it is submitted) {texts[URL]}", SCRIPT: f"({len(texts[SCRIPT])} bytes)"}
    return {**resource, "stringData": shown}
