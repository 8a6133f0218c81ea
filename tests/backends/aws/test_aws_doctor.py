"""`torchx doctor -s aws_batch` and `run --check` on moto: identity, queues and what is behind them, roles, images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from tests.backends.aws import moto
from torchx.cli.main import main
from torchx.errors import TorchXError
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler, create_scheduler
from torchx.schedulers.aws_sagemaker_scheduler import create_scheduler as create_sagemaker
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.specs import AppDef, Resource, Role


@pytest.fixture
def client(queue: str) -> Iterator[Callable[[str], Any]]:
    """boto3's clients, by service."""
    made: list[Any] = []

    def get(service: str) -> Any:
        made.append(boto3.client(service, endpoint_url=moto.ENDPOINT, region_name="us-east-1"))
        return made[-1]

    yield get
    for one in made:
        one.close()


def ask(queue: str, cpu: int = 0, **more: Any) -> dict[str, Finding]:
    """What is found of an account, or of a job with so many vCPUs."""
    scheduler, cfg = create_scheduler("doctor"), {"queue": queue, **more}
    try:
        info = scheduler.submit_dryrun(app(cpu), cfg) if cpu else None
        return {f.what: f for check in scheduler.diagnose(cfg, info) for f in check.findings()}
    finally:
        scheduler.close()


def app(cpu: int = 1) -> AppDef:
    return AppDef("job", [Role("w", "img", entrypoint="true", resource=Resource(cpu=cpu, gpu=0, memMB=128))])


def refused(batch: AWSBatchScheduler, queue: str) -> str:
    """What a submission says; empty when it is taken."""
    try:
        batch.submit(app(), {"queue": queue})
    except TorchXError as e:
        return str(e)
    return ""


def test_an_account_with_which_nothing_is_wrong(queue: str, client: Callable[[str], Any]) -> None:
    """Who one is, the queue, a role that is there, a job that fits; SageMaker is asked the same."""
    arn = client("iam").get_role(RoleName=f"{queue}-role")["Role"]["Arn"]
    found = ask(queue, job_role_arn=arn)
    assert {what: f.verdict for what, f in found.items()} == dict.fromkeys(["identity", "queue", "job_role_arn"], GOOD)
    assert found["identity"].said.startswith("arn:aws:")
    assert found["queue"].said == f"`{queue}` is enabled: EC2"
    assert ask(queue, cpu=8)["queue"].verdict == GOOD
    sagemaker = create_sagemaker("doctor")
    assert {f.verdict for check in sagemaker.diagnose({"role": arn}) for f in check.findings()} == {GOOD}


def test_what_it_may_start(queue: str, client: Callable[[str], Any], capsys: pytest.CaptureFixture[str]) -> None:
    """`torchx nodes`: instances up to `maxvCpus`; none of an environment that is disabled."""
    words = ["nodes", "-s", "aws_batch", "-cfg", f"queue={queue}", "--cpu", "8", "--mem", "1G"]
    main(words)
    row = dict(zip(*(line.split("\t") for line in capsys.readouterr().out.splitlines()), strict=True))
    assert (row["POOL"], row["NODES"]) == (f"{queue}/{queue}-ce m5.2xlarge", "8")
    assert row["FREE CPUS"] == row["FIT NOW"] == "?"  # moto has no `desiredvCpus`
    client("batch").update_compute_environment(computeEnvironment=f"{queue}-ce", state="DISABLED")
    main(words)
    assert "0 of 8" in (said := capsys.readouterr().out) and f"`{queue}-ce` is disabled" in said


def test_a_queue_that_does_not_exist(queue: str, batch: AWSBatchScheduler) -> None:
    """The one that was meant is named, as the submission does."""
    found = ask(queue[:-1])["queue"]
    assert (found.verdict, found.fix) == (BAD, f"did you mean `{queue}`? (`-cfg queue=NAME`)")
    assert "has no queue" in refused(batch, queue[:-1])


def test_a_queue_that_is_disabled(queue: str, batch: AWSBatchScheduler, client: Callable[[str], Any]) -> None:
    """The fix enables it, as its words say it."""
    client("batch").update_job_queue(jobQueue=queue, state="DISABLED")
    found = ask(queue)["queue"]
    assert found.verdict == BAD
    assert found.fix == f"`aws batch update-job-queue --job-queue {queue} --state ENABLED`"
    assert "disabled" in refused(batch, queue)
    client("batch").update_job_queue(jobQueue=queue, state="ENABLED")
    assert ask(queue)["queue"].verdict == GOOD


def test_an_environment_that_is_disabled(queue: str, client: Callable[[str], Any]) -> None:
    """No other is behind the queue: nothing would start."""
    client("batch").update_compute_environment(computeEnvironment=f"{queue}-ce", state="DISABLED")
    found = ask(queue)["queue"]
    assert (found.verdict, f"`{queue}-ce` is disabled" in found.said) == (BAD, True)


@pytest.mark.parametrize(("cpu", "why"), [(9, "the largest instance"), (65, "`maxvCpus`")])
def test_a_job_that_is_too_large(queue: str, cpu: int, why: str) -> None:
    """For its instances, or for all of them."""
    found = ask(queue, cpu=cpu)["queue"]
    assert (found.verdict, why in found.said) == (BAD, True)


def test_a_role_that_does_not_exist(queue: str) -> None:
    """The fix lists those that there are."""
    found = ask(queue, execution_role_arn="arn:aws:iam::123456789012:role/trian")["execution_role_arn"]
    assert (found.verdict, "aws iam list-roles" in found.fix) == (BAD, True)


@pytest.mark.parametrize(("change", "verdict"), [("region", BAD), ("credentials", BAD), ("endpoint", UNKNOWN)])
def test_who_one_is(queue: str, tmp_path: Any, change: str, verdict: str) -> None:
    """Without a region or credentials there is nobody; an endpoint that does not answer may do so later."""
    names = {
        "region": ["AWS_REGION", "AWS_DEFAULT_REGION"],
        "credentials": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
        "endpoint": [],
    }
    with pytest.MonkeyPatch.context() as patch:  # the queue is removed by who one was
        for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
            patch.setenv(f"AWS_{name}", str(tmp_path / "none"))
        for name in names[change]:
            patch.delenv(name)
        if change == "endpoint":
            patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        found = ask(queue)["identity"]
    assert found.verdict == verdict, found
    assert found.fix
