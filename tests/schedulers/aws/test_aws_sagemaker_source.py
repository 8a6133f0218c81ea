"""Script mode: what is uploaded, where, what the training toolkit is told, and what cannot be had so.

That the toolkit itself runs it is shown by `tests/backends/aws`.
"""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile

import pytest

pytest.importorskip("botocore")

from tests.schedulers.aws.batch_cloud import refusal
from tests.schedulers.aws.test_aws_sagemaker_scheduler import CFG, role, scheduler, submit
from torchx.components.dist import ddp
from torchx.errors import BackendError, ConfigError, NotSupportedError, TransientError
from torchx.schedulers.aws.sagemaker.source import as_hyperparameters
from torchx.specs.api import AppDef, macros

BUCKET = "sagemaker-us-east-1-123456789012"


@pytest.fixture
def sagemaker():
    return scheduler()


@pytest.fixture
def code(tmp_path):
    """A folder with a script, a link, a program, and an ignored file."""
    folder = tmp_path / "code"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('hello')\n")
    (folder / "pkg" / "tool").write_text("#!/bin/sh\n")
    (folder / "pkg" / "tool").chmod(0o755)
    (folder / "link").symlink_to("train.py")
    (folder / "data.bin").write_text("x")
    (folder / ".torchxignore").write_text("data.bin\n")
    return str(folder)


def told(job):
    """The hyperparameters as the toolkit parses them: all are JSON."""
    return {name: json.loads(value) for name, value in job["HyperParameters"].items()}


def archive(data):
    return tarfile.open(fileobj=io.BytesIO(data), mode="r:gz")


def test_a_folder_is_uploaded(sagemaker, code):
    """It goes to the account's bucket, below the job's name, without ignored files, with modes, plus one script."""
    sagemaker.cloud.buckets.add(BUCKET)
    app_id = submit(sagemaker, source_dir=code)
    ((where, data),) = sagemaker.cloud.objects.items()
    assert where == (BUCKET, f"{app_id}/source/sourcedir.tar.gz")
    with archive(data) as tar:
        members = {m.name: m for m in tar.getmembers()}
    assert set(members) == {".torchxignore", "link", "pkg", "pkg/tool", "torchx_run.sh", "train.py"}
    assert members["pkg/tool"].mode == members["torchx_run.sh"].mode == 0o755
    assert members["link"].linkname == "train.py"
    assert told(sagemaker.cloud.jobs[app_id]) == {
        "sagemaker_program": "torchx_run.sh",
        "sagemaker_submit_directory": f"s3://{BUCKET}/{app_id}/source/sourcedir.tar.gz",
        "sagemaker_region": "us-east-1",
    }
    algorithm = sagemaker.cloud.jobs[app_id]["AlgorithmSpecification"]
    assert not {"ContainerEntrypoint", "ContainerArguments"} & set(algorithm)  # it is the image's own that fetches
    (_, put) = next(call for call in sagemaker.cloud.calls if call[0] == "put_object")
    assert put["ExpectedBucketOwner"] == "123456789012"


def test_the_same_files_are_the_same_archive(sagemaker, code):
    """The archive contains neither times nor owners."""
    for _ in range(2):
        submit(sagemaker, source_dir=code, output_path="s3://out/x")
        os.utime(os.path.join(code, "train.py"), (1, 1))
    first, second = sagemaker.cloud.objects.values()
    assert first == second


def test_the_bucket_of_the_output_and_its_key(sagemaker, code):
    """Code goes to the bucket of the output, with its encryption; a bucket given by the user is never created."""
    submit(sagemaker, source_dir=code, output_path="s3://out/models", output_kms_key="k1")
    (_, put) = next(call for call in sagemaker.cloud.calls if call[0] == "put_object")
    assert (put["Bucket"], put["SSEKMSKeyId"], put["ServerSideEncryption"]) == ("out", "k1", "aws:kms")
    assert "ExpectedBucketOwner" not in put
    with pytest.raises(BackendError, match="bucket does not exist"):
        submit(sagemaker, source_dir=code, output_path="s3://nowhere/x")
    assert sagemaker.cloud.count("create_bucket") == 0


