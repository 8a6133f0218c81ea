"""Hydra's `--multirun` through the launcher that comes with torchx, in an environment with hydra-core and our wheel."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.backends.clients.conftest import Client, runner

pytestmark = pytest.mark.timeout(1200)  # most of it for the environment

PROGRAM = """
import json, os, time
import hydra
from hydra.core.hydra_config import HydraConfig

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    while not os.path.exists(cfg.gate):
        time.sleep(0.05)
    job = HydraConfig.get()
    print("RAN", json.dumps([job.job.num, cfg.db.driver, cfg.text, str(cfg.lr), list(job.overrides.task),
          os.path.relpath(job.runtime.output_dir, job.sweep.dir), os.getenv("KEY"), os.getenv("COPIED")]), flush=True)
    if cfg.lr == 13:
        raise ValueError("an unlucky rate")
    return [cfg.lr, cfg.db.driver]

if __name__ == "__main__":
    main()
"""

CONFIG = """
defaults: [{db: mysql}]
lr: 1
text: ""
gate: /
hydra:
  job: {env_set: {KEY: "number ${hydra.job.num}"}, env_copy: [COPIED], config: {override_dirname: {exclude_keys: [gate, text]}}}
  sweep: {subdir: "${hydra.job.override_dirname}/${hydra.job.num}"}
"""

SWEEPER = '''
import importlib
from hydra.core.config_store import ConfigStore
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

class Curious(BasicSweeper):
    """A sweeper as those that search: it goes on with what the jobs have returned."""
    def sweep(self, arguments):
        found = [job for jobs in super().sweep(arguments) for job in jobs]
        print("FOUND", [(job.status.name, job.return_value) for job in found])

ConfigStore.instance().store(group="hydra/sweeper", name="curious",
    node={"_target_": "hydra_plugins.curious.Curious", "max_batch_size": None, "params": None})
'''

HOSTILE = [
    "'a,b'",
    "'it\\'s \"$5\" `x` \\\\'",
    "'${lr} {v0} {{lr}} $HOME'",
    "'å∫ç 日本 🙂'",
    "'${oc.env:COPIED} $(touch no)'",
    "'  two  spaces\t'",
]
"""Texts as Hydra's grammar has them in a list of values."""

SWEEP = ["db=mysql,postgresql", f"text={','.join(HOSTILE)}"]


