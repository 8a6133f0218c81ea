"""Script mode: code goes to S3 as an archive, and SageMaker's training toolkit in the image fetches it and runs it.

The toolkit is told by hyperparameters, each of which it reads as JSON: the archive, and the script of it to run. All
others it gives to the script as ``--name value``. https://github.com/aws/sagemaker-training-toolkit#readme

A folder's archive gets one more script, with the command of the role in it, so that any command can be run
(``dist.ddp`` too), with any words. An archive that is in S3 already stays as it is: there the command has to be one
that the toolkit can run by itself.
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
from torchx.util.notices import logger
from torchx.util.records import dataclass
from torchx.workspace.content import FILE, entries
from torchx.workspace.images import archive

_Object = dict[str, Any]

PROGRAM, ARCHIVE, REGION = "sagemaker_program", "sagemaker_submit_directory", "sagemaker_region"
LAUNCHER = "torchx_run.sh"
"""The script that is added to a folder."""
_ENDING = "source/sourcedir.tar.gz"  # below the job's name, where the SageMaker SDK puts it, too
_IN_MEMORY = 16 << 20
_MOST = 5 << 30  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/upload-objects.html
_MISSING = frozenset({"NoSuchBucket", "404"})
_MADE_MEANWHILE = frozenset({"BucketAlreadyOwnedByYou", "OperationAborted"})


@dataclass(frozen=True)
class Source:
    """A folder that is to be uploaded.

    Attributes:
        words: the command that is run in it, as a dry run shows it.
    """

    folder: str
    launcher: str
    words: tuple[str, ...]


def render(
    source_dir: str, words: list[str], env: Mapping[str, str], given: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str], Source | None]:
    """Hyperparameters but the archive's place, ``Environment``, and what is to be uploaded.

    Args:
        source_dir: a folder, or an archive in S3.
        words: entrypoint and arguments, with the sign of :data:`REPLICA` for the host's number.
        given: hyperparameters of the user.

    Raises:
        ConfigError: there is no such folder.
        NotSupportedError: an archive in S3 cannot be run with this command.
    """
    own = sorted(name for name in given if name in (PROGRAM, ARCHIVE))
    if own:
        raise ConfigError(f"hyperparameter `{own[0]}` is set by torchx when `source_dir` is used")
    if source_dir.startswith("s3://"):
        late = [name for name, value in env.items() if REPLICA in value or len(value) > command.MAX_VALUE]
        if late or any(REPLICA in word for word in words):
            raise NotSupportedError(
                f"`source_dir` {source_dir}: only a command made by torchx can hold the number of a host, or a variable"
                f" of more than {command.MAX_VALUE} characters",
                hint="give a local folder",
            )
        program, arguments = as_hyperparameters(words)
        told = {name: as_json(value) for name, value in {**given, **arguments}.items()}
        return {**told, PROGRAM: as_json(program), ARCHIVE: as_json(source_dir)}, dict(env), None
    folder = os.path.abspath(os.path.expanduser(source_dir.removeprefix("file://")))
    if not os.path.isdir(folder):
        raise ConfigError(
            f"`source_dir` {source_dir} is not a folder", hint="give a folder, or s3://<bucket>/<key>.tar.gz"
        )
    if os.path.lexists(os.path.join(folder, LAUNCHER)):
        raise ConfigError(f"`source_dir` {source_dir} has a file `{LAUNCHER}`, which torchx adds", hint="rename it")
    words = _runnable(words, folder)
    script, rest = command.script(words, env)
    told = {name: as_json(value) for name, value in given.items()}
    return {**told, PROGRAM: as_json(LAUNCHER)}, rest, Source(folder, script, tuple(words))


def as_json(value: str) -> str:
    """A value as the toolkit reads it; what is JSON already, such as a number, stays as it is.

    >>> as_json("0.1"), as_json("true"), as_json("adam")
    ('0.1', 'true', '"adam"')
    """
    try:
        json.loads(value)
    except ValueError:
        return json.dumps(value)
    return value


def as_hyperparameters(words: list[str]) -> tuple[str, dict[str, str]]:
    """A command as a script and hyperparameters, which the toolkit makes the same command of.

    Raises:
        NotSupportedError: the toolkit cannot run it.

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
            hint="give a local folder as `source_dir`, with which any command runs",
        )
    return program, found


def place(request: _Object, job_name: str) -> str:
    """Where the archive of a job goes: below its name, in the bucket of its output."""
    bucket = request["OutputDataConfig"]["S3OutputPath"].removeprefix("s3://").partition("/")[0]
    return f"s3://{bucket}/{job_name}/{_ENDING}"


def upload(client: Any, source: Source, request: _Object, *, owner: str, region: str) -> None:
    """Uploads the folder, and puts its place into the request.

    Args:
        owner: the account whose usual bucket it goes to; that bucket is made when it is not there, and nobody else's
            bucket of that name is written to. Empty: another bucket was given.

    Raises:
        SpecError: the folder cannot be read.
        TorchXError: S3 refused, or did not answer.
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
        if file.tell() > _MOST:
            raise SpecError(f"{doing}: it has more than 5 GiB", hint="list what is not code in `.torchxignore`")
        file.seek(0)
        try:
            call(client, "put_object", doing, Body=file, **params)
        except AwsError as e:
            if e.code not in _MISSING or not owner:
                raise
            _make_bucket(client, bucket, region)
            file.seek(0)
            call(client, "put_object", doing, Body=file, **params)
    request["HyperParameters"] = {**request["HyperParameters"], ARCHIVE: as_json(where), REGION: as_json(region)}


def remove(clients: Clients, job: _Object) -> None:
    """Removes the archive that was uploaded for this job, if there is one. Quiet when that fails."""
    try:
        where = str(json.loads((job.get("HyperParameters") or {}).get(ARCHIVE, '""')))
    except (ValueError, RecursionError):
        return  # of somebody who sets it by hand
    bucket, _, key = where.removeprefix("s3://").partition("/")
    if key != f"{job['TrainingJobName']}/{_ENDING}":
        return
    try:
        call(clients.client("s3"), "delete_object", f"`{where}` could not be removed", Bucket=bucket, Key=key)
    except TorchXError as e:
        logger("torchx").info("%s", e)


def _runnable(words: list[str], folder: str) -> list[str]:
    """With the interpreter, where the command is a script of the folder, as an ``entry_point`` of script mode is."""
    name = words[0]
    interpreter = {".py": "python", ".sh": "sh"}.get(os.path.splitext(name)[1])
    if interpreter and not os.path.isabs(name) and os.path.isfile(os.path.join(folder, name)):
        return [interpreter, *words]
    return words


def _archive(source: Source, file: IO[bytes]) -> None:
    """The folder as ``.tar.gz``, less what its ignore file names; the same files give the same bytes."""
    with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for entry in entries(source.folder):
            packed.write(archive.header_of(entry, entry.path, 0))
            if entry.kind == FILE:
                for chunk in entry.chunks():
                    packed.write(chunk)
                packed.write(archive.padding(entry.size))
        packed.write(archive.small_file(LAUNCHER, 0o755, os.fsencode(source.launcher)) + archive.END)


def _make_bucket(client: Any, bucket: str, region: str) -> None:
    where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    try:
        call(client, "create_bucket", f"bucket `{bucket}` could not be made", Bucket=bucket, **where)
    except AwsError as e:
        if e.code not in _MADE_MEANWHILE:
            raise
