"""Jobs as requests to SageMaker, facts from its answers, and errors of AWS."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("botocore")

import botocore.exceptions as known

from tests.schedulers.aws.batch_cloud import refusal, validate
from tests.schedulers.aws.sagemaker_cloud import AT, SageMaker
from torchx.components.dist import ddp
from torchx.errors import BackendError, ConfigError, NotFoundError, NotSupportedError, SpecError, TransientError
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws_sagemaker_scheduler import AWSSageMakerScheduler
from torchx.schedulers.kit.logs import LogQuery
from torchx.specs.api import AppDef, AppState, BindMount, Role, macros
from torchx.specs.failures import parse_failure
from torchx.specs.named_resources_aws import NAMED_RESOURCES
from torchx.specs.secret import Secret

CFG = {"role": "arn:aws:iam::123456789012:role/train", "instance_type": "ml.m5.xlarge"}


def role(*args, n=1, name="w", **more):
    return Role(name, "img:1", entrypoint="echo", args=list(args), num_replicas=n, **more)


def scheduler():
    cloud = SageMaker()
    made: Any = AWSSageMakerScheduler(
        "s", clients=Clients(dict.fromkeys(("sagemaker", "logs", "iam", "sts", "s3"), cloud))
    )
    made._sleep = lambda seconds: None
    made.cloud = cloud
    return made


@pytest.fixture
def sagemaker():
    return scheduler()


def request(app, **cfg):
    """The request of a job, validated by botocore."""
    app = app if isinstance(app, AppDef) else AppDef("app", [app])
    job = scheduler().submit_dryrun(app, {**CFG, **cfg}).request
    validate("sagemaker", "create_training_job", job.request())
    return job.request()


def submit(made, *roles, **cfg):
    return made.submit(AppDef("app", list(roles) or [role("hi")]), {**CFG, **cfg})


def run_host(job, tmp_path, k, show):
    """Runs the command of a host, with another program in place of `echo`."""
    config = tmp_path / "resourceconfig.json"
    config.write_text(
        json.dumps({"current_host": f"algo-{k + 1}", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"})
    )
    algorithm = job["AlgorithmSpecification"]
    assert all(len(word) <= 256 and "\n" not in word for word in algorithm["ContainerArguments"])
    line = "".join(algorithm["ContainerArguments"]).replace("/opt/ml/input/config/resourceconfig.json", str(config))
    argv = [*algorithm["ContainerEntrypoint"], *[line[i : i + 256] for i in range(0, len(line), 256)]]
    env = {"PATH": f"{show}:{os.environ['PATH']}", **job["Environment"]}
    return json.loads(subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def show(tmp_path):
    """A folder with an `echo` and a `torchrun` that print their arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("echo", "torchrun"):
        program = folder / name
        program.write_text(
            "#!/usr/bin/env python3\nimport os,sys,json\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
        )
        program.chmod(0o755)
    return folder


def test_a_plain_command_is_given_as_it_is():
    """One host and short words need no shell."""
    job = request(role("a b", macros.replica_id, "$HOME", "'"))
    assert job["AlgorithmSpecification"]["ContainerEntrypoint"] == ["echo"]
    assert job["AlgorithmSpecification"]["ContainerArguments"] == ["a b", "0", "$HOME", "'"]
    assert (job["Environment"]["TORCHX_RANK0_HOST"], job["Environment"]["TORCHX_REPLICA_ID"]) == ("localhost", "0")
    assert job["ResourceConfig"] == {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30}


def test_words_that_sagemaker_would_not_take(tmp_path, show):
    """Long words, words with line ends, and the host's number arrive unchanged on every host."""
    words = [
        "x" * 1000,
        "a\nb\n",
        "$HOME",
        "'",
        '"',
        "\\",
        "*",
        "",
        "-n",
        "é",
        "exec",
        f"r{macros.replica_id}r{macros.replica_id}",
    ]
    given = role(*words, n=2, env={"K": f"k {macros.replica_id} $(id)\n", "LONG": "'y\n" * 300, "P": "1"})
    job = request(given)
    for k in (0, 1):
        got, env = run_host(job, tmp_path, k, show)
        assert got == [*words[:-1], f"r{k}r{k}"]
        assert (env["K"], env["LONG"], env["P"]) == (f"k {k} $(id)\n", "'y\n" * 300, "1")
        assert (env["TORCHX_REPLICA_ID"], env["TORCHX_RANK0_HOST"]) == (str(k), "algo-1")


