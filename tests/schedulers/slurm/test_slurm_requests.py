"""Cases of options and requests of Slurm in which one operand of a condition decides."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.schedulers.slurm.test_slurm_scheduler import SMALL, fake, scheduler
from torchx.errors import ConfigError, TorchXError
from torchx.schedulers.kit.commands import Completed
from torchx.schedulers.slurm.options import SlurmOpts, _gres, job_words, node_options
from torchx.schedulers.slurm.request import Rules, SlurmBatchRequest, SlurmReplicaRequest, group_options
from torchx.schedulers.slurm_scheduler import SlurmScheduler
from torchx.specs import AppDef, Resource, Role
from torchx.specs.wishes.checks import CHECK_NODES, SPARES

__all__ = ["fake", "scheduler"]


def run(stdout: str = "", returncode: int = 0, stderr: str = "") -> Any:
    """Answers every command with this."""
    return lambda argv, **_: Completed(list(argv), returncode, stdout, stderr)


# -- options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "given", "times", "found"),
    [
        (Resource(1, 0, 1), None, 1, ""),
        (Resource(1, 2, 1), None, 2, "gpu:4"),
        (Resource(1, 2, 1), "gpu:a100", 1, "gpu:a100:2"),
        (Resource(1, 2, 1), "gpu:3", 1, "gpu:3"),
        (Resource(1, 0, 1), "gpu:a100", 1, ""),
        (Resource(1, 0, 1), "nvme", 2, "nvme:2"),
        (Resource(1, 0, 1), "tmp:2k, x:1G", 1, f"tmp:2048,x:{1 << 30}"),
        (Resource(1, 0, 1), "x:0", 1, ""),
        (Resource(1, -1, 1), None, 1, ""),
        (Resource(1, 1, 1, devices={"nic": 2, "vendor.com/nic": 3}), None, 2, "gpu:2,nic:4"),
    ],
)
def test_generic_resources(resource: Resource, given: str | None, times: int, found: str) -> None:
    """Of the role and of the options, for all replicas of a node."""
    assert _gres(resource, given, times) == found


@pytest.mark.parametrize(
    ("resource", "opts", "nomem", "sbatch", "srun"),
    [
        (Resource(2, 0, 64), {}, False, {"ntasks-per-node": "1", "cpus-per-task": "2", "mem": "64"}, {"cpus-per-task": "2", "mem": "64"}),
        (Resource(2, 0, 64), {}, True, {"ntasks-per-node": "1", "cpus-per-task": "2"}, {"cpus-per-task": "2"}),
        (Resource(2, 0, 64), {"nomem": True}, False, {"ntasks-per-node": "1", "cpus-per-task": "2"}, {"cpus-per-task": "2"}),
        (Resource(0, 0, 0), {}, False, {"ntasks-per-node": "1"}, {}),
        (Resource(-1, -1, -1), {}, False, {"ntasks-per-node": "1"}, {}),
        (Resource(1, 0, 64), {"replicas_per_node": 2}, False, {"ntasks-per-node": "2", "cpus-per-task": "1", "mem": "128"}, {"cpus-per-task": "1", "mem": "64", "exact": None}),
        (Resource(0, 1, 0), {"exclusive": True, "partition": "p"}, False, {"partition": "p", "exclusive": None, "ntasks-per-node": "1", "gres": "gpu:1"}, {"gres": "gpu:1"}),
    ],
)  # fmt: skip
def test_what_a_node_is_asked_for(
    resource: Resource, opts: dict[str, Any], nomem: bool, sbatch: dict[str, Any], srun: dict[str, Any]
) -> None:
    """And the share of each step; what is unset is left to the cluster."""
    assert node_options(Role("r", "", resource=resource), SlurmOpts(**opts), nomem=nomem) == (sbatch, srun)


def test_a_role_with_retries_may_be_requeued() -> None:
    """Others leave that to the site."""
    assert "requeue" in node_options(Role("r", "", max_retries=1), SlurmOpts(), nomem=False)[0]
    assert "requeue" not in node_options(Role("r", "", max_retries=0), SlurmOpts(), nomem=False)[0]


@pytest.mark.parametrize(
    ("opts", "early", "words"),
    [
        ({}, 0, []),
        ({"comment": "c", "mail_type": "END"}, 0, ["--comment=c", "--mail-type=END"]),
        ({"signal": "USR1@60"}, 0, ["--signal=USR1@60"]),
        ({"signal": "USR1@60"}, 90, ["--signal=B:USR1@90"]),
        ({"extra": ["--nice=1"]}, 90, ["--signal=B:USR1@90", "--nice=1"]),
    ],
)
def test_words_for_sbatch(opts: dict[str, Any], early: int, words: list[str]) -> None:
    """The script is warned instead of the replicas, if it asks for that."""
    assert job_words(SlurmOpts(**opts), early) == words


@pytest.mark.parametrize(
    ("opts", "why"),
    [
        ({"job_dir": "a\\b"}, "job_dir"),
        ({"job_dir": "a\nb"}, "job_dir"),
        ({"extra": ["-x"]}, "not an option of sbatch"),
        ({"extra": ["--"]}, "not an option of sbatch"),
        ({"extra": ["--x"]}, "not an option of sbatch"),
        ({"extra": ["--nodes=2"]}, "is set by torchx"),
        ({"extra": ["--xy"]}, ""),
        ({"job_dir": "a b"}, ""),
    ],
)
def test_values_that_break_a_job(opts: dict[str, Any], why: str) -> None:
    """They are rejected with the option's name."""
    if why:
        with pytest.raises(ConfigError, match=why):
            SlurmOpts(**opts).check()
    else:
        SlurmOpts(**opts).check()


# -- requests ----------------------------------------------------------------------------------------