def test_the_accounts_bucket_is_made(sagemaker, code):
    """The default bucket is created on first use, like in SageMaker's SDK."""
    submit(sagemaker, source_dir=code)
    assert sagemaker.cloud.count("create_bucket") == 1
    assert [bucket for bucket, _ in sagemaker.cloud.objects] == [BUCKET]


def run(data, tmp_path, *arguments):
    """Runs the script of the archive where the toolkit has unpacked it."""
    folder = tmp_path / "unpacked"
    with archive(data) as tar:
        tar.extractall(folder, filter="data")
    launcher = folder / "torchx_run.sh"
    assert launcher.stat().st_mode & stat.S_IXUSR
    config = tmp_path / "resourceconfig.json"
    config.write_text(json.dumps({"current_host": "algo-2", "hosts": ["algo-1", "algo-2"]}))
    launcher.write_text(launcher.read_text().replace("/opt/ml/input/config/resourceconfig.json", str(config)))
    done = subprocess.run([str(launcher), *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_any_words_and_variables_arrive(sagemaker, code, tmp_path):
    """They arrive unchanged, with the host's number, followed by the hyperparameters."""
    show = "import sys, os, json; print(json.dumps([sys.argv[1:], os.environ['K'], len(os.environ['LONG'])]))"
    with open(os.path.join(code, "show.py"), "w") as f:
        f.write(show)
    words = ["$HOME", "'", "a\nb", "", f"r{macros.replica_id}"]
    given = role("show.py", *words, n=2, env={"K": f"k{macros.replica_id}", "LONG": "y" * 2000, "P": "1"})
    given.entrypoint = "python3"
    app_id = submit(sagemaker, given, source_dir=code, hyperparameters={"lr": "0.1", "opt": "adam"})
    job = sagemaker.cloud.jobs[app_id]
    assert (told(job)["lr"], told(job)["opt"]) == (0.1, "adam")
    assert job["Environment"]["P"] == "1"
    assert not {"K", "LONG"} & set(job["Environment"])
    (data,) = sagemaker.cloud.objects.values()
    assert run(data, tmp_path, "--lr", "0.1") == [[*words[:4], "r1", "--lr", "0.1"], "k1", 2000]


def test_dist_ddp_runs_in_it(sagemaker, code):
    """torchrun starts the script in the folder, on all hosts."""
    app = ddp("--epochs", "2", script="train.py", image="img:1", j="2x1")
    sagemaker.submit(app, {**CFG, "source_dir": code})
    (data,) = sagemaker.cloud.objects.values()
    with archive(data) as tar:
        text = tar.extractfile("torchx_run.sh").read().decode()
    assert "TORCHX_RANK0_HOST=algo-1" in text
    assert "torchrun " in text
    assert "train.py --epochs 2" in text


def test_an_entry_point_needs_no_interpreter(sagemaker, code):
    """A script in the folder is started like in script mode."""
    given = role("--lr", "1")
    given.entrypoint = "train.py"
    info = sagemaker.submit_dryrun(AppDef("app", [given]), {**CFG, "source_dir": code})
    assert info.request.source.words == ("python", "train.py", "--lr", "1")


def test_a_dry_run_asks_nothing_and_shows_it(sagemaker, code):
    """It shows the location and the command, without secrets."""
    app = AppDef("app", [role("--token", "sesame")])
    info = sagemaker.submit_dryrun(app, {**CFG, "source_dir": code, "hyperparameters": {"api_key": "sesame"}})
    shown = str(info)
    assert f"# `{code}` is uploaded to s3://sagemaker-REGION-ACCOUNT/{info.request.job_name}/source" in shown
    assert "echo --token" in shown
    assert "sesame" not in shown
    assert sagemaker.cloud.calls == []


def test_code_in_s3_is_used_as_it_is(sagemaker):
    """Nothing is uploaded; the command becomes the toolkit's script and hyperparameters, and is read back as a role."""
    given = role("-u", "src/train.py", "--lr", "0.1", "--name=x y", "--on", "true", "--conf", '{"a": [1.10]}')
    given.entrypoint = "python"
    app_id = submit(sagemaker, given, source_dir="s3://b/c.tar.gz", hyperparameters={"seed": "7"})
    assert sagemaker.cloud.objects == {}
    assert told(sagemaker.cloud.jobs[app_id]) == {
        # Text stays text: of values of other types, the toolkit makes `True` and `{'a': [1.1]}`.
        "lr": "0.1",
        "name": "x y",
        "on": "true",
        "conf": '{"a": [1.10]}',
        "seed": 7,
        "sagemaker_program": "src/train.py",
        "sagemaker_submit_directory": "s3://b/c.tar.gz",
    }
    assert sagemaker.describe(app_id).roles[0].entrypoint == "src/train.py"
    sagemaker.cancel(app_id)
    sagemaker.delete(app_id)
    assert sagemaker.cloud.count("delete_object") == 0  # it is not ours


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "train.py"],
        ["python", "-m", "train"],
        ["python", "../train.py"],
        ["python", "/train.py"],
        ["python", "train.py", "--flag"],
        ["python", "train.py", "-x", "1"],
        ["python", "train.py", "word"],
        ["python", "train.py", "--a", "1", "--a", "2"],
        ["python"],
    ],
    ids=" ".join,
)
def test_what_the_toolkit_cannot_run_by_itself(words):
    """The error is one line, and the hint names an alternative."""
    with pytest.raises(NotSupportedError, match="this command is not of that form") as e:
        as_hyperparameters(words)
    assert "local folder" in e.value.hint


