"""Jobs as requests to Batch, their submission, and errors of AWS."""

from __future__ import annotations

import json
import subprocess
from fnmatch import fnmatchcase
from typing import Any

import pytest

pytest.importorskip("botocore")

import botocore.exceptions as known

from tests.schedulers.aws.batch_cloud import Cloud, refusal, validate
from torchx.errors import BackendError, ConfigError, NotFoundError, NotSupportedError, SpecError, TransientError
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler, create_scheduler
from torchx.specs.api import (
    AppDef,
    AppState,
    BindMount,
    DeviceMount,
    Resource,
    Role,
    VolumeMount,
    macros,
)
from torchx.specs.named_resources_aws import NAMED_RESOURCES
from torchx.specs.secret import Secret
from torchx.specs.wishes.after import AFTER


def role(*args, n=1, name="w", **more):
    more.setdefault("resource", Resource(cpu=2, gpu=0, memMB=1024))
    return Role(name, "img:1", entrypoint="echo", args=list(args), num_replicas=n, **more)


def scheduler(cloud=None):
    cloud = cloud or Cloud()
    made: Any = AWSBatchScheduler("s", cloud, cloud.logs)
    made._sleep = lambda seconds: None
    made.cloud = cloud
    return made


def request(*roles, **cfg):
    """The request of a job, validated by botocore."""
    job = scheduler().submit_dryrun(AppDef("app", list(roles)), {"queue": "q", **cfg}).request
    validate("batch", "register_job_definition", job.job_def)
    validate("batch", "submit_job", job.request())
    return job


def container(job):
    return job.job_def["containerProperties"]


def nodes(job):
    return job.job_def["nodeProperties"]["nodeRangeProperties"]


@pytest.fixture
def batch():
    return scheduler()


def submit(batch, *roles, **cfg):
    return batch.submit(AppDef("app", list(roles) or [role("hi")]), {"queue": "q", **cfg})


# -- requests -------------------------------------------------------------------------------------------


def test_one_replica_is_a_container_job_without_a_shell():
    """One replica has no wrapper; all macros are replaced, and rank 0 is localhost."""
    job = request(role(macros.replica_id, f"$${{{macros.rank0_env}}}", env={"A": "1"}))
    assert job.job_def["type"] == "container"
    assert container(job)["command"] == ["echo", "0", "${TORCHX_RANK0_HOST}"]
    env = {e["name"]: e["value"] for e in container(job)["environment"]}
    assert env["TORCHX_RANK0_HOST"] == "localhost"
    assert (env["TORCHX_ROLE_NAME"], env["TORCHX_ROLE_IDX"], env["A"]) == ("w", "0", "1")
    assert "privileged" not in container(job)


