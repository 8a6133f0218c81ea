"""Training jobs at moto's server, which keeps their records and runs nothing: that real clients and answers fit.

Script mode is run by SageMaker's own toolkit: it fetches the code from moto's S3, as it does in images of AWS.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess

import boto3
import pytest

from tests.backends.aws import moto
from tests.backends.docker.engine import Unavailable
from torchx.errors import BackendError
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws.ecr import EcrLogins
from torchx.schedulers.aws_sagemaker_scheduler import create_scheduler
from torchx.specs.api import AppDef, AppState, Role, macros


@pytest.fixture
def sagemaker(queue):
    """The scheduler; the role `train` is there."""
    iam = boto3.client("iam", endpoint_url=moto.ENDPOINT)
    iam.create_role(RoleName="train", AssumeRolePolicyDocument="{}")
    iam.close()
    made = create_scheduler("aws-tests")
    yield made
    made.close()


def test_a_job_is_created_described_and_deleted(sagemaker):
    """A role by its name, the account's bucket, the record and its words; unknown jobs are none."""
    app = AppDef("train", [Role("w", "img:1", entrypoint="python", args=["-c", "x" * 600], num_replicas=2)])
    app_id = sagemaker.submit(app, {"role": "train", "instance_type": "ml.m5.xlarge"})
    found = sagemaker.describe(app_id)
    assert found.state is AppState.SUCCEEDED  # moto's jobs are Completed at once
    assert (found.roles[0].args, found.roles[0].num_replicas) == (["-c", "x" * 600], 2)
    record = sagemaker._clients.client("sagemaker").describe_training_job(TrainingJobName=app_id)
    assert record["OutputDataConfig"]["S3OutputPath"] == "s3://sagemaker-us-east-1-123456789012/"
    assert record["RoleArn"].endswith(":role/train")
    assert app_id in {line.app_id for line in sagemaker.list()}
    assert sagemaker.describe("no-such-job-1") is None
    sagemaker.cancel(app_id)
    sagemaker.cancel("no-such-job-1")


# Names of hosts and `/opt/ml` are as on SageMaker, within namespaces that end with it.
_HOST = 'mount --bind "$1" /opt/ml && mount --bind "$1/hosts" /etc/hosts && exec "$2"'


def run_host(request, record, folder, k):
    """What a host of the job does: `/opt/ml` is made of the record, and the toolkit is started."""
    config = folder / "input/config"
    config.mkdir(parents=True)
    (folder / "output").mkdir()
    (folder / "hosts").write_text("127.0.0.1 localhost algo-1 algo-2\n")
    hosts = {"current_host": f"algo-{k + 1}", "hosts": ["algo-1", "algo-2"], "network_interface_name": "lo"}
    for name, content in (
        ("hyperparameters", record["HyperParameters"]),
        ("inputdataconfig", {}),
        ("resourceconfig", hosts),
    ):
        (config / f"{name}.json").write_text(json.dumps(content))
    program = moto.toolkit()
    env = {**os.environ, **request["Environment"], "PATH": f"{program.parent}:{os.environ['PATH']}"}
    made = not os.path.exists("/opt/ml")
    os.makedirs("/opt/ml", exist_ok=True)
    try:
        argv = ["unshare", "--mount", "sh", "-c", _HOST, "host", str(folder), str(program)]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=500, check=False)
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.rmdir("/opt/ml")
    failure = folder / "output/failure"
    assert done.returncode == 0, failure.read_text() if failure.exists() else done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(1200)  # the toolkit is installed
def test_the_toolkit_runs_script_mode(sagemaker, tmp_path):
    """The toolkit fetches the folder and runs the command on each host, with its words, variables and number; the bucket
    is made; delete removes the code."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(
        "import json, os, sys\n"
        "print('SAW', json.dumps([sys.argv[1:], os.environ['K'], os.environ['TORCHX_RANK0_HOST'], os.getcwd()]))\n"
    )
    words = ["--text", "a b'\"$(id)", f"r{macros.replica_id}"]
    role = Role("w", "img:1", entrypoint="train.py", args=words, num_replicas=2, env={"K": f"k{macros.replica_id}"})
    cfg = {"role": "train", "instance_type": "ml.m5.xlarge", "source_dir": str(code), "hyperparameters": {"lr": "0.1"}}
    info = sagemaker.submit_dryrun(AppDef("train", [role]), cfg)
    app_id = sagemaker.schedule(info)
    record = sagemaker._clients.client("sagemaker").describe_training_job(TrainingJobName=app_id)
    try:
        out = run_host(info.request.request(), record, tmp_path / "ml", 1)
    except Unavailable as e:
        pytest.skip(str(e))
    (seen,) = [json.loads(line[4:]) for line in out.splitlines() if line.startswith("SAW ")]
    assert seen == [[*words[:2], "r1", "--lr", "0.1"], "k1", "algo-1", "/opt/ml/code"]
    store = sagemaker._clients.client("s3")
    bucket = "sagemaker-us-east-1-123456789012"
    kept = [item["Key"] for item in store.list_objects_v2(Bucket=bucket).get("Contents", [])]
    assert kept == [f"{app_id}/source/sourcedir.tar.gz"]
    with contextlib.suppress(BackendError):  # moto knows no DeleteTrainingJob, or answers as AWS does
        sagemaker.delete(app_id)


def test_ecr(queue):
    """A login and a repository of the service; a repository that is there is no error."""
    clients = Clients()
    logins = EcrLogins(clients)
    registry = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
    for _ in range(2):
        logins.prepare([(f"{registry}/team/jobs", "1")], None, create=True)
    assert logins.credentials(registry).username == "AWS"
    names = [r["repositoryName"] for r in clients.client("ecr").describe_repositories()["repositories"]]
    assert names == ["team/jobs"]
    for region in (None, "us-east-1"):
        clients.client("ecr", region=region)
    clients.close()
