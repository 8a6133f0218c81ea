"""Comparisons of two runs: known pairs, with all their differences and no others."""

from __future__ import annotations

import copy

import pytest

from torchx.runner.capsule.differences import compare
from torchx.runs import Run
from torchx.specs import AppDef, AppState, BindMount, Resource, Role
from torchx.specs.serialize import appdef_to_dict
from torchx.util.redaction import MASK


def run(**changes):
    """A recorded run of one role on a cluster."""
    role = Role(
        "trainer",
        image="repo/train:1",
        entrypoint="python",
        args=["train.py", "--lr", "0.1", "--bf16", "data"],
        env={"TORCHX_JOB_ID": "slurm://s/${app_id}", "LR": "1", "HF_TOKEN": MASK},
        num_replicas=2,
        resource=Resource(cpu=4, gpu=1, memMB=1000),
    )
    app = AppDef("train", [role], metadata={"team": "a"})
    values = {
        "scheduler": "slurm",
        "session": "s",
        "name": "train",
        "state": AppState.SUCCEEDED,
        "app": appdef_to_dict(app),
        "cfg": {"partition": {"value": "gpu", "source": "-cfg"}, "time": {"value": None, "source": "default"}},
        "image_digests": {"trainer": "sha256:1"},
        "workspace_hashes": {"trainer": "sha256:c1"},
    }
    return Run(id=1, handle="slurm://s/1", app_id="1", **{**copy.deepcopy(values), **changes})


def with_role(**changes):
    found = run()
    found.app["roles"][0].update(changes)
    return found


def with_args(*args, entrypoint="python"):
    return with_role(args=list(args), entrypoint=entrypoint)


def two_roles():
    found = run()
    found.app["roles"].append({**found.app["roles"][0], "name": "reader"})
    return found


def cfg(value, source):
    return run(cfg={"partition": {"value": value, "source": source}, "time": {"value": None, "source": "default"}})


ARGS = ("train.py", "--lr", "0.1", "--bf16", "data")
LINE = "torchrun --nnodes 2 train.py --lr {}"
PAIRS = {
    "the same": (run(), run(), []),
    "ids, times and hosts": (run(), run(created_at=5.0, host="other", msg=""), []),
    "scheduler": (run(), run(scheduler="lsf"), [("run", "", "scheduler", "slurm", "lsf")]),
    "name": (run(), run(name="other"), [("run", "", "name", "train", "other")]),
    "parent": (run(), run(parent_run_id="p"), [("run", "", "parent run", None, "p")]),
    "a further role": (run(), two_roles(), [("run", "", "role reader", None, "yes")]),
    "code": (
        run(),
        run(workspace_hashes={"trainer": "sha256:c2"}),
        [("code", "trainer", "content", "sha256:c1", "sha256:c2")],
    ),
    "image": (run(), with_role(image="repo/train:2"), [("image", "trainer", "image", "repo/train:1", "repo/train:2")]),
    "image below the code": (
        run(tags={"image.trainer": "base"}),
        run(app=with_role(image="built").app, tags={"image.trainer": "base"}),
        [],
    ),
    "a tag that moved": (
        run(),
        run(image_digests={"trainer": "sha256:2"}),
        [("image", "trainer", "digest", "sha256:1", "sha256:2")],
    ),
    "an argument's value": (
        run(),
        with_args("train.py", "--lr", "0.2", "--bf16", "data"),
        [("arguments", "trainer", "--lr", "0.1", "0.2")],
    ),
    "an argument with an equals sign": (with_args("train.py", "--lr=0.1"), with_args("train.py", "--lr", "0.1"), []),
    "an argument more": (run(), with_args(*ARGS, "--seed", "3"), [("arguments", "trainer", "--seed", None, "3")]),
    "a negative value": (
        with_args("x", "--t", "-1"),
        with_args("x", "--t", "-2"),
        [("arguments", "trainer", "--t", "-1", "-2")],
    ),
    "a word of a shell line": (
        with_args("-c", LINE.format(1), entrypoint="bash"),
        with_args("-c", LINE.format(2), entrypoint="bash"),
        [("arguments", "trainer", "--lr", "1", "2")],
    ),
    "the program": (
        run(),
        with_args(*ARGS, entrypoint="python3"),
        [("arguments", "trainer", "program", "python", "python3")],
    ),
    "an option": (run(), cfg("debug", "-cfg"), [("options", "", "partition", "gpu", "debug")]),
    "where an option comes from": (
        run(),
        cfg("gpu", "~/.torchxconfig:2"),
        [("origin", "", "partition", "-cfg", "~/.torchxconfig:2")],
    ),
    "replicas": (run(), with_role(num_replicas=8), [("resources", "trainer", "num_replicas", 2, 8)]),
    "memory": (
        run(),
        with_role(resource={**run().app["roles"][0]["resource"], "memMB": 2000}),
        [("resources", "trainer", "memMB", 1000, 2000)],
    ),
    "a device": (
        run(),
        with_role(resource={**run().app["roles"][0]["resource"], "devices": {"efa": 4}}),
        [("resources", "trainer", "devices.efa", None, 4)],
    ),
    "a variable": (
        run(),
        with_role(env={"TORCHX_JOB_ID": "x", "LR": "2", "HF_TOKEN": MASK, "NEW": "1"}),
        [("environment", "trainer", "LR", "1", "2"), ("environment", "trainer", "NEW", None, "1")],
    ),
    "metadata": (run(), run(app={**run().app, "metadata": {}}), [("metadata", "", "team", "a", None)]),
    "how it ended": (
        run(),
        run(state=AppState.FAILED, msg="exit code 1"),
        [("outcome", "", "state", "SUCCEEDED", "FAILED"), ("outcome", "", "message", None, "exit code 1")],
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_known_pairs(name):
    """All differences are named with both values, and no others; swapping the runs swaps the values."""
    a, b, expected = PAIRS[name]
    found = [(r.section, r.role, r.name, r.a, r.b) for r in compare(a, b).rows]
    assert found == expected
    back = [(r.section, r.role, r.name, r.b, r.a) for r in compare(b, a).rows]
    assert sorted(back, key=str) == sorted(expected, key=str)


def test_a_mount():
    """Mounts are compared by value, not by identity."""
    mount = {"type": "bind", **vars(BindMount("/a", "/b"))}
    rows = compare(run(), with_role(mounts=[mount])).rows
    assert [(r.section, r.name, r.a, r.b) for r in rows] == [("resources", "mounts", [], [mount])]


def test_code_that_nobody_knows():
    """Runs outside git and without a workspace: their code is not reported as equal."""
    a, b = run(workspace_hashes={}), run(workspace_hashes={})
    assert compare(a, b).unknown == ["the code: neither run was launched in a git repository"]
    assert compare(run(), run()).unknown == []


def test_code_that_is_gone(tmp_path):
    """A commit that no longer exists is named, and all other differences are still reported."""
    a = run(git_commit="a" * 40, cwd=str(tmp_path / "gone"))
    b = run(git_commit="b" * 40, cwd=str(tmp_path / "gone"))
    found = compare(a, b)
    assert [(r.section, r.name) for r in found.rows] == [("code", "commit")]
    assert "is gone" in found.unknown[0]
