"""Set-up lines, checks of nodes, staged data and what is free, with real pods."""

from __future__ import annotations

import pytest

from torchx.errors import NotFoundError
from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role
from torchx.specs.wishes.checks import CHECK_NODES
from torchx.specs.wishes.setup import SETUP
from torchx.specs.wishes.stages import STAGE


def test_around_the_program(kubeconfig: str, namespace: str, image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the set-up, whatever it contains; two replicas whose nodes are fit; a failure of the set-up."""
    monkeypatch.setenv("KUBECONFIG", kubeconfig)
    role = Role("r", image, entrypoint="sh", args=["-c", 'echo "$A" $(cat /tmp/os); sleep 1'], num_replicas=2)
    role.resource = Resource(1, 0, 64)
    metadata = {SETUP: "export A='$(HOME) ${app_id} $$'", CHECK_NODES: "disk,gpus", STAGE: "/etc/hostname=/tmp/os"}
    with get_runner() as runner:
        cfg = {"namespace": namespace}
        handle = runner.run(AppDef("around", [role], metadata=metadata), "kubernetes", cfg)
        status = runner.wait(handle, 0.5, 120)
        assert status is not None and str(status.state) == "SUCCEEDED", status
        for k in (0, 1):
            (line,) = runner.log_lines(handle, "r", k)
            assert line.startswith("$(HOME) ${app_id} $$ ")
        with pytest.raises(NotFoundError):
            runner.copy(handle, "x", ".")
        role.num_replicas, metadata = 1, {SETUP: "module load nope"}
        status = runner.wait(runner.run(AppDef("around", [role], metadata=metadata), "kubernetes", cfg), 0.5, 120)
        assert status is not None and "set-up failed: module load nope (exit 127)" in status.format()
        (pool,) = runner.nodes("kubernetes", cfg, Resource(1, 0, 64))
        assert pool.nodes == pool.usable == 1 and pool.cpus >= pool.free_cpus > 0 and pool.fitting >= 0
