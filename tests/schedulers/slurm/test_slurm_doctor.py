"""`torchx doctor -s slurm` and `run --check`: from the output of Slurm's commands to findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchx.components import utils
from torchx.errors import CommandError, TransientError
from torchx.schedulers.kit.findings import BAD, GOOD, UNKNOWN, Finding
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Resource, Role, Secret
from torchx.testing import FakeCommandRunner

PARTITIONS = "debug*|up|2\ngpu|up|8\nold|down|4\n"
MINE = "team|gpu|high,normal|normal\nother|||\n"
STARTS = "sbatch: Job 3 to start at 2026-11-23T05:00:00 using 2 processors on nodes n1 in partition debug\n"


@pytest.fixture
def slurm() -> FakeCommandRunner:
    """A cluster without problems."""
    fake = FakeCommandRunner()
    fake.on("sinfo", "--version", stdout="slurm-wlm 22.05.8\n")
    fake.on("sinfo", "--all", stdout=PARTITIONS)
    fake.on("sinfo", "--noheader", "--format=%n", stdout="n1\nn2\n")
    fake.on("sh", "-c", stdout=MINE)
    fake.on("sbatch", "--test-only", stderr=STARTS)
    return fake


def answered(fake: FakeCommandRunner, *argv: str, **answer: Any) -> FakeCommandRunner:
    """The cluster, with another answer to one command."""
    fake._scripts = {p: a for p, a in fake._scripts.items() if p != argv}
    fake.on(*argv, **answer)
    return fake


def ask(fake: FakeCommandRunner, **cfg: Any) -> dict[str, Finding]:
    found = [f for check in SlurmScheduler("s", commands=fake).diagnose(cfg) for f in check.findings()]
    return {f.what: f for f in found}


def ask_job(fake: FakeCommandRunner, role: Role | None = None, **cfg: Any) -> Finding:
    scheduler = SlurmScheduler("s", commands=fake)
    role = role or Role("r", "", entrypoint="sh", args=["-c", "true"], resource=Resource(1, 0, 100))
    (check,) = scheduler.diagnose(cfg, scheduler.submit_dryrun(AppDef("a", [role]), cfg))
    (finding,) = check.findings()
    return finding


def test_a_cluster_that_works(slurm: FakeCommandRunner) -> None:
    """All is good, except that only a job can show whether nodes see the folder of jobs."""
    found = ask(slurm, partition="gpu", account="team", qos="high")
    verdicts = {what: f.verdict for what, f in found.items()}
    rest = {"sbatch": GOOD, "shared folder": UNKNOWN}
    assert verdicts == {"Slurm": GOOD, "partition": GOOD, "account": GOOD, "environment": GOOD, **rest}
    assert found["partition"].said == "`gpu` is up, 8 nodes"
    assert found["sbatch"].said == "accepts it (test only); earliest start 2026-11-23T05:00:00"
    (trial,) = slurm.argvs("sbatch")
    assert trial == ["sbatch", "--test-only", "--account=team", "--partition=gpu", "--qos=high"]
    assert "torchx doctor -s slurm --deep" in found["shared folder"].fix


def test_all_nodes_are_this_machine(slurm: FakeCommandRunner) -> None:
    """Then they see its folders."""
    import socket

    answered(slurm, "sinfo", "--noheader", "--format=%n", stdout=f"{socket.gethostname()}\n")
    assert ask(slurm)["shared folder"].verdict == GOOD


@pytest.mark.parametrize(
    ("partition", "verdict", "fix"),
    [
        ("gpuu", BAD, "`-cfg partition=gpu`"),
        ("gpu,debg", BAD, "`-cfg partition=debug`"),
        ("zzz", BAD, "`-cfg partition=debug`"),
        ("old", UNKNOWN, "`sinfo` shows others"),
        ("debug,gpu", GOOD, ""),
        ("", GOOD, ""),
    ],
)
def test_partitions(slurm: FakeCommandRunner, partition: str, verdict: str, fix: str) -> None:
    """A missing one is bad; one that is down may be up tomorrow."""
    found = ask(slurm, partition=partition)["partition"]
    assert (found.verdict, found.fix) == (verdict, fix)


def test_no_default_partition(slurm: FakeCommandRunner) -> None:
    """A plugin of the site may choose one."""
    found = ask(answered(slurm, "sinfo", "--all", stdout="gpu|up|8\n"))["partition"]
    assert (found.verdict, found.fix) == (UNKNOWN, "name one: `-cfg partition=gpu`")


@pytest.mark.parametrize(
    ("cfg", "fix"), [({"account": "tame"}, "`-cfg account=other`"), ({"qos": "hihg"}, "`-cfg qos=high`")]
)
def test_an_account_of_somebody_else(slurm: FakeCommandRunner, cfg: dict[str, Any], fix: str) -> None:
    """`sbatch` decides, because clusters that do not enforce accounts accept it."""
    found = ask(slurm, **cfg)
    assert (found["account"].verdict, found["account"].fix) == (UNKNOWN, fix)


@pytest.mark.parametrize(
    "answer", [{"stdout": ""}, {"stderr": "Slurm accounting storage is disabled", "returncode": 1}]
)
def test_no_accounting(slurm: FakeCommandRunner, answer: dict[str, Any]) -> None:
    """Accounts cannot be checked."""
    assert ask(answered(slurm, "sh", "-c", **answer))["account"].verdict == UNKNOWN


REFUSALS = {
    "sbatch: error: invalid partition specified: x": "`sinfo` shows the partitions",
    "allocation failure: Invalid account or account/partition combination specified": "sacctmgr show assoc",
    "allocation failure: Invalid qos specification": "sacctmgr show assoc",
    "allocation failure: Requested node configuration is not available": "`sinfo -N -l`",
    "allocation failure: Invalid feature specification": "",
    "allocation failure: Invalid generic resource (gres) specification": "",
    "allocation failure: Requested time limit is invalid (missing or exceeds some limit)": "`sinfo -o '%P %l'`",
    "allocation failure: More processors requested than permitted": "replicas_per_node",
    "allocation failure: Node count specification invalid": "replicas_per_node",
    "allocation failure: User's group not permitted to use this partition": "administrators",
    "allocation failure: Invalid license specification": "",
    "allocation failure: Requested reservation is invalid": "`scontrol show reservation`",
    "sbatch: unrecognized option '--frobnicate'": "",
    "allocation failure: Memory specification can not be satisfied": "`sinfo -o '%P %m'`",
    "allocation failure: Invalid node name specified": "",
}


@pytest.mark.parametrize("said", REFUSALS)
def test_what_sbatch_refuses_for_good(slurm: FakeCommandRunner, said: str) -> None:
    """It is bad, with Slurm's message and a hint."""
    answered(slurm, "sbatch", "--test-only", stderr=said + "\n", returncode=1)
    slurm.on("sinfo", "--noheader", "--format=%m", stdout="2000\n")
    found = ask_job(slurm)
    assert found.verdict == BAD
    assert said.rpartition("failure: ")[2].removeprefix("sbatch: ").removeprefix("error: ") in found.said
    assert REFUSALS[said] in found.fix