def test_roles_are_ranges_of_nodes():
    """A role is one range whatever its size, so the number of replicas is not limited by Batch's five ranges."""
    job = request(role(n=8, name="a"), role(n=3, name="b"))
    assert [r["targetNodes"] for r in nodes(job)] == ["0:7", "8:10"]
    assert job.job_def["nodeProperties"]["numNodes"] == 11
    with pytest.raises(NotSupportedError, match="6 roles"):
        request(*[role(name=f"r{i}") for i in range(6)])


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_node_finds_its_number(shell):
    """Each node has its number within its role in arguments and environment; words are passed unchanged."""
    words = [f"x{macros.replica_id}y{macros.replica_id}", "$HOME", "'", '"', "\\", "*", "", "-n", "é", "a\nb"]
    job = request(role(n=2, name="a"), role(*words, n=2, name="b", env={"K": f"k {macros.replica_id} $(id)", "P": "1"}))
    command = nodes(job)[1]["container"]["command"]
    at = command.index("echo")
    show = ["python3", "-c", "import os,sys,json; print(json.dumps([sys.argv[1:], dict(os.environ)]))"]
    argv = [shell, *command[1:at], *show, *command[at + 1 :]]
    env = {"PATH": "/usr/bin:/bin:/usr/local/bin", "AWS_BATCH_JOB_NODE_INDEX": "3", "_": ""}
    env["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = "10.0.0.7"
    got, seen = json.loads(subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout)
    assert got == ["x1y1", *words[1:]]
    assert seen["K"] == "k 1 $(id)"
    assert (seen["TORCHX_REPLICA_ID"], seen["TORCHX_RANK0_HOST"]) == ("1", "10.0.0.7")
    assert [name for name in seen if name.startswith("_tx")] == []


def test_instance_type_of_one_replica_is_honoured():
    """An instance type makes even one replica a multi-node job, as Batch supports types only there."""
    job = request(role(resource=NAMED_RESOURCES["aws_p4d.24xlarge"]()))
    assert nodes(job)[0]["container"]["instanceType"] == "p4d.24xlarge"
    assert nodes(job)[0]["container"]["command"] == ["echo"]
    devices = nodes(job)[0]["container"]["linuxParameters"]["devices"]
    assert [d["hostPath"] for d in devices] == [f"/dev/infiniband/uverbs{i}" for i in range(4)]
    with pytest.raises(SpecError, match="different instance types"):
        request(
            role(resource=NAMED_RESOURCES["aws_p4d.24xlarge"]()),
            role(name="b", resource=NAMED_RESOURCES["aws_m5.2xlarge"]()),
        )


def test_neuron_devices():
    """Trainium chips become devices of the container."""
    job = request(role(resource=NAMED_RESOURCES["aws_trn1.2xlarge"]()))
    devices = nodes(job)[0]["container"]["linuxParameters"]["devices"]
    assert devices == [
        {"hostPath": "/dev/neuron0", "containerPath": "/dev/neuron0", "permissions": ["READ", "WRITE", "MKNOD"]}
    ]


def test_mounts():
    """Folders of the host, EFS and devices work; a volume that is not a file system is rejected."""
    job = request(
        role(
            mounts=[
                BindMount("/data", "/d", read_only=True),
                VolumeMount("fs-0abc:fsap-1", "/e"),
                DeviceMount("/dev/fuse", "/dev/fuse", "rw"),
            ]
        )
    )
    assert [v["name"] for v in container(job)["volumes"]] == ["mount-0", "mount-1"]
    assert [p["readOnly"] for p in container(job)["mountPoints"]] == [True, False]
    assert container(job)["volumes"][1]["efsVolumeConfiguration"]["authorizationConfig"]["accessPointId"] == "fsap-1"
    assert container(job)["linuxParameters"]["devices"][0]["permissions"] == ["READ", "WRITE"]
    with pytest.raises(SpecError, match="`claim` is not an EFS file system"):
        request(role(mounts=[VolumeMount("claim", "/e")]))
    with pytest.raises(SpecError, match="replica_id"):
        request(role(n=2, mounts=[BindMount(f"/d/{macros.replica_id}", "/d")]))


def test_retries():
    """By default only a lost host is retried; with `max_retries` any failure is, except of pulling the image."""
    alone = request(role()).job_def["retryStrategy"]
    assert alone["attempts"] == 3
    assert [rule["action"] for rule in alone["evaluateOnExit"]] == ["RETRY", "EXIT"]
    asked = request(role(max_retries=4)).job_def["retryStrategy"]
    assert asked["attempts"] == 5
    assert asked["evaluateOnExit"][-1] == {"onReason": "*", "action": "RETRY"}
    [pull] = [rule["onReason"] for rule in asked["evaluateOnExit"] if rule["action"] == "EXIT"]
    for error in ("CannotPullContainerError: x", "CannotPullECRContainerError: x", "CannotPullImageManifestError: x"):
        assert fnmatchcase(error, pull)
    assert request(role(), host_retries=0).job_def["retryStrategy"] == {"attempts": 1}
    with pytest.raises(SpecError, match="0 to 9"):
        request(role(max_retries=10))


def test_options():
    """Each option is in the field that Batch documents for it."""
    job = request(
        role(),
        share_id="team",
        priority=7,
        timeout_s=3600,
        job_role_arn="arn:aws:iam::123456789012:role/job",
        execution_role_arn="arn:aws:iam::123456789012:role/exec",
        ulimits=["memlock:-1:-1"],
        privileged=True,
        user="ada",
        secrets={"HF_TOKEN": "arn:secret"},
        log_group="/jobs",
        tags={"cost": "42"},
    )
    assert (job.share_id, job.request()["shareIdentifier"], job.request()["schedulingPriorityOverride"]) == (
        "team",
        "team",
        7,
    )
    assert job.job_def["timeout"] == {"attemptDurationSeconds": 3600}
    assert container(job)["privileged"] is True
    assert container(job)["ulimits"] == [{"name": "memlock", "softLimit": -1, "hardLimit": -1}]
    assert container(job)["secrets"] == [{"name": "HF_TOKEN", "valueFrom": "arn:secret"}]
    assert container(job)["logConfiguration"]["options"] == {"awslogs-group": "/jobs"}
    assert job.request()["tags"]["torchx.pytorch.org/user"] == "ada"
    assert job.request()["tags"]["cost"] == "42"
    assert job.job_def["propagateTags"] is True


def test_secrets_by_their_arns():
    """They are not in the environment: Batch reads them with the execution role."""
    env = {"HF_TOKEN": Secret("aws-sm:arn:hf"), "A": "b"}
    for n in (1, 2):
        job = request(
            role(env=env, n=n), execution_role_arn="arn:aws:iam::123456789012:role/exec", secrets={"B": "arn:b"}
        )
        made = container(job) if n == 1 else nodes(job)[0]["container"]
        assert made["secrets"] == [{"name": "B", "valueFrom": "arn:b"}, {"name": "HF_TOKEN", "valueFrom": "arn:hf"}]
        names = {variable["name"] for variable in made["environment"]}
        assert "A" in names
        assert "HF_TOKEN" not in names


def test_secrets_need_who_reads_them():
    """Without an execution role the job would fail when it starts."""
    with pytest.raises(ConfigError, match="`execution_role_arn` is not set"):
        request(role(env={"HF_TOKEN": Secret("aws-sm:arn:hf")}))


def test_values_are_refused():
    """The hint names an alternative: every user can read a job definition."""
    with pytest.raises(NotSupportedError, match="`aws_batch` cannot take secret `HF_TOKEN` from `env:HF_TOKEN`") as e:
        request(role(env={"HF_TOKEN": Secret("env:HF_TOKEN")}))
    assert "aws secretsmanager create-secret" in e.value.hint


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        ({"priority": 3}, "share"),
        ({"timeout_s": 5}, "60 seconds"),
        ({"compute": "tpu"}, "not one of auto"),
        ({"ulimits": ["much"]}, "is not a valid ulimit"),
        ({"ulimits": ["nofile:9:3"]}, "above the hard one"),
        ({"share_id": "a", "priority": 10000}, "between 0 and 9999"),
    ],
)
def test_wrong_options(cfg, said):
    """An invalid option is rejected before any request."""
    with pytest.raises(ConfigError, match=said):
        request(role(), **cfg)


