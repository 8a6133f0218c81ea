"""What the batch script of a job with a policy learns: why an attempt ended, which node failed, and what follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchx.schedulers.slurm import attempts
from torchx.specs import AppDef, Role
from torchx.specs.serialize import appdef_to_dict
from torchx.specs.wishes.retries import RETRY

# As Slurm 22.05 writes them when n3 is lost: it ends the steps on all nodes for this reason, and names them.
LOST = """srun: Job step aborted: Waiting up to 12 seconds for job step to finish.
srun: error: Node failure on n3
slurmstepd-n3: error: *** STEP 832.1 ON n3 CANCELLED AT 2026-11-23T19:10:46 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***
"""
OTHER = """srun: Job step aborted: Waiting up to 12 seconds for job step to finish.
slurmstepd-{host}: error: *** STEP 832.0 ON {host} CANCELLED AT 2026-11-23T19:10:46 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***
srun: error: {host}: task 0: Exited with exit code 9
"""


@pytest.mark.parametrize("number", [3, 12], ids=["few", "more than status reads"])
def test_the_node_that_failed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """In a gang, the failed node is avoided, not a healthy one."""
    monkeypatch.setenv("SLURM_JOB_PARTITION", "main")
    monkeypatch.setattr(attempts, "output_lines", lambda program, *_: ["10"] if program == "sinfo" else [])
    role = Role("w", "", entrypoint="p", num_replicas=number)
    app = AppDef("a", [role], {RETRY: "node:2:avoid"})
    (tmp_path / "job.json").write_text(json.dumps({"app": appdef_to_dict(app)}))
    lost = number // 2
    hosts = ["n3" if k == lost else f"n{k + 20}" for k in range(number)]
    (tmp_path / "events").write_text("100 start 0 832\n" + "".join(f"101 up w/{k} {h}\n" for k, h in enumerate(hosts)))
    for k, host in enumerate(hosts):
        (tmp_path / "w" / str(k)).mkdir(parents=True)
        (tmp_path / "w" / str(k) / "srun.log").write_text(LOST if k == lost else OTHER.format(host=host))
    attempt = attempts.attempt_ended(str(tmp_path), "requeued")
    assert (attempt.kind, attempt.hosts, attempt.avoid) == ("node", ["n3"], ["n3"])


UP = "100 start 0 7\n101 up w/0 n1\n101 up w/1 n2\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job with a policy; Slurm's commands answer nothing."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(attempts, "output_lines", lambda *_: [])
    app = AppDef("a", [Role("w", "", entrypoint="p", num_replicas=2)], {RETRY: "standard, error:2:avoid"})
    (tmp_path / "job.json").write_text(json.dumps({"app": appdef_to_dict(app)}))
    for k in (0, 1):
        (tmp_path / "w" / str(k)).mkdir(parents=True)
    return tmp_path


def answers(monkeypatch: pytest.MonkeyPatch, **said: list[str]) -> list[tuple[str, ...]]:
    """What each of Slurm's commands prints; returns what they will have been asked."""
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(attempts, "output_lines", lambda *words: asked.append(words) or said.get(words[0], []))
    return asked