@pytest.mark.parametrize(
    "said",
    [
        "allocation failure: Required node not available (down, drained or reserved)",
        "allocation failure: Requested partition configuration not available now",
        "allocation failure: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "sbatch: error: Batch job submission failed: Invalid authentication credential",
        "sbatch: fatal: Could not establish a configuration source",
        "allocation failure: Requested nodes are busy",
        "allocation failure: a word that nobody has heard",
    ],
)
def test_what_may_pass(slurm: FakeCommandRunner, said: str) -> None:
    """It is reported, and does not stop the submission."""
    answered(slurm, "sbatch", "--test-only", stderr=said, returncode=1)
    assert ask_job(slurm).verdict == UNKNOWN


def test_a_partition_that_knows_no_memory(slurm: FakeCommandRunner) -> None:
    """The job is resubmitted without the request, so this is not bad."""
    answered(slurm, "sbatch", "--test-only", stderr="Memory specification can not be satisfied", returncode=1)
    slurm.on("sinfo", "--noheader", "--format=%m", stdout="1\n")
    assert ask_job(slurm).verdict == GOOD


@pytest.mark.parametrize(
    "error",
    [
        TransientError("`sinfo` did not answer within 2 s"),
        {"stderr": "Unable to contact slurm controller", "returncode": 1},
    ],
    ids=["hangs", "down"],
)
def test_a_cluster_that_does_not_answer(error: Any) -> None:
    """It is a doubt, without retries."""
    fake = FakeCommandRunner()
    for program in ("sinfo", "sh", "sbatch"):
        fake.on(program, **(error if isinstance(error, dict) else {"raises": error}))
    assert {f.verdict for what, f in ask(fake, partition="gpu").items() if what != "environment"} == {UNKNOWN}
    assert len(fake.calls) == 5
    assert ask_job(fake).verdict == UNKNOWN


def test_no_slurm_here() -> None:
    """It is bad; the fix is a login node."""
    fake = FakeCommandRunner()
    for program in ("sinfo", "sh", "sbatch"):
        fake.on(program, raises=CommandError("no", argv=[program], returncode=127))
    found = ask(fake)
    assert found["Slurm"].verdict == found["sbatch"].verdict == BAD
    assert "-cfg ssh=" in found["Slurm"].fix


def test_the_trial_is_of_this_very_job(slurm: FakeCommandRunner, tmp_path: Path) -> None:
    """It uses the script of the submission, hides variables with secrets, and creates no folder."""
    role = Role("r", "", entrypoint="sh", args=["-c", "true"], num_replicas=2, resource=Resource(3, 0, 100))
    role.env["TOKEN"] = Secret("env:HF_TOKEN")
    hidden = ["env", "-u", "TOKEN", "-u", "HF_TOKEN", "sbatch", "--test-only"]
    slurm.on(*hidden, stderr=STARTS)
    assert ask_job(slurm, role, partition="gpu").verdict == GOOD
    call = slurm.calls[-1]
    assert call.argv[:7] == hidden
    assert "--parsable" not in call.argv
    assert "--cpus-per-task=3" in call.stdin
    assert "--partition=gpu" in call.stdin
    assert not list(tmp_path.iterdir())
    answered(slurm, *hidden, returncode=127)
    assert "`sbatch` is not installed" in ask_job(slurm, role).said


def test_the_trial_of_a_script_with_arguments(
    slurm: FakeCommandRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's own script is tried; its arguments do not matter."""
    monkeypatch.chdir(tmp_path)
    Path("train.sbatch").write_text("#!/bin/bash\n#SBATCH -t 10\ntrue\n")
    scheduler = SlurmScheduler("s", commands=slurm)
    app = utils.sbatch("train.sbatch", "--lr", "3")
    info = scheduler.submit_dryrun(app, {})
    info._app = app
    (check,) = scheduler.diagnose({}, info)
    (finding,) = check.findings()
    assert finding.verdict == GOOD
    (call,) = [call for call in slurm.calls if call.argv[0] == "sbatch"]
    assert call.stdin == Path("train.sbatch").read_text()
    assert not {"--lr", "train.sbatch", "--parsable"} & {*call.argv}