@pytest.fixture
def hydra(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """Runs a program with Hydra, in a folder with its configuration."""
    monkeypatch.setenv("COPIED", "from here")
    made = runner("hydra", ["hydra-core==1.3.8"], wheel, tmp_path)
    work = tmp_path / "work"
    for name, text in {
        "conf/config.yaml": CONFIG,
        "conf/db/mysql.yaml": "driver: my",
        "conf/db/postgresql.yaml": "driver: post",
        "hydra_plugins/curious.py": SWEEPER,
    }.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(text)
    return made


def multirun(hydra: Client, *words: str, fails: bool = False) -> str:
    """What `python program.py --multirun` says."""
    argv = ["python", "program.py", "--multirun", *words]
    return hydra(*(["sh", "-c", '! "$@"', "sh", *argv] if fails else argv), script=PROGRAM)


def what_ran(text: str) -> list[list[object]]:
    """What the jobs have printed, in their order."""
    return sorted(json.loads(line.partition("RAN ")[2]) for line in text.splitlines() if "RAN " in line)


def submitted(said: str) -> str:
    """The handle in what the launcher says."""
    found = re.search(r"torchx status (\S+)", said)
    assert found is not None, said
    return found[1]


@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm"])
def test_it_returns_at_once_and_each_job_is_as_hydra_would_have_it(
    hydra: Client, scheduler: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """No job can have ended when the command returns; then each has what Hydra's own launcher gives it."""
    if scheduler == "slurm":
        request.getfixturevalue("slurm_cluster")
    gate = tmp_path / "gate"
    said = multirun(hydra, *SWEEP, f"gate={gate}", "hydra/launcher=torchx", f"hydra.launcher.scheduler={scheduler}")
    handle = submitted(said)
    status = json.loads(hydra("python", "-m", "torchx.cli.main", "status", "--json", handle, script=PROGRAM))
    assert status["tasks"]["total"] == 12
    assert status["state"] in ("PENDING", "RUNNING")
    gate.touch()
    hydra("python", "-m", "torchx.cli.main", "wait", handle, script=PROGRAM)
    found = what_ran(hydra("python", "-m", "torchx.cli.main", "log", handle, script=PROGRAM))
    assert found == what_ran(multirun(hydra, *SWEEP, f"gate={gate}"))
    assert [row[:2] for row in found] == [[k, "my" if k < 6 else "post"] for k in range(12)]
    assert not (tmp_path / "work" / "no").exists()


@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm"])
def test_a_sweeper_that_needs_what_jobs_return(hydra: Client, scheduler: str, request: pytest.FixtureRequest) -> None:
    """It gets the values themselves, for then the launcher waits."""
    if scheduler == "slurm":
        request.getfixturevalue("slurm_cluster")
    words = ["hydra/sweeper=curious", "hydra/launcher=torchx", f"hydra.launcher.scheduler={scheduler}"]
    said = multirun(hydra, *words, "lr=1,2.5", "db=postgresql")
    assert "FOUND [('COMPLETED', [1, 'post']), ('COMPLETED', [2.5, 'post'])]" in said


def test_sweeps_of_the_documentation(hydra: Client, tmp_path: Path) -> None:
    """Ranges, choices, files found by a pattern, and a configuration that names launcher, sweep and mode itself."""
    conf = tmp_path / "work" / "conf"
    (conf / "experiment").mkdir()
    for name, rate in (("fast", 3), ("slow", 4)):
        (conf / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\nlr: {rate}\n")
    sweeper = "{params: {+experiment: 'glob(*)', text: 'range(1,3)', db: 'choice(postgresql)'}}"
    for name, launcher in (("theirs", "basic"), ("ours", "torchx")):
        options = "{wait: true, max_parallel: 2}" if launcher == "torchx" else "{}"
        (conf / f"{name}.yaml").write_text(
            f"defaults: [config, _self_, {{override hydra/launcher: {launcher}}}]\n"
            f"hydra: {{mode: MULTIRUN, launcher: {options}, sweeper: {sweeper}}}\n"
        )
    said = hydra("python", "program.py", "-cn", "ours", script=PROGRAM)
    found = what_ran(hydra("python", "-m", "torchx.cli.main", "log", submitted(said), script=PROGRAM))
    assert found == what_ran(hydra("python", "program.py", "-cn", "theirs", script=PROGRAM))
    assert [row[1:4] for row in found] == [["post", text, rate] for rate in ("3", "4") for text in (1, 2)]


def test_a_sweeper_is_told_that_there_is_no_value(hydra: Client) -> None:
    """What was only submitted is UNKNOWN to Hydra; who asks for its value hears why there is none."""
    words = ["hydra/sweeper=curious", "hydra/launcher=torchx", "hydra.launcher.wait=false"]
    said = multirun(hydra, *words, "lr=1,2", fails=True)
    assert "/0` was submitted and has not ended, and this sweeper needs what it returns" in said
    assert "hint: hydra.launcher.wait=true" in said
    assert "Traceback" not in said


def test_waiting_for_a_job_that_fails(hydra: Client) -> None:
    """Its exception comes out of the command, as with Hydra's own launcher."""
    said = multirun(hydra, "hydra/launcher=torchx", "hydra.launcher.wait=true", "lr=1,13", fails=True)
    assert "ValueError: an unlucky rate" in said


def test_waiting_for_a_job_that_is_killed(hydra: Client) -> None:
    """Without a word of its own, the cause is the scheduler's."""
    killed = PROGRAM.replace('raise ValueError("an unlucky rate")', "os.kill(os.getpid(), 9)")
    argv = ["python", "program.py", "-m", "hydra/launcher=torchx", "hydra.launcher.wait=true", "lr=1,13"]
    said = hydra("sh", "-c", '! "$@"', "sh", *argv, script=killed)
    assert re.search(r"job `local_cwd://\S+/1` is FAILED: .*SIGKILL", said), said


def test_what_torchx_refuses(hydra: Client) -> None:
    """Its sentence and its hint, and no traceback."""
    said = multirun(hydra, "hydra/launcher=torchx", "hydra.launcher.scheduler=slrum", "lr=1,2", fails=True)
    assert "scheduler `slrum` is not known\nhint: did you mean `slurm`?" in said
    assert "Traceback" not in said


def test_components_and_options_of_the_command_line(hydra: Client, tmp_path: Path) -> None:
    """Another component, with its options; a configuration given by `-cn` and `-cd`; a program started by `-m`."""
    work = tmp_path / "work"
    (work / "more").mkdir()
    (work / "more" / "other.yaml").write_text("defaults: [config, _self_]\nlr: 7\n")
    argv = ["python", "-m", "program", "-cn", "other", "-cd", "more", "-m", "db=mysql,postgresql"]
    said = hydra(*argv, "hydra/launcher=basic", script=PROGRAM)
    expected = what_ran(said)
    said = hydra(*argv, "hydra/launcher=torchx", "hydra.launcher.component=utils.python --name chosen", script=PROGRAM)
    handle = submitted(said)
    assert "/chosen-" in handle
    hydra("python", "-m", "torchx.cli.main", "wait", handle, script=PROGRAM)
    assert what_ran(hydra("python", "-m", "torchx.cli.main", "log", handle, script=PROGRAM)) == expected
