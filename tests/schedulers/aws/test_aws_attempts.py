"""Retries by cause on Batch and SageMaker: rendered requests, rejected policies, and the attempts that Batch reports."""

from __future__ import annotations

import subprocess

import pytest

pytest.importorskip("botocore")

from tests.schedulers.aws.batch_cloud import validate
from tests.schedulers.aws.test_aws_batch_scheduler import role, scheduler
from tests.schedulers.aws.test_aws_sagemaker_scheduler import request as training_job
from torchx.errors import ConfigError, SpecError
from torchx.schedulers.aws.batch.pieces import Chain
from torchx.specs.api import AppDef, AppState, RetryPolicy
from torchx.specs.wishes.retries import RETRY
from torchx.specs.wishes.timeouts import TIMEOUT

OOM = "OutOfMemoryError: Container killed due to memory usage"


def app(policy, *roles, **fields):
    return AppDef("app", list(roles) or [role(**fields)], metadata={RETRY: policy})


def strategy(policy, **fields):
    """The request of a job, validated by botocore."""
    definition = scheduler().submit_dryrun(app(policy, **fields), {"queue": "q"}).request.job_def
    validate("batch", "register_job_definition", definition)
    found = definition["retryStrategy"]
    return found["attempts"], [rule["action"] for rule in found["evaluateOnExit"]]


@pytest.mark.parametrize(
    ("policy", "attempts", "actions"),
    [
        ("standard", 10, ["RETRY", "RETRY", "EXIT", "EXIT", "EXIT"]),
        ("node:3", 4, ["RETRY", "RETRY", "EXIT", "EXIT", "EXIT"]),
        ("oom:2", 3, ["EXIT", "EXIT", "EXIT", "RETRY", "EXIT"]),
        ("standard, error:1", 2, ["RETRY", "RETRY", "EXIT", "RETRY", "RETRY"]),
        ("error:0", 1, ["EXIT"] * 5),
    ],
)
def test_a_policy_is_the_retry_strategy(policy, attempts, actions):
    """Lost hosts (two rules), images, memory and others are each retried or end the job. `max_retries` is ignored."""
    assert strategy(policy, max_retries=5) == (attempts, actions)


@pytest.mark.parametrize(
    ("policy", "hint"),
    [
        ("preempted:free", "`preempted:9`"),
        ("oom:2:mem*1.5", "`oom:2`"),
        ("timeout:1", "`error`"),
        ("oom:1, error:1", "counts all failures together"),
    ],
)
def test_what_batch_cannot_keep_is_refused(policy, hint):
    """An unsupported policy is rejected before AWS is called, with a hint that names what works."""
    batch = scheduler()
    with pytest.raises(SpecError, match="cannot keep") as error:
        batch.submit_dryrun(app(policy), {"queue": "q"})
    assert hint in error.value.hint and not batch.cloud.calls


def test_batch_starts_the_whole_job_again():
    """A role that restarts on its own is rejected."""
    with pytest.raises(SpecError, match="starts the whole job again"):
        strategy("node:3", retry_policy=RetryPolicy.REPLICA)


def attempt(at, *, code=None, reason="Essential container in task exited", said=None):
    container = {key: value for key, value in (("exitCode", code), ("reason", said)) if value is not None}
    return {"startedAt": at * 1000, "stoppedAt": (at + 5) * 1000, "statusReason": reason, "container": container}


def submitted(policy):
    batch = scheduler()
    info = batch.submit_dryrun(app(policy), {"queue": "q"})
    app_id = batch.schedule(info)
    definition = info.request.job_def
    job = batch.cloud.job(app_id)
    job["retryStrategy"] = definition["retryStrategy"]
    return batch, app_id, job


def test_the_attempts_of_a_job_that_goes_on():
    """A running job lists earlier attempts with times, class and cause."""
    batch, app_id, job = submitted("preempted:3")
    job.update(status="RUNNABLE", attempts=[attempt(100, reason="Host EC2 (instance i-1) terminated.")])
    (first,) = batch.describe(app_id).attempts
    assert (first.kind, first.started, first.ended, first.again) == ("node", 100, 105, True)
    assert "instance that it ran on was terminated" in first.cause


@pytest.mark.parametrize(
    ("policy", "why"), [("oom:1", "oom: all 1 retries are used"), ("node:1", "oom: the policy does not retry it")]
)
def test_the_last_attempt_says_why_there_is_no_other(policy, why):
    """The reason follows the rule that Batch has applied."""
    batch, app_id, job = submitted(policy)
    lost = attempt(100, reason="Host EC2 (instance i-1) terminated.")
    ran_out = attempt(200, code=137, said=OOM)
    job.update(status="FAILED", attempts=[lost, ran_out], statusReason=ran_out["statusReason"])
    job["container"] = {**job["container"], **ran_out["container"]}
    found = batch.describe(app_id)
    assert [a.again for a in found.attempts] == [True, False]
    assert found.attempts[-1].why == why and f"not retried ({why})" in found.msg