@pytest.mark.parametrize("name", ["A-B", "É", "1A"])
def test_a_variable_that_the_shell_of_a_node_cannot_set(name):
    """Its value depends on the node. A variable with a fixed value may have any name: Batch sets it."""
    with pytest.raises(SpecError, match=f"variable `{name}` uses the replica's number"):
        request(role(n=2, env={name: f"k{macros.replica_id}"}))
    assert request(role(n=2, env={name: "k"}))


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ([], "app `app` has no roles"),
        ([role(mounts=[type("TmpfsMount", (), {})()])], "role `w`: Batch cannot mount a TmpfsMount"),
    ],
)
def test_what_a_program_gives_without_a_runner(roles, said):
    """The Runner refuses it before; a program may call a scheduler itself."""
    with pytest.raises(SpecError, match=said):
        request(*roles)


def test_secrets_are_masked():
    """Neither the text of a dry run nor the repr of the request contains a secret."""
    job = request(role("--token", "sesame1", env={"API_KEY": "sesame2"}))
    many = request(role("--token", "sesame1", n=2, env={"API_KEY": f"sesame2{macros.replica_id}"}))
    for shown in (str(job), repr(job), str(many), repr(many)):
        assert "sesame" not in shown
        assert "echo" in shown


def test_dry_run_asks_nothing():
    """A dry run makes no call and imports no AWS package."""
    batch = scheduler()
    batch.submit_dryrun(AppDef("app", [role()]), {"queue": "q"})
    assert batch.cloud.calls == []
    code = (
        "import sys\n"
        "from torchx.schedulers.aws_batch_scheduler import create_scheduler\n"
        "from torchx.specs import AppDef, Role, Resource\n"
        "r = Role('w', 'i', entrypoint='e', resource=Resource(1, 0, 64))\n"
        "str(create_scheduler('s').submit_dryrun(AppDef('a', [r]), {'queue': 'q'}))\n"
        "print([m for m in sys.modules if m.partition('.')[0] in ('boto3', 'botocore', 'docker')])\n"
    )
    import sys

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# -- submission -----------------------------------------------------------------------------------------


