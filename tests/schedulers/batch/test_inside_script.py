"""``inside.sh``, which runs a command inside a replica on its node: whom it finds, and what it reports."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.supervisor.forks import eventually
from torchx.schedulers.batch import inside
from torchx.schedulers.kit.shell import read_script

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("bash"), reason="needs /proc and bash")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def sign() -> str:
    """What is in the environment of a replica, and of no other process."""
    return f"SIGN={uuid.uuid4()}"


@pytest.fixture
def replica(tmp_path: Path, sign: str) -> Iterator[Start]:
    """Starts processes with the sign."""
    made = []

    def start(folder: str = "", **env: str) -> subprocess.Popen[str]:
        name, _, value = env.pop("sign", sign).partition("=")
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        given = {"PATH": os.environ["PATH"], name: value, **env}
        made.append(subprocess.Popen(["sleep", "1000"], env=given, cwd=place, text=True))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def words(sign: str, *command: str, term: str = "") -> list[str]:
    return ["bash", "-c", read_script(inside.__file__, "inside.sh"), "inside.sh", "M", sign, term, *command]


def enter(sign: str, *command: str, term: str = "", **env: str) -> tuple[int, str, list[str]]:
    """Exit code, output, and the lines on stderr."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    done = subprocess.run(
        words(sign, *command, term=term), env={**clean, **env}, capture_output=True, text=True, check=False, timeout=120,
        input="in", start_new_session=True,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr.splitlines()


def test_nobody_is_there(sign: str, replica: Start) -> None:
    """It says so; a process whose environment only contains the sign is another one."""
    replica(sign=f"{sign}0")
    replica(sign=f"X{sign}")
    assert enter(sign, "echo", "hi") == (0, "", ["M- 0"])


def test_a_command_in_a_replica(sign: str, replica: Start, tmp_path: Path) -> None:
    """It has the replica's environment and folder, its own input and exit code; a terminal has its own type."""
    replica("here", WHO="a\nb", TERM="dumb")
    show = 'printf "%s|" "$WHO" "$TERM" "${HOME-none}" "$PWD" "$(cat)" "$1"; echo err >&2; exit 7'
    code, out, err = enter(sign, "sh", "-c", show, "sh", "it's")
    assert (code, out) == (0, f"a\nb|dumb|none|{tmp_path}/here|in|it's|")
    assert [line.rstrip("0123456789") for line in err] == ["M", "err", "M= "]
    assert err[-1] == "M= 7"
    assert enter(sign, "sh", "-c", 'echo "$TERM"', term="xterm")[1] == "xterm\n"


def test_the_group_of_the_command_is_reported(sign: str, replica: Start) -> None:
    """So that it can be signalled."""
    replica()
    _, out, err = enter(sign, sys.executable, "-c", "import os; print(os.getpgid(0))")
    assert err == [f"M{out.strip()}", "M= 0"]


def test_the_oldest_is_the_replica(sign: str, replica: Start) -> None:
    """Whatever it has started has its environment, too."""
    for name in ("first", "second", "third"):
        replica(WHO=name)
        subprocess.run(["sleep", "0.02"], check=True)  # the kernel counts hundredths of a second
    assert enter(sign, "sh", "-c", "echo $WHO")[1] == "first\n"


def test_a_step_of_slurm(sign: str, replica: Start) -> None:
    """The srun that started the replica is older, but no step; Slurm ends the command by the step's name."""
    replica(WHO="srun", SLURM_JOB_ID="7")
    subprocess.run(["sleep", "0.02"], check=True)
    replica(WHO="replica", SLURM_JOB_ID="7", SLURM_STEP_ID="0")
    found = enter(sign, "sh", "-c", "echo $WHO", SLURM_JOB_ID="7", SLURM_STEP_ID="3")
    assert found == (0, "replica\n", ["M7.3", "M= 0"])
    assert enter(sign, "sh", "-c", "echo $WHO")[1] == "srun\n"
    assert enter(f"{sign}0", "true", SLURM_JOB_ID="7", SLURM_STEP_ID="3")[2] == ["M- 0"]


def test_a_task_of_a_sweep(replica: Start) -> None:
    """It is no step; the number of a task repeats in other sweeps."""
    sign = f"TORCHX_TASK={uuid.uuid4().int}"
    replica(sign=sign, WHO="another", SLURM_JOB_ID="77")
    subprocess.run(["sleep", "0.02"], check=True)
    replica(sign=sign, WHO="task", SLURM_JOB_ID="7")
    assert enter(sign, "sh", "-c", "echo $WHO", SLURM_JOB_ID="7", SLURM_STEP_ID="3")[1] == "task\n"
    assert enter(sign, "true", SLURM_JOB_ID="8", SLURM_STEP_ID="3")[2] == ["M- 0"]


def test_a_command_that_a_signal_kills(sign: str, replica: Start) -> None:
    """Nothing but its code is reported."""
    replica()
    code, out, err = enter(sign, "sh", "-c", "kill -SEGV $$")
    assert (code, out, err[1:]) == (0, "", ["M= 139"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_for_the_command(number: signal.Signals, sign: str, replica: Start, tmp_path: Path) -> None:
    """The script outlives them, to report how it ended."""
    replica()
    command = f"trap 'exit 9' {number.name[3:]}; : >{tmp_path}/up; while :; do sleep 0.01; done"
    with subprocess.Popen(
        words(sign, "bash", "-c", command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        eventually((tmp_path / "up").exists)
        os.killpg(process.pid, number)
        assert process.stderr
        assert process.stderr.read().splitlines()[-1] == "M= 9"


def test_nobody_is_left_behind(sign: str, replica: Start) -> None:
    """Who would look whether the replica ends."""
    replica()
    _, _, (who, _) = enter(sign, "true")
    eventually(lambda: is_gone(int(who[1:])))


def is_gone(group: int) -> bool:
    """Whether no process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_command_ends_with_the_replica(sign: str, replica: Start, tmp_path: Path) -> None:
    """Where LSF does not end it: it gets SIGTERM, and nobody is left behind."""
    going = replica()
    command = f"trap 'exit 9' TERM; : >{tmp_path}/up; while :; do sleep 0.01; done"
    with subprocess.Popen(
        words(sign, "bash", "-c", command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        eventually((tmp_path / "up").exists)
        going.kill()  # and it is not waited for: it is a zombie, but gone
        assert process.stderr
        assert process.stderr.read().splitlines()[-1] == "M= 9"
        group = process.pid
    eventually(lambda: is_gone(group))