@pytest.mark.parametrize(
    ("states", "kind"),
    [
        (["PREEMPTED", "RUNNING"], "preempted"),
        (["RUNNING"], "node"),
        ([], "node"),
        (["NODE_FAIL", "PENDING"], "node"),
        (["PREEMPTED", "NODE_FAIL", "RUNNING"], "node"),
        (["REQUEUED", "RUNNING"], "preempted"),
        (["COMPLETED", "RUNNING"], "preempted"),
        (["TIMEOUT", "RUNNING"], "timeout"),
    ],
)
def test_why_slurm_has_requeued_it(states: list[str], kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last state before this run; without accounting its node was lost."""
    asked = answers(monkeypatch, sacct=states)
    (folder / "events").write_text(UP)
    assert attempts.attempt_ended(str(folder), "requeued").kind == kind
    assert ("sacct", "-D", "-X", "-n", "-P", "-j", "7", "-o", "State") in asked


@pytest.mark.parametrize(
    ("sinfo", "hosts"),
    [
        (["n1 down*", "n2 idle"], ["n1"]),
        (["n1 idle", "n2 idle"], []),
        (["n1 allocated", "n2 DOWN"], ["n2"]),
        (["n1", "n2 down x"], []),
        (["n1 down", "n2 down"], ["n1", "n2"]),
    ],
)
def test_which_node_was_lost(sinfo: list[str], hosts: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm reports it; of two that may be to blame neither is avoided."""
    answers(monkeypatch, sinfo=sinfo)
    (folder / "events").write_text(UP)
    found = attempts.attempt_ended(str(folder), "requeued")
    assert found.hosts == hosts


def test_the_only_node_was_lost(folder: Path) -> None:
    """It needs no report."""
    (folder / "events").write_text("100 start 0 7\n101 up w/0 n1\n101 up w/1 n1\n")
    assert attempts.attempt_ended(str(folder), "requeued").hosts == ["n1"]
    (folder / "attempts.jsonl").unlink()
    (folder / "events").write_text("100 start 0 7\n")
    assert attempts.attempt_ended(str(folder), "requeued").hosts == []


@pytest.mark.parametrize("bad", [(1,), (0, 1)])
def test_nodes_that_failed_a_check(folder: Path, monkeypatch: pytest.MonkeyPatch, bad: tuple[int, ...]) -> None:
    """All that say so, although Slurm takes them for fine, and whichever it drains for another reason."""
    answers(monkeypatch, sinfo=["n1 drng", "n2 idle"])
    (folder / "events").write_text(f"{UP}104 down w/1 1\n105 down w/0 1{' stopped' * (0 not in bad)}\n")
    for k in (0, 1):
        said = f"torchx: node check failed: n{k + 1}: GPU 0 has 2 errors\ntorchx: set-up failed: check_node (exit 1)\n"
        (folder / "w" / str(k) / "stdout.log").touch()
        (folder / "w" / str(k) / "stderr.log").write_text(said if k in bad else "")
    attempt = attempts.attempt_ended(str(folder), "failed")
    assert (attempt.kind, attempt.hosts) == ("node", [f"n{k + 1}" for k in bad])


def test_an_attempt_that_put_itself_back(folder: Path) -> None:
    """It is on record already."""
    (folder / "events").write_text(f"{UP}104 down w/0 3\n")
    first = attempts.attempt_ended(str(folder), "failed")
    assert (first.kind, first.hosts, first.started) == ("error", ["n1"], 100.0)
    assert attempts.attempt_ended(str(folder), "failed").ended == first.ended, "the program was killed, and runs again"
    (folder / "events").write_text(f"{UP}104 down w/0 3\n105 retry 1\n")
    again = attempts.attempt_ended(str(folder), "requeued")
    assert (again.kind, again.ended) == ("error", first.ended)
    assert len((folder / "attempts.jsonl").read_text().splitlines()) == 1
    (folder / "events").write_text(f"{UP}100 down w/0 3\n100 retry 1\n{UP}100 down w/0 3\n")
    second = attempts.attempt_ended(str(folder), "failed")
    assert second.ended > first.ended, "it began within the same second"


@pytest.mark.parametrize(
    ("partition", "rows", "number"), [("main", ["10", "x", " 5 "], 15), ("", ["3"], 3), ("", [], 0)]
)
def test_how_many_hosts_there_are(
    partition: str, rows: list[str], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the job's partition, or in all."""
    monkeypatch.setenv("SLURM_JOB_PARTITION", partition)
    asked = answers(monkeypatch, sinfo=rows)
    assert attempts._number_of_hosts() == number
    assert asked == [("sinfo", "-h", *(("-p", "main") if partition else ()), "-o", "%D")]


@pytest.mark.parametrize(
    ("policy", "printed"), [("error:2:avoid", "again n1 1000"), ("error:2", "again - 1000"), ("oom:1", "end")]
)
def test_what_the_script_hears(
    policy: str, printed: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line: whether to start again, hosts to avoid, and memory in thousandths."""
    answers(monkeypatch, sinfo=["10"])
    app = AppDef("a", [Role("w", "", entrypoint="p", num_replicas=2)], {RETRY: policy})
    (folder / "job.json").write_text(json.dumps({"app": appdef_to_dict(app)}))
    (folder / "events").write_text(f"{UP}104 down w/0 3\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", ["retry.pyz", "failed"])
    attempts.main()
    assert capsys.readouterr().out == f"{printed}\n"
