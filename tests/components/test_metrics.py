"""TensorBoard as a job: its AppDef, and the address of the server."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchx.apps.utils import process_monitor
from torchx.component_reader.builders import materialize_appdef
from torchx.components.metrics import tensorboard
from torchx.errors import SpecError
from torchx.specs import Role


def started(role: Role, job_id: str, folder: Path) -> list[str]:
    """Return the command line of TensorBoard in a job, as run by the shell of the role."""
    shell, words = _program(role)
    fake = folder / "python"
    fake.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    fake.chmod(0o755)
    env = {"PATH": f"{folder}:/usr/bin:/bin", "TORCHX_JOB_ID": job_id}
    done = subprocess.run([shell, *words], env=env, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


def _program(role: Role) -> tuple[str, list[str]]:
    args = process_monitor.parse_args(role.args[2:])
    return args.entrypoint, args.args


def test_what_is_described() -> None:
    """The job is one replica that exposes the port; a monitor starts and stops the server."""
    (role,) = tensorboard("runs", timeout=60, port=7007, start_on_file="s3://b/go", exit_on_file="s3://b/done").roles
    args = process_monitor.parse_args(role.args[2:])
    assert role.args[:2] == ["-m", "torchx.apps.utils.process_monitor"]
    assert (args.timeout, args.start_on_file, args.exit_on_file) == (60, "s3://b/go", "s3://b/done")
    assert (role.port_map, role.num_replicas, role.entrypoint) == ({"http": 7007}, 1, "python")


@pytest.mark.parametrize(
    ("job_id", "listens"),
    [
        ("local_cwd://torchx/tensorboard-x", "--host=127.0.0.1"),
        ("local_docker://torchx/tensorboard-x", "--bind_all"),
        ("kubernetes://torchx/default:tensorboard-x", "--bind_all"),
        ("", "--bind_all"),
    ],
)
def test_where_it_listens(tmp_path: Path, job_id: str, listens: str) -> None:
    """The server listens on loopback on this machine, and on all interfaces in a container."""
    (role,) = tensorboard("runs").roles
    assert started(role, job_id, tmp_path) == ["-m", "tensorboard.main", listens, "--logdir=runs", "--port=6006"]


def test_an_address_of_the_users(tmp_path: Path) -> None:
    """`--host` overrides the address, on this machine too."""
    (role,) = tensorboard("runs", host="10.0.0.7").roles
    words = ["-m", "tensorboard.main", "--logdir=runs", "--port=6006", "--host=10.0.0.7"]
    assert started(role, "local_cwd://torchx/x", tmp_path) == words


@given(logdir=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
@settings(max_examples=20, deadline=None)
def test_no_logdir_is_taken_for_anything_else(tmp_path_factory: pytest.TempPathFactory, logdir: str) -> None:
    """Any text is passed as the value of one option, not as an option or shell syntax."""
    (role,) = tensorboard(logdir, exit_on_file=logdir or "x").roles
    words = started(role, "local_cwd://torchx/x", tmp_path_factory.mktemp("bin"))
    assert words[3] == f"--logdir={logdir}"
    assert process_monitor.parse_args(role.args[2:]).exit_on_file == (logdir or "x")


def test_any_port() -> None:
    """Port 0 uses a free port, and exposes none."""
    assert tensorboard("runs", port=0).roles[0].port_map == {}


@pytest.mark.parametrize("words", [["--port", "70000"], ["--port", "-1"], ["--timeout", "-1"], ["--timeout", "nan"]])
def test_mistakes(words: list[str]) -> None:
    """Invalid ports and times raise an error before the submission."""
    with pytest.raises(SpecError, match=f"`{words[0]} .*is no"):
        materialize_appdef(tensorboard, ["--logdir", "runs", *words])