def test_numbers_of_hosts_need_a_folder(sagemaker):
    """The toolkit passes the same arguments to all hosts."""
    given = role("train.py", "--k", macros.replica_id, n=2)
    given.entrypoint = "python"
    with pytest.raises(NotSupportedError, match="the host's number"):
        submit(sagemaker, given, source_dir="s3://b/c.tar.gz")


def test_a_name_that_is_taken(sagemaker, code):
    """A file of the user is never replaced."""
    with open(os.path.join(code, "torchx_run.sh"), "w") as f:
        f.write("mine")
    with pytest.raises(ConfigError, match=r"torchx_run\.sh"):
        submit(sagemaker, source_dir=code)


def test_a_refusal_leaves_no_code_behind(sagemaker, code):
    """The archive is removed; after a lost answer it stays, as the job may run."""
    refused = refusal("ResourceLimitExceeded", "no", operation="CreateTrainingJob")
    sagemaker.cloud.faults.append(("create_training_job", refused, "before"))
    with pytest.raises(BackendError, match="quota"):
        submit(sagemaker, source_dir=code)
    assert sagemaker.cloud.objects == {}
    lost = refusal("InternalFailure", "?", 500, "CreateTrainingJob")
    sagemaker.cloud.faults.append(("create_training_job", lost, "after"))
    with pytest.raises(TransientError):
        submit(sagemaker, source_dir=code)
    assert len(sagemaker.cloud.objects) == 1


def test_delete_removes_the_code(sagemaker, code):
    """A missing archive or permission does not fail it."""
    app_id = submit(sagemaker, source_dir=code)
    sagemaker.delete(app_id)
    assert sagemaker.cloud.objects == {}
    app_id = submit(sagemaker, source_dir=code)
    sagemaker.cloud.faults.append(("delete_object", refusal("AccessDenied", "no", 403), "before"))
    sagemaker.delete(app_id)
    assert sagemaker.describe(app_id) is None
    by_hand = submit(sagemaker, hyperparameters={"sagemaker_submit_directory": "s3://b/theirs.tar.gz"})
    sagemaker.cancel(by_hand)
    sagemaker.delete(by_hand)
    assert sagemaker.cloud.count("delete_object") == 2
