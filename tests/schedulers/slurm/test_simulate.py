"""Slurm's commands for each simulated fault, and rejections before any of them."""

from __future__ import annotations

import pytest

from torchx.errors import BackendError, CommandError, NotSupportedError
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.kit.files import LocalFiles
from torchx.schedulers.kit.simulations import Simulation
from torchx.schedulers.slurm.options import SlurmOpts
from torchx.schedulers.slurm.request import make_request, render
from torchx.schedulers.slurm.simulate import simulation
from torchx.specs.api import AppDef, Role
from torchx.specs.wishes.retries import RetryRules

SHOWN = "JobId=7 JobName=x UserId=me(1) JobState=RUNNING Requeue={requeue} RunTime={ran} TimeLimit={limit} WorkDir={folder}\n"
STEPS = "7.batch|n1|batch\n7.1|n2|replica.0\n7.0|n1|replica.1\n"


class Slurm:
    """Answers like Slurm's commands, and records requested changes."""

    def __init__(self, *, requeue: int = 1, ran: str = "00:00:30", limit: str = "UNLIMITED", folder: str = "") -> None:
        self.shown = SHOWN.format(requeue=requeue, ran=ran, limit=limit, folder=folder)
        self.users = "me\n"
        self.refuses = ""
        self.state = "idle"
        self.did: list[str] = []

    def __call__(self, argv: list[str]) -> Completed:
        line = " ".join(argv)
        answers = {
            "scontrol show": self.shown,
            "squeue --steps": STEPS,
            "squeue --noheader": self.users,
            "sinfo": self.state,
            "id -un": "me\n",
        }
        for start, said in answers.items():
            if line.startswith(start):
                return Completed(argv, 0, said, "")
        self.did.append(line)
        return Completed(argv, 1 if self.refuses else 0, "", self.refuses)

    def plan(self, fault: str, replica: tuple[str, int] = ("w", 0)) -> Simulation:
        replicas = [("w", 0), ("w", 1), ("w", 2)]
        return simulation(self, "7", fault, replica, replicas=replicas, files=LocalFiles())


@pytest.mark.parametrize(
    ("fault", "commands"),
    [
        ("preempt", ["scontrol requeue 7"]),
        ("timeout", ["scontrol update JobId=7 TimeLimit=1"]),
        ("kill", ["scancel --signal=STOP 7.1", "scancel --signal=KILL 7.1"]),
        ("hang", ["scancel --ctld --signal=STOP 7.1"]),
        (
            "node",
            [
                "scontrol update NodeName=n2 State=DOWN Reason=torchx simulate node",
                "scontrol update NodeName=n2 State=RESUME",
            ],
        ),
    ],
)
def test_what_is_done(fault: str, commands: list[str]) -> None:
    """Nothing happens before `make`; the step is that of the replica."""
    slurm = Slurm()
    plan = slurm.plan(fault)
    assert slurm.did == []
    plan.make()
    assert slurm.did == commands


def test_the_replica_that_is_named() -> None:
    """A replica without a step does not run."""
    slurm = Slurm()
    slurm.plan("kill", ("w", 1)).make()
    assert slurm.did == ["scancel --signal=STOP 7.0", "scancel --signal=KILL 7.0"]
    with pytest.raises(BackendError, match="is not running"):
        slurm.plan("kill", ("w", 2))


@pytest.mark.parametrize(
    ("ran", "policy", "command"),
    [
        ("00:00:30", "", "scontrol update JobId=7 TimeLimit=1"),
        ("00:05:30", "oom:1", "scontrol update JobId=7 TimeLimit=5"),
        ("1-00:00:01", "timeout:1", "scancel --batch --signal=USR1 7"),
    ],
)
def test_a_limit_that_the_script_hears_of(tmp_path, ran: str, policy: str, command: str) -> None:
    """The script is warned, and limits of later attempts stay; without a warning the limit itself is lowered."""
    app = AppDef("x", [Role("w", "", entrypoint="true")])
    retry = RetryRules.parse(policy) if policy else None
    request = make_request(app, SlurmOpts(), name="x", cwd="/", retry=retry)
    (tmp_path / "job.sh").write_text(render(request))
    slurm = Slurm(ran=ran, folder=str(tmp_path))
    slurm.plan("timeout").make()
    assert slurm.did == [command]


def test_a_limit_that_is_near_is_left_alone() -> None:
    """A job cannot get a longer limit than its own."""
    with pytest.raises(BackendError, match="has run for 30 s of 60 s"):
        Slurm(limit="00:01:00").plan("timeout")


def test_what_cannot_be_done_is_refused() -> None:
    """A job that may not be requeued; memory; a node with jobs of others; and Slurm's own rejection, quoted."""
    with pytest.raises(NotSupportedError, match="may not requeue"):
        Slurm(requeue=0).plan("preempt")
    with pytest.raises(NotSupportedError, match="`oom` cannot be simulated on `slurm`"):
        Slurm().plan("oom")
    slurm = Slurm()
    slurm.users = "me\nanna\nbert\n"
    with pytest.raises(NotSupportedError, match="jobs of anna, bert run there"):
        slurm.plan("node")
    slurm.users, slurm.refuses = "me\n", "slurm_update error: Invalid user id"
    with pytest.raises(NotSupportedError, match=r"only its operators .*Invalid user id"):
        slurm.plan("node").make()
    with pytest.raises(CommandError, match="Invalid user id"):
        slurm.plan("kill").make()


@pytest.mark.parametrize(("state", "stays"), [("idle", False), ("down*", True)])
def test_a_node_that_comes_back_by_itself(state: str, stays: bool) -> None:
    """Some sites resume nodes, and then RESUME is rejected; a node that stays down is an error."""
    slurm = Slurm()
    slurm.state = state

    def answer(argv: list[str]) -> Completed:
        done = slurm(argv)
        resumed = argv[-1] == "State=RESUME"
        return Completed(argv, 1, "", "Invalid node state specified") if resumed else done

    plan = simulation(answer, "7", "node", ("w", 0), replicas=[("w", 0)], files=LocalFiles())
    if stays:
        with pytest.raises(CommandError, match="Invalid node state"):
            plan.make()
    else:
        plan.make()