def test_what_succeeded_is_no_attempt_that_failed():
    """A job that has succeeded lists only the failed attempts before."""
    batch, app_id, job = submitted("node:3")
    lost, done = attempt(100, reason="Host EC2 (instance i-1) terminated."), attempt(200, code=0)
    job.update(status="SUCCEEDED", attempts=[lost, done])
    found = batch.describe(app_id)
    assert found.state is AppState.SUCCEEDED and [a.kind for a in found.attempts] == ["node"]


def chain(total="6h", piece="1h", policy="standard, lost:free", **fields):
    return AppDef("app", [role(**fields)], metadata={RETRY: f"{policy}, total:{total}", TIMEOUT: piece})


@pytest.mark.parametrize("n", [1, 2])
def test_a_chain_of_pieces(n):
    """Each is an attempt: the exit code of its script and the loss of a host start another. A definition is read back."""
    batch = scheduler()
    info = batch.submit_dryrun(chain(n=n), {"queue": "q"})
    definition = info.request.job_def
    validate("batch", "register_job_definition", definition)
    rules = definition["retryStrategy"]["evaluateOnExit"]
    assert (definition["retryStrategy"]["attempts"], [r["action"] for r in rules]) == (6, [*["RETRY"] * 3, "EXIT"])
    assert (rules[0]["onExitCode"], definition["timeout"]) == ("85", {"attemptDurationSeconds": 3780})
    app_id = batch.schedule(info)
    job = batch.cloud.job(app_id)
    job["retryStrategy"] = definition["retryStrategy"]
    if n == 1:
        pieces = [
            attempt(100, code=85),
            attempt(200, reason="Host EC2 (instance i-1) terminated."),
            attempt(300, code=85),
        ]
        job.update(status="RUNNABLE", attempts=pieces)
        found = batch.describe(app_id)
        assert [(a.kind, a.again, a.used, a.total) for a in found.attempts] == [
            ("timeout", True, 5, 21600),
            ("node", True, 10, 21600),
            ("timeout", True, 15, 21600),
        ]
        job.update(status="FAILED", attempts=[attempt(100 * k, code=85) for k in range(1, 7)])
        job["container"] = {**job["container"], "exitCode": 85}
        found = batch.describe(app_id)
        assert found.attempts[-1].why == "timeout: all 5 retries are used"
    (described,) = batch.describe(app_id).roles
    assert (described.entrypoint, described.args) == (role().entrypoint, list(role().args))


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (chain(total="5d", piece="3h"), "is 40 attempts, and a Batch job has at most 10"),
        (chain(policy="standard, error:1"), "cannot keep `error:1` in a chain"),
        (chain(retry_policy=RetryPolicy.REPLICA), "starts the whole job again"),
    ],
)
def test_chains_that_batch_cannot_run(app, said):
    """Before AWS is called; the hint names the largest total."""
    batch = scheduler()
    with pytest.raises(SpecError, match=said) as error:
        batch.submit_dryrun(app, {"queue": "q"})
    assert not batch.cloud.calls and ("40" not in said or "the largest total is 1 d 6 h" in error.value.hint)


@pytest.mark.parametrize(
    ("seconds", "words", "code"),
    [(9, "exit 3", 3), (9, "exit 0", 0), (0, "sleep 9", 85), (0, "trap 'exit 0' TERM; sleep 9 & wait", 85)],
)
def test_the_script_of_a_piece(seconds, words, code):
    """The program's own exit code, or the one of a piece that is over."""
    argv = Chain(seconds, 60).wrap(["/bin/bash", "-c", words])
    done = subprocess.run(argv, check=False, timeout=60, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert done.returncode == code


def test_sagemaker_retries_failures_of_its_own():
    """SageMaker supports nothing else: other classes are rejected, and so is a duplicate setting."""
    assert training_job(app("standard"))["RetryStrategy"] == {"MaximumRetryAttempts": 5}
    assert training_job(app("node:30"))["RetryStrategy"] == {"MaximumRetryAttempts": 30}
    assert "RetryStrategy" not in training_job(app("node:0"))
    with pytest.raises(SpecError, match="cannot keep `error:1`") as error:
        training_job(app("error:1"))
    assert "`node`" in error.value.hint
    with pytest.raises(ConfigError, match="exclude one another"):
        training_job(app("node:1"), max_retry_attempts=2)