def request_of(*sizes: int, least: dict[str, int] | None = None, **more: Any) -> SlurmBatchRequest:
    """The request of roles `r0`, `r1` ... of these sizes, with one replica per node."""
    app = AppDef("a", [Role(f"r{i}", "", num_replicas=n, resource=SMALL) for i, n in enumerate(sizes)])
    made: SlurmBatchRequest = SlurmScheduler("s").submit_dryrun(app, more).request
    for name, number in (least or {}).items():
        made.rules[name] = Rules(0, "APPLICATION", number)
    return made


@pytest.mark.parametrize(
    ("sizes", "least", "per_node", "nodes"),
    [
        ((3,), {}, 1, "3"),
        ((3,), {"r0": 2}, 1, "2-3"),
        ((3,), {"r0": 9}, 1, "3"),
        ((3, 2), {"r0": 2}, 1, "4-5"),
        ((3, 2), {"r0": 2, "r1": 1}, 1, "3-5"),
        ((5,), {}, 2, "3"),
        ((5,), {"r0": 3}, 2, "2-3"),
        ((5,), {"r0": 4}, 2, "3"),
    ],
)
def test_how_many_nodes(sizes: tuple[int, ...], least: dict[str, int], per_node: int, nodes: str) -> None:
    """As many as the replicas need; fewer, if they can be spared."""
    made = request_of(*sizes, least=least, replicas_per_node=per_node)
    options = group_options(made, [*made.replicas.values()])
    assert options["nodes"] == nodes
    assert ("no-kill" in options) is ("-" in nodes)
    assert ("ntasks-per-node" in options) is ("-" not in nodes)
    assert options["cpus-per-task"] == (str(per_node) if "-" in nodes else "1")


def test_a_role_without_rules_spares_nothing() -> None:
    """It needs all of its nodes."""
    made = request_of(3, 3, least={"r0": 1})
    made.rules.pop("r1")
    assert group_options(made, [*made.replicas.values()])["nodes"] == "4-6"


@pytest.mark.parametrize(
    ("requeue", "retries", "retry", "word"),
    [
        ("auto", 0, False, ""),
        ("yes", 0, False, "requeue"),
        ("no", 0, False, "no-requeue"),
        ("no", 1, False, "requeue"),
        ("no", 0, True, "requeue"),
        ("auto", 1, False, "requeue"),
    ],
)
def test_whether_slurm_may_requeue(requeue: str, retries: int, retry: bool, word: str) -> None:
    """As the user wishes, unless retries need it."""
    app = AppDef("a", [Role("r", "", max_retries=retries, resource=SMALL)])
    made = SlurmScheduler("s").submit_dryrun(app, {"requeue": requeue}).request
    made.retry = retry
    options = group_options(made, [*made.replicas.values()])
    assert [name for name in options if "requeue" in name] == ([word] if word else [])


def test_a_request_without_memory() -> None:
    """Neither the job nor a step asks for any; the original is as it was."""
    made = request_of(2)
    other = made.without_memory()
    assert all("mem" not in {**r.sbatch_opts, **r.srun_opts} for r in other.replicas.values())
    assert all("mem" in r.sbatch_opts and "mem" in r.srun_opts for r in made.replicas.values())
    assert isinstance(next(iter(other.replicas.values())), SlurmReplicaRequest)


def test_a_set_up_is_written_once() -> None:
    """Not for each replica: a job of many nodes stays far below the maximum size of a script."""
    from torchx.schedulers.kit.setup import with_setup
    from torchx.specs.wishes.setup import SETUP

    scheduler = SlurmScheduler("test")
    role = Role("w", "", entrypoint="echo", args=["${replica_id}"], num_replicas=100, resource=Resource(1, 0, 10))
    app = AppDef("job", [role], metadata={SETUP: "export A='b c'", CHECK_NODES: "gpus,disk"})
    text = scheduler.submit_dryrun(with_setup(app, {}, "slurm", scheduler), {}).request.materialize()
    assert text.count("A='\\''b c'\\''") == 1
    assert len(text) < 60_000
    definitions = text[text.index("word_0=") : text.index("group_0() {")]
    shown = subprocess.run(
        ["bash", "-c", f'{definitions}printf %s "$word_1"'], capture_output=True, text=True, check=True
    )
    assert shown.stdout.startswith("export A='b c'\ncheck_node() {")


@pytest.mark.parametrize(
    ("spares", "checks", "more", "said"),
    [
        pytest.param("x", "all", {}, "`--spares=x` is not a number", id="no-number"),
        pytest.param("1", "", {}, "`--spares` needs checks", id="no-checks"),
        pytest.param("1", "net", {}, "needs a check of single nodes", id="no-check-of-one"),
        pytest.param("1", "all", {"min_replicas": 1}, "an elastic job", id="elastic"),
    ],
)
def test_what_spares_need(spares: str, checks: str, more: dict[str, Any], said: str) -> None:
    """Otherwise they are refused; with them, the job asks for more nodes, and its steps name theirs."""
    role = Role("w", "", entrypoint="true", num_replicas=2, resource=SMALL, **more)
    app = AppDef("job", [role], metadata={SPARES: spares, **({CHECK_NODES: checks} if checks else {})})
    with pytest.raises(TorchXError, match=said):
        SlurmScheduler("s").submit_dryrun(app, {})
    role.min_replicas, app.metadata = None, {SPARES: "2", CHECK_NODES: "disk,net"}
    text = SlurmScheduler("s").submit_dryrun(app, {}).request.materialize()
    assert "#SBATCH --nodes=4 " in text
    assert text.count('step --nodelist="${host[$i]}" ') == 2
    assert "check_node disk 0 1 0 TORCHX_RANK0_HOST 0" in text
