"""Ships a workspace without an image: in a ConfigMap, or as an archive in a bucket that each container downloads.

As in an image with the workspace, its files are laid over those in the working directory of the image, before the
program starts. An archive in a bucket is named after the hash of its files, so that an unchanged workspace is not
uploaded again. Pods get no credentials but a signed URL, in a Secret that is deleted with their job.
"""

from __future__ import annotations

import base64
import datetime
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchx.errors import BackendError, ConfigError, MissingDependencyError, install_extra
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kubernetes.names import ANNOTATION_SUBMISSION, LABEL_QUEUE, MAIN_CONTAINER, Object
from torchx.specs.api import Workspace
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.redaction import learn
from torchx.util.strings import size_text
from torchx.workspace import content
from torchx.workspace.content import FILE, Entry
from torchx.workspace.docker_workspace import TORCHX_DOCKERFILE
from torchx.workspace.images import archive
from torchx.workspace.images.progress import Display

AUTO, BUCKET, INLINE, REGISTRY = "auto", "bucket", "inline", "registry"
WAYS = (AUTO, BUCKET, INLINE, REGISTRY)
MAX_BYTES = 1_000_000
"""Limit after compression. A ConfigMap holds 1 MiB: https://kubernetes.io/docs/concepts/configuration/configmap/"""

_MAX_UNPACKED = 100 << 20
_TIME = 347155200  # 1981, as in images
_FILE = "code.tgz"
_VOLUME = "torchx-code"
FOLDER = f"/{_VOLUME}"
"""Mount point of the code's volume in a container."""
URL, SCRIPT = "url", "start.sh"
"""Files in that folder: the URL of the code if it is in a bucket, and the script that unpacks it."""

SIGNED_S = 7 * 86400
"""Seconds for which a signed URL is valid: the maximum of S3.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-presigned-url.html
"""
_NOT_BUCKETS = ("file", "local", "memory", "http", "https", "ftp", "sftp", "ssh")
_TEMPORARY = re.compile(r"[?&]X-(Amz|Goog)-Security-Token=", re.IGNORECASE)


