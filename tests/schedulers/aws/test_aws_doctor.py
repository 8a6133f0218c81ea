"""`torchx doctor -s aws_batch` and `aws_sagemaker`: findings for answers of AWS."""

from __future__ import annotations

from typing import Any

import pytest

from torchx.errors import NotFoundError
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding

pytest.importorskip("boto3")

from botocore.exceptions import EndpointConnectionError, NoCredentialsError, NoRegionError

from tests.schedulers.aws.batch_cloud import Cloud, refusal
from torchx.schedulers.aws.client import Clients
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler
from torchx.schedulers.aws_sagemaker_scheduler import AWSSageMakerScheduler
from torchx.specs import AppDef, Resource, Role
from torchx.workspace.images.registry import Registry

ROLE = "arn:aws:iam::123456789012:role/train"


class Account:
    """STS and IAM, with one identity and one role."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def get_caller_identity(self) -> dict[str, str]:
        return self._unless({"Arn": "arn:aws:iam::123456789012:user/ann", "Account": "123456789012"})

    def get_role(self, RoleName: str) -> dict[str, Any]:
        if RoleName != "train" and self.error is None:
            raise refusal("NoSuchEntity", f"{RoleName} cannot be found", 404, "GetRole")
        return self._unless({"Role": {"Arn": ROLE}})

    def _unless(self, answer: dict[str, Any]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return answer


def ask(cloud: Cloud, account: Account | None = None, cpu: int = 0, **cfg: Any) -> dict[str, Finding]:
    account = account or Account()
    clients = Clients({"batch": cloud, "sts": account, "iam": account})
    scheduler, given = AWSBatchScheduler("s", clients=clients), {"queue": "q", **cfg}
    info = None
    if cpu:
        app = AppDef("a", [Role("r", "img", entrypoint="sh", resource=Resource(cpu, 0, 1024))])
        info = scheduler.submit_dryrun(app, given)
    return {f.what: f for check in scheduler.diagnose(given, info) for f in check.findings()}


def test_an_account_with_which_nothing_is_wrong() -> None:
    """Identity, queue and roles are good, for Batch and SageMaker."""
    found = ask(Cloud(), job_role_arn=ROLE)
    assert {what: f.verdict for what, f in found.items()} == dict.fromkeys(["identity", "queue", "job_role_arn"], GOOD)
    account = Account()
    scheduler = AWSSageMakerScheduler("s", clients=Clients({"sts": account, "iam": account}))
    checks = scheduler.diagnose({"role": "train"})
    assert [f.verdict for check in checks for f in check.findings()] == [GOOD, GOOD]


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"queue": "qq"}, "`-cfg queue=NAME`"),
        ({"state": "DISABLED"}, "`aws batch update-job-queue"),
        ({"status": "INVALID"}, ""),
        ({"environment": {"state": "DISABLED"}}, "`-cfg queue=NAME`"),
        ({"environment": {"status": "INVALID"}}, "`-cfg queue=NAME`"),
    ],
)
def test_queues_that_take_no_jobs(change: dict[str, Any], fix: str) -> None:
    """Missing, disabled, invalid, or without usable compute environments."""
    cloud = Cloud()
    name = change.pop("queue", "q")
    cloud.environment.update(change.pop("environment", {}))
    cloud.queues["q"].update(change)
    found = ask(cloud, queue=name)["queue"]
    assert (found.verdict, fix in found.fix) == (BAD, True)


@pytest.mark.parametrize("status", ["CREATING", "UPDATING"])
@pytest.mark.parametrize("cpu", [0, 4])
def test_a_queue_that_is_being_made_or_changed(status: str, cpu: int, no_images: None) -> None:
    """It may accept jobs a minute later: a doubt, with a command to check again."""
    cloud = Cloud()
    cloud.queues["q"]["status"] = status
    found = ask(cloud, cpu=cpu)["queue"]
    assert found.verdict == UNKNOWN
    assert status.lower() in found.said
    assert "--query 'jobQueues[].status'" in found.fix
    cloud.queues["q"]["state"] = "DISABLED"
    assert ask(cloud)["queue"].verdict == BAD


def test_a_job_that_is_too_large(no_images: None) -> None:
    """No environment of the queue has that many vCPUs."""
    assert ask(Cloud(), cpu=256)["queue"].verdict == GOOD
    found = ask(Cloud(), cpu=300)
    assert (found["queue"].verdict, "maxvCpus" in found["queue"].said) == (BAD, True)
    assert found["image of role `r`"].verdict == BAD


@pytest.fixture
def no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry without network access or images."""

    def manifest(self: Registry, image: Any) -> Any:
        raise NotFoundError("no such image")

    monkeypatch.setattr(Registry, "manifest", manifest)


@pytest.mark.parametrize("option", ["job_role_arn", "execution_role_arn"])
def test_a_role_that_is_not_there(option: str) -> None:
    """Bad, with the command that lists roles; without permission to check, a doubt."""
    named: dict[str, Any] = {option: "arn:aws:iam::123456789012:role/trian"}
    found = ask(Cloud(), **named)[option]
    assert (found.verdict, "aws iam list-roles" in found.fix) == (BAD, True)
    denied = Account(refusal("AccessDenied", "no", 403, "GetRole"))
    assert ask(Cloud(), denied, **named)[option].verdict == UNKNOWN


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (NoCredentialsError(), BAD),
        (NoRegionError(), BAD),
        (refusal("ExpiredToken", "expired", 403, "GetCallerIdentity"), BAD),
        (refusal("InvalidClientTokenId", "bad", 403, "GetCallerIdentity"), BAD),
        (EndpointConnectionError(endpoint_url="https://sts"), UNKNOWN),
    ],
    ids=["none", "region", "expired", "wrong", "cut"],
)
def test_who_one_is(error: Exception, verdict: str) -> None:
    """Missing or invalid credentials are bad; a lost connection is a doubt."""
    found = ask(Cloud(), Account(error))["identity"]
    assert found.verdict == verdict
    assert found.fix


def test_a_queue_that_may_not_be_looked_at() -> None:
    """Submissions to it may work all the same."""
    cloud = Cloud()
    cloud.faults.append(("describe_job_queues", refusal("AccessDeniedException", "no", 403), "before"))
    assert ask(cloud)["queue"].verdict == UNKNOWN