def test_dist_ddp_over_two_hosts(tmp_path, show):
    """torchrun finds the first host, and host 0 has the rendezvous."""
    job = request(ddp("--lr", "1", script="train.py", image="img", j="2x4"))
    assert job["ResourceConfig"]["InstanceCount"] == 2
    for k in (0, 1):
        got, _ = run_host(job, tmp_path, k, show)
        assert got[got.index("--rdzv_endpoint") + 1] == "algo-1:29500"
        assert f"is_host={int(k == 0)}" in got[got.index("--rdzv_conf") + 1]
        assert got[-3:] == ["train.py", "--lr", "1"]


def test_a_command_that_is_too_long():
    """It is rejected, with a hint."""
    with pytest.raises(SpecError, match="25600"):
        request(role("x" * 30000))


def test_options():
    """Each option is in the field that SageMaker documents for it."""
    job = request(
        role(env={"A": "role"}),
        instance_count=3,
        volume_size=50,
        volume_kms_key="k1",
        keep_alive_period_in_seconds=60,
        max_run=100,
        max_wait=200,
        use_spot_instances=True,
        checkpoint_s3_uri="s3://b/c",
        output_path="s3://b/o",
        output_kms_key="k2",
        disable_output_compression=True,
        input_mode="FastFile",
        metric_definitions={"loss": "loss=(.*)"},
        hyperparameters={"lr": "1"},
        environment={"A": "cfg", "B": "cfg"},
        subnets=["subnet-1"],
        security_group_ids=["sg-1"],
        encrypt_inter_container_traffic=True,
        enable_network_isolation=True,
        max_retry_attempts=3,
        enable_infra_check=True,
        training_repository_access_mode="Vpc",
        training_repository_credentials_provider_arn="arn:lambda",
        tags={"cost": "42"},
        base_job_name="base",
    )
    assert job["TrainingJobName"].startswith("base-")
    assert job["ResourceConfig"]["InstanceCount"] == 3
    assert job["StoppingCondition"] == {"MaxRuntimeInSeconds": 100, "MaxWaitTimeInSeconds": 200}
    assert job["CheckpointConfig"] == {"S3Uri": "s3://b/c", "LocalPath": "/opt/ml/checkpoints"}
    assert job["OutputDataConfig"] == {"S3OutputPath": "s3://b/o", "KmsKeyId": "k2", "CompressionType": "NONE"}
    assert job["VpcConfig"] == {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    assert (job["Environment"]["A"], job["Environment"]["B"]) == ("role", "cfg")
    assert job["AlgorithmSpecification"]["MetricDefinitions"] == [{"Name": "loss", "Regex": "loss=(.*)"}]
    assert job["AlgorithmSpecification"]["TrainingInputMode"] == "FastFile"
    assert job["AlgorithmSpecification"]["TrainingImageConfig"]["TrainingRepositoryAccessMode"] == "Vpc"
    assert job["RetryStrategy"] == {"MaximumRetryAttempts": 3}
    assert job["InfraCheckConfig"] == {"EnableInfraCheck": True}
    assert job["HyperParameters"] == {"lr": "1"}
    assert {"Key": "cost", "Value": "42"} in job["Tags"]


@pytest.mark.parametrize(
    ("what", "cfg", "error", "said"),
    [
        (AppDef("app", [role(), role(name="b")]), {}, NotSupportedError, "has one role"),
        (role(mounts=[BindMount("/a", "/b")]), {}, NotSupportedError, "mounts"),
        (role(), {"source_dir": "/no/such/folder"}, ConfigError, "is not a folder"),
        (role(), {"source_dir": ".", "enable_network_isolation": True}, NotSupportedError, "over the network"),
        (role(), {"source_dir": ".", "hyperparameters": {"sagemaker_program": "x"}}, ConfigError, "is set by torchx"),
        (
            role("-x"),
            {"source_dir": "s3://b/c.tar.gz"},
            NotSupportedError,
            "this command is not of that form: `echo -x`",
        ),
        (role(n=2), {"instance_count": 3}, ConfigError, "instance_count is 3"),
        (role(resource=NAMED_RESOURCES["aws_p3.2xlarge"]()), {}, ConfigError, "ml.p3.2xlarge"),
        (role(), {"subnets": ["a"]}, ConfigError, "security_group_ids"),
        (role(), {"max_wait": 9}, ConfigError, "spot"),
        (role(), {"max_wait": 9, "use_spot_instances": True}, ConfigError, "less than max_run"),
        (role(), {"checkpoint_local_path": "/c"}, ConfigError, "checkpoint_s3_uri"),
        (role(env={"A-B": "1"}), {}, SpecError, "`A-B`"),
    ],
)
def test_what_sagemaker_cannot(what, cfg, error, said):
    """Unsupported jobs are rejected before any request."""
    with pytest.raises(error, match=said):
        request(what, **cfg)


@pytest.mark.parametrize("reference", ["env:HF_TOKEN", "aws-sm:arn:x"])
def test_secrets_are_refused(reference):
    """Every user who may describe a job can read its environment, and SageMaker supports no references."""
    with pytest.raises(NotSupportedError, match="`aws_sagemaker` cannot take secret `HF_TOKEN`") as e:
        request(AppDef("a", [role(env={"HF_TOKEN": Secret(reference)})]))
    assert e.value.hint == "let the program fetch it itself"


def test_secrets_are_masked():
    """Neither the text of a dry run nor the repr of the request contains a secret."""
    made = scheduler()
    secrets = {"environment": {"HF_TOKEN": "sesame1"}, "hyperparameters": {"api_key": "sesame2"}}
    job = made.submit_dryrun(AppDef("a", [role("--token", "sesame3")]), {**CFG, **secrets}).request
    many = made.submit_dryrun(
        AppDef("a", [role("--token", "sesame3", n=2, env={"API_KEY": f"sesame{macros.replica_id}"})]), CFG
    )
    for shown in (str(job), repr(job), str(many), repr(many.request)):
        assert "sesame" not in shown
    assert made.cloud.calls == []


def test_dry_run_asks_nothing(tmp_path):
    """A dry run makes no call and imports no AWS package, also with code to upload."""
    code = (
        "import sys\n"
        "from torchx.schedulers.aws_sagemaker_scheduler import create_scheduler\n"
        "from torchx.specs import AppDef, Role\n"
        f"cfg = {{'role': 'r', 'instance_type': 'ml.m5.large', 'source_dir': {str(tmp_path)!r}}}\n"
        "str(create_scheduler('s').submit_dryrun(AppDef('a', [Role('w', 'i', entrypoint='e')]), cfg))\n"
        "print([m for m in sys.modules if m.partition('.')[0] in ('boto3', 'botocore', 'docker')])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_only_aws_knows(sagemaker):
    """A role given by name, and the account's bucket, are resolved at submission."""
    app_id = submit(sagemaker, role="train")
    job = sagemaker.cloud.jobs[app_id]
    assert job["RoleArn"] == "arn:aws:iam::123456789012:role/train"
    assert job["OutputDataConfig"]["S3OutputPath"] == "s3://sagemaker-us-east-1-123456789012/"


def test_a_lost_answer_starts_nothing_twice(sagemaker):
    """botocore retries, SageMaker reports an existing job, and it is ours."""
    original = sagemaker.cloud.create_training_job

    def twice(**params):
        original(**params)
        return original(**params)

    sagemaker.cloud.create_training_job = twice
    assert sagemaker.exists(submit(sagemaker))
    assert len(sagemaker.cloud.jobs) == 1


ERRORS = [
    (
        refusal("ResourceLimitExceeded", "limit 'ml.p4d.24xlarge for training job usage' is 0"),
        "quota",
        "Service Quotas",
    ),
    (
        refusal("AccessDeniedException", "User: arn:me is not authorized to perform: sagemaker:CreateTrainingJob", 403),
        "denies `sagemaker:CreateTrainingJob` to `arn:me`",
        "IAM",
    ),
    (refusal("ValidationException", "Could not assume role"), "Could not assume role", ""),
    (known.NoCredentialsError(), "no AWS credentials", "aws configure"),
]


@pytest.mark.parametrize(("raised", "said", "hint"), ERRORS)
def test_errors(sagemaker, raised, said, hint):
    """An error is one line, with a hint."""
    sagemaker.cloud.faults.append(("create_training_job", raised, "before"))
    with pytest.raises(BackendError) as e:
        submit(sagemaker)
    assert said in str(e.value)
    assert hint in e.value.hint


def test_no_answer(sagemaker):
    """A service that does not answer is a transient error."""
    sagemaker.cloud.faults.append(("create_training_job", known.ReadTimeoutError(endpoint_url="https://x"), "before"))
    with pytest.raises(TransientError, match="does not answer"):
        submit(sagemaker)


STATES = [
    ("InProgress", "Pending", AppState.PENDING, "waits for capacity"),
    ("InProgress", "DownloadingTrainingImage", AppState.PENDING, "image is being pulled"),
    ("InProgress", "Interrupted", AppState.PENDING, "were reclaimed"),
    ("InProgress", "Training", AppState.RUNNING, "<NONE>"),
    ("InProgress", "Uploading", AppState.RUNNING, "<NONE>"),
    ("Stopping", "Stopping", AppState.RUNNING, "cancelling"),
    ("Completed", "Completed", AppState.SUCCEEDED, "<NONE>"),
    ("Stopped", "Stopped", AppState.CANCELLED, "<NONE>"),
    ("Stopped", "MaxRuntimeExceeded", AppState.FAILED, "longer than `max_run`"),
    ("Failed", "MaxWaitTimeExceeded", AppState.FAILED, "longer than `max_wait`"),
    ("Failed", "Failed", AppState.FAILED, "exit code 3"),
    ("Deleting", "", AppState.UNKNOWN, "its status is `Deleting`"),
]


@pytest.mark.parametrize(("state", "secondary", "expected", "said"), STATES)
def test_states(sagemaker, state, secondary, expected, said):
    """Each state has what the job waits for, or why it ended."""
    app_id = submit(sagemaker)
    reason = "AlgorithmError: , exit code: 3" if secondary == "Failed" else ""
    sagemaker.cloud.jobs[app_id].update(TrainingJobStatus=state, SecondaryStatus=secondary, FailureReason=reason)
    found = sagemaker.describe(app_id)
    assert found.state is expected
    assert said in found.msg


def test_roles_are_rebuilt(sagemaker):
    """Words, environment and size are returned as they were submitted, also from a shell line."""
    for n in (1, 3):
        given = role(f"n={macros.replica_id}", "a 'b'\n", n=n, env={"K": f"{macros.replica_id} x", "A": "1"})
        (found,) = sagemaker.describe(submit(sagemaker, given)).roles
        assert (found.name, found.image, found.entrypoint, found.num_replicas) == ("w", "img:1", "echo", n)
        expected = given if n > 1 else role("n=0", "a 'b'\n", env={"K": "0 x", "A": "1"})
        assert (found.args, found.env) == (expected.args, expected.env)


def test_a_job_of_an_earlier_version_is_rebuilt(sagemaker):
    """Its shell line has the host's variables without braces."""
    app_id = submit(sagemaker, role(f"{macros.replica_id}", n=2))
    algorithm = sagemaker.cloud.jobs[app_id]["AlgorithmSpecification"]
    head = "".join(algorithm["ContainerArguments"]).partition("; exec ")[0]
    line = """; export K=''"$_tx_k"' x'; exec 'echo' 'n='"$_tx_k"'}' 'a '"'"'b'"'"''"$_tx_n"''"""
    algorithm["ContainerArguments"] = [head, line]
    (found,) = sagemaker.describe(app_id).roles
    assert found.args == [f"n={macros.replica_id}}}", "a 'b'\n"]
    assert found.env["K"] == f"{macros.replica_id} x"


def test_failure_times_and_page(sagemaker):
    """The traceback of the first host, the end, the number of spot interruptions, and the console page."""
    app_id = submit(sagemaker)
    sagemaker.cloud.jobs[app_id].update(
        TrainingJobStatus="Failed",
        SecondaryStatus="Failed",
        FailureReason="AlgorithmError: , exit code: 1",
        TrainingEndTime=AT + datetime.timedelta(seconds=9),
        SecondaryStatusTransitions=[{"Status": "Training"}, {"Status": "Interrupted"}, {"Status": "Training"}],
    )
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: boom"]
    sagemaker.cloud.stream_log.streams["/aws/sagemaker/TrainingJobs", f"{app_id}/algo-1-17"] = list(enumerate(lines))
    found = sagemaker.describe(app_id)
    assert "ValueError: boom" in found.structured_error_msg
    assert found.ended_at == AT.timestamp() + 9
    assert found.num_restarts == 1
    assert found.ui_url == f"https://us-east-1.console.aws.amazon.com/sagemaker/home?region=us-east-1#/jobs/{app_id}"


LOST_PEER = ["Traceback (most recent call last):", '  File "a.py", line 1', "RuntimeError: Connection closed by peer"]
BAD_BATCH = ["Traceback (most recent call last):", '  File "a.py", line 2', "ValueError: bad batch"]


def fail(made, app_id, reason, logs, **more):
    """Ends a job; `logs` has the output of each host, by number."""
    made.cloud.jobs[app_id].update(
        {
            "TrainingJobStatus": "Failed",
            "SecondaryStatus": "Failed",
            "FailureReason": reason,
            "TrainingEndTime": AT + datetime.timedelta(seconds=9),
            **more,
        }
    )
    for k, lines in logs.items():
        stream = f"{app_id}/algo-{k + 1}-17"
        made.cloud.stream_log.streams["/aws/sagemaker/TrainingJobs", stream] = list(enumerate(lines))


def test_the_host_with_a_reason_of_its_own_is_named(sagemaker):
    """SageMaker does not report which host failed, but the logs do; a host that only lost its peer is not the cause."""
    app_id = submit(sagemaker, role(n=12))
    fail(sagemaker, app_id, "AlgorithmError: , exit code: 1", {0: ["step 7"], 1: LOST_PEER, 11: BAD_BATCH})
    found = sagemaker.describe(app_id)
    assert found.msg == "w/11 on algo-12: ValueError: bad batch"
    cause = parse_failure(found.structured_error_msg)
    assert (cause.role, cause.replica, cause.kind) == ("w", 11, "error")
    states = [r.state for r in found.roles_statuses[0].replicas]
    assert states == [AppState.CANCELLED] * 11 + [AppState.FAILED]
    assert sagemaker.cloud.count("describe_log_streams") == 2  # eight hosts, and four more


def test_no_host_is_blamed_without_a_sign(sagemaker):
    """If no log shows which host failed, SageMaker's reason for the job is the cause."""
    app_id = submit(sagemaker, role(n=2))
    fail(sagemaker, app_id, "AlgorithmError: , exit code: 3", {0: ["step 7"]})
    found = sagemaker.describe(app_id)
    assert found.msg == "AlgorithmError: , exit code: 3"
    assert (parse_failure(found.structured_error_msg).replica, parse_failure(found.structured_error_msg).kind) == (
        None,
        "error",
    )


KINDS = [
    ("CapacityError: Unable to provision requested ML compute capacity.", {}, "quota"),
    ("InternalServerError: We encountered an internal error.", {}, "node"),
    ("ClientError: Data download failed", {}, "error"),
    ("", {"TrainingJobStatus": "Stopped", "SecondaryStatus": "MaxRuntimeExceeded"}, "timeout"),
]


@pytest.mark.parametrize(("reason", "more", "kind"), KINDS)
@pytest.mark.parametrize("n", [1, 2])
def test_what_ends_a_job_as_a_whole(sagemaker, n, reason, more, kind):
    """Its class is SageMaker's, whatever the program's last output, and no host is the cause of a time limit."""
    app_id = submit(sagemaker, role(n=n))
    fail(sagemaker, app_id, reason, {0: ["Error: step 7"]} if kind == "timeout" else {}, **more)
    found = sagemaker.describe(app_id)
    cause = parse_failure(found.structured_error_msg)
    assert cause.kind == kind
    assert found.msg == cause.message
    assert reason in found.msg
    assert [line.state for line in sagemaker.list()] == [found.state] == [AppState.FAILED]


@pytest.mark.parametrize("n", [1, 16, 64])
def test_logs_of_many_hosts_cost_one_look(sagemaker, n):
    """The job is described once and its streams are listed once for all hosts; each log is then read to its end."""
    app_id = submit(sagemaker, role(n=n))
    logs = {k: [f"hello {k}"] for k in range(n)}
    fail(sagemaker, app_id, "", logs, TrainingJobStatus="Completed", SecondaryStatus="Completed")
    sagemaker.cloud.calls.clear()
    replicas = sagemaker.log_replicas(app_id)
    opened = sagemaker.open_logs(app_id, replicas, LogQuery())
    assert sagemaker.cloud.count("get_log_events") == 0
    assert [list(lines) for lines in opened] == [[f"hello {k}\n"] for k in range(n)]
    assert sagemaker.cloud.count("describe_training_job") == 2
    assert sagemaker.cloud.count("describe_log_streams") == 1
    assert len(sagemaker.cloud.calls) == 3 + 2 * n  # CloudWatch shows its end by a second answer


def test_logs_of_a_host(sagemaker):
    """Each host has its own streams, one for each start."""
    app_id = submit(sagemaker, role(n=2))
    sagemaker.cloud.jobs[app_id].update(TrainingJobStatus="Completed", SecondaryStatus="Completed")
    group = "/aws/sagemaker/TrainingJobs"
    for host, lines in (("algo-1-1", ["a"]), ("algo-2-1", ["b"]), ("algo-2-2", ["c"])):
        sagemaker.cloud.stream_log.streams[group, f"{app_id}/{host}"] = list(enumerate(lines))
    assert list(sagemaker.log_iter(app_id, "w", 1)) == ["b\n", "c\n"]
    assert list(sagemaker.log_iter(app_id, "w", 0, should_tail=True)) == ["a\n"]
    with pytest.raises(NotFoundError, match="w/2"):
        list(sagemaker.log_iter(app_id, "w", 2))


def test_cancel_and_delete(sagemaker):
    """A job is stopped once; a deleted job does not exist."""
    app_id = submit(sagemaker)
    sagemaker.cancel(app_id)
    sagemaker.cancel(app_id)
    assert sagemaker.cloud.count("stop_training_job") == 1
    assert sagemaker.describe(app_id).state is AppState.CANCELLED
    sagemaker.delete(app_id)
    assert sagemaker.describe(app_id) is None


def test_500_jobs_cost_pages(sagemaker):
    """500 jobs are listed by five calls and described by five; lists contain state and user."""
    ids = [submit(sagemaker) for _ in range(500)]
    sagemaker.cloud.jobs["foreign"] = {**sagemaker.cloud.jobs[ids[0]], "TrainingJobName": "foreign", "Tags": []}
    sagemaker.cloud.calls.clear()
    assert [line.app_id for line in sagemaker.list()] == ids
    assert [name for name, _ in sagemaker.cloud.calls] == ["search"] * 5
    sagemaker.cloud.calls.clear()
    assert None not in sagemaker.describe_many(ids).values()
    assert [name for name, _ in sagemaker.cloud.calls] == ["search"] * 5
    assert sagemaker.list({"state": "FAILED"}) == []
    assert sagemaker.list({"user": "nobody"}) == []


def test_a_user_without_a_name(monkeypatch):
    """In a container with an arbitrary uid, the tag has the uid."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1_000_650_000)
    assert {"Key": "torchx.pytorch.org/user", "Value": "1000650000"} in request(role())["Tags"]
