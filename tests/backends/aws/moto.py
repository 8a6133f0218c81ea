"""An AWS endpoint on loopback for tests: moto's server, in a virtual environment of its own. It runs Batch's containers on Docker.

As a program::

    python -m tests.backends.aws.moto up      # prints the endpoint
    python -m tests.backends.aws.moto down    # stops what `up` started

State lies below ``$TORCHX_BACKENDS`` (default ``/var/tmp/torchx-backends``), in ``aws``.

What Batch does and moto 5.2 leaves out is added by :data:`_LAUNCHER`: AWS_BATCH_JOB_ARRAY_INDEX in the containers of an
array, the end of an array one of whose tasks failed, that its tasks are terminated with it, and the exit code in
DescribeJobs (moto tells it in ListJobs). :mod:`tests.backends.aws.nodes` runs multi-node jobs in moto's stead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.backends import venvs
from tests.backends.docker.engine import BACKENDS, Unavailable, end, environment, until

HOST, PORT = "127.0.0.1", int(os.environ.get("TORCHX_MOTO_PORT", "5556"))
ENDPOINT = f"http://{HOST}:{PORT}"
STATE = BACKENDS / "aws"
# What `moto[server]` asks for besides is for services that no test here uses.
PACKAGES = ["moto", "docker", "flask", "flask-cors", "sagemaker-training"]

_processes: list[subprocess.Popen[bytes]] = []

_LAUNCHER = '''
import re, sys
import docker.client
import torchx_nodes
from docker.models.containers import ContainerCollection
from moto.batch.models import Job
from moto.server import main

docker.client.DEFAULT_TIMEOUT_SECONDS = 600  # a job fails whose container a busy engine is slower to start
describe = Job.describe

def describe_with_exit_code(self):
    result = describe(self)
    if self.job_stopped and self.exit_code is not None and "container" in result:
        result["container"] = {**result["container"], "exitCode": self.exit_code}
    children = {child.status for child in self._child_jobs or ()}
    if children and children <= {"SUCCEEDED", "FAILED"}:
        self.status = result["status"] = "FAILED" if "FAILED" in children else "SUCCEEDED"
    elif children:
        self.status = result["status"] = "PENDING"
    return result

def terminate_with_children(self, reason):
    terminate(self, reason)
    for child in self._child_jobs or ():
        if child.status not in ("SUCCEEDED", "FAILED"):
            child.terminate(reason)

terminate, Job.terminate = Job.terminate, terminate_with_children
Job.describe = describe_with_exit_code
run = ContainerCollection.run
UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

def run_task(self, image, command=None, **kwargs):
    """The container of a task is called `<job>-<id>-<index>`; a single one `<job>-<id>`."""
    found = re.search(UUID + r"-(\\\\d+)$", kwargs.get("name") or "")
    if found and "AWS_BATCH_JOB_NODE_INDEX" not in kwargs["environment"]:
        kwargs["environment"].update(AWS_BATCH_JOB_ARRAY_INDEX=found[1])
    return run(self, image, command, **kwargs)

ContainerCollection.run = run_task
torchx_nodes.install()
sys.exit(main(sys.argv[1:]))
'''.replace("\\\\", "\\")


def up() -> bool:
    """The endpoint answers. True: we have started it, and it goes on when we end.

    Raises:
        Unavailable: it cannot be had.
    """
    python = venvs.made("aws", PACKAGES) / "bin/python"
    with _lock():
        if answers():
            return False
        launcher = STATE / "launcher.py"
        launcher.write_text(_LAUNCHER)
        shutil.copy(Path(__file__).with_name("nodes.py"), STATE / "torchx_nodes.py")
        log = STATE / "moto.log"
        env = {**environment(), "AWS_DEFAULT_REGION": "us-east-1"}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [python, launcher, "-H", HOST, "-p", str(PORT)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env=env,
            )
        _processes.append(process)
        (STATE / "moto.pid").write_text(str(process.pid))
        until(answers, "moto's server does not answer", log=log, process=process, timeout_s=300)
    return True


def down() -> None:
    """Ends the server that :func:`up` has started."""
    pid = STATE / "moto.pid"
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
        end(int(pid.read_text()), signal.SIGTERM)
    while _processes:
        _processes.pop().wait(60)
    pid.unlink(missing_ok=True)


def answers() -> bool:
    try:
        with urllib.request.urlopen(f"{ENDPOINT}/moto-api/data.json", timeout=120):  # refused at once where nobody is
            return True
    except OSError:
        return False


def reset() -> None:
    """Forget everything: queues, jobs, logs."""
    with urllib.request.urlopen(urllib.request.Request(f"{ENDPOINT}/moto-api/reset", method="POST"), timeout=300):
        pass


def variables() -> dict[str, str]:
    """By which boto3, and so torchx, finds the endpoint."""
    return {
        "AWS_ENDPOINT_URL": ENDPOINT,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def make_queue(name: str) -> None:
    """A queue with a compute environment of EC2 behind it, and the roles and network that they need."""
    import boto3

    def client(service: str):  # boto3 makes its classes
        return boto3.client(service, endpoint_url=ENDPOINT, region_name="us-east-1")

    iam, ec2, batch = client("iam"), client("ec2"), client("batch")
    role = iam.create_role(RoleName=f"{name}-role", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    profile = iam.create_instance_profile(InstanceProfileName=f"{name}-profile")["InstanceProfile"]["Arn"]
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
    environment_arn = batch.create_compute_environment(
        computeEnvironmentName=f"{name}-ce",
        type="MANAGED",
        computeResources={
            "type": "EC2",
            "minvCpus": 0,
            "maxvCpus": 64,
            "instanceTypes": ["m5.2xlarge"],
            "subnets": [subnet],
            "securityGroupIds": [group],
            "instanceRole": profile,
        },
        serviceRole=role,
    )["computeEnvironmentArn"]
    batch.create_job_queue(
        jobQueueName=name,
        state="ENABLED",
        priority=1,
        computeEnvironmentOrder=[{"order": 1, "computeEnvironment": environment_arn}],
    )
    for used in (iam, ec2, batch):
        used.close()


def toolkit() -> Path:
    """The program ``train`` of SageMaker's training toolkit, which images of AWS start, in the same environment.

    Raises:
        Unavailable: it cannot be had; it has a part in C.
    """
    return venvs.made("aws", PACKAGES) / "bin/train"


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / "server.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        {"up": up, "down": down}[sys.argv[1]]()
    except Unavailable as e:
        sys.exit(str(e))
    print(ENDPOINT)
