"""What the batch script of a requeued job with a policy learns: which node failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchx.schedulers.slurm import attempts
from torchx.specs import AppDef, Role
from torchx.specs.retries import RETRY
from torchx.specs.serialize import appdef_to_dict

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