@dataclass(frozen=True)
class Code:
    """A packed workspace: a reproducible ``.tgz`` archive, and the hash of its files."""

    data: bytes
    hash: str

    def as_object(self, metadata: Object) -> Object:
        """Return the ConfigMap of the volume."""
        script = {SCRIPT: read_script(__file__, SCRIPT)}
        data = {_FILE: base64.b64encode(self.data).decode()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": script, "binaryData": data}


@dataclass(frozen=True)
class BucketCode:
    """A workspace, the hash of its files, and the URL of its archive, such as ``s3://bucket/code/<hash>.tgz``."""

    workspace: Workspace
    hash: str
    url: str
    quiet: bool = False

    def as_object(self, metadata: Object) -> Object:
        """Return the Secret of the volume, whose URL :func:`signed` replaces by a signed one."""
        data = {URL: self.url, SCRIPT: read_script(__file__, SCRIPT)}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


class TooLargeError(ConfigError):
    """A workspace is too large for a ConfigMap."""


def check_bucket(bucket: str) -> None:
    """Raise ConfigError for a text that is not the URL of a location in an object store, such as ``file:///tmp``."""
    scheme, separator, rest = bucket.partition("://")
    if not separator or scheme in _NOT_BUCKETS or not rest.strip("/") or "@" in rest.partition("/")[0]:
        said = f"bucket `{bucket}` is not the URL of a location in an object store"
        raise ConfigError(said, hint="for example `s3://my-bucket/code`")


def pack(workspace: Workspace) -> Code:
    """Pack a workspace; TooLargeError if a ConfigMap cannot hold it. Other errors are those of :func:`entries_of`."""
    entries = entries_of(workspace)
    data = bytearray()
    if sum(entry.size for entry in entries) <= _MAX_UNPACKED:
        for block in archive_of(entries):
            data += block
            if len(data) > MAX_BYTES:
                break
    if not data or len(data) > MAX_BYTES:
        raise TooLargeError(
            f"the workspace `{workspace}` is larger than the {MAX_BYTES // 1000} kB, compressed, of inline code",
            hint="exclude what the job does not need in `.torchxignore`; or push an image: "
            "`-cfg image_repo=<registry>/<name>`; or name a bucket: `-cfg bucket=s3://<name>`",
        )
    return Code(bytes(data), content.content_hash(entries))


def plan(workspace: Workspace, bucket: str, *, quiet: bool = False) -> BucketCode:
    """Return the location of the archive of a workspace, which is not uploaded yet;
    errors are those of :func:`entries_of`.
    """
    found = content.content_hash(entries_of(workspace))
    return BucketCode(workspace, found, f"{bucket.rstrip('/')}/{found.replace(':', '-')}.tgz", quiet)


def entries_of(workspace: Workspace) -> list[Entry]:
    """Return the files of a workspace that is shipped without an image;
    ConfigError if a ``Dockerfile.torchx`` needs one.
    """
    entries = content.entries(workspace)
    if any(entry.path == TORCHX_DOCKERFILE for entry in entries):
        hint = "push an image: `-cfg code=registry,image_repo=<registry>/<name>`"
        raise ConfigError(f"the workspace has a `{TORCHX_DOCKERFILE}`, which needs an image", hint=hint)
    return entries


def archive_of(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield a reproducible ``.tgz`` archive of files."""
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
    """Return the ConfigMaps or Secrets with the code of the roles;
    ``owner`` is the metadata of the app's first object.
    """
    different = {code.hash: code for code in codes.values()}
    named = names_of(owner["name"], codes).items()
    return [different[code].as_object(metadata_of_part(name, owner)) for code, name in named]


def metadata_of_part(name: str, owner: Object) -> Object:
    """Return the metadata of a dependent object of a job, from those of its first object."""
    labels = {key: value for key, value in owner["labels"].items() if key != LABEL_QUEUE}
    marks = {key: value for key, value in owner["annotations"].items() if key == ANNOTATION_SUBMISSION}
    return {"name": name, "namespace": owner["namespace"], "labels": labels, "annotations": marks}


def mount(pod: Object, code: Code | BucketCode, name: str) -> None:
    """Mount the ConfigMap or Secret ``name`` into a pod, and make it unpack its code before its program starts."""
    main = next(c for c in pod["containers"] if c["name"] == MAIN_CONTAINER)
    main["command"] = ["sh", f"{FOLDER}/{SCRIPT}", *main["command"]]
    source: Object = {"secret": {"secretName": name}} if isinstance(code, BucketCode) else {"configMap": {"name": name}}
    pod["volumes"] = [*(pod.get("volumes") or ()), {"name": _VOLUME, **source}]
    mount = {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}
    main["volumeMounts"] = [*(main.get("volumeMounts") or ()), mount]


def without_data(resource: Object) -> Object:
    """Return a copy to print, with the size or the URL of the code instead of the code."""
    if resource.get("kind") == "List":
        return {**resource, "items": [without_data(item) for item in resource["items"]]}
    texts = resource.get("data") or resource.get("stringData") or {}
    if SCRIPT not in texts:
        return resource
    script = {SCRIPT: f"({len(texts[SCRIPT])} bytes)"}
    if URL in texts:
        return {**resource, "stringData": {URL: f"(signed at the submission) {texts[URL]}", **script}}
    archive_size = len(resource["binaryData"][_FILE]) * 3 // 4
    return {**resource, "data": script, "binaryData": {_FILE: f"({archive_size} bytes)"}}


# -- buckets ---------------------------------------------------------------------------------------


def signed(item: Object, codes: Mapping[str, BucketCode]) -> Object:
    """Return an object as it is submitted: if it is the Secret of an archive, upload the archive and insert its signed
    URL.

    ``codes`` has the content of each archive by its URL. Errors are those of :func:`upload`.
    """
    data = item.get("stringData") or {}
    code = codes.get(data.get(URL, ""))
    return item if code is None else {**item, "stringData": {**data, URL: upload(code)}}


def upload(code: BucketCode) -> str:
    """Upload the archive unless the bucket has it. Returns a signed URL, which is valid for :data:`SIGNED_S` seconds.

    BackendError if the bucket rejects it or does not respond, or the workspace has changed since :func:`plan`;
    MissingDependencyError without the fsspec package for this kind of object store.
    """
    fs, path = _open(code.url)
    try:
        if not _is_there(fs, path):
            _send(code, fs, path)
        address = str(fs.sign(path, expiration=SIGNED_S))
    except (BackendError, ConfigError):
        raise
    except NotImplementedError:
        said = f"object stores of this kind cannot sign URLs: `{code.url}`"
        raise BackendError(said, hint="use `code=registry`, or a bucket of S3, GCS or Azure") from None
    except Exception as e:  # fsspec's file systems raise errors of many kinds
        reason = str(e) or type(e).__name__
        raise BackendError(f"the code cannot be uploaded to `{code.url}`: {reason}", hint=_HINT) from e
    if _TEMPORARY.search(address):
        logger("torchx.schedulers").warning(
            "`%s` is signed with temporary credentials: pods that start after these have expired cannot fetch it",
            code.url,
        )
    learn(address)
    return address


_HINT = "does the bucket exist, and do your credentials let you write there? `AWS_ENDPOINT_URL` names an endpoint of S3"


def _open(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as e:
        hint = install_extra("s3") if scheme == "s3" else f"install the fsspec package for `{scheme}`"
        raise MissingDependencyError(f"bucket `{url}`: {e}", hint=hint) from e
    except Exception as e:  # as above
        raise BackendError(f"bucket `{url}` cannot be opened: {e}", hint=_HINT) from e
    return fs, str(path)


def _is_there(fs: Any, path: str) -> bool:
    """Whether the bucket has the archive, and keeps it for longer than a signed URL is valid.

    An older archive is uploaded again, because a lifecycle rule of the bucket may be about to delete it.
    """
    try:
        changed = fs.modified(path)
    except (FileNotFoundError, PermissionError):  # without the right to list, a missing object is forbidden
        return False
    if changed.tzinfo is None:
        changed = changed.replace(tzinfo=datetime.timezone.utc)
    age = datetime.datetime.now(datetime.timezone.utc) - changed
    return bool(age.total_seconds() < SIGNED_S)


def _send(code: BucketCode, fs: Any, path: str) -> None:
    """Pack the archive into a temporary file first, so that the bucket gets all of it or nothing."""
    import tempfile

    display = Display(sys.stderr, quiet=code.quiet)
    name = f"{path.rpartition('/')[0]}/{code.hash.replace(':', '-')[:19]}"
    try:
        entries = entries_of(code.workspace)
        if content.content_hash(entries) != code.hash:
            raise BackendError(f"the workspace `{code.workspace}` has changed since the dry run", hint="run again")
        with tempfile.NamedTemporaryFile(prefix="torchx-code-") as file:
            for block in archive_of(entries):
                file.write(block)
                display.doing(f"Packing the code: {size_text(file.tell())}")
            file.flush()
            size = file.tell()
            fs.put_file(file.name, path, callback=_progress(display, name, size))
        display.line(f"Uploaded the code to {name}, {size_text(size)}")
    finally:
        display.close()


def _progress(display: Any, name: str, size: int) -> Any:
    from fsspec.callbacks import Callback

    class Progress(Callback):  # type: ignore[misc]  # fsspec has no types
        """Shows how much has been uploaded."""

        def call(self, *_: object, **__: object) -> None:
            display.doing(f"Uploading the code to {name}: {size_text(self.value)}/{size_text(size)}")

    return Progress(size=size)