def test_equal_definitions_are_shared(batch):
    """Jobs that differ only in their id share a definition; other jobs have their own."""
    submit(batch, role("hi", env={"TORCHX_JOB_ID": f"aws_batch://s/{macros.app_id}"}))
    first = submit(batch, role("hi", env={"TORCHX_JOB_ID": f"aws_batch://s/{macros.app_id}"}))
    assert batch.cloud.count("register_job_definition") == 1
    assert {"name": "TORCHX_JOB_ID", "value": f"aws_batch://s/{first}"} in batch.cloud.job(first)["container"][
        "environment"
    ]
    submit(batch, role("other"))
    assert batch.cloud.count("register_job_definition") == 2


def test_delete_takes_the_definition_away(batch):
    """After a delete the definition is inactive and the job has ended; the next submission registers it again."""
    app_id = submit(batch)
    batch.delete(app_id)
    assert [d["status"] for d in batch.cloud.definitions.values()] == ["INACTIVE"]
    assert batch.describe(app_id).state is AppState.CANCELLED
    submit(batch)
    assert batch.cloud.count("register_job_definition") == 2


def test_a_definition_that_vanishes_meanwhile(batch):
    """A concurrent delete between lookup and submission causes one more registration, and does not fail the job."""
    submit(batch)
    cloud = batch.cloud
    gone = refusal("ClientException", "Job definition torchx-app:1 is not found")
    cloud.faults.append(("submit_job", gone, "before"))
    assert batch.describe(submit(batch)).state is AppState.SUBMITTED
    assert cloud.count("register_job_definition") == 2


def test_a_job_after_another(batch):
    """SubmitJob has Batch's id of the earlier job; a dry run shows our id."""
    first = submit(batch)
    app = AppDef("later", [role("hi")], metadata={AFTER: f"ok:aws_batch://s/{first}"})
    assert f"jobId: {first}" in str(batch.submit_dryrun(app, {"queue": "q"}).request)
    later = batch.submit(app, {"queue": "q"})
    (earlier, job) = batch.cloud.jobs.values()
    assert later.endswith(job["jobName"])
    assert job["submitted"]["dependsOn"] == [{"jobId": earlier["jobId"]}]


def test_a_job_after_one_that_batch_has_forgotten(batch):
    """The submission is rejected."""
    app = AppDef("later", [role("hi")], metadata={AFTER: "ok:aws_batch://s/q:gone-1"})
    with pytest.raises(NotFoundError, match="Batch has no job `q:gone-1`, on which this job depends"):
        batch.submit(app, {"queue": "q"})
    assert not batch.cloud.jobs


