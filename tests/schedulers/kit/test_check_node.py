"""Checks of nodes: faulty ones are played by a program, a port, a clock."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import ports
from torchx.cli.main import main
from torchx.errors import NotSupportedError
from torchx.runner import get_runner
from torchx.schedulers.kit import check_node
from torchx.schedulers.kit.failures import Evidence
from torchx.schedulers.kit.failures.reader import read_failure
from torchx.schedulers.kit.setup import with_setup
from torchx.specs import AppDef, RetryPolicy, Role
from torchx.specs.wishes.checks import CHECK_NODES
from torchx.specs.wishes.scripts import SBATCH

GOOD = "0, 0, Not Active\n1, [N/A], Not Active"
SMI = {
    "it has 1 GPUs, and 2 are asked for": ("0, 0, Not Active", 0),
    "GPU 1 has 3 uncorrected memory errors (ECC)": ("0, 0, Not Active\n1, 3, Not Active", 0),
    "GPU 0 is throttled by its hardware (heat or power)": ("0, 0, Active\n1, 0, Not Active", 0),
    "nvidia-smi fails: GPU is lost": ("Unable to determine the device handle\nGPU is lost", 15),
    "nvidia-smi fails: Unknown Error": ("Unknown Error\n0, 0, Not Active\n1, 0, Not Active", 255),
    "nvidia-smi says of GPU 1: [GPU requires reset]": ("0, 0, Not Active\n1, [GPU requires reset], Not Active", 0),
    "nvidia-smi says of GPU 0: [Unknown Error]": ("0, 0, [Unknown Error]\n1, 0, Not Active", 0),
    "it has 0 GPUs, and 2 are asked for": ("No devices were found", 0),
    "nvidia-smi fails: \ufffd\ufffd": ("\\377\\376", 1),
}


def smi(folder: Path, said: str, code: int) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{said}\\n'\nexit {code}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize("why", SMI)
def test_bad_gpus(programs: Path, why: str) -> None:
    """Each fault has its sentence."""
    smi(programs, *SMI[why])
    with pytest.raises(check_node.UnfitError) as e:
        check_node.gpus(2)
    assert str(e.value) == why


def test_good_gpus(programs: Path) -> None:
    """A job that asks for none is not refused for GPUs that fail; without nvidia-smi, one that asks for some is."""
    check_node.gpus(0)
    with pytest.raises(check_node.UnfitError, match="no nvidia-smi"):
        check_node.gpus(1)
    smi(programs, GOOD, 0)
    check_node.gpus(2)
    smi(programs, "broken", 9)
    check_node.gpus(0)


def test_a_driver_that_lacks_a_field(programs: Path) -> None:
    """The number of GPUs is still checked."""
    smi(programs, "0\\n1", 0)
    program = programs / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase $1 in *,*) echo "Field `x` is not a valid field to query."; exit 2 ;; esac; printf "0\\n1\\n"'
    )
    check_node.gpus(2)
    with pytest.raises(check_node.UnfitError, match="it has 2 GPUs, and 3"):
        check_node.gpus(3)


def test_a_wrong_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the site is told in a line, and no verdict on the node."""
    monkeypatch.setenv("TORCHX_CHECK_WAIT_S", "soon")
    assert check_node.main(["disk", "0", "1", "0", "A", "0"]) == 2
    assert capsys.readouterr().err == "torchx: TORCHX_CHECK_WAIT_S: could not convert string to float: 'soon'\n"


