"""Jobs of AWS Batch again: with the code that they had, and exported, by AWS's own command, with the same outcome and output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.backends import venvs
from tests.backends.aws.conftest import reached
from tests.backends.docker.engine import IMAGE
from tests.backends.docker.registry import Registry, running
from torchx.runner import Runner
from torchx.runner.capsule.rerun import Rerun
from torchx.schedulers.aws_batch_scheduler import AWSBatchScheduler, create_scheduler
from torchx.specs import AppDef, AppState, Resource, Role
from torchx.specs.images import NamesOnly

pytestmark = pytest.mark.timeout(1200)  # of which the environment takes most

SCRIPT = 'cat data.txt; echo "$A it\'s $K"; exit $CODE'


@pytest.fixture(scope="module")
def aws() -> str:
    """The folder of the command."""
    with venvs._or_skip():
        return f"{venvs.made('aws-cli', ['awscli>=1.40,<2'])}/bin"


@pytest.mark.parametrize("code", [0, 3])
def test_aws_alone(queue: str, batch: AWSBatchScheduler, aws: str, tmp_path: Path, code: int) -> None:
    """From a folder that was moved, in an empty home: the image is built with the code and pushed, the job runs."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "data.txt").write_text("data\n")
    env = {"A": "x $y", "K": "${replica_id}", "CODE": str(code)}
    role = Role("r", IMAGE, entrypoint="sh", args=["-c", SCRIPT], env=env, resource=Resource(cpu=1, gpu=0, memMB=128))
    with running(Registry(tmp_path / "registry")) as registry, Runner("t", {"aws_batch": create_scheduler}) as runner:
        cfg = {"queue": queue, "image_repo": f"{registry.host}/team/train"}
        app = AppDef("exported", [role])
        ours = runner.run(app, "aws_batch", cfg, workspace=f"file://{project}")
        with NamesOnly():
            info = runner.dryrun(app, "aws_batch", cfg, workspace=f"file://{project}")
        runner.export(info, str(tmp_path / "out"))
        shutil.move(tmp_path / "out", tmp_path / "it's moved")
        shutil.rmtree(project)
        variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        plain = {**variables, "PATH": f"{aws}:{os.environ['PATH']}", "HOME": str(tmp_path / "empty")}
        (tmp_path / "empty").mkdir()
        argv = ["env", "-i", *(f"{k}={v}" for k, v in plain.items()), str(tmp_path / "it's moved" / "run.sh")]
        done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        ids = [f"{queue}:{info.request.name}", ours.partition("/")[2].lstrip("/").partition("/")[2]]
        over = (AppState.SUCCEEDED, AppState.FAILED)
        theirs, of_ours = (reached(batch, app_id, *over) for app_id in ids)
        assert (theirs.state, theirs.msg) == (of_ours.state, of_ours.msg)
        assert theirs.state is (AppState.FAILED if code else AppState.SUCCEEDED)
        said = [list(batch.log_iter(app_id, "r")) for app_id in ids]
        assert said == [["data\n", "x $y it's 0\n"]] * 2
        shown = subprocess.run(
            [f"{aws}/aws", "batch", "describe-jobs", "--jobs", done.stdout.split()[-1]],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(shown.stdout)["jobs"][0]["jobName"] == info.request.name


def test_the_code_of_then(queue: str, batch: AWSBatchScheduler, tmp_path: Path) -> None:
    """By the digest of the image that has it, though its tag may have moved; `now` builds another one."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "data.txt").write_text("then\n")
    role = Role("r", IMAGE, entrypoint="cat", args=["data.txt"], resource=Resource(cpu=1, gpu=0, memMB=128))
    with running(Registry(tmp_path / "registry")) as registry, Runner("t", {"aws_batch": create_scheduler}) as runner:
        cfg = {"queue": queue, "image_repo": f"{registry.host}/team/train"}
        first = runner.run(AppDef("again", [role]), "aws_batch", cfg, workspace=f"file://{project}")
        (project / "data.txt").write_text("now\n")
        made = {code: runner.rerun(first, Rerun(code=code)) for code in ("then", "now")}
        made["a rerun of a rerun"] = runner.rerun(made["then"], Rerun(code="then"))
        said = {}
        for code, handle in made.items():
            app_id = handle.partition("://")[2].partition("/")[2]
            assert reached(batch, app_id, AppState.SUCCEEDED, AppState.FAILED).state is AppState.SUCCEEDED
            said[code] = list(batch.log_iter(app_id, "r"))
        assert said == {"then": ["then\n"], "now": ["now\n"], "a rerun of a rerun": ["then\n"]}
        digests = [runner.recorded(handle).image_digests for handle in (first, made["then"])]
        assert digests[0] == digests[1] != {}
