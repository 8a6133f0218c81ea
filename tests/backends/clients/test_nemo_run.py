"""Experiments of NeMo-Run, whose executors are subclasses of our schedulers and Runner."""

from __future__ import annotations

import subprocess

import pytest

from tests.backends.clients.conftest import Client

pytestmark = pytest.mark.timeout(1200)  # most of it for the environment

PROGRAM = """
import nemo_run as run

if __name__ == "__main__":
    with run.Experiment("trial", executor={executor}) as experiment:
        experiment.add(run.Script(inline="echo hello from the task"), name="task", tail_logs=True)
        experiment.{verb}
    {after}
"""
STATUS = 'print("ended", experiment.status(return_dict=True)["task"]["status"])'


def program(executor: str, verb: str = "run(detach=False)", after: str = STATUS) -> str:
    return PROGRAM.format(executor=executor, verb=verb, after=after)


def test_local(nemo_run: Client) -> None:
    """A task runs as a process; its log is shown as it runs, and again when it is asked for."""
    said = nemo_run(script=program("run.LocalExecutor()", after=f'{STATUS}; experiment.logs("task")'))
    assert said.count("hello from the task") >= 2, said
    assert "ended SUCCEEDED" in said


def test_local_task_that_fails(nemo_run: Client) -> None:
    """Its state is that of the job."""
    text = program("run.LocalExecutor()").replace("echo hello from the task", "echo to no avail; exit 3")
    said = nemo_run(script=text)
    assert "to no avail" in said
    assert "ended FAILED" in said


def test_docker(nemo_run: Client, docker_image: str) -> None:
    """A task runs in a container of its own making, and its state and log come through our Runner."""
    executor = f'run.DockerExecutor(container_image="{docker_image}", packager=run.Packager())'
    # It lasts a while: NeMo-Run takes the log of a container that has ended before its first look for empty.
    text = program(executor, after=f'{STATUS}; experiment.logs("task")').replace("the task", "the task; sleep 3")
    said = nemo_run(script=text)
    assert "hello from the task" in said, said
    assert "ended SUCCEEDED" in said


SLURM = """run.SlurmExecutor(account="root", partition="{partition}", time="00:02:00", packager=run.Packager(),
        tunnel=run.LocalTunnel(job_dir=__import__("os").path.expanduser("~/.nemo_run/experiments")))"""


def test_slurm_script(nemo_run: Client) -> None:
    """A dry run shows the script that NeMo-Run renders."""
    said = nemo_run(script=program(SLURM.format(partition="gpu"), "dryrun()", "pass"))
    assert "#SBATCH --partition=gpu" in said


def test_slurm(nemo_run: Client, slurm_cluster: None) -> None:
    """It is submitted by NeMo-Run's own commands; its state comes from there."""
    partitions = subprocess.run(["sinfo", "-h", "-o", "%R"], capture_output=True, text=True, check=True).stdout
    said = nemo_run(script=program(SLURM.format(partition=partitions.split()[0])))
    assert "Launched app: slurm_tunnel://" in " ".join(said.split())
    assert "ended SUCCEEDED" in said