@pytest.mark.parametrize(
    "given", [{"min_replicas": 1}, {"max_retries": 1, "retry_policy": RetryPolicy.REPLICA}], ids=["elastic", "each"]
)
def test_replicas_that_come_and_go(given: dict[str, Any]) -> None:
    """Do not wait for each other: those may never start, or have ended their checks."""
    roles = [Role("w", "", entrypoint="sh", num_replicas=2, **more) for more in (given, {})]
    app = AppDef("a", roles, metadata={CHECK_NODES: "net"})
    with get_runner() as runner:
        made = with_setup(app, {}, "slurm", runner._scheduler("slurm"))
    lines = [role.args[3].splitlines()[-1].split() for role in made.roles]
    assert [line[3] for line in lines] == ["1", "2"]


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is named."""
    monkeypatch.setattr(check_node, "LEAST_DISK", 1 << 60)
    with pytest.raises(check_node.UnfitError, match="MiB free, less than"):
        check_node.disk()


def start(port: int, k: int, n: int, checks: str, *, late_s: float = 0, wait_s: float = 20) -> subprocess.Popen[str]:
    code = f"import sys; sys.path[0] = ''; from torchx.schedulers.kit import check_node as c; c.WAIT_S = {wait_s}\n"
    code += f"import time; now = time.time; time.time = lambda: now() + {late_s}\nsys.exit(c.main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, checks, str(k), str(n), "0", "HOST_OF_0", str(port - 29500)]
    env = {
        "HOST_OF_0": "127.0.0.1",
        "SLURMD_NODENAME": f"n{k}",
        "PYTHONPATH": str(Path(check_node.__file__).parents[3]),
    }
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(started: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    said = [one.communicate()[1] for one in started]
    return [(one.returncode, text) for one, text in zip(started, said, strict=True)]


def test_three_good_nodes_and_a_slow_clock() -> None:
    """Replicas find each other whoever starts first; only the one with another time is refused."""
    port = ports.free()
    found = ends([start(port, k, 3, "clock,net", late_s=-60 if k == 2 else 0) for k in (1, 2, 0)])
    assert found[0] == (0, "") and found[2] == (0, "")
    assert found[1] == (1, "torchx: node check failed: n2: its clock is 60.0 s behind that of replica 0\n")


def test_a_port_that_drops() -> None:
    """Neither replica waits for ever; a replica that gets no answer says which port of which host it tried."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        (code, said), (code0, said0) = ends([start(port, k, 2, "net", wait_s=1) for k in (1, 0)])
    assert code == 1 and f"n1: it does not reach port {port} of replica 0 on 127.0.0.1 in 1 s" in said
    assert code0 == 1 and f"n0: port {port} of replica 0 cannot be used" in said0


def test_the_class_is_node() -> None:
    """Of a failed check, whatever else was written; a failed set-up is of the class `error`."""
    said = "Traceback (most recent call last):\nValueError: 1\ntorchx: node check failed: n1: its disk is full\n"
    last = "torchx: set-up failed: check_node disk 0 1 0 'A' 0 (exit 1)\n"
    failure = read_failure(Evidence(stderr=said + last), exit_code=1)
    assert (failure.kind, failure.message) == ("node", "node check failed: n1: its disk is full")


def test_from_the_command_line(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--check-nodes` takes no word of the component; with `=` it takes some checks. The policy for retries sees the class."""
    smi(programs, SMI["GPU 1 has 3 uncorrected memory errors (ECC)"][0], 0)
    monkeypatch.chdir(programs)
    main(["run", "--wait", "--check-nodes=disk", "utils.echo"])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["run", "--wait", "--json", "--retry", "node:1", "--check-nodes", "utils.echo"])
    found = json.loads(capsys.readouterr().out)
    assert [attempt["class"] for attempt in found["attempts"]] == ["node", "node"]
    assert "GPU 1 has 3 uncorrected" in found["msg"]
    with pytest.raises(SystemExit):
        main(["run", "--check-nodes=gpu", "utils.echo"])
    assert "did you mean `gpus`?" in capsys.readouterr().err


def test_a_batch_script_refuses_it() -> None:
    """It is not dropped."""
    role = Role("w", "", entrypoint="sh", metadata={SBATCH: {"file": "a.sh", "text": "#!/bin/bash\n"}})
    with get_runner() as runner, pytest.raises(NotSupportedError, match="own set-up") as e:
        runner.dryrun(AppDef("a", [role], metadata={CHECK_NODES: "all"}), "slurm")
    assert "`--check-nodes`" in e.value.hint
