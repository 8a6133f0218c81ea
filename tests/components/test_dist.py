"""Distributed PyTorch: the AppDefs of the components, and their commands run by a shell."""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchx.components.base as old_base
from tests import ports
from torchx.components import dist
from torchx.components.component_test_base import ComponentTestCase
from torchx.components.dist import _args_join, _noquote, ddp, get_role_name, parse_nnodes, spmd, torchrun
from torchx.errors import SpecError
from torchx.specs import AppDef, AppState, BindMount, Resource, RetryPolicy, Role, macros, resource

FAKE_TORCHRUN = f"""#!{sys.executable}
import json, os, sys
print(json.dumps(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def fake_bin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a `torchrun` that prints its arguments as JSON."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "torchrun").write_text(FAKE_TORCHRUN)
    (folder / "torchrun").chmod(0o755)
    return folder


@pytest.fixture
def free_port() -> int:
    """Return a free TCP port of localhost."""
    return ports.free("localhost")


def launched(app: AppDef, fake_bin: Path, *, replica: int = 0, **env: str) -> list[str]:
    """Return the arguments of torchrun on one node, as passed by a real shell."""
    values = macros.Values(img_root="/img", app_id="job-1", replica_id=str(replica), rank0_env="TORCHX_RANK0_HOST")
    role = values.apply(app.roles[0])
    done = subprocess.run(
        [role.entrypoint, *role.args],
        env={"PATH": f"{fake_bin}:{os.environ['PATH']}", "HOME": "/root", **role.env, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_one_node(fake_bin: Path) -> None:
    """On one node, torchrun uses a free port of localhost."""
    app = ddp("--epochs", "3", script="src/train.py", j="1x2")
    (role,) = app.roles
    assert (app.name, role.name, role.entrypoint, role.num_replicas, role.min_replicas) == (
        "train",
        "train",
        "bash",
        1,
        None,
    )
    assert role.resource == Resource(cpu=2, gpu=0, memMB=1024)
    words = launched(app, fake_bin)
    assert option(words, "--rdzv_endpoint") == "localhost:0"
    assert option(words, "--local_addr") == "localhost"
    assert option(words, "--rdzv_id") == "job-1"
    assert (option(words, "--nnodes"), option(words, "--nproc_per_node")) == ("1", "2")
    assert (option(words, "--tee"), option(words, "--role")) == ("3", "")
    assert words[-3:] == ["src/train.py", "--epochs", "3"]
    assert "--rdzv_conf" not in words


def test_many_nodes(fake_bin: Path) -> None:
    """On many nodes, replica 0 hosts the store at the address from the scheduler, and the others wait for it."""
    app = ddp(m="pets.train", j="2x4")
    assert app.roles[0].num_replicas == 2
    for replica, is_host in ((0, "1"), (1, "0")):
        words = launched(app, fake_bin, replica=replica, TORCHX_RANK0_HOST="host-0")
        assert option(words, "--rdzv_endpoint") == "host-0:29500"
        conf = dict(pair.split("=") for pair in option(words, "--rdzv_conf").split(","))
        assert conf == {"is_host": is_host, "read_timeout": "900", "join_timeout": "900"}
        assert option(words, "--nnodes") == "2"
        assert words[-2:] == ["-m", "pets.train"]


def test_the_port(fake_bin: Path) -> None:
    """The port of the scheduler replaces the default port, but not a port of the user."""
    chosen = ddp(script="a.py", j="2x1", rdzv_port=5000)
    for app, endpoint in ((ddp(script="a.py", j="2x1"), "h:4001"), (chosen, "h:5000")):
        words = launched(app, fake_bin, TORCHX_RANK0_HOST="h", TORCHX_RANK0_PORT="4001")
        assert option(words, "--rdzv_endpoint") == endpoint
    assert chosen.roles[0].port_map == {"c10d": 5000}


def test_rendezvous_options(fake_bin: Path) -> None:
    """rdzv_conf overrides the defaults, and other backends get the options that they need."""
    words = launched(
        ddp(script="a.py", j="2x1", rdzv_conf="join_timeout=5,last_call_timeout=3"), fake_bin, TORCHX_RANK0_HOST="h"
    )
    pairs = option(words, "--rdzv_conf").split(",")
    assert sorted(pairs) == ["is_host=1", "join_timeout=5", "last_call_timeout=3", "read_timeout=900"]
    words = launched(ddp(script="a.py", j="1x1", rdzv_conf="join_timeout=5"), fake_bin)
    assert option(words, "--rdzv_conf") == "join_timeout=5"
    words = launched(ddp(script="a.py", j="2x1", rdzv_backend="static"), fake_bin, replica=1, TORCHX_RANK0_HOST="h")
    assert (option(words, "--rdzv_backend"), option(words, "--node_rank")) == ("static", "1")
    assert "--rdzv_conf" not in words
    words = launched(torchrun(script="a.py", j="2x1", rdzv_backend="etcd-v2", rdzv_endpoint="etcd:2379"), fake_bin)
    assert option(words, "--rdzv_endpoint") == "etcd:2379"
    words = launched(torchrun(script="a.py", j="2x1", rdzv_endpoint="store:1"), fake_bin)
    assert "is_host" not in option(words, "--rdzv_conf")


def test_elastic(fake_bin: Path) -> None:
    """An elastic job continues with fewer nodes: torchrun restarts workers, and the scheduler restarts single nodes."""
    role = ddp(script="a.py", j="1:3x2", max_retries=2).roles[0]
    assert (role.num_replicas, role.min_replicas) == (3, 1)
    assert (role.max_retries, role.retry_policy) == (2, RetryPolicy.REPLICA)
    assert role.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    words = launched(AppDef("a", [role]), fake_bin, TORCHX_RANK0_HOST="h")
    assert (option(words, "--nnodes"), option(words, "--max_restarts")) == ("1:3", "6")
    fixed = ddp(script="a.py", j="3x2", max_retries=2).roles[0]
    assert (fixed.max_retries, fixed.retry_policy, fixed.min_replicas) == (2, RetryPolicy.APPLICATION, None)
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in fixed.env
    assert "--max_restarts" not in launched(AppDef("a", [fixed]), fake_bin, TORCHX_RANK0_HOST="h")


HOSTILE = [
    "",
    " ",
    "a b",
    "it's",
    'say "hi"',
    "$HOME",
    "${HOME}",
    "$(touch pwned)",
    "`touch pwned`",
    "$$",
    "a$$b",
    "\\",
    "\\n",
    "line\nbreak",
    "tab\t",
    "*",
    "~",
    "é😀",
    ";exit 1",
    "&& false",
    "| cat",
    "> file",
    "#no",
    "!x",
    "{a,b}",
    "--nnodes",
    "-",
    "'",
    "''",
    "%s",
    "\u2028",
]


def test_hostile_arguments(fake_bin: Path) -> None:
    """All arguments, the script and launcher options are passed unchanged; the shell expands nothing."""
    app = torchrun(*HOSTILE, script="a 'b' $(x).py", torchrun_args=["--log-dir=$(x) y"])
    words = launched(app, fake_bin)
    assert words[-len(HOSTILE) - 2 :] == ["--log-dir=$(x) y", "a 'b' $(x).py", *HOSTILE]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5))
@settings(max_examples=20, deadline=None)
def test_any_arguments(words: list[str]) -> None:
    """Any words survive the round trip through a shell."""
    line = _args_join(["printf", "%s\\0", "first", *words])
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ["first", *words]


def test_macros_in_arguments(fake_bin: Path) -> None:
    """Macros in script arguments are substituted; other text is unchanged."""
    words = launched(ddp(f"--id={macros.app_id}/{macros.replica_id}", "${other}", script="a.py"), fake_bin)
    assert words[-2:] == ["--id=job-1/0", "${other}"]


def test_environment() -> None:
    """The job gets the experiment name and debug flags as variables; values of the user take precedence."""
    role = ddp(script="a.py", name="exp/run", debug=True, env={"TORCH_DISTRIBUTED_DEBUG": "INFO", "A": "1"}).roles[0]
    assert role.env["TORCHX_TRACKING_EXPERIMENT_NAME"] == "exp"
    assert role.env["A"] == "1"
    assert role.env["TORCH_DISTRIBUTED_DEBUG"] == "INFO"
    assert set(dist._TORCH_DEBUG_FLAGS) <= set(role.env)
    assert not set(dist._TORCH_DEBUG_FLAGS) & set(ddp(script="a.py").roles[0].env)


def test_everything_else() -> None:
    """Name, metadata, mounts, image and resource are set in the AppDef."""
    app = ddp(
        script="a.py",
        name="exp/run",
        image="img",
        metadata={"k": "v"},
        h="gpu.small",
        mounts=["type=bind", "src=/a", "dst=/b"],
    )
    assert (app.name, app.metadata, app.roles[0].image) == ("run", {"k": "v"}, "img")
    assert app.roles[0].resource == resource(h="gpu.small")
    assert app.roles[0].mounts == [BindMount("/a", "/b")]
    assert app.roles[0].metadata == {"script": "a.py"}


def test_workers_from_the_resource(fake_bin: Path) -> None:
    """`-j 4` means four nodes with a worker per GPU; for `ddp`, one node with four workers."""
    words = launched(ddp(script="a.py", j="4", h="gpu.large"), fake_bin)
    assert (option(words, "--nnodes"), option(words, "--nproc_per_node")) == ("1", "4")
    for app in (
        torchrun(script="a.py", j="4", h="gpu.large"),
        torchrun(script="a.py", j="4", gpu=4),
        spmd(script="a.py", j="4", h="gpu.large"),
    ):
        words = launched(app, fake_bin, TORCHX_RANK0_HOST="h")
        assert (option(words, "--nnodes"), option(words, "--nproc_per_node")) == ("4", "4")


def test_ddp_and_spmd_are_views_of_torchrun() -> None:
    """Both are torchrun with fewer options and the same defaults, except for the size."""
    assert ddp("x", script="a.py") == torchrun("x", script="a.py")
    assert spmd("x", script="a.py") == torchrun("x", script="a.py", h="gpu.small", j="1x1")
    full = inspect.signature(torchrun).parameters
    for view in (ddp, spmd):
        for name, parameter in inspect.signature(view).parameters.items():
            if name not in ("args", "h", "j"):
                assert full[name] == parameter


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "neither `--script` nor `-m`"),
        ({"script": "a.py", "m": "a"}, "both `--script` and `-m`"),
        ({"script": "a.py", "j": "2y2"}, "`-j 2y2` is not of the form"),
        ({"script": "a.py", "h": "gpu.smal"}, "gpu.smal"),
        ({"script": "a.py", "mounts": ["type=bnd"]}, "bnd"),
        ({"script": "a.py", "name": "a/b/c"}, "more than one `/`"),
    ],
)
@pytest.mark.parametrize("component", [ddp, spmd, torchrun])
def test_wrong_arguments(component: Any, kwargs: dict[str, Any], message: str) -> None:
    """Each error is one line with a hint."""
    with pytest.raises((SpecError, LookupError), match=message) as e:
        component(**kwargs)
    assert getattr(e.value, "hint", "")


def test_a_script_given_as_a_positional_argument() -> None:
    """For `dist.ddp train.py`, the hint suggests `--script train.py`."""
    with pytest.raises(SpecError) as e:
        ddp("train.py")
    assert "did you mean `--script train.py`?" in e.value.hint


def test_more_workers_than_gpus(caplog: pytest.LogCaptureFixture) -> None:
    """Workers that would share a GPU cause a warning, not an error."""
    with caplog.at_level(logging.WARNING, "torchx"):
        ddp(script="a.py", j="1x4", h="gpu.medium")
    assert "4 workers on nodes of 2 GPUs" in caplog.text


def test_helpers_that_programs_import() -> None:
    """Quoting, role names and sizes."""
    assert _args_join(["a", "b c", _noquote("$X"), ""]) == "a 'b c' $X ''"
    assert _args_join(["a-b_c.d/e:f=g,h@i%j+k", "it's"]) == "a-b_c.d/e:f=g,h@i%j+k 'it'\"'\"'s'"
    assert get_role_name("src/train.py", None) == "train"
    assert get_role_name(None, "pets.train") == "train"
    with pytest.raises(SpecError):
        get_role_name(None, None)
    assert parse_nnodes("1x2") == (1, 1, 2, "1")
    assert parse_nnodes("2:4x8") == (2, 4, 8, "2:4")
    assert parse_nnodes("3") == (1, 1, 3, "1")


def test_the_old_role_factory_says_what_to_use() -> None:
    """An old component file gets a helpful error instead of a plain ImportError."""
    with pytest.raises(SpecError, match="torch_dist_role") as e:
        old_base.torch_dist_role  # the access is the test
    assert "torchrun" in e.value.hint
    assert not hasattr(old_base, "anything_else")


WORKER = """
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total), "rank", dist.get_rank(), sys.argv[1:], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(600)  # six interpreters import PyTorch
def test_a_node_that_starts_first_waits_for_replica_0(tmp_path: Path, free_port: int) -> None:
    """With two real nodes, the second one starts first and retries; all four workers connect."""
    pytest.importorskip("torch")
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    role = ddp("a 'b'", script=str(script), j="2x2").roles[0]
    nodes: dict[int, subprocess.Popen[str]] = {}
    try:
        for replica in (1, 0):
            values = macros.Values(img_root="/", app_id="job-1", replica_id=str(replica), rank0_env="TORCHX_RANK0_HOST")
            mine = values.apply(role)
            env = {
                **os.environ,
                **mine.env,
                "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
                "TORCHX_RANK0_HOST": "localhost",
                "TORCHX_RANK0_PORT": str(free_port),
                "TMPDIR": str(tmp_path),
            }
            nodes[replica] = subprocess.Popen(
                [mine.entrypoint, *mine.args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            if replica == 1:
                wait_for_torch(nodes[1])
        out = "".join(node.communicate(timeout=500)[0] for node in nodes.values())
    finally:
        for node in nodes.values():
            node.kill()
            node.communicate()
    assert [node.returncode for node in nodes.values()] == [0, 0]
    assert sorted(line[4:] for line in out.splitlines()) == [f"sum 4 rank {rank} [\"a 'b'\"]" for rank in range(4)]


def wait_for_torch(node: subprocess.Popen[str]) -> None:
    """Wait until the node has imported torch, before it can connect."""
    while "libtorch" not in Path(f"/proc/{node.pid}/maps").read_text():
        with contextlib.suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the node ended with {node.wait(timeout=0.05)}")


class ComponentsAreComponents(ComponentTestCase):
    """The base class of component tests works for the built-in components."""

    def test_validate(self) -> None:
        """Each component of the module is valid; a helper is not."""
        for name in ("ddp", "spmd", "torchrun"):
            self.validate(dist, name)
        with self.assertRaisesRegex(AssertionError, "parse_nnodes"):
            self.validate(dist, "parse_nnodes")

    def test_run_component(self) -> None:
        """A component runs on this machine until it ends."""
        from torchx.components.utils import sh

        def line(text: str) -> AppDef:
            return sh(text)

        status = self.run_component(line, {"text": f"echo hi > {self.test_dir}/out"}, timeout=300)
        assert status is not None
        self.assertEqual(AppState.SUCCEEDED, status.state)
        self.assertEqual("hi\n", (Path(self.test_dir) / "out").read_text())
        with self.assertRaises(TimeoutError):
            self.run_component(line, {"text": "exec sleep 600"}, timeout=0.1)

    def test_role_type(self) -> None:
        """torchrun returns an ordinary role."""
        self.assertIsInstance(torchrun(script="a.py").roles[0], Role)