LOST = [
    known.ReadTimeoutError(endpoint_url="https://batch"),
    known.ConnectionClosedError(endpoint_url="https://batch"),
    refusal("ServerException", "Internal", status=500),
]


@pytest.mark.parametrize("lost", LOST, ids=["timeout", "closed", "500"])
def test_a_lost_answer_starts_nothing_twice(batch, lost):
    """If Batch created the job and the answer was lost, the job is found by its name, and is the only one."""
    batch.cloud.faults.append(("submit_job", lost, "after"))
    app_id = submit(batch)
    assert batch.cloud.count("submit_job") == 1
    assert batch.describe(app_id).state is AppState.SUBMITTED
    assert len(batch.cloud.jobs) == 1


def test_a_lost_request_is_told(batch):
    """If no job appears, the error explains how to check, and nothing is submitted again."""
    batch.cloud.faults.append(("submit_job", LOST[0], "before"))
    with pytest.raises(TransientError, match="does not show a job of that name") as e:
        submit(batch)
    assert "list-jobs" in e.value.hint
    assert batch.cloud.count("submit_job") == 1


def test_throttling_of_a_submission(batch):
    """A throttled submission was not executed, and is retried."""
    throttled = refusal("TooManyRequestsException", "Too Many Requests", status=429)
    batch.cloud.faults += [("submit_job", throttled, "before")] * 2
    submit(batch)
    assert batch.cloud.count("submit_job") == 3
    batch.cloud.faults += [("submit_job", throttled, "before")] * 9
    with pytest.raises(TransientError, match="too many requests"):
        submit(batch)


def test_a_refusal_leaves_nothing(batch):
    """A definition that was registered for a rejected job is deregistered."""
    batch.cloud.faults.append(("submit_job", refusal("ClientException", "Share identifier is missing"), "before"))
    with pytest.raises(BackendError, match="Share identifier is missing"):
        submit(batch)
    assert [d["status"] for d in batch.cloud.definitions.values()] == ["INACTIVE"]


def test_unknown_queue():
    """The error contains the queue, the region and the most similar name."""
    batch = scheduler(Cloud(queues=("training",)))
    with pytest.raises(NotFoundError, match="no queue `trainin` in us-east-1") as e:
        submit(batch, queue="trainin")
    assert "training" in e.value.hint
    assert batch.cloud.count("register_job_definition") == 0


def test_closed_queues(batch):
    """A queue that accepts no jobs raises an error before anything is created."""
    batch.cloud.queues["q"]["state"] = "DISABLED"
    with pytest.raises(BackendError, match="disabled"):
        submit(batch)
    batch.cloud.queues["q"].update(state="ENABLED", status="INVALID", statusReason="CE gone")
    with pytest.raises(BackendError, match="invalid: CE gone"):
        submit(batch)


def test_fargate():
    """A Fargate queue gets Fargate sizes and no shared memory, and the definition requires Fargate."""
    batch = scheduler(Cloud(kind="FARGATE"))
    app_id = submit(batch, execution_role_arn="arn:aws:iam::123456789012:role/exec", assign_public_ip=True)
    (made,) = batch.cloud.definitions.values()
    assert made["platformCapabilities"] == ["FARGATE"]
    assert {"type": "MEMORY", "value": "4096"} in made["containerProperties"]["resourceRequirements"]
    assert made["containerProperties"]["networkConfiguration"] == {"assignPublicIp": "ENABLED"}
    assert "linuxParameters" not in made["containerProperties"]
    assert batch.describe(app_id).state is AppState.SUBMITTED


