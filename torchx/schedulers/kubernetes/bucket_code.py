"""Ships a workspace with an object store: as an archive in a bucket, which containers download before they start.

An archive is named after the hash of its files, so that an unchanged workspace is not uploaded again. Pods get no
credentials but a signed URL, in a Secret that is deleted with their job.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Mapping
from typing import Any

from torchx.errors import BackendError, ConfigError, MissingDependencyError, install_extra
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kubernetes.inline_code import SCRIPT, URL, archive_of, entries_of
from torchx.schedulers.kubernetes.names import Object
from torchx.specs.api import Workspace
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.redaction import learn
from torchx.workspace import content
from torchx.workspace.images.progress import Display, megabytes

SIGNED_S = 7 * 86400
"""Seconds for which a signed URL is valid: the maximum of S3.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-presigned-url.html
"""
_NOT_BUCKETS = ("file", "local", "memory", "http", "https", "ftp", "sftp", "ssh")
_TEMPORARY = re.compile(r"[?&]X-(Amz|Goog)-Security-Token=", re.IGNORECASE)


@dataclass(frozen=True)
class BucketCode:
    """A workspace, and the location of its archive.

    Attributes:
        hash: hash of the files.
        url: URL of the archive, such as ``s3://bucket/code/<hash>.tgz``.
        quiet: do not show the progress of the upload.
    """

    workspace: Workspace
    hash: str
    url: str
    quiet: bool = False

    @staticmethod
    def volume(name: str) -> Object:
        """The source of the volume at :data:`FOLDER`."""
        return {"secret": {"secretName": name}}

    def as_object(self, metadata: Object) -> Object:
        """The Secret of the volume, whose URL :func:`signed` replaces by a signed one."""
        data = {URL: self.url, SCRIPT: read_script(__file__, SCRIPT)}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def check_bucket(bucket: str) -> None:
    """Raise ConfigError for a text that is not the URL of a location in an object store, such as ``file:///tmp``."""
    scheme, separator, rest = bucket.partition("://")
    if not separator or scheme in _NOT_BUCKETS or not rest.strip("/") or "@" in rest.partition("/")[0]:
        said = f"bucket `{bucket}` is not the URL of a location in an object store"
        raise ConfigError(said, hint="for example `s3://my-bucket/code`")


def plan(workspace: Workspace, bucket: str, *, quiet: bool = False) -> BucketCode:
    """The location of the archive of a workspace, which is not uploaded yet; errors are those of :func:`entries_of`."""
    found = content.content_hash(entries_of(workspace))
    return BucketCode(workspace, found, f"{bucket.rstrip('/')}/{found.replace(':', '-')}.tgz", quiet)


def signed(item: Object, codes: Mapping[str, BucketCode]) -> Object:
    """An object as it is submitted: if it is the Secret of an archive, upload the archive and insert its signed URL.

    ``codes`` has the content of each archive by its URL. Errors are those of :func:`upload`.
    """
    data = item.get("stringData") or {}
    code = codes.get(data.get(URL, ""))
    return item if code is None else {**item, "stringData": {**data, URL: upload(code)}}


def upload(code: BucketCode) -> str:
    """Upload the archive unless the bucket has it. Returns a signed URL, which is valid for :data:`SIGNED_S` seconds.

    Raises:
        BackendError: the bucket rejects it or does not respond, or the workspace has changed since :func:`plan`.
        MissingDependencyError: the fsspec package for this kind of object store is not installed.
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
                display.doing(f"Packing the code: {megabytes(file.tell())} MB")
            file.flush()
            size = file.tell()
            fs.put_file(file.name, path, callback=_progress(display, name, size))
        display.line(f"Uploaded the code to {name}, {megabytes(size)} MB")
    finally:
        display.close()


def _progress(display: Any, name: str, size: int) -> Any:
    from fsspec.callbacks import Callback

    class Progress(Callback):  # type: ignore[misc]  # fsspec has no types
        """Shows how much has been uploaded."""

        def call(self, *_: object, **__: object) -> None:
            display.doing(f"Uploading the code to {name}: {megabytes(self.value)}/{megabytes(size)} MB")

    return Progress(size=size)
