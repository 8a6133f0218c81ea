"""Script mode: uploads code to S3 as an archive, which SageMaker's training toolkit in the image fetches and runs.

Hyperparameters, which the toolkit parses as JSON, name the archive and the script in it to run. All others become
arguments ``--name value`` of the script. https://github.com/aws/sagemaker-training-toolkit#readme

torchx adds a script with the role's command to the archive of a folder, so that any command works, such as that of
``dist.ddp``. It does not change an archive that is already in S3; then the toolkit must support the command itself.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Mapping
from typing import IO, Any

from torchx.errors import ConfigError, NotSupportedError, SpecError, TorchXError
from torchx.schedulers.aws.client import Clients, call
from torchx.schedulers.aws.errors import AwsError
from torchx.schedulers.aws.sagemaker import command
from torchx.schedulers.aws.tags import REPLICA
from torchx.util.foreign import loads
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.workspace.content import FILE, entries
from torchx.workspace.images import archive

_Object = dict[str, Any]

PROGRAM, ARCHIVE, REGION = "sagemaker_program", "sagemaker_submit_directory", "sagemaker_region"
LAUNCHER = "torchx_run.sh"
"""The script that is added to a folder."""
_ENDING = "source/sourcedir.tar.gz"  # below the job's name, as in the SageMaker SDK
_IN_MEMORY = 16 << 20
_MAX = 5 << 30  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html
_MISSING = frozenset({"NoSuchBucket", "404"})
_EXISTS = frozenset({"BucketAlreadyOwnedByYou", "OperationAborted"})


@dataclass(frozen=True)
class Source:
    """A folder to upload, the script to add, and the command in it, for display."""

    folder: str
    launcher: str
    words: tuple[str, ...]


def render(
    source_dir: str, words: list[str], env: Mapping[str, str], given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], Source | None]:
    """Render hyperparameters (without the archive's location), ``Environment``, and the folder to upload.

    ``source_dir`` is a folder, or an archive in S3; ``words`` have :data:`REPLICA` for the host's number; ``given`` are
    the hyperparameters of the user. NotSupportedError: the toolkit cannot run this command in an archive in S3.
    """
    own = sorted(name for name in given if name in (PROGRAM, ARCHIVE))
    if own:
        raise ConfigError(f"hyperparameter `{own[0]}` is set by torchx when `source_dir` is used")
    values = {name: as_json(value) for name, value in given.items()}
    if source_dir.startswith("s3://"):
        late = [name for name, value in env.items() if REPLICA in value or len(value) > command.MAX_VALUE]
        if late or any(REPLICA in word for word in words):
            raise NotSupportedError(
                f"`source_dir` {source_dir}: with an archive in S3, the host's number and variables of more than"
                f" {command.MAX_VALUE} characters are not available",
                hint="use a local folder",
            )
        program, arguments = as_hyperparameters(words)
        # As JSON strings: the toolkit would change `true`, `1.10` or an object before it passes them to the script.
        values.update((name, json.dumps(value)) for name, value in arguments.items())
        return {**values, PROGRAM: as_json(program), ARCHIVE: as_json(source_dir)}, dict(env), None
    folder = os.path.abspath(os.path.expanduser(source_dir.removeprefix("file://")))
    if not os.path.isdir(folder):
        raise ConfigError(
            f"`source_dir` {source_dir} is not a folder", hint="use a folder, or s3://<bucket>/<key>.tar.gz"
        )
    if os.path.lexists(os.path.join(folder, LAUNCHER)):
        raise ConfigError(f"`source_dir` {source_dir} has a file `{LAUNCHER}`, which torchx adds", hint="rename it")
    words = _runnable(words, folder)
    script, rest = command.script(words, env)
    return {**values, PROGRAM: as_json(LAUNCHER)}, rest, Source(folder, script, tuple(words))


def as_json(value: str) -> str:
    """Encode a value for the toolkit. Valid JSON, such as a number, is not changed.

    >>> as_json("0.1"), as_json("true"), as_json("adam")
    ('0.1', 'true', '"adam"')
    """
    try:
        loads(value)
    except ValueError:
        return json.dumps(value)
    return value


def as_hyperparameters(words: list[str]) -> tuple[str, dict[str, str]]:
    """Return a script and hyperparameters, from which the toolkit builds the same command; NotSupportedError if it
    cannot.

    >>> as_hyperparameters(["python", "-u", "train.py", "--lr", "0.1", "--name=a b"])
    ('train.py', {'lr': '0.1', 'name': 'a b'})
    """
    left = list(words)
    if re.fullmatch(r"(?:.*/)?python[\d.]*", left[0]):
        left = [word for i, word in enumerate(left) if i and not (i == 1 and word == "-u")]
    program, arguments = (left[0] if left else ""), left[1:]
    found: dict[str, str] = {}
    while arguments:
        name, equals, value = arguments.pop(0).partition("=")
        if not equals and arguments:
            value = arguments.pop(0)
        elif not equals:
            name = ""
        if not re.fullmatch(r"--[A-Za-z0-9][\w-]+", name) or name[2:] in found:
            program = ""
            break
        found[name[2:]] = value
    if not re.fullmatch(r"[\w][\w./-]*\.(?:py|sh)", program) or ".." in program:
        raise NotSupportedError(
            "SageMaker's toolkit runs a script of an archive in S3 with arguments `--name value`; this command is "
            f"not of that form: `{' '.join(words)}`",
            hint="use a local folder as `source_dir`, with which any command works",
        )
    return program, found


def place(request: _Object, job_name: str) -> str:
    """Location of a job's archive: below its name, in the bucket of its output."""
    bucket = request["OutputDataConfig"]["S3OutputPath"].removeprefix("s3://").partition("/")[0]
    return f"s3://{bucket}/{job_name}/{_ENDING}"


def upload(client: Any, source: Source, request: _Object, *, owner: str, region: str) -> None:
    """Upload the folder, and add its location to the request; SpecError if it cannot be read, or is too large.

    ``owner`` is the account that owns the default bucket, which is created if missing; a bucket of another owner is not
    written to. Empty: another bucket was given.
    """
    import tempfile

    where = place(request, request["TrainingJobName"])
    bucket, _, key = where.removeprefix("s3://").partition("/")
    kms = request["OutputDataConfig"].get("KmsKeyId")
    params: _Object = {"Bucket": bucket, "Key": key}
    params.update({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms} if kms else {})
    params.update({"ExpectedBucketOwner": owner} if owner else {})
    doing = f"`{source.folder}` could not be uploaded to `{where}`"
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as file:
        _archive(source, file)
        if file.tell() > _MAX:
            raise SpecError(f"{doing}: it has more than 5 GiB", hint="exclude data and results in `.torchxignore`")
        file.seek(0)
        try:
            call(client, "put_object", doing, Body=file, **params)
        except AwsError as e:
            if e.code not in _MISSING or not owner:
                raise
            _create_bucket(client, bucket, region)
            file.seek(0)
            call(client, "put_object", doing, Body=file, **params)
    request["HyperParameters"] = {**request["HyperParameters"], ARCHIVE: as_json(where), REGION: as_json(region)}


def remove(clients: Clients, job: _Object) -> None:
    """Remove the archive that was uploaded for this job, if there is one. Only logs a failure."""
    try:
        where = str(loads((job.get("HyperParameters") or {}).get(ARCHIVE, '""')))
    except (ValueError, RecursionError):
        return  # set by a user
    bucket, _, key = where.removeprefix("s3://").partition("/")
    if key != f"{job['TrainingJobName']}/{_ENDING}":
        return
    try:
        call(clients.client("s3"), "delete_object", f"`{where}` could not be removed", Bucket=bucket, Key=key)
    except TorchXError as e:
        logger("torchx").info("%s", e)


def _runnable(words: list[str], folder: str) -> list[str]:
    """Prepends the interpreter if the command is a script in the folder, like ``entry_point`` in SageMaker's SDK."""
    name = words[0]
    interpreter = {".py": "python", ".sh": "sh"}.get(os.path.splitext(name)[1])
    if interpreter and not os.path.isabs(name) and os.path.isfile(os.path.join(folder, name)):
        return [interpreter, *words]
    return words


def _archive(source: Source, file: IO[bytes]) -> None:
    """Write the folder as ``.tar.gz``, without ignored files. The result is reproducible."""
    with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for entry in entries(source.folder):
            packed.write(archive.header_of(entry, entry.path, 0))
            if entry.kind == FILE:
                for chunk in entry.chunks():
                    packed.write(chunk)
                packed.write(archive.padding(entry.size))
        packed.write(archive.small_file(LAUNCHER, 0o755, os.fsencode(source.launcher)) + archive.END)


def _create_bucket(client: Any, bucket: str, region: str) -> None:
    where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    try:
        call(client, "create_bucket", f"bucket `{bucket}` could not be created", Bucket=bucket, **where)
    except AwsError as e:
        if e.code not in _EXISTS:
            raise