@pytest.mark.parametrize(
    ("what", "cfg", "error", "said"),
    [
        (role(n=2), {}, NotSupportedError, "single containers"),
        (role(resource=Resource(1, 1, 64)), {}, NotSupportedError, "does not support GPUs"),
        (role(), {"privileged": True}, NotSupportedError, "privileged"),
        (role(), {"ulimits": ["nofile:9"]}, NotSupportedError, "ulimits"),
        (role(mounts=[BindMount("/a", "/b")]), {}, NotSupportedError, "folders of the host"),
        (role(resource=Resource(99, 0, 64)), {}, NotSupportedError, "no size"),
        (role(), {"execution_role_arn": None}, ConfigError, "execution_role_arn"),
        (role(), {"compute": "ec2"}, ConfigError, "has FARGATE"),
    ],
)
def test_what_fargate_does_not_have(what, cfg, error, said):
    """An unsupported feature is rejected by name, before anything is created."""
    batch = scheduler(Cloud(kind="FARGATE"))
    with pytest.raises(error, match=said):
        submit(batch, what, **{"execution_role_arn": "arn:aws:iam::123456789012:role/e", **cfg})
    assert batch.cloud.definitions == {}


def test_spot_runs_no_multi_node_jobs():
    """Batch would never start them."""
    with pytest.raises(NotSupportedError, match="spot instances only"):
        submit(scheduler(Cloud(kind="SPOT")), role(n=2))


def test_a_queue_that_may_not_be_looked_at(batch):
    """A submission does not need the right to describe queues."""
    denied = refusal("AccessDeniedException", "User: arn:me is not authorized to perform: batch:DescribeJobQueues", 403)
    batch.cloud.faults.append(("describe_job_queues", denied, "before"))
    assert batch.exists(submit(batch))


# -- errors ---------------------------------------------------------------------------------------------

ERRORS = [
    (
        refusal(
            "AccessDeniedException", "User: arn:me is not authorized to perform: batch:SubmitJob on resource: x", 403
        ),
        "denies `batch:SubmitJob` to `arn:me`",
        "batch:SubmitJob",
    ),
    (
        refusal("AccessDeniedException", "User: a is not authorized to perform: iam:PassRole", 403),
        "`iam:PassRole`",
        "IAM",
    ),
    (refusal("ExpiredTokenException", "The security token is expired", 403), "have expired", "log in again"),
    (
        refusal("UnrecognizedClientException", "The security token is invalid", 403),
        "does not accept the cred",
        "log in",
    ),
    (refusal("LimitExceededException", "too many jobs"), "quota", "Service Quotas"),
    (known.NoCredentialsError(), "no AWS credentials", "aws configure"),
    (known.NoRegionError(), "no AWS region", "AWS_REGION"),
    (known.UnauthorizedSSOTokenError(), "login is not valid", "aws sso login"),
    (known.EndpointConnectionError(endpoint_url="https://batch"), "does not answer", "region"),
]


@pytest.mark.parametrize(("raised", "said", "hint"), ERRORS, ids=[type(e[0]).__name__ + e[1][:12] for e in ERRORS])
def test_errors_are_one_line_and_a_hint(batch, raised, said, hint):
    """An error names the rejected action, with a hint, and no detail of botocore."""
    batch.cloud.faults.append(("submit_job", raised, "before"))
    with pytest.raises((BackendError, ConfigError)) as e:
        submit(batch)
    assert said in str(e.value)
    assert hint in e.value.hint
    assert "\n" not in str(e.value)
    assert batch.cloud.count("submit_job") == 1


class NoTruth:
    """A parameter of another scheduler, such as an array: neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_real_clients_find_no_credentials(monkeypatch, tmp_path):
    """With boto3 itself: a missing region or missing credentials are one line."""
    pytest.importorskip("boto3")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    made = create_scheduler("s")
    with pytest.raises(ConfigError, match="no AWS region"):
        made.describe("q:x-1")
    made = create_scheduler("s", aws_region="us-east-1", table=NoTruth())
    with pytest.raises(BackendError, match="no AWS credentials"):
        made.describe("q:x-1")
    made.close()
    with pytest.raises(ConfigError, match="nobody"):
        create_scheduler("s", aws_profile="nobody").describe("q:x-1")
