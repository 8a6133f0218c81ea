"""Code in an object store: a workspace as an archive in a bucket, which containers fetch before their programs start.

An archive is named after the hash of its files, so that what has not changed is not sent again. Pods get no credentials
but a signed address, in a Secret that goes with their job.
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Mapping
from typing import Any

from torchx.errors import BackendError, ConfigError, MissingDependencyError, install_extra
from torchx.schedulers.kit.shell import read_script
from torchx.schedulers.kubernetes.inline_code import FOLDER, SCRIPT, URL, archive_of, entries_of
from torchx.schedulers.kubernetes.names import Object
from torchx.specs.api import Workspace
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.util.redaction import learn
from torchx.workspace import content
from torchx.workspace.images.progress import Display, megabytes

SIGNED_S = 7 * 86400
"""Seconds for which an address is good: the longest that S3 allows.

https://docs.aws.amazon.com/AmazonS3/latest/userguide/using-presigned-url.html
"""
_NOT_BUCKETS = ("file", "local", "memory", "http", "https", "ftp", "sftp", "ssh")
_TEMPORARY = re.compile(r"[?&]X-(Amz|Goog)-Security-Token=", re.IGNORECASE)


@dataclass(frozen=True)
class BucketCode:
    """A workspace, and where its archive belongs.

    Attributes:
        hash: of its content.
        url: of the archive, such as ``s3://bucket/code/<hash>.tgz``.
        quiet: show nothing of the upload.
    """

    workspace: Workspace
    hash: str
    url: str
    quiet: bool = False

    @property
    def command(self) -> list[str]:
        """What a container runs, the words of its program after it."""
        return ["sh", f"{FOLDER}/{SCRIPT}"]

    @staticmethod
    def volume(name: str) -> Object:
        """The source of the volume at :data:`FOLDER`."""
        return {"secret": {"secretName": name}}

    def as_object(self, metadata: Object) -> Object:
        """What the volume is made of; the address is signed by :func:`signed`."""
        data = {URL: self.url, SCRIPT: read_script(__file__, SCRIPT)}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}


def check_bucket(bucket: str) -> None:
    """Refuses what is not the address of a place in an object store.

    Raises:
        ConfigError: say, ``my-bucket``, or ``file:///tmp``.
    """
    scheme, separator, rest = bucket.partition("://")
    if not separator or scheme in _NOT_BUCKETS or not rest.strip("/") or "@" in rest.partition("/")[0]:
        said = f"bucket `{bucket}` is not the address of a place in an object store"
        raise ConfigError(said, hint="for example `s3://my-bucket/code`")


def plan(workspace: Workspace, bucket: str, *, quiet: bool = False) -> BucketCode:
    """Where the archive of a workspace belongs. Nothing is sent.

    Raises:
        ConfigError: it has a ``Dockerfile.torchx``, which only an image can follow.
    """
    found = content.content_hash(entries_of(workspace))
    return BucketCode(workspace, found, f"{bucket.rstrip('/')}/{found.replace(':', '-')}.tgz", quiet)


def signed(item: Object, codes: Mapping[str, BucketCode]) -> Object:
    """An object as it is submitted: of a Secret that leads to an archive, this is uploaded and its address signed.

    Args:
        codes: URL of an archive -> what is in it.

    Raises:
        BackendError: the bucket refuses it, or does not answer.
        MissingDependencyError: fsspec's part for this kind of object store is not installed.
    """
    data = item.get("stringData") or {}
    code = codes.get(data.get(URL, ""))
    return item if code is None else {**item, "stringData": {**data, URL: upload(code)}}


def upload(code: BucketCode) -> str:
    """Sends the archive unless the bucket has it. Returns a signed address, which is good for :data:`SIGNED_S` seconds.

    Raises:
        BackendError: the bucket refuses it, or does not answer; or the workspace has changed since it was planned.
        MissingDependencyError: fsspec's part for this kind of object store is not installed.
    """
    fs, path = _open(code.url)
    try:
        if not _is_there(fs, path):
            _send(code, fs, path)
        address = str(fs.sign(path, expiration=SIGNED_S))
    except (BackendError, ConfigError):
        raise
    except NotImplementedError:
        said = f"object stores of this kind sign no addresses: `{code.url}`"
        raise BackendError(said, hint="use `code=registry`, or a bucket of S3, GCS or Azure") from None
    except Exception as e:  # file systems elsewhere raise what they like
        reason = str(e) or type(e).__name__
        raise BackendError(f"the code cannot be put at `{code.url}`: {reason}", hint=_HINT) from e
    if _TEMPORARY.search(address):
        logger("torchx.schedulers").warning(
            "`%s` is signed with temporary credentials: pods that start after these have expired cannot fetch it",
            code.url,
        )
    learn(address)
    return address


_HINT = "does the bucket exist, and do your credentials let you write there? `AWS_ENDPOINTURL` names an endpoint of S3"


def _open(url: str) -> tuple[Any, str]:
    scheme = url.partition("://")[0]
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as e:
        hint = install_extra("s3") if scheme == "s3" else f"install fsspec's part for `{scheme}`"
        raise MissingDependencyError(f"bucket `{url}`: {e}", hint=hint) from e
    except Exception as e:  # as above
        raise BackendError(f"bucket `{url}` cannot be opened: {e}", hint=_HINT) from e
    return fs, str(path)


def _is_there(fs: Any, path: str) -> bool:
    """Whether the bucket has the archive, and will have it for longer than its address is good.

    One that is older than that is sent again, for a rule of the bucket may be about to remove it.
    """
    try:
        changed = fs.modified(path)
    except (FileNotFoundError, PermissionError):  # who may not list a bucket is refused what is not there
        return False
    if changed.tzinfo is None:
        changed = changed.replace(tzinfo=datetime.timezone.utc)
    age = datetime.datetime.now(datetime.timezone.utc) - changed
    return bool(age.total_seconds() < SIGNED_S)


def _send(code: BucketCode, fs: Any, path: str) -> None:
    """By a file of ours, so that the bucket gets all of it or nothing."""
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
        """Shows how much has been sent."""

        def call(self, *_: object, **__: object) -> None:
            display.doing(f"Uploading the code to {name}: {megabytes(self.value)}/{megabytes(size)} MB")

    return Progress(size=size)
